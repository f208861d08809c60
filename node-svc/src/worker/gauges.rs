//! Says how many workloads this node has, by phase.

use std::{sync::Arc, time::Duration};

use cnlab_service::{Next, metrics::Level};
use node_core::Phase;

use crate::app::Node;

const EVERY: Duration = Duration::from_secs(15);

/// Counts.
#[derive(Debug)]
pub(super) struct Gauges {
    node: Arc<Node>,
    workloads: Level,
}

impl Gauges {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            workloads: Level::named(
                "cnlab_node_workloads",
                "workloads on this node that are not over, by node and phase",
            ),
        }
    }

    pub(super) fn tick(&self) -> Next {
        let lives = self.node.all_lives();
        for phase in Phase::ALL {
            let Some(name) = name(phase) else {
                continue;
            };
            let count = lives.iter().filter(|life| life.phase() == phase).count();
            self.workloads.set(
                u64::try_from(count).unwrap_or(u64::MAX),
                &[("node", &self.node.config.name), ("phase", name)],
            );
        }
        Next::After(EVERY)
    }
}

/// The label of a phase; none for one that is over, since those are forgotten at some time.
const fn name(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Accepted => Some("accepted"),
        Phase::BuildingEnvironment => Some("building_environment"),
        Phase::Starting => Some("starting"),
        Phase::WaitingForPage => Some("waiting_for_page"),
        Phase::Ready => Some("ready"),
        Phase::Running => Some("running"),
        Phase::Stopping => Some("stopping"),
        Phase::Stopped | Phase::Failed | Phase::Succeeded => None,
    }
}
