//! A client of ZooKeeper: one session on one connection, and the recipe for locks of its library.
//!
//! The recipe: create an ephemeral sequential node below the lock and list the nodes. The client
//! with the lowest number holds the lock. Each other client watches the node just before its own.
//! Deleting the node releases the lock.

use super::{Client, Site, locks, names, value};
use crate::Result;
use crate::work::Work;
use std::time::Duration;
use zookeeper_client::{Acls, CreateMode, Error, LockOptions, LockPrefix};

/// The timeout of a session; servers allow at most 20 ticks of 2 s.
const SESSION: Duration = Duration::from_secs(30);

/// An application.
#[derive(Debug)]
pub(crate) struct ZooKeeper {
    client: zookeeper_client::Client,
    key: String,
    lock: String,
    /// The node by which it holds the lock.
    held: String,
    turn: bool,
}

async fn begin(target: &str) -> Result<zookeeper_client::Client> {
    let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION).with_fail_eagerly();
    Ok(connector.connect(target).await?)
}

impl Client for ZooKeeper {
    async fn connect(site: &Site, number: usize, work: Work) -> Result<Self> {
        let (key, lock) = names(number, work);
        let (key, lock) = (format!("/{key}"), format!("/{lock}"));
        let client = begin(site.target(number)).await?;
        if locks(work) {
            client.mkdir(&lock, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        }
        let client = Self { client, key, lock, held: String::new(), turn: false };
        Ok(client)
    }

    async fn put(&mut self) -> Result<()> {
        let value = value(&mut self.turn);
        match self.client.set_data(&self.key, value, None).await {
            Err(Error::NoNode) => {
                let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                self.client.mkdir(&self.key, &options).await?;
                self.client.set_data(&self.key, value, None).await?;
            }
            other => drop(other?),
        }
        Ok(())
    }

    async fn acquire(&mut self) -> Result<()> {
        let prefix = format!("{}/n-", self.lock);
        let options = LockOptions::new(Acls::anyone_all());
        let held = self.client.lock(LockPrefix::new_shared(&prefix)?, b"", options).await?;
        self.held = held.lock_path().to_owned();
        // Dropped, it would delete the node without waiting for the response.
        std::mem::forget(held);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.client.delete(&self.held, None).await?)
    }

    async fn close(self) -> Result<()> {
        close(self.client).await
    }
}

/// Ends a session, and waits until the server has confirmed it.
async fn close(client: zookeeper_client::Client) -> Result<()> {
    let mut states = client.state_watcher();
    drop(client);
    while !states.peek_state().is_terminated() {
        states.changed().await;
    }
    Ok(())
}
