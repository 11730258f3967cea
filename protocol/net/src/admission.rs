//! Admission of connections: before the handshake by the address, afterwards by the node.
//!
//! A stranger can send the first packet of any number of handshakes, from any address. Each that is
//! begun costs memory and a signature, until it times out. Therefore:
//!
//! - While [`RETRY_ABOVE`] handshakes are in progress, an address must prove that it receives
//!   replies (address validation by QUIC's Retry), which costs this end no memory.
//! - Validated addresses have a share each, and the last quarter is reserved for known addresses,
//!   which the cluster's agents and servers have. Their share is larger.
//! - A node has a limited number of connections. The newest wins, as a restarted process has no
//!   other, and the connections of its earlier life end by a timeout only.

use crate::quic::Arrival;
use lockmesh_protocol::id::NodeName;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of handshakes in progress above which an unknown address is validated first; half of
/// the maximum, if that is less.
pub const RETRY_ABOVE: usize = 64;

/// The fraction of the handshakes that is reserved for known addresses.
const RESERVED: usize = 4;

/// The fraction of the handshakes that one unknown address can have. A known one can have half.
const SHARE: usize = 8;

/// The maximum number of known addresses.
const MAX_KNOWN: usize = 1 << 17;

/// The treatment of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Begin,
    /// Its address has to be validated first.
    Retry,
    Refuse,
}

/// The handshakes in progress.
#[derive(Debug)]
struct Handshakes {
    max: usize,
    count: usize,
    /// The handshakes of each validated address. An address that is not validated may be forged,
    /// and must not use up the share of its owner.
    validated: BTreeMap<IpAddr, usize>,
    /// The addresses of the roster.
    known: BTreeSet<IpAddr>,
    /// The addresses from which a peer of the cluster has connected, such as one of a NAT.
    seen: BTreeSet<IpAddr>,
}

impl Handshakes {
    fn is_known(&self, from: IpAddr) -> bool {
        self.known.contains(&from) || self.seen.contains(&from)
    }

    /// Returns what has a share: a known address, or the network of an unknown one.
    fn party(&self, from: IpAddr) -> IpAddr {
        if self.is_known(from) { from } else { network(from) }
    }

    fn decide(&self, from: IpAddr, is_validated: bool) -> Decision {
        let (max, is_known) = (self.max, self.is_known(from));
        // Known addresses can be forged too, so they are spared the round trip only up to half.
        let retry_above = if is_known { max / 2 } else { RETRY_ABOVE.min(max / 2) };
        if !is_validated && self.count >= retry_above.max(1) {
            return Decision::Retry;
        }
        let (limit, share) = if is_known { (max, max / 2) } else { (max - max / RESERVED, max / SHARE) };
        let of_address = self.validated.get(&self.party(from)).copied().unwrap_or_default();
        // With a low limit, a share rounds down to none.
        match self.count < limit && of_address < share.max(1) {
            true => Decision::Begin,
            false => Decision::Refuse,
        }
    }

    /// Returns the party whose share it takes; `None` if its address is not validated.
    fn begin(&mut self, from: IpAddr, is_validated: bool) -> Option<IpAddr> {
        self.count += 1;
        let party = is_validated.then(|| self.party(from))?;
        *self.validated.entry(party).or_default() += 1;
        Some(party)
    }

    fn end(&mut self, party: Option<IpAddr>) {
        self.count -= 1;
        let Some(party) = party else { return };
        if let Some(count) = self.validated.get_mut(&party) {
            *count -= 1;
            // Otherwise the map would grow with every address that ever connected.
            if *count == 0 {
                self.validated.remove(&party);
            }
        }
    }
}

/// Returns the part of an address that its owner cannot choose: of IPv6 the first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// Admits the arrivals of an endpoint to a limited number of handshakes; clones share it.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Mutex<Handshakes>>);

/// The result of an arrival.
#[derive(Debug)]
pub enum Admitted {
    /// Its handshake may begin; the turn is to be dropped when it ends.
    Yes(Arrival, HandshakeTurn),
    /// Its address is being validated: it arrives again.
    Retried,
    /// There are too many handshakes; the peer was notified.
    Refused,
}

