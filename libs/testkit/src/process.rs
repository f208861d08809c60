//! Starts processes that cannot outlive their test, and lists what runs below a process.
//!
//! A process started here leads a group of its own and gets a signal from the kernel when the
//! test process dies. That signal is tied to the *thread* that started the child, so all are
//! started from one thread that lives as long as the process.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::wait::wait_for;

/// Finds `program` on the search path.
///
/// # Errors
/// When it is not there; the text names the Debian `package` to install.
pub fn find_program(program: &str, package: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        // Debian keeps daemons where an ordinary user's search path does not look.
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
        .with_context(|| {
            format!(
                "this test needs the program {program}; install the Debian package {package} \
                 (apt-get install {package})"
            )
        })
}

pub(crate) fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A command for `program` that gets `at_death` when the test process dies, however it dies.
///
/// Start it with [`ChildGuard::spawn`]; elsewhere the signal would already come when the calling
/// thread ends.
#[must_use]
pub fn tied_command(program: impl AsRef<OsStr>, at_death: Signal) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", at_death.as_str().trim_start_matches("SIG")])
        .arg("--")
        .arg(program);
    command
}

type Launch = (Command, mpsc::SyncSender<io::Result<Child>>);

fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static LAUNCHER: OnceLock<mpsc::SyncSender<Launch>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, receiver) = mpsc::sync_channel::<Launch>(16);
        std::thread::spawn(move || {
            while let Ok((mut command, answer)) = receiver.recv() {
                // An asker that went away dropped the receiver; its child is then ended here.
                if let Err(mpsc::SendError(Ok(mut orphan))) = answer.send(command.spawn()) {
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        });
        sender
    });
    let (answer, child) = mpsc::sync_channel(1);
    launcher.send((command, answer)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

/// A process that is ended, with everything below it, when this value goes away.
#[derive(Debug)]
pub struct ChildGuard {
    child: Child,
}

impl ChildGuard {
    /// Starts `command` as the leader of a new process group.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> anyhow::Result<Self> {
        command.process_group(0);
        let shown = format!("{command:?}");
        let child = spawn_from_lasting_thread(command).with_context(|| {
            format!("starting {shown} (setpriv is in the Debian package util-linux)")
        })?;
        Ok(Self { child })
    }

    /// The process id, which is also that of its group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child's pipes, for those that were asked for in the command.
    pub fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends `signal` to this one process, not to what it started.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(raw(self.pid())?, signal)
            .with_context(|| format!("sending {signal} to {}", self.pid()))
    }

    /// The exit status, if the process has ended.
    ///
    /// # Errors
    /// When the kernel refuses to say.
    pub fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the process has ended by itself or by a signal that was sent before.
    ///
    /// # Errors
    /// When it still runs after `within`.
    pub async fn wait_exit(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let pid = self.pid();
        wait_for(within, &format!("process {pid} to end"), async || {
            self.try_wait().transpose()
        })
        .await?
    }

    /// Ends the process, its group and all its descendants with SIGKILL, and reaps it.
    pub fn kill(&mut self) {
        let below = tree_of(self.pid());
        // Only while the child is unreaped are its id and its group's certainly still ours.
        if matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(pid) = raw(self.pid()) {
                let _ = killpg(pid, Signal::SIGKILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for process in below {
            process.kill();
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.kill();
    }
}

fn raw(pid: u32) -> anyhow::Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(pid)?))
}

/// One running process, as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Process id.
    pub pid: u32,
    /// Id of the parent.
    pub parent: u32,
    /// Start time in clock ticks since boot; with the pid it names a process for good.
    pub started: u64,
    /// The command line, or the kernel's short name where there is none.
    pub command: String,
}

impl ProcessEntry {
    /// Whether this very process, not a later one with its id, still runs (a zombie does not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        read_entry(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Ends this very process with SIGKILL, if it still runs.
    pub fn kill(&self) {
        if self.is_alive()
            && let Ok(pid) = raw(self.pid)
            && let Err(error) = kill(pid, Signal::SIGKILL)
        {
            // It ended between the look and the signal, which is what was wanted.
            debug_assert_eq!(error, Errno::ESRCH);
        }
    }
}

/// All running descendants of `pid`, parents before children, without `pid` itself.
///
/// A process whose parent has ended is re-parented and no longer found this way; see [`marked`].
#[must_use]
pub fn tree_of(pid: u32) -> Vec<ProcessEntry> {
    let all = processes();
    let mut found: Vec<ProcessEntry> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// All running processes that have `variable=value` in the environment they were started with,
/// wherever they were re-parented to.
///
/// # Errors
/// When `variable` is empty, which would match nothing and prove nothing.
pub fn marked(variable: &str, value: &str) -> anyhow::Result<Vec<ProcessEntry>> {
    if variable.is_empty() {
        bail!("a mark needs a variable name");
    }
    let mark = format!("{variable}={value}");
    let carries = |process: &ProcessEntry| {
        std::fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(|all| {
            all.split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes())
        })
    };
    Ok(processes().into_iter().filter(carries).collect())
}

fn processes() -> Vec<ProcessEntry> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(read_entry)
        .collect()
}

/// `None` for a process that is gone or has ended and only waits to be reaped.
fn read_entry(pid: u32) -> Option<ProcessEntry> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself hold spaces and parentheses.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut fields = tail.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let command = if words.is_empty() {
        name.to_owned()
    } else {
        words.join(" ")
    };
    Some(ProcessEntry {
        pid,
        parent,
        started,
        command,
    })
}
