//! MIG: how some NVIDIA GPUs are cut in hardware, and which cuts go together.
//!
//! A GPU has *compute slices* and *memory slices*, seven and eight on the large products, four
//! and four on the A30. An instance of a [`Profile`] takes a number of compute slices, no matter
//! which, and neighbouring memory slices that begin at one of few start indexes. A [`Layout`]
//! is what is placed on one GPU.
//!
//! **Invariants**: a figure that nobody has seen in the output of a driver is absent, never
//! computed from others; [`Layout`] holds legal combinations only.
//!
//! # Sources
//!
//! Start indexes, sizes and `nvidia-smi` ids: `nvidia-smi mig -lgipp` of A30, A100 40 and 80 GB
//! and H100 NVL; for the other products NVIDIA's *MIG User Guide*, "Supported MIG Profiles",
//! gives the same fractions. Names, multiprocessors and memory: `nvidia-smi mig -lgip` as
//! published in NVIDIA/mig-parted (issue 120 for the H200, pull requests 166 and 187 for the
//! B200), `pkg/nvml/mock/gpus/{a30,a100}.go` of NVIDIA/go-nvml, and field notes for H100 80,
//! 94 and 96 GB. The mocks of go-nvml for H100, H200 and B200 disagree with real output and
//! were not used. A driver may say something else, so a node reads its own at start.

mod layout;

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use layout::{Instance, Layout, Refused};

use crate::gpu::{BLOCKS_PER_GPU, Blocks, family};

/// How many 1 % blocks an instance has for each of its compute slices.
///
/// A large product has seven of them, and 14 is one hundred divided by seven, rounded down. A
/// MIG block is therefore 1/14 of a `1g` instance, 1/28 of a `2g` one and so on: a little less
/// than 1 % of the GPU, because MIG leaves some of it unused. The A30, which has four compute
/// slices, keeps the 14, so that the largest number of tenants of a `1g` instance is one rule.
pub const BLOCKS_PER_COMPUTE_SLICE: u8 = 14;

/// A product that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Product {
    /// A30 24 GB.
    A30,
    /// A100 40 GB.
    A100With40,
    /// A100 80 GB.
    A100With80,
    /// H100 80 GB.
    H100With80,
    /// H100 NVL, 94 GB.
    H100With94,
    /// H100 96 GB, such as the one of a GH200.
    H100With96,
    /// H200 141 GB.
    H200,
    /// B200 180 GB.
    B200,
}

/// In what parts a GPU can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grid {
    /// Four compute slices, four memory slices: the A30.
    Four,
    /// Seven compute slices, eight memory slices: every other product.
    Seven,
}

/// The shape of an instance: compute slices, and whatever else tells profiles of as many apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// One compute slice, one memory slice.
    One,
    /// As [`Shape::One`], with the media engines (`+me`).
    OneMedia,
    /// One compute slice, two memory slices.
    OneDouble,
    /// Two compute slices, two memory slices.
    Two,
    /// As [`Shape::Two`], with the media engines (`+me`).
    TwoMedia,
    /// Three compute slices, four memory slices.
    Three,
    /// Four compute slices, four memory slices; all of an A30.
    Four,
    /// Seven compute slices, eight memory slices: all of the GPU.
    Seven,
}

/// What an instance of one shape is on one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its shape.
    pub shape: Shape,
    /// Its name in the driver, such as `1g.10gb`.
    pub name: &'static str,
    /// Its GPU instance profile id in `nvidia-smi` (NVML counts differently).
    pub id: u8,
    /// How many of them fit on one GPU.
    pub most: u8,
    /// Multiprocessors, where seen.
    pub multiprocessors: Option<u16>,
    /// Memory in MiB, rounded down, where seen.
    pub memory_mib: Option<u32>,
}

impl Shape {
    /// Every shape, smallest first: none has less compute or less memory than one before it.
    pub const ALL: [Self; 8] = [
        Self::One,
        Self::OneMedia,
        Self::OneDouble,
        Self::Two,
        Self::TwoMedia,
        Self::Three,
        Self::Four,
        Self::Seven,
    ];

    /// Compute slices.
    #[must_use]
    pub const fn compute(self) -> u8 {
        match self {
            Self::One | Self::OneMedia | Self::OneDouble => 1,
            Self::Two | Self::TwoMedia => 2,
            Self::Three => 3,
            Self::Four => 4,
            Self::Seven => 7,
        }
    }

    /// Memory slices.
    #[must_use]
    pub const fn memory(self) -> u8 {
        match self {
            Self::One | Self::OneMedia => 1,
            Self::OneDouble | Self::Two | Self::TwoMedia => 2,
            Self::Three | Self::Four => 4,
            Self::Seven => 8,
        }
    }

