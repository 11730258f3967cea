//! Admission: the limits on the number of connections, and the places that are reserved.
//!
//! Every process of this host may open connections, and their address is the same, so no limit per
//! client keeps one of them from taking all. Therefore an eighth of the places is reserved:
//!
//! | places | for |
//! |---|---|
//! | 14 of 16 | all connections |
//! | 1 of 16 | the Unix socket, whose clients the operator selects by its permissions |
//! | 1 of 16 | guards: connections whose first request keeps a lock, such as an event stream |
//!
//! A connection shows only with its first request that it is a guard's. While all other places are
//! taken, each new connection therefore gets a place for guards. If none is free, the one that has
//! waited longest for its request is closed: a client that leaks connections keeps none of them.
//!
//! The number of places is bounded by the limit of open files, of which the process needs some
//! itself: the connection to the servers, files, checks.

use super::peer::Peer;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// Each kind of reserved places is this part of all.
const RESERVED_PART: isize = 16;

/// The part of the open files that clients do not get, and its minimum: what the process needs
/// itself, and connections that are about to be rejected.
const OWN_FILES_PART: u64 = 8;
const MIN_OWN_FILES: u64 = 64;

/// The minimum of `http.max_connections`.
const MIN_CONNECTIONS: usize = 16;

/// The paths of requests that keep or end what a session holds. Guards send them.
const GUARDS_PATHS: [&str; 3] = ["/v1/session/events/", "/v1/session/renew/", "/v1/session/destroy/"];

/// The kind of a connection's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// For all connections.
    General,
    /// Reserved for the Unix socket.
    Unix,
    /// Reserved for the requests of guards: see [`is_for_guards`].
    Guards,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    FromClient,
    InAll,
}

/// A place that a connection has.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) peer: Peer,
    pub(super) place: Place,
    /// Notified when the place was given to another connection; in a place for guards only.
    pub(super) eviction: Option<Arc<Notify>>,
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Admission {
    /// Less than zero until the connections that lost their places have ended.
    free: [isize; 3],
    /// The connections in places for guards that have sent no request, the oldest first.
    unclaimed: VecDeque<Arc<Notify>>,
    per_client: HashMap<IpAddr, usize>,
    per_client_limit: usize,
}

impl Admission {
    pub(super) fn new(connections: usize, per_client_limit: usize) -> Self {
        let connections = isize::try_from(connections).unwrap_or(isize::MAX);
        let reserved = connections / RESERVED_PART;
        let free = [connections - 2 * reserved, reserved, reserved];
        Self { free, unclaimed: VecDeque::new(), per_client: HashMap::new(), per_client_limit }
    }

    /// Takes a place for a connection.
    ///
    /// # Errors
    /// The exceeded limit. No place was taken.
    pub(super) fn admit(&mut self, peer: Peer) -> Result<Seat, Excess> {
        let counted = counted(peer);
        let from_client = counted.and_then(|address| self.per_client.get(&address));
        if from_client.is_some_and(|count| *count >= self.per_client_limit) {
            return Err(Excess::FromClient);
        }
        let is_unix = matches!(peer, Peer::Unix { .. });
        let mut places = [Place::General, Place::Unix, Place::Guards].into_iter();
        let free = places.find(|place| self.free[*place as usize] > 0 && (*place != Place::Unix || is_unix));
        let place = match free {
            Some(place) => place,
            None => {
                self.unclaimed.pop_front().ok_or(Excess::InAll)?.notify_one();
                Place::Guards
            }
        };
        self.free[place as usize] -= 1;
        let eviction = (place == Place::Guards).then(Arc::<Notify>::default);
        self.unclaimed.extend(eviction.clone());
        if let Some(address) = counted {
            *self.per_client.entry(address).or_default() += 1;
        }
        Ok(Seat { peer, place, eviction })
    }

    /// Keeps a place for the request that has arrived.
    pub(super) fn claim(&mut self, seat: &Seat) {
        if let Some(eviction) = &seat.eviction {
            self.unclaimed.retain(|other| !Arc::ptr_eq(other, eviction));
        }
    }

    /// Returns the place of a connection that has ended.
    pub(super) fn release(&mut self, seat: &Seat) {
        // A connection that has ended must not be chosen to lose its place.
        self.claim(seat);
        self.free[seat.place as usize] += 1;
        let Some(address) = counted(seat.peer) else { return };
        if let Some(count) = self.per_client.get_mut(&address) {
            *count -= 1;
            // Addresses of disconnected clients must not accumulate.
            if *count == 0 {
                self.per_client.remove(&address);
            }
        }
    }
}

/// Returns the address whose connections are limited. All applications of this host use one
/// address: the limit is for other hosts.
fn counted(peer: Peer) -> Option<IpAddr> {
    peer.ip().filter(|address| !address.to_canonical().is_loopback())
}

