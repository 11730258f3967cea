//! The messages waiting for one other server: bounded, and dropped while that server is
//! unreachable.

use lockmesh_core::raft::message::PeerMessage;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The maximum number of queued messages.
const MAX_MESSAGES: usize = 4_096;
/// The maximum bytes of queued entries.
const MAX_BYTES: usize = 64 << 20;

/// The queue from the driver to one other server.
#[derive(Debug)]
pub(super) struct PeerQueue {
    waiting: Mutex<Queued>,
    news: Notify,
    address: watch::Sender<String>,
    /// Notified when the other server connects: reconnecting at once is worthwhile.
    heard: Notify,
}

#[derive(Debug, Default)]
struct Queued {
    messages: Vec<PeerMessage>,
    bytes: usize,
    is_down: bool,
    /// `true` while a stream to the other server is open.
    is_up: bool,
}

impl PeerQueue {
    pub(super) fn new(address: String) -> Self {
        let (waiting, news, heard) = (Mutex::default(), Notify::new(), Notify::new());
        Self { waiting, news, address: watch::Sender::new(address), heard }
    }

    /// Queues a message; returns `false` if it is lost, because the other server is unreachable or
    /// the queue is full. Wakes no task: see [`PeerQueue::wake`].
    pub(super) fn push(&self, message: PeerMessage) -> bool {
        let bytes: usize = message.entries.iter().map(|entry| entry.data.len()).sum();
        let mut waiting = self.waiting();
        let has_room = waiting.messages.len() < MAX_MESSAGES && waiting.bytes + bytes <= MAX_BYTES;
        // Old messages are useless to a server that comes back: the engine starts from its position
        // then.
        if waiting.is_down || !has_room {
            return false;
        }
        waiting.bytes += bytes;
        waiting.messages.push(message);
        true
    }

    /// Wakes the sending task if there is something to send.
    pub(super) fn wake(&self) {
        if !self.waiting().messages.is_empty() {
            self.news.notify_one();
        }
    }

    /// Waits for messages and takes all of them into `messages`, which is empty.
    pub(super) async fn receive_all(&self, messages: &mut Vec<PeerMessage>) {
        loop {
            {
                let mut waiting = self.waiting();
                if !waiting.messages.is_empty() {
                    std::mem::swap(&mut waiting.messages, messages);
                    waiting.bytes = 0;
                    return;
                }
            }
            self.news.notified().await;
        }
    }

    /// The other server is reachable.
    pub(super) fn up(&self) {
        let mut waiting = self.waiting();
        (waiting.is_down, waiting.is_up) = (false, true);
    }

    /// Returns `true` while a stream to the other server is open.
    pub(super) fn is_up(&self) -> bool {
        self.waiting().is_up
    }

    /// The other server is unreachable: queued and later messages are lost.
    pub(super) fn down(&self) {
        // Queued messages are lost too: the engine is notified, and starts from the known position
        // when the server is back.
        *self.waiting() = Queued { is_down: true, ..Queued::default() };
    }

    /// Returns the current address of the other server.
    pub(super) fn address(&self) -> watch::Receiver<String> {
        self.address.subscribe()
    }

    /// Sets the other server's address.
    pub(super) fn move_to(&self, address: &str) {
        self.address.send_if_modified(|known| {
            let is_new = known != address;
            if is_new {
                address.clone_into(known);
            }
            is_new
        });
    }

    /// The other server has connected.
    pub(super) fn note_connected(&self) {
        self.heard.notify_one();
    }

    /// Waits until the other server connects, or moves.
    pub(super) async fn reconnect_hint(&self, address: &mut watch::Receiver<String>) {
        tokio::select! {
            () = self.heard.notified() => {}
            _ = address.changed() => {}
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Queued> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, MAX_MESSAGES, PeerQueue};
    use bytes::Bytes;
    use lockmesh_core::raft::log::{EntryKind, LogEntry};
    use lockmesh_core::raft::message::{MessageKind, PeerMessage};
    use lockmesh_protocol::id::{LogIndex, ServerId, Term};

    fn message(bytes: usize) -> PeerMessage {
        let entry = LogEntry {
            index: LogIndex(1),
            term: Term(1),
            kind: EntryKind::Normal,
            data: Bytes::from(vec![0; bytes]),
            context: Bytes::new(),
        };
        PeerMessage {
            term: Term(1),
            log_term: Term(1),
            entries: vec![entry],
            ..PeerMessage::new(MessageKind::Append, ServerId(1), ServerId(2))
        }
    }

    #[tokio::test]
    async fn excess_messages_dropped_until_drained() {
        let queue = PeerQueue::new(String::new());
        assert!((0..MAX_MESSAGES).all(|_| queue.push(message(1))));
        assert!(!queue.push(message(1)));
        queue.wake();
        let mut messages = Vec::new();
        queue.receive_all(&mut messages).await;
        assert_eq!(messages.len(), MAX_MESSAGES);
        assert!(queue.push(message(MAX_BYTES)));
        assert!(!queue.push(message(1)));
    }

    #[tokio::test]
    async fn nothing_queued_while_server_down() {
        let queue = PeerQueue::new(String::new());
        assert!(queue.push(message(1)) && !queue.is_up());
        queue.down();
        assert!(!queue.push(message(1)) && !queue.is_up());
        queue.up();
        assert!(queue.is_up());
        assert!(queue.push(message(7)));
        let mut messages = Vec::new();
        queue.receive_all(&mut messages).await;
        assert_eq!(messages, [message(7)]);
    }
}
