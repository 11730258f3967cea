//! For operators: the quorum, backups, and who holds what.

use crate::client::{Answer, Client, Target, accept};
use crate::connection::{Download, Outgoing, Verb};
use crate::error::Error;
use crate::outcome;
use crate::read::Read;
use crate::shape::lockmesh::{Lock, Loss, Quorum};
use crate::shape::operator::{
    AutopilotConfiguration, AutopilotHealth, GossipKey, RaftConfiguration, Transferred,
};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a backup may stand still before it is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a change of the quorum may take.
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of a backup is read at once.
const PIECE: usize = 64 << 10;

/// Requests for operators. See [`Client::operator`].
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    client: &'a Client,
}

impl Client {
    /// Requests for operators.
    pub fn operator(&self) -> Operator<'_> {
        Operator { client: self }
    }
}

impl Operator<'_> {
    /// The servers of the quorum.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn raft_configuration(&self, read: &Read) -> Result<RaftConfiguration, Error> {
        Ok(self.client.read(Target::new("/v1/operator/raft/configuration").read(read)).await?.value)
    }

    /// Tells the server at this address, which belongs to no quorum yet, to join this one. It
    /// becomes a learner when it has come, and gets its vote when it has caught up.
    ///
    /// # Errors
    /// [`Error::Refused`] says why the server does not join and what to do first. Unless
    /// [`Error::certainly_not_done`], it may be joining: [`Operator::servers`] tells.
    pub async fn add_server(&self, address: &str) -> Result<(), Error> {
        let target = Target::new("/v1/lockmesh/servers").with("address", address).within(OPERATOR_TIMEOUT);
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    /// Takes a server out of the quorum, by its node's UUID or its Raft id.
    ///
    /// # Errors
    /// [`Error::Refused`] says why the quorum keeps the server, or that it has no such server, as
    /// after an earlier attempt that did it. Unless [`Error::certainly_not_done`], the server may
    /// be gone: [`Operator::servers`] tells.
    pub async fn remove_server(&self, id: &str) -> Result<(), Error> {
        self.remove("id", id).await
    }

    /// Takes a server out of the quorum, by its `host:port`.
    ///
    /// # Errors
    /// As [`Operator::remove_server`].
    pub async fn remove_server_at(&self, address: &str) -> Result<(), Error> {
        self.remove("address", address).await
    }

    /// Hands leadership to the server of that UUID or Raft id, or to any other one; answers when
    /// that one leads.
    ///
    /// # Errors
    /// [`Error::Refused`] says why leadership stays where it is. Unless
    /// [`Error::certainly_not_done`], it may move yet: [`Client::leader`] tells who leads.
    pub async fn transfer_leader(&self, id: Option<&str>) -> Result<bool, Error> {
        let mut target = Target::new("/v1/operator/raft/transfer-leader").within(OPERATOR_TIMEOUT);
        if let Some(id) = id {
            target = target.with("id", id);
        }
        let reply = self.client.write(Verb::Post, target, Bytes::new()).await?;
        Ok(self.client.parse::<Transferred>(&reply)?.success)
    }

    /// All that is known of the servers of the quorum.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn servers(&self, read: &Read) -> Result<Quorum, Error> {
        Ok(self.client.read(Target::new("/v1/lockmesh/servers").read(read)).await?.value)
    }

    /// How the leader looks after the servers.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn autopilot(&self) -> Result<AutopilotConfiguration, Error> {
        Ok(self.client.read(Target::new("/v1/operator/autopilot/configuration")).await?.value)
    }

    /// Changes how the leader looks after the servers, if nobody did since `configuration` was
    /// read; answers whether it was changed.
    ///
    /// # Errors
    /// [`Error::Refused`] says what is wrong with the configuration. Unless
    /// [`Error::certainly_not_done`], it may be in force: read it before trying again, since a
    /// repeat of what was done answers `false`.
    pub async fn configure_autopilot(&self, configuration: &AutopilotConfiguration) -> Result<bool, Error> {
        let target = Target::new("/v1/operator/autopilot/configuration");
        let target = target.number("cas", configuration.modify_index);
        let body = serde_json::to_vec(configuration).map_err(|error| Error::Settings(error.to_string()))?;
        self.client.verdict(Verb::Put, target, body.into()).await
    }

    /// How the servers are, as the leader finds them.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn autopilot_health(&self) -> Result<AutopilotHealth, Error> {
        let target = Target::new("/v1/operator/autopilot/health");
        let reply = self.client.send(Verb::Get, target, Bytes::new()).await?;
        // Ill health is told by the status that also says that too much was asked.
        match self.client.parse(&reply) {
            Ok(health) if reply.status == 429 => Ok(health),
            _ => self.client.parse(&accept(reply)?),
        }
    }

    /// The number of the key that the agents' mesh is sealed with.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn gossip_key(&self, read: &Read) -> Result<GossipKey, Error> {
        Ok(self.client.read(Target::new("/v1/operator/gossip").read(read)).await?.value)
    }

    /// Has the mesh go on to the next key, if the one with this number is in use still; answers the
    /// number of the one that is in use then. Agents learn of it within 30 s: so soon after a
    /// change another one is refused, for some would have heard of neither.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the key may have been changed: try again with the same
    /// number, which changes it once.
    pub async fn rotate_gossip_key(&self, from: u32) -> Result<GossipKey, Error> {
        let target = Target::new("/v1/operator/gossip/rotate").number("from", from.into());
        let reply = self.client.write(Verb::Put, target, Bytes::new()).await?;
        self.client.parse(&reply)
    }

    /// Who holds which lock under a prefix, and which keys a delay keeps closed.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn locks(&self, prefix: &str, read: &Read) -> Result<Answer<Vec<Lock>>, Error> {
        self.client.read(Target::new("/v1/lockmesh/locks").with("prefix", prefix).read(read)).await
    }

    /// The sessions that ended without their holder's doing, newest first.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn losses(&self, read: &Read) -> Result<Answer<Vec<Loss>>, Error> {
        self.client.read(Target::new("/v1/lockmesh/losses").read(read)).await
    }

    /// Streams a backup of the whole state into `into`; answers the index that it stands for and
    /// its bytes.
    ///
    /// # Errors
    /// The cluster is as it was. `into` may hold a part of the backup, which is of no use: throw it
    /// away. [`Error::Copy`] where `into` cannot be written to.
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
            return Err(failed(&download, &words));
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

    /// Replaces the whole state by the backup that `from` holds.
    ///
    /// # Errors
    /// [`Error::Copy`] where `from` cannot be read: nothing was restored. Unless
    /// [`Error::certainly_not_done`], another error leaves the whole state replaced or as it was,
    /// never in between: look before trying again.
    pub async fn restore_snapshot(&self, from: &mut (impl AsyncRead + Unpin)) -> Result<(), Error> {
        let (sender, receiver) = mpsc::channel(4);
        let reply = async {
            let target = Target::new("/v1/snapshot");
            let mut download = self.client.open(Verb::Put, target, Outgoing::Pieces(receiver)).await?;
            let words = download.whole(self.client.address()).await?;
            match download.status {
                200 => Ok(()),
                _ => Err(failed(&download, &words)),
            }
        };
        let mut reply = std::pin::pin!(reply);
        // The agent may answer before it has read everything; its words then say more than a broken
        // pipe.
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
        let stalled = |_| self.broken(&format!("nothing moved for {} s", STALL_TIMEOUT.as_secs()));
        timeout(STALL_TIMEOUT, step).await.map_err(stalled)
    }

    fn broken(&self, reason: &str) -> Error {
        Error::Unanswered { address: self.client.address().clone(), reason: reason.to_owned() }
    }
}

/// Why a transfer failed, in the words that came instead of it.
fn failed(download: &Download, words: &[u8]) -> Error {
    let outcome = download.headers.get(outcome::HEADER).and_then(|value| value.to_str().ok());
    Error::from_answer(download.status, outcome, String::from_utf8_lossy(words).into_owned())
}

/// Passes a backup on, piece by piece; an unreadable source breaks the request off instead of
/// ending it.
async fn feed(
    from: &mut (impl AsyncRead + Unpin),
    into: mpsc::Sender<io::Result<Bytes>>,
) -> Result<(), Error> {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        match from.take(PIECE as u64).read_to_end(&mut piece).await {
            Ok(0) => return Ok(()),
            // The request ended before its body did: its answer says why.
            Ok(_) if into.send(Ok(piece.into())).await.is_err() => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                // Whether the broken request is still there to hear of it does not matter.
                let _ = into.send(Err(io::Error::from(error.kind()))).await;
                return Err(Error::Copy(error));
            }
        }
    }
}
