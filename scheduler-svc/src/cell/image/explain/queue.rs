//! Everything that waits, before a caller.

use std::collections::BTreeMap;

use cnlab_model::Timestamp;
use cnlab_service::Caller;
use scheduler_core::plan::Forecast;

use super::{Entry, Image, names::owner};
use crate::app::explain::{Own, Owner, QueuePage, QueuePart, Queued, Standing as Shown};

/// Somebody who waits, and its place among those who wait for the same type.
struct Line<'a> {
    entry: &'a Entry,
    shown: Shown,
    /// 0 of what is not in the queue.
    position: usize,
}

impl Image {
    /// A part of everything that waits: by type of GPU, in the order in which it goes; last
    /// what is in no queue.
    pub(crate) fn queue(&self, part: &QueuePart, caller: &Caller, now: Timestamp) -> QueuePage {
        let mut lines = self.in_order();
        if let Some(profile) = &part.profile {
            lines.retain(|line| line.entry.who.profile().name == *profile);
        }
        let total = lines.len();
        let page: Vec<Line<'_>> = lines.into_iter().skip(part.from).take(part.size).collect();
        let after = part.from.saturating_add(page.len());
        let own = |line: &Line<'_>| owner(&line.entry.who, caller) == Owner::Yours;
        let outlook = page.iter().any(own).then(|| self.outlook());
        let mut explained = part.explained;
        let mut entries = Vec::with_capacity(page.len());
        for line in &page {
            let whose = owner(&line.entry.who, caller);
            let outlook = outlook.as_ref().filter(|_| whose == Owner::Yours);
            let own = outlook.map(|outlook| {
                let in_full = explained > 0;
                explained = explained.saturating_sub(1);
                self.own(line.entry, outlook, in_full, caller, now)
            });
            entries.push(queued(line, whose, own));
        }
        QueuePage {
            entries,
            total,
            next: if after < total {
                after.to_string()
            } else {
                String::new()
            },
            as_of: now,
        }
    }

    fn own(
        &self,
        entry: &Entry,
        outlook: &Forecast,
        in_full: bool,
        caller: &Caller,
        now: Timestamp,
    ) -> Own {
        let who = &entry.who;
        Own {
            id: who.id(),
            name: who.name().to_owned(),
            project: who.project().clone(),
            start: self.start(entry, outlook, now),
            deadline: who.deadline(),
            guaranteed: self.engine.plan().is_guaranteed(entry.job),
            explained: in_full.then(|| Box::new(self.explained(entry, outlook, caller, now))),
        }
    }

    fn in_order(&self) -> Vec<Line<'_>> {
        let mut lines: Vec<Line<'_>> = Vec::new();
        let outside = self.entries.values().filter_map(|entry| {
            let shown = self.shown(entry);
            match shown {
                Shown::MakingRoom | Shown::NoNode => Some(Line {
                    entry,
                    shown,
                    position: 0,
                }),
                Shown::Waiting | Shown::Running | Shown::Over => None,
            }
        });
        lines.extend(outside);
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for job in self.engine.plan().queue() {
            let Some(entry) = self.workload(job).and_then(|id| self.entries.get(&id)) else {
                continue;
            };
            let place = places.entry(&entry.who.profile().gpu_type).or_default();
            *place = place.saturating_add(1);
            lines.push(Line {
                entry,
                shown: Shown::Waiting,
                position: *place,
            });
        }
        lines.sort_by(|a, b| {
            let key = |line: &Line<'_>| {
                let outside = line.shown == Shown::NoNode;
                (
                    outside,
                    line.position,
                    line.entry.who.since(),
                    line.entry.job,
                )
            };
            let (one, other) = (a.entry.who.profile(), b.entry.who.profile());
            let by_type = one.gpu_type.cmp(&other.gpu_type);
            by_type.then_with(|| key(a).cmp(&key(b)))
        });
        lines
    }
}

fn queued(line: &Line<'_>, owner: Owner, own: Option<Own>) -> Queued {
    let who = &line.entry.who;
    Queued {
        position: line.position,
        gpu_type: who.profile().gpu_type.clone(),
        profile: who.profile().name.clone(),
        gpus: who.gpus(),
        priority: who.priority(),
        since: who.since(),
        standing: line.shown,
        owner,
        own,
    }
}
