//! No agent believes in its node's sessions any more when the servers fail the node (I1 of the
//! design, which rests on I2, I3 and I5): the deadline of the agent, in true time, is not behind
//! the verdict. And a lease that was failed is never believed in again.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::record::{LossCause, MemberStatus};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// What agents believe, and what the servers decided.
#[derive(Debug, Default)]
pub(super) struct NodeLease {
    /// Until when each agent believes in sessions of each window, in true time.
    believed: BTreeMap<LeaseId, [Time; 3]>,
    /// When leases were failed.
    failed: BTreeMap<LeaseId, Time>,
}

impl NodeLease {
    fn entry(&mut self, past: &Past) -> Result<(), String> {
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        let Some(Command::FailNode(failure)) = command else { return Ok(()) };
        let is_verdict = past.changes.iter().any(|change| match change {
            Change::Loss(_, Some(loss)) => matches!(loss.cause, LossCause::NodeFailed { .. }),
            Change::Agent(_, Some(agent)) => agent.status == MemberStatus::Failed,
            _ => false,
        });
        if !is_verdict {
            return Ok(());
        }
        if failure.window >= HealthWindow::Default {
            self.failed.insert(failure.lease, past.at);
        }
        let Some(until) = self.believed.get(&failure.lease) else { return Ok(()) };
        for window in HealthWindow::ALL.into_iter().filter(|window| *window <= failure.window) {
            let until = until[window as usize];
            ensure(until <= past.at, || {
                let late = until.since(past.at);
                format!(
                    "the {window:?} verdict on {:?} came {late:?} before its agent's deadline",
                    failure.lease
                )
            })?;
        }
        Ok(())
    }

    fn believes(&mut self, lease: LeaseId, until: [Time; 3]) -> Result<(), String> {
        self.believed.insert(lease, until);
        let Some(failed) = self.failed.get(&lease) else { return Ok(()) };
        let default = until[HealthWindow::Default as usize];
        ensure(default <= *failed, || format!("{lease:?} was failed, and is believed in until {default:?}"))
    }
}

impl Invariant for NodeLease {
    fn name(&self) -> &'static str {
        "node_lease"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) if !is_restore(&past.changes) => self.entry(past),
            Fact::NodeBelieved { lease, until } => self.believes(*lease, *until),
            _ => Ok(()),
        }
    }
}