    /// Whether it has the media engines that only one instance of a GPU can have.
    #[must_use]
    pub const fn media(self) -> bool {
        matches!(self, Self::OneMedia | Self::TwoMedia)
    }

    /// The shape that takes the same slices without the media engines.
    #[must_use]
    pub const fn plain(self) -> Self {
        match self {
            Self::OneMedia => Self::One,
            Self::TwoMedia => Self::Two,
            Self::One | Self::OneDouble | Self::Two | Self::Three | Self::Four | Self::Seven => {
                self
            }
        }
    }

    /// How many 1 % blocks an instance hosts: 14 for each compute slice.
    #[must_use]
    pub const fn blocks(self) -> u8 {
        self.compute() * BLOCKS_PER_COMPUTE_SLICE
    }
}

impl Grid {
    /// Compute slices of a GPU.
    #[must_use]
    pub const fn compute(self) -> u8 {
        match self {
            Self::Four => 4,
            Self::Seven => 7,
        }
    }

    /// Memory slices of a GPU.
    #[must_use]
    pub const fn memory(self) -> u8 {
        match self {
            Self::Four => 4,
            Self::Seven => 8,
        }
    }

    /// The start indexes that the hardware has for a shape; none where it lacks the shape.
    #[must_use]
    pub const fn starts(self, shape: Shape) -> &'static [u8] {
        match (self, shape) {
            (Self::Seven, Shape::One | Shape::OneMedia) => &[0, 1, 2, 3, 4, 5, 6],
            (Self::Seven, Shape::OneDouble) => &[0, 2, 4, 6],
            (Self::Seven, Shape::Two) => &[0, 2, 4],
            (Self::Seven, Shape::Three) => &[0, 4],
            (Self::Seven, Shape::Four | Shape::Seven) | (Self::Four, Shape::Four) => &[0],
            (Self::Four, Shape::One | Shape::OneMedia) => &[0, 1, 2, 3],
            (Self::Four, Shape::Two | Shape::TwoMedia) => &[0, 2],
            (Self::Seven, Shape::TwoMedia)
            | (Self::Four, Shape::OneDouble | Shape::Three | Shape::Seven) => &[],
        }
    }

    /// Which of the hundred numbered blocks of a GPU the memory slices
    /// `start .. start + size` stand for.
    ///
    /// The slices share the hundred without overlap and without rest (12 or 13 each of eight,
    /// 25 each of four), so that instances and blocks can be drawn on one scale.
    #[must_use]
    pub fn numbered(self, start: u8, size: u8) -> Blocks {
        let slices = u16::from(self.memory());
        let edge = |slice: u16| slice.min(slices) * u16::from(BLOCKS_PER_GPU) / slices;
        let first = edge(u16::from(start));
        let count = edge(u16::from(start) + u16::from(size)) - first;
        // Both are at most 100.
        match (u8::try_from(first), u8::try_from(count)) {
            (Ok(first), Ok(count)) => Blocks::range(first, count).unwrap_or(Blocks::EMPTY),
            _ => Blocks::EMPTY,
        }
    }
}

/// One profile of a table: what stands in the driver's list.
const fn row(
    shape: Shape,
    (id, most): (u8, u8),
    name: &'static str,
    multiprocessors: Option<u16>,
    memory_mib: Option<u32>,
) -> Profile {
    Profile {
        shape,
        name,
        id,
        most,
        multiprocessors,
        memory_mib,
    }
}

/// MiB, rounded down, from GiB with two decimals, as `nvidia-smi` prints them.
const fn gib(whole: u32, hundredths: u32) -> Option<u32> {
    Some(whole * 1024 + hundredths * 1024 / 100)
}

