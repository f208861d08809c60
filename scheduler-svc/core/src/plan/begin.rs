//! Starts that somebody else decides: at a better place, or in place of those who give way.

use std::collections::BTreeSet;

use super::{JobId, Plan, State};
use crate::{
    cluster::{Place, Refused},
    timeline::Claim,
};

impl Plan {
    /// Moves a job that has just begun to places that suit others better. Nothing is changed
    /// where they are taken now or reserved before it would end.
    ///
    /// # Errors
    /// What is short there; [`Refused::NotHeld`] for a job that does not run.
    pub fn move_start(&mut self, id: JobId, places: Vec<Place>) -> Result<(), Refused> {
        let Some(State::Running { claim, .. }) = self.jobs.get(&id).map(|job| &job.state) else {
            return Err(Refused::NotHeld);
        };
        let old = claim.clone();
        let new = Claim {
            places,
            ..old.clone()
        };
        self.timeline.release(&old)?;
        if let Err(short) = self.timeline.reserve(&new) {
            // It was there a moment ago.
            let _back = self.timeline.record(&old);
            return Err(short);
        }
        self.free(&old);
        if let Some(entry) = self.jobs.get_mut(&id)
            && let State::Running { claim, .. } = &mut entry.state
        {
            *claim = new;
        }
        Ok(())
    }

    /// Lets a job that waits begin now at these places, whatever still runs there: those who
    /// give way for it hold their places until they are gone, and nobody else may come between.
    /// Reservations in its way are made anew.
    ///
    /// # Errors
    /// [`Refused::NotHeld`] for a job that does not wait, or what the timeline says of a node
    /// that it does not know.
    pub fn begin(&mut self, id: JobId, places: Vec<Place>) -> Result<(), Refused> {
        let now = self.timeline.now();
        let Some(entry) = self.jobs.get(&id) else {
            return Err(Refused::NotHeld);
        };
        if matches!(entry.state, State::Running { .. } | State::Withheld) {
            return Err(Refused::NotHeld);
        }
        let (job, turn) = (entry.job, entry.turn);
        let claim = Claim {
            demand: job.ask.demand,
            places,
            from: now,
            until: now.plus(job.length),
        };
        self.timeline.record(&claim)?;
        if let Some(reserved) = self.withdraw(id) {
            self.free(&reserved);
        }
        self.waiting.remove(&turn);
        let in_the_way: BTreeSet<JobId> = self
            .in_the_way(&claim, claim.until)
            .into_iter()
            .filter(|other| *other != id)
            .collect();
        let displaced = in_the_way
            .into_iter()
            .filter_map(|other| Some((other, self.withdraw(other)?)))
            .collect();
        self.alarms.insert((claim.until, id));
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.state = State::Running {
                expected: claim.until,
                claim,
            };
        }
        self.place_anew(displaced);
        Ok(())
    }
}
