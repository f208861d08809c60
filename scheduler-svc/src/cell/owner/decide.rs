//! Decisions, the transaction that writes them, and the answers.

use std::{collections::BTreeMap, sync::Arc};

use cnlab_model::{
    Timestamp,
    id::{GrantId, WorkloadId},
};

use super::{Alone, Asked, NEWS, NEWS_EVERY, Owner, State, wishes::Draft};
use crate::{
    app::{run::RunView, view::View},
    cell::{
        Image, Placed, Want, Who,
        image::{Act, Slot},
        lines,
    },
    error::SchedulerError,
    metrics::Outcome,
    store::{
        self,
        batch::{self, Line, Written},
        job::{Job, NewJob},
        lead,
        record::Grant,
    },
};

impl Owner {
    pub(super) async fn decide(
        &self,
        state: &mut State,
        image: &mut Image,
        wants: Vec<Want>,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        let Some(term) = state.term else {
            return Err(SchedulerError::NotLeading);
        };
        let mut asked: Vec<Asked> = wants
            .into_iter()
            .map(|want| Asked {
                want,
                who: None,
                answer: None,
                keep: true,
            })
            .collect();
        let mut drafts: BTreeMap<WorkloadId, Draft> = BTreeMap::new();
        if let Err(error) = self.prepare(image, &mut asked, &mut drafts, now).await {
            let error = Arc::new(error);
            for one in asked {
                let shared = SchedulerError::Shared(Arc::clone(&error));
                let _ = one.want.reply.send(Err(shared));
            }
            return Err(SchedulerError::Shared(error));
        }
        let mut acts = image.turn(now);
        while self.turn_away(image, &mut asked, &mut drafts, &acts, now) {
            acts.extend(image.turn(now));
        }
        let mut batch = self.lines(state, image, &mut drafts, acts, now);
        if now >= state.news_at {
            state.news_at = now.plus(NEWS_EVERY);
            for (who, detail, ready) in image.news(now).into_iter().take(NEWS) {
                if !batch.lines.iter().any(|line| line.who.id() == who.id()) {
                    batch.lines.push(lines::waits(&who, false, detail, ready));
                }
            }
        }
        let kept = asked
            .iter()
            .any(|one| one.keep && one.want.attempt.key.is_some());
        if batch.lines.is_empty() && batch.jobs.is_empty() && !kept {
            for mut one in asked {
                let answer = one
                    .answer
                    .take()
                    .unwrap_or(Err(SchedulerError::ChangedMeanwhile));
                let _ = one.want.reply.send(answer);
            }
            return Ok(());
        }
        let written = self
            .app
            .db
            .write(|tx| {
                let (asked, batch) = (&asked, &batch);
                async move {
                    lead::keep(&tx, term).await?;
                    let answers = |written: &Written| answers(asked, batch, written, now);
                    let lines = batch::write(&tx, term, &batch.lines, answers, now).await?;
                    store::job::push_all(&tx, batch.jobs.clone(), now).await?;
                    Ok::<_, SchedulerError>(lines)
                }
            })
            .await;
        match written {
            Ok(written) => {
                self.follow(state, image, asked, batch, &written, now);
                Ok(())
            }
            Err(error) => {
                // Decided anew, nothing goes to that node.
                let cordoned = matches!(error, SchedulerError::NodeCordoned { .. });
                let leads = !matches!(error, SchedulerError::NotLeading);
                if cordoned || (asked.len() > 1 && leads) {
                    let again = asked.into_iter().map(|one| Alone {
                        want: one.want,
                        alone: !cordoned,
                    });
                    state.carried = again.chain(std::mem::take(&mut state.carried)).collect();
                    return Err(error);
                }
                let error = Arc::new(error);
                for one in asked {
                    let shared = SchedulerError::Shared(Arc::clone(&error));
                    let _ = one.want.reply.send(Err(shared));
                }
                Err(match Arc::into_inner(error) {
                    Some(error) => error,
                    None => SchedulerError::ChangedMeanwhile,
                })
            }
        }
    }

