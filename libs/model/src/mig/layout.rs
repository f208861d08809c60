//! What is placed on one GPU, and what may be added.

use std::fmt;

use thiserror::Error;

use super::{Grid, Shape};

/// An instance at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Its shape.
    pub shape: Shape,
    /// Its first memory slice.
    pub start: u8,
}

/// Why an instance cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// The hardware has no such shape, or not at this start index.
    #[error("the hardware has no such place")]
    NoSuchPlace,
    /// A memory slice of it is taken.
    #[error("its memory is taken")]
    Memory,
    /// Too few compute slices are left.
    #[error("too few compute slices are left")]
    Compute,
    /// Another instance has the media engines.
    #[error("another instance has the media engines")]
    Media,
}

/// The most memory slices that a GPU has.
const SLICES: usize = 8;

/// The instances of one GPU.
///
/// **Invariants**: each stands at a start index of its shape, no two share a memory slice,
/// together they have no more compute slices than the GPU, and at most one has the media
/// engines. The other limits of the driver's list ("at most three 2g") follow from these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    grid: Grid,
    /// What begins at each memory slice.
    at: [Option<Shape>; SLICES],
}

impl Layout {
    /// A GPU without instances.
    #[must_use]
    pub const fn new(grid: Grid) -> Self {
        Self {
            grid,
            at: [None; SLICES],
        }
    }

    /// In what parts the GPU can be cut.
    #[must_use]
    pub const fn grid(self) -> Grid {
        self.grid
    }

    /// The instances, by rising start index.
    pub fn instances(self) -> impl Iterator<Item = Instance> {
        (0..)
            .zip(self.at)
            .filter_map(|(start, shape)| shape.map(|shape| Instance { shape, start }))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.at == [None; SLICES]
    }

    /// The memory slices that are taken, one bit each, the lowest for slice 0.
    #[must_use]
    pub fn memory_taken(self) -> u8 {
        self.instances().fold(0, |taken, instance| {
            taken | mask(instance.shape, instance.start)
        })
    }

    /// How many compute slices are taken.
    #[must_use]
    pub fn compute_taken(self) -> u8 {
        self.instances()
            .map(|instance| instance.shape.compute())
            .sum()
    }

    /// Whether an instance of this shape may be added at this start index.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(self, shape: Shape, start: u8) -> Result<(), Refused> {
        if !self.grid.starts(shape).contains(&start) {
            Err(Refused::NoSuchPlace)
        } else if self.memory_taken() & mask(shape, start) != 0 {
            Err(Refused::Memory)
        } else if self.compute_taken() + shape.compute() > self.grid.compute() {
            Err(Refused::Compute)
        } else if shape.media() && self.instances().any(|other| other.shape.media()) {
            Err(Refused::Media)
        } else {
            Ok(())
        }
    }

    /// The start indexes at which an instance of this shape may be added, rising.
    pub fn starts(self, shape: Shape) -> impl Iterator<Item = u8> {
        self.grid
            .starts(shape)
            .iter()
            .copied()
            .filter(move |start| self.check(shape, *start).is_ok())
    }

    /// With one more instance.
    ///
    /// # Errors
    ///
    /// Why it cannot be added.
    pub fn with(self, shape: Shape, start: u8) -> Result<Self, Refused> {
        self.check(shape, start)?;
        let mut next = self;
        let place = next.at.get_mut(usize::from(start));
        *place.ok_or(Refused::NoSuchPlace)? = Some(shape);
        Ok(next)
    }

    /// Without the instance that begins at this memory slice; unchanged where none does.
    #[must_use]
    pub fn without(self, start: u8) -> Self {
        let mut next = self;
        if let Some(place) = next.at.get_mut(usize::from(start)) {
            *place = None;
        }
        next
    }

    /// The instance that begins at this memory slice.
    #[must_use]
    pub fn at(self, start: u8) -> Option<Shape> {
        self.at.get(usize::from(start)).copied().flatten()
    }

    /// The same places, with every shape replaced by the one without media engines.
    #[must_use]
    pub fn plain(self) -> Self {
        Self {
            grid: self.grid,
            at: self.at.map(|shape| shape.map(Shape::plain)),
        }
    }
}

/// The memory slices of an instance. Only called for places that the hardware has, which end
/// at slice 7.
fn mask(shape: Shape, start: u8) -> u8 {
    let slices = (1_u16 << shape.memory()) - 1;
    let shifted = slices << start.min(8);
    u8::try_from(shifted & 0xff).unwrap_or(u8::MAX)
}

impl fmt::Debug for Layout {
    /// Such as `Layout(Three@0 One@4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layout(")?;
        for (index, instance) in self.instances().enumerate() {
            let gap = if index == 0 { "" } else { " " };
            write!(f, "{gap}{:?}@{}", instance.shape, instance.start)?;
        }
        f.write_str(")")
    }
}
