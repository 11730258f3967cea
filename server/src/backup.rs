//! Backups and images that are being read: each has a thread of its own, so that reading one stops nobody else.

use crate::images::{Source, refusal};
use crate::mailbox::{Mail, Mailbox, ReplySink};
use lockmesh_protocol::rpc::{CallId, Response};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// How many questions may wait for one backup's thread.
const MAX_QUESTIONS: usize = 64;

/// Which part, of whom.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) number: u32,
    pub(crate) call: CallId,
    pub(crate) replies: ReplySink,
}

/// The backups that are open.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    open: BTreeMap<u64, Open>,
    last_id: u64,
}

#[derive(Debug)]
struct Open {
    questions: mpsc::SyncSender<Question>,
    thread: JoinHandle<()>,
}

impl Backups {
    /// Begins to serve a backup, with its first question. Its end is posted.
    pub(crate) fn begin(&mut self, source: Source, first: Question, mailbox: Mailbox) {
        self.open.retain(|_, open| !open.thread.is_finished());
        self.last_id += 1;
        let id = self.last_id;
        let (sender, questions) = mpsc::sync_channel(MAX_QUESTIONS);
        let closed = Closed(mailbox);
        let serve = move || {
            let _closed = closed;
            serve(id, source, &questions);
        };
        match std::thread::Builder::new().name("lockmesh-backup".into()).spawn(serve) {
            Ok(thread) => {
                self.open.insert(id, Open { questions: sender, thread });
                self.ask(id, first);
            }
            Err(error) => {
                answer(&first, refusal(&format!("the system gives no thread for a backup: {error}")));
            }
        }
    }

    /// Asks an open backup for a part.
    pub(crate) fn ask(&mut self, id: u64, question: Question) {
        let Some(open) = self.open.get(&id) else {
            return answer(&question, Source::gone());
        };
        match open.questions.try_send(question) {
            Ok(()) => {}
            Err(mpsc::TrySendError::Full(question)) => {
                answer(&question, refusal("too many questions at once"));
            }
            Err(mpsc::TrySendError::Disconnected(question)) => {
                self.open.remove(&id);
                answer(&question, Source::gone());
            }
        }
    }
}

/// Posts that a reader is closed, however it ends.
struct Closed(Mailbox);

impl Drop for Closed {
    fn drop(&mut self) {
        // It always gets in; a driver that is gone counts no more.
        let _ = self.0.post(Mail::ReaderClosed);
    }
}

fn serve(id: u64, mut source: Source, questions: &mpsc::Receiver<Question>) {
    while let Ok(Question { number, call, replies }) = questions.recv_timeout(source.timeout()) {
        replies.answer(call, source.answer(id, number));
    }
}

fn answer(question: &Question, with: Response) {
    question.replies.answer(question.call, with);
}
