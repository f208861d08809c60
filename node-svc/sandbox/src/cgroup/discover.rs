//! Reads which cgroup hierarchies exist, where this process is in them, and which of them can
//! take a workload.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::{CgroupVersion, Slot, WANTED};
use crate::probe::Missing;

/// What the machine offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) slots: Vec<Slot>,
    pub(crate) missing: Vec<Missing>,
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    mount_point: PathBuf,
    /// The group that the mount shows as its root.
    shown: PathBuf,
    version: CgroupVersion,
    controllers: Vec<String>,
}

/// Looks at the machine.
pub(crate) fn discover() -> Found {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    choose(&mounts, &own)
}

fn choose(mounts: &str, own: &str) -> Found {
    let mut found = Found::default();
    let hierarchies: Vec<Hierarchy> = mounts.lines().filter_map(parse_mount).collect();
    for hierarchy in &hierarchies {
        let Some(group) = own_group(hierarchy, own) else {
            continue;
        };
        match hierarchy.version {
            CgroupVersion::V1 => choose_v1(hierarchy, group, &mut found),
            CgroupVersion::V2 => choose_v2(hierarchy, &group, &mut found),
        }
    }
    for controller in WANTED {
        let has = |slot: &Slot| slot.controllers.iter().any(|name| name == controller);
        let explained = |missing: &Missing| missing.what == what(controller);
        if !found.slots.iter().any(has) && !found.missing.iter().any(explained) {
            let reason = "no mounted cgroup hierarchy has this controller".to_owned();
            found.missing.push(Missing {
                what: what(controller),
                reason,
            });
        }
    }
    found
}

fn what(controller: &str) -> String {
    format!("{controller} limit")
}

fn choose_v1(hierarchy: &Hierarchy, group: PathBuf, found: &mut Found) {
    let controllers = still_wanted(&hierarchy.controllers, found);
    if controllers.is_empty() {
        return;
    }
    if is_writable(&group) {
        let version = CgroupVersion::V1;
        found.slots.push(Slot {
            parent: group,
            version,
            controllers,
        });
    } else {
        refuse(
            &controllers,
            &format!("{} cannot be written", group.display()),
            found,
        );
    }
}

/// A version 2 group that holds processes cannot give controllers to groups below it (only the
/// root can), so the first of these that can is taken: the own group, the unit it is a part of
/// (systemd's `DelegateSubgroup=`), the root.
fn choose_v2(hierarchy: &Hierarchy, own: &Path, found: &mut Found) {
    let unit = own
        .parent()
        .filter(|parent| parent.starts_with(&hierarchy.mount_point))
        .filter(|parent| {
            parent
                .extension()
                .is_none_or(|extension| extension != "slice")
        });
    let candidates = [Some(own), unit, Some(hierarchy.mount_point.as_path())];
    let mut problem = None;
    for group in candidates.into_iter().flatten() {
        let available = words(&group.join("cgroup.controllers"));
        let controllers = still_wanted(&available, found);
        if controllers.is_empty() {
            continue;
        }
        if !is_writable(&group.join("cgroup.procs")) || !is_writable(group) {
            problem.get_or_insert((
                controllers,
                format!("{} cannot be written", group.display()),
            ));
            continue;
        }
        let enabled = words(&group.join("cgroup.subtree_control"));
        let gives = |name: &String| enabled.contains(name);
        if controllers.iter().all(gives) || !is_populated_non_root(group) {
            let version = CgroupVersion::V2;
            found.slots.push(Slot {
                parent: group.to_path_buf(),
                version,
                controllers,
            });
            return;
        }
        let reason = format!(
            "{} holds processes, so groups below it get no controllers; run the service in a \
             subgroup of a delegated one (systemd: Delegate=yes, DelegateSubgroup=service)",
            group.display()
        );
        problem.get_or_insert((controllers, reason));
    }
    if let Some((controllers, reason)) = problem {
        refuse(&controllers, &reason, found);
    }
}

/// Only the real root has no `cgroup.type`.
fn is_populated_non_root(group: &Path) -> bool {
    group.join("cgroup.type").exists() && !words(&group.join("cgroup.procs")).is_empty()
}

fn is_writable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}

fn words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn still_wanted(available: &[String], found: &Found) -> Vec<String> {
    let taken = |name: &str| {
        found
            .slots
            .iter()
            .any(|slot| slot.controllers.iter().any(|n| n == name))
    };
    let wanted = WANTED
        .into_iter()
        .filter(|name| available.iter().any(|have| have == name));
    wanted
        .filter(|name| !taken(name))
        .map(str::to_owned)
        .collect()
}

fn refuse(controllers: &[String], reason: &str, found: &mut Found) {
    for controller in controllers {
        found.missing.push(Missing {
            what: what(controller),
            reason: reason.to_owned(),
        });
    }
}

