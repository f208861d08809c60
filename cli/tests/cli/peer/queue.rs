//! The queue of the peer: one of another team, then the runs that wait, and one for which no
//! node takes work.

use cnlab_proto::scheduler::v1::{self as pb, queue_service_server::QueueService};
use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use super::api::{Api, finish};

fn at(second: i64) -> Timestamp {
    Timestamp {
        seconds: 1_764_500_000 + second,
        nanos: 0,
    }
}

fn waiting(run: &pb::Run, place: u32) -> pb::Explanation {
    let start = pb::ExpectedStart {
        at: Some(at(14 * 60)),
        latest: Some(at(30 * 60)),
        ready_at: Some(at(15 * 60)),
        origin: pb::StartOrigin::Reserved.into(),
    };
    pb::Explanation {
        workload_id: run.id.clone(),
        name: run.name.clone(),
        project: run.project.clone(),
        profile: run.profile.clone(),
        image: run.image.clone(),
        standing: pb::Standing::Waiting.into(),
        text: format!(
            "waits, number {place} of 3 for H100; starts in 14 min, in 30 min at the latest unless somebody arrives who goes first"
        ),
        as_of: Some(at(0)),
        start: Some(start),
        priority: Some(pb::PriorityTerm {
            priority: run.priority,
            ahead: 1,
            text: "normal, 1 above".to_owned(),
        }),
        deadline: Some(pb::DeadlineTerm {
            text: "none".to_owned(),
            ..pb::DeadlineTerm::default()
        }),
        fair_share: Some(pb::FairShareTerm {
            place: 1,
            teams: 2,
            ahead: 0,
            text: "team is number 1 of 2; it used 3.1% of the cell in 7 days".to_owned(),
        }),
        gpu_type: Some(pb::GpuTypeTerm {
            gpu_type: "H100".to_owned(),
            slice_percent: 100,
            gpus: 2,
            free: 0,
            most_free_percent: 75,
            slices: run.gpus,
            text: "wants 1 × H100; 2 there, none free, at most 75% of one".to_owned(),
        }),
        data_locality: Some(pb::DataLocalityTerm {
            nodes: 2,
            nodes_with_image: 1,
            text: "may run on any node; the environment is built on 1 of 2".to_owned(),
            ..pb::DataLocalityTerm::default()
        }),
        queue_depth: Some(pb::QueueDepthTerm {
            position: place,
            queued: 3,
            ahead_by_age: place.saturating_sub(2),
            text: format!("number {place} of 3"),
        }),
        blocker: Some(pb::Blocker {
            kind: pb::BlockerKind::Scattered.into(),
            text: "1.50 GPUs free, but no entire one".to_owned(),
        }),
        sooner: vec![
            pb::Sooner {
                kind: pb::ChangeKind::SmallerSlice.into(),
                start_at: Some(at(0)),
                profile: "h100-25pct".to_owned(),
                text: "the smaller slice h100-25pct: now".to_owned(),
                ..pb::Sooner::default()
            },
            pb::Sooner {
                kind: pb::ChangeKind::Priority.into(),
                start_at: Some(at(8 * 60)),
                priority: pb::Priority::High.into(),
                text: "priority high: in 8 min".to_owned(),
                ..pb::Sooner::default()
            },
        ],
        candidates: vec![pb::Candidate {
            node_name: "one".to_owned(),
            gpu_uuid: "GPU-1".to_owned(),
            free_percent: 75,
            fits: false,
            image_ready: true,
            text: "too little of it is free".to_owned(),
        }],
        length: Some(pb::PlannedLength {
            length: Some(prost_types::Duration {
                seconds: 3_600,
                nanos: 0,
            }),
            origin: pb::LengthOrigin::Unknown.into(),
            samples: 0,
            text: "planned for 60 min, since nothing is known of it".to_owned(),
        }),
        ..pb::Explanation::default()
    }
}

fn bare(id: &str, name: &str, standing: pb::Standing, text: &str) -> pb::Explanation {
    pb::Explanation {
        workload_id: id.to_owned(),
        name: name.to_owned(),
        standing: standing.into(),
        text: text.to_owned(),
        as_of: Some(at(0)),
        ..pb::Explanation::default()
    }
}

