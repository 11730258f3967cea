//! Requests about the agent itself, and its own services and checks.

use crate::client::{Client, Target, accept};
use crate::connection::{Download, Outgoing, Verb, unstalled};
use crate::error::Error;
use crate::shape::agent::{AgentSelf, CheckUpdate, Member, Metrics, NewCheck, NewService, Service};
use crate::shape::health::Check;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Requests about the agent itself. See [`Client::agent`].
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    client: &'a Client,
    filter: &'a str,
}

/// The log of the agent, while it is written. See [`Agent::monitor`].
#[derive(Debug)]
pub struct Monitor<'a> {
    client: &'a Client,
    download: Download,
}

/// A token of Consul. Lockmesh has none.
#[derive(Deserialize)]
struct AclToken {
    #[serde(rename = "AccessorID")]
    accessor_id: String,
}

impl Client {
    /// Returns the requests about the agent itself.
    pub fn agent(&self) -> Agent<'_> {
        Agent { client: self, filter: "" }
    }

    /// Returns the RPC address of the quorum's leader; `None` if the agent knows no leader.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn leader(&self) -> Result<Option<String>, Error> {
        let leader: String = self.read(Target::new("/v1/status/leader")).await?.value;
        Ok(Some(leader).filter(|leader| !leader.is_empty()))
    }

    /// Returns the RPC addresses of the quorum's servers.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn peers(&self) -> Result<Vec<String>, Error> {
        Ok(self.read(Target::new("/v1/status/peers")).await?.value)
    }
}

impl<'a> Agent<'a> {
    /// Lists only the services or checks that this filter selects: an expression such as
    /// `Service == web and Port == 80` about their fields.
    #[must_use]
    pub fn filter(self, filter: &'a str) -> Self {
        Self { filter, ..self }
    }

