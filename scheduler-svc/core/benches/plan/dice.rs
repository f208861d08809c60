//! Random work, the same for every run.

use scheduler_core::{cluster::Demand, timeline::Ask};

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`.
    pub(crate) fn roll(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed.
    pub(crate) fn wait(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }

    /// How long a task with GPUs ran in the openb trace (cluster-trace-gpu-v2023), in seconds.
    pub(crate) fn length(&mut self) -> u64 {
        LENGTHS[self.roll(LENGTHS.len() as u64) as usize]
    }

    /// How many GPUs, as whole GPUs of one node or as a gang of two nodes.
    pub(crate) fn ask(&mut self) -> (u64, Ask) {
        let whole = |gpus| Demand::whole(1000, 1024, gpus).expect("1 to 16 GPUs");
        match self.roll(20) {
            0..=10 => (1, Ask::one(whole(1))),
            11..=14 => (2, Ask::one(whole(2))),
            15..=16 => (4, Ask::one(whole(4))),
            17..=18 => (8, Ask::one(whole(8))),
            _ => (16, Ask::gang(whole(8), 2)),
        }
    }
}

/// 63 of the 64-quantiles of the run times of the 7,064 tasks with GPUs in the openb trace;
/// without the last, whose few jobs of two days would be most of the work.
const LENGTHS: [u64; 63] = [
    7, 25, 36, 46, 55, 65, 75, 84, 93, 104, 113, 124, 134, 145, 155, 166, 182, 194, 201, 211, 222,
    237, 251, 267, 285, 306, 333, 362, 402, 442, 488, 538, 566, 602, 662, 720, 783, 841, 911, 952,
    1027, 1124, 1199, 1282, 1381, 1515, 1683, 1867, 2077, 2268, 2530, 2879, 3254, 3660, 4030, 4332,
    4903, 6022, 7735, 10141, 13204, 20410, 38852,
];

/// The mean of [`LENGTHS`], in seconds.
pub(crate) fn mean_length() -> f64 {
    LENGTHS.iter().sum::<u64>() as f64 / LENGTHS.len() as f64
}