fn entries(waiting_runs: &[pb::Run]) -> Vec<pb::QueueEntry> {
    let mut entries = vec![pb::QueueEntry {
        position: 1,
        gpu_type: "H100".to_owned(),
        profile: "h100-full".to_owned(),
        priority: pb::Priority::High.into(),
        queued_at: Some(at(-40 * 60)),
        standing: pb::Standing::Waiting.into(),
        owner: pb::QueueOwner::Others.into(),
        ..pb::QueueEntry::default()
    }];
    for (place, run) in (2..).zip(waiting_runs) {
        let explanation = waiting(run, place);
        entries.push(pb::QueueEntry {
            position: place,
            gpu_type: "H100".to_owned(),
            profile: run.profile.clone(),
            gpus: run.gpus,
            priority: run.priority,
            queued_at: Some(at(-3 * 60)),
            standing: pb::Standing::Waiting.into(),
            owner: pb::QueueOwner::Yours.into(),
            workload_id: run.id.clone(),
            name: run.name.clone(),
            project: run.project.clone(),
            start: explanation.start,
            explanation: Some(explanation),
            ..pb::QueueEntry::default()
        });
    }
    if !waiting_runs.is_empty() {
        entries.push(pb::QueueEntry {
            gpu_type: "L40S".to_owned(),
            profile: "l40s-block".to_owned(),
            priority: pb::Priority::Low.into(),
            queued_at: Some(at(-3 * 3_600)),
            standing: pb::Standing::NoNode.into(),
            owner: pb::QueueOwner::YourTeam.into(),
            ..pb::QueueEntry::default()
        });
    }
    entries
}

#[tonic::async_trait]
impl QueueService for Api {
    async fn explain_server(
        &self,
        request: Request<pb::ExplainServerRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let fault = self.enter("ExplainServer", &request)?;
        let server = self.find(&request.get_ref().server)?;
        let mut explanation = bare(
            &server.id,
            &server.name,
            pb::Standing::Running,
            "has had a slice for 12 min",
        );
        explanation.placement = Some(pb::Placement {
            node_name: "local".to_owned(),
            gpu_uuids: vec!["GPU-1".to_owned()],
            since: Some(at(-12 * 60)),
            expected_until: Some(at(48 * 60)),
            why: "it leaves the most room that others can use: of the GPU 100% were free, 75% are left".to_owned(),
            ..pb::Placement::default()
        });
        explanation.preemption = Some(pb::Preemption {
            text: "never: somebody sits in front of it".to_owned(),
            ..pb::Preemption::default()
        });
        finish(fault, explanation)
    }

    async fn explain_run(
        &self,
        request: Request<pb::ExplainRunRequest>,
    ) -> Result<Response<pb::Explanation>, Status> {
        let fault = self.enter("ExplainRun", &request)?;
        let run = self.find_run(&request.get_ref().run)?;
        let explanation = if run.state() == pb::RunState::Queued {
            waiting(&run, 2)
        } else {
            let text = "succeeded: wants no slice";
            bare(&run.id, &run.name, pb::Standing::Over, text)
        };
        finish(fault, explanation)
    }

    async fn list_queue(
        &self,
        request: Request<pb::ListQueueRequest>,
    ) -> Result<Response<pb::ListQueueResponse>, Status> {
        let fault = self.enter("ListQueue", &request)?;
        let ask = request.get_ref();
        let state = self.state();
        let mut all = entries(&state.runs.waiting());
        all.retain(|entry| ask.profile.is_empty() || entry.profile == ask.profile);
        let from: usize = ask.page_token.parse().unwrap_or(0);
        let total = u32::try_from(all.len()).unwrap();
        let entries: Vec<_> = all.iter().skip(from).take(state.page).cloned().collect();
        let next = from + entries.len();
        let answer = pb::ListQueueResponse {
            entries,
            next_page_token: if next < all.len() {
                next.to_string()
            } else {
                String::new()
            },
            as_of: Some(at(0)),
            total,
        };
        finish(fault, answer)
    }
}
