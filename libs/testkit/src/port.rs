//! Hands out loopback ports that stay free until the caller's server has bound them.
//!
//! Ports below the ephemeral range are used, so that no outgoing connection takes one between two
//! lives of a server, and each is reserved against other test processes by an abstract Unix
//! socket that the kernel drops when this process ends.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};

const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

#[derive(Debug)]
struct Reserved {
    next: u16,
    /// Held, never read: dropping one would give its port back.
    held: Vec<UnixListener>,
}

static RESERVED: Mutex<Option<Reserved>> = Mutex::new(None);

/// A loopback TCP port that nobody listens on, reserved for this process until it ends.
///
/// # Errors
/// When every port of the range is taken.
pub fn free_port() -> anyhow::Result<u16> {
    let mut guard = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let reserved = guard.get_or_insert_with(|| Reserved {
        // Test processes that start together begin their search at different places.
        next: u16::try_from(std::process::id().wrapping_mul(97) % u32::from(COUNT)).unwrap_or(0),
        held: Vec::new(),
    });
    for _ in 0..COUNT {
        let port = FIRST + reserved.next;
        reserved.next = (reserved.next + 1) % COUNT;
        let name = SocketAddr::from_abstract_name(format!("cnlab-testkit-port-{port}"))
            .context("naming a port reservation")?;
        let Ok(reservation) = UnixListener::bind_addr(&name) else {
            continue;
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            reserved.held.push(reservation);
            return Ok(port);
        }
    }
    bail!(
        "no free loopback port from {FIRST} to {}",
        FIRST + (COUNT - 1)
    );
}
