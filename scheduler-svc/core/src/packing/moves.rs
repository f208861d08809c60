//! Finds one task that can go elsewhere, so that another fits.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "nodes are numbered by one list; blocks of a GPU stay below 256"
)]

use std::collections::BTreeMap;

use super::plan::Slot;
use super::{Class, Free};
use crate::cluster::GpuSet;

/// A task that is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The caller's number for it.
    pub task: usize,
    /// Its class.
    pub class: Class,
    /// Memory, in MiB.
    pub memory: u32,
    /// Its GPUs.
    pub gpus: GpuSet,
}

/// A task that goes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// The caller's number for it.
    pub task: usize,
    /// The node that it leaves.
    pub from: usize,
    /// Its place in the list of those that the node holds.
    pub place: usize,
    /// Where it goes.
    pub to: Slot,
}

/// A place for a task that moves, and what is left of the GPU there, in blocks.
#[derive(Debug, Clone, Copy)]
struct Target {
    left: u32,
    node: usize,
    gpu: Option<usize>,
}

/// The relocation of one task, of at most one GPU, that makes room for a task of a class: the
/// one that leaves least of the GPU that it goes to.
#[must_use]
pub fn find(nodes: &[Free], held: &[Vec<Held>], class: &Class, memory: u32) -> Option<Relocation> {
    let mut targets: BTreeMap<(Class, u32), Vec<Target>> = BTreeMap::new();
    let mut best: Option<(u32, Relocation)> = None;
    for (from, node) in nodes.iter().enumerate() {
        if !node.eligible || !class.kinds.admits(node.kind) {
            continue;
        }
        for (place, victim) in held[from].iter().enumerate() {
            if victim.class.gpus > 1 || victim.class.total() >= class.total() {
                continue;
            }
            let freed = node.give(&victim.class, victim.memory, victim.gpus);
            if freed.memory < memory || !freed.fits(class) {
                continue;
            }
            let listed = targets
                .entry((victim.class, victim.memory))
                .or_insert_with(|| targets_of(nodes, victim));
            // Not where it makes the room: neither the same GPU nor, when processors are what
            // is short, the same node.
            let Some(target) = listed.iter().find(|target| target.node != from) else {
                continue;
            };
            let crowded = u32::from(nodes[target.node].idle()) * 8_000 + victim.class.cpu
                > nodes[target.node].cpu;
            let cost = target.left + if crowded { 30 } else { 0 };
            if best.is_none_or(|(least, _)| cost < least) {
                let gpus = target.gpu.map_or(GpuSet::EMPTY, GpuSet::one);
                best = Some((
                    cost,
                    Relocation {
                        task: victim.task,
                        from,
                        place,
                        to: Slot {
                            node: target.node,
                            gpus,
                        },
                    },
                ));
            }
        }
    }
    best.map(|(_, relocation)| relocation)
}

/// The two best targets on different nodes; never an idle GPU.
fn targets_of(nodes: &[Free], victim: &Held) -> Vec<Target> {
    let mut best: Vec<Target> = Vec::new();
    let blocks = victim.class.blocks;
    for (index, node) in nodes.iter().enumerate() {
        if node.memory < victim.memory || !node.fits(&victim.class) {
            continue;
        }
        let target = if victim.class.gpus == 0 {
            // Processor time is worth most beside idle GPUs.
            let left = if node.idle() > 0 { 50 } else { 0 };
            Some(Target {
                left,
                node: index,
                gpu: None,
            })
        } else {
            node.gpus()
                .iter()
                .enumerate()
                .filter(|&(_, &free)| free >= blocks && free < super::WHOLE)
                .min_by_key(|&(_, &free)| free)
                .map(|(gpu, &free)| Target {
                    left: u32::from(free - blocks),
                    node: index,
                    gpu: Some(gpu),
                })
        };
        if let Some(target) = target {
            let at = best.partition_point(|other| other.left <= target.left);
            if at < 2 {
                best.insert(at, target);
                best.truncate(2);
            }
        }
    }
    best
}
