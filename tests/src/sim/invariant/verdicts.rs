//! A verdict has no effect unless a majority of the voters of its index confirms it (I4 of the
//! design), or if it concerns a former lease (I5). Agents accept no other verdicts.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_core::Proposal;
use lockmesh_core::raft::log::Membership;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::format;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::{LossCause, MemberStatus};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Verdicts;

fn entry(past: &Past) -> Result<(), String> {
    if !matches!(past.proposal.as_ref().map(|proposal| &proposal.command), Some(Command::FailNode(_))) {
        return Ok(());
    }
    let is_effect = |change: &&Change| match change {
        Change::Loss(_, Some(loss)) => matches!(loss.cause, LossCause::NodeFailed { .. }),
        Change::Agent(_, Some(agent)) => agent.status == MemberStatus::Failed,
        _ => false,
    };
    let Some(effect) = past.changes.iter().find(is_effect) else { return Ok(()) };
    // The entry as proposed: servers remove insufficient confirmations before they apply it.
    let proposal = format::decode::<Proposal>(&past.entry.data).map_err(|error| error.to_string())?;
    let Command::FailNode(NodeFailure { lease, confirmed_by, .. }) = proposal.command else {
        return Err("a verdict became another command".into());
    };
    ensure(is_majority(&past.voters, &confirmed_by), || {
        format!("{confirmed_by:?} of {:?} failed {lease:?}: {effect:?}", past.voters)
    })?;
    let others = past.changes.iter().find_map(|change| match change {
        Change::Agent(_, Some(agent)) if agent.lease() != lease => Some(agent.lease()),
        _ => None,
    });
    ensure(others.is_none(), || format!("a verdict on {lease:?} failed {others:?}"))
}

/// More than half of the voters; during a membership change, of the old ones and of the new ones.
fn is_majority(voters: &Membership, confirmed_by: &[ServerId]) -> bool {
    let is_most = |voters: &[ServerId]| {
        2 * voters.iter().filter(|voter| confirmed_by.contains(voter)).count() > voters.len()
    };
    is_most(&voters.voters) && (!voters.is_joint() || is_most(&voters.voters_outgoing))
}

impl Invariant for Verdicts {
    fn name(&self) -> &'static str {
        "verdicts"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::VerdictHeard { agent, verdict } => {
                let past = scene.history.answered(verdict.index);
                let command = past.and_then(|past| Some(&past.proposal.as_ref()?.command));
                let is_it = |failure: &NodeFailure| {
                    (failure.lease, failure.window) == (verdict.lease, verdict.window)
                };
                ensure(matches!(command, Some(Command::FailNode(failure)) if is_it(failure)), || {
                    format!("agent {agent} believes in {verdict:?}, but the log has {command:?}")
                })
            }
            Fact::Applied(past) if !is_restore(&past.changes) => entry(past),
            _ => Ok(()),
        }
    }
}
