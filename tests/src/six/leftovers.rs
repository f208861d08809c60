//! What a deployment left on the machine: processes, mounts, control groups, open ports.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process,
};

use anyhow::Result;

/// Everything that still belongs to a deployment whose files are in `folder`.
pub(super) fn of<'a>(folder: &Path, ports: impl Iterator<Item = &'a u16>) -> Result<Vec<String>> {
    let mut left: Vec<String> = processes(folder)
        .into_iter()
        .map(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            format!("process {pid} ({command})")
        })
        .collect();
    for port in ports {
        if TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err() {
            left.push(format!("port {port}"));
        }
    }
    let mounts = fs::read("/proc/self/mountinfo")?;
    if names(&mounts, folder) {
        left.push(format!("a mount below {}", folder.display()));
    }
    for server in servers(folder) {
        left.extend(
            control_groups(Path::new("/sys/fs/cgroup"), &server, 6)
                .into_iter()
                .map(|group| format!("control group {}", group.display())),
        );
    }
    Ok(left)
}

/// Ends every process that still belongs to it.
pub(super) fn end(folder: &Path) {
    for pid in processes(folder) {
        let killed = process::Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .status();
        // It may have ended by itself meanwhile.
        drop(killed);
    }
}

/// Processes that name the folder on their command line or in their environment, or that see a
/// part of it in a mount namespace of their own.
fn processes(folder: &Path) -> Vec<u32> {
    let own = process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            ["cmdline", "environ", "mountinfo"].iter().any(|file| {
                fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|text| names(&text, folder))
            })
        })
        .collect()
}

fn names(text: &[u8], folder: &Path) -> bool {
    let folder = folder.as_os_str().as_bytes();
    text.windows(folder.len()).any(|part| part == folder)
}

/// Ids of the servers that the node has run.
fn servers(folder: &Path) -> Vec<String> {
    let nodes = fs::read_dir(folder.join("data/nodes"))
        .into_iter()
        .flatten();
    nodes
        .flatten()
        .filter_map(|node| fs::read_dir(node.path().join("workloads")).ok())
        .flatten()
        .flatten()
        .map(|workload| workload.file_name().to_string_lossy().into_owned())
        .collect()
}

fn control_groups(below: &Path, server: &str, depth: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || depth == 0 {
            continue;
        }
        if entry.file_name().to_string_lossy().contains(server) {
            found.push(entry.path());
        }
        found.extend(control_groups(&entry.path(), server, depth - 1));
    }
    found
}
