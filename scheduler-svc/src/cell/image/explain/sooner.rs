//! What somebody who waits could ask for instead, and when that would start.

use std::{collections::BTreeMap, time::Duration};

use cnlab_model::Timestamp;
use scheduler_core::{
    explain,
    plan::{Forecast, Job, Priority, Unmet, minutes},
    profile::Profile,
    timeline::Ask,
};

use super::{super::queue::demand_of, Entry, Image};
use crate::{
    app::explain::{Change, Sooner},
    cell::Who,
};

/// Parts of the planned length that are tried, longest first.
const PARTS: [(u32, u32); 4] = [(3, 4), (1, 2), (1, 4), (1, 8)];
/// How many other types of GPU are named.
const OTHER_GPUS: usize = 2;

type Alternative = (Change, Ask, Duration);

impl Image {
    /// What would start somebody sooner who is expected to start at this time, each by itself.
    pub(super) fn sooner(
        &self,
        entry: &Entry,
        forecast: &Forecast,
        start: Option<Timestamp>,
        goes_first: bool,
        now: Timestamp,
    ) -> Vec<Sooner> {
        let plan = self.engine().plan();
        let job = plan.job(entry.job).copied();
        let length = match &job {
            Some(job) => self.likely(job, None),
            None => self.length(&entry.who, now),
        };
        let mut found = Vec::new();
        let groups = [
            self.smaller(entry, length),
            self.fewer(entry, length),
            self.shorter(entry, length),
            anywhere(entry, job.as_ref(), length),
        ];
        let best = |alternatives: Vec<Alternative>| {
            let asks: Vec<(Ask, Duration)> = alternatives
                .iter()
                .map(|(_, ask, length)| (*ask, *length))
                .collect();
            let starts = explain::starts(plan, forecast, entry.job, start, &asks);
            let changes = alternatives.into_iter().map(|(change, ..)| change);
            let mut best: Option<(Change, Timestamp)> = None;
            for (change, start) in changes.zip(starts) {
                // Of equal ones the first, which changes least.
                if let Some(start) = start
                    && best.as_ref().is_none_or(|(_, at)| start < *at)
                {
                    best = Some((change, start));
                }
            }
            best
        };
        found.extend(groups.into_iter().filter_map(best));
        let mut others: Vec<(Change, Timestamp)> = self
            .other_gpus(entry, length)
            .into_iter()
            .filter_map(|other| best(vec![other]))
            .collect();
        others.sort_by_key(|(_, start)| *start);
        found.extend(others.into_iter().take(OTHER_GPUS));
        if let (Who::Run(_), Some(job), false) = (&entry.who, job, goes_first) {
            found.extend(self.with_priority(&job, start, now));
        }
        found
            .into_iter()
            .map(|(change, start)| Sooner {
                text: text(&change, start, now),
                change,
                start,
            })
            .collect()
    }

    fn ask_with(&self, entry: &Entry, profile: &Profile) -> Option<Ask> {
        let who = entry.who.clone().with_profile(profile.clone());
        self.ask(&who, entry.volume_on)
    }

    /// Smaller slices of the same type, the largest first.
    fn smaller(&self, entry: &Entry, length: Duration) -> Vec<Alternative> {
        let own = entry.who.profile();
        let mut profiles: Vec<&Profile> = self
            .offered()
            .iter()
            .filter(|profile| profile.gpu_type == own.gpu_type && profile.percent < own.percent)
            .collect();
        profiles.sort_by_key(|profile| std::cmp::Reverse(profile.percent));
        let alternative = |profile: &Profile| {
            let change = Change::SmallerSlice(profile.name.clone());
            Some((change, self.ask_with(entry, profile)?, length))
        };
        profiles.into_iter().filter_map(alternative).collect()
    }

