//! Profiles: named sizes of slices, from a data file or derived from the GPUs at hand.

use std::collections::BTreeSet;

use cnlab_model::BLOCKS_PER_GPU;
use serde::{Deserialize, Serialize};

/// A named size of slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Such as `h100-25pct`.
    pub name: String,
    /// The GPU family, such as `H100`.
    pub gpu_type: String,
    /// Whole percent of a GPU, which is the number of blocks.
    pub percent: u8,
    /// Ceiling of main memory, in bytes.
    pub memory_bytes: u64,
    /// Ceiling of processor time, in thousandths of a core.
    pub cpu_milli: u32,
}

/// A profile of any GPU type, from which profiles of types without one are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// What follows the type in the name: `25pct` makes `h200-25pct`.
    pub suffix: String,
    /// Whole percent of a GPU.
    pub percent: u8,
    /// Ceiling of main memory, in bytes.
    pub memory_bytes: u64,
    /// Ceiling of processor time, in thousandths of a core.
    pub cpu_milli: u32,
}

/// The written profiles, and for each GPU type of the cell that none of them names, one per
/// template. The result has the order of the file, then that of the types.
#[must_use]
pub fn offered<'a>(
    written: &[Profile],
    templates: &[Template],
    families: impl IntoIterator<Item = &'a str>,
) -> Vec<Profile> {
    let nameless: BTreeSet<&str> = families
        .into_iter()
        .filter(|family| written.iter().all(|profile| profile.gpu_type != *family))
        .collect();
    let mut all = written.to_vec();
    for family in nameless {
        for template in templates {
            let name = format!("{}-{}", family.to_lowercase(), template.suffix);
            if all.iter().all(|profile| profile.name != name) {
                all.push(Profile {
                    name,
                    gpu_type: family.to_owned(),
                    percent: template.percent,
                    memory_bytes: template.memory_bytes,
                    cpu_milli: template.cpu_milli,
                });
            }
        }
    }
    all
}

/// Of the profiles that can start here, the one that comes closest to the wanted one: the
/// least difference in percent, then the first by name.
#[must_use]
pub fn nearest<'a>(
    wanted: &Profile,
    startable: impl IntoIterator<Item = &'a Profile>,
) -> Option<&'a Profile> {
    startable
        .into_iter()
        .filter(|profile| profile.name != wanted.name)
        .min_by_key(|profile| (profile.percent.abs_diff(wanted.percent), &profile.name))
}

/// The memory limit of a slice: one hundredth of the GPU's memory, rounded down, per block.
#[must_use]
pub fn vram_bytes(memory_bytes: u64, blocks: u8) -> u64 {
    let block = memory_bytes.checked_div(u64::from(BLOCKS_PER_GPU));
    // At most memory_bytes, so nothing saturates for a valid count of blocks.
    block.unwrap_or(0).saturating_mul(u64::from(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str, gpu_type: &str, percent: u8) -> Profile {
        Profile {
            name: name.to_owned(),
            gpu_type: gpu_type.to_owned(),
            percent,
            memory_bytes: 1 << 30,
            cpu_milli: 1000,
        }
    }

    fn templates() -> [Template; 2] {
        [("25pct", 25), ("full", 100)].map(|(suffix, percent)| Template {
            suffix: suffix.to_owned(),
            percent,
            memory_bytes: 1 << 30,
            cpu_milli: 1000,
        })
    }

    fn names(profiles: &[Profile]) -> Vec<&str> {
        profiles
            .iter()
            .map(|profile| profile.name.as_str())
            .collect()
    }

    #[test]
    fn types_that_no_profile_names_get_one_per_template() {
        let written = [profile("h100-25pct", "H100", 25)];
        let all = offered(&written, &templates(), ["H200", "H100", "RTX-4090", "H200"]);
        assert_eq!(
            names(&all),
            [
                "h100-25pct",
                "h200-25pct",
                "h200-full",
                "rtx-4090-25pct",
                "rtx-4090-full"
            ]
        );
        assert_eq!(all[2].percent, 100);
        assert_eq!(all[2].gpu_type, "H200");
    }

    #[test]
    fn a_written_name_is_never_given_twice() {
        let written = [profile("h200-full", "H100", 25)];
        let all = offered(&written, &templates(), ["H200"]);
        assert_eq!(names(&all), ["h200-full", "h200-25pct"]);
    }

    #[test]
    fn nearest_is_closest_in_percent() {
        let wanted = profile("h100-25pct", "H100", 25);
        let offered = offered(&[], &templates(), ["H200"]);
        assert_eq!(
            nearest(&wanted, &offered).map(|profile| profile.name.as_str()),
            Some("h200-25pct")
        );
        assert_eq!(nearest(&wanted, []), None);
    }
}