/// The seven profiles of a product with seven compute slices: names without the suffix of the
/// media engines, multiprocessors and MiB, in the order 1g, 1g with twice the memory, 2g, 3g,
/// 4g, 7g. In every list that was seen the figures of `1g+me` are those of `1g`.
const fn seven(
    media: &'static str,
    rows: [(&'static str, Option<u16>, Option<u32>); 6],
) -> [Profile; 7] {
    let [one, double, two, three, four, all] = rows;
    [
        row(Shape::One, (19, 7), one.0, one.1, one.2),
        row(Shape::OneMedia, (20, 1), media, one.1, one.2),
        row(Shape::OneDouble, (15, 4), double.0, double.1, double.2),
        row(Shape::Two, (14, 3), two.0, two.1, two.2),
        row(Shape::Three, (9, 2), three.0, three.1, three.2),
        row(Shape::Four, (5, 1), four.0, four.1, four.2),
        row(Shape::Seven, (0, 1), all.0, all.1, all.2),
    ]
}

static A30: [Profile; 5] = [
    row(Shape::One, (14, 4), "1g.6gb", Some(14), gib(5, 81)),
    row(Shape::OneMedia, (21, 1), "1g.6gb+me", Some(14), gib(5, 81)),
    row(Shape::Two, (5, 2), "2g.12gb", Some(28), gib(11, 69)),
    row(Shape::TwoMedia, (6, 1), "2g.12gb+me", Some(28), gib(11, 69)),
    row(Shape::Four, (0, 1), "4g.24gb", Some(56), gib(23, 44)),
];

static A100_40: [Profile; 7] = seven(
    "1g.5gb+me",
    [
        ("1g.5gb", Some(14), Some(4_864)),
        ("1g.10gb", Some(14), Some(9_856)),
        ("2g.10gb", Some(28), Some(9_856)),
        ("3g.20gb", Some(42), Some(19_968)),
        ("4g.20gb", Some(56), Some(19_968)),
        ("7g.40gb", Some(98), Some(40_192)),
    ],
);

static A100_80: [Profile; 7] = seven(
    "1g.10gb+me",
    [
        ("1g.10gb", Some(14), Some(9_856)),
        ("1g.20gb", Some(14), Some(19_968)),
        ("2g.20gb", Some(28), Some(19_968)),
        ("3g.40gb", Some(42), Some(40_192)),
        ("4g.40gb", Some(56), Some(40_192)),
        ("7g.80gb", Some(98), Some(80_384)),
    ],
);

static H100_80: [Profile; 7] = seven(
    "1g.10gb+me",
    [
        ("1g.10gb", Some(16), gib(9, 75)),
        ("1g.20gb", Some(26), gib(19, 62)),
        ("2g.20gb", Some(32), gib(19, 62)),
        ("3g.40gb", Some(60), gib(39, 50)),
        ("4g.40gb", Some(64), gib(39, 50)),
        ("7g.80gb", Some(132), gib(79, 25)),
    ],
);

static H100_94: [Profile; 7] = seven(
    "1g.12gb+me",
    [
        ("1g.12gb", Some(16), gib(10, 75)),
        ("1g.24gb", Some(26), gib(21, 62)),
        ("2g.24gb", Some(32), gib(21, 62)),
        ("3g.47gb", Some(60), gib(46, 38)),
        ("4g.47gb", Some(64), gib(46, 38)),
        ("7g.94gb", Some(132), gib(93, 12)),
    ],
);

static H100_96: [Profile; 7] = seven(
    "1g.12gb+me",
    [
        ("1g.12gb", Some(16), gib(11, 0)),
        ("1g.24gb", Some(26), gib(23, 0)),
        ("2g.24gb", Some(32), gib(23, 0)),
        ("3g.48gb", Some(60), gib(46, 50)),
        ("4g.48gb", Some(64), gib(46, 50)),
        ("7g.96gb", Some(132), gib(93, 0)),
    ],
);

static H200: [Profile; 7] = seven(
    "1g.18gb+me",
    [
        ("1g.18gb", Some(16), gib(16, 0)),
        ("1g.35gb", Some(26), gib(32, 25)),
        ("2g.35gb", Some(32), gib(32, 25)),
        ("3g.71gb", Some(60), gib(69, 50)),
        ("4g.71gb", Some(64), gib(69, 50)),
        ("7g.141gb", Some(132), gib(139, 75)),
    ],
);

// One driver says 22.00 GiB for 1g.23gb, a later one 20.50: the smaller is safe on both. No
// list was seen whole, so the three largest lack their figures.
static B200: [Profile; 7] = seven(
    "1g.23gb+me",
    [
        ("1g.23gb", Some(18), gib(20, 50)),
        ("1g.45gb", Some(30), gib(44, 25)),
        ("2g.45gb", Some(36), gib(44, 25)),
        ("3g.90gb", None, None),
        ("4g.90gb", None, None),
        ("7g.180gb", None, None),
    ],
);

impl Product {
    /// Every product whose cuts are known.
    pub const ALL: [Self; 8] = [
        Self::A30,
        Self::A100With40,
        Self::A100With80,
        Self::H100With80,
        Self::H100With94,
        Self::H100With96,
        Self::H200,
        Self::B200,
    ];

    /// Its short name and family, and the MiB that GPUs of it report. The ranges hold what
    /// drivers say (some of the memory may be theirs) and the round number on the box.
    const fn facts(self) -> (&'static str, &'static [&'static str], RangeInclusive<u64>) {
        match self {
            Self::A30 => ("A30-24GB", &["A30"], 23_000..=24_576),
            Self::A100With40 => ("A100-40GB", &["A100"], 38_000..=40_960),
            Self::A100With80 => ("A100-80GB", &["A100"], 76_000..=81_920),
            Self::H100With80 => ("H100-80GB", &["H100"], 76_000..=81_920),
            Self::H100With94 => ("H100-94GB", &["H100"], 93_000..=96_256),
            Self::H100With96 => ("H100-96GB", &["H100", "GH200"], 96_257..=98_304),
            Self::H200 => ("H200-141GB", &["H200"], 134_000..=144_384),
            Self::B200 => ("B200-180GB", &["B200"], 171_000..=184_320),
        }
    }

    /// The product from the driver's name for it and the memory that it reports.
    ///
    /// `None` is a GPU without MIG, or one whose cuts nobody wrote down.
    #[must_use]
    pub fn of(name: &str, memory_bytes: u64) -> Option<Self> {
        let family = family(name);
        let mib = memory_bytes >> 20;
        Self::ALL.into_iter().find(|product| {
            let (_, families, memory) = product.facts();
            families.contains(&family.as_str()) && memory.contains(&mib)
        })
    }

    /// In what parts it can be cut.
    #[must_use]
    pub const fn grid(self) -> Grid {
        match self {
            Self::A30 => Grid::Four,
            Self::A100With40
            | Self::A100With80
            | Self::H100With80
            | Self::H100With94
            | Self::H100With96
            | Self::H200
            | Self::B200 => Grid::Seven,
        }
    }

    /// Its profiles, smallest first.
    #[must_use]
    pub fn profiles(self) -> &'static [Profile] {
        match self {
            Self::A30 => &A30,
            Self::A100With40 => &A100_40,
            Self::A100With80 => &A100_80,
            Self::H100With80 => &H100_80,
            Self::H100With94 => &H100_94,
            Self::H100With96 => &H100_96,
            Self::H200 => &H200,
            Self::B200 => &B200,
        }
    }

    /// The profile of this shape.
    #[must_use]
    pub fn profile(self, shape: Shape) -> Option<&'static Profile> {
        self.profiles()
            .iter()
            .find(|profile| profile.shape == shape)
    }

    /// The profile of this name, in any case.
    #[must_use]
    pub fn named(self, name: &str) -> Option<&'static Profile> {
        self.profiles()
            .iter()
            .find(|profile| profile.name.eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Product {
    /// Such as `H100-80GB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().0)
    }
}

/// A text that names no product with MIG.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no GPU whose MIG profiles are known")]
pub struct UnknownProduct(String);

impl FromStr for Product {
    type Err = UnknownProduct;

    fn from_str(text: &str) -> Result<Self, UnknownProduct> {
        Self::ALL
            .into_iter()
            .find(|product| product.facts().0 == text)
            .ok_or_else(|| UnknownProduct(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for Product {
    type Error = UnknownProduct;

    fn try_from(text: String) -> Result<Self, UnknownProduct> {
        text.parse()
    }
}

impl From<Product> for String {
    fn from(product: Product) -> Self {
        product.to_string()
    }
}

/// Whether a GPU can be cut now, as its driver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It has no MIG.
    Absent,
    /// It has MIG, switched off.
    Off,
    /// MIG was switched on and waits for a reset of the GPU.
    Pending,
    /// Instances can be made.
    On,
}

/// Why MIG is not offered on a GPU (G-09).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// The GPU has no MIG.
    #[error("{0} has no MIG")]
    Absent(String),
    /// It has MIG, but nobody wrote down how it can be cut.
    #[error("the MIG profiles of {0} are not known")]
    Unknown(String),
    /// Its mode is off.
    #[error("MIG mode is off on this {0}; an administrator can switch it on while the GPU is idle")]
    Off(Product),
    /// It waits for a reset.
    #[error("MIG mode of this {0} begins with the next reset of the GPU")]
    Pending(Product),
}

/// The product of a GPU on which MIG can be offered, or why it cannot.
///
/// # Errors
///
/// The reason to show, in the words of its `Display`.
pub fn available(name: &str, memory_bytes: u64, mode: Mode) -> Result<Product, Unavailable> {
    match (mode, Product::of(name, memory_bytes)) {
        (Mode::Absent, _) => Err(Unavailable::Absent(name.to_owned())),
        (Mode::Off | Mode::Pending | Mode::On, None) => Err(Unavailable::Unknown(name.to_owned())),
        (Mode::Off, Some(product)) => Err(Unavailable::Off(product)),
        (Mode::Pending, Some(product)) => Err(Unavailable::Pending(product)),
        (Mode::On, Some(product)) => Ok(product),
    }
}

#[cfg(test)]
mod tests;
