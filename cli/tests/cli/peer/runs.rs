//! Runs of the peer. The name of a run says what becomes of it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use cnlab_model::id::{NodeId, RunId, Ulid, VolumeId};
use cnlab_proto::{
    model::v1 as model,
    scheduler::v1::{self as pb, run_service_server::RunService},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::api::{Api, STEP, answer, finish, need_key, refusal};

/// Runs by their ids, and what comes next for each.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    all: BTreeMap<String, pb::Run>,
    steps: BTreeMap<String, VecDeque<pb::Run>>,
    keys: BTreeMap<String, String>,
    made: u128,
}

fn at(second: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: 1_764_500_000 + second,
        nanos: 0,
    }
}

impl Runs {
    fn find(&self, wanted: &str) -> Option<pb::Run> {
        self.all
            .values()
            .find(|run| {
                run.id == wanted
                    || run.name == wanted
                    || format!("{}/{}", run.project, run.name) == wanted
            })
            .cloned()
    }

    /// Those that wait, the oldest first.
    pub(super) fn waiting(&self) -> Vec<pb::Run> {
        let queued = |run: &&pb::Run| run.state() == pb::RunState::Queued;
        self.all.values().filter(queued).cloned().collect()
    }

    fn submit(&mut self, request: pb::SubmitRunRequest, key: &str) -> pb::Run {
        if let Some(known) = self.keys.get(key).and_then(|id| self.find(id)) {
            return known;
        }
        self.made += 1;
        let ulid = Ulid(0x0190_0000_0000_0000_0000_0000_0000_0000 + self.made);
        let id = RunId::from_ulid(ulid).to_string();
        let or = |text: String, other: &str| {
            if text.is_empty() {
                other.to_owned()
            } else {
                text
            }
        };
        let run = pb::Run {
            id: id.clone(),
            name: or(request.name, "run-000000000a"),
            project: or(request.project, "local/default"),
            owner_id: "usr_01900000000000000000000001".to_owned(),
            profile: request.profile,
            gpus: request.gpus.unwrap_or(1),
            image: request.image,
            command: request.command,
            storage_bytes: request.storage_bytes,
            volume_id: VolumeId::from_ulid(ulid).to_string(),
            priority: request.priority,
            run_kind: request.run_kind,
            deadline: request.deadline,
            max_runtime: request.max_runtime,
            state: pb::RunState::Queued.into(),
            phase: pb::RunPhase::WaitingForSlice.into(),
            eta: Some(prost_types::Duration {
                seconds: 701,
                nanos: 0,
            }),
            created_at: Some(at(0)),
            attempt: 1,
            version: 1,
            ..pb::Run::default()
        };
        self.keys.insert(key.to_owned(), id.clone());
        self.steps.insert(id.clone(), steps(&run));
        self.all.insert(id, run.clone());
        run
    }

    fn step(&mut self, id: &str) {
        if let Some(next) = self.steps.get_mut(id).and_then(VecDeque::pop_front) {
            self.all.insert(id.to_owned(), next);
        }
    }

    /// The next state of a run, and the one after it.
    fn goes(&mut self, run: &pb::Run, now: pb::RunState, then: pb::RunState) -> pb::Run {
        let mut next = run.clone();
        next.version += 1;
        next.set_state(now);
        let mut last = next.clone();
        last.version += 1;
        last.set_state(then);
        last.ended_at = Some(at(60));
        self.steps.insert(run.id.clone(), VecDeque::from([last]));
        self.all.insert(run.id.clone(), next.clone());
        next
    }
}

/// `stuck` stays, `failing` ends with exit code 3, `killed` by a signal, `long` when its time is
/// over, `unlucky` begins anew; everything else succeeds.
fn steps(queued: &pb::Run) -> VecDeque<pb::Run> {
    let mut steps = VecDeque::new();
    if queued.name.starts_with("stuck") {
        return steps;
    }
    let mut now = queued.clone();
    let mut push = |now: &mut pb::Run| {
        now.version += 1;
        steps.push_back(now.clone());
    };
    let place = |now: &mut pb::Run, node: &str| {
        now.set_state(pb::RunState::Provisioning);
        now.set_phase(pb::RunPhase::Starting);
        now.phase_detail = "starting the command".to_owned();
        now.eta = Some(prost_types::Duration {
            seconds: 3,
            nanos: 600_000_000,
        });
        now.node_id =
            NodeId::from_ulid(Ulid(0x0190_0000_0000_0000_0000_0000_0000_0000)).to_string();
        now.node_name = node.to_owned();
        now.placed_at = Some(at(1));
    };
    place(&mut now, "local");
    push(&mut now);
    now.set_state(pb::RunState::Running);
    now.set_phase(pb::RunPhase::Unspecified);
    now.phase_detail = String::new();
    now.eta = None;
    now.started_at = Some(at(5));
    push(&mut now);
    if queued.name.starts_with("unlucky") {
        place(&mut now, "other");
        now.attempt = 2;
        now.requeued_because = "the node local was lost: it was not heard of for 30s".to_owned();
        push(&mut now);
        now.set_state(pb::RunState::Running);
        push(&mut now);
    }
    let mut fails = |state: pb::RunState, reason: &str, message: &str| {
        now.set_state(state);
        now.failure = Some(model::Failure {
            reason: reason.to_owned(),
            message: message.to_owned(),
            cause: "its last words: \u{1b}[31mno such file".to_owned(),
            try_this: String::new(),
        });
    };
    match queued.name.as_str() {
        "failing" => {
            fails(
                pb::RunState::Failed,
                "COMMAND_FAILED",
                "the command ended with exit code 3",
            );
            now.exit_code = Some(3);
        }
        "killed" => {
            fails(
                pb::RunState::Failed,
                "COMMAND_FAILED",
                "the command ended with signal 9 (SIGKILL)",
            );
            now.signal = Some(9);
        }
        "long" => fails(
            pb::RunState::TimedOut,
            "MAX_RUNTIME_REACHED",
            "the command was ended after its longest time of 90s",
        ),
        _ => {
            now.set_state(pb::RunState::Succeeded);
            now.exit_code = Some(0);
        }
    }
    now.ended_at = Some(at(18));
    push(&mut now);
    steps
}

