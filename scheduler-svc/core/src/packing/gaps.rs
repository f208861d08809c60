//! The used GPUs that have room, by how much.
#![expect(
    clippy::indexing_slicing,
    reason = "rooms are below the size of the table"
)]

use super::{Free, WHOLE};

/// How far from half a GPU a share may be to count as half.
const HALF_WITHIN: u8 = 6;

/// What is free on used GPUs: node and GPU, by the room.
pub(super) struct Gaps {
    pub(super) by_room: Vec<Vec<(usize, usize)>>,
}

impl Gaps {
    pub(super) fn new(nodes: &[Free]) -> Self {
        let mut gaps = Self {
            by_room: vec![Vec::new(); usize::from(WHOLE)],
        };
        for (index, node) in nodes.iter().enumerate() {
            for (gpu, &free) in node.gpus().iter().enumerate() {
                if free < WHOLE {
                    gaps.put(index, gpu, free);
                }
            }
        }
        gaps
    }

    /// Takes away up to `most` gaps of about half a GPU, and returns their nodes.
    pub(super) fn hide(&mut self, most: u64) -> Vec<usize> {
        let mut hidden = Vec::new();
        for room in (1..).zip(&mut self.by_room[1..]) {
            let (size, list) = room;
            while is_half(size) && (hidden.len() as u64) < most {
                let Some((node, _)) = list.pop() else { break };
                hidden.push(node);
            }
        }
        hidden
    }

    pub(super) fn put(&mut self, node: usize, gpu: usize, room: u8) {
        if room > 0 {
            self.by_room[usize::from(room)].push((node, gpu));
        }
    }

    pub(super) fn rooms(&self) -> Vec<(u8, u32)> {
        (0_u8..)
            .zip(&self.by_room)
            .map(|(room, list)| (room, u32::try_from(list.len()).unwrap_or(u32::MAX)))
            .collect()
    }
}

/// Whether two shares of the size, or a share and a gap of it, make a GPU.
pub(super) fn is_half(blocks: u8) -> bool {
    blocks.abs_diff(WHOLE / 2) <= HALF_WITHIN
}

/// Of gaps with the same room the one with the highest key is taken: most processor time per
/// idle GPU, of nodes without an idle GPU any.
pub(super) fn room_key(cpu: u32, idle: u32) -> u32 {
    (cpu / 100)
        .checked_div(idle)
        .map_or(900, |key| key.min(900))
}
