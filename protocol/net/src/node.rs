//! A reused connection to the agent of one node: created on demand, and only to an agent whose
//! certificate names the node.

use crate::client::{CallClient, try_each};
use crate::{Close, Connection, Endpoint, LinkError, Role};
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, Renewal};
use lockmesh_protocol::rpc::{Request, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The timeout of one connection attempt; concurrent calls wait for the same attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a node's agent, shared by all clones; it ends with the last one.
#[derive(Clone, Debug)]
pub struct NodeConnection {
    endpoint: Arc<Endpoint>,
    node: NodeName,
    address: String,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl NodeConnection {
    /// Creates a connection to the agent of this node at `host:port`. Nothing is sent yet.
    pub fn new(endpoint: Arc<Endpoint>, node: NodeName, address: String) -> Self {
        Self { endpoint, node, address, connection: Arc::default() }
    }

    /// Returns the node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Returns the agent's reply to a challenge, or to a request that forwards one: its renewal.
    /// `None` for any other reply, or if none arrives within `limit`.
    pub async fn answer(
        &self,
        request: Request,
        challenge: Challenge,
        limit: Duration,
    ) -> Option<NodeAnswer> {
        let (node, address) = (&self.node, &self.address);
        match self.call(request, limit).await {
            // The reply must match the challenge's lease and nonce.
            Ok(response) => {
                let Some(answer) = response.node_answer() else {
                    tracing::debug!(%node, answer = ?response, "unexpected reply to a challenge");
                    return None;
                };
                let Renewal { lease, nonce, .. } = answer.renewal;
                Some(answer).filter(|_| (lease, nonce) == (challenge.lease, challenge.nonce))
            }
            Err(error) => {
                tracing::debug!(%node, address, %error, "cannot challenge an agent");
                None
            }
        }
    }

    /// Sends a notification to the agent; returns `true` if the agent accepted it within `limit`.
    pub async fn notify(&self, request: Request, limit: Duration) -> bool {
        let (node, address) = (&self.node, &self.address);
        match self.call(request, limit).await {
            Ok(answer) => answer == Response::Done,
            Err(error) => {
                tracing::debug!(%node, address, %error, "cannot notify an agent");
                false
            }
        }
    }

    /// Each call has its own stream: on a lossy link a later reply may overtake an earlier one.
    async fn call(&self, request: Request, limit: Duration) -> Result<Response, LinkError> {
        let mut client = CallClient::on(self.connected().await?).await?;
        client.call(request, limit).await
    }

    /// Returns the connection; creates it if there is none.
    async fn connected(&self) -> Result<Connection, LinkError> {
        // Owned, because the task that connects keeps it after this call is dropped.
        let mut shared = Arc::clone(&self.connection).lock_owned().await;
        if let Some(connection) = shared.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let this = self.clone();
        // In a task of its own: the call that started it waits only for its own timeout, and the
        // next call finds the connection.
        let connecting = tokio::spawn(async move {
            let connection = this.connect().await?;
            *shared = Some(connection.clone());
            Ok(connection)
        });
        connecting.await.unwrap_or_else(|error| Err(LinkError::Lost(error.to_string())))
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let connecting =
            try_each(&self.address, CONNECT_TIMEOUT, |address| self.endpoint.connect(address, Role::Agent));
        let connection = connecting.await?;
        let certified = &connection.peer().node;
        if certified.folded() == self.node.folded() {
            return Ok(connection);
        }
        let reason = format!("its certificate names the node {certified}, not {}", self.node);
        connection.close(Close::Denied, &reason);
        Err(LinkError::Stranger(reason))
    }
}
