//! Says what a life really got: packages and boundaries.

use cnlab_model::ByteSize;

use super::life::{Facts, Launch};
use crate::{
    environment::{Environment, Recipe},
    ports::{Attachment, Boundaries},
};

/// What of an image is installed here, and what is not and why.
pub(super) fn recipe(launch: &Launch, real_gpu: bool) -> (Recipe, Vec<String>) {
    let mut packages = launch.packages.clone();
    let mut left_out = Vec::new();
    if real_gpu || launch.install_heavy {
        packages.extend(launch.heavy_packages.iter().cloned());
    } else {
        left_out.extend(
            launch
                .heavy_packages
                .iter()
                .map(|package| format!("{package}: large, and the GPU here is simulated")),
        );
    }
    let recipe = Recipe {
        image: launch.image.clone(),
        packages,
    };
    (recipe, left_out)
}

/// Everything that is known before the process is started.
pub(super) fn facts(
    launch: &Launch,
    simulated_gpu: bool,
    environment: &Environment,
    not_installed: Vec<String>,
    boundaries: Boundaries,
    attachment: &Attachment,
) -> Facts {
    let mut enforced = boundaries.enforced;
    let mut not_enforced = boundaries.not_enforced;
    if boundaries.isolated {
        enforced.extend(attachment.enforced.iter().cloned());
    } else {
        not_enforced.extend(
            attachment
                .enforced
                .iter()
                .map(|sentence| format!("{sentence}: not without a file system of its own")),
        );
    }
    not_enforced.extend(attachment.not_enforced.iter().cloned());
    Facts {
        simulated_gpu,
        installed: environment.installed.clone(),
        not_installed,
        enforced,
        not_enforced,
        storage: storage(None, launch.storage_bytes),
        python_version: environment.python_version.clone(),
    }
}

/// The sentence about the size of the volume.
pub(crate) fn storage(used: Option<u64>, wanted: u64) -> String {
    let wanted = ByteSize(wanted);
    match used {
        None => format!("storage: the size of {wanted} is measured, not enforced"),
        Some(used) => format!(
            "storage: {} of {wanted} used; the size is measured, not enforced",
            rounded(used)
        ),
    }
}

/// One decimal of the largest unit, so that the sentence does not change with every byte.
fn rounded(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
    ];
    match UNITS.iter().find(|(_, factor)| bytes >= *factor) {
        Some((unit, factor)) => {
            format!("{}.{} {unit}", bytes / factor, bytes % factor * 10 / factor)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_storage_is_said_in_round_numbers() {
        assert_eq!(
            storage(Some(1_234_567_890), 50_000_000_000),
            "storage: 1.2 GB of 50 GB used; the size is measured, not enforced"
        );
        assert!(storage(Some(0), 1).starts_with("storage: 0 B of 1 B"));
        assert!(storage(Some(u64::MAX), 1).contains("18446744.0 TB"));
    }
}
