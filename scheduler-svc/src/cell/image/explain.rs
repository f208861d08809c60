//! Why somebody stands where it stands, before a caller.

mod facts;
mod names;
mod queue;
mod sooner;

use cnlab_model::{BLOCKS_PER_GPU, Timestamp, id::WorkloadId};
use cnlab_service::Caller;
use scheduler_core::{
    explain::{self, Ahead, Blocker as CoreBlocker, DeadlineTerm, Report, Words, after},
    plan::{Forecast, Standing as Stand},
};

use super::{Entry, Image, Standing, kind_of};
use crate::{
    app::explain::{Blocker, Explained, Gpus, Origin, Standing as Shown, Start, Terms},
    cell::Who,
};
use names::Before;

impl Image {
    /// When everybody who waits may expect to start, if runs last as long as is likely.
    fn outlook(&self) -> Forecast {
        let plan = self.engine.plan();
        plan.expect(|job, age| self.likely(job, age))
    }

    /// Why somebody stands where it stands; `None` for one that wants no slice and has none.
    pub(crate) fn explain(
        &self,
        id: WorkloadId,
        caller: &Caller,
        now: Timestamp,
    ) -> Option<Explained> {
        let entry = self.entries.get(&id)?;
        Some(self.explained(entry, &self.outlook(), caller, now))
    }

    fn explained(
        &self,
        entry: &Entry,
        outlook: &Forecast,
        caller: &Caller,
        now: Timestamp,
    ) -> Explained {
        let report = explain::report(self.engine.plan(), outlook, entry.job);
        let shown = self.shown(entry);
        let start = self.start(entry, outlook, now);
        let terms = self.terms(entry, report.as_ref(), shown, caller, now);
        let mut explained = Explained::bare(&entry.who, shown, String::new(), now);
        explained.text = self.headline(entry, shown, start, &terms, now);
        explained.start = start;
        explained.length = Some(self.planned_length(entry, now));
        if let Standing::Holds(held) = &entry.standing {
            let until = match self.engine.plan().standing(entry.job) {
                Some(Stand::Running { until }) => Some(until),
                Some(Stand::Waiting | Stand::Reserved { .. }) | None => None,
            };
            explained.placement = Some(self.placement(entry, held, until));
            explained.preemption = Some(self.preemption(entry, now));
        } else {
            explained.blocker = self.blocker(entry, report.as_ref(), shown, caller, now);
            explained.candidates = self.candidates(entry);
            // What would fit into what its team has left is not looked for.
            if shown != Shown::MakingRoom && self.kept_out(&entry.who).is_none() {
                let goes_first = terms.ahead.total() == 0;
                explained.sooner = self.sooner(entry, outlook, start.at, goes_first, now);
            }
        }
        explained.terms = Some(terms);
        explained
    }

    fn shown(&self, entry: &Entry) -> Shown {
        match entry.standing {
            Standing::Holds(_) => Shown::Running,
            Standing::Parked => Shown::NoNode,
            Standing::Waits if self.engine.is_expected(entry.job) => Shown::MakingRoom,
            Standing::Waits => Shown::Waiting,
        }
    }

    fn start(&self, entry: &Entry, outlook: &Forecast, now: Timestamp) -> Start {
        let ready = |at: Timestamp| at.max(now).plus(self.start_time(&entry.who, None));
        if let Standing::Holds(held) = &entry.standing {
            return Start {
                at: Some(held.since),
                ..Start::default()
            };
        }
        let (at, latest, origin) = match self.engine.plan().standing(entry.job) {
            // Its place is being made free.
            Some(Stand::Running { .. }) => (Some(now), None, Origin::MakingRoom),
            Some(Stand::Reserved { start, firm }) => {
                let at = outlook.start(entry.job).map_or(start, |at| at.min(start));
                let origin = if firm {
                    Origin::Guaranteed
                } else {
                    Origin::Reserved
                };
                (Some(at), Some(start), origin)
            }
            Some(Stand::Waiting) | None => (outlook.start(entry.job), None, Origin::Expected),
        };
        Start {
            at,
            latest,
            ready: at.map(ready),
            origin: at.map(|_| origin),
        }
    }

    fn headline(
        &self,
        entry: &Entry,
        shown: Shown,
        start: Start,
        terms: &Terms,
        now: Timestamp,
    ) -> String {
        let family = &entry.who.profile().gpu_type;
        match shown {
            Shown::Running => {
                let since = start.at.map_or(0, |at| minutes_between(at, now));
                format!("has had a slice for {since} min")
            }
            Shown::NoNode => {
                format!("waits, outside of the queue: {}", self.reason(&entry.who))
            }
            Shown::MakingRoom => "goes next: a place is being made free for it".to_owned(),
            Shown::Waiting | Shown::Over => {
                let place = format!(
                    "waits, number {} of {} for {family}",
                    terms.position, terms.queued
                );
                let start_text = |at: Timestamp| {
                    let (soon, latest) = (after(at, now), start.latest.unwrap_or(at));
                    match after(latest.max(now), now) {
                        latest if latest == soon => format!("starts {soon}"),
                        latest => format!("starts {soon}, {latest} at the latest"),
                    }
                };
                match (start.at, start.origin) {
                    (Some(at), Some(Origin::Guaranteed)) => {
                        format!("{place}; {}: its deadline is guaranteed", start_text(at))
                    }
                    (Some(at), Some(Origin::Reserved)) => format!(
                        "{place}; {} unless somebody arrives who goes first",
                        start_text(at)
                    ),
                    (Some(at), _) => format!("{place}; expected to start {}", after(at, now)),
                    (None, _) => format!("{place}; nobody can tell when it starts"),
                }
            }
        }
    }

