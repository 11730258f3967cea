//! Clients of the three services: what one of them does, over one persistent connection, as its own
//! protocol has it.
//!
//! | module | is |
//! |---|---|
//! | [`lockmesh`] | HTTP/1.1 over the agent's Unix socket; a connection for each client |
//! | [`etcd`] | gRPC with etcd's messages, and its official clients' mutex |
//! | [`grpc`] | connections that carry many calls at once, as the official client's do |
//! | [`zookeeper`] | a session for each client, and the standard recipe for locks |
//!
//! All run on the generator's one thread, and send bytes that were made before the clock runs.

pub(crate) mod etcd;
pub(crate) mod grpc;
pub(crate) mod lockmesh;
pub(crate) mod zookeeper;

use crate::work::Work;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// How many bytes a value has.
pub(crate) const VALUE_SIZE: usize = 256;

/// How long sessions and leases live by themselves: longer than any measurement.
const LIFETIME: Duration = Duration::from_secs(600);

/// Two values, so that a write always changes something.
fn values() -> [Vec<u8>; 2] {
    [vec![b'a'; VALUE_SIZE], vec![b'b'; VALUE_SIZE]]
}

/// One application. Errors end the measurement.
pub(crate) trait Client: Sized + 'static {
    /// Where the service is, and what its clients share.
    type Site: 'static;

    /// Connects the client of this number, and prepares all that its work needs before the clock
    /// runs.
    async fn connect(site: &Rc<Self::Site>, number: usize, work: Work) -> io::Result<Self>;

    /// Writes its key.
    async fn put(&mut self) -> io::Result<()>;

    /// Reads its key, linearizably.
    async fn read(&mut self) -> io::Result<()>;

    /// Reads its key from whatever the server at hand has.
    async fn read_stale(&mut self) -> io::Result<()>;

    /// Takes the lock that is its own and gives it back.
    async fn cycle(&mut self) -> io::Result<()>;

    /// Begins a session and ends it.
    async fn churn(&mut self) -> io::Result<()>;

    /// Takes the lock that all want, however long that takes.
    async fn acquire(&mut self) -> io::Result<()>;

    /// Gives the lock that all want back.
    async fn release(&mut self) -> io::Result<()>;

    /// Ends what was begun at the service.
    async fn close(self) -> io::Result<()>;
}