impl Api {
    pub(super) fn find_run(&self, run: &str) -> Result<pb::Run, Status> {
        self.state().runs.find(run).ok_or_else(|| {
            refusal(
                Code::NotFound,
                "RUN_NOT_FOUND",
                &format!("there is no run {run:?}"),
                &[("try", "see `cnlab run list`"), ("field", "run")],
            )
        })
    }
}

#[tonic::async_trait]
impl RunService for Api {
    async fn submit_run(
        &self,
        request: Request<pb::SubmitRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let fault = self.enter("SubmitRun", &request)?;
        let key = need_key(&request)?;
        let request = request.into_inner();
        if request.deadline.is_some() && request.on_late() != pb::OnLate::Accept {
            return Err(refusal(
                Code::FailedPrecondition,
                "DEADLINE_UNREACHABLE",
                "the deadline cannot be met: it is expected to begin in about 12 min, which is after its deadline",
                &[
                    (
                        "try",
                        "choose a later one, or let it run late with --on-late accept",
                    ),
                    ("field", "deadline"),
                ],
            ));
        }
        let run = self.state().runs.submit(request, &key);
        finish(fault, run)
    }

    async fn get_run(
        &self,
        request: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let fault = self.enter("GetRun", &request)?;
        finish(fault, self.find_run(&request.get_ref().run)?)
    }

    async fn list_runs(
        &self,
        request: Request<pb::ListRunsRequest>,
    ) -> Result<Response<pb::ListRunsResponse>, Status> {
        let fault = self.enter("ListRuns", &request)?;
        let request = request.into_inner();
        let state = self.state();
        let wanted = |run: &&pb::Run| request.project.is_empty() || run.project == request.project;
        // Small pages, so that every list of more than a few goes through page tokens.
        let all: Vec<_> = state
            .runs
            .all
            .values()
            .rev()
            .filter(wanted)
            .cloned()
            .collect();
        let from: usize = request.page_token.parse().unwrap_or(0);
        let runs: Vec<_> = all.iter().skip(from).take(state.page).cloned().collect();
        let next = from + runs.len();
        let next_page_token = if next < all.len() {
            next.to_string()
        } else {
            String::new()
        };
        finish(
            fault,
            pb::ListRunsResponse {
                runs,
                next_page_token,
            },
        )
    }

    async fn cancel_run(
        &self,
        request: Request<pb::CancelRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let fault = self.enter("CancelRun", &request)?;
        need_key(&request)?;
        let run = self.find_run(&request.get_ref().run)?;
        let run = match run.state() {
            pb::RunState::Queued | pb::RunState::Provisioning | pb::RunState::Running => self
                .state()
                .runs
                .goes(&run, pb::RunState::Cancelling, pb::RunState::Cancelled),
            _ => run,
        };
        finish(fault, run)
    }

    async fn delete_run(
        &self,
        request: Request<pb::DeleteRunRequest>,
    ) -> Result<Response<pb::Run>, Status> {
        let fault = self.enter("DeleteRun", &request)?;
        need_key(&request)?;
        let run = self.find_run(&request.get_ref().run)?;
        let run = self
            .state()
            .runs
            .goes(&run, pb::RunState::Deleting, pb::RunState::Deleted);
        finish(fault, run)
    }

    type WatchRunStream = ReceiverStream<Result<pb::Run, Status>>;

    async fn watch_run(
        &self,
        request: Request<pb::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        self.enter("WatchRun", &request)?;
        let run = self.find_run(&request.get_ref().run)?;
        let (news, stream) = mpsc::channel(1);
        let api = self.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "a test's peer has no kit around it"
        )]
        tokio::spawn(async move {
            let (id, mut sent) = (run.id.clone(), run.version);
            if news.send(Ok(run)).await.is_err() {
                return;
            }
            loop {
                tokio::time::sleep(STEP).await;
                if news.is_closed() {
                    return;
                }
                api.state().runs.step(&id);
                let now = api.state().runs.find(&id);
                let Some(run) = now.filter(|run| run.version > sent) else {
                    continue;
                };
                sent = run.version;
                let gone = run.state() == pb::RunState::Deleted;
                if gone {
                    api.state().runs.all.remove(&id);
                }
                if news.send(Ok(run)).await.is_err() || gone {
                    return;
                }
            }
        });
        answer(ReceiverStream::new(stream))
    }

    type GetRunLogsStream = ReceiverStream<Result<pb::LogChunk, Status>>;

    async fn get_run_logs(
        &self,
        request: Request<pb::GetRunLogsRequest>,
    ) -> Result<Response<Self::GetRunLogsStream>, Status> {
        self.enter("GetRunLogs", &request)?;
        let run = self.find_run(&request.get_ref().run)?;
        if run.node_name.is_empty() {
            return Err(refusal(
                Code::FailedPrecondition,
                "RUN_NEVER_RAN",
                "the run has not run on any node yet",
                &[("try", "wait until it has begun")],
            ));
        }
        let (news, stream) = mpsc::channel(2);
        let text = format!("{} writes in attempt {}\n", run.name, run.attempt);
        news.send(Ok(pb::LogChunk { text })).await.unwrap();
        if request.get_ref().follow {
            // It ends with the attempt.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        answer(ReceiverStream::new(stream))
    }
}
