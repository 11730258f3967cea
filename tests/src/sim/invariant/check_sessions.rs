//! No session outlives a committed critical check: behind every log entry, each check that a session
//! names exists and is not critical. And no session is lost to a check that is well: the check that
//! its loss names is critical behind that entry, or was removed by it.
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

    fn is_lost_for_a_reason(&self, loss: &Loss, node: &NodeName, changes: &[Change]) -> bool {
        let is_removed = |id: &CheckId| {
            let is_it = |change: &Change| matches!(change, Change::Check(of, removed, None) if *of == node.folded() && *removed == id.folded());
            changes.iter().any(is_it)
        };
        match &loss.cause {
            LossCause::CheckCritical(id) => {
                let status = self.checks.get(&(node.folded(), id.folded()));
                status == Some(&CheckStatus::Critical)
            }
            LossCause::CheckDeregistered(id) => is_removed(id),
            _ => true,
        }
    }

    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        let is_one = |change: &Change| matches!(change, Change::Session(..) | Change::Check(..));
        if !changes.iter().any(is_one) {
            return Ok(());
        }
        // A restored history of losses is long past.
        let losses = changes.iter().filter_map(|change| match change {
            Change::Loss(_, Some(loss)) if !is_restore(changes) => Some(loss),
            _ => None,
        });
        let nodes =
            losses.filter_map(|loss| Some((loss, self.sessions.get(&loss.session)?.spec.node.clone())));
        let losses: Vec<_> = nodes.collect();
        changes.iter().for_each(|change| self.change(change));
        for (loss, node) in losses {
            let is_lost = self.is_lost_for_a_reason(loss, &node, changes);
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
