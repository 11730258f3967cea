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

pub use service::{RpcOptions, RpcService};

use crate::event_queue::{Caller, ReplySink};
use lockmesh_net::quic::Arrival;
use lockmesh_net::{Connection, Endpoint, LinkError, Purpose};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

impl RpcService {
    /// Accepts connections until the endpoint is closed.
    pub async fn run(self, endpoint: Arc<Endpoint>) {
        let permits = Arc::new(Semaphore::new(self.options.connections));
        let handshakes = Arc::new(Semaphore::new(self.options.handshakes));
        while let Some(arrival) = endpoint.accept().await {
            // Before the handshake, which is the expensive part: a crowd must not take the
            // processor too.
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                let limit = self.options.connections;
                self.counters.full.count_and_warn(|| {
                    format!("rejected {}: connection limit reached ({limit})", arrival.remote_address())
                });
                arrival.refuse();
                continue;
            };
            // Handshakes in progress must end before their callers time out and start again: of a
            // crowd that all start at once, none would finish.
            let Ok(turn) = handshakes.clone().try_acquire_owned() else {
                let limit = self.options.handshakes;
                self.counters.crowded.count_and_warn(|| {
                    format!(
                        "rejected {} for now: handshake limit reached ({limit})",
                        arrival.remote_address()
                    )
                });
                arrival.refuse();
                continue;
            };
            tokio::spawn(self.clone().welcome(arrival, turn, permit));
        }
    }

    async fn welcome(self, arrival: Arrival, turn: OwnedSemaphorePermit, _place: OwnedSemaphorePermit) {
        let remote = arrival.remote_address();
        let handshake = tokio::time::timeout(self.options.handshake_time, arrival.handshake()).await;
        drop(turn);
        let reason = match handshake {
            Ok(Ok(connection)) => {
                tracing::debug!(%remote, peer = %connection.peer(), "connected");
                self.counters.connections.fetch_add(1, Ordering::Relaxed);
                let reason = self.serve(&connection).await;
                self.counters.connections.fetch_sub(1, Ordering::Relaxed);
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
                        return self.deny(connection, "this server has no quorum");
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
