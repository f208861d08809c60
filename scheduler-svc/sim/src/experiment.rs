//! The set-up of the published experiments.
//!
//! Per seed: the pods, sorted by name, are shuffled. While their GPUs are less than 1.3 times
//! those of the cluster, pods drawn with replacement are appended, until the next would pass
//! that; when they are more, pods drawn at random are dropped. They arrive in that order, none
//! leaves, and one that fits nowhere is dropped. The order of the nodes is shuffled too: it
//! breaks ties.

use scheduler_core::cluster::Demand;
use scheduler_core::packing::fgd::Popular;
use scheduler_core::packing::{Class, Free};

use crate::openb;
use crate::prng::Prng;
use crate::trace::{Hosts, Pod, TraceError};

/// The seeds of the published runs.
pub const SEEDS: std::ops::Range<u64> = 42..52;

/// Demand at the end, in per cent of the cluster's GPUs.
pub const DEMAND: u64 = 130;

/// One task that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its class, an index of [`Workload::classes`].
    pub class: usize,
    /// Memory, in MiB.
    pub memory: u32,
}

/// A workload of the trace.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The nodes, in the order of the trace.
    pub nodes: Vec<Free>,
    /// The distinct classes and how many pods of the list have each.
    pub classes: Vec<Popular>,
    /// The mean memory of each class, in MiB.
    pub memory: Vec<u32>,
    /// The pods by name.
    pods: Vec<Arrival>,
}

/// One run: who arrives when, and the nodes in the order that breaks ties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experiment {
    /// The seed.
    pub seed: u64,
    /// The nodes.
    pub nodes: Vec<Free>,
    /// The tasks in the order of their arrival.
    pub arrivals: Vec<Arrival>,
}

impl Workload {
    /// Reads a workload of the embedded trace.
    pub fn read(name: &str) -> Result<Self, TraceError> {
        let hosts = openb::hosts()?;
        let pods = openb::pods(name, &hosts)?;
        Ok(Self::new(name, &hosts, &pods))
    }

    /// From pods that are sorted by name.
    #[must_use]
    pub fn new(name: &str, hosts: &Hosts, pods: &[Pod]) -> Self {
        let mut classes: Vec<Class> = pods.iter().map(|pod| Class::of(&pod.demand)).collect();
        classes.sort_unstable();
        classes.dedup();
        let index = |class: &Class| classes.binary_search(class).unwrap_or(0);
        let mut count = vec![0_u32; classes.len()];
        let mut memory = vec![0_u64; classes.len()];
        for pod in pods {
            let at = index(&Class::of(&pod.demand));
            count[at] += 1;
            memory[at] += u64::from(pod.demand.memory_mib());
        }
        let mean = |(sum, &n): (u64, &u32)| u32::try_from(sum / u64::from(n)).unwrap_or(u32::MAX);
        Self {
            name: name.to_owned(),
            nodes: hosts
                .hosts
                .iter()
                .map(|host| Free::of(&host.node))
                .collect(),
            memory: memory.into_iter().zip(&count).map(mean).collect(),
            pods: pods
                .iter()
                .map(|pod| Arrival {
                    class: index(&Class::of(&pod.demand)),
                    memory: pod.demand.memory_mib(),
                })
                .collect(),
            classes: classes
                .iter()
                .zip(&count)
                .map(|(&class, &count)| Popular { class, count })
                .collect(),
        }
    }

    /// What a task of a class asks for.
    #[must_use]
    pub fn demand(&self, class: usize, memory: u32) -> Demand {
        let class = self.classes[class].class;
        let demand = match class.gpus {
            0 => Ok(Demand::cpu_only(class.cpu, memory)),
            1 => Demand::share(class.cpu, memory, class.blocks),
            gpus => Demand::whole(class.cpu, memory, gpus),
        };
        // Classes come from demands, so they are valid.
        let demand = demand.unwrap_or(Demand::cpu_only(class.cpu, memory));
        demand.on(class.kinds)
    }

    /// The GPUs of the cluster, in blocks.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.nodes.iter().map(|node| u64::from(node.total())).sum()
    }

    /// The run of a seed.
    #[must_use]
    pub fn experiment(&self, seed: u64) -> Experiment {
        let gpu = |arrival: &Arrival| u64::from(self.classes[arrival.class].class.total());
        let most = self.capacity() * DEMAND / 100;
        let mut prng = Prng::new(seed, &self.name, "arrivals");
        let mut arrivals = self.pods.clone();
        prng.shuffle(&mut arrivals);
        let mut demand: u64 = arrivals.iter().map(gpu).sum();
        while demand > most {
            let dropped = arrivals.remove(prng.below(arrivals.len()));
            demand -= gpu(&dropped);
        }
        loop {
            let drawn = self.pods[prng.below(self.pods.len())];
            demand += gpu(&drawn);
            if demand > most {
                break;
            }
            arrivals.push(drawn);
        }
        let mut nodes = self.nodes.clone();
        Prng::new(seed, &self.name, "nodes").shuffle(&mut nodes);
        Experiment {
            seed,
            nodes,
            arrivals,
        }
    }
}
