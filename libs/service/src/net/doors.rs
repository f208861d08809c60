//! How many connections may be open, in all and of one address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Debug)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Counts connections.
#[derive(Debug, Clone)]
pub struct Doors {
    open: Arc<Mutex<Open>>,
    most: usize,
    most_per_address: usize,
}

/// One open connection, until it is dropped: a WebSocket takes it along.
#[derive(Debug)]
pub struct Ticket {
    open: Arc<Mutex<Open>>,
    address: IpAddr,
}

impl Doors {
    /// At most `most` in all, and `most_per_address` of one address (IPv6: of one /64).
    #[must_use]
    pub fn new(most: usize, most_per_address: usize) -> Self {
        let open = Open {
            all: 0,
            by_address: HashMap::new(),
        };
        Self {
            open: Arc::new(Mutex::new(open)),
            most,
            most_per_address,
        }
    }

    /// Lets a connection in, if there is room.
    #[must_use]
    pub fn admit(&self, address: IpAddr) -> Option<Ticket> {
        let address = household(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.most {
            return None;
        }
        let of_address = open.by_address.entry(address).or_insert(0);
        if *of_address >= self.most_per_address {
            return None;
        }
        *of_address += 1;
        open.all += 1;
        Some(Ticket {
            open: Arc::clone(&self.open),
            address,
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all = open.all.saturating_sub(1);
        if let Some(of_address) = open.by_address.get_mut(&self.address) {
            *of_address = of_address.saturating_sub(1);
            if *of_address == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

/// A home has a whole /64 of IPv6: its addresses count as one.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_close_in_all_and_per_address() {
        let doors = Doors::new(3, 2);
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        let first = doors.admit(one).unwrap();
        let _second = doors.admit(one).unwrap();
        assert!(doors.admit(one).is_none());
        let _third = doors.admit("10.0.0.2".parse().unwrap()).unwrap();
        assert!(doors.admit("10.0.0.3".parse().unwrap()).is_none());
        drop(first);
        assert!(doors.admit(one).is_some());
    }

    #[test]
    fn one_household_counts_as_one() {
        let doors = Doors::new(10, 1);
        let _open = doors.admit("2001:db8::1".parse().unwrap()).unwrap();
        assert!(doors.admit("2001:db8::2".parse().unwrap()).is_none());
        assert!(doors.admit("2001:db8:0:1::2".parse().unwrap()).is_some());
        let _mapped = doors.admit("::ffff:10.0.0.1".parse().unwrap()).unwrap();
        assert!(doors.admit("10.0.0.1".parse().unwrap()).is_none());
    }

    #[test]
    fn nothing_is_kept_of_who_left() {
        let doors = Doors::new(10, 10);
        drop(doors.admit("10.0.0.1".parse().unwrap()));
        let open = doors.open.lock().unwrap();
        assert_eq!((open.all, open.by_address.len()), (0, 0));
    }
}
