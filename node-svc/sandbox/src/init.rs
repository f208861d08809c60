//! The first process inside: prepares the sandbox, starts the command, reaps, and ends with it.
//!
//! It holds one end of a socket to the supervisor, the lifeline: when the other end closes, the
//! supervisor is gone and so must everything else be. In a pid namespace the kernel sees to that
//! as well (parent death signal on pid 1). Without one, this process is the child subreaper, so
//! that whatever double-forks away comes back to it.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::unshare;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, chdir, execve, getpid, sethostname, setpgid, setsid};

use crate::cgroup::Cgroup;
use crate::error::{Fault, Step};
use crate::handshake::{Message, Reporter, Request};
use crate::probe::{INNER_NAMESPACES, Isolation};
use crate::proctree::{descendants, pause};
use crate::{privileges, root, sys};

/// Exit status of init and supervisor when a step failed before the command was executed.
pub(crate) const SETUP_FAILED: i32 = 70;

const KILL_PAUSE: Duration = Duration::from_millis(5);
const LEAST_LIKELY_OOM_VICTIM: &str = "-1000";
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Everything that init owns.
#[derive(Debug)]
pub(crate) struct Init<'a> {
    pub(crate) request: &'a Request,
    pub(crate) groups: &'a [Cgroup],
    pub(crate) reporter: &'a mut Reporter,
    pub(crate) lifeline: UnixStream,
}

/// Runs init to its end and exits this process.
pub(crate) fn run(mut init: Init<'_>) -> ! {
    let started = init.start();
    let (command, signals) = match started {
        Ok(started) => started,
        Err(fault) => {
            init.reporter.send(&Message::from(&fault));
            sys::exit_now(SETUP_FAILED);
        }
    };
    let Init {
        request,
        reporter,
        mut lifeline,
        ..
    } = init;
    reporter.close();
    let status = serve(command, &signals, &lifeline);
    if request.isolation != Isolation::Full {
        end_descendants();
    }
    if let Some(status) = status {
        // The supervisor may be gone, and then nobody asks.
        let _nobody_may_ask = lifeline.write_all(&status.to_ne_bytes());
    }
    sys::exit_now(0);
}

impl Init<'_> {
    /// Prepares everything and executes the command; returns when it runs.
    fn start(&mut self) -> Result<(Pid, SignalFd), Fault> {
        let full = self.request.isolation == Isolation::Full;
        let spec = &self.request.spec;
        if full {
            tie_to_supervisor()?;
        }
        self.groups.iter().try_for_each(Cgroup::join)?;
        if full {
            for (flag, what) in INNER_NAMESPACES {
                unshare(flag).step(|| format!("enter a new {what}"))?;
            }
            root::enter(spec)?;
            let name = spec.effective_hostname();
            sethostname(name).step(|| format!("set host name {name}"))?;
            setsid().step(|| "start a session")?;
        } else {
            prctl::set_child_subreaper(true).step(|| "become the subreaper")?;
        }
        let signals = blocked_signals()?;
        let (mut executed, failed) = io::pipe().step(|| "make a pipe")?;
        let Some(command) = sys::fork_single_threaded().step(|| "fork the command")? else {
            let Err(fault) = self.execute();
            self.reporter.send(&Message::from(&fault));
            let mut failed = failed;
            let _init_sees_the_exit_too = failed.write_all(b"!");
            sys::exit_now(SETUP_FAILED);
        };
        drop(failed);
        if full {
            // Without it init is as good a victim as any, and the workload would lose its record.
            let _optional = fs::write("/proc/self/oom_score_adj", LEAST_LIKELY_OOM_VICTIM);
        }
        privileges::drop_all(spec.uid, spec.gid, full)?;
        prctl::set_dumpable(false).step(|| "hide init's memory")?;
        if full {
            // A change of user has undone it. If the supervisor died in between, the lifeline tells.
            tie_to_supervisor()?;
        }
        let mut failure = Vec::new();
        executed
            .read_to_end(&mut failure)
            .step(|| "wait for the command")?;
        if failure.is_empty() {
            Ok((command, signals))
        } else {
            // The command has reported the step itself.
            sys::exit_now(SETUP_FAILED);
        }
    }

    /// In the command's process: becomes the command.
    fn execute(&mut self) -> Result<std::convert::Infallible, Fault> {
        let spec = &self.request.spec;
        let full = self.request.isolation == Isolation::Full;
        let own = getpid();
        setpgid(own, own).step(|| "start a process group")?;
        let (mut cwd, mut program) = (spec.cwd.clone(), spec.argv[0].clone());
        if !full {
            cwd = spec.host_path(&cwd);
            program = spec
                .host_path(Path::new(&program))
                .to_string_lossy()
                .into_owned();
            // Before the user changes: the folders above a volume may be closed to it.
            chdir(&cwd).step(|| format!("enter {}", cwd.display()))?;
        }
        privileges::reset_limits(&spec.limits)?;
        privileges::drop_all(spec.uid, spec.gid, full)?;
        if full {
            chdir(&cwd).step(|| format!("enter {}", cwd.display()))?;
        }
        let text = |text: &str| CString::new(text).step(|| "read the command");
        let environment: Vec<CString> = spec
            .env
            .iter()
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_, _>>()?;
        let mut arguments = vec![text(&program)?];
        for argument in &spec.argv[1..] {
            arguments.push(text(argument)?);
        }
        privileges::reset_signals()?;
        self.reporter.send(&Message::Executing);
        let mut refused = nix::errno::Errno::ENOENT;
        for candidate in candidates(&program, &spec.env) {
            let Err(errno) = execve(&text(&candidate)?, &arguments, &environment);
            if errno != nix::errno::Errno::ENOENT {
                refused = errno;
                break;
            }
        }
        Err(refused).step(|| format!("run {program}"))
    }
}

