//! The report as people read it.

use std::{fmt::Write as _, time::Duration};

use cnlab_model::Timestamp;

use super::{
    report::{Blocker, DeadlineTerm, LocalityTerm, Report},
    sooner::Change,
};
use crate::{
    cluster::{Kind, KindSet, NodeIx, Shape},
    plan::{JobId, Standing, minutes},
    timeline::Ask,
};

/// What dense numbers are called.
pub trait Names {
    /// A type of GPU, such as `H100`.
    fn kind(&self, kind: Kind) -> String;
    /// A node.
    fn node(&self, node: NodeIx) -> String;
    /// A job.
    fn job(&self, job: JobId) -> String;
}

/// A report in words, relative to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// Where the job stands.
    pub headline: String,
    /// Its class.
    pub priority: String,
    /// Its deadline.
    pub deadline: String,
    /// The share of its team.
    pub share: String,
    /// The GPUs.
    pub gpu_type: String,
    /// Its data.
    pub locality: String,
    /// The queue.
    pub queue: String,
    /// Why it does not start now.
    pub blocked: Option<String>,
}

impl Report {
    /// The report in words, a term per line, relative to a moment.
    #[must_use]
    pub fn text(&self, names: &impl Names, now: Timestamp) -> String {
        let words = self.words(names, now);
        let mut text = format!("{}: {}\n", names.job(self.job), words.headline);
        let mut line = |head: &str, words: &str| {
            // Writing into a string does not fail.
            let _written = writeln!(text, "  {head:<12} {words}");
        };
        line("priority", &words.priority);
        line("deadline", &words.deadline);
        line("fair share", &words.share);
        line("GPU type", &words.gpu_type);
        line("data", &words.locality);
        line("queue", &words.queue);
        if let Some(blocked) = &words.blocked {
            line("blocked", blocked);
        }
        for (index, sooner) in self.sooner.iter().enumerate() {
            let head = if index == 0 { "sooner" } else { "" };
            let change = change_words(sooner.change, self.ask.tasks, names);
            line(head, &format!("{change}: {}", after(sooner.start, now)));
        }
        text
    }

    /// The report in words, each term by itself.
    #[must_use]
    pub fn words(&self, names: &impl Names, now: Timestamp) -> Words {
        let running = matches!(self.standing, Standing::Running { .. });
        Words {
            headline: self.headline(now),
            priority: self.priority_words(),
            deadline: self.deadline_words(now),
            share: self.share_words(),
            gpu_type: self.gpu_words(names),
            locality: match self.locality {
                LocalityTerm::Anywhere => "may run on any node".to_owned(),
                LocalityTerm::On(node) => format!("lies on {}", names.node(node)),
            },
            queue: if running {
                format!("{} wait", self.queued)
            } else {
                self.queue_words()
            },
            blocked: self
                .blocked
                .map(|blocked| self.blocker_words(blocked, names, now)),
        }
    }

    fn headline(&self, now: Timestamp) -> String {
        match (self.standing, self.start) {
            (Standing::Running { until }, _) => format!("runs, ends {}", after(until, now)),
            (Standing::Reserved { start, firm: true }, _) => {
                format!("waits, starts {} at the latest", after(start, now))
            }
            (Standing::Reserved { start, firm: false }, _) => {
                format!("waits, starts {}, reserved", after(start, now))
            }
            (Standing::Waiting, Some(start)) => {
                format!("waits, starts {}, expected", after(start, now))
            }
            (Standing::Waiting, None) => "waits, for nodes that are not there".to_owned(),
        }
    }

    fn priority_words(&self) -> String {
        match self.ahead.priority {
            0 => format!("{}, nobody above", self.priority),
            above => format!("{}, {above} above", self.priority),
        }
    }

    fn deadline_words(&self, now: Timestamp) -> String {
        let ahead = match self.ahead.deadline {
            0 => String::new(),
            ahead => format!("; {ahead} with a nearer one"),
        };
        let own = match self.deadline {
            DeadlineTerm::None => "none".to_owned(),
            DeadlineTerm::Guaranteed { by, end } => {
                let spare = minutes(by.since(end).saturating_sub(Duration::from_secs(59)));
                format!("{}, guaranteed, {spare} min to spare", after(by, now))
            }
            DeadlineTerm::NotGuaranteed { by, end: Some(end) } if end > by => {
                let late = minutes(end.since(by));
                format!("{}, missed by {late} min", after(by, now))
            }
            DeadlineTerm::NotGuaranteed { by, .. } => {
                format!("{}, not guaranteed", after(by, now))
            }
        };
        own + &ahead
    }

