//! What a workload sees of the machine and of its neighbours.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use node_sandbox::{Bind, Exit, GeneratedFile, PrivateTmpfs};

use crate::fixture::{Fixture, UID, lives};

#[test]
fn neighbours_see_neither_files_nor_processes_nor_ipc_of_each_other() {
    let (first, second) = (Fixture::new(), Fixture::new());
    let hidden = "echo hidden > /workspace/hidden-file; echo hidden > /tmp/hidden-file; \
                  echo hidden > /dev/shm/hidden-file; ipcmk -Q; echo ready; exec sleep 987654";
    let neighbour = first.start(&first.script(hidden));
    first.wait_for(&neighbour, "ready");
    let seen_outside = neighbour.pids();
    assert_eq!(seen_outside.len(), 1, "{seen_outside:?}");
    let script = format!(
        "find / -name hidden-file 2>/dev/null; ls -a {}; kill -0 {}; echo; \
         cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; echo queues $(tail -n +2 /proc/sysvipc/msg); \
         echo processes $(ls -d /proc/[0-9]* | wc -l)",
        first.volume().display(),
        seen_outside[0],
    );
    let (record, log) = second.run_script(&script);
    assert_eq!(record.exit, Exit::Code(0), "{log}");
    assert!(
        !log.contains("\nhidden-file") && !log.contains("/hidden-file"),
        "{log}"
    );
    assert!(log.contains("No such file or directory"), "{log}");
    assert!(log.contains("No such process"), "{log}");
    assert!(!log.contains("sleep 987654"), "{log}");
    assert!(log.contains("queues\n"), "{log}");
    let count = log
        .lines()
        .find_map(|line| line.strip_prefix("processes "))
        .unwrap();
    assert!(count.parse::<u32>().unwrap() <= 5, "{log}");
    assert!(lives(seen_outside[0]));
}

#[test]
fn the_volume_is_writable_and_the_machine_is_not() {
    let fixture = Fixture::new();
    let script = "pwd; stat -c 'owner %u:%g' /workspace; echo kept > file && echo wrote; \
                  for place in /usr /etc /opt / /dev /proc; do touch $place/x 2>&1; done; \
                  ls -d /root /home /boot /srv /mnt /work /sys 2>&1; ls /; id -G";
    let (_, log) = fixture.run_script(script);
    assert!(
        log.starts_with(&format!("/workspace\nowner {UID}:{UID}\nwrote\n")),
        "{log}"
    );
    let refused = log
        .lines()
        .filter(|line| line.starts_with("touch: cannot touch"))
        .count();
    assert_eq!(refused, 6, "{log}");
    let absent = log
        .lines()
        .filter(|line| line.ends_with("No such file or directory"))
        .count();
    assert!(absent >= 7, "{log}");
    assert!(
        log.ends_with(&format!("\n{UID}\n")),
        "only the own group: {log}"
    );
    let file = fixture.volume().join("file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept\n");
    assert_eq!(fs::metadata(&file).unwrap().uid(), UID);
}

#[test]
fn private_folders_are_private_and_vanish() {
    let fixture = Fixture::new();
    let mut spec = fixture.script(
        "for at in /tmp /var/tmp /dev/shm /scratch; do echo x > $at/left && echo wrote $at; done; \
         touch /run/x; stat -f -c '%T' /tmp /scratch; df -k --output=size /scratch",
    );
    spec.tmpfs.push(PrivateTmpfs {
        target: "/scratch".into(),
        size_bytes: Some(1 << 20),
        mode: 0o1777,
    });
    let (_, log) = fixture.run(&spec);
    assert_eq!(log.matches("wrote").count(), 4, "{log}");
    assert_eq!(log.matches("tmpfs").count(), 2, "{log}");
    assert!(log.contains("/run/x': Permission denied"), "{log}");
    assert!(log.contains("1024"), "{log}");
    assert!(!Path::new("/tmp/left").exists() && !Path::new("/var/tmp/left").exists());
}

#[test]
fn the_environment_is_exactly_what_was_given() {
    let fixture = Fixture::new();
    let mut spec = fixture.script("");
    spec.argv = vec!["env".into(), "-0".into()];
    spec.env.push(("EMPTY".into(), String::new()));
    spec.env.push(("QUOTED".into(), "a b=\"c\"\nd".into()));
    let (_, log) = fixture.run(&spec);
    assert_eq!(log, "PATH=/usr/bin:/bin\0EMPTY=\0QUOTED=a b=\"c\"\nd\0");
}

#[test]
fn open_files_of_the_caller_are_not_inherited() {
    let fixture = Fixture::new();
    // Like a library that forgets close-on-exec.
    let secret = fs::File::open("/etc/hostname").unwrap();
    let leaky = nix::unistd::dup(&secret).unwrap();
    let (_, log) = fixture.run_script("readlink /proc/self/fd/*; readlink /proc/1/fd/*; true");
    drop(leaky);
    let expected = fixture.folder.path().join("log");
    let expected = expected.to_str().unwrap();
    for line in log.lines() {
        assert!(
            line == "/dev/null" || line == expected || line.starts_with("/proc/"),
            "{log}"
        );
    }
    assert!(log.lines().count() <= 4, "{log}");
}

