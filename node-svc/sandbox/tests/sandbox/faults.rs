//! Starts that must fail: each says why in one line and leaves nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use node_sandbox::{Bind, GeneratedFile, SandboxSpec, probe};

use crate::fixture::{Fixture, processes_of};

type Spoil = fn(&Fixture, &mut SandboxSpec);

const CASES: [(&str, Spoil); 10] = [
    (
        "run /nonexistent/program: no such file or directory",
        |_, spec| {
            spec.argv = vec!["/nonexistent/program".into()];
        },
    ),
    (
        "run no-such-program: no such file or directory",
        |_, spec| {
            spec.argv = vec!["no-such-program".into()];
        },
    ),
    ("run /workspace/data: permission denied", |fixture, spec| {
        fs::write(fixture.volume().join("data"), "#!/bin/sh\n").unwrap();
        spec.argv = vec!["/workspace/data".into()];
    }),
    (
        "mount /nonexistent/volume: no such file or directory",
        |_, spec| {
            spec.binds
                .push(Bind::writable("/nonexistent/volume", "/data"));
        },
    ),
    (
        "enter /nonexistent: no such file or directory",
        |_, spec| {
            spec.cwd = "/nonexistent".into();
        },
    ),
    ("enter /closed: permission denied", |fixture, spec| {
        let closed = fixture.folder.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        spec.binds.push(Bind::writable(closed, "/closed"));
        spec.cwd = "/closed".into();
    }),
    (
        "allow device /dev/nonexistent: no such file or directory",
        |_, spec| {
            spec.devices.push("/dev/nonexistent".into());
        },
    ),
    ("allow device /dev/shm: not a device file", |_, spec| {
        spec.devices.push("/dev/shm".into());
    }),
    (
        "open log /nonexistent/log: no such file or directory",
        |_, spec| {
            spec.log = "/nonexistent/log".into();
        },
    ),
    (
        "make a place for /etc/made-up: read-only file system",
        |_, spec| {
            let target = "/etc/made-up".into();
            spec.files.push(GeneratedFile {
                target,
                content: String::new(),
                mode: 0o444,
            });
        },
    ),
];

#[test]
fn every_fault_is_one_clear_line_and_leaves_nothing() {
    for (expected, spoil) in CASES {
        let fixture = Fixture::new();
        let mut spec = fixture.script("exit 0");
        spoil(&fixture, &mut spec);
        let error = fixture.try_start(&spec).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.reason(), "SANDBOX_STEP_FAILED");
        assert_eq!(processes_of(&fixture.id), [0_i32; 0], "{expected}");
        assert!(!spec.exit_record.exists(), "{expected}");
        assert!(cgroups_of(&fixture.id).is_empty(), "{expected}");
        fixture.assert_no_mounts();
    }
}

#[test]
fn a_workload_never_runs_as_root() {
    let fixture = Fixture::new();
    for (uid, gid) in [(0, 1), (1, 0), (0, 0)] {
        let mut spec = fixture.script("exit 0");
        (spec.uid, spec.gid) = (uid, gid);
        assert_eq!(
            fixture.try_start(&spec).unwrap_err().reason(),
            "SANDBOX_SPEC_INVALID"
        );
    }
}

#[test]
fn a_start_changes_no_mount_of_the_machine() {
    let fixture = Fixture::new();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let (record, _) = fixture.run_script("exit 0");
    assert_eq!(record.oom_kills, 0);
    assert_eq!(probe(), probe());
    assert_eq!(mounts(), before);
}

/// Folders of this name anywhere in the mounted hierarchies.
fn cgroups_of(id: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str() == Some(id) {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}
