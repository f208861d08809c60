//! The policies of the grid, by name.

use scheduler_core::packing::plan::Settings;

use crate::baseline::Baseline;
use crate::experiment::{Experiment, Workload};
use crate::planned::Planned;
use crate::replay::Policy;

/// A policy, and the order in which it gets the tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A published one.
    Published(Baseline),
    /// The scheduler's own, guided by plans, which knows the popularity of the pod list.
    Planned(Settings),
    /// The same, learning popularity from what arrived.
    Learning(Settings),
    /// FGD behind a queue.
    QueuedFgd,
    /// The scheduler's own behind the same queue.
    QueuedPlan(Settings),
}

impl Contender {
    /// The scheduler's own with its default settings.
    pub const PLAN: Self = Self::Planned(Settings::DEFAULT);
    /// The same without knowledge of the pod list.
    pub const LEARNED: Self = Self::Learning(Settings::DEFAULT);
    /// The same with moves of up to 5 % of the tasks.
    pub const MOVES: Self = Self::Planned(Settings {
        moves: 50,
        ..Settings::DEFAULT
    });
    /// The same behind a queue, without moves.
    pub const QUEUED: Self = Self::QueuedPlan(Settings::DEFAULT);

    /// All that the grid runs unless told otherwise.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let published = Baseline::ALL.into_iter().map(Self::Published);
        let own = [
            Self::PLAN,
            Self::LEARNED,
            Self::MOVES,
            Self::QueuedFgd,
            Self::QUEUED,
        ];
        published.chain(own).collect()
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Published(baseline) => baseline.name(),
            Self::Planned(Settings { moves: 0, .. }) => "PLAN",
            Self::Planned(_) => "MOVES",
            Self::Learning(_) => "LEARNED",
            Self::QueuedFgd => "QUEUED-FGD",
            Self::QueuedPlan(_) => "QUEUED",
        }
    }

    /// What it is, in a few words; empty for a published one.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Published(_) => "",
            Self::Planned(Settings { moves: 0, .. }) => {
                "guided by plans, popularity of the pod list known as to FGD, nothing moved"
            }
            Self::Planned(_) => {
                "like PLAN, and a task may move where one of entire GPUs would not fit"
            }
            Self::Learning(_) => "like PLAN, popularity learned from what arrived",
            Self::QueuedFgd => "FGD, up to 6,000 tasks wait, the largest is decided on first",
            Self::QueuedPlan(_) => "PLAN behind the same queue",
        }
    }

    /// Whether it gets the tasks through a queue.
    #[must_use]
    pub fn is_queued(self) -> bool {
        matches!(self, Self::QueuedFgd | Self::QueuedPlan(_))
    }

    /// Whether the bound holds for it: it moves nothing and lets nothing wait.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        match self {
            Self::Planned(settings) | Self::Learning(settings) => settings.moves == 0,
            Self::Published(_) => true,
            Self::QueuedFgd | Self::QueuedPlan(_) => false,
        }
    }

    /// The policy, ready for a run.
    #[must_use]
    pub fn policy<'a>(self, workload: &'a Workload, run: &'a Experiment) -> Box<dyn Policy + 'a> {
        match self {
            Self::Published(baseline) => baseline.policy(workload, run),
            Self::QueuedFgd => Baseline::Fgd.policy(workload, run),
            Self::Planned(settings) | Self::QueuedPlan(settings) => {
                Box::new(Planned::knowing(workload, run, settings))
            }
            Self::Learning(settings) => Box::new(Planned::learning(workload, run, settings)),
        }
    }
}
