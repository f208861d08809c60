//! What the teams of the image hold against what they may.

use std::collections::{BTreeMap, BTreeSet};

use cnlab_model::id::{NodeId, TeamId, WorkloadId};
use scheduler_core::{
    plan::JobId,
    quota::{Exceeded, Need},
};

use super::{Image, Standing};
use crate::{cell::Who, store::record::Grant};

impl Image {
    /// The limit of its team that somebody exceeds alone, if there is one.
    pub(crate) fn never_within(&self, who: &Who, volume_on: Option<NodeId>) -> Option<Exceeded> {
        let need = self.engine.need(&self.ask(who, volume_on)?);
        self.engine.quotas().ever(who.team(), need).err()
    }

    /// The limit of its team for which somebody who arrives would have to wait, in words.
    pub(crate) fn would_keep_out(&self, who: &Who) -> Option<String> {
        let need = self.engine.need(&self.ask(who, None)?);
        // No job has this number.
        let nobody = JobId(u64::MAX);
        let over = self.engine.quotas().check(nobody, who.team(), need).err()?;
        Some(self.teams.why(&over))
    }

    /// The limit of its team for which somebody who waits may not start now, in words.
    pub(super) fn kept_out(&self, who: &Who) -> Option<String> {
        let entry = self.entries.get(&who.id())?;
        let over = self.engine.over_quota(entry.job)?;
        Some(self.teams.why(&over))
    }

    /// Whether others give way for somebody who waits.
    pub(crate) fn is_made_room_for(&self, id: WorkloadId) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| self.engine.is_expected(entry.job))
    }

    /// How many of each of these teams wait, without those.
    pub(crate) fn waiting_of(
        &self,
        teams: &BTreeSet<TeamId>,
        without: &BTreeSet<WorkloadId>,
    ) -> BTreeMap<TeamId, usize> {
        let mut counts = BTreeMap::new();
        if teams.is_empty() {
            return counts;
        }
        for (id, entry) in &self.entries {
            let team = entry.who.team();
            let waits = !matches!(entry.standing, Standing::Holds(_));
            if waits && teams.contains(&team) && !without.contains(id) {
                let count: &mut usize = counts.entry(team).or_default();
                *count = count.saturating_add(1);
            }
        }
        counts
    }

    /// Counts what somebody holds on a GPU of which the engine does not know, until it leaves.
    pub(super) fn count_elsewhere(&mut self, job: JobId, grant: &Grant) {
        let need = Need {
            blocks: grant.blocks().into(),
            pool: self.teams.pool(&grant.gpu_type),
        };
        self.engine.count_elsewhere(job, grant.team, need);
    }
}
