//! Exactly once: a request takes effect once, however often it is sent. Its reply is kept once, and
//! its value is written once.
//!
//! Every write of the simulated clients has a unique value. A restore writes no values of its own:
//! it brings old ones back, and undoes newer ones: a lock wait whose grant it undid may be granted
//! once more, and then writes its value again. A request without an ID that is not idempotent is
//! sent only once by an agent.

use super::agent_event::AgentEvent;
use super::{Fact, Invariant, Scene, ensure, is_restore};
use bytes::Bytes;
use lockmesh_agent_core::quorum_client::LocalCall;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, Generation, Key};
use lockmesh_protocol::rpc::{CallId, Request, Response};
use std::collections::{BTreeMap, BTreeSet};

/// Kept replies and written values.
#[derive(Debug, Default)]
pub(super) struct ExactlyOnce {
    lives: BTreeMap<AgentNumber, Generation>,
    kept: BTreeSet<(AgentNumber, Generation, u64)>,
    present: BTreeMap<Key, Bytes>,
    written: BTreeSet<(Key, Bytes)>,
    /// Values that a restore undid.
    undone: BTreeSet<(Key, Bytes)>,
    /// The number of leadership transfers that each agent was asked for and may send.
    transfers: BTreeMap<usize, u64>,
    /// The transfers that were sent: by connection and call.
    sent_transfers: BTreeSet<(u64, CallId)>,
}

impl ExactlyOnce {
    fn agent(&mut self, agent: usize, event: &AgentEvent<'_>) -> Result<(), String> {
        let wanted = self.transfers.entry(agent).or_default();
        match event {
            AgentEvent::Started => *wanted = 0,
            AgentEvent::Called { call: LocalCall::Ask(Request::TransferLeader(_)), .. } => *wanted += 1,
            AgentEvent::Sent { connection, call, request: Request::TransferLeader(_) } => {
                ensure(*wanted > 0, || format!("agent {agent} sent a leadership transfer again"))?;
                *wanted -= 1;
                self.sent_transfers.insert((*connection, *call));
            }
            // A transfer that was definitely not done may be sent again.
            AgentEvent::Replied { connection, call, response: Response::Unavailable(reason) }
                if self.sent_transfers.remove(&(*connection, *call)) && reason.certainly_not_done() =>
            {
                *wanted += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn entry(&mut self, changes: &[Change]) -> Result<(), String> {
        if !is_restore(changes) {
            return changes.iter().try_for_each(|change| self.change(change));
        }
        let entries = changes.iter().filter_map(|change| match change {
            Change::Entry(key, Some(entry)) => Some((key.clone(), entry.value.clone())),
            _ => None,
        });
        let before = std::mem::replace(&mut self.present, entries.collect());
        let is_undone = |(key, value): &(Key, Bytes)| self.present.get(key) != Some(value);
        self.undone.extend(before.into_iter().filter(is_undone));
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Agent(number, Some(agent)) => {
                self.lives.insert(*number, agent.generation);
                Ok(())
            }
            Change::Reply(agent, sequence, Some(_)) => {
                let life = self.lives.get(agent).copied().unwrap_or_default();
                ensure(self.kept.insert((*agent, life, *sequence)), || {
                    format!("request {sequence} of agent {agent} took effect twice")
                })
            }
            Change::Entry(key, Some(entry)) if !entry.value.is_empty() => {
                let before = self.present.insert(key.clone(), entry.value.clone());
                let is_new = before.as_ref() != Some(&entry.value);
                let written = (key.clone(), entry.value.clone());
                let is_granted_again = entry.lock.session.is_some() && self.undone.remove(&written);
                let first = !is_new || self.written.insert(written) || is_granted_again;
                ensure(first, || format!("{:?} was written to {key} twice", entry.value))
            }
            Change::TreeDeleted(prefix) => {
                self.present.retain(|key, _| !key.as_str().starts_with(prefix.as_str()));
                Ok(())
            }
            Change::Entry(key, None) => {
                self.present.remove(key);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly_once"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(&past.changes),
            Fact::Strange { changes } => self.entry(changes),
            Fact::Agent { agent, event } => self.agent(*agent, event),
            _ => Ok(()),
        }
    }
}
