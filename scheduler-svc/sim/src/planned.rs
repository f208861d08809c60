//! The scheduler's own policy under test.

use scheduler_core::packing::plan::{Expected, Settings};
use scheduler_core::packing::policy;

use crate::experiment::{Experiment, Workload};
use crate::replay::{Place, Policy, Step};

/// The policy that is guided by plans; it knows the popularity of the pod list.
#[derive(Debug)]
pub struct Planned {
    policy: policy::Policy,
}

impl Planned {
    /// The policy, ready for a run.
    #[must_use]
    pub fn new(workload: &Workload, run: &Experiment, settings: Settings) -> Self {
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
        Self {
            policy: policy::Policy::new(run.nodes.clone(), workload.kinds, expected, settings),
        }
    }
}

impl Policy for Planned {
    fn place(&mut self, task: usize, class: usize, memory: u32) -> Step {
        let place = self.policy.place(class, memory).map(|slot| Place {
            node: slot.node,
            gpus: slot.gpus,
        });
        Step {
            task,
            moved: None,
            place,
        }
    }
}
