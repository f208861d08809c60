//! Which profile a request gets.

use cnlab_model::{
    BLOCKS_PER_GPU,
    mig::{Product, Profile, Shape, Unavailable},
};
use thiserror::Error;

/// What an instance must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Multiprocessors.
    pub multiprocessors: u16,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Whether it needs the media engines (`+me`).
    pub media: bool,
}

/// Why no profile meets a need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoProfile {
    /// The largest is too small.
    #[error("no MIG profile of {0} is large enough")]
    TooLarge(Product),
    /// No profile with known figures is large enough, and some figures are not known.
    #[error("the figures of the larger MIG profiles of {0} are not known")]
    Unseen(Product),
}

/// The smallest profile of a product that meets a need (G-06).
///
/// Profiles are in one order in which neither figure ever falls, so the first that meets both
/// is the smallest in every sense. Media engines go only to who asks for them, since only one
/// instance of a GPU can have them.
///
/// # Errors
///
/// Why there is none. A profile whose figures are not known meets no need.
pub fn smallest(product: Product, need: Need) -> Result<&'static Profile, NoProfile> {
    let mut unseen = false;
    for profile in product.profiles() {
        // The whole GPU has its media engines in any case.
        let whole = profile.shape.memory() == product.grid().memory();
        if profile.shape.media() != need.media && !(whole && need.media) {
            continue;
        }
        match (profile.multiprocessors, profile.memory_mib) {
            (Some(multiprocessors), Some(memory_mib)) => {
                if multiprocessors >= need.multiprocessors && memory_mib >= need.memory_mib {
                    return Ok(profile);
                }
            }
            (None, _) | (_, None) => unseen = true,
        }
    }
    Err(if unseen {
        NoProfile::Unseen(product)
    } else {
        NoProfile::TooLarge(product)
    })
}

/// What `percent` of a product is, rounded up: of all that MIG can give to one instance, which
/// may be less than the GPU has without it.
///
/// `None` where the figures of the largest profile are not known.
#[must_use]
pub fn part(product: Product, percent: u8) -> Option<Need> {
    let whole = product.profiles().last()?;
    let of = |all: u32| {
        let parts = u64::from(all).checked_mul(u64::from(percent))?;
        Some(parts.div_ceil(u64::from(BLOCKS_PER_GPU)))
    };
    Some(Need {
        multiprocessors: u16::try_from(of(whole.multiprocessors?.into())?).ok()?,
        memory_mib: u32::try_from(of(whole.memory_mib?)?).ok()?,
        media: false,
    })
}

/// How many 1 % blocks of an instance make up `percent` of the whole product, in both figures;
/// `None` where the instance is too small or a figure is not known.
///
/// A block of an instance is a little smaller than one of the GPU: twelve of the GPU fill the
/// fourteen of a `1g.10gb` of an H100.
#[must_use]
pub fn blocks_for(product: Product, shape: Shape, percent: u8) -> Option<u8> {
    let whole = product.profiles().last()?;
    let profile = product.profile(shape)?;
    // n blocks of b have n/b of the instance: enough when n * 100 * have >= b * percent * all.
    let enough = |all: u64, have: u64| {
        let parts = have.checked_mul(BLOCKS_PER_GPU.into())?;
        u64::from(shape.blocks())
            .checked_mul(percent.into())?
            .checked_mul(all)?
            .checked_next_multiple_of(parts)?
            .checked_div(parts)
    };
    let compute = enough(
        whole.multiprocessors?.into(),
        profile.multiprocessors?.into(),
    )?;
    let memory = enough(whole.memory_mib?.into(), profile.memory_mib?.into())?;
    let wanted = compute.max(memory).max(1);
    u8::try_from(wanted).ok().filter(|n| *n <= shape.blocks())
}

/// How the memory bandwidth of a part of a GPU is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bandwidth {
    /// With the other tenants of the GPU: blocks will do.
    Shared,
    /// Not at all: the part needs an instance of its own (G-04).
    Own,
}

/// How a request for some percent of a GPU is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// By that many 1 % blocks.
    Blocks(u8),
    /// By an instance of this profile.
    Instance(&'static Profile),
}

/// Why a request cannot be met by a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoCut {
    /// MIG is needed and not offered.
    #[error("full memory bandwidth needs MIG: {0}")]
    Unavailable(#[from] Unavailable),
    /// No profile is large enough.
    #[error(transparent)]
    NoProfile(#[from] NoProfile),
}

/// How `percent` of a GPU is given: blocks, or the smallest instance that has as much, for a
/// workload that needs the memory bandwidth of its part to itself.
///
/// # Errors
///
/// The reason to show.
pub fn cut(
    product: Result<Product, Unavailable>,
    percent: u8,
    bandwidth: Bandwidth,
) -> Result<Cut, NoCut> {
    match bandwidth {
        Bandwidth::Shared => Ok(Cut::Blocks(percent)),
        Bandwidth::Own => {
            let product = product?;
            let need = part(product, percent).ok_or(NoProfile::Unseen(product))?;
            Ok(Cut::Instance(smallest(product, need)?))
        }
    }
}
