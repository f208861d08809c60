//! Explanations and the queue, on the wire.

use cnlab_proto::{
    convert::{encode_duration, encode_timestamp},
    scheduler::v1 as pb,
};

use super::run::encode_priority;
use crate::app::explain::{
    Blocker, Candidate, Change, Explained, Length, LengthOrigin, Origin, Owner, Placement,
    Preemption, QueuePage, Queued, Sooner, Standing, Start, Terms,
};

/// More than so many of anything counts as so many.
fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

const fn encode_standing(standing: Standing) -> pb::Standing {
    match standing {
        Standing::Waiting => pb::Standing::Waiting,
        Standing::MakingRoom => pb::Standing::MakingRoom,
        Standing::NoNode => pb::Standing::NoNode,
        Standing::Running => pb::Standing::Running,
        Standing::Over => pb::Standing::Over,
    }
}

const fn encode_blocker(blocker: Blocker) -> pb::BlockerKind {
    match blocker {
        Blocker::Reserved => pb::BlockerKind::Reserved,
        Blocker::Scattered => pb::BlockerKind::Scattered,
        Blocker::Processors => pb::BlockerKind::Processors,
        Blocker::Busy => pb::BlockerKind::Busy,
        Blocker::NoNode => pb::BlockerKind::NoNode,
        Blocker::TooLarge => pb::BlockerKind::TooLarge,
        Blocker::MakingRoom => pb::BlockerKind::MakingRoom,
        Blocker::Quota => pb::BlockerKind::Quota,
    }
}

fn encode_start(start: Start) -> pb::ExpectedStart {
    let origin = match start.origin {
        None => pb::StartOrigin::Unspecified,
        Some(Origin::MakingRoom) => pb::StartOrigin::MakingRoom,
        Some(Origin::Guaranteed) => pb::StartOrigin::Guaranteed,
        Some(Origin::Reserved) => pb::StartOrigin::Reserved,
        Some(Origin::Expected) => pb::StartOrigin::Expected,
    };
    pb::ExpectedStart {
        at: start.at.map(encode_timestamp),
        latest: start.latest.map(encode_timestamp),
        ready_at: start.ready.map(encode_timestamp),
        origin: origin.into(),
    }
}

fn encode_sooner(sooner: Sooner) -> pb::Sooner {
    let mut encoded = pb::Sooner {
        start_at: Some(encode_timestamp(sooner.start)),
        text: sooner.text,
        ..pb::Sooner::default()
    };
    let kind = match sooner.change {
        Change::SmallerSlice(profile) => {
            encoded.profile = profile;
            pb::ChangeKind::SmallerSlice
        }
        Change::FewerGpus(gpus) => {
            encoded.gpus = gpus.into();
            pb::ChangeKind::FewerGpus
        }
        Change::OtherGpu(profile) => {
            encoded.profile = profile;
            pb::ChangeKind::OtherGpu
        }
        Change::Shorter(longest) => {
            encoded.max_runtime = Some(encode_duration(longest));
            pb::ChangeKind::Shorter
        }
        Change::Priority(priority) => {
            encoded.set_priority(encode_priority(priority));
            pb::ChangeKind::Priority
        }
        Change::AnyNode => pb::ChangeKind::AnyNode,
    };
    encoded.set_kind(kind);
    encoded
}

fn encode_candidate(candidate: Candidate) -> pb::Candidate {
    pb::Candidate {
        node_name: candidate.node_name,
        gpu_uuid: candidate.gpu_uuid,
        free_percent: candidate.free.into(),
        fits: candidate.fits,
        image_ready: candidate.image_ready,
        text: candidate.text,
    }
}

fn encode_length(length: Length) -> pb::PlannedLength {
    let (origin, samples) = match length.origin {
        LengthOrigin::History(samples) => (pb::LengthOrigin::History, count(samples)),
        LengthOrigin::Declared => (pb::LengthOrigin::Declared, 0),
        LengthOrigin::Unknown => (pb::LengthOrigin::Unknown, 0),
    };
    pb::PlannedLength {
        length: Some(encode_duration(length.length)),
        origin: origin.into(),
        samples,
        text: length.text,
    }
}

fn encode_placement(placement: Placement) -> pb::Placement {
    pb::Placement {
        node_id: placement.node.to_string(),
        node_name: placement.node_name,
        gpu_uuids: placement.gpu_uuids,
        since: Some(encode_timestamp(placement.since)),
        expected_until: placement.until.map(encode_timestamp),
        why: placement.why,
    }
}