    /// Returns the agent's identity and configuration.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn describe(&self) -> Result<AgentSelf, Error> {
        Ok(self.client.read(Target::new("/v1/agent/self")).await?.value)
    }

    /// Returns the accessor id of the token that a Consul agent uses for this client; `None` if it
    /// has no ACLs.
    ///
    /// # Errors
    /// A read changes nothing. [`Error::Refused`] with 403: there are ACLs, and no such token.
    pub async fn token_accessor(&self) -> Result<Option<String>, Error> {
        let reply = self.client.send(Verb::Get, Target::new("/v1/acl/token/self"), Bytes::new()).await?;
        let is_disabled = reply.status == 401 && reply.text().contains("ACL support disabled");
        if is_disabled || reply.status == 404 {
            return Ok(None);
        }
        Ok(Some(self.client.parse::<AclToken>(&accept(reply)?)?.accessor_id))
    }

    /// Returns `true` if the agent can serve requests: a leader is known and the agent is
    /// registered.
    ///
    /// # Errors
    /// The agent did not reply. A read changes nothing. Retry if [`Error::is_transient`] returns
    /// `true`.
    pub async fn is_ready(&self) -> Result<bool, Error> {
        let reply = self.client.send(Verb::Get, Target::new("/health/ready"), Bytes::new()).await?;
        Ok(reply.status == 200)
    }

    /// Returns the members that the agent knows.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/members")).await?.value)
    }

    /// Returns the members with the current leases of their nodes. The agent queries the servers'
    /// leader once for every few hundred nodes.
    ///
    /// # Errors
    /// As [`Self::members`].
    pub async fn members_with_leases(&self) -> Result<Vec<Member>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/members").flag("lease")).await?.value)
    }

    /// Returns the agent's metrics.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn metrics(&self) -> Result<Metrics, Error> {
        Ok(self.client.read(Target::new("/v1/agent/metrics")).await?.value)
    }

    /// Returns the agent's own checks, by check id.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn checks(&self) -> Result<BTreeMap<String, Check>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/checks").filter(self.filter)).await?.value)
    }

    /// Returns the agent's own services, by service id.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn services(&self) -> Result<BTreeMap<String, Service>, Error> {
        Ok(self.client.read(Target::new("/v1/agent/services").filter(self.filter)).await?.value)
    }

    /// Registers a service with its checks, or changes the one with that id.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason; nothing was registered. After any other error the
    /// outcome is unknown. Registering again is safe: an existing check keeps its status.
    pub async fn register_service(&self, service: &NewService) -> Result<(), Error> {
        self.put(Target::new("/v1/agent/service/register"), service).await
    }

    /// Deregisters a service with its checks; sessions that depend on them end.
    ///
    /// # Errors
    /// [`Error::Refused`] if the agent has no service with that id, for example because an earlier
    /// attempt removed it. After any other error, retry.
    pub async fn deregister_service(&self, id: &str) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/service/deregister/").name(id)).await
    }

    /// Puts the node into maintenance with this reason, or ends it without one. A node in
    /// maintenance has a critical check.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason; nothing was changed. After any other error, retry.
    pub async fn maintain(&self, reason: Option<&str>) -> Result<(), Error> {
        self.order(maintenance(Target::new("/v1/agent/maintenance"), reason)).await
    }

    /// Puts a service into maintenance with this reason, or ends it without one.
    ///
    /// # Errors
    /// As [`Self::maintain`]; [`Error::Refused`] also if the agent has no service with that id.
    pub async fn maintain_service(&self, id: &str, reason: Option<&str>) -> Result<(), Error> {
        let target = Target::new("/v1/agent/service/maintenance/").name(id);
        self.order(maintenance(target, reason)).await
    }

    /// Registers a check. One with a TTL is updated with [`Agent::update_check`].
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason; the check was not registered. After any other error the
    /// outcome is unknown. Registering again is safe: an existing check keeps its status.
    pub async fn register_check(&self, check: &NewCheck) -> Result<(), Error> {
        self.put(Target::new("/v1/agent/check/register"), check).await
    }

    /// Updates the status and the output of a check. A check turns critical if no update arrives
    /// within its TTL.
    ///
    /// # Errors
    /// [`Error::Refused`] if the agent has no check with that id. After any other error, send the
    /// update again before the TTL expires.
    pub async fn update_check(&self, id: &str, update: &CheckUpdate) -> Result<(), Error> {
        self.put(Target::new("/v1/agent/check/update/").name(id), update).await
    }

    /// Deregisters a check; sessions that depend on it end.
    ///
    /// # Errors
    /// [`Error::Refused`] if the agent has no check with that id, for example because an earlier
    /// attempt removed it. After any other error, retry.
    pub async fn deregister_check(&self, id: &str) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/check/deregister/").name(id)).await
    }

    /// Reloads the agent's certificate and log level; returns a description of the changes. Invalid
    /// settings are rejected as a whole.
    ///
    /// # Errors
    /// [`Error::Refused`] names the invalid setting; nothing was changed. After any other error the
    /// agent's log lists the changes. Reloading again is safe.
    pub async fn reload(&self) -> Result<Vec<String>, Error> {
        let reply = self.client.write(Verb::Put, Target::new("/v1/agent/reload"), Bytes::new()).await?;
        let changes = reply.header("x-lockmesh-reloaded").unwrap_or("reloaded");
        Ok(changes.split("; ").map(str::to_owned).collect())
    }

    /// Follows the agent's log from now on: the lines of `level` (`trace`, `debug`, `info`, `warn`
    /// or `error`) and above, as text or as JSON.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such level, or too many clients follow the log. Nothing is
    /// changed.
    pub async fn monitor(&self, level: &str, as_json: bool) -> Result<Monitor<'a>, Error> {
        let target = Target::new("/v1/agent/monitor").with("loglevel", level);
        let target = if as_json { target.flag("logjson") } else { target };
        let (client, address) = (self.client, self.client.address());
        let mut download =
            unstalled(address, client.open(Verb::Get, target, Outgoing::Whole(Bytes::new()))).await??;
        match download.status {
            200 => Ok(Monitor { client, download }),
            _ => {
                let text = unstalled(address, download.whole(address)).await??;
                Err(download.failure(&text))
            }
        }
    }

    /// Removes the agent's node from the cluster: the node's sessions end. The agent process exits
    /// after its reply.
    ///
    /// # Errors
    /// The agent keeps running. [`Error::Refused`] gives the reason. After any other error the node
    /// may have left; unless its agent exited, it registers the node again.
    pub async fn leave(&self) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/leave")).await
    }

    /// Makes a failed node leave the cluster: its sessions end. With `prune` it is also removed
    /// from the list of nodes that left. For a live node the reply is the same and nothing changes:
    /// check the node's status with [`Agent::members`].
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no such member, or if the servers do not know yet whether it
    /// is alive. After any other error it may have left.
    pub async fn force_leave(&self, node: &str, prune: bool) -> Result<(), Error> {
        let target = Target::new("/v1/agent/force-leave/").name(node);
        self.order(if prune { target.flag("prune") } else { target }).await
    }

    /// Makes the agent discover a server of its cluster at `host` or `host:port`, and use it when
    /// no other server is left.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason why the server does not belong to its cluster. Joining
    /// again is safe.
    pub async fn join(&self, address: &str) -> Result<(), Error> {
        self.order(Target::new("/v1/agent/join/").name(address)).await
    }

    /// Sends a write without a body.
    async fn order(&self, target: Target) -> Result<(), Error> {
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    async fn put(&self, target: Target, body: &impl Serialize) -> Result<(), Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Settings(error.to_string()))?;
        self.client.write(Verb::Put, target, body.into()).await.map(|_| ())
    }
}

impl Monitor<'_> {
    /// Waits for lines, and returns them with their line breaks; `None` when the agent stops.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.download.next().await.transpose().map_err(|error| Error::Unanswered {
            address: self.client.address().clone(),
            reason: error.to_string(),
        })
    }
}

fn maintenance(target: Target, reason: Option<&str>) -> Target {
    match reason {
        Some(reason) => target.with("enable", "true").with("reason", reason),
        None => target.with("enable", "false"),
    }
}
