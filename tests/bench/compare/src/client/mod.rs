//! Clients of the services, each as its service recommends.
//!
//! | module | is |
//! |---|---|
//! | [`http`] | sessions and `acquire` of Consul's API: Lockmesh's agent and Consul's servers |
//! | [`etcd`] | a lease and the lock service, on connections that clients share |
//! | [`zookeeper`] | a session for each client, and the recipe with ephemeral sequential nodes |

pub(crate) mod etcd;
pub(crate) mod http;
pub(crate) mod zookeeper;

use crate::Result;
use crate::cluster::Service;
use crate::work::Work;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The TTL of sessions and leases in seconds: longer than any measurement.
const LIFETIME: u16 = 600;

/// The addresses of a service, and the connections that its clients share.
pub(crate) struct Site {
    pub(crate) service: Service,
    /// The nodes that receive requests, in turn: `host:port`, or the path of a Unix socket.
    pub(crate) targets: Vec<String>,
    pub(crate) shared: RefCell<BTreeMap<usize, etcd_client::Client>>,
}

impl Site {
    fn target(&self, number: usize) -> &str {
        &self.targets[number % self.targets.len()]
    }
}

/// Returns a value of 256 bytes, another one each time, so that a write always changes something.
fn value(turn: &mut bool) -> &'static [u8] {
    *turn = !*turn;
    if *turn { &[b'a'; 256] } else { &[b'b'; 256] }
}

/// One application. Errors end the measurement.
pub(crate) trait Client: Sized + 'static {
    /// Connects the client of this number, and prepares its work before the clock starts.
    async fn connect(site: &Site, number: usize, work: Work) -> Result<Self>;

    /// Writes its key.
    async fn put(&mut self) -> Result<()>;

    /// Acquires its lock, without a time limit.
    async fn acquire(&mut self) -> Result<()>;

    /// Releases its lock.
    async fn release(&mut self) -> Result<()>;

    /// Ends its session or lease at the service.
    async fn close(self) -> Result<()>;
}

/// Returns `true` if clients need a session for locks.
fn locks(work: Work) -> bool {
    matches!(work, Work::Cycles | Work::Handoff)
}

/// Returns the name of a client's key, and of its lock.
fn names(number: usize, work: Work) -> (String, String) {
    let lock = match work {
        Work::Handoff => "compare/contended".to_owned(),
        _ => format!("compare/lock-{number}"),
    };
    (format!("compare/key-{number}"), lock)
}
