//! One stream of another server's messages: a verified hello, then frames, each posted to the
//! driver as a whole.

use super::counters::one_more;
use super::service::RpcService;
use crate::peers::{HelloFrame, PeerFrame, Peers, Refused};
use lockmesh_core::Input;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, LinkError};
use lockmesh_protocol::id::ServerId;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// The timeout of the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct RaftStream {
    pub(super) service: RpcService,
    pub(super) peers: Arc<Peers>,
    pub(super) connection: Connection,
}

impl RaftStream {
    /// Serves the stream until it ends.
    pub(super) async fn run(self, mut sender: FrameSender, mut receiver: FrameReceiver) {
        let hello = tokio::time::timeout(HELLO_TIMEOUT, receiver.receive::<HelloFrame>()).await;
        let Ok(Ok(Some(HelloFrame(hellos)))) = hello else { return self.cut("no hello") };
        let [hello] = hellos.as_slice() else { return self.cut("not one hello") };
        let answer = match self.peers.admit(hello, self.connection.peer()) {
            Ok(answer) => answer,
            // No error: this server still forms or joins a quorum, and the other one retries.
            Err(Refused::NotYet) => return self.connection.close(Close::Done, "not a member yet"),
            Err(Refused::Removed) => return self.report_removal(hello.from),
            Err(Refused::Mismatched(reason)) => return self.service.mismatch(&self.connection, &reason),
            Err(Refused::Denied(reason)) => {
                self.service.deny(&self.connection, &reason);
                return;
            }
        };
        let ended = match sender.send_one(&answer).await {
            Ok(()) => self.take_messages(hello.from, receiver).await,
            Err(error) => Err(error),
        };
        match ended {
            Err(LinkError::Malformed(what)) => self.cut(&what),
            Err(error) => tracing::debug!(server = hello.from.0, %error, "a server's stream ended"),
            Ok(()) => {}
        }
    }

    async fn take_messages(&self, from: ServerId, mut receiver: FrameReceiver) -> Result<(), LinkError> {
        let counters = &self.service.counters;
        // Subscribed before the first check, so that no removal is missed in between.
        let mut departures = self.peers.departures();
        while let Some(PeerFrame(messages)) = self.next_frame(from, &mut receiver, &mut departures).await? {
            one_more(&counters.peer_frames);
            counters.peer_messages.fetch_add(messages.len() as u64, Ordering::Relaxed);
            let events = messages.into_iter().map(|message| Input::Peer(from, message).into());
            // Excess messages are dropped, not waited for: the engine sends again, and other
            // streams must be served meanwhile.
            let dropped = self.service.sender.post_all(events).len();
            counters.peer_dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the next frame; `None` if the stream ended, or its server was removed: an idle one
    /// is notified too.
    async fn next_frame(
        &self,
        from: ServerId,
        receiver: &mut FrameReceiver,
        departures: &mut watch::Receiver<()>,
    ) -> Result<Option<PeerFrame>, LinkError> {
        // Kept across the loop: a partly read frame must not be lost when another server leaves.
        let mut frame = pin!(receiver.receive());
        loop {
            let frame = tokio::select! {
                frame = &mut frame => Some(frame?),
                _ = departures.changed() => None,
            };
            if !self.peers.is_member(from) {
                self.report_removal(from);
                return Ok(None);
            }
            if let Some(frame) = frame {
                return Ok(frame);
            }
        }
    }

    fn report_removal(&self, from: ServerId) {
        let reason = format!(
            "server {from} was removed from the quorum: to make it join again, stop it and empty its data folder"
        );
        self.service
            .counters
            .mismatched
            .count_and_warn(|| format!("rejected {}: {reason}", self.connection.peer()));
        self.connection.close(Close::Removed, &reason);
    }

    fn cut(&self, what: &str) {
        self.service.cut(&self.connection, what);
    }
}
