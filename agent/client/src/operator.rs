//! Requests for operators: the quorum, backups, and lock holders.

use crate::client::{Answer, Client, Target, accept};
use crate::connection::{Outgoing, Verb, unstalled};
use crate::error::Error;
use crate::read::Read;
use crate::shape::lockmesh::{
    DeadlockPolicy, DeadlockSettings, Deadlocks, Lock, Loss, OperatorHosts, Quorum, Wait,
};
use crate::shape::operator::{
    AutopilotConfiguration, AutopilotHealth, GossipKey, RaftConfiguration, Transferred,
};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// The timeout of a change of the quorum.
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(60);

/// The size in bytes of one read of a backup.
const PIECE: usize = 64 << 10;

/// Requests for operators. See [`Client::operator`].
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    client: &'a Client,
}

impl Client {
    /// Returns the requests for operators.
    pub fn operator(&self) -> Operator<'_> {
        Operator { client: self }
    }
}

impl Operator<'_> {
    /// Returns the servers of the quorum.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn raft_configuration(&self, read: &Read) -> Result<RaftConfiguration, Error> {
        Ok(self.client.read(Target::new("/v1/operator/raft/configuration").read(read)).await?.value)
    }

    /// Makes the server at this address, which belongs to no quorum yet, join this quorum. It joins
    /// as a learner, and is promoted to voter once it has caught up.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason and the action to take first. Unless
    /// [`Error::certainly_not_done`] is `true`, the server may be joining: check with
    /// [`Operator::servers`].
    pub async fn add_server(&self, address: &str) -> Result<(), Error> {
        let target = Target::new("/v1/lockmesh/servers").with("address", address).within(OPERATOR_TIMEOUT);
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    /// Removes a server from the quorum, by its node's UUID or its Raft id.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason why the quorum keeps the server, or reports that there
    /// is no such server, for example because an earlier attempt succeeded. Unless
    /// [`Error::certainly_not_done`] is `true`, the server may be gone: check with
    /// [`Operator::servers`].
    pub async fn remove_server(&self, id: &str) -> Result<(), Error> {
        self.remove("id", id).await
    }

    /// Removes a server from the quorum, by its `host:port`.
    ///
    /// # Errors
    /// As [`Operator::remove_server`].
    pub async fn remove_server_at(&self, address: &str) -> Result<(), Error> {
        self.remove("address", address).await
    }

    /// Transfers leadership to the server with that UUID or Raft id, or to any other one; returns
    /// once the new leader is established.
    ///
    /// # Errors
    /// [`Error::Refused`] gives the reason why leadership stays. Unless
    /// [`Error::certainly_not_done`] is `true`, it may still move: check with [`Client::leader`].
    pub async fn transfer_leader(&self, id: Option<&str>) -> Result<bool, Error> {
        let mut target = Target::new("/v1/operator/raft/transfer-leader").within(OPERATOR_TIMEOUT);
        if let Some(id) = id {
            target = target.with("id", id);
        }
        let reply = self.client.write(Verb::Post, target, Bytes::new()).await?;
        Ok(self.client.parse::<Transferred>(&reply)?.success)
    }

    /// Returns all information about the servers of the quorum.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn servers(&self, read: &Read) -> Result<Quorum, Error> {
        Ok(self.client.read(Target::new("/v1/lockmesh/servers").read(read)).await?.value)
    }

    /// Returns the autopilot configuration.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn autopilot(&self) -> Result<AutopilotConfiguration, Error> {
        Ok(self.client.read(Target::new("/v1/operator/autopilot/configuration")).await?.value)
    }

    /// Changes the autopilot configuration if it was not changed since `configuration` was read;
    /// returns `true` if it was changed.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid setting. Unless [`Error::certainly_not_done`] is
    /// `true`, the change may be in effect. Read the configuration before retrying, because
    /// repeating a successful change returns `false`.
    pub async fn configure_autopilot(&self, configuration: &AutopilotConfiguration) -> Result<bool, Error> {
        let target = Target::new("/v1/operator/autopilot/configuration");
        let target = target.number("cas", configuration.modify_index);
        let body = serde_json::to_vec(configuration).map_err(|error| Error::Settings(error.to_string()))?;
        self.client.verdict(Verb::Put, target, body.into()).await
    }

    /// Returns the health of the servers, as determined by the leader.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn autopilot_health(&self) -> Result<AutopilotHealth, Error> {
        let target = Target::new("/v1/operator/autopilot/health");
        let reply = self.client.send(Verb::Get, target, Bytes::new()).await?;
        // An unhealthy quorum is reported with status 429, which otherwise means rate limiting.
        match self.client.parse(&reply) {
            Ok(health) if reply.status == 429 => Ok(health),
            _ => self.client.parse(&accept(reply)?),
        }
    }

    /// Returns the number of the key that encrypts the agents' gossip.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn gossip_key(&self, read: &Read) -> Result<GossipKey, Error> {
        Ok(self.client.read(Target::new("/v1/operator/gossip").read(read)).await?.value)
    }

    /// Rotates the gossip key to the next one if the key with number `from` is still in use;
    /// returns the number of the key in use afterwards. Agents receive a new key within 30 s.
    /// Another rotation within that time is rejected, because some agents might have received
    /// neither key.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the key may have been rotated. Retry with
    /// the same number, which rotates it once.
    pub async fn rotate_gossip_key(&self, from: u32) -> Result<GossipKey, Error> {
        let target = Target::new("/v1/operator/gossip/rotate").number("from", from.into());
        let reply = self.client.write(Verb::Put, target, Bytes::new()).await?;
        self.client.parse(&reply)
    }

    /// Returns the lock holders under a prefix, and the keys blocked by a lock-delay.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn locks(&self, prefix: &str, read: &Read) -> Result<Answer<Vec<Lock>>, Error> {
        self.client.read(Target::new("/v1/lockmesh/locks").with("prefix", prefix).read(read)).await
    }

    /// Returns the sessions that were ended by others than their holder, newest first.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn losses(&self, read: &Read) -> Result<Answer<Vec<Loss>>, Error> {
        self.client.read(Target::new("/v1/lockmesh/losses").read(read)).await
    }

    /// Returns the requests that wait for locks under a prefix, in the order of the queues.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn waits(&self, prefix: &str, read: &Read) -> Result<Answer<Vec<Wait>>, Error> {
        self.client.read(Target::new("/v1/lockmesh/waits").with("prefix", prefix).read(read)).await
    }

    /// Returns the policy for deadlocks, and the last ones found.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn deadlocks(&self, read: &Read) -> Result<Deadlocks, Error> {
        Ok(self.client.read(Target::new("/v1/lockmesh/deadlocks").read(read)).await?.value)
    }

    /// Changes the reaction to requests that would close a circle of waits.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the change may be in effect. It can be
    /// repeated.
    pub async fn configure_deadlocks(&self, policy: DeadlockPolicy) -> Result<(), Error> {
        let body = serde_json::to_vec(&DeadlockSettings { policy });
        let body = body.map_err(|error| Error::Settings(error.to_string()))?;
        let target = Target::new("/v1/lockmesh/deadlocks");
        self.client.write(Verb::Put, target, body.into()).await.map(|_| ())
    }

    /// Returns the nodes whose agents may send operator requests; none if all may.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn hosts(&self, read: &Read) -> Result<OperatorHosts, Error> {
        Ok(self.client.read(Target::new("/v1/lockmesh/operator-hosts").read(read)).await?.value)
    }

    /// Sets the nodes whose agents may send operator requests, this agent's among them; with none,
    /// all may.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the change may be in effect. It can be
    /// repeated.
    pub async fn configure_hosts(&self, hosts: Vec<String>) -> Result<(), Error> {
        let body = serde_json::to_vec(&OperatorHosts { hosts });
        let body = body.map_err(|error| Error::Settings(error.to_string()))?;
        let target = Target::new("/v1/lockmesh/operator-hosts");
        self.client.write(Verb::Put, target, body.into()).await.map(|_| ())
    }

    /// Streams a backup of the whole state into `into`; returns its index and its size in bytes.
    ///
    /// # Errors
    /// The cluster is unchanged. `into` may contain a partial backup, which is useless: discard it.
    /// [`Error::Copy`] if `into` cannot be written.
    pub async fn save_snapshot(
        &self,
        into: &mut (impl AsyncWrite + Unpin),
        read: &Read,
    ) -> Result<(u64, u64), Error> {
        let target = Target::new("/v1/snapshot").read(&Read { index: 0, ..*read });
        let opened = self.client.open(Verb::Get, target, Outgoing::Whole(Bytes::new()));
        let mut download = self.unstalled(opened).await??;
        if download.status != 200 {
            let words = self.unstalled(download.whole(self.client.address())).await??;
            return Err(download.failure(&words));
        }
        let index = download.headers.get("x-consul-index").and_then(|value| value.to_str().ok());
        let index = index.and_then(|text| text.parse().ok()).unwrap_or_default();
        let mut bytes = 0;
        while let Some(piece) = self.unstalled(download.next()).await? {
            let piece = piece.map_err(|error| self.broken(&error.to_string()))?;
            bytes += piece.len() as u64;
            into.write_all(&piece).await.map_err(Error::Copy)?;
        }
        into.flush().await.map_err(Error::Copy)?;
        Ok((index, bytes))
    }

    /// Replaces the whole state by the backup from `from`.
    ///
    /// # Errors
    /// [`Error::Copy`] if `from` cannot be read: nothing was restored. Unless
    /// [`Error::certainly_not_done`] is `true`, another error leaves the whole state either
    /// replaced or unchanged, never a mixture: read the state before retrying.
    pub async fn restore_snapshot(&self, from: &mut (impl AsyncRead + Unpin)) -> Result<(), Error> {
        let (sender, receiver) = mpsc::channel(4);
        let reply = async {
            let target = Target::new("/v1/snapshot");
            let mut download = self.client.open(Verb::Put, target, Outgoing::Pieces(receiver)).await?;
            let words = download.whole(self.client.address()).await?;
            match download.status {
                200 => Ok(()),
                _ => Err(download.failure(&words)),
            }
        };
        let mut reply = std::pin::pin!(reply);
        // The agent may reply before it has read everything; its message is more useful than a
        // broken pipe.
        tokio::select! {
            biased;
            early = &mut reply => return early,
            copied = feed(from, sender) => copied?,
        }
        self.unstalled(reply).await?
    }

    async fn remove(&self, name: &str, value: &str) -> Result<(), Error> {
        let target = Target::new("/v1/operator/raft/peer").with(name, value).within(OPERATOR_TIMEOUT);
        self.client.write(Verb::Delete, target, Bytes::new()).await.map(|_| ())
    }

    async fn unstalled<T>(&self, step: impl Future<Output = T>) -> Result<T, Error> {
        unstalled(self.client.address(), step).await
    }

    fn broken(&self, reason: &str) -> Error {
        Error::Unanswered { address: self.client.address().clone(), reason: reason.to_owned() }
    }
}

/// Sends a backup in chunks. An unreadable source aborts the request instead of ending it.
async fn feed(
    from: &mut (impl AsyncRead + Unpin),
    into: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Error> {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        match from.take(PIECE as u64).read_to_end(&mut piece).await {
            Ok(0) => return Ok(()),
            // The request ended before its body did: its reply gives the reason.
            Ok(_) if into.send(Ok(piece.into())).await.is_err() => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                // The request may already have ended, which is fine.
                let _ = into.send(Err(io::Error::from(error.kind()))).await;
                return Err(Error::Copy(error));
            }
        }
    }
}
