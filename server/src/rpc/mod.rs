//! The QUIC service in front of the driver: authentication, authorization and limits.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | accepts connections by their certificates, and rejects others |
//! | `service.rs` | the context of every stream |
//! | `calls.rs` | one stream of calls: receives frames, posts events to the driver, sends answers |
//! | `long.rs` | answers with a large number of rows, built in the background |
//! | `raft.rs` | one stream of another server's messages |
//! | `counters.rs` | counters, for metrics |
//!
//! **Invariant:** nothing here waits for the driver while it blocks other peers, and a peer's bytes
//! are never trusted beyond its certificate.

mod calls;
pub mod counters;
mod long;
mod raft;
mod service;
#[cfg(test)]
mod tests;

pub use service::{RpcOptions, RpcService};

use crate::event_queue::{Caller, ReplySink};
use counters::one_more;
use lockmesh_net::admission::{Admitted, HandshakeTurn, NodeConnections, Place};
use lockmesh_net::quic::Arrival;
use lockmesh_net::{Close, Connection, Endpoint, LinkError, Purpose, Role};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

impl RpcService {
    /// Accepts connections until the endpoint is closed.
    pub async fn run(self, endpoint: Arc<Endpoint>) {
        while let Some(arrival) = endpoint.accept().await {
            let remote = arrival.remote_address();
            // Before the handshake, which is the expensive part. Of a crowd that all start at once,
            // none would finish before its peer times out and starts again.
            match self.admission.admit(arrival) {
                Admitted::Yes(arrival, turn) => drop(tokio::spawn(self.clone().welcome(arrival, turn))),
                Admitted::Retried => one_more(&self.counters.retries),
                Admitted::Refused => {
                    let limit = self.options.handshakes;
                    self.counters.crowded.count_and_warn(|| {
                        format!("rejected {remote} for now: handshake limit or its share reached ({limit})")
                    });
                }
            }
        }
    }

    async fn welcome(self, arrival: Arrival, turn: HandshakeTurn) {
        let remote = arrival.remote_address();
        let handshake = tokio::time::timeout(self.options.handshake_time, arrival.handshake()).await;
        drop(turn);
        let reason = match handshake {
            Ok(Ok(connection)) => {
                // It may be one that the roster does not have, such as that of a NAT.
                self.admission.know(remote.ip());
                let Some(place) = self.take_place(&connection) else { return };
                tracing::debug!(%remote, peer = %connection.peer(), "connected");
                self.counters.connections.fetch_add(1, Ordering::Relaxed);
                let reason = self.serve(&connection).await;
                self.counters.connections.fetch_sub(1, Ordering::Relaxed);
                self.agents().leave(&connection.peer().node, place);
                tracing::debug!(%remote, peer = %connection.peer(), reason, "disconnected");
                return;
            }
            // A peer that hung up first is no stranger, and worth no warning.
            Ok(Err(LinkError::Withdrawn)) => return tracing::debug!(%remote, "{}", LinkError::Withdrawn),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the handshake timed out".into(),
        };
        self.counters.strangers.count_and_warn(|| format!("rejected {remote}: {reason}"));
    }

    /// Returns the number of an agent's place; `None` if there was none, and the connection was
    /// closed. Servers are not limited: the quorum depends on them.
    fn take_place(&self, connection: &Connection) -> Option<u64> {
        let (peer, limit) = (connection.peer(), self.options.connections);
        if peer.role == Role::Server {
            return Some(0);
        }
        let place = self.agents().enter(&peer.node, connection.clone());
        match place {
            Place::Number(number, displaced) => {
                if let Some(displaced) = displaced {
                    let reason = "this node has too many connections, and opened a newer one";
                    displaced.close(Close::Displaced, reason);
                    self.counters
                        .displaced
                        .count_and_warn(|| format!("closed a connection of {peer}: {reason}"));
                }
                Some(number)
            }
            Place::Full => {
                let reason = format!("connection limit reached ({limit})");
                connection.close(Close::Full, &reason);
                self.counters.full.count_and_warn(|| format!("rejected {peer}: {reason}"));
                None
            }
        }
    }

    fn agents(&self) -> MutexGuard<'_, NodeConnections<Connection>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves every stream of a connection until the connection ends; returns the reason.
    async fn serve(&self, connection: &Connection) -> String {
        loop {
            match connection.accept().await {
                Ok((Purpose::Calls, sender, receiver)) => {
                    // Ids are never reused, so that an answer cannot reach another connection's
                    // call.
                    let caller = Caller(self.last_caller.fetch_add(1, Ordering::Relaxed) + 1);
                    let limit = self.options.calls_per_connection;
                    let replies = ReplySink::new(caller, connection.peer().clone(), limit);
                    let dialect = connection.dialect();
                    let stream = calls::Stream { service: self.clone(), replies, dialect };
                    tokio::spawn(stream.run(connection.clone(), sender, receiver));
                }
                Ok((purpose, ..)) if !purpose.is_open_to(connection.peer().role) => {
                    return self
                        .deny(connection, "its certificate is not a server's: Raft streams are not allowed");
                }
                Ok((Purpose::Raft, sender, receiver)) => {
                    let Some(peers) = self.peers.clone() else {
                        self.mismatch(connection, "this server has no quorum");
                        return "this server has no quorum".into();
                    };
                    let stream =
                        raft::RaftStream { service: self.clone(), peers, connection: connection.clone() };
                    tokio::spawn(stream.run(sender, receiver));
                }
                // A peer that sends malformed data is disconnected: nothing after it can be trusted
                // either.
                Err(LinkError::Malformed(what)) => return self.cut(connection, &what),
                Err(error) => return error.to_string(),
            }
        }
    }
}