fn encode_preemption(preemption: Preemption) -> pb::Preemption {
    pb::Preemption {
        possible: preemption.possible,
        from: preemption.from.map(encode_timestamp),
        gives_way: preemption.gives_way,
        text: preemption.text,
    }
}

/// Puts the six terms into the message.
fn add_terms(
    message: &mut pb::Explanation,
    terms: Terms,
    gpu_type: String,
    (percent, slices): (u8, u8),
) {
    message.priority = Some(pb::PriorityTerm {
        priority: encode_priority(terms.priority).into(),
        ahead: count(terms.ahead.priority),
        text: terms.priority_text,
    });
    message.deadline = Some(pb::DeadlineTerm {
        deadline: terms.deadline.map(encode_timestamp),
        guaranteed: terms.guaranteed,
        expected_end: terms.expected_end.map(encode_timestamp),
        ahead: count(terms.ahead.deadline),
        text: terms.deadline_text,
    });
    message.fair_share = Some(pb::FairShareTerm {
        place: count(terms.share.0),
        teams: count(terms.share.1),
        ahead: count(terms.ahead.share),
        text: terms.share_text,
    });
    message.gpu_type = Some(pb::GpuTypeTerm {
        gpu_type,
        slice_percent: percent.into(),
        gpus: count(terms.gpus.all),
        free: count(terms.gpus.free),
        most_free_percent: terms.gpus.widest.into(),
        text: terms.gpu_text,
        slices: slices.into(),
    });
    message.data_locality = Some(pb::DataLocalityTerm {
        volume_node: terms.data.volume_node.unwrap_or_default(),
        nodes: count(terms.data.nodes),
        nodes_with_image: count(terms.data.with_image),
        text: terms.data.text,
    });
    message.queue_depth = Some(pb::QueueDepthTerm {
        position: count(terms.position),
        queued: count(terms.queued),
        ahead_by_age: count(terms.ahead.age),
        text: terms.queue_text,
    });
}

pub(crate) fn encode_explained(explained: Explained) -> pb::Explanation {
    let mut message = pb::Explanation {
        workload_id: explained.id.to_string(),
        name: explained.name,
        project: explained.project.to_string(),
        profile: explained.profile,
        image: explained.image,
        standing: encode_standing(explained.standing).into(),
        text: explained.text,
        as_of: Some(encode_timestamp(explained.as_of)),
        start: Some(encode_start(explained.start)),
        blocker: explained.blocker.map(|(kind, text)| pb::Blocker {
            kind: encode_blocker(kind).into(),
            text,
        }),
        sooner: explained.sooner.into_iter().map(encode_sooner).collect(),
        candidates: explained
            .candidates
            .into_iter()
            .map(encode_candidate)
            .collect(),
        length: explained.length.map(encode_length),
        placement: explained.placement.map(encode_placement),
        preemption: explained.preemption.map(encode_preemption),
        ..pb::Explanation::default()
    };
    if let Some(terms) = explained.terms {
        add_terms(
            &mut message,
            terms,
            explained.gpu_type,
            (explained.percent, explained.gpus),
        );
    }
    message
}

const fn encode_owner(owner: Owner) -> pb::QueueOwner {
    match owner {
        Owner::Yours => pb::QueueOwner::Yours,
        Owner::YourTeam => pb::QueueOwner::YourTeam,
        Owner::Others => pb::QueueOwner::Others,
    }
}

fn encode_entry(queued: Queued) -> pb::QueueEntry {
    let mut entry = pb::QueueEntry {
        position: count(queued.position),
        gpu_type: queued.gpu_type,
        profile: queued.profile,
        gpus: queued.gpus.into(),
        priority: encode_priority(queued.priority).into(),
        queued_at: Some(encode_timestamp(queued.since)),
        standing: encode_standing(queued.standing).into(),
        owner: encode_owner(queued.owner).into(),
        ..pb::QueueEntry::default()
    };
    if let Some(own) = queued.own {
        entry.workload_id = own.id.to_string();
        entry.name = own.name;
        entry.project = own.project.to_string();
        entry.start = Some(encode_start(own.start));
        entry.deadline = own.deadline.map(encode_timestamp);
        entry.deadline_guaranteed = own.guaranteed;
        entry.explanation = own.explained.map(|explained| encode_explained(*explained));
    }
    entry
}

pub(crate) fn encode_queue(page: QueuePage) -> pb::ListQueueResponse {
    pb::ListQueueResponse {
        entries: page.entries.into_iter().map(encode_entry).collect(),
        next_page_token: page.next,
        as_of: Some(encode_timestamp(page.as_of)),
        total: count(page.total),
    }
}
