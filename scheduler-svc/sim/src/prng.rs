//! The random numbers of the experiments: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), so
//! that a seed means the same everywhere and for ever.

/// A generator.
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// The stream of a purpose, for a seed and a workload: workloads of one seed have nothing
    /// in common. The names go in by FNV-1a.
    #[must_use]
    pub fn new(seed: u64, workload: &str, purpose: &str) -> Self {
        let mut state = 0xCBF2_9CE4_8422_2325 ^ seed;
        for byte in workload.bytes().chain([0]).chain(purpose.bytes()) {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        let mut prng = Self(state);
        prng.next_u64();
        prng
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, each equally likely; zero when `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        if bound == 0 {
            return 0;
        }
        // Those above the last whole multiple would make low numbers likelier.
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let bits = self.next_u64();
            if bits < limit {
                return usize::try_from(bits % bound).unwrap_or(0);
            }
        }
    }

    /// Shuffles: Fisher and Yates, from the end.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}