/// One line of mountinfo: id, parent, device, shown root, mount point, options, optional fields,
/// a dash, type, source, super options.
fn parse_mount(line: &str) -> Option<Hierarchy> {
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let version = match back.next()? {
        "cgroup" => CgroupVersion::V1,
        "cgroup2" => CgroupVersion::V2,
        _ => return None,
    };
    let options = back.nth(1)?;
    let controllers = options.split(',').filter(|option| WANTED.contains(option));
    let mut front = front.split(' ').skip(3);
    Some(Hierarchy {
        shown: unescape(front.next()?),
        mount_point: unescape(front.next()?),
        version,
        controllers: controllers.map(str::to_owned).collect(),
    })
}

/// mountinfo writes blanks in paths as octal numbers.
fn unescape(text: &str) -> PathBuf {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
        .into()
}

/// The folder of this process's own group in a hierarchy; `None` if the mount does not show it.
fn own_group(hierarchy: &Hierarchy, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let matches = match hierarchy.version {
            CgroupVersion::V2 => number == "0" && names.is_empty(),
            CgroupVersion::V1 => names
                .split(',')
                .any(|name| hierarchy.controllers.iter().any(|c| c == name)),
        };
        matches.then_some(path)
    })?;
    let below = Path::new(path).strip_prefix(&hierarchy.shown).ok()?;
    Some(if below.as_os_str().is_empty() {
        hierarchy.mount_point.clone()
    } else {
        hierarchy.mount_point.join(below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2_group(path: &Path, controllers: &str, enabled: &str, procs: &str, root: bool) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.subtree_control"), enabled).unwrap();
        fs::write(path.join("cgroup.procs"), procs).unwrap();
        if !root {
            fs::write(path.join("cgroup.type"), "domain").unwrap();
        }
    }

    fn v2_mount(path: &Path) -> String {
        format!(
            "31 23 0:28 / {} rw,relatime - cgroup2 cgroup2 rw",
            path.display()
        )
    }

    #[test]
    fn a_hybrid_machine_uses_each_controller_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("memory/jobs/7")).unwrap();
        fs::create_dir_all(root.join("cpu")).unwrap();
        v2_group(&root.join("unified"), "hugetlb", "", "1", true);
        let at = root.display();
        let mounts = format!(
            "1 2 0:1 / {at}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             1 2 0:1 / {at}/memory rw shared:3 - cgroup cgroup rw,memory\n{}\n\
             1 2 0:1 / /proc rw - proc proc rw",
            v2_mount(&root.join("unified"))
        );
        let found = choose(&mounts, "4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/\n");
        let parents: Vec<_> = found.slots.iter().map(|slot| slot.parent.clone()).collect();
        assert_eq!(parents, [root.join("cpu"), root.join("memory/jobs/7")]);
        assert_eq!(found.missing.len(), 1);
        assert_eq!(found.missing[0].what, "pids limit");
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_of_the_mount() {
        let line = "1 2 0:1 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let hierarchy = parse_mount(line).unwrap();
        let own = |text: &str| own_group(&hierarchy, text);
        assert_eq!(
            own("4:memory:/docker/ab").unwrap(),
            Path::new("/sys/fs/cgroup/memory")
        );
        assert_eq!(
            own("4:memory:/docker/ab/x").unwrap(),
            Path::new("/sys/fs/cgroup/memory/x")
        );
        assert_eq!(own("4:memory:/other"), None);
    }

    #[test]
    fn version_2_takes_the_root_of_the_machine_when_the_own_group_is_populated() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        v2_group(root, "cpu memory pids io", "cpu memory pids", "1 2", true);
        v2_group(
            &root.join("user.slice"),
            "cpu memory pids",
            "cpu memory pids",
            "",
            false,
        );
        v2_group(
            &root.join("user.slice/session-1.scope"),
            "cpu memory pids",
            "",
            "77",
            false,
        );
        let found = choose(&v2_mount(root), "0::/user.slice/session-1.scope");
        assert_eq!(found.slots.len(), 1);
        assert_eq!(found.slots[0].parent, root);
        assert_eq!(found.slots[0].controllers, WANTED);
        assert_eq!(found.missing, []);
    }

    #[test]
    fn version_2_takes_the_delegated_unit_of_a_subgroup() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        v2_group(root, "cpu memory pids", "", "1", true);
        v2_group(&root.join("node.service"), "cpu memory pids", "", "", false);
        v2_group(
            &root.join("node.service/service"),
            "cpu memory pids",
            "",
            "77",
            false,
        );
        let found = choose(&v2_mount(root), "0::/node.service/service");
        assert_eq!(found.slots[0].parent, root.join("node.service"));
    }

    #[test]
    fn a_populated_container_root_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        v2_group(folder.path(), "cpu memory pids", "", "1", false);
        let found = choose(&v2_mount(folder.path()), "0::/");
        assert_eq!(found.slots, []);
        assert_eq!(found.missing.len(), 3);
        assert!(
            found.missing[0].reason.contains("DelegateSubgroup"),
            "{found:?}"
        );
    }

    #[test]
    fn a_machine_without_cgroups_is_explained() {
        let found = choose("", "");
        assert_eq!(found.slots, []);
        assert_eq!(found.missing.len(), 3);
    }
}
