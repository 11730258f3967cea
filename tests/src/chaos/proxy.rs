//! The network between real processes: a UDP relay in front of every server, with rules for each
//! direction.
//!
//! A server's advertised address is its relay's. The relay identifies a sender by the process that
//! owns the socket. It keeps one socket towards the server per sender, so that replies find their
//! way back and follow the rules of their own direction. The relay never invents data: it delivers
//! a datagram unchanged, late, twice or not at all.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The buffer size, larger than any datagram on loopback.
const DATAGRAM: usize = 65_535;
/// The maximum time until a relay notices its end.
const GLANCE: Duration = Duration::from_millis(200);
/// The maximum number of delayed datagrams; further ones are lost.
const LATE: usize = 50_000;

/// A process in the network, server or agent, by its number in the harness.
pub type Place = usize;

/// A rule for datagrams from one place to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The number of datagrams lost per thousand. 1000 is a cut.
    pub lost: u32,
    /// The number of datagrams duplicated per thousand.
    pub doubled: u32,
    /// The maximum delay in milliseconds. Each datagram has its own delay, so datagrams are
    /// reordered.
    pub late_ms: u32,
}

impl Rule {
    /// Blocks everything.
    pub const CUT: Self = Self { lost: 1_000, doubled: 0, late_ms: 0 };
}

/// All rules, and the process at each place.
#[derive(Default)]
pub struct Network {
    rules: Mutex<BTreeMap<(Place, Place), Rule>>,
    /// The process numbers of all places.
    processes: Mutex<BTreeMap<u32, Place>>,
    random: AtomicU64,
    lost: AtomicU64,
    post: Post,
    ended: AtomicBool,
}

impl Network {
    /// Creates a network that delivers everything.
    pub fn new(seed: u64) -> Arc<Self> {
        let network = Arc::new(Self { random: AtomicU64::new(seed | 1), ..Self::default() });
        let delivery = Arc::clone(&network);
        thread::spawn(move || delivery.post.deliver(&delivery.ended));
        network
    }

    /// Sets the process at a place.
    pub fn settle(&self, place: Place, process: u32) {
        let mut processes = lock(&self.processes);
        processes.retain(|_, known| *known != place);
        processes.insert(process, place);
    }

    /// Sets the rule for one direction.
    pub fn rule(&self, from: Place, to: Place, rule: Rule) {
        lock(&self.rules).insert((from, to), rule);
    }

    /// Removes all rules.
    pub fn heal(&self) {
        lock(&self.rules).clear();
    }

    /// Returns the number of datagrams lost by a rule.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Opens a relay in front of a server at `place` that listens on `server`. The relay ends with
    /// the network.
    ///
    /// # Errors
    /// No socket is available; nothing is relayed to that server.
    pub fn relay(self: &Arc<Self>, place: Place, server: SocketAddr) -> io::Result<SocketAddr> {
        let outside = bind()?;
        let address = outside.local_addr()?;
        let relay = Relay { network: Arc::clone(self), place, server, outside: Arc::new(outside) };
        thread::spawn(move || relay.run());
        Ok(address)
    }

    /// Delivers a datagram according to the rules.
    fn pass(
        &self,
        from: Place,
        to: Place,
        socket: &Arc<UdpSocket>,
        target: Option<SocketAddr>,
        bytes: &[u8],
    ) {
        let rule = lock(&self.rules).get(&(from, to)).copied().unwrap_or_default();
        if self.below(1_000) < u64::from(rule.lost) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let copies = if self.below(1_000) < u64::from(rule.doubled) { 2 } else { 1 };
        for _ in 0..copies {
            let letter = Letter { socket: Arc::clone(socket), target, bytes: bytes.to_vec() };
            match rule.late_ms {
                0 => letter.send(),
                most => self.post.take_in(Duration::from_millis(self.below(u64::from(most))), letter),
            }
        }
    }

    fn place_of(&self, sender: SocketAddr) -> Option<Place> {
        let inode = inode_of(sender.port())?;
        let processes = lock(&self.processes).clone();
        processes.into_iter().find(|(process, _)| holds(*process, &inode)).map(|(_, place)| place)
    }

    fn below(&self, limit: u64) -> u64 {
        // The order of the threads is irrelevant: randomness suffices, a replay is not required.
        let drawn = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) >> 11) % limit
    }

    /// Ends all relays.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.post.news.notify_all();
    }
}

/// The relay of one server.
struct Relay {
    network: Arc<Network>,
    place: Place,
    server: SocketAddr,
    outside: Arc<UdpSocket>,
}

