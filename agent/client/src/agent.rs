//! Asking the agent about itself and its own checks.

use crate::client::{Client, Target};
use crate::connection::Verb;
use crate::error::Error;
use crate::shape::agent::{AgentSelf, CheckUpdate, Member, Metrics, NewCheck};
use crate::shape::health::Check;
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// Requests about the agent itself. See [`Client::agent`].
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    client: &'a Client,
}

impl Client {
    /// Requests about the agent itself.
    pub fn agent(&self) -> Agent<'_> {
        Agent { client: self }
    }

    /// The quorum leader's RPC address; `None` when the agent knows none.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn leader(&self) -> Result<Option<String>, Error> {
        let leader: String = self.read(Target::new("/v1/status/leader")).await?.value;
        Ok(Some(leader).filter(|leader| !leader.is_empty()))
    }

    /// The RPC addresses of the quorum's servers.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn peers(&self) -> Result<Vec<String>, Error> {
        Ok(self.read(Target::new("/v1/status/peers")).await?.value)
    }
}

impl Agent<'_> {
    /// Who it is.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn describe(&self) -> Result<AgentSelf, Error> {
        Ok(self.client.read(Target::new("/v1/agent/self")).await?.value)
    }

    /// Whether it can carry requests out: a leader serves, and the agent is registered.
    ///
    /// # Errors
    /// There was no answer. Nothing was changed: ask again where [`Error::is_transient`] says so.
    pub async fn is_ready(&self) -> Result<bool, Error> {
        let reply = self.client.send(Verb::Get, Target::new("/health/ready"), Bytes::new()).await?;
        Ok(reply.status == 200)
    }

    /// The members that it knows.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/members")).await?.value)
    }

    /// The same with the leases of their nodes, as far as the servers' leader knows them now: it is
    /// asked once for every few hundred nodes.
    ///
    /// # Errors
    /// As [`Self::members`].
    pub async fn members_with_leases(&self) -> Result<Vec<Member>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/members").flag("lease")).await?.value)
    }

    /// Its figures.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn metrics(&self) -> Result<Metrics, Error> {
        Ok(self.client.read(Target::new("/v1/agent/metrics")).await?.value)
    }

    /// Its own checks, by id.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn checks(&self) -> Result<BTreeMap<String, Check>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/checks")).await?.value)
    }

    /// Registers a check that runs by being told: see [`Agent::update_check`].
    ///
    /// # Errors
    /// [`Error::Refused`] says why; the check was not registered. After any other error it may be.
    /// To register it again is safe: a check that is there keeps its status.
    pub async fn register_check(&self, check: &NewCheck) -> Result<(), Error> {
        self.put(Target::new("/v1/agent/check/register"), check).await
    }

    /// Tells how a check stands, and why. It turns critical unless told again within its TTL.
    ///
    /// # Errors
    /// [`Error::Refused`] where the agent has no check of that id. After any other error tell it
    /// again before the TTL is over.
    pub async fn update_check(&self, id: &str, update: &CheckUpdate) -> Result<(), Error> {
        self.put(Target::new("/v1/agent/check/update/").name(id), update).await
    }

    /// Takes a check away; sessions that depend on it end.
    ///
    /// # Errors
    /// [`Error::Refused`] where the agent has no check of that id, as when an earlier attempt took
    /// it away. After any other error try again.
    pub async fn deregister_check(&self, id: &str) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/check/deregister/").name(id)).await
    }

    /// Lets it read its certificate and its log level again; answers what changed, in words. What
    /// is broken is refused, and everything stays as it was.
    ///
    /// # Errors
    /// [`Error::Refused`] says what is broken; everything stays as it was. After any other error
    /// the agent's log tells what changed. To reload again is safe.
    pub async fn reload(&self) -> Result<Vec<String>, Error> {
        let reply = self.client.write(Verb::Put, Target::new("/v1/agent/reload"), Bytes::new()).await?;
        let changes = reply.header("x-lockmesh-reloaded").unwrap_or("reloaded");
        Ok(changes.split("; ").map(str::to_owned).collect())
    }

    /// Takes its node out of the cluster: the node's sessions end. Its process ends once this is
    /// answered.
    ///
    /// # Errors
    /// Nothing stops. [`Error::Refused`] says why; after any other error the node may have left,
    /// and its agent registers it again unless it ended.
    pub async fn leave(&self) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/leave")).await
    }

    /// Makes a failed node leave the cluster: its sessions end. With `prune` it is not shown as one
    /// that left either. For a node that is alive the answer is the same and nothing changes:
    /// [`Agent::members`] tells which it was.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is no such member, or the servers do not know yet whether it
    /// lives. After any other error it may have left.
    pub async fn force_leave(&self, node: &str, prune: bool) -> Result<(), Error> {
        let target = Target::new("/v1/agent/force-leave/").name(node);
        self.order(if prune { target.flag("prune") } else { target }).await
    }

    /// Lets it look for a server of its cluster at an address, `host` or `host:port`, and ask that
    /// one when no other is left.
    ///
    /// # Errors
    /// [`Error::Refused`] says why the server is none of its cluster. To join again is safe.
    pub async fn join(&self, address: &str) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/join/").name(address)).await
    }

    /// Sends an order that says all in its path.
    async fn order(&self, target: Target) -> Result<(), Error> {
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    async fn put(&self, target: Target, body: &impl Serialize) -> Result<(), Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Settings(error.to_string()))?;
        self.client.write(Verb::Put, target, body.into()).await.map(|_| ())
    }
}
