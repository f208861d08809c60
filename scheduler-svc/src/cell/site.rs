//! A node of the cell: its GPUs with their numbered blocks, and what the core sees of it.

use cnlab_model::{BLOCKS_PER_GPU, Blocks, id::NodeId};
use scheduler_core::{
    cluster::{GpuSet, Kind, MAX_GPUS, Node as CoreNode, NodeIx, Place},
    profile::{Profile, vram_bytes},
};

use crate::store::record::{Gpu, Node, Slice};

/// Memory or processors of a machine that sets no limit.
const ENOUGH: u32 = u32::MAX / 4;
const MIB: u64 = 1 << 20;

/// GPUs of one family in one node: what the core takes for a node.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    pub(super) ix: NodeIx,
    pub(super) family: String,
    /// Positions in [`Site::gpus`], in the order in which the core numbers them.
    pub(super) gpus: Vec<usize>,
}

/// A node.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) node: Node,
    pub(super) gpus: Vec<Gpu>,
    pub(super) shelves: Vec<Shelf>,
    /// Whether it was heard of lately.
    pub(super) answers: bool,
}

/// Positions of GPUs that share a shelf: those that are there, by family, sixteen at most.
pub(super) fn shelves(gpus: &[Gpu]) -> Vec<(String, Vec<usize>)> {
    let mut shelves: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, gpu) in gpus.iter().enumerate().filter(|(_, gpu)| gpu.present) {
        let with_room = shelves
            .iter_mut()
            .find(|(family, on_it)| *family == gpu.family && on_it.len() < MAX_GPUS);
        match with_room {
            Some((_, on_it)) => on_it.push(at),
            None => shelves.push((gpu.family.clone(), vec![at])),
        }
    }
    shelves
}

/// What the core is told of a shelf.
///
/// A profile's memory and processors are ceilings: a machine that has less than its GPUs would
/// need for such profiles gives what it has, and its GPUs alone say how much fits on it. One
/// that has more, or whose profiles ask for more, is filled up to what it has. A simulated
/// GPU's machine is no measure of anything.
pub(super) fn core_node(
    kind: Kind,
    node: &Node,
    gpus: &[&Gpu],
    profiles: &[Profile],
) -> Option<CoreNode> {
    let count = u8::try_from(gpus.len()).ok()?;
    let simulated = gpus.iter().any(|gpu| gpu.simulated);
    let filled = |of: fn(&Profile) -> u64| {
        let family = gpus.first().map(|gpu| gpu.family.as_str());
        let sizes = profiles
            .iter()
            .filter(|profile| family == Some(profile.gpu_type.as_str()));
        let per_gpu = sizes.map(|profile| {
            let whole = of(profile).saturating_mul(u64::from(BLOCKS_PER_GPU));
            whole.div_ceil(u64::from(profile.percent.max(1)))
        });
        per_gpu.max().unwrap_or(0).saturating_mul(u64::from(count))
    };
    let total = |reported: u64, filled: u64| {
        if simulated || reported == 0 {
            ENOUGH
        } else {
            u32::try_from(reported.max(filled))
                .unwrap_or(ENOUGH)
                .min(ENOUGH)
        }
    };
    let cpu = total(
        node.cpu_milli.into(),
        filled(|profile| profile.cpu_milli.into()),
    );
    let memory = total(
        node.memory_bytes / MIB,
        filled(|profile| profile.memory_bytes.div_ceil(MIB)),
    );
    CoreNode::new(kind, cpu, memory, count).ok()
}

impl Site {
    /// Takes so many blocks of each GPU at a place of the core, or nothing.
    pub(super) fn take(&mut self, place: Place, blocks: u8) -> Option<Vec<Slice>> {
        let shelf = self.shelves.iter().find(|shelf| shelf.ix == place.node)?;
        let slice = |position: usize| {
            let gpu = self.gpus.get(*shelf.gpus.get(position)?)?;
            Some(Slice {
                gpu_uuid: gpu.uuid.clone(),
                blocks: free(gpu).lowest(blocks)?,
                vram_bytes: vram_bytes(gpu.memory_bytes, blocks),
            })
        };
        let slices: Vec<Slice> = place.gpus.iter().map(slice).collect::<Option<_>>()?;
        for slice in &slices {
            if let Some(gpu) = self.gpu_mut(&slice.gpu_uuid) {
                gpu.taken = gpu.taken.union(slice.blocks);
            }
        }
        Some(slices)
    }

    /// Nobody has these slices any more.
    pub(super) fn give_back(&mut self, slices: &[Slice]) {
        for slice in slices {
            if let Some(gpu) = self.gpu_mut(&slice.gpu_uuid) {
                gpu.taken = gpu.taken.minus(slice.blocks);
            }
        }
    }

    /// The place of all these slices in the core.
    pub(super) fn place_of_all(&self, slices: &[Slice]) -> Option<Place> {
        let mut places = slices.iter().map(|slice| self.place_of(&slice.gpu_uuid));
        let mut all = places.next()??;
        for place in places {
            let place = place.filter(|place| place.node == all.node)?;
            all.gpus = place.gpus.iter().fold(all.gpus, GpuSet::with);
        }
        Some(all)
    }

    /// The most GPUs of a family that the core can give together, of those that `counts`.
    pub(super) fn together(&self, family: &str, counts: impl Fn(&Gpu) -> bool) -> u8 {
        let of_family = self.shelves.iter().filter(|shelf| shelf.family == family);
        let count = |shelf: &Shelf| {
            let gpus = shelf.gpus.iter().filter_map(|at| self.gpus.get(*at));
            gpus.filter(|gpu| counts(gpu)).count()
        };
        let most = of_family.map(count).max().unwrap_or(0);
        u8::try_from(most).unwrap_or(u8::MAX)
    }

    /// The place of a GPU in the core.
    pub(super) fn place_of(&self, uuid: &str) -> Option<Place> {
        self.shelves.iter().find_map(|shelf| {
            let of = |at: &usize| self.gpus.get(*at).is_some_and(|gpu| gpu.uuid == uuid);
            let position = shelf.gpus.iter().position(of)?;
            Some(Place {
                node: shelf.ix,
                gpus: GpuSet::one(position),
            })
        })
    }

    pub(super) fn gpu_mut(&mut self, uuid: &str) -> Option<&mut Gpu> {
        self.gpus.iter_mut().find(|gpu| gpu.uuid == uuid)
    }

    pub(super) fn id(&self) -> NodeId {
        self.node.id
    }

    /// Whether it can get new work: it answers, and no operator has cordoned it.
    pub(super) fn is_open(&self) -> bool {
        self.answers && self.node.cordon.is_none()
    }

    /// Whether a report of it describes the same GPUs.
    pub(super) fn has_same_gpus(&self, reported: &[Gpu]) -> bool {
        let there: Vec<&Gpu> = self.gpus.iter().filter(|gpu| gpu.present).collect();
        there.len() == reported.len()
            && there.iter().all(|mine| {
                reported.iter().any(|gpu| {
                    gpu.uuid == mine.uuid
                        && gpu.family == mine.family
                        && gpu.memory_bytes == mine.memory_bytes
                        && gpu.simulated == mine.simulated
                })
            })
    }
}

/// The blocks of a GPU that nobody has.
pub(super) fn free(gpu: &Gpu) -> Blocks {
    Blocks::ALL.minus(gpu.taken)
}
