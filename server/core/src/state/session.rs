//! Sessions: creation, and the ends that clients, agents or the leader request.

use super::catalog::CheckKey;
use super::invalidation::end_session;
use super::node::SERF_HEALTH;
use super::rows::{remove_inner, take_out};
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{CheckId, LogIndex, NodeName, SessionId, Term};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::{CheckStatus, LossCause, ProcessBinding, Session, SessionSpec};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of sessions of a node: the end of a node ends all of them in one entry.
pub const NODE_SESSIONS_MAX: usize = 200_000;

/// The format version since which it holds.
const LIMITED_SINCE_FORMAT: u8 = 10;

/// The live sessions, with the nodes and the checks that they depend on. No derived set is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sessions {
    pub(super) rows: BTreeMap<SessionId, Arc<Session>>,
    /// The sessions of each node.
    pub(super) by_node: BTreeMap<NodeName, BTreeSet<SessionId>>,
    /// The sessions that depend on each check.
    pub(super) by_check: BTreeMap<CheckKey, BTreeSet<SessionId>>,
    /// The processes that sessions of each node are bound to.
    pub(super) bindings: BTreeMap<NodeName, BTreeMap<SessionId, ProcessBinding>>,
}

impl Sessions {
    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let bindings = self.bindings.iter().flat_map(|(node, bindings)| {
            bindings.iter().map(|(id, binding)| Change::Binding(node.clone(), *id, Some(*binding)))
        });
        self.rows.iter().map(|(id, row)| Change::Session(*id, Some(row.clone()))).chain(bindings)
    }

    pub(super) fn load_binding(&mut self, node: NodeName, id: SessionId, binding: Option<ProcessBinding>) {
        match binding {
            Some(binding) => drop(self.bindings.entry(node).or_default().insert(id, binding)),
            None => remove_inner(&mut self.bindings, &node, &id),
        }
    }

    /// The process that a session is bound to.
    pub(super) fn binding(&self, session: &Session) -> Option<&ProcessBinding> {
        self.bindings.get(&session.spec.node.folded())?.get(&session.spec.id)
    }

    pub(super) fn load(&mut self, id: SessionId, session: Option<Arc<Session>>) {
        if let Some(before) = self.rows.remove(&id) {
            take_out(&mut self.by_node, &before.spec.node.folded(), &id);
            for check in before.spec.all_checks() {
                take_out(&mut self.by_check, &CheckKey::new(&before.spec.node, check), &id);
            }
        }
        if let Some(session) = session {
            for check in session.spec.all_checks() {
                let check_key = CheckKey::new(&session.spec.node, check);
                self.by_check.entry(check_key).or_default().insert(id);
            }
            self.by_node.entry(session.spec.node.folded()).or_default().insert(id);
            self.rows.insert(id, session);
        }
    }

    /// The sessions that end with the node's silence.
    pub(super) fn dependent_on(&self, node: &NodeName) -> impl Iterator<Item = &Arc<Session>> {
        let key = CheckKey::new(node, &CheckId::from(SERF_HEALTH));
        let ids = self.by_check.get(&key).into_iter().flatten();
        ids.filter_map(|id| self.rows.get(id))
    }

    /// The sessions that end after silence for this window; for a former host only those created
    /// before an index.
    pub(super) fn within(
        &self,
        node: &NodeName,
        window: HealthWindow,
        made_before: Option<LogIndex>,
    ) -> Vec<SessionId> {
        let is_old = |session: &Session| made_before.is_none_or(|until| session.create_index < until);
        let sessions = self.dependent_on(node);
        let ending = sessions.filter(|session| session.spec.health_window <= window && is_old(session));
        ending.map(|session| session.spec.id).collect()
    }

    pub(super) fn any_without_checks(&self, node: &NodeName) -> bool {
        let ids = self.by_node.get(&node.folded()).into_iter().flatten();
        let mut sessions = ids.filter_map(|id| self.rows.get(id));
        sessions.any(|session| session.spec.all_checks().next().is_none())
    }
}

pub(super) fn create_session(step: &mut Step<'_>, new: &SessionSpec) -> Reply {
    let outcome = session_may_begin(step, new).map(|()| {
        let session = Session { spec: new.clone(), created_at: step.at, create_index: step.index };
        step.set(Change::Session(new.id, Some(Arc::new(session))));
        step.touch(Table::Sessions);
        Reply::Session(new.id)
    });
    reply_or_refusal(outcome)
}

/// Creates a session that ends with a process of its node.
pub(super) fn create_bound_session(
    step: &mut Step<'_>,
    new: &SessionSpec,
    binding: &ProcessBinding,
) -> Reply {
    let reply = create_session(step, new);
    if let Reply::Session(id) = reply {
        step.set(Change::Binding(new.node.folded(), id, Some(*binding)));
    }
    reply
}

/// Ends a session whose process has exited.
pub(super) fn end_of_process(step: &mut Step<'_>, session: SessionId) -> Reply {
    let sessions = &step.state.sessions;
    let binding = sessions.rows.get(&session).and_then(|session| sessions.binding(session));
    if let Some(ProcessBinding { pid, .. }) = binding.copied() {
        end_session(step, session, LossCause::ProcessExited { pid });
    }
    Reply::Done
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
    if new.id == SessionId::NIL || step.state.sessions.rows.contains_key(&new.id) {
        return Err(Refusal::SessionIdInUse(new.id));
    }
    let node = new.node.folded();
    if !step.state.catalog.nodes.contains_key(&node) {
        return Err(Refusal::MissingNode);
    }
    let count = step.state.sessions.by_node.get(&node).map_or(0, BTreeSet::len);
    if count >= NODE_SESSIONS_MAX && step.state.format() >= LIMITED_SINCE_FORMAT {
        return Err(Refusal::TooManySessions(new.node.clone(), NODE_SESSIONS_MAX));
    }
    for id in new.all_checks() {
        match step.state.catalog.checks.get(&CheckKey::new(&new.node, id)) {
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
