//! No session outlives a committed critical check: behind every log entry, each check that a
//! session names exists and is not critical. And no session is lost to a check that is well: the
//! check that its loss names is critical behind that entry, or was removed by it.
//!
//! A failed node's own health is an exception: its sessions end with their windows.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{CheckId, NodeName, SessionId};
use lockmesh_protocol::record::{CheckStatus, Loss, LossCause, SERF_HEALTH, Session};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A check, by the folded name of its node and its folded id.
type CheckKey = (NodeName, CheckId);

/// Sessions and checks, according to the changes.
#[derive(Debug, Default)]
pub(super) struct CheckSessions {
    sessions: BTreeMap<SessionId, Arc<Session>>,
    checks: BTreeMap<CheckKey, CheckStatus>,
}

impl CheckSessions {
    fn change(&mut self, change: &Change) {
        match change {
            Change::Session(id, Some(session)) => drop(self.sessions.insert(*id, session.clone())),
            Change::Session(id, None) => drop(self.sessions.remove(id)),
            Change::Check(node, id, Some(check)) => {
                self.checks.insert((node.clone(), id.clone()), check.status);
            }
            Change::Check(node, id, None) => drop(self.checks.remove(&(node.clone(), id.clone()))),
            Change::Cleared => *self = Self::default(),
            _ => {}
        }
    }

    fn is_fit(&self, node: &NodeName, id: &CheckId) -> bool {
        let status = self.checks.get(&(node.folded(), id.folded()));
        status.is_some_and(|status| *status != CheckStatus::Critical || id.as_str() == SERF_HEALTH)
    }

    fn is_lost_for_a_reason(&self, loss: &Loss, changes: &[Change]) -> bool {
        let key = |id: &CheckId| (loss.node.folded(), id.folded());
        let is_removed = |id: &CheckId| {
            let removed = changes.iter().filter_map(|change| match change {
                Change::Check(node, id, None) => Some((node.clone(), id.clone())),
                _ => None,
            });
            removed.into_iter().any(|removed| removed == key(id))
        };
        match &loss.cause {
            LossCause::CheckCritical(id) => self.checks.get(&key(id)) == Some(&CheckStatus::Critical),
            LossCause::CheckDeregistered(id) => is_removed(id),
            _ => true,
        }
    }

    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        let is_one = |change: &Change| matches!(change, Change::Session(..) | Change::Check(..));
        if !changes.iter().any(is_one) {
            return Ok(());
        }
        changes.iter().for_each(|change| self.change(change));
        // A restored history of losses is long past.
        let losses = changes.iter().filter_map(|change| match change {
            Change::Loss(_, Some(loss)) if !is_restore(changes) => Some(loss),
            _ => None,
        });
        for loss in losses {
            let is_lost = self.is_lost_for_a_reason(loss, changes);
            ensure(is_lost, || format!("{} was lost to {:?}, which is well", loss.session, loss.cause))?;
        }
        for session in self.sessions.values() {
            let (id, node) = (session.spec.id, &session.spec.node);
            let unfit = session.spec.all_checks().find(|check| !self.is_fit(node, check));
            ensure(unfit.is_none(), || {
                format!("{id} on {node} lives, but its check {unfit:?} does not pass")
            })?;
        }
        Ok(())
    }
}

impl Invariant for CheckSessions {
    fn name(&self) -> &'static str {
        "check_sessions"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::record::{Check, SessionSpec};

    fn check(status: Option<CheckStatus>) -> Change {
        let check = status.map(|status| Arc::new(Check::of("n".into(), "up".into(), status)));
        Change::Check("n".into(), "up".into(), check)
    }

    fn lost(session: &Session, cause: LossCause) -> Vec<Change> {
        let loss = Loss {
            index: session.create_index,
            at: session.created_at,
            session: session.spec.id,
            session_name: String::new(),
            node: "n".into(),
            cause,
            keys: Vec::new(),
            key_count: 1,
        };
        vec![Change::Session(session.spec.id, None), Change::Loss(1, Some(Arc::new(loss)))]
    }

    #[test]
    fn session_ends_exactly_with_check() {
        let spec = SessionSpec::of(SessionId::from_random([1; 16]), "n".into());
        let spec = SessionSpec { node_checks: vec!["up".into()], ..spec };
        let session = Session { spec, created_at: Default::default(), create_index: Default::default() };
        let created = [
            check(Some(CheckStatus::Passing)),
            Change::Session(session.spec.id, Some(Arc::new(session.clone()))),
        ];
        let critical = check(Some(CheckStatus::Critical));
        let cause = LossCause::CheckCritical("up".into());
        let begin = || {
            let mut seen = CheckSessions::default();
            seen.entry(&created).expect("the check passes");
            seen
        };
        for (entry, is_right) in [
            (vec![check(Some(CheckStatus::Warning))], true),
            (vec![critical.clone()], false),
            (vec![check(None)], false),
            ([vec![critical], lost(&session, cause.clone())].concat(), true),
            (lost(&session, cause), false),
            ([vec![check(None)], lost(&session, LossCause::CheckDeregistered("up".into()))].concat(), true),
            (lost(&session, LossCause::CheckDeregistered("up".into())), false),
        ] {
            assert_eq!(begin().entry(&entry).is_ok(), is_right, "{entry:?}");
        }
    }
}
