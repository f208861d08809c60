//! What people may know of the cell: what is free when, who waits for what.

use cnlab_model::Timestamp;
use scheduler_core::{plan, profile::vram_bytes};

use super::{Who, image::Image};
use crate::app::catalog::{Availability, ProfileStatus};

impl Image {
    /// Every profile that is offered, and how it stands with it now.
    pub(crate) fn statuses(&self) -> Vec<ProfileStatus> {
        let plan = self.engine().plan();
        let forecast = plan.expect(|job, age| self.likely(job, age));
        let status = |profile: &scheduler_core::profile::Profile| {
            let of_type = || self.gpus().filter(|gpu| gpu.family == profile.gpu_type);
            let memory = of_type().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
            let availability = match self.refused(profile, 0, None) {
                Some(reason) => Availability::Never(reason.to_string()),
                None => match self.ask_of(profile) {
                    None => Availability::Later(None),
                    Some(ask) => match plan.available(&forecast, &ask, self.typical()) {
                        plan::Availability::Now => Availability::Now,
                        plan::Availability::Wait(wait) => Availability::Later(Some(wait)),
                        // Of the nodes that answer; the others may come back.
                        plan::Availability::Never => Availability::Later(None),
                    },
                },
            };
            ProfileStatus {
                availability,
                vram_bytes: vram_bytes(memory, profile.percent),
                simulated: of_type().next().is_some() && of_type().all(|gpu| gpu.simulated),
                profile: profile.clone(),
            }
        };
        self.offered().iter().map(status).collect()
    }

    /// What those who wait are to be told anew: why they wait, and until when.
    pub(crate) fn news(&self, now: Timestamp) -> Vec<(Who, String, Option<Timestamp>)> {
        if self.waiting().next().is_none() {
            return Vec::new();
        }
        let plan = self.engine().plan();
        let forecast = plan.expect(|job, age| self.likely(job, age));
        let told_anew = |who: &Who| {
            let begins = self.job(who.id()).and_then(|job| forecast.start(job));
            let ready = begins.map(|at| at.max(now).plus(self.start_time(who, None)));
            let detail = self.reason(who);
            let (told, expected) = who.told();
            let same = told == detail && about_the_same(expected, ready);
            (!same).then(|| (who.clone(), detail, ready))
        };
        self.waiting().filter_map(told_anew).collect()
    }
}

/// By how much an expectation changes before it is told again.
const RETELL: std::time::Duration = std::time::Duration::from_secs(30);

/// Whether two expectations differ by so little that nobody need be told.
fn about_the_same(told: Option<Timestamp>, now: Option<Timestamp>) -> bool {
    match (told, now) {
        (Some(told), Some(now)) => told.since(now).max(now.since(told)) < RETELL,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}
