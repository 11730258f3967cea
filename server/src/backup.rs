//! Backups and images that are being read: each has a thread of its own, so that reading one stops nobody else.

use crate::images::ImageSource;
use crate::mailbox::{Mail, Mailbox, ReplySink};
use crate::store::{Backup, StoreError};
use lockmesh_protocol::rpc::{BackupPart, CallId, Response, Unavailable};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// After this long without a question a backup is let go.
const SILENCE: Duration = Duration::from_secs(60);
/// How many questions may wait for one backup's thread.
const MAX_QUESTIONS: usize = 64;

/// Which part, of whom.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) number: u32,
    pub(crate) call: CallId,
    pub(crate) replies: ReplySink,
}

/// What is read.
pub(crate) enum Source {
    /// For an operator.
    Backup(Backup),
    /// For another server.
    Image(ImageSource),
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
            Err(error) => refuse(&first, &format!("the system gives no thread for a backup: {error}")),
        }
    }

    /// Asks an open backup for a part.
    pub(crate) fn ask(&mut self, id: u64, question: Question) {
        let Some(open) = self.open.get(&id) else {
            return refuse(&question, "this backup was let go: begin a new one");
        };
        match open.questions.try_send(question) {
            Ok(()) => {}
            Err(mpsc::TrySendError::Full(question)) => refuse(&question, "too many questions at once"),
            Err(mpsc::TrySendError::Disconnected(question)) => {
                self.open.remove(&id);
                refuse(&question, "this backup was let go: begin a new one");
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
    while let Ok(question) = questions.recv_timeout(SILENCE) {
        let Question { number, call, replies } = &question;
        let answer = match &mut source {
            Source::Backup(backup) => backup_part(id, backup, *number),
            Source::Image(image) => image.part(id, *number).map(|part| part.map(Response::ImagePart)),
        };
        match answer {
            Ok(None) => refuse(&question, "this backup has no such part"),
            Ok(Some(response)) => replies.answer(*call, response),
            Err(error) => refuse(&question, &error.to_string()),
        }
    }
}

fn backup_part(id: u64, backup: &mut Backup, number: u32) -> Result<Option<Response>, StoreError> {
    let Some(part) = backup.part(number)? else { return Ok(None) };
    Ok(Some(Response::BackupPart(BackupPart {
        backup: id,
        cluster_id: backup.cluster_id().into(),
        index: backup.mark().index,
        term: backup.mark().term,
        number,
        last: part.last,
        rows: part.rows,
    })))
}

fn refuse(question: &Question, why: &str) {
    question.replies.answer(question.call, Response::Unavailable(Unavailable::Denied(why.into())));
}