/// A handshake in progress; it ends when this is dropped.
#[derive(Debug)]
pub struct HandshakeTurn {
    admission: Admission,
    party: Option<IpAddr>,
}

impl Admission {
    /// Creates an admission of `max` concurrent handshakes.
    pub fn new(max: usize) -> Self {
        let (validated, known, seen) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self(Arc::new(Mutex::new(Handshakes { max, count: 0, validated, known, seen })))
    }

    /// Begins the handshake of an arrival, or validates its address, or rejects it.
    pub fn admit(&self, arrival: Arrival) -> Admitted {
        let (from, is_validated) = (arrival.remote_address().ip(), arrival.is_validated());
        let mut handshakes = self.lock();
        match handshakes.decide(from, is_validated) {
            Decision::Begin => {
                // Kept until the end: an address that becomes known meanwhile belongs to another
                // party.
                let party = handshakes.begin(from, is_validated);
                Admitted::Yes(arrival, HandshakeTurn { admission: self.clone(), party })
            }
            Decision::Retry => {
                arrival.retry();
                Admitted::Retried
            }
            Decision::Refuse => {
                arrival.refuse();
                Admitted::Refused
            }
        }
    }

    /// Replaces the addresses of the roster.
    pub fn know_only(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let known = addresses.into_iter().take(MAX_KNOWN).collect();
        self.lock().known = known;
    }

    /// Adds an address from which a peer of the cluster has connected.
    pub fn know(&self, address: IpAddr) {
        let seen = &mut self.lock().seen;
        // A peer with a valid certificate may connect from any number of addresses.
        if seen.len() < MAX_KNOWN {
            seen.insert(address);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Handshakes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        self.admission.lock().end(self.party);
    }
}

/// The open connections of each node, in the order in which they began.
#[derive(Debug)]
pub struct NodeConnections<C> {
    max: usize,
    max_of_node: usize,
    nodes: BTreeMap<NodeName, VecDeque<(u64, C)>>,
    count: usize,
    last: u64,
}

/// The place of a new connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Place<C> {
    /// It has this number. The older connection, if any, is to be closed: it has no place any more.
    Number(u64, Option<C>),
    /// All places are taken by other nodes.
    Full,
}

impl<C> NodeConnections<C> {
    /// Creates an empty table with room for `max` connections, `max_of_node` of them of one node.
    pub fn new(max: usize, max_of_node: usize) -> Self {
        Self { max, max_of_node, nodes: BTreeMap::new(), count: 0, last: 0 }
    }

    /// Gives a new connection a place, if necessary that of the node's oldest one.
    pub fn enter(&mut self, node: &NodeName, connection: C) -> Place<C> {
        // Names are compared without regard to case: another spelling gets no further places.
        let node = node.folded();
        let of_node = self.nodes.get_mut(&node);
        let is_full = self.count >= self.max;
        let displaced = match of_node {
            Some(open) if is_full || open.len() >= self.max_of_node => open.pop_front().map(|(_, old)| old),
            None if is_full => return Place::Full,
            _ => None,
        };
        self.count += usize::from(displaced.is_none());
        self.last += 1;
        self.nodes.entry(node).or_default().push_back((self.last, connection));
        Place::Number(self.last, displaced)
    }

