//! A client of etcd: KV, leases, and the mutex of the official clients' `concurrency` package.
//!
//! The mutex is a key below the lock's prefix, bound to a lease. The client with the oldest key
//! holds the lock; each other client watches the key created just before its own. One transaction
//! both joins the queue and returns the first client, so that a free lock costs one call, and a
//! release another.
//!
//! The official mutex starts its watch at an existing revision, as is done here. etcd 3.4 serves
//! such watches in rounds 100 ms apart until they have caught up; a client that has waited for less
//! than that is notified late.

use super::grpc::{Grpc, Stream};
use super::{Client, LIFETIME, values};
use crate::wire::etcd::{self, Method};
use crate::work::Work;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

/// The addresses of etcd, and the connections that its clients share.
#[derive(Debug)]
pub(crate) struct Site {
    /// The members that receive requests, in turn.
    pub(crate) targets: Vec<SocketAddr>,
    /// The number of clients that share a connection, as within a process that uses the official
    /// client.
    pub(crate) sharing: usize,
    /// The open connections, by their number.
    pub(crate) connections: RefCell<BTreeMap<usize, Weak<Grpc>>>,
}

impl Site {
    /// Returns the connection of a client's group; the first client creates it.
    async fn connection(&self, client: usize) -> io::Result<Rc<Grpc>> {
        let number = client / self.sharing;
        let known = self.connections.borrow().get(&number).and_then(Weak::upgrade);
        if let Some(connection) = known.filter(|connection| !connection.is_broken()) {
            return Ok(connection);
        }
        let connection = Rc::new(Grpc::connect(self.targets[number % self.targets.len()]).await?);
        self.connections.borrow_mut().insert(number, Rc::downgrade(&connection));
        Ok(connection)
    }
}

/// An application.
#[derive(Debug)]
pub(crate) struct Etcd {
    connection: Rc<Grpc>,
    puts: [Vec<u8>; 2],
    get: Vec<u8>,
    get_stale: Vec<u8>,
    /// The lease of its queue keys; 0 if the work uses no locks.
    lease: u64,
    prefix: Vec<u8>,
    stand_in_line: Vec<u8>,
    leave: Vec<u8>,
    /// Opened by the first wait, as in the official client.
    watches: Option<Stream>,
}

impl Client for Etcd {
    type Site = Site;

    async fn connect(site: &Rc<Site>, number: usize, work: Work) -> io::Result<Self> {
        let connection = site.connection(number).await?;
        let lease = match work {
            Work::Cycles | Work::Handoff => grant(&connection).await?,
            _ => 0,
        };
        let key = format!("compare/key-{number}").into_bytes();
        let prefix = match work {
            Work::Handoff => "compare/contended/".to_owned(),
            _ => format!("compare/lock-{number}/"),
        };
        let mine = format!("{prefix}{lease:x}").into_bytes();
        let prefix = prefix.into_bytes();
        let mut client = Self {
            connection,
            puts: values().map(|value| etcd::put(&key, &value, 0).finish()),
            get: etcd::get(&key, false).finish(),
            get_stale: etcd::get(&key, true).finish(),
            lease,
            stand_in_line: etcd::stand_in_line(&mine, &prefix, lease).finish(),
            leave: etcd::delete(&mine).finish(),
            prefix,
            watches: None,
        };
        if matches!(work, Work::Reads | Work::StaleReads) {
            client.put().await?;
        }
        Ok(client)
    }

    async fn put(&mut self) -> io::Result<()> {
        self.puts.swap(0, 1);
        self.connection.call(Method::Put, &self.puts[0]).await.map(drop)
    }

    async fn read(&mut self) -> io::Result<()> {
        found(&self.connection.call(Method::Range, &self.get).await?)
    }

    async fn read_stale(&mut self) -> io::Result<()> {
        found(&self.connection.call(Method::Range, &self.get_stale).await?)
    }

    async fn cycle(&mut self) -> io::Result<()> {
        let place = etcd::place(&self.connection.call(Method::Txn, &self.stand_in_line).await?)?;
        if place.first != place.mine {
            return Err(io::Error::other("a lock that is wanted by one client is held by another"));
        }
        self.release().await
    }

    async fn churn(&mut self) -> io::Result<()> {
        let lease = grant(&self.connection).await?;
        revoke(&self.connection, lease).await
    }

    async fn acquire(&mut self) -> io::Result<()> {
        let place = etcd::place(&self.connection.call(Method::Txn, &self.stand_in_line).await?)?;
        if place.first == 0 || place.first == place.mine {
            return Ok(());
        }
        let look = etcd::last_created(&self.prefix, place.mine - 1).finish();
        loop {
            let found = etcd::found(&self.connection.call(Method::Range, &look).await?)?;
            let Some((before, _)) = found.first else { return Ok(()) };
            self.wait_for_deletion(&before, found.revision).await?;
        }
    }

    async fn release(&mut self) -> io::Result<()> {
        self.connection.call(Method::DeleteRange, &self.leave).await.map(drop)
    }

    async fn close(self) -> io::Result<()> {
        if self.lease == 0 { Ok(()) } else { revoke(&self.connection, self.lease).await }
    }
}

impl Etcd {
    /// Watches a key from a revision on, until it is deleted.
    async fn wait_for_deletion(&mut self, key: &[u8], revision: u64) -> io::Result<()> {
        let stream = self.watches.get_or_insert_with(|| self.connection.begin(Method::Watch));
        stream.send(&etcd::watch(key, revision).finish()).await?;
        let mut current = None;
        loop {
            let message = stream.next().await?.ok_or_else(|| io::Error::other("etcd ended the watch"))?;
            let watched = etcd::watched(&message)?;
            if watched.created {
                current = Some(watched.id);
            }
            // Late events of canceled watches concern other keys.
            if current != Some(watched.id) {
                continue;
            }
            if watched.canceled {
                return Err(io::Error::other("etcd cancelled the watch"));
            }
            if watched.deleted {
                return stream.send(&etcd::cancel_watch(watched.id).finish()).await;
            }
        }
    }
}

async fn grant(connection: &Grpc) -> io::Result<u64> {
    let request = etcd::grant_lease(LIFETIME.as_secs()).finish();
    etcd::granted_lease(&connection.call(Method::LeaseGrant, &request).await?)
}

async fn revoke(connection: &Grpc, lease: u64) -> io::Result<()> {
    connection.call(Method::LeaseRevoke, &etcd::revoke_lease(lease).finish()).await.map(drop)
}

fn found(response: &[u8]) -> io::Result<()> {
    match etcd::found(response)?.first {
        Some(_) => Ok(()),
        None => Err(io::Error::other("a key that was just written is not there")),
    }
}
