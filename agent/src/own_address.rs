//! The address at which servers and other agents reach this agent: configured, or the one from
//! which this host reaches its servers.
//!
//! It is found again with every connection to a server, and every few seconds while one lasts: an
//! agent may start before the network, and a host may get another address.

use lockmesh_protocol::host_port::{Host, HostPort};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// The timeout of looking up the configured name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The current address, shared by all parts of the agent.
#[derive(Clone, Debug)]
pub struct OwnAddress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: AddressSource,
    known: Mutex<IpAddr>,
}

/// The origin of the address.
#[derive(Debug)]
enum AddressSource {
    /// It is configured.
    Fixed,
    /// A configured name, which is resolved again.
    Name(String),
    /// The source address of packets to a server.
    Route,
}

impl OwnAddress {
    /// Returns an address that never changes.
    pub fn fixed(address: IpAddr) -> Self {
        Self::new(AddressSource::Fixed, address)
    }

    /// Returns the configured address. Without one it is the address from which this host reaches
    /// one of these servers now, or loopback until it reaches one.
    pub fn find(configured: Option<&Host>, servers: &[String]) -> Self {
        match configured {
            Some(Host::Ip(address)) => Self::fixed(*address),
            Some(Host::Name(name)) => {
                let found = (name.as_str(), 0).to_socket_addrs().ok().and_then(|mut found| found.next());
                // The name may not resolve before the network is up.
                let found = found.map(|found| found.ip()).or_else(|| towards_first(servers));
                Self::new(AddressSource::Name(name.clone()), found.unwrap_or(Ipv4Addr::LOCALHOST.into()))
            }
            None => {
                let found = towards_first(servers).unwrap_or(Ipv4Addr::LOCALHOST.into());
                Self::new(AddressSource::Route, found)
            }
        }
    }

    fn new(source: AddressSource, known: IpAddr) -> Self {
        Self(Arc::new(Shared { source, known: Mutex::new(known) }))
    }

    /// Returns the current address.
    pub fn ip(&self) -> IpAddr {
        *self.known()
    }

    /// Finds the address again, for a host that is connected to this server. Returns the new one if
    /// it changed, which is logged.
    pub(crate) async fn refresh(&self, server: SocketAddr) -> Option<IpAddr> {
        let found = match &self.0.source {
            AddressSource::Fixed => return None,
            AddressSource::Name(name) => {
                let found = timeout(LOOKUP_TIMEOUT, lookup_host((name.as_str(), 0))).await.ok()?.ok()?;
                let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
                // Resolvers return the addresses of a name in any order.
                let known = self.ip();
                found.iter().find(|address| **address == known).or(found.first()).copied()
            }
            AddressSource::Route => {
                let known = self.ip();
                towards(server).and_then(|found| corrected(known, found, has_address(known)))
            }
        }?;
        let previous = std::mem::replace(&mut *self.known(), found);
        (previous != found).then(|| {
            tracing::info!(address = %found, %previous, "the address of this agent has changed");
            found
        })
    }

    fn known(&self) -> MutexGuard<'_, IpAddr> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for OwnAddress {
    fn eq(&self, other: &Self) -> bool {
        self.ip() == other.ip()
    }
}

impl Eq for OwnAddress {}

/// Returns the address that replaces the known one, if any: a host with several addresses keeps the
/// one that it has, or its address would change with each server that it calls.
fn corrected(known: IpAddr, found: IpAddr, has_known: bool) -> Option<IpAddr> {
    // Other hosts cannot use a loopback address: a server on this host shows nothing.
    let is_better = !found.is_unspecified() && !found.is_loopback();
    (is_better && found != known && (known.is_loopback() || !has_known)).then_some(found)
}

/// Returns `true` if an interface of this host has the address.
fn has_address(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Returns the address from which this host reaches the first server whose name resolves.
fn towards_first(servers: &[String]) -> Option<IpAddr> {
    let resolve = |server: &String| {
        let server: HostPort = server.parse().ok()?;
        (server.host(), server.port()).to_socket_addrs().ok()?.next()
    };
    servers.iter().find_map(|server| towards(resolve(server)?))
}

/// Returns the address from which this host reaches another one.
fn towards(other: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if other.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the kernel only chooses the route, and with it the source address.
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::{OwnAddress, corrected};
    use std::net::{IpAddr, Ipv4Addr};

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn loopback_or_lost_address_corrected() {
        let (loopback, first, second) = (ip("127.0.0.1"), ip("10.0.0.7"), ip("10.1.0.7"));
        assert_eq!(corrected(loopback, first, true), Some(first), "the network has come up");
        assert_eq!(corrected(first, second, true), None, "another interface leads to this server");
        assert_eq!(corrected(first, second, false), Some(second), "the host has another address");
        assert_eq!(corrected(first, first, true), None);
        assert_eq!(corrected(first, loopback, false), None, "the server is on this host");
        assert_eq!(corrected(loopback, ip("::"), true), None);
        assert_eq!(corrected(ip("::1"), ip("2001:db8::7"), true), Some(ip("2001:db8::7")));
    }

    #[tokio::test]
    async fn names_refreshed_fixed_addresses_kept() {
        let server = "127.0.0.1:1".parse().expect("an address");
        let localhost = "localhost".parse().expect("a name");
        let own = OwnAddress::find(Some(&localhost), &[]);
        assert!(own.ip().is_loopback());
        *own.known() = ip("10.0.0.7");
        assert!(own.refresh(server).await.is_some_and(|found| found.is_loopback()));
        assert_eq!(own.refresh(server).await, None, "it is known already");
        let fixed = OwnAddress::fixed(ip("10.0.0.7"));
        assert_eq!((fixed.refresh(server).await, fixed.ip()), (None, ip("10.0.0.7")));
        // No server answers at that name, so nothing is known yet.
        let unknown = OwnAddress::find(None, &["s1.invalid:8300".into()]);
        assert_eq!(unknown.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(unknown.refresh(server).await, None, "a server on this host shows nothing");
    }
}