impl Relay {
    fn run(self) {
        let mut senders: BTreeMap<SocketAddr, (Place, Arc<UdpSocket>)> = BTreeMap::new();
        let mut buffer = vec![0; DATAGRAM];
        while !self.network.ended.load(Ordering::Relaxed) {
            let Ok((length, sender)) = self.outside.recv_from(&mut buffer) else { continue };
            let (from, inside) = match senders.entry(sender) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    // A datagram from an unknown process is dropped; the sender retries.
                    let Some(from) = self.network.place_of(sender) else { continue };
                    let Ok(inside) = self.introduce(sender, from) else { continue };
                    new.insert((from, inside))
                }
            };
            self.network.pass(*from, self.place, inside, None, &buffer[..length]);
        }
    }

    /// Opens a socket for a sender, and starts a thread that returns the replies.
    fn introduce(&self, sender: SocketAddr, from: Place) -> io::Result<Arc<UdpSocket>> {
        let inside = Arc::new(bind()?);
        inside.connect(self.server)?;
        let (network, outside) = (Arc::clone(&self.network), Arc::clone(&self.outside));
        let (answers, place) = (Arc::clone(&inside), self.place);
        thread::spawn(move || {
            let mut buffer = vec![0; DATAGRAM];
            while !network.ended.load(Ordering::Relaxed) {
                // A refused connection only means that the server is down.
                let Ok(length) = answers.recv(&mut buffer) else { continue };
                network.pass(place, from, &outside, Some(sender), &buffer[..length]);
            }
        });
        Ok(inside)
    }
}

/// A datagram in flight.
struct Letter {
    socket: Arc<UdpSocket>,
    target: Option<SocketAddr>,
    bytes: Vec<u8>,
}

impl Letter {
    fn send(&self) {
        // A datagram that cannot be sent is lost.
        let _ = match self.target {
            Some(target) => self.socket.send_to(&self.bytes, target),
            None => self.socket.send(&self.bytes),
        };
    }
}

/// The delayed datagrams, ordered by delivery time.
#[derive(Default)]
struct Post {
    late: Mutex<BinaryHeap<Due>>,
    news: Condvar,
}

struct Due(Instant, Letter);

impl Post {
    fn take_in(&self, delay: Duration, letter: Letter) {
        let mut late = lock(&self.late);
        if late.len() < LATE {
            late.push(Due(Instant::now() + delay, letter));
            self.news.notify_one();
        }
    }

    fn deliver(&self, ended: &AtomicBool) {
        let mut late = lock(&self.late);
        while !ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            let wait = late.peek().map_or(GLANCE, |Due(at, _)| at.saturating_duration_since(now));
            if !wait.is_zero() || late.is_empty() {
                late = self.news.wait_timeout(late, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let due = late.pop();
            drop(late);
            due.inspect(|Due(_, letter)| letter.send());
            late = lock(&self.late);
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest, because the heap pops the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.cmp(&self.0)
    }
}

fn bind() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_read_timeout(Some(GLANCE))?;
    Ok(socket)
}

/// Returns the inode of the UDP socket that is bound to a local port.
fn inode_of(port: u16) -> Option<String> {
    let suffix = format!(":{port:04X}");
    ["/proc/net/udp", "/proc/net/udp6"].iter().find_map(|table| {
        let table = std::fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let mut words = line.split_whitespace();
            let local = words.nth(1)?;
            local.ends_with(&suffix).then(|| words.nth(7).map(str::to_owned))?
        })
    })
}

/// Returns `true` if a process has this socket open.
fn holds(process: u32, inode: &str) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn relay_cuts_one_direction_only() {
        let network = Network::new(1);
        network.settle(7, std::process::id());
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(TIMEOUT)).expect("it can be set");
        }
        let relay = network.relay(0, server.local_addr().expect("it is bound")).expect("a relay");
        let mut buffer = [0; 16];
        let say = |socket: &UdpSocket, word: &str, to: SocketAddr| {
            socket.send_to(word.as_bytes(), to).expect("it can be sent");
        };
        say(&client, "hello", relay);
        let (length, seen_as) = server.recv_from(&mut buffer).expect("it arrives");
        assert_eq!(&buffer[..length], b"hello");
        say(&server, "welcome", seen_as);
        let (length, from) = client.recv_from(&mut buffer).expect("the answer arrives");
        assert_eq!((&buffer[..length], from), (&b"welcome"[..], relay));

        // Only the direction to the server is cut. Its own messages still arrive, and after healing
        // the next message gets through.
        network.rule(7, 0, Rule::CUT);
        say(&client, "lost", relay);
        while network.lost() == 0 {
            thread::yield_now();
        }
        say(&server, "still here", seen_as);
        let (length, _) = client.recv_from(&mut buffer).expect("the other way is open");
        assert_eq!(&buffer[..length], b"still here");
        network.heal();
        network.rule(7, 0, Rule { doubled: 1_000, late_ms: 20, ..Rule::default() });
        say(&client, "twice", relay);
        for _ in 0..2 {
            let (length, again) = server.recv_from(&mut buffer).expect("it arrives");
            assert_eq!((&buffer[..length], again), (&b"twice"[..], seen_as));
        }
        network.end();
    }
}