    fn terms(
        &self,
        entry: &Entry,
        report: Option<&Report>,
        shown: Shown,
        caller: &Caller,
        now: Timestamp,
    ) -> Terms {
        let who = &entry.who;
        let waits = shown == Shown::Waiting;
        let ahead = report.map_or_else(Ahead::default, |report| report.ahead);
        let names = Before {
            image: self,
            caller,
        };
        let words = report.map(|report| report.words(&names, now));
        let (guaranteed, expected_end) = match report.map(|report| report.deadline) {
            Some(DeadlineTerm::Guaranteed { end, .. }) => (true, Some(end)),
            Some(DeadlineTerm::NotGuaranteed { end, .. }) => (false, end),
            Some(DeadlineTerm::None) | None => (false, None),
        };
        let (gpus, gpu_text) = match (report, &words) {
            (Some(report), Some(words)) => {
                let term = report.gpu_type;
                let gpus = Gpus {
                    all: term.gpus,
                    free: term.free,
                    widest: term.widest,
                };
                (gpus, words.gpu_type.clone())
            }
            (..) => {
                let (percent, family) = (who.profile().percent, &who.profile().gpu_type);
                let wants = match who.gpus() {
                    1 if percent < BLOCKS_PER_GPU => format!("{percent}% of one"),
                    gpus => format!("{gpus} ×"),
                };
                let text = format!("wants {wants} {family}; none on a node that takes new work");
                (Gpus::default(), text)
            }
        };
        let share = report.map_or((0, 0), |report| (report.share.place, report.share.teams));
        let of = |term: fn(&Words) -> &String| words.as_ref().map(|words| term(words).clone());
        let said = |of: Option<String>, otherwise: &str| of.unwrap_or_else(|| otherwise.to_owned());
        Terms {
            ahead,
            position: if waits {
                ahead.total().saturating_add(1)
            } else {
                0
            },
            queued: report.map_or(0, |report| report.queued),
            priority: who.priority(),
            priority_text: said(of(|words| &words.priority), who.priority().name()),
            deadline: who.deadline(),
            guaranteed,
            expected_end,
            deadline_text: said(
                of(|words| &words.deadline),
                &who.deadline().map_or_else(
                    || "none".to_owned(),
                    |at| format!("{}, not guaranteed", after(at, now)),
                ),
            ),
            share,
            share_text: self.share_text(who, of(|words| &words.share), now),
            gpus,
            gpu_text,
            data: self.data(entry),
            queue_text: said(
                of(|words| &words.queue),
                "not in the queue until a node takes new work",
            ),
        }
    }

    fn share_text(&self, who: &Who, place: Option<String>, now: Timestamp) -> String {
        let share = self.engine.shares().share(who.team(), now);
        let parts = share.parts_per_million();
        let (percent, tenths) = (parts.div_euclid(10_000), parts.rem_euclid(10_000) / 1_000);
        let used = if (1..1_000).contains(&parts) {
            "it used less than 0.1% of the cell in 7 days".to_owned()
        } else {
            format!("it used {percent}.{tenths}% of the cell in 7 days")
        };
        match place {
            Some(place) => format!("{place}; {used}"),
            None => used,
        }
    }

    fn blocker(
        &self,
        entry: &Entry,
        report: Option<&Report>,
        shown: Shown,
        caller: &Caller,
        now: Timestamp,
    ) -> Option<(Blocker, String)> {
        if shown == Shown::MakingRoom {
            let left = self.engine.still_there_for(entry.job).unwrap_or(0);
            let text = format!("{left} that it goes before are being stopped for it");
            return Some((Blocker::MakingRoom, text));
        }
        let Some(report) = report else {
            return Some((Blocker::NoNode, self.reason(&entry.who)));
        };
        if let Some(reason) = self.kept_out(&entry.who) {
            return Some((Blocker::Quota, reason));
        }
        let kind = match report.blocked? {
            CoreBlocker::Reserved { .. } => Blocker::Reserved,
            CoreBlocker::Scattered { .. } => Blocker::Scattered,
            CoreBlocker::Processors => Blocker::Processors,
            CoreBlocker::Busy { .. } => Blocker::Busy,
            CoreBlocker::NoNode => Blocker::NoNode,
            CoreBlocker::TooLarge => Blocker::TooLarge,
        };
        let names = Before {
            image: self,
            caller,
        };
        Some((kind, report.words(&names, now).blocked?))
    }
}

fn minutes_between(from: Timestamp, to: Timestamp) -> u64 {
    to.since(from).as_secs().div_euclid(60)
}