    /// What is to be written.
    fn lines(
        &self,
        state: &mut State,
        image: &mut Image,
        drafts: &mut BTreeMap<WorkloadId, Draft>,
        acts: Vec<Act>,
        now: Timestamp,
    ) -> Batch {
        let mut batch = Batch::default();
        for act in acts {
            match act {
                Act::Grant(slot) => {
                    let id = slot.workload;
                    let (who, new) = match drafts.remove(&id) {
                        Some(draft) => (draft.who, draft.new),
                        None => match image.who(id) {
                            Some(who) => (who.clone(), false),
                            None => continue,
                        },
                    };
                    self.app.metrics.decided(Outcome::Place);
                    let grant = GrantId::from_ulid(self.app.runtime.ids.ulid());
                    match lines::granted(&who, new, &slot, grant, now) {
                        Ok(line) => {
                            batch.lines.push(line);
                            batch.slots.insert(id, slot);
                        }
                        Err(error) => {
                            tracing::error!(workload = %id, %error, "somebody who does not wait got a slice");
                            image.not_granted(&slot, now);
                            state.doubtful.insert(id);
                        }
                    }
                }
                Act::Evict {
                    workload,
                    grant,
                    node,
                    newcomer,
                } => {
                    tracing::info!(%workload, %newcomer, "gives way");
                    let who = image.who(workload);
                    batch.jobs.push(NewJob {
                        job: Job::Stop { workload, grant },
                        node: Some(node),
                        traceparent: who.and_then(Who::traceparent).map(str::to_owned),
                    });
                }
            }
        }
        for (id, draft) in std::mem::take(drafts) {
            self.app.metrics.decided(Outcome::Queue);
            let begins = image.begins_at(id);
            let ready = begins.map(|at| at.max(now).plus(image.start_time(&draft.who, None)));
            let detail = image.reason(&draft.who);
            batch
                .lines
                .push(lines::waits(&draft.who, draft.new, detail, ready));
        }
        batch
    }

    /// What follows from a commit.
    fn follow(
        &self,
        state: &mut State,
        image: &mut Image,
        asked: Vec<Asked>,
        batch: Batch,
        written: &Written,
        now: Timestamp,
    ) {
        let placed = placed(&batch, written, now);
        let grants = written.grants(&batch.lines);
        for line in batch.lines {
            let id = line.who.id();
            if written.lost.contains(&id) {
                self.app.metrics.lost_race();
                match batch.slots.get(&id) {
                    Some(slot) => image.not_granted(slot, now),
                    None => image.leave(id, now),
                }
                state.doubtful.insert(id);
                continue;
            }
            self.app.announce(&line.who);
            match grants.get(&id) {
                Some(grant) => {
                    tracing::debug!(workload = %id, cnlab.lease_fence = grant.fence, "slice granted");
                    image.granted(line.who, grant);
                }
                None => image.noted(line.who),
            }
        }
        if !grants.is_empty() || !batch.jobs.is_empty() {
            self.app.outbox.wake();
        }
        for one in asked {
            let answer = one.answer.unwrap_or_else(|| {
                let done = one.who.and_then(|id| placed.get(&id).cloned());
                done.ok_or(SchedulerError::ChangedMeanwhile)
            });
            // Who asked may have gone.
            let _ = one.want.reply.send(answer);
        }
    }
}

/// What one transaction writes.
#[derive(Debug, Default)]
struct Batch {
    lines: Vec<Line>,
    slots: BTreeMap<WorkloadId, Slot>,
    /// Beside those of the lines.
    jobs: Vec<NewJob>,
}

/// What each line is answered with.
fn placed(batch: &Batch, written: &Written, now: Timestamp) -> BTreeMap<WorkloadId, Placed> {
    let grants = written.grants(&batch.lines);
    let lines = batch
        .lines
        .iter()
        .filter(|line| !written.lost.contains(&line.who.id()));
    lines
        .map(|line| {
            let id = line.who.id();
            let grant: Option<Grant> = grants.get(&id).cloned();
            let node = batch.slots.get(&id).map(|slot| slot.node_name.clone());
            let placed = match &line.who {
                Who::Server(server) => {
                    Placed::Server(Box::new(View::new((**server).clone(), grant, node, now)))
                }
                Who::Run(run) => {
                    Placed::Run(Box::new(RunView::new((**run).clone(), grant, node, now)))
                }
            };
            (id, placed)
        })
        .collect()
}

/// The answers that are kept under their keys.
fn answers<'a>(
    asked: &'a [Asked],
    batch: &Batch,
    written: &Written,
    now: Timestamp,
) -> Vec<batch::Answer<'a>> {
    let placed = placed(batch, written, now);
    asked
        .iter()
        .filter(|one| one.keep && one.want.attempt.key.is_some())
        .filter_map(|one| {
            let answer = match (&one.answer, one.who) {
                (Some(Ok(placed)), _) => placed,
                (Some(Err(_)), _) => return None,
                (None, Some(id)) => placed.get(&id)?,
                (None, None) => return None,
            };
            let response = match answer {
                Placed::Server(view) => serde_json::to_vec(view),
                Placed::Run(view) => serde_json::to_vec(view),
            };
            Some(batch::Answer {
                attempt: &one.want.attempt,
                // A view of plain records cannot fail.
                response: response.unwrap_or_default(),
            })
        })
        .collect()
}