#[test]
fn no_privilege_is_left_and_none_can_be_gained() {
    let fixture = Fixture::new();
    let script = "cat /proc/self/status; echo ---; cat /proc/1/status; echo ---; \
                  cat /proc/1/environ /proc/1/maps 2>&1; find / -xdev -perm -4000 2>/dev/null | head -1";
    let (_, log) = fixture.run_script(script);
    let parts: Vec<&str> = log.split("---\n").collect();
    for status in &parts[..2] {
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            line.split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"], "{set} {status}");
        }
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        assert_eq!(field("Uid:"), vec![UID.to_string(); 4]);
        assert_eq!(field("Gid:"), vec![UID.to_string(); 4]);
        assert!(field("Groups:").is_empty(), "{status}");
    }
    let own = parts[0];
    assert!(own.contains("SigBlk:\t0000000000000000"), "{own}");
    assert!(own.contains("SigIgn:\t0000000000000000"), "{own}");
    assert_eq!(parts[2].matches("Permission denied").count(), 2, "{log}");
}

#[test]
fn only_the_listed_devices_exist_and_terminals_work() {
    let fixture = Fixture::new();
    let device = format!("/dev/cnlab-{}", fixture.id);
    let made = std::process::Command::new("mknod")
        .args(["-m", "666", &device, "c", "1", "3"])
        .status();
    assert!(made.unwrap().success(), "mknod {device}");
    let mut spec = fixture.script(
        "ls /dev; script -qec 'tty; echo from a terminal' /dev/null < /dev/null; \
         for at in /dev/null /dev/cnlab*; do echo x > $at && echo wrote; done; \
         mknod /workspace/disk b 254 0; echo >> /dev/stderr && echo reopened",
    );
    spec.devices.push((&device).into());
    let (_, log) = fixture.run(&spec);
    fs::remove_file(&device).unwrap();
    let listed: Vec<&str> = log
        .lines()
        .take_while(|line| !line.starts_with("/dev/pts"))
        .collect();
    let name = device.strip_prefix("/dev/").unwrap();
    let mut expected = vec![
        name, "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
        "tty", "urandom", "zero",
    ];
    expected.sort_unstable();
    assert_eq!(listed, expected, "{log}");
    assert!(
        log.contains("/dev/pts/0") && log.contains("from a terminal"),
        "{log}"
    );
    assert_eq!(log.matches("wrote").count(), 2, "{log}");
    assert!(
        log.contains("mknod: /workspace/disk: Operation not permitted"),
        "{log}"
    );
    assert!(log.contains("reopened"), "{log}");
}

#[test]
fn generated_files_read_only_binds_and_the_host_name() {
    let fixture = Fixture::new();
    let data = fixture.folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("set"), "numbers\n").unwrap();
    let mut spec = fixture.script(
        "cat /etc/passwd /data/in/set /made/up/file; whoami; hostname; \
         for at in /etc/passwd /data/in/new /made/up/file; do echo x >> $at; done; ls -A / | grep -c staged",
    );
    spec.hostname = "lab-7".into();
    spec.binds.push(Bind::read_only(&data, "/data/in"));
    for (target, content) in [
        (
            "/etc/passwd",
            format!("ada:x:{UID}:{UID}::/workspace:/bin/sh\n"),
        ),
        ("/made/up/file", "made up\n".to_owned()),
    ] {
        spec.files.push(GeneratedFile {
            target: target.into(),
            content,
            mode: 0o444,
        });
    }
    let (_, log) = fixture.run(&spec);
    let expected = format!("ada:x:{UID}:{UID}::/workspace:/bin/sh\nnumbers\nmade up\nada\nlab-7\n");
    assert!(log.starts_with(&expected), "{log}");
    let refused =
        log.matches("Read-only file system").count() + log.matches("Permission denied").count();
    assert_eq!(refused, 3, "{log}");
    assert!(log.ends_with("\n0\n"), "{log}");
}

#[test]
fn a_link_planted_in_a_volume_is_not_followed() {
    let fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for (name, link) in [
        ("absolute", outside.as_path()),
        ("relative", Path::new("../etc")),
    ] {
        std::os::unix::fs::symlink(link, fixture.volume().join(name)).unwrap();
        let mut spec = fixture.script("true");
        spec.binds.push(Bind::writable(
            fixture.volume(),
            format!("/workspace/{name}/place"),
        ));
        let error = fixture.try_start(&spec).unwrap_err().to_string();
        assert!(
            error.contains(&format!("make a place for /workspace/{name}/place")),
            "{error}"
        );
    }
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
}
