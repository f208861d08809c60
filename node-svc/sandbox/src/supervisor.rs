//! The process between a workload and the machine: outlives its caller, records the end.
//!
//! It keeps the host's view and root's rights, runs nothing of the workload, and holds no pipe to
//! the caller once the start is reported. SIGTERM and SIGINT ask the command to end, SIGQUIT ends
//! everything, and so does time where the workload has a [`Watch`]; when all is gone it writes the
//! exit record, which is why that comes last.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Pid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, fchown, geteuid, setsid};

use crate::cgroup::{self, Cgroup, CreateError};
use crate::deadline::Due;
use crate::error::{Fault, Step};
use crate::handshake::{Message, Reporter, Request};
use crate::init::{self, Init, SETUP_FAILED, blocked_signals, end_descendants};
use crate::probe::Isolation;
use crate::proctree::ProcessId;
use crate::record::{self, Exit, ExitRecord};
use crate::spec::SandboxSpec;
use crate::sys;
use crate::watch::Watch;

/// Turns this process into the supervisor of one workload and returns when that has ended.
///
/// Must be the first thing that the program does when [`crate::EXEC_VERB`] is its first argument:
/// it forks, so no thread may exist. `args` is what follows the verb; it only tells a reader of
/// `ps` whose process this is. [`crate::Launcher::start`] speaks to it through stdin and stdout.
pub fn sandbox_exec_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    drop(args.into_iter());
    let failed = ExitCode::from(70);
    if sys::close_from(3).is_err() {
        return failed;
    }
    let mut text = String::new();
    let request = io::stdin()
        .read_to_string(&mut text)
        .ok()
        .map(|_| serde_json::from_str(&text));
    let (Some(Ok(request)), Ok(handshake)) = (request, io::stdout().as_fd().try_clone_to_owned())
    else {
        return failed;
    };
    match supervise(&request, &mut Reporter::new(handshake.into())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(()) => failed,
    }
}

/// What a start leaves running.
struct Started {
    init: Pid,
    lifeline: UnixStream,
    signals: SignalFd,
    groups: Vec<Cgroup>,
    watch: Option<Watch>,
}

fn supervise(request: &Request, reporter: &mut Reporter) -> Result<(), ()> {
    let mut groups = Vec::new();
    let started = match start(request, reporter, &mut groups) {
        Ok(started) => started,
        Err(message) => {
            // Before the report, so that nothing is left when the caller reads it.
            let _reported_below = cgroup::remove_all(&groups);
            reporter.send(&message);
            return Err(());
        }
    };
    reporter.close();
    let Started {
        init,
        mut lifeline,
        signals,
        groups,
        mut watch,
    } = started;
    let init_status = serve(init, &signals, watch.as_mut());
    // From here on nothing of it goes on, and whoever is left is killed below.
    let deadline = watch.and_then(Watch::end);
    end_descendants();
    let exit = command_exit(&mut lifeline, init_status);
    let oom_kills = groups.iter().map(Cgroup::oom_kills).sum();
    let memory_peak_bytes = groups.iter().find_map(Cgroup::memory_peak);
    if let Err((path, error)) = cgroup::remove_all(&groups) {
        eprintln!("sandbox: cannot remove cgroup {}: {error}", path.display());
    }
    let Some(exit) = exit else { return Err(()) };
    let record = ExitRecord {
        id: request.spec.id.clone(),
        exit,
        deadline,
        oom_killed: oom_kills > 0 && exit.is_kill(),
        oom_kills,
        memory_peak_bytes,
        finished_at_unix_ms: unix_ms(),
    };
    record::write(&request.spec.exit_record, &record).map_err(|error| {
        let path = request.spec.exit_record.display();
        eprintln!("sandbox: cannot write {path}: {error}; the command ended with {exit}");
    })
}

