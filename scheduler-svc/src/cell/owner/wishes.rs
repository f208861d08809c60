//! What is wished for, up to the decision: answered before, refused, or taken in.

use std::collections::BTreeMap;

use cnlab_db::idempotency;
use cnlab_model::{
    Timestamp,
    id::{NodeId, ServerId, WorkloadId},
};
use scheduler_core::{RejectReason, deadline::Verdict, plan::Unmet};

use super::{Asked, Owner};
use crate::{
    app::{
        catalog::{nearest, profile_named},
        run::OnLate,
        view::View,
    },
    cell::{Image, Placed, Want, Who, Wish, image::Taken, lines},
    error::SchedulerError,
    metrics::Outcome,
    store::{self, volume},
};

impl Owner {
    /// Answers what was answered before or must be refused, and takes the others in.
    pub(super) async fn prepare(
        &self,
        image: &mut Image,
        asked: &mut [Asked],
        drafts: &mut BTreeMap<WorkloadId, Draft>,
        now: Timestamp,
    ) -> Result<(), SchedulerError> {
        if asked.is_empty() {
            return Ok(());
        }
        self.kept(asked, now).await?;
        let mut names = (Vec::new(), Vec::new());
        for one in asked.iter().filter(|one| one.answer.is_none()) {
            if let Wish::New { who, .. } = &one.want.wish {
                let list = if who.is_server() {
                    &mut names.0
                } else {
                    &mut names.1
                };
                list.push(who.live_name());
            }
        }
        let db = self.app.db.read();
        let taken = (
            store::server::names_taken(db, &names.0).await?,
            store::run::names_taken(db, &names.1).await?,
        );
        for one in asked.iter_mut().filter(|one| one.answer.is_none()) {
            let draft = match &one.want.wish {
                Wish::New {
                    who,
                    profile,
                    on_late,
                } => {
                    let taken = if who.is_server() { &taken.0 } else { &taken.1 };
                    if taken.contains(&who.live_name()) {
                        Err(name_taken(who))
                    } else {
                        self.arrive(image, who, profile, *on_late, now)
                    }
                }
                Wish::Start(id) => match self.restart(image, *id, one, now).await? {
                    Started::Draft(draft) => Ok(draft),
                    Started::Runs(view) => {
                        one.answer = Some(Ok(Placed::Server(view)));
                        continue;
                    }
                    Started::Refused(error) => Err(error),
                },
            };
            match draft {
                Ok(draft) => {
                    let id = draft.who.id();
                    one.who = Some(id);
                    drafts.insert(id, draft);
                }
                Err(error) => one.refuse(error),
            }
        }
        Ok(())
    }

