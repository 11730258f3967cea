//! Open backups and checkpoint readers. Each has its own thread, so that reading one blocks no
//! other work.

use crate::event_queue::{EventSender, ReplySink};
use crate::metrics;
use crate::snapshot::{CheckpointSource, refusal};
use lockmesh_core::frontend::{CallRef, Caller, Event};
use lockmesh_protocol::rpc::{CallId, Response};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// The maximum number of requests queued for one reader's thread.
const MAX_QUESTIONS: usize = 64;

/// The maximum number of readers that have read their last part. They take no place among the open
/// ones; the oldest is closed when another one begins.
const MAX_FINISHED: usize = 8;

/// A request for one part, with its caller.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) number: u32,
    pub(crate) call: CallId,
    pub(crate) replies: ReplySink,
}

/// An order to a reader's thread.
#[derive(Debug)]
enum BackupOrder {
    /// Answer the request.
    Answer(Question),
    /// The caller of the last request gave up.
    Abandon,
}

/// The open readers.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    orders: mpsc::SyncSender<BackupOrder>,
    thread: JoinHandle<()>,
    /// The call of the last request.
    last: CallRef,
    is_finished: Arc<AtomicBool>,
}

impl Backups {
    /// Opens the reader with this number and serves its first request. Events are posted when its
    /// last part is read and when it closes.
    pub(crate) fn begin(&mut self, id: u64, source: CheckpointSource, first: Question, sender: EventSender) {
        // Readers that have ended are removed here, so that the map stays bounded.
        self.open.retain(|_, open| !open.thread.is_finished());
        self.close_finished();
        let (orders, received) = mpsc::sync_channel(MAX_QUESTIONS);
        let is_finished = Arc::<AtomicBool>::default();
        // Moved into the thread, so that every end is reported: a panic, or a failure to start the
        // thread.
        let reader = Reader { id, is_finished: Arc::clone(&is_finished), sender };
        let serve = move || reader.serve(source, &received);
        match std::thread::Builder::new().name("lockmesh-backup".into()).spawn(serve) {
            Ok(thread) => {
                self.open.insert(id, Open { orders, thread, last: first.from(), is_finished });
                self.request_part(id, first);
            }
            Err(error) => {
                answer(&first, refusal(&format!("cannot start a thread for the backup: {error}")));
            }
        }
    }

    /// Closes the oldest readers that have finished, if there are too many.
    fn close_finished(&mut self) {
        let finished = self.open.iter().filter(|(_, open)| open.is_finished.load(Ordering::Relaxed));
        let finished: Vec<u64> = finished.map(|(id, _)| *id).collect();
        for id in finished.iter().rev().skip(MAX_FINISHED - 1) {
            self.open.remove(id);
        }
    }

    /// Requests a part from an open reader.
    pub(crate) fn request_part(&mut self, id: u64, question: Question) {
        let Some(open) = self.open.get_mut(&id) else {
            return answer(&question, CheckpointSource::gone());
        };
        open.last = question.from();
        // Never waits for the reader: this runs in the driver's loop.
        match open.orders.try_send(BackupOrder::Answer(question)) {
            Err(mpsc::TrySendError::Full(BackupOrder::Answer(question))) => {
                answer(&question, refusal("too many concurrent requests for this backup"));
            }
            Err(mpsc::TrySendError::Disconnected(BackupOrder::Answer(question))) => {
                self.open.remove(&id);
                answer(&question, CheckpointSource::gone());
            }
            _ => {}
        }
    }

    /// Closes a reader, after the requests that it has.
    pub(crate) fn close(&mut self, id: u64) {
        self.open.remove(&id);
    }

    /// A call was canceled before its answer.
    pub(crate) fn cancel(&self, call: CallRef) {
        self.abandon(|last| last == call);
    }

    /// A connection ended.
    pub(crate) fn cancel_all(&self, caller: Caller) {
        self.abandon(|last| last.caller == caller);
    }

    fn abandon(&self, whose: impl Fn(CallRef) -> bool) {
        for open in self.open.values().filter(|open| whose(open.last)) {
            // A full queue holds newer requests, and a reader that has ended needs no notice.
            let _ = open.orders.try_send(BackupOrder::Abandon);
        }
    }
}

