//! Sessions: creation, and the ends that clients or the leader request.

use super::invalidation::end_session;
use super::rows::CheckKey;
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{SessionId, Term};
use lockmesh_protocol::record::{CheckStatus, LossCause, Session, SessionSpec};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

pub(super) fn create_session(step: &mut Step<'_>, new: &SessionSpec) -> Reply {
    let outcome = session_may_begin(step, new).map(|()| {
        let session = Session { spec: new.clone(), created_at: step.at, create_index: step.index };
        step.set(Change::Session(new.id, Some(Arc::new(session))));
        step.touch(Table::Sessions);
        Reply::Session(new.id)
    });
    reply_or_refusal(outcome)
}

/// Ends a session. An unknown one has already ended, so that succeeds.
pub(super) fn destroy_session(step: &mut Step<'_>, session: SessionId) -> Reply {
    end_session(step, session, LossCause::Destroyed);
    Reply::Done
}

/// Ends a session that its guard gave up.
pub(super) fn give_up_session(step: &mut Step<'_>, session: SessionId, silent_for: Duration) -> Reply {
    end_session(step, session, LossCause::GivenUp { silent_for });
    Reply::Done
}

/// Ends a session that was not renewed, unless another leader decided it. A new leader grants
/// every session its full TTL again, and an old one must not revoke that.
pub(super) fn expire_session(step: &mut Step<'_>, session: SessionId, term: Term, base: u64) -> Reply {
    if step.is_current(term, base) {
        end_session(step, session, LossCause::TtlExpired);
    }
    Reply::Done
}

fn session_may_begin(step: &Step<'_>, new: &SessionSpec) -> Result<(), Refusal> {
    // A state machine cannot draw ids, so the command carries one, which may be in use.
    if new.id == SessionId::NIL || step.state.sessions.contains_key(&new.id) {
        return Err(Refusal::SessionIdInUse(new.id));
    }
    if !step.state.nodes.contains_key(&new.node.folded()) {
        return Err(Refusal::MissingNode);
    }
    for id in new.all_checks() {
        match step.state.checks.get(&CheckKey::new(&new.node, id)) {
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
