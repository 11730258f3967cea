//! A renewal is acknowledged only by a server that was the leader when the renewal arrived and had
//! applied every earlier verdict on the node (I2 of the design). It is never acknowledged between a
//! verdict's proposal and its outcome (I3), nor for a lease that another registration has replaced
//! (I5).
//!
//! A missing read-index round is detected by its effect: if any server applied an entry of a later
//! term before the renewal arrived, no round that began later can have confirmed the leader of an
//! earlier term.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::history::Past;
use crate::sim::lease_turn::LeaseTurn;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseAck, LeaseId};
use lockmesh_protocol::record::MemberStatus;
use std::collections::{BTreeMap, BTreeSet};

/// Known renewals and verdicts.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    servers: BTreeMap<ServerId, Heard>,
    /// The first index of each agent's leases, and the index of verdicts that failed them.
    leases: BTreeMap<AgentNumber, Vec<(LogIndex, LeaseId)>>,
    failed: BTreeMap<LeaseId, LogIndex>,
}

/// The input of one server in its present life.
#[derive(Debug, Default)]
struct Heard {
    /// The last entry that any server had applied when a renewal first arrived.
    renewals: BTreeMap<(LeaseId, u64), (Term, LogIndex)>,
    /// Acknowledgements of other servers.
    relayed: BTreeSet<(LeaseId, u64)>,
    /// The verdicts that it proposed, until it has applied them.
    deciding: BTreeMap<AgentNumber, LogIndex>,
}

impl Acknowledgements {
    fn entry(&mut self, past: &Past) {
        let command = past.proposal.as_ref().map(|proposal| &proposal.command);
        for change in &past.changes {
            let Change::Agent(number, Some(agent)) = change else { continue };
            let lease = agent.lease();
            let leases = self.leases.entry(*number).or_default();
            if leases.last().is_none_or(|(_, last)| *last != lease) {
                leases.push((past.entry.index, lease));
            }
            let is_verdict = matches!(command, Some(Command::FailNode(failure))
                if failure.lease == lease && failure.window >= HealthWindow::Default);
            if is_verdict && agent.status == MemberStatus::Failed {
                self.failed.insert(lease, past.entry.index);
            }
        }
    }

    fn turn(&mut self, server: ServerId, turn: &LeaseTurn, scene: &Scene<'_>) -> Result<(), String> {
        let heard = self.servers.entry(server).or_default();
        let last = scene.history.last();
        let newest = (scene.history.at(last).map(|past| past.entry.term).unwrap_or_default(), last);
        for renewal in &turn.renewals {
            heard.renewals.entry((renewal.lease, renewal.sequence)).or_insert(newest);
        }
        heard.relayed.extend(turn.relayed.iter().map(|ack| (ack.lease, ack.sequence)));
        if turn.served != turn.serves {
            // Proposals of an earlier term are decided by the present leader.
            heard.deciding.clear();
        }
        for ack in &turn.acknowledged {
            self.acknowledged(server, turn, ack)?;
        }
        let heard = self.servers.entry(server).or_default();
        heard.deciding.retain(|_, index| *index > turn.applied);
        let proposed = turn.verdicts.iter().filter(|(index, _)| *index > turn.applied);
        heard.deciding.extend(proposed.map(|(index, failure)| (failure.lease.agent, *index)));
        Ok(())
    }

    fn acknowledged(&self, server: ServerId, turn: &LeaseTurn, ack: &LeaseAck) -> Result<(), String> {
        let heard = &self.servers[&server];
        let LeaseAck { lease, sequence, .. } = *ack;
        if heard.relayed.contains(&(lease, sequence)) {
            return Ok(());
        }
        let what = format!("{server} acknowledged renewal {sequence} of {lease:?}");
        let Some(term) = turn.served.or(turn.serves) else {
            return Err(format!("{what} without serving"));
        };
        let Some((newest, last)) = heard.renewals.get(&(lease, sequence)) else {
            return Err(format!("{what}, which never arrived there"));
        };
        ensure(*newest <= term, || {
            format!("{what} in term {term}, but an entry of term {newest} was applied before it arrived")
        })?;
        // A verdict of the same turn may have been proposed after the acknowledgement.
        let deciding = heard.deciding.get(&lease.agent).filter(|index| **index > turn.applied);
        ensure(deciding.is_none(), || {
            format!("{what} while its own verdict at {deciding:?} was not decided")
        })?;
        let failed = self.failed.get(&lease).filter(|index| *index <= last.max(&turn.applied));
        ensure(failed.is_none(), || format!("{what}, which was failed at {failed:?}"))?;
        let leases = self.leases.get(&lease.agent).map_or(&[][..], Vec::as_slice);
        let present = leases.iter().rev().find(|(index, _)| *index <= turn.applied);
        ensure(present.is_none_or(|(_, present)| *present == lease), || {
            format!("{what}, an earlier lease of a node with {present:?}")
        })
    }
}

impl Invariant for Acknowledgements {
    fn name(&self) -> &'static str {
        "acknowledgements"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) if past.changes.contains(&Change::Cleared) => {
                (self.leases, self.failed) = Default::default();
                Ok(())
            }
            Fact::Applied(past) => {
                self.entry(past);
                Ok(())
            }
            Fact::Leases { server, turn } => self.turn(*server, turn, scene),
            Fact::Crashed { server, .. } => {
                self.servers.remove(server);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