fn start(
    request: &Request,
    reporter: &mut Reporter,
    groups: &mut Vec<Cgroup>,
) -> Result<Started, Message> {
    let failed = |fault: Fault| Message::from(&fault);
    prepare_process(&request.spec).map_err(failed)?;
    let signals = blocked_signals().map_err(failed)?;
    let spec = &request.spec;
    // Before anything of the workload exists.
    let watch = Watch::begin(spec).map_err(failed)?;
    let created =
        cgroup::create(&request.slots, &spec.id, &spec.limits).map_err(|error| match error {
            CreateError::Busy(pids) => Message::Busy { pids },
            CreateError::Fault(fault) => failed(fault),
        })?;
    groups.clone_from(&created.groups);
    if request.isolation == Isolation::Full {
        unshare(CloneFlags::CLONE_NEWPID)
            .step(|| "enter a new pid namespace")
            .map_err(failed)?;
    }
    let (ours, theirs) = UnixStream::pair()
        .step(|| "make a socket pair")
        .map_err(failed)?;
    let Some(init) = sys::fork_single_threaded()
        .step(|| "fork init")
        .map_err(failed)?
    else {
        drop(ours);
        drop(signals);
        if let Some(watch) = watch {
            watch.leave_to_parent();
        }
        init::run(Init {
            request,
            groups,
            reporter,
            lifeline: theirs,
        });
    };
    let identity = ProcessId::of(init.as_raw())
        .step(|| "look at init")
        .map_err(failed)?;
    let mut unenforced = request.unenforced.clone();
    unenforced.extend(created.unenforced);
    reporter.send(&Message::Forked {
        init: identity,
        cgroups: created.groups.clone(),
        unenforced,
    });
    Ok(Started {
        init,
        lifeline: ours,
        signals,
        groups: created.groups,
        watch,
    })
}

/// A session, standard streams and an umask that owe nothing to the caller.
fn prepare_process(spec: &SandboxSpec) -> Result<(), Fault> {
    setsid().step(|| "start a session")?;
    prctl::set_child_subreaper(true).step(|| "become the subreaper")?;
    prctl::set_name(c"cnlab-sandbox").step(|| "name the process")?;
    umask(Mode::from_bits_truncate(0o022));
    let null = File::open("/dev/null").step(|| "open /dev/null")?;
    dup2_stdin(&null).step(|| "detach stdin")?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(&spec.log);
    let log = log.step(|| format!("open log {}", spec.log.display()))?;
    if geteuid().is_root() {
        // Programs open /dev/stdout and /dev/stderr, which needs rights on the file itself.
        let (owner, group) = (Uid::from_raw(spec.uid), Gid::from_raw(spec.gid));
        fchown(&log, Some(owner), Some(group))
            .step(|| format!("give away {}", spec.log.display()))?;
    }
    dup2_stdout(&log).step(|| "redirect stdout")?;
    dup2_stderr(&log).step(|| "redirect stderr")?;
    let record = &spec.exit_record;
    record::remove(record).step(|| format!("remove old {}", record.display()))
}

/// Passes signals on, and ends what has no time left, until init has ended; its wait status.
fn serve(init: Pid, signals: &SignalFd, mut watch: Option<&mut Watch>) -> i32 {
    // Not reaped yet, so the number is still init's.
    let send = |signal| {
        let _may_be_over = kill(init, signal);
    };
    // A command that is asked twice may take it for impatience, and give up what it was saving.
    let (mut asked, mut asked_by_watch) = (false, false);
    loop {
        loop {
            match sys::reap_one() {
                Ok(Some((pid, status))) if pid == init.as_raw() => return status,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        match watch.as_deref_mut().map_or(Due::Nothing, Watch::look) {
            Due::Nothing => {}
            Due::Ask => {
                asked_by_watch = true;
                if !asked {
                    send(Signal::SIGTERM);
                }
            }
            Due::Kill => send(Signal::SIGKILL),
        }
        let mut polled = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if let Some(watch) = &watch {
            let source = |source| PollFd::new(source, PollFlags::POLLIN);
            polled.extend(watch.sources().map(source));
        }
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        while let Ok(Some(info)) = signals.read_signal() {
            match i32::try_from(info.ssi_signo) {
                Ok(libc::SIGTERM | libc::SIGINT) if !asked_by_watch => {
                    asked = true;
                    send(Signal::SIGTERM);
                }
                Ok(libc::SIGQUIT) => send(Signal::SIGKILL),
                _ => {}
            }
        }
    }
}

/// How the command ended: what init says, or how init itself was killed; `None` when the
/// command never ran, which init has reported.
fn command_exit(lifeline: &mut UnixStream, init_status: i32) -> Option<Exit> {
    let mut status = [0; 4];
    // Init is gone and nobody else has its end, so this ends at once.
    if lifeline.read_exact(&mut status).is_ok() {
        return Exit::from_wait_status(i32::from_ne_bytes(status));
    }
    match Exit::from_wait_status(init_status)? {
        Exit::Code(code) if code == SETUP_FAILED => None,
        exit => Some(exit),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process of its own without the kit; the time is only written down"
)]
fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
