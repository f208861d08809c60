//! The score of a placement, 0 to 99, from the fragmentation that it removes.
//!
//! Published as `floor(100 * sigmoid((before - after) / 1000))` in thousandths of a GPU. How
//! coarse it is matters: rounded scores with a fixed order among equals place better than exact
//! ones. Level `k` starts where `(before - after) / 1000` reaches `ln(k / (100 - k))`, so the
//! integers below decide the same without floating point.

/// `ln(k / (100 - k)) * 2^48` for k from 51 to 99, rounded to the nearest integer.
const LOG_ODDS: [i64; 49] = [
    11_260_500_628_693,
    22_530_019_278_267,
    33_817_617_377_663,
    45_132_443_695_636,
    56_483_779_331_720,
    67_881_084_326_027,
    79_334_046_484_756,
    90_852_633_070_062,
    102_447_146_071_252,
    114_128_281_861_729,
    125_907_196_156_232,
    137_795_575_320_326,
    149_805_715_254_543,
    161_950_609_286_877,
    174_244_046_769_125,
    186_700_724_397_867,
    199_336_372_686_129,
    212_167_900_519_041,
    225_213_561_364_803,
    238_493_145_519_477,
    252_028_203_791_854,
    265_842_309_352_587,
    279_961_366_174_568,
    294_413_974_710_126,
    309_231_868_366_897,
    324_450_438_214_757,
    340_109_368_546_833,
    356_253_412_956_881,
    372_933_350_258_311,
    390_207_173_010_335,
    408_141_580_380_765,
    426_813_874_255_144,
    446_314_397_133_105,
    466_749_709_242_935,
    488_246_791_667_647,
    510_958_701_082_589,
    535_072_323_034_730,
    560_819_234_203_784,
    588_491_301_567_444,
    618_463_736_733_793,
    651_230_337_808_078,
    687_459_574_899_887,
    728_088_322_887_670,
    774_488_338_157_030,
    828_785_893_086_822,
    894_542_627_882_399,
    978_434_797_765_325,
    1_095_450_027_772_747,
    1_293_411_252_799_307,
];

/// The thousandths of a GPU that one step of the sigmoid's argument stands for, in blocks.
const UNIT_BLOCKS: i128 = 100;

/// The levels for one sum of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Levels {
    /// The least difference, in blocks times weight, of levels 1 to 99.
    starts: [i64; 99],
    /// For each bucket of differences the level of its least one and where the next starts.
    buckets: Vec<(u8, i64)>,
    /// Bits of a difference that do not choose the bucket.
    shift: u32,
}

impl Levels {
    /// The levels where differences are in blocks times this sum of weights.
    pub(super) fn new(total: u32) -> Self {
        let scale = UNIT_BLOCKS.saturating_mul(total.max(1).into());
        let start = |log_odds: i64| {
            // The ceiling of a product, as a shift of its negative.
            let negative = scale.saturating_mul(log_odds.into()).saturating_neg() >> 48;
            i64::try_from(negative.saturating_neg()).unwrap_or(i64::MAX)
        };
        let above = LOG_ODDS.iter().map(|log_odds| start(*log_odds));
        let below = LOG_ODDS
            .iter()
            .rev()
            .map(|log_odds| start(log_odds.saturating_neg()));
        let mut starts = [0; 99];
        for (slot, value) in starts.iter_mut().zip(below.chain([0]).chain(above)) {
            *slot = value;
        }
        let mut levels = Self {
            starts,
            buckets: Vec::new(),
            // Neighbouring levels are at least 4 * total apart (around zero), so a bucket of
            // at most that width has at most one start inside.
            shift: total.max(1).saturating_mul(4).ilog2(),
        };
        let low = levels.bucket(levels.low());
        let high = levels.bucket(starts.last().copied().unwrap_or(0));
        levels.buckets = (0..=high.saturating_sub(low))
            .map(|bucket| {
                let least = bucket.saturating_add(low) << levels.shift;
                let level = levels.search(least);
                let next = starts.get(usize::from(level)).copied().unwrap_or(i64::MAX);
                (level, next)
            })
            .collect();
        levels
    }

    /// The level of a difference of fragmentation, found by search.
    pub(super) fn search(&self, difference: i64) -> u8 {
        let level = self.starts.partition_point(|start| *start <= difference);
        u8::try_from(level).unwrap_or(99)
    }

    /// The same, found in a table.
    #[inline]
    pub(super) fn level(&self, difference: i64) -> u8 {
        let bucket = self
            .bucket(difference.max(self.low()))
            .saturating_sub(self.bucket(self.low()));
        let bucket = usize::try_from(bucket).unwrap_or(0);
        match self.buckets.get(bucket) {
            Some((level, next)) => level.saturating_add((difference >= *next).into()),
            None => 99,
        }
    }

    /// A difference of level 0 below which there is no need for buckets.
    fn low(&self) -> i64 {
        self.starts.first().copied().unwrap_or(0).saturating_sub(1)
    }

    fn bucket(&self, difference: i64) -> i64 {
        difference >> self.shift
    }
}
