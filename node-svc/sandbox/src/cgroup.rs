//! Finds where cgroups can be made on this machine and keeps the ones of a workload.
//!
//! Version 1 hierarchies and version 2 are used side by side, each for the controllers it has:
//! hybrid machines mount both. Groups are made below the caller's own group, so that a limit
//! on the caller also covers what it starts.

mod discover;
mod group;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use discover::discover;
pub(crate) use group::{CreateError, create, remove_all};

/// Controllers that limits need.
pub(crate) const WANTED: [&str; 3] = ["memory", "cpu", "pids"];

/// The folder between the caller's own group and those of its workloads.
pub(crate) const PARENT: &str = "cnlab";

/// Which of the two interfaces a group speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy for all.
    V2,
}

/// A group that a workload runs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Folder of the group.
    pub path: PathBuf,
    /// Its interface.
    pub version: CgroupVersion,
    /// The controllers it has, of memory, cpu and pids.
    pub controllers: Vec<String>,
}

/// A group that new groups can be made below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) parent: PathBuf,
    pub(crate) version: CgroupVersion,
    pub(crate) controllers: Vec<String>,
}