    fn share_words(&self) -> String {
        let ahead = match self.ahead.share {
            0 => String::new(),
            ahead => format!(", {ahead} before it for that"),
        };
        format!(
            "team is number {} of {}{ahead}",
            self.share.place, self.share.teams
        )
    }

    fn gpu_words(&self, names: &impl Names) -> String {
        let term = &self.gpu_type;
        let kinds = if term.kinds == KindSet::ANY {
            "GPU of any type".to_owned()
        } else {
            let mut kinds: Vec<String> = Vec::new();
            for kind in (0..Kind::LIMIT).filter_map(Kind::new) {
                // Kinds that only the core tells apart have one name.
                if term.kinds.admits(kind) && !kinds.contains(&names.kind(kind)) {
                    kinds.push(names.kind(kind));
                }
            }
            kinds.join(" or ")
        };
        let room = if term.free > 0 {
            format!("{} free", term.free)
        } else {
            format!("none free, at most {}% of one", term.widest)
        };
        format!("{}; {} there, {room}", wants(&self.ask, &kinds), term.gpus)
    }

    fn queue_words(&self) -> String {
        let ahead = self.ahead.total();
        let age = match self.ahead.age {
            0 => String::new(),
            age => format!(", {age} before it by age"),
        };
        format!("number {} of {}{age}", ahead.saturating_add(1), self.queued)
    }

    fn blocker_words(&self, blocked: Blocker, names: &impl Names, now: Timestamp) -> String {
        match blocked {
            Blocker::Reserved { from, by } => format!(
                "there is room, but {} has it reserved {}, before this would end",
                names.job(by),
                after(from, now)
            ),
            Blocker::Scattered { free, most: 0 } => {
                format!("{} free, but no entire one", in_gpus(free))
            }
            Blocker::Scattered { free, most } => match self.ask.demand.shape() {
                Shape::Whole(_) => format!(
                    "{} free, but at most {most} entire on one node",
                    in_gpus(free)
                ),
                Shape::Share(_) | Shape::CpuOnly => {
                    format!("{} free, but at most {most}% of one", in_gpus(free))
                }
            },
            Blocker::Processors => {
                "processors or memory are short where there would be room".to_owned()
            }
            Blocker::Busy { free: 0 } => "no GPU that would do is free".to_owned(),
            Blocker::Busy { free } => format!("only {} free where it may run", in_gpus(free)),
            Blocker::NoNode => "no node that would do takes new work".to_owned(),
            Blocker::TooLarge => "no node that would do is large enough".to_owned(),
        }
    }
}

fn wants(ask: &Ask, kinds: &str) -> String {
    let each = match ask.demand.shape() {
        Shape::CpuOnly => "no GPU".to_owned(),
        Shape::Share(blocks) => format!("{blocks}% of one {kinds}"),
        Shape::Whole(gpus) => format!("{gpus} × {kinds}"),
    };
    if ask.tasks > 1 {
        format!("wants {each} for each of {} tasks", ask.tasks)
    } else {
        format!("wants {each}")
    }
}

/// Blocks as GPUs: `3 GPUs`, `1.40 GPUs`.
fn in_gpus(blocks: u64) -> String {
    let (gpus, parts) = (blocks.div_euclid(100), blocks.rem_euclid(100));
    if parts > 0 {
        format!("{gpus}.{parts:02} GPUs")
    } else if gpus == 1 {
        "1 GPU".to_owned()
    } else {
        format!("{gpus} GPUs")
    }
}

fn change_words(change: Change, tasks: u16, names: &impl Names) -> String {
    match change {
        Change::Gpus(gpus) if tasks > 1 => format!("{gpus} per task"),
        Change::Blocks(blocks) => format!("{blocks}% of a GPU"),
        Change::Gpus(1) => "1 GPU".to_owned(),
        Change::Gpus(gpus) => format!("{gpus} GPUs"),
        Change::Tasks(1) => "1 task".to_owned(),
        Change::Tasks(tasks) => format!("{tasks} tasks"),
        Change::Kind(kind) => names.kind(kind),
        Change::Length(length) => format!("at most {} min", minutes(length)),
        Change::AnyNode => "on any node, with a copy of the data".to_owned(),
    }
}

/// How far away a moment is: `now`, `in 12 min`.
#[must_use]
pub fn after(moment: Timestamp, now: Timestamp) -> String {
    if moment <= now {
        "now".to_owned()
    } else {
        format!("in {} min", minutes(moment.since(now)))
    }
}
