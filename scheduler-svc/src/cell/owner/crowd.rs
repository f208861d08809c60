//! Those who may not wait, since too many of their team wait already.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_model::{Timestamp, id::WorkloadId};

use super::{Asked, Owner, wishes::Draft};
use crate::{
    cell::{Image, image::Act},
    error::SchedulerError,
    metrics::Outcome,
};

impl Owner {
    /// Refuses those who arrived last and did not get a slice in this turn, where more of their
    /// team wait than may. Answers whether there were any: their places may do for others.
    ///
    /// Who waited before stays, and so does who has a place made free for it.
    pub(super) fn turn_away(
        &self,
        image: &mut Image,
        asked: &mut [Asked],
        drafts: &mut BTreeMap<WorkloadId, Draft>,
        acts: &[Act],
        now: Timestamp,
    ) -> bool {
        let placed: BTreeSet<WorkloadId> = acts
            .iter()
            .filter_map(|act| match act {
                Act::Grant(slot) => Some(slot.workload),
                Act::Evict { .. } => None,
            })
            .collect();
        let teams = &self.app.teams;
        let limited = drafts
            .iter()
            .filter(|(id, _)| !placed.contains(id))
            .map(|(_, draft)| draft.who.team())
            .filter(|team| teams.waiting(*team).is_some())
            .collect();
        let mut waiting = image.waiting_of(&limited, &placed);
        let mut any = false;
        for one in asked.iter_mut().rev() {
            let Some(draft) = one.who.and_then(|id| drafts.get(&id)) else {
                continue;
            };
            let (id, team) = (draft.who.id(), draft.who.team());
            let (Some(count), Some(most)) = (waiting.get_mut(&team), teams.waiting(team)) else {
                continue;
            };
            if *count <= most || placed.contains(&id) || image.is_made_room_for(id) {
                continue;
            }
            *count = count.saturating_sub(1);
            drafts.remove(&id);
            image.leave(id, now);
            self.app.metrics.decided(Outcome::Reject);
            one.refuse(SchedulerError::TooManyWait {
                most,
                contact: teams.contact().to_owned(),
            });
            any = true;
        }
        any
    }
}
