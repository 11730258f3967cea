//! No agent believes in its node's sessions any more when the servers fail the node (I1 of the
//! design, which depends on I2, I3 and I5). In true time, the deadline of the agent, in any process
//! of the node that its guards may rely on, is not behind the verdict, nor behind the end of
//! sessions that a former host left. A failed lease is never believed in again.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::id::{AgentNumber, LogIndex};
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::record::{LossCause, MemberStatus};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The beliefs of agents, and the servers' decisions.
#[derive(Debug, Default)]
pub(super) struct NodeLease {
    /// The time until which each agent believes in sessions of each window, in true time.
    believed: BTreeMap<LeaseId, [Time; 3]>,
    /// The times at which leases were failed.
    failed: BTreeMap<LeaseId, Time>,
    /// The first index of leases of the present host, on nodes with sessions of a former host.
    present_from: BTreeMap<AgentNumber, LogIndex>,
}

impl NodeLease {
    fn entry(&mut self, past: &Past) -> Result<(), String> {
        let judged = match past.proposal.as_ref().map(|proposal| &proposal.command) {
            Some(Command::FailNode(failure)) if is_verdict(&past.changes) => self.verdict(past, failure),
            Some(Command::EndFormerSessions { lease, window, .. }) if has_lost(&past.changes) => {
                let from = self.present_from.get(&lease.agent).copied().unwrap_or(LogIndex(0));
                self.ended(past, *window, |believed| believed.agent == lease.agent && believed.began < from)
            }
            _ => Ok(()),
        };
        let proposal = past.proposal.as_ref();
        let is_handed_over = proposal.is_some_and(|proposal| {
            proposal.request.is_some() && matches!(proposal.command, Command::EndRestart { .. })
        });
        for change in &past.changes {
            let Change::Agent(number, Some(agent)) = change else { continue };
            // The guards rely on the new process alone: the rules of their locks check that.
            if is_handed_over {
                self.believed.retain(|lease, _| lease.agent != *number || lease.began >= agent.lease_began);
            }
            if let Some(until) = agent.former_sessions_until {
                self.present_from.insert(*number, until);
            }
            // An operator's act, of which guards are notified.
            if agent.status == MemberStatus::Left {
                self.believed.retain(|lease, _| lease.agent != *number);
            }
        }
        judged
    }

    fn verdict(&mut self, past: &Past, failure: &NodeFailure) -> Result<(), String> {
        if failure.window >= HealthWindow::Default {
            self.failed.insert(failure.lease, past.at);
        }
        // Guards on the node also believe reports of its former processes.
        self.ended(past, failure.window, |believed| believed.agent == failure.lease.agent)
    }

    /// Sessions of this window and of shorter ones ended that these leases kept alive.
    fn ended(
        &self,
        past: &Past,
        longest: HealthWindow,
        is_theirs: impl Fn(LeaseId) -> bool,
    ) -> Result<(), String> {
        for (lease, until) in self.believed.iter().filter(|(lease, _)| is_theirs(**lease)) {
            for window in HealthWindow::ALL.into_iter().filter(|window| *window <= longest) {
                let until = until[window as usize];
                ensure(until <= past.at, || {
                    let early = until.since(past.at);
                    format!("{window:?} sessions ended {early:?} before the deadline of {lease:?}")
                })?;
            }
        }
        Ok(())
    }

    fn believes(&mut self, lease: LeaseId, until: [Time; 3]) -> Result<(), String> {
        self.believed.insert(lease, until);
        let Some(failed) = self.failed.get(&lease) else { return Ok(()) };
        let default = until[HealthWindow::Default as usize];
        ensure(default <= *failed, || format!("{lease:?} was failed, but is believed in until {default:?}"))
    }
}

/// Returns `true` if an entry was a verdict that took effect.
fn is_verdict(changes: &[Change]) -> bool {
    changes.iter().any(|change| match change {
        Change::Loss(_, Some(loss)) => matches!(loss.cause, LossCause::NodeFailed { .. }),
        Change::Agent(_, Some(agent)) => agent.status == MemberStatus::Failed,
        _ => false,
    })
}

fn has_lost(changes: &[Change]) -> bool {
    changes.iter().any(|change| matches!(change, Change::Loss(_, Some(_))))
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
