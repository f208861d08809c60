//! Runs a policy over the arrivals of one experiment and keeps its book.
//!
//! The book is independent of the policy's: each placement is taken from the free resources of
//! its node, and none may become negative; each drop is checked against every node.

use scheduler_core::cluster::GpuSet;
use scheduler_core::packing::{Class, Free};

use crate::experiment::{Arrival, Experiment, Workload};

/// A place for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The node, an index of [`Experiment::nodes`].
    pub node: usize,
    /// Its GPUs.
    pub gpus: GpuSet,
}

/// A placed task goes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The task, an index of [`Experiment::arrivals`].
    pub task: usize,
    /// Where to.
    pub to: Place,
}

/// What happens to one arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The task that is placed or dropped.
    pub task: usize,
    /// A task that goes elsewhere first.
    pub moved: Option<Move>,
    /// Where the task goes, `None` when it is dropped.
    pub place: Option<Place>,
}

/// A policy under test.
pub trait Policy {
    /// Decides on the next arrival.
    fn place(&mut self, task: usize, class: usize, memory: u32) -> Step;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Allocated GPU in blocks when 100 % of the cluster's GPUs had been asked for.
    pub at_full: u64,
    /// Allocated GPU in blocks when all had arrived.
    pub at_end: u64,
    /// The cluster's GPU in blocks.
    pub capacity: u64,
    /// Tasks placed.
    pub placed: u32,
    /// Tasks moved.
    pub moved: u32,
}

impl Outcome {
    /// Allocation at the end, in per cent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        percent(self.at_end, self.capacity)
    }

    /// Allocation when 100 % had arrived, in per cent.
    #[must_use]
    pub fn percent_at_full(&self) -> f64 {
        percent(self.at_full, self.capacity)
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// What a policy did that it must not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// It took what is not free.
    #[error("task {task} does not fit on node {node}")]
    Overcommit {
        /// The task.
        task: usize,
        /// The node.
        node: usize,
    },
    /// It dropped a task that fits.
    #[error("task {task} was dropped but fits on node {node}")]
    Dropped {
        /// The task.
        task: usize,
        /// Where it fits.
        node: usize,
    },
    /// It moved a task that is not placed.
    #[error("task {task} was moved but is not placed")]
    Moved {
        /// The task.
        task: usize,
    },
}

/// The book of a run.
#[derive(Debug)]
pub struct Book<'a> {
    workload: &'a Workload,
    experiment: &'a Experiment,
    nodes: Vec<Free>,
    places: Vec<Option<Place>>,
    outcome: Outcome,
    allocated: u64,
}

impl<'a> Book<'a> {
    /// An empty cluster.
    #[must_use]
    pub fn new(workload: &'a Workload, experiment: &'a Experiment) -> Self {
        Self {
            workload,
            experiment,
            nodes: experiment.nodes.clone(),
            places: vec![None; experiment.arrivals.len()],
            outcome: Outcome {
                capacity: workload.capacity(),
                ..Outcome::default()
            },
            allocated: 0,
        }
    }

    fn ask(&self, task: usize) -> (Class, u32) {
        let Arrival { class, memory } = self.experiment.arrivals[task];
        (self.workload.classes[class].class, memory)
    }

    /// The nodes as they are.
    #[must_use]
    pub fn nodes(&self) -> &[Free] {
        &self.nodes
    }

    fn take(&mut self, task: usize, place: Place) -> Result<(), Illegal> {
        let (class, memory) = self.ask(task);
        let refused = Illegal::Overcommit {
            task,
            node: place.node,
        };
        let node = self.nodes.get(place.node).ok_or(refused.clone())?;
        if !node.fits(&class) {
            return Err(refused);
        }
        self.nodes[place.node] = node.take(&class, memory, place.gpus).ok_or(refused)?;
        self.places[task] = Some(place);
        self.allocated += u64::from(class.total());
        Ok(())
    }

    /// Writes down what a policy decided.
    pub fn step(&mut self, step: &Step) -> Result<(), Illegal> {
        if let Some(Move { task, to }) = step.moved {
            let from = self.places[task].take().ok_or(Illegal::Moved { task })?;
            let (class, memory) = self.ask(task);
            self.nodes[from.node] = self.nodes[from.node].give(&class, memory, from.gpus);
            self.allocated -= u64::from(class.total());
            self.take(task, to)?;
            self.outcome.moved += 1;
        }
        if let Some(place) = step.place {
            self.take(step.task, place)?;
            self.outcome.placed += 1;
        } else {
            let (class, memory) = self.ask(step.task);
            let fits = |node: &Free| node.memory >= memory && node.fits(&class);
            if let Some(node) = self.nodes.iter().position(fits) {
                return Err(Illegal::Dropped {
                    task: step.task,
                    node,
                });
            }
        }
        Ok(())
    }
}

/// Runs a policy.
pub fn run(
    workload: &Workload,
    experiment: &Experiment,
    policy: &mut dyn Policy,
) -> Result<Outcome, Illegal> {
    let mut book = Book::new(workload, experiment);
    let mut demand = 0;
    for (task, arrival) in experiment.arrivals.iter().enumerate() {
        let step = policy.place(task, arrival.class, arrival.memory);
        book.step(&step)?;
        let before = demand;
        demand += u64::from(workload.classes[arrival.class].class.total());
        if before < book.outcome.capacity && demand >= book.outcome.capacity {
            book.outcome.at_full = book.allocated;
        }
    }
    book.outcome.at_end = book.allocated;
    Ok(book.outcome)
}