    /// Frees the place of a connection that has ended; does nothing if it lost its place before.
    pub fn leave(&mut self, node: &NodeName, number: u64) {
        let node = node.folded();
        let Some(open) = self.nodes.get_mut(&node) else { return };
        let before = open.len();
        open.retain(|(other, _)| *other != number);
        self.count -= before - open.len();
        if open.is_empty() {
            self.nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 512;

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    /// The handshakes of a server that knows the address 1.
    struct Story(Handshakes);

    impl Story {
        fn new() -> Self {
            let Admission(shared) = Admission::new(MAX);
            let handshakes = Arc::into_inner(shared).unwrap().into_inner().unwrap();
            Self(Handshakes { known: [address(1)].into(), ..handshakes })
        }

        /// Lets an address begin as many handshakes as it can; returns their number and the
        /// treatment of the next.
        fn begin(&mut self, from: IpAddr, is_validated: bool) -> (usize, Decision) {
            let before = self.0.count;
            loop {
                match self.0.decide(from, is_validated) {
                    Decision::Begin => _ = self.0.begin(from, is_validated),
                    other => return (self.0.count - before, other),
                }
            }
        }
    }

    #[test]
    fn unproven_addresses_begin_few_handshakes() {
        let mut story = Story::new();
        assert_eq!(story.begin(address(9), false), (RETRY_ABOVE, Decision::Retry));
        assert_eq!(story.begin(address(8), false), (0, Decision::Retry));
        // A known address is spared the round trip, and one that was validated needs no other.
        assert_eq!(story.0.decide(address(1), false), Decision::Begin);
        assert_eq!(story.0.decide(address(9), true), Decision::Begin);
        assert_eq!(story.begin(address(1), false), (MAX / 2 - RETRY_ABOVE, Decision::Retry));
        assert_eq!(story.0.decide(address(1), true), Decision::Begin);
    }

    #[test]
    fn one_stranger_begins_an_eighth() {
        let mut story = Story::new();
        assert_eq!(story.begin(address(9), true), (MAX / 8, Decision::Refuse));
        assert_eq!(story.begin(address(8), true), (MAX / 8, Decision::Refuse));
        let of = |last| Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, last).into();
        assert_eq!(story.begin(of(1), true), (MAX / 8, Decision::Refuse));
        assert_eq!(story.0.decide(of(2), true), Decision::Refuse, "it has a whole network");
        story.0.end(Some(network(of(1))));
        story.begin(of(1), true);
        // A neighbor that has connected has a share of its own.
        story.0.seen.insert(of(2));
        assert_eq!(story.0.decide(of(2), true), Decision::Begin);
    }

    #[test]
    fn known_addresses_have_a_reserve() {
        let mut story = Story::new();
        let strangers: usize = (2..=255).map(|number| story.begin(address(number), true).0).sum();
        assert_eq!(strangers, MAX - MAX / 4);
        assert_eq!(story.begin(address(1), true), (MAX / 4, Decision::Refuse));
    }

    #[test]
    fn one_known_address_begins_half() {
        assert_eq!(Story::new().begin(address(1), true), (MAX / 2, Decision::Refuse));
    }

    #[test]
    fn ended_handshakes_leave_nothing() {
        let mut story = Story::new();
        for is_validated in [false, true] {
            let party = story.0.begin(address(9), is_validated);
            // It has connected, and is known from now on.
            story.0.seen.insert(address(9));
            story.0.end(party);
        }
        assert_eq!((story.0.count, story.0.validated.len()), (0, 0));
    }

    #[test]
    fn node_limit_evicts_oldest_connection() {
        let mut table = NodeConnections::new(20, 2);
        let (hostile, other) = (NodeName::from("a1"), NodeName::from("a2"));
        let mut enter = |node: &NodeName, connection| table.enter(node, connection);
        assert_eq!(enter(&hostile, 1), Place::Number(1, None));
        assert_eq!(enter(&"A1".into(), 2), Place::Number(2, None));
        assert_eq!(enter(&hostile, 3), Place::Number(3, Some(1)));
        assert_eq!(enter(&other, 4), Place::Number(4, None));
        assert_eq!(enter(&hostile, 5), Place::Number(5, Some(2)));
        // The end of a connection that lost its place frees no other.
        table.leave(&hostile, 1);
        assert_eq!(table.enter(&hostile, 6), Place::Number(6, Some(3)));
        table.leave(&hostile, 5);
        assert_eq!(table.enter(&hostile, 7), Place::Number(7, None));
        [6, 7].into_iter().for_each(|number| table.leave(&hostile, number));
        table.leave(&other, 4);
        assert_eq!((table.count, table.nodes.len()), (0, 0));
    }

    #[test]
    fn full_table_admits_known_nodes() {
        let mut table = NodeConnections::new(2, 8);
        let [first, second, third] = ["a1", "a2", "a3"].map(NodeName::from);
        let places = [table.enter(&first, 1), table.enter(&second, 2)];
        assert_eq!(places, [Place::Number(1, None), Place::Number(2, None)]);
        assert_eq!(table.enter(&third, 3), Place::Full);
        assert_eq!(table.enter(&first, 4), Place::Number(3, Some(1)));
        table.leave(&second, 2);
        assert_eq!(table.enter(&third, 5), Place::Number(4, None));
    }
}
