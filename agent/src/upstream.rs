//! The way to the quorum: finds the leader, retries under one request id, tells "no" from "unknown".

use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{ServerId, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::Session;
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{BackupPart, Request, Response, Status, Unavailable};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A request on its way, and where its response goes. A dropped receiver cancels it.
pub type Exchange = (Request, oneshot::Sender<Response>);

/// A handle to the quorum, cheap to clone.
#[derive(Clone, Debug)]
pub struct Upstream {
    exchanges: mpsc::Sender<Exchange>,
}

impl Upstream {
    /// A handle whose requests are answered by whoever receives from the other end of this channel.
    pub fn from_channel(exchanges: mpsc::Sender<Exchange>) -> Self {
        Self { exchanges }
    }

    /// Changes the state, exactly once.
    pub async fn propose(&self, command: Command) -> Result<Applied, Unavailable> {
        match self.exchange(Request::Propose(None, command)).await? {
            Response::Applied(applied) => Ok(applied),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the state. A blocking read shares one upstream request with all others like it.
    pub async fn read(
        &self,
        query: Query,
        consistency: Consistency,
        blocking: Option<Blocking>,
    ) -> Result<Arc<Answer>, Unavailable> {
        match self.exchange(Request::Read { query, consistency, blocking }).await? {
            Response::Answer(answer) => Ok(Arc::new(answer)),
            other => Err(unexpected(&other)),
        }
    }

    /// Keeps a session alive; `None` when there is none of that id.
    pub async fn renew(&self, session: SessionId) -> Result<Option<Arc<Session>>, Unavailable> {
        match self.exchange(Request::Renew(session)).await? {
            Response::Renewed(session) => Ok(session),
            other => Err(unexpected(&other)),
        }
    }

    /// The quorum as the nearest server sees it.
    pub async fn status(&self) -> Result<Status, Unavailable> {
        match self.exchange(Request::Status).await? {
            Response::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands leadership to another server.
    pub async fn transfer_leader(&self, to: Option<ServerId>) -> Result<(), Unavailable> {
        self.exchange(Request::TransferLeader(to)).await.map(|_| ())
    }

    /// Takes a server out of the quorum.
    pub async fn remove_server(&self, server: ServerId) -> Result<(), Unavailable> {
        self.exchange(Request::RemoveServer(server)).await.map(|_| ())
    }

    /// A part of a backup; the first one begins it.
    pub async fn backup_part(
        &self,
        backup: Option<u64>,
        number: u32,
        stale: bool,
    ) -> Result<BackupPart, Unavailable> {
        match self.exchange(Request::BackupPart { backup, number, stale }).await? {
            Response::BackupPart(part) => Ok(part),
            other => Err(unexpected(&other)),
        }
    }

    async fn exchange(&self, request: Request) -> Result<Response, Unavailable> {
        let (sender, receiver) = oneshot::channel();
        let gone = || Unavailable::Unknown("the agent is shutting down".into());
        self.exchanges.send((request, sender)).await.map_err(|_| gone())?;
        match receiver.await.map_err(|_| gone())? {
            Response::Unavailable(unavailable) => Err(unavailable),
            response => Ok(response),
        }
    }
}

fn unexpected(response: &Response) -> Unavailable {
    Unavailable::Unknown(format!("the server answered something else: {response:?}"))
}