    async fn kept(&self, asked: &mut [Asked], now: Timestamp) -> Result<(), SchedulerError> {
        let keyed: Vec<(usize, idempotency::Keyed<'_>)> = asked
            .iter()
            .enumerate()
            .filter_map(|(at, one)| Some((at, one.want.attempt.keyed()?)))
            .collect();
        let requests: Vec<idempotency::Keyed<'_>> =
            keyed.iter().map(|(_, keyed)| keyed.clone()).collect();
        let kept = idempotency::kept(self.app.db.read(), &requests, now).await?;
        let found: Vec<(usize, Result<Placed, SchedulerError>)> = keyed
            .iter()
            .zip(kept)
            .filter_map(|((at, _), kept)| match kept {
                Ok(None) => None,
                Ok(Some(response)) => {
                    let one = asked.get(*at)?;
                    Some((*at, replayed(&one.want, &response)))
                }
                Err(error) => Some((*at, Err(error.into()))),
            })
            .collect();
        for (at, answer) in found {
            if let Some(one) = asked.get_mut(at) {
                one.answer = Some(answer);
                one.keep = false;
            }
        }
        Ok(())
    }

    fn arrive(
        &self,
        image: &mut Image,
        who: &Who,
        profile: &str,
        on_late: OnLate,
        now: Timestamp,
    ) -> Result<Draft, SchedulerError> {
        let profile = profile_named(image.offered(), profile)?.clone();
        let who = who.clone().with_profile(profile);
        if let Some(reason) = image.refusal(&who, None) {
            self.app.metrics.decided(Outcome::Reject);
            return Err(rejected(image, &who, reason));
        }
        self.within_quota(image, &who, None)?;
        let unmet = match on_late {
            OnLate::Refuse => Unmet::Refuse,
            OnLate::Accept => Unmet::AcceptLate,
        };
        match image.enter(who.clone(), None, unmet, now) {
            Taken::In => {
                image.count_arrival(who.id());
                Ok(Draft { who, new: true })
            }
            Taken::TooLate { begins, ends } => {
                self.app.metrics.decided(Outcome::Reject);
                if ends.is_none()
                    && let Some(why) = image.would_keep_out(&who)
                {
                    return Err(SchedulerError::DeadlineUnreachable { why });
                }
                Err(too_late(&who, begins, ends, now))
            }
        }
    }

    /// Refuses who could not start even if its team had nothing else.
    fn within_quota(
        &self,
        image: &Image,
        who: &Who,
        volume_on: Option<NodeId>,
    ) -> Result<(), SchedulerError> {
        let Some(over) = image.never_within(who, volume_on) else {
            return Ok(());
        };
        self.app.metrics.decided(Outcome::Reject);
        let teams = &self.app.teams;
        Err(SchedulerError::QuotaExceeded {
            of: teams.scope(&over).to_owned(),
            needed: over.needed,
            limit: over.limit,
            contact: teams.contact().to_owned(),
        })
    }

    async fn restart(
        &self,
        image: &mut Image,
        id: ServerId,
        one: &Asked,
        now: Timestamp,
    ) -> Result<Started, SchedulerError> {
        let db = self.app.db.read();
        let Some(found) = store::server::get(db, id).await? else {
            return Ok(Started::Refused(SchedulerError::ChangedMeanwhile));
        };
        let server = match lines::start(&found, one.want.traceparent.clone(), now) {
            Ok(Some(server)) => server,
            Ok(None) => {
                let (grant, node) = store::surroundings(db, found.grant, found.node).await?;
                let view = View::new(found, grant, node, now);
                return Ok(Started::Runs(Box::new(view)));
            }
            Err(error) => return Ok(Started::Refused(error)),
        };
        let volume_on = volume::node_of(db, server.volume).await?;
        let who = Who::Server(Box::new(server));
        if let Some(reason) = image.refusal(&who, volume_on) {
            self.app.metrics.decided(Outcome::Reject);
            return Ok(Started::Refused(rejected(image, &who, reason)));
        }
        if let Err(error) = self.within_quota(image, &who, volume_on) {
            return Ok(Started::Refused(error));
        }
        image.enter(who.clone(), volume_on, Unmet::AcceptLate, now);
        image.count_arrival(who.id());
        Ok(Started::Draft(Draft { who, new: false }))
    }
}

/// Somebody whose line is still to be written.
pub(super) struct Draft {
    pub(super) who: Who,
    pub(super) new: bool,
}

enum Started {
    Draft(Draft),
    /// It runs already.
    Runs(Box<View>),
    Refused(SchedulerError),
}

fn replayed(want: &Want, response: &[u8]) -> Result<Placed, SchedulerError> {
    let of_server = match &want.wish {
        Wish::New { who, .. } => who.is_server(),
        Wish::Start(_) => true,
    };
    let placed = if of_server {
        serde_json::from_slice(response).map(|view| Placed::Server(Box::new(view)))
    } else {
        serde_json::from_slice(response).map(|view| Placed::Run(Box::new(view)))
    };
    placed.map_err(|error| want.attempt.unreadable(&error))
}

fn name_taken(who: &Who) -> SchedulerError {
    match who {
        Who::Server(server) => SchedulerError::NameTaken {
            name: server.name.to_string(),
            project: server.project.to_string(),
        },
        Who::Run(run) => SchedulerError::RunNameTaken {
            name: run.name.to_string(),
            project: run.project.to_string(),
        },
    }
}

fn rejected(image: &Image, who: &Who, reason: RejectReason) -> SchedulerError {
    match reason {
        RejectReason::StorageTooLarge { wanted, largest } => {
            SchedulerError::StorageTooLarge { wanted, largest }
        }
        RejectReason::VolumeElsewhere { node, .. } => SchedulerError::VolumeElsewhere { node },
        RejectReason::TooManyGpus {
            family,
            wanted,
            most,
        } => SchedulerError::GpusTooMany {
            family,
            wanted,
            most,
        },
        why @ RejectReason::NotEntire { .. } => SchedulerError::GpusInvalid {
            problem: why.to_string(),
        },
        why @ (RejectReason::BadSlice { .. }
        | RejectReason::NoNodes
        | RejectReason::NoSuchGpu { .. }) => SchedulerError::ProfileUnavailable {
            profile: who.profile().name.clone(),
            why: why.to_string(),
            nearest: nearest(image, who.profile()),
        },
    }
}

fn too_late(
    who: &Who,
    begins: Option<Timestamp>,
    ends: Option<Timestamp>,
    now: Timestamp,
) -> SchedulerError {
    let deadline = match who {
        Who::Run(run) => run.deadline,
        Who::Server(_) => None,
    };
    let verdict = match (begins, ends) {
        (Some(begins), _) if deadline.is_some_and(|deadline| begins >= deadline) => {
            Verdict::BeginsTooLate { begins }
        }
        (_, Some(ends)) => Verdict::EndsTooLate { ends },
        (_, None) => Verdict::Possible,
    };
    let why = verdict
        .why_not(now)
        .unwrap_or_else(|| "nobody can say when it would begin".to_owned());
    SchedulerError::DeadlineUnreachable { why }
}
