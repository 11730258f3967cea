//! Sessions: creation, and the ends that clients or the leader request.

use super::rows::CheckKey;
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{SessionId, Term};
use lockmesh_protocol::record::{CheckStatus, LossCause, Session, SessionSpec};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

impl Step<'_> {
    pub(super) fn create_session(&mut self, new: &SessionSpec) -> Reply {
        let outcome = self.session_may_begin(new).map(|()| {
            let session = Session { spec: new.clone(), created_at: self.at, create_index: self.index };
            self.set(Change::Session(new.id, Some(Arc::new(session))));
            self.touch(Table::Sessions);
            Reply::Session(new.id)
        });
        reply_or_refusal(outcome)
    }

    /// Ends a session. An unknown one has already ended, so that succeeds.
    pub(super) fn destroy_session(&mut self, session: SessionId) -> Reply {
        self.end_session(session, LossCause::Destroyed);
        Reply::Done
    }

    /// Ends a session that its guard gave up.
    pub(super) fn give_up_session(&mut self, session: SessionId, silent_for: Duration) -> Reply {
        self.end_session(session, LossCause::GivenUp { silent_for });
        Reply::Done
    }

    /// Ends a session that was not renewed, unless another leader decided it. A new leader grants
    /// every session its full TTL again, and an old one must not revoke that.
    pub(super) fn expire_session(&mut self, session: SessionId, term: Term, base: u64) -> Reply {
        if term == self.term && base == self.state.index_base {
            self.end_session(session, LossCause::TtlExpired);
        }
        Reply::Done
    }

    fn session_may_begin(&self, new: &SessionSpec) -> Result<(), Refusal> {
        // A state machine cannot draw ids, so the command carries one, which may be in use.
        if new.id == SessionId::NIL || self.state.sessions.contains_key(&new.id) {
            return Err(Refusal::SessionIdInUse(new.id));
        }
        if !self.state.nodes.contains_key(&new.node.folded()) {
            return Err(Refusal::MissingNode);
        }
        for id in new.all_checks() {
            match self.state.checks.get(&CheckKey::new(&new.node, id)) {
                None => return Err(Refusal::MissingCheck(id.clone())),
                // The session would begin with the cause of its end.
                Some(check) if check.status == CheckStatus::Critical => {
                    return Err(Refusal::CriticalCheck(id.clone()));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}
