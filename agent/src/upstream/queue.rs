//! The wait for a lock: a place in the state's queue, kept for as long as somebody waits for the answer.
//!
//! ```text
//! Enqueue ──▶ Granted, or refused                       the answer, at once
//!        └──▶ Queued{ticket} ──▶ Place, parked ──▶ granted, or not        the answer
//!                             └─ the time is over, the client is gone, the agent stops ──▶ Leave
//! ```
//!
//! The wait itself keeps no sequence of the command window: only the commands before and after it do.
//! **Invariant:** an answer that nobody hears is taken back. Whoever is gone before the answer came leaves the queue,
//! and a lock that was granted to it meanwhile is released, unless its session has acquired it again.

use super::{Upstream, Way};
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How much longer than the wait the quorum is listened to: its own clock ends the wait, but an election makes that
/// later, and the client need not wait for it.
const GRACE: Duration = Duration::from_secs(1);

/// Between two questions about a place that is still waited in; a server answers such a one only when its own time for
/// the question is over.
const PAUSE: Duration = Duration::from_millis(50);

/// Who wants which lock, for what.
#[derive(Clone, Debug)]
struct Wish {
    upstream: Upstream,
    key: Key,
    session: SessionId,
}

/// What the wish came to, and the index of its command, where it has one.
type Outcome = (Option<LogIndex>, Result<Applied, Unavailable>);

/// Somebody waits for the outcome; when dropped without it, nobody does.
struct Waiting {
    wish: Wish,
    outcome: oneshot::Receiver<Outcome>,
}

impl Upstream {
    /// Takes a lock, or waits in its queue for up to `wait`; answered as an acquire is, and with the index at which the
    /// lock was asked for. To drop the future is to give up the place.
    pub async fn acquire(
        &self,
        new: NewEntry,
        session: SessionId,
        wait: Duration,
    ) -> Result<(LogIndex, Applied), Unavailable> {
        let wish = Wish { upstream: self.clone(), key: new.key.clone(), session };
        let (sender, outcome) = oneshot::channel();
        let mut waiting = Waiting { wish: wish.clone(), outcome };
        tokio::spawn(wish.pursue(new, wait, sender));
        match (&mut waiting.outcome).await {
            Ok((mark, outcome)) => outcome.map(|applied| (mark.unwrap_or(applied.index), applied)),
            Err(_) => Err(Unavailable::Unknown("the agent is shutting down".into())),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.outcome.close();
        if let (Ok(unheard), Ok(runtime)) = (self.outcome.try_recv(), Handle::try_current()) {
            runtime.spawn(self.wish.clone().take_back(unheard));
        }
    }
}

impl Wish {
    async fn pursue(self, new: NewEntry, wait: Duration, mut answer: oneshot::Sender<Outcome>) {
        let command = KvCommand::Enqueue { new, session: self.session.clone(), wait };
        let outcome = match self.upstream.propose(Command::Kv(command)).await {
            Ok(Applied { index: mark, reply: Reply::Queued { ticket } }) => {
                let place =
                    Query::Place { key: self.key.clone(), session: self.session.clone(), ticket, mark };
                let mut applied = tokio::select! {
                    applied = self.outcome(place, ticket, mark, wait) => applied,
                    () = tokio::time::sleep(wait + GRACE) => self.leave(mark).await,
                    () = self.upstream.hurried() => self.leave(mark).await,
                    () = answer.closed() => self.leave(mark).await,
                };
                // Nobody will hear what becomes of the place, so it is worth one more attempt to give it up; while
                // it stands, the lock may be granted in it.
                if let Err(reason) = &applied
                    && self.leave(mark).await.is_err()
                {
                    applied = Err(Unavailable::Unknown(reason.to_string()));
                }
                (Some(mark), applied)
            }
            outcome => (outcome.as_ref().ok().map(|applied| applied.index), outcome),
        };
        if let Err(unheard) = answer.send(outcome) {
            self.take_back(unheard).await;
        }
    }

    /// What became of a place, once something did: granted where the grant's index says, or else in vain at its own.
    async fn outcome(
        &self,
        place: Query,
        ticket: LogIndex,
        mark: LogIndex,
        wait: Duration,
    ) -> Result<Applied, Unavailable> {
        let blocking = Blocking { index: ticket, wait: wait + GRACE };
        loop {
            let answer = self.upstream.read_place(place.clone(), blocking).await?;
            let reply = match &answer.rows {
                Rows::Place(Reply::Queued { .. }) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Rows::Place(reply) => reply.clone(),
                _ => {
                    return Err(Unavailable::Unknown(
                        "the server answered something else than a place".into(),
                    ));
                }
            };
            let index = if matches!(reply, Reply::Granted { .. }) { answer.index } else { mark };
            return Ok(Applied { index, reply });
        }
    }

    /// Gives the place up, or what was granted in it; then the session holds nothing by this wish.
    async fn leave(&self, mark: LogIndex) -> Result<Applied, Unavailable> {
        let (key, session) = (self.key.clone(), self.session.clone());
        self.upstream.propose(Command::Kv(KvCommand::Leave { key, session, mark })).await?;
        Ok(Applied { index: mark, reply: Reply::Flag(false) })
    }

    async fn take_back(self, unheard: Outcome) {
        if let (Some(mark), Ok(Applied { reply: Reply::Granted { .. }, .. })) = unheard
            && let Err(reason) = self.leave(mark).await
        {
            let (key, session) = (&self.key, &self.session);
            tracing::warn!(%key, %session, "a lock that nobody waits for any more may be granted: {reason}");
        }
    }
}

impl Upstream {
    async fn read_place(&self, place: Query, blocking: Blocking) -> Result<Arc<Answer>, Unavailable> {
        match &self.0 {
            Way::Quorum(quorum) => quorum.read_of_leader(place, blocking).await,
            Way::Channel(_) => self.read(place, Consistency::Default, Some(blocking)).await,
        }
    }

    async fn hurried(&self) {
        match &self.0 {
            Way::Quorum(quorum) => quorum.hurried().await,
            Way::Channel(_) => std::future::pending().await,
        }
    }
}
