//! Those who may not start for a reason that has nothing to do with room: they keep their place
//! in the queue, and nothing is reserved for them.

use cnlab_model::Timestamp;

use super::{Admission, Entry, Job, JobId, Plan, State, Turn, Unmet};

impl Plan {
    /// Takes in a job that may not start for now. It has no guarantee.
    pub(crate) fn submit_withheld(&mut self, job: Job, now: Timestamp) -> Admission {
        if !self.timeline.could_hold(&job.ask) {
            self.finish(job.id, now);
            return Admission::Impossible;
        }
        match job.deadline {
            Some(deadline) if deadline.unmet == Unmet::Refuse => {
                self.finish(job.id, now);
                Admission::Refused { expected_end: None }
            }
            Some(_) => {
                self.keep_out(job, now);
                Admission::AcceptedLate { expected_end: None }
            }
            None => {
                self.keep_out(job, now);
                Admission::Queued { start: None }
            }
        }
    }

    /// Takes a job that waits, or whose start was not carried out, out of everything that is
    /// planned. [`Plan::let_in`] puts it back.
    pub(crate) fn withhold(&mut self, id: JobId, now: Timestamp) {
        if let Some(job) = self.job(id).copied() {
            self.keep_out(job, now);
        }
    }

    fn keep_out(&mut self, mut job: Job, now: Timestamp) {
        self.finish(job.id, now);
        if let Some(deadline) = &mut job.deadline {
            // It was taken in once.
            deadline.unmet = Unmet::AcceptLate;
        }
        let entry = Entry {
            turn: Turn::of(&job, self.rank(job.team)),
            job,
            guaranteed: false,
            late: false,
            state: State::Withheld,
        };
        self.withheld.insert(job.id);
        self.jobs.insert(job.id, entry);
    }

    /// Lets a job that was withheld take its place in the queue. Answers whether it did: the
    /// nodes there are may not be able to run it any more.
    pub(crate) fn let_in(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(job) = self.job(id).copied().filter(|_| self.is_withheld(id)) else {
            return false;
        };
        match self.submit(job, now) {
            Admission::Queued { .. }
            | Admission::Accepted { .. }
            | Admission::AcceptedLate { .. } => true,
            Admission::Refused { .. } | Admission::Impossible => {
                self.keep_out(job, now);
                false
            }
        }
    }

    /// Whether a job may not start for now, whatever is free.
    #[must_use]
    pub fn is_withheld(&self, id: JobId) -> bool {
        self.withheld.contains(&id)
    }
}
