//! The scheduler's own policy under test.

use scheduler_core::packing::plan::{Expected, Settings};
use scheduler_core::packing::policy;
use scheduler_core::packing::popularity::Popularity;

use crate::experiment::{Experiment, Workload};
use crate::replay::{Move, Place, Policy, Step};

/// The policy that is guided by plans.
#[derive(Debug)]
pub struct Planned<'a> {
    workload: &'a Workload,
    policy: policy::Policy,
}

impl<'a> Planned<'a> {
    /// It knows the popularity of the pod list, as FGD does.
    #[must_use]
    pub fn knowing(workload: &'a Workload, run: &Experiment, settings: Settings) -> Self {
        let expected = workload
            .classes
            .iter()
            .zip(&workload.memory)
            .map(|(popular, &memory)| Expected {
                class: popular.class,
                memory,
                count: popular.count,
            })
            .collect();
        Self::new(workload, run, Popularity::known(expected), settings)
    }

    /// It learns popularity from what arrived.
    #[must_use]
    pub fn learning(workload: &'a Workload, run: &Experiment, settings: Settings) -> Self {
        Self::new(workload, run, Popularity::learned(), settings)
    }

    fn new(
        workload: &'a Workload,
        run: &Experiment,
        popularity: Popularity,
        settings: Settings,
    ) -> Self {
        let nodes = run.nodes.clone();
        Self {
            workload,
            policy: policy::Policy::new(nodes, popularity, settings),
        }
    }
}

impl Policy for Planned<'_> {
    fn place(&mut self, task: usize, class: usize, memory: u32) -> Step {
        let demand = self.workload.demand(class, memory);
        let answer = self.policy.place(task, &demand);
        Step {
            task,
            moved: answer.and_then(|answer| answer.relocation).map(|to| Move {
                task: to.task,
                to: Place {
                    node: to.to.node,
                    gpus: to.to.gpus,
                },
            }),
            place: answer.map(|answer| Place {
                node: answer.slot.node,
                gpus: answer.slot.gpus,
            }),
        }
    }
}
