//! What a workload may use, and what is said when it wanted more.

use node_sandbox::{CgroupVersion, Exit, Limits};

use crate::fixture::Fixture;

const SMALL: u64 = 48 << 20;

#[test]
fn too_much_memory_ends_the_command_and_is_named() {
    let fixture = Fixture::new();
    let mut spec = fixture.script("exec tail /dev/zero");
    spec.limits = Limits {
        memory_bytes: Some(SMALL),
        ..Limits::default()
    };
    let (record, log) = fixture.run(&spec);
    assert_eq!(record.exit, Exit::Signal(9), "{log}");
    assert!(record.oom_killed && record.oom_kills >= 1, "{record:?}");
    if let Some(peak) = record.memory_peak_bytes {
        assert!(peak > SMALL / 2 && peak <= SMALL, "{record:?}");
    }
}

#[test]
fn a_child_that_used_too_much_is_counted_but_did_not_end_the_command() {
    let fixture = Fixture::new();
    let mut spec = fixture.script("tail /dev/zero; echo status $?; exit 0");
    spec.limits = Limits {
        memory_bytes: Some(SMALL),
        ..Limits::default()
    };
    let (record, log) = fixture.run(&spec);
    assert!(log.contains("status 137"), "{log}");
    assert_eq!((record.exit, record.oom_killed), (Exit::Code(0), false));
    assert!(record.oom_kills >= 1, "{record:?}");
}

#[test]
fn processes_beyond_the_limit_are_refused() {
    let fixture = Fixture::new();
    let mut spec = fixture
        .script("i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); echo started $i; done");
    spec.limits = Limits {
        pids: Some(12),
        ..Limits::default()
    };
    let (record, log) = fixture.run(&spec);
    assert_ne!(record.exit, Exit::Code(0), "{log}");
    // The shell itself is one of the twelve.
    assert!(
        log.contains("started 11\n") && !log.contains("started 12\n"),
        "{log}"
    );
}

#[test]
fn processor_time_and_open_files_are_limited() {
    let fixture = Fixture::new();
    let mut spec = fixture.script("ulimit -n; ulimit -c; echo ready; exec sleep 1000");
    spec.limits = Limits {
        cpu_milli: Some(500),
        open_files: Some(100),
        ..Limits::default()
    };
    let running = fixture.start(&spec);
    fixture.wait_for(&running, "ready");
    assert_eq!(fixture.log(), "100\n0\nready\n");
    assert!(
        running.unenforced().is_empty(),
        "{:?}",
        running.unenforced()
    );
    let has_cpu =
        |group: &&node_sandbox::Cgroup| group.controllers.iter().any(|name| name == "cpu");
    let group = running.identity().cgroups.iter().find(has_cpu).unwrap();
    let (file, expected) = match group.version {
        CgroupVersion::V1 => ("cpu.cfs_quota_us", "50000"),
        CgroupVersion::V2 => ("cpu.max", "50000 100000"),
    };
    assert_eq!(
        std::fs::read_to_string(group.path.join(file))
            .unwrap()
            .trim(),
        expected
    );
    // Every group holds the command and init.
    for group in &running.identity().cgroups {
        let members = std::fs::read_to_string(group.path.join("cgroup.procs")).unwrap();
        assert_eq!(members.lines().count(), 2, "{}", group.path.display());
    }
}
