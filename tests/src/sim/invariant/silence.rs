//! No leader proposes a verdict sooner than its window after the node's next message was due, or
//! after it began to serve: neither if a juror had the node's answer (I6 of the design), nor while
//! very many nodes are silent (I8), nor after an election.
//!
//! A renewal counts from any relay. An answer to a juror counts if it belongs to the open check, as
//! the leader's own questions show; so does one that another agent passed on, unless it is forged.
//! Each check is closed by the first answer.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::lease_turn::LeaseTurn;
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId};
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The input of each server.
#[derive(Debug, Default)]
pub(super) struct Silence {
    servers: BTreeMap<ServerId, Leader>,
}

#[derive(Debug)]
struct Leader {
    /// The time since which it serves.
    since: Time,
    /// The last contact with each lease, with its kind.
    heard: BTreeMap<LeaseId, (Time, &'static str)>,
    /// The nonces that answer the open checks.
    nonces: BTreeMap<LeaseId, u64>,
    /// Verdicts that it proposed, until it has applied them: contact in the meantime does not
    /// count.
    deciding: BTreeMap<AgentNumber, LogIndex>,
}

impl Leader {
    fn new(since: Time) -> Self {
        Self { since, heard: BTreeMap::new(), nonces: BTreeMap::new(), deciding: BTreeMap::new() }
    }

    fn note_renewal(&mut self, now: Time, renewal: &Renewal, how: &'static str) {
        if !self.deciding.contains_key(&renewal.lease.agent) {
            self.heard.insert(renewal.lease, (now, how));
            self.nonces.remove(&renewal.lease);
        }
    }

    fn verdicts(&mut self, turn: &LeaseTurn, scene: &Scene<'_>) -> Result<(), String> {
        for (index, failure) in &turn.verdicts {
            let window = failure.window.validity();
            let served = (self.since, "it began to serve");
            let (heard, how) = self.heard.get(&failure.lease).copied().unwrap_or(served).max(served);
            let silent = scene.now.since(heard);
            ensure(silent >= scene.at_least(window, heard), || {
                let (lease, confirmed_by) = (failure.lease, &failure.confirmed_by);
                format!(
                    "a {:?} verdict on {lease:?} by {confirmed_by:?} was proposed only {silent:?} after {how}",
                    failure.window
                )
            })?;
            self.deciding.insert(failure.lease.agent, *index);
        }
        Ok(())
    }
}

impl Silence {
    fn turn(&mut self, server: ServerId, turn: &LeaseTurn, scene: &Scene<'_>) -> Result<(), String> {
        if turn.served.is_none() || turn.served != turn.serves {
            self.servers.remove(&server);
        }
        if turn.serves.is_none() {
            return Ok(());
        }
        let now = scene.now;
        let is_new = !self.servers.contains_key(&server);
        let leader = self.servers.entry(server).or_insert_with(|| Leader::new(now));
        // Renewals of the turn in which it began to serve may have arrived before that.
        for renewal in turn.renewals.iter().filter(|_| !is_new) {
            leader.note_renewal(now, renewal, "its renewal arrived");
        }
        let is_genuine = |answer: &&Renewal| scene.history.state().is_authentic(answer);
        let passed_on = turn.passed_on.iter().filter(is_genuine);
        for answer in turn.answers.iter().chain(passed_on).filter(|_| !is_new) {
            if leader.nonces.get(&answer.lease) == Some(&answer.nonce) {
                leader.note_renewal(now, answer, "a juror had its answer");
            }
        }
        // Questions of that turn may be those of a former leader.
        let asked = turn.asked.iter().filter(|_| !is_new);
        leader.nonces.extend(asked.map(|challenge| (challenge.lease, challenge.nonce)));
        leader.verdicts(turn, scene)?;
        leader.deciding.retain(|_, index| *index > turn.applied);
        Ok(())
    }
}

impl Invariant for Silence {
    fn name(&self) -> &'static str {
        "silence"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Leases { server, turn } => self.turn(*server, turn, scene),
            Fact::Crashed { server, .. } => {
                self.servers.remove(server);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