    /// Fewer GPUs of one node, the most first.
    fn fewer(&self, entry: &Entry, length: Duration) -> Vec<Alternative> {
        let Some(ask) = self.ask(&entry.who, entry.volume_on) else {
            return Vec::new();
        };
        let alternative = |gpus: u8| {
            let demand = demand_of(entry.who.profile(), gpus)?.on(ask.demand.kinds());
            Some((Change::FewerGpus(gpus), Ask { demand, ..ask }, length))
        };
        let fewer = (1..entry.who.gpus()).rev();
        fewer.filter_map(alternative).collect()
    }

    /// Of each other type the slice that is closest in size.
    fn other_gpus(&self, entry: &Entry, length: Duration) -> Vec<Alternative> {
        let own = entry.who.profile();
        let mut closest: BTreeMap<&str, &Profile> = BTreeMap::new();
        let others = self.offered().iter();
        for profile in others.filter(|profile| profile.gpu_type != own.gpu_type) {
            let away = |profile: &Profile| profile.percent.abs_diff(own.percent);
            let known = closest.entry(&profile.gpu_type).or_insert(profile);
            if away(profile) < away(known) {
                *known = profile;
            }
        }
        let alternative = |profile: &Profile| {
            let change = Change::OtherGpu(profile.name.clone());
            Some((change, self.ask_with(entry, profile)?, length))
        };
        closest.into_values().filter_map(alternative).collect()
    }

    /// Shorter runs, which find gaps that longer ones do not.
    fn shorter(&self, entry: &Entry, length: Duration) -> Vec<Alternative> {
        let (Who::Run(_), Some(ask)) = (&entry.who, self.ask(&entry.who, entry.volume_on)) else {
            return Vec::new();
        };
        let start = self.start_time(&entry.who, None);
        let alternative = |(part, of): (u32, u32)| {
            let runs = length.checked_mul(part)?.checked_div(of)?;
            // Whole minutes: that is how people say it.
            let whole = Duration::from_secs(runs.as_secs().div_euclid(60).saturating_mul(60));
            let change = Change::Shorter(whole);
            (!whole.is_zero()).then_some((change, ask, whole.saturating_add(start)))
        };
        PARTS.into_iter().filter_map(alternative).collect()
    }

    /// The next higher class.
    fn with_priority(
        &self,
        job: &Job,
        start: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<(Change, Timestamp)> {
        let mut above = Priority::ALL
            .into_iter()
            .filter(|class| *class > job.priority);
        let priority = above.next()?;
        let mut job = Job { priority, ..*job };
        if let Some(deadline) = &mut job.deadline {
            deadline.unmet = Unmet::AcceptLate;
        }
        let mut plan = self.engine().plan().clone();
        plan.finish(job.id, now);
        plan.submit(job, now);
        let then = plan
            .expect(|job, age| self.likely(job, age))
            .start(job.id)?;
        let worth = start.is_none_or(|start| start.since(then) >= explain::WORTH);
        worth.then_some((Change::Priority(priority), then))
    }
}

/// Another node than the one where the volume lies.
fn anywhere(entry: &Entry, job: Option<&Job>, length: Duration) -> Vec<Alternative> {
    let ask = job.map(|job| job.ask).filter(|ask| ask.only.is_some());
    let Some(ask) = ask.filter(|_| entry.volume_on.is_some()) else {
        return Vec::new();
    };
    vec![(Change::AnyNode, Ask { only: None, ..ask }, length)]
}

fn text(change: &Change, start: Timestamp, now: Timestamp) -> String {
    let what = match change {
        Change::SmallerSlice(profile) => format!("the smaller slice {profile}"),
        Change::FewerGpus(1) => "1 GPU".to_owned(),
        Change::FewerGpus(gpus) => format!("{gpus} GPUs"),
        Change::OtherGpu(profile) => format!("the profile {profile}"),
        Change::Shorter(longest) => {
            format!("a longest time of {} min", minutes(*longest))
        }
        Change::Priority(priority) => format!("priority {priority}"),
        Change::AnyNode => "a new server with a copy of its files, on another node".to_owned(),
    };
    format!("{what}: {}", super::after(start, now))
}
