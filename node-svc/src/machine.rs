//! What the machine has: processors, memory, disk.

use std::path::Path;

/// A file system's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    /// All of it, in bytes.
    pub(crate) bytes: u64,
    /// What ordinary users can still write, in bytes.
    pub(crate) free_bytes: u64,
}

/// The file system that holds a folder; zero when it cannot be asked.
pub(crate) fn disk(folder: &Path) -> Disk {
    nix::sys::statvfs::statvfs(folder).map_or_else(
        |error| {
            tracing::warn!(%error, "the disk could not be measured");
            Disk::default()
        },
        |stat| Disk {
            bytes: stat.blocks().saturating_mul(stat.fragment_size()),
            free_bytes: stat.blocks_available().saturating_mul(stat.fragment_size()),
        },
    )
}

/// Processors that this process may use, in thousandths of one.
pub(crate) fn cpu_milli() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores)
        .unwrap_or(u32::MAX)
        .saturating_mul(1_000)
}

/// Memory in bytes; 0 when it cannot be told.
pub(crate) fn memory_bytes() -> u64 {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib.saturating_mul(1_024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something() {
        let disk = disk(Path::new("/"));
        assert!(disk.bytes >= disk.free_bytes && disk.bytes > 0);
        assert!(cpu_milli() >= 1_000);
        assert!(memory_bytes() > 1 << 20);
        assert_eq!(super::disk(Path::new("/nonexistent")), Disk::default());
    }
}