/// Only for pid 1, whose death ends all others; without a pid namespace init must live to do so.
fn tie_to_supervisor() -> Result<(), Fault> {
    prctl::set_pdeathsig(Signal::SIGKILL).step(|| "tie init to its supervisor")
}

/// The paths that a program name stands for.
fn candidates(program: &str, env: &[(String, String)]) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map_or(DEFAULT_PATH, |(_, value)| value);
    path.split(':')
        .filter(|dir| !dir.is_empty())
        .map(|dir| format!("{dir}/{program}"))
        .collect()
}

/// The signals that init and supervisor take from a descriptor instead of being interrupted.
pub(crate) fn blocked_signals() -> Result<SignalFd, Fault> {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
    ] {
        set.add(signal);
    }
    set.thread_set_mask().step(|| "block signals")?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    SignalFd::with_flags(&set, flags).step(|| "take signals from a descriptor")
}

/// Reaps until the command has ended; its wait status, or `None` if the supervisor went first.
fn serve(command: Pid, signals: &SignalFd, lifeline: &UnixStream) -> Option<i32> {
    loop {
        // A child may have ended before its signal was blocked, so look first, then wait.
        while let Ok(Some((pid, status))) = sys::reap_one() {
            if pid == command.as_raw() {
                return Some(status);
            }
        }
        let mut polled = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(lifeline.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        if polled[1].any() == Some(true) {
            return None;
        }
        while let Ok(Some(info)) = signals.read_signal() {
            if matches!(
                i32::try_from(info.ssi_signo),
                Ok(libc::SIGTERM | libc::SIGINT)
            ) {
                // The group may just have ended by itself.
                let _may_be_over = kill(Pid::from_raw(-command.as_raw()), Signal::SIGTERM);
            }
        }
    }
}

/// Kills and reaps everything below this process, which is a subreaper, until nothing is left.
pub(crate) fn end_descendants() {
    let own = getpid().as_raw();
    loop {
        for pid in descendants(own) {
            let _may_be_over = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        loop {
            match sys::reap_one() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // No child is left at all.
                Err(_) => return,
            }
        }
        pause(KILL_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_up_in_the_given_path() {
        let env = [("PATH".to_owned(), "/a::/b".to_owned())];
        assert_eq!(candidates("x", &env), ["/a/x", "/b/x"]);
        assert_eq!(candidates("./x", &env), ["./x"]);
        assert_eq!(candidates("x", &[]).len(), 3);
    }
}