impl Question {
    fn from(&self) -> CallRef {
        CallRef { caller: self.replies.caller(), call: self.call }
    }
}

/// The thread of a reader. Posts on drop that it is closed.
struct Reader {
    id: u64,
    is_finished: Arc<AtomicBool>,
    sender: EventSender,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // This event is never rejected for lack of room, and a driver that has stopped needs no
        // notice.
        let _ = self.sender.post(Event::ReaderClosed(self.id));
    }
}

impl Reader {
    fn serve(self, mut source: CheckpointSource, orders: &mpsc::Receiver<BackupOrder>) {
        // Ends after a timeout: readers are limited, and an open one keeps old pages of the file.
        while let Ok(order) = orders.recv_timeout(source.timeout()) {
            match order {
                BackupOrder::Answer(Question { number, call, replies }) => {
                    let part = source.answer(self.id, number);
                    if completes_backup(&part) {
                        show_backup(SystemTime::now());
                    }
                    if source.is_finished() && !self.is_finished.swap(true, Ordering::Relaxed) {
                        // Before the answer: the caller may begin its next backup at once.
                        let _ = self.sender.post(Event::ReaderFinished(self.id));
                    }
                    replies.answer(call, part);
                }
                BackupOrder::Abandon => source.abandon(),
            }
        }
    }
}

/// Returns `true` for the last part of an operator's backup. Snapshots for other servers and
/// refusals are no backups.
fn completes_backup(answer: &Response) -> bool {
    matches!(answer, Response::BackupPart(part) if part.last)
}

fn show_backup(now: SystemTime) {
    // A clock before 1970 must not stop the reader: this time is only shown to monitoring.
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    metrics::LAST_BACKUP.set(since_1970.as_secs_f64());
}

fn answer(question: &Question, with: Response) {
    question.replies.answer(question.call, with);
}

#[cfg(test)]
mod tests {
    use super::{BackupOrder, Backups, CallRef, Caller, Open, Question, completes_backup};
    use crate::event_queue::ReplySink;
    use crate::snapshot::CheckpointSource;
    use crate::store::testing::backup_of;
    use lockmesh_core::State;
    use lockmesh_core::frontend::CheckpointReader;
    use lockmesh_core::raft::log::SnapshotMeta;
    use lockmesh_net::{Peer, Role};
    use lockmesh_protocol::change::Change;
    use lockmesh_protocol::id::Fence;
    use lockmesh_protocol::rpc::CallId;
    use std::sync::{Arc, mpsc};

    fn question(caller: u64, call: u64) -> Question {
        let replies = ReplySink::new(Caller(caller), Peer { role: Role::Agent, node: "a1".into() }, 10);
        Question { number: 1, call: CallId(call), replies }
    }

    #[test]
    fn cancel_or_disconnect_abandons_reader() {
        let mut backups = Backups::default();
        let (orders, received) = mpsc::sync_channel(10);
        let last = question(1, 1).from();
        backups
            .open
            .insert(7, Open { orders, thread: std::thread::spawn(|| {}), last, is_finished: Arc::default() });
        let was_told = || matches!(received.try_recv(), Ok(BackupOrder::Abandon));
        let call = |caller, call| CallRef { caller: Caller(caller), call: CallId(call) };
        backups.request_part(7, question(2, 5));
        assert!(matches!(received.try_recv(), Ok(BackupOrder::Answer(_))));
        backups.cancel(call(1, 1));
        backups.cancel(call(2, 4));
        backups.cancel_all(Caller(1));
        assert!(!was_told(), "these are others, or asked before");
        backups.cancel(call(2, 5));
        assert!(was_told());
        backups.cancel_all(Caller(2));
        assert!(was_told());
    }

    #[test]
    fn last_part_completes_operator_backup_only() {
        let mut state = State::new();
        state.load(Change::ClusterId("c".into()));
        state.load(Change::Fence(Fence(3)));
        let completed = |reader| {
            let checkpoint = backup_of(SnapshotMeta::default(), &state).in_parts_of(1);
            let mut source = CheckpointSource::new(reader, checkpoint);
            [0, 1, 2].map(|number| completes_backup(&source.answer(7, number)))
        };
        assert_eq!(completed(CheckpointReader::Backup), [false, true, false]);
        assert_eq!(completed(CheckpointReader::Snapshot), [false; 3]);
    }
}
