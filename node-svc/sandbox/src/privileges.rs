//! Gives up everything that the workload must not have, in the one order that works.
//!
//! The bounding set needs a capability to be emptied, so it goes first; the groups need one, so
//! they go before the user; the other sets are emptied once the user is changed.

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use crate::error::{Fault, Step};
use crate::spec::Limits;
use crate::sys;

const HIGHEST_CAPABILITY_WORD: libc::c_ulong = 64;
const DEFAULT_OPEN_FILES: u64 = 65_536;

/// Becomes the workload's user without any way back. Without root the user stays the caller's.
/// `strict` makes an incomplete bounding set an error: namespaces were promised.
pub(crate) fn drop_all(uid: u32, gid: u32, strict: bool) -> Result<(), Fault> {
    if geteuid().is_root() {
        empty_bounding_set(strict)?;
        setgroups(&[]).step(|| "drop supplementary groups")?;
        let gid = Gid::from_raw(gid);
        setresgid(gid, gid, gid).step(|| format!("become group {gid}"))?;
        let uid = Uid::from_raw(uid);
        setresuid(uid, uid, uid).step(|| format!("become user {uid}"))?;
    }
    sys::clear_ambient_capabilities().step(|| "clear ambient capabilities")?;
    sys::clear_capabilities().step(|| "clear capabilities")?;
    prctl::set_no_new_privs().step(|| "forbid new privileges")?;
    // Not every kernel has keyrings, and a user may have used up its quota of them; none of the
    // caller's keys is readable for another user anyway.
    let _optional = sys::join_new_keyring();
    Ok(())
}

fn empty_bounding_set(strict: bool) -> Result<(), Fault> {
    for capability in 0..HIGHEST_CAPABILITY_WORD {
        match sys::drop_bounding_capability(capability) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => break,
            Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) && !strict => break,
            Err(error) => return Err(error).step(|| "empty the capability bounding set"),
        }
    }
    Ok(())
}

/// No core files, and a number of open files that does not depend on the caller's.
pub(crate) fn reset_limits(limits: &Limits) -> Result<(), Fault> {
    setrlimit(Resource::RLIMIT_CORE, 0, 0).step(|| "forbid core files")?;
    let (_, ceiling) = getrlimit(Resource::RLIMIT_NOFILE).step(|| "read the open files limit")?;
    let files = limits.open_files.unwrap_or(DEFAULT_OPEN_FILES).min(ceiling);
    setrlimit(Resource::RLIMIT_NOFILE, files, files).step(|| format!("allow {files} open files"))
}

/// Default actions and an empty mask: a program expects them after exec.
pub(crate) fn reset_signals() -> Result<(), Fault> {
    sys::reset_signal_actions();
    SigSet::empty().thread_set_mask().step(|| "unblock signals")
}
