//! A client of etcd: a lease for each client, and the lock service, which runs the official
//! `concurrency` package's mutex in the server.

use super::{Client, LIFETIME, Site, locks, names, value};
use crate::Result;
use crate::work::Work;
use etcd_client::LockOptions;

/// The number of clients that share a connection, as those of one process do.
const SHARING: usize = 64;

/// An application.
pub(crate) struct Etcd {
    client: etcd_client::Client,
    key: String,
    lock: String,
    /// The lease of its lock; 0 if the work uses no locks.
    lease: i64,
    /// The key that the lock service has created for the holder.
    held: Vec<u8>,
    turn: bool,
}

impl Etcd {
    /// Connects a client that shares no connection, for writes while a node is gone.
    pub(crate) async fn alone(site: &Site, number: usize) -> Result<Self> {
        let client = etcd_client::Client::connect([site.target(number)], None).await?;
        Ok(Self::new(client, number, Work::Puts))
    }

    fn new(client: etcd_client::Client, number: usize, work: Work) -> Self {
        let (key, lock) = names(number, work);
        Self { client, key, lock, lease: 0, held: Vec::new(), turn: false }
    }
}

impl Client for Etcd {
    async fn connect(site: &Site, number: usize, work: Work) -> Result<Self> {
        let known = site.shared.borrow().get(&(number / SHARING)).cloned();
        let connection = match known {
            Some(connection) => connection,
            None => etcd_client::Client::connect([site.target(number)], None).await?,
        };
        let connection = site.shared.borrow_mut().entry(number / SHARING).or_insert(connection).clone();
        let mut client = Self::new(connection, number, work);
        if locks(work) {
            client.lease = client.client.lease_grant(LIFETIME.into(), None).await?.id();
        }
        Ok(client)
    }

    async fn put(&mut self) -> Result<()> {
        self.client.put(self.key.as_str(), value(&mut self.turn), None).await?;
        Ok(())
    }

    async fn acquire(&mut self) -> Result<()> {
        let options = LockOptions::new().with_lease(self.lease);
        self.held = self.client.lock(self.lock.as_str(), Some(options)).await?.key().to_vec();
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.client.unlock(std::mem::take(&mut self.held)).await?;
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        if self.lease != 0 {
            self.client.lease_revoke(self.lease).await?;
        }
        Ok(())
    }
}
