//! Runs the real program in an environment of its own.

use std::{
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use cnlab_testkit::ScratchDir;

use crate::peer::{Peer, TOKEN};

/// The program under test, under a name of our own: another build in the same target folder
/// replaces the file that cargo made, and must not do so in the middle of a run.
pub(crate) fn program() -> &'static Path {
    static OWN: OnceLock<(ScratchDir, PathBuf)> = OnceLock::new();
    let (_, path) = OWN.get_or_init(|| {
        let folder = ScratchDir::new("cli-program").unwrap();
        let own = folder.path().join("cnlab");
        let made = env!("CARGO_BIN_EXE_cnlab");
        // A second name where both lie on one file system, else a copy.
        if std::fs::hard_link(made, &own).is_err() {
            std::fs::copy(made, &own).unwrap();
        }
        (folder, own)
    });
    path
}

/// A home of its own and a peer to speak to.
pub(crate) struct World {
    pub(crate) peer: Peer,
    home: ScratchDir,
    signed_in: bool,
}

impl World {
    /// Signed in through the environment.
    pub(crate) fn new() -> Self {
        Self {
            peer: Peer::start(),
            home: ScratchDir::new("cli").unwrap(),
            signed_in: true,
        }
    }

    /// Without a token.
    pub(crate) fn signed_out() -> Self {
        Self {
            signed_in: false,
            ..Self::new()
        }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// A folder whose `cnlab` and `autolab` are the program under test.
    pub(crate) fn bin(&self) -> PathBuf {
        let bin = self.home().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        for name in ["cnlab", "autolab"] {
            let link = bin.join(name);
            if !link.exists() {
                std::os::unix::fs::symlink(program(), link).unwrap();
            }
        }
        bin
    }

    /// Any program with only our environment.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let system = std::env::var_os("PATH").unwrap_or_default();
        let mut path = vec![self.bin()];
        path.extend(std::env::split_paths(&system));
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("HOME", self.home())
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .env("CNLAB_ENDPOINT", self.peer.endpoint())
            .current_dir(self.home())
            .stdin(Stdio::null());
        if self.signed_in {
            command.env("CNLAB_TOKEN", TOKEN);
        }
        command
    }

    /// As [`World::command`], and ended when it hangs, so that a hang fails its test.
    pub(crate) fn bounded(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("timeout");
        command
            .args(["--foreground", "--kill-after=5", "120"])
            .arg(program);
        command
    }

    pub(crate) fn cnlab(&self, args: &[&str]) -> Ran {
        Ran::of(self.bounded(program()).args(args).output().unwrap())
    }

    /// With something on stdin.
    pub(crate) fn cnlab_fed(&self, args: &[&str], stdin: &str) -> Ran {
        let mut child = self
            .bounded(program())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(stdin.as_bytes())
            .unwrap();
        Ran::of(child.wait_with_output().unwrap())
    }

    /// The quickstart's server under this name.
    pub(crate) fn create(&self, name: &str, more: &[&str]) -> Ran {
        let mut args = vec![
            "server",
            "create",
            "--name",
            name,
            "--image",
            "pytorch:2.4-cuda12.4",
            "--profile",
            "h100-25pct",
            "--storage",
            "50gb",
        ];
        args.extend(more);
        self.cnlab(&args)
    }

    /// A server that is there and ready, without the program's help.
    pub(crate) fn put(&self, name: &str) -> String {
        let mut state = self.peer.state();
        let request = cnlab_proto::scheduler::v1::CreateServerRequest {
            name: name.to_owned(),
            image: "pytorch:2.4-cuda12.4".to_owned(),
            profile: "h100-25pct".to_owned(),
            storage_bytes: 50_000_000_000,
            ..Default::default()
        };
        let id = state.create(request, name).id;
        while state.step(&id).is_some() {}
        id
    }
}

/// What a program printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}
