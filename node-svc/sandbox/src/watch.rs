//! The supervisor's watch over the deadlines of its workload.
//!
//! A timer of the boot clock wakes the supervisor. A second one belongs to the kernel: it kills the
//! supervisor itself when that, stopped or stuck, lets a lease pass, and with it all that it holds.

use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::Timer;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::ClockId;

use crate::boottime::Boottime;
use crate::deadline::{Deadline, Deadlines, Due};
use crate::error::{Fault, Step};
use crate::renewal::Receiver;
use crate::spec::SandboxSpec;

/// What the supervisor has to do because time passed.
#[derive(Debug)]
pub(crate) struct Watch {
    deadlines: Deadlines,
    alarm: TimerFd,
    last_resort: Option<Timer>,
    renewals: Option<Receiver>,
}

impl Watch {
    /// Begins to count; `None` for a workload without deadlines.
    pub(crate) fn begin(spec: &SandboxSpec) -> Result<Option<Self>, Fault> {
        if spec.lease.is_none() && spec.max_runtime.is_none() {
            return Ok(None);
        }
        let alarm = TimerFd::new(
            TimerClock::CLOCK_BOOTTIME,
            TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
        )
        .step(|| "make a timer")?;
        let mut renewals = None;
        let mut last_resort = None;
        if let Some(leased) = &spec.lease {
            let receiver = Receiver::make(&leased.renewals);
            renewals = Some(receiver.step(|| format!("make pipe {}", leased.renewals.display()))?);
            let kill = SigEvent::new(SigevNotify::SigevSignal {
                signal: Signal::SIGKILL,
                si_value: 0,
            });
            let timer = Timer::new(ClockId::CLOCK_BOOTTIME, kill);
            last_resort = Some(timer.step(|| "make a timer that kills")?);
        }
        let lease = spec.lease.as_ref().map(|leased| leased.first);
        let mut watch = Self {
            deadlines: Deadlines::new(lease, spec.max_runtime, Boottime::now()),
            alarm,
            last_resort,
            renewals,
        };
        watch.arm_last_resort().step(|| "set a timer that kills")?;
        Ok(Some(watch))
    }

    /// In a forked child: lets go of everything. Timers that send signals stay with the parent.
    pub(crate) fn leave_to_parent(self) {
        std::mem::forget(self.last_resort);
    }

    /// Takes renewals in, and says what has to be done now.
    pub(crate) fn look(&mut self) -> Due {
        let deadlines = &mut self.deadlines;
        let mut renewed = false;
        if let Some(renewals) = &mut self.renewals
            && renewals
                .take(|lease| renewed |= deadlines.renew(lease))
                .is_err()
        {
            // What cannot be renewed ends in time.
            self.renewals = None;
        }
        if renewed && let Err(error) = self.arm_last_resort() {
            eprintln!("sandbox: cannot set a timer: {error}");
        }
        let due = self.deadlines.due(Boottime::now());
        if let Err(error) = self.arm_alarm() {
            eprintln!("sandbox: cannot set a timer: {error}");
        }
        due
    }

    /// What to wait for until the next look.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let renewals = self.renewals.as_ref().map(AsFd::as_fd);
        std::iter::once(self.alarm.as_fd()).chain(renewals)
    }

    /// Everything has ended: what the workload was ended for, if for a deadline.
    pub(crate) fn end(self) -> Option<Deadline> {
        // Dropping the timer that kills takes it back: the record is still to be written.
        self.deadlines.passed()
    }

    fn arm_alarm(&self) -> nix::Result<()> {
        match self.deadlines.next() {
            Some(at) => self
                .alarm
                .set(once(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME),
            None => self.alarm.unset(),
        }
    }

    fn arm_last_resort(&mut self) -> nix::Result<()> {
        match (&mut self.last_resort, self.deadlines.last_resort()) {
            (Some(timer), Some(at)) => timer.set(once(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME),
            _ => Ok(()),
        }
    }
}

/// A moment for a timer, which takes zero for none at all.
fn once(at: Boottime) -> Expiration {
    let at = at.since_boot().max(std::time::Duration::from_nanos(1));
    Expiration::OneShot(at.into())
}
