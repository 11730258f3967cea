//! Clients of the three services: each uses one persistent connection with its own protocol.
//!
//! | module | is |
//! |---|---|
//! | [`lockmesh`] | HTTP/1.1 over the agent's Unix socket; a connection for each client |
//! | [`etcd`] | gRPC with etcd's messages, and its official clients' mutex |
//! | [`grpc`] | connections that carry many calls at once, as the official client's do |
//! | [`zookeeper`] | a session for each client, and the standard recipe for locks |
//!
//! All run on the generator's one thread, and send bytes that were prepared before the clock
//! starts.

pub(crate) mod etcd;
pub(crate) mod grpc;
pub(crate) mod lockmesh;
pub(crate) mod zookeeper;

use crate::work::Work;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// The bytes of a value.
pub(crate) const VALUE_SIZE: usize = 256;

/// The TTL of sessions and leases: longer than any measurement.
const LIFETIME: Duration = Duration::from_secs(600);

/// Returns two values, so that a write always changes something.
fn values() -> [Vec<u8>; 2] {
    [vec![b'a'; VALUE_SIZE], vec![b'b'; VALUE_SIZE]]
}

/// One application. Errors end the measurement.
pub(crate) trait Client: Sized + 'static {
    /// The address of the service, and the resources that its clients share.
    type Site: 'static;

    /// Connects the client of this number, and prepares its work before the clock starts.
    async fn connect(site: &Rc<Self::Site>, number: usize, work: Work) -> io::Result<Self>;

    /// Writes its key.
    async fn put(&mut self) -> io::Result<()>;

    /// Reads its key, linearizably.
    async fn read(&mut self) -> io::Result<()>;

    /// Reads its key from the connected server, possibly stale.
    async fn read_stale(&mut self) -> io::Result<()>;

    /// Acquires its own lock and releases it.
    async fn cycle(&mut self) -> io::Result<()>;

    /// Creates a session and ends it.
    async fn churn(&mut self) -> io::Result<()>;

    /// Acquires the contended lock, without a time limit.
    async fn acquire(&mut self) -> io::Result<()>;

    /// Releases the contended lock.
    async fn release(&mut self) -> io::Result<()>;

    /// Ends its session or lease at the service.
    async fn close(self) -> io::Result<()>;
}
