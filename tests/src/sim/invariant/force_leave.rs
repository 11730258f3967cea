//! A force-leave takes effect only on nodes that have failed or left: the sessions of a live node,
//! and the locks that its guards believe in, survive it.
//!
//! A node is live if the log says so at the entry itself. The leader proposes a force-leave only if
//! its state has the node as failed, and no change may come in between.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::record::{LossCause, MemberStatus};
use std::collections::BTreeMap;

/// The status of each member according to the log.
#[derive(Debug, Default)]
pub(super) struct ForceLeave {
    members: BTreeMap<AgentNumber, MemberStatus>,
}

impl ForceLeave {
    fn entry(&self, past: &Past) -> Result<(), String> {
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        let Some(Command::LeaveNode(NodeLeave { node, lease: None, .. })) = command else {
            let forced = past.changes.iter().find(|change| {
                matches!(change, Change::Loss(_, Some(loss)) if loss.cause == LossCause::NodeForcedToLeave)
            });
            return ensure(forced.is_none() || past.changes.contains(&Change::Cleared), || {
                format!("{command:?} made a node leave: {forced:?}")
            });
        };
        let living = past.changes.iter().find_map(|change| match change {
            Change::Agent(number, _) => {
                let status = *self.members.get(number)?;
                matches!(status, MemberStatus::Alive | MemberStatus::Restarting).then_some((number, status))
            }
            _ => None,
        });
        ensure(living.is_none(), || format!("a force-leave of {node:?} took effect on {living:?}"))
    }

    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Agent(number, Some(agent)) => drop(self.members.insert(*number, agent.status)),
                Change::Agent(number, None) => drop(self.members.remove(number)),
                _ => {}
            }
        }
    }
}

impl Invariant for ForceLeave {
    fn name(&self) -> &'static str {
        "force_leave"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => {
                self.entry(past)?;
                self.note(&past.changes);
                Ok(())
            }
            Fact::Strange { changes } => {
                self.note(changes);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
