//! How a decision changes the row of a server or run.

use cnlab_model::{Timestamp, id::GrantId};
use cnlab_service::trace;
use scheduler_core::{run, server};

use super::{Who, image::Slot};
use crate::{
    error::SchedulerError,
    store::{
        batch::Line,
        job::{Job, NewJob},
        record::{Grant, Server},
    },
};

/// The line of somebody who gets a slice, with a fence still to be given.
pub(super) fn granted(
    who: &Who,
    new: bool,
    slot: &Slot,
    id: GrantId,
    now: Timestamp,
) -> Result<Line, SchedulerError> {
    let workload = who.id();
    let grant = Grant {
        id,
        fence: 0,
        workload,
        team: who.team(),
        node: slot.node,
        gpu_type: slot.gpu_type.clone(),
        slices: slot.slices.clone(),
        granted_at: now,
        delivered_at: None,
        released_at: None,
    };
    let mut who = who.clone();
    let expected = Some(now.plus(slot.start));
    match &mut who {
        Who::Server(server) => {
            let event = server::Event::SlicePlaced;
            server.state = server::step(server.state, event).map_err(SchedulerError::NotNow)?;
            server.grant = Some(id);
            server.node = Some(slot.node);
            server.queued_at = None;
            server.started_at = Some(now);
            server.ready_at = None;
            server.stopped_at = None;
            server.expected_at = expected;
            server.phase_detail = String::new();
            server.failure = None;
            server.runtime = None;
            server.sequence = 0;
        }
        Who::Run(run) => {
            let event = run::Event::SlicePlaced;
            run.state = run::step(run.state, event).map_err(SchedulerError::RunNotNow)?;
            run.grant = Some(id);
            run.node = Some(slot.node);
            run.placed_at = Some(now);
            run.expected_at = expected;
            run.phase_detail = String::new();
            run.sequence = 0;
        }
    }
    let span = trace::span_with_parent(who.traceparent(), "scheduler.place");
    let traceparent = span
        .in_scope(trace::current_traceparent)
        .or_else(|| who.traceparent().map(str::to_owned));
    span.in_scope(|| {
        for slice in &slot.slices {
            tracing::info!(
                %workload,
                cnlab.node_id = %slot.node,
                gpu = slice.gpu_uuid,
                blocks = %slice.blocks,
                "slice found"
            );
        }
    });
    let launch = Job::Launch {
        workload,
        grant: id,
    };
    let jobs = vec![
        NewJob {
            job: launch,
            node: Some(slot.node),
            traceparent: traceparent.clone(),
        },
        NewJob {
            job: Job::OpenUsage { grant: id },
            node: None,
            traceparent,
        },
    ];
    Ok(Line {
        who: next(who, new),
        new,
        grant: Some(grant),
        jobs,
    })
}

/// The line of somebody who waits.
pub(super) fn waits(who: &Who, new: bool, detail: String, ready: Option<Timestamp>) -> Line {
    let mut who = who.clone();
    match &mut who {
        Who::Server(server) => {
            server.expected_at = ready;
            server.phase_detail = detail;
        }
        Who::Run(run) => {
            run.expected_at = ready;
            run.phase_detail = detail;
        }
    }
    Line {
        who: next(who, new),
        new,
        grant: None,
        jobs: Vec::new(),
    }
}

/// A row that replaces another one has the next version.
fn next(mut who: Who, new: bool) -> Who {
    let version = match &mut who {
        Who::Server(server) => &mut server.version,
        Who::Run(run) => &mut run.version,
    };
    if !new {
        *version = version.saturating_add(1);
    }
    who
}

/// A server that is to start again; `None` where that changes nothing.
pub(super) fn start(
    found: &Server,
    traceparent: Option<String>,
    now: Timestamp,
) -> Result<Option<Server>, SchedulerError> {
    let event = server::Event::StartRequested;
    let state = server::step(found.state, event).map_err(SchedulerError::NotNow)?;
    if state == found.state {
        return Ok(None);
    }
    Ok(Some(Server {
        state,
        expected_at: None,
        queued_at: Some(now),
        phase_detail: String::new(),
        started_at: None,
        ready_at: None,
        stopped_at: None,
        failure: None,
        runtime: None,
        traceparent,
        ..found.clone()
    }))
}