/// Returns `true` if a request to this path is served in a place that is reserved for guards.
pub(super) fn is_for_guards(path: &str) -> bool {
    GUARDS_PATHS.iter().any(|known| path.starts_with(known))
}

/// Returns the number of connections, at most the configured one, for which this process may open
/// files.
pub(crate) fn that_fit(open_files: u64, configured: usize) -> usize {
    let own = (open_files / OWN_FILES_PART).max(MIN_OWN_FILES);
    let room = usize::try_from(open_files.saturating_sub(own)).unwrap_or(usize::MAX);
    configured.min(room.max(MIN_CONNECTIONS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const UNIX: Peer = Peer::Unix { uid: None, gid: None, pid: None, accepted_at: Duration::ZERO };

    fn tcp(address: [u8; 4]) -> Peer {
        Peer::Tcp((address, 1).into())
    }

    /// Takes places until there is none; those for guards get a request each.
    fn fill(admission: &mut Admission, peer: Peer) -> Vec<Seat> {
        let next = || {
            let seat = admission.admit(peer).ok()?;
            admission.claim(&seat);
            Some(seat)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn reserved_places_for_socket_and_guards() {
        let mut admission = Admission::new(48, 1);
        let local = tcp([127, 0, 0, 1]);
        let count = |seats: &[Seat], place| seats.iter().filter(|seat| seat.place == place).count();
        let seats = fill(&mut admission, local);
        assert_eq!((count(&seats, Place::General), count(&seats, Place::Guards), seats.len()), (42, 3, 45));
        assert_eq!(admission.admit(local).err(), Some(Excess::InAll));
        let own = fill(&mut admission, UNIX);
        assert_eq!((count(&own, Place::Unix), own.len()), (3, 3));
        seats[41..43].iter().for_each(|seat| admission.release(seat));
        let more = fill(&mut admission, UNIX);
        assert_eq!((count(&more, Place::General), count(&more, Place::Guards)), (1, 1), "it may use all");
        admission.release(&own[0]);
        assert_eq!(admission.admit(local).err(), Some(Excess::InAll), "its places are its own");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_client_loses_guard_place() {
        let mut admission = Admission::new(32, 1);
        let local = tcp([127, 0, 0, 1]);
        let mut admitted = || admission.admit(local);
        let general: Vec<_> = (0..28).map(|_| admitted().expect("a place is free")).collect();
        assert!(general.iter().all(|seat| seat.eviction.is_none()));
        let [first, second, third] = [admitted(), admitted(), admitted()].map(|seat| seat.expect("a place"));
        let evicted = async |seat: &Seat| {
            let eviction = seat.eviction.clone().expect("it is a place for guards");
            timeout(Duration::from_secs(1), eviction.notified()).await.expect("it lost its place");
        };
        evicted(&first).await;
        admission.claim(&second);
        let fourth = admission.admit(local).expect("a place");
        evicted(&third).await;
        admission.claim(&fourth);
        assert_eq!(admission.admit(local).err(), Some(Excess::InAll), "both have a request");
        // Those that lost their places end late.
        [&first, &third].into_iter().for_each(|seat| admission.release(seat));
        assert_eq!(admission.admit(local).err(), Some(Excess::InAll));
        admission.release(&fourth);
        assert!(admission.admit(local).is_ok());
    }

    #[test]
    fn per_client_connection_limit() {
        let mut admission = Admission::new(16, 2);
        let other = tcp([10, 0, 0, 1]);
        let (first, second) =
            (admission.admit(other).expect("a place"), admission.admit(other).expect("a place"));
        assert_eq!(admission.admit(other).err(), Some(Excess::FromClient));
        let _third = admission.admit(tcp([10, 0, 0, 2])).expect("a place");
        admission.release(&first);
        assert!(admission.admit(other).is_ok());
        [&first, &second].into_iter().for_each(|seat| admission.release(seat));
        assert_eq!(admission.per_client.len(), 1, "an address without connections is forgotten");
    }

    #[test]
    fn connection_limit_spares_open_files() {
        for (open_files, configured, expected) in [
            (131_072, 65_536, 65_536),
            (65_536, 65_536, 57_344),
            (300, 65_536, 236),
            (10, 65_536, 16),
            (u64::MAX, 65_536, 65_536),
            (1_024, 16, 16),
        ] {
            assert_eq!(that_fit(open_files, configured), expected, "{open_files} {configured}");
        }
    }

    #[test]
    fn session_guard_routes() {
        assert!(is_for_guards("/v1/session/events/x") && is_for_guards("/v1/session/renew/x"));
        assert!(!is_for_guards("/v1/session/list") && !is_for_guards("/v1/kv/session/events/"));
    }
}
