//! Arriving renewals and their acknowledgement.
//!
//! A window starts when the renewal arrives, before this server knows whether it still leads: if
//! not, only a deadline without effect has moved. The acknowledgement waits for a read round that
//! begins after the arrival. So does the report that a lease has ended: a deposed leader must not
//! end it.

use super::messages::LeaseAnswer;
use super::{Judge, given_up};
use crate::cluster::{Decision, Turn};
use crate::input::{CallToken, LeaseCaller};
use crate::outbox::not_leader;
use crate::read_index::Reader;
use crate::state::State;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::lease::{Challenge, LeaseAck, LeaseId, RESTORED, Renewal};
use lockmesh_protocol::rpc::Unavailable;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The number of renewals of a lease that are refused after a restore. One answer may be lost.
const RESTORE_REFUSALS: u8 = 2;

/// The leases whose agents must learn of a restore, each with the number of renewals to refuse.
#[derive(Debug, Default)]
pub(super) struct Uninformed(BTreeMap<LeaseId, u8>);

impl Uninformed {
    pub(super) fn of(state: &State) -> Self {
        Self(state.leases_before_restore().map(|lease| (lease, RESTORE_REFUSALS)).collect())
    }

    /// Returns `true` if a renewal is refused. Not until the agent has compared: one of an earlier
    /// build only sends another renewal.
    fn refuse(&mut self, lease: LeaseId) -> bool {
        let Entry::Occupied(mut left) = self.0.entry(lease) else { return false };
        *left.get_mut() -= 1;
        if *left.get() == 0 {
            left.remove();
        }
        true
    }
}

impl Judge {
    /// Handles an agent's renewal of its lease.
    pub(super) fn renew(&mut self, turn: &mut Turn<'_>, token: CallToken, renewal: Renewal) {
        match (turn.view.leader, turn.view.other_leader()) {
            (_, Some(leader)) => {
                // The node is alive, even if the leader does not learn it in time.
                if turn.view.state.is_authentic(&renewal) {
                    self.juror.note_renewal(renewal.lease);
                }
                self.relay.relay(turn, leader, token, renewal);
            }
            (Some(_), None) => self.receive_call(turn, LeaseCaller::Call(token), renewal),
            (None, None) => turn.fail(token, not_leader()),
        }
    }

    /// Handles the outcome of a challenge.
    pub(super) fn challenged(
        &mut self,
        turn: &mut Turn<'_>,
        challenge: Challenge,
        answer: Option<NodeAnswer>,
    ) {
        if let Some(given_up) = answer.and_then(|answer| answer.given_up) {
            given_up::handle(turn, &mut self.counts, &given_up);
        }
        let answer = answer.map(|answer| answer.renewal);
        let is_answer = |renewal: &Renewal| {
            (renewal.lease, renewal.nonce) == (challenge.lease, challenge.nonce)
                && turn.view.state.is_authentic(renewal)
        };
        let answer = answer.filter(is_answer);
        if !self.juror.challenged(turn.now, challenge, answer) {
            return;
        }
        match answer {
            Some(renewal) if turn.view.is_serving() => drop(self.receive_answer(turn, renewal)),
            Some(renewal) => self.relay.relay_answer(turn, renewal),
            None => {}
        }
    }

    /// Handles a node's answer to an agent.
    pub(super) fn agent_answered(&mut self, turn: &mut Turn<'_>, answer: NodeAnswer) {
        if let Some(given_up) = &answer.given_up {
            given_up::handle(turn, &mut self.counts, given_up);
        }
        if self.receive_answer(turn, answer.renewal) {
            self.counts.saved_by_agents += 1;
        }
    }

    /// Handles a renewal with a waiting caller at the leader.
    pub(super) fn receive_call(&mut self, turn: &mut Turn<'_>, caller: LeaseCaller, renewal: Renewal) {
        if let Some(why) = self.renewal_refusal(turn, &renewal) {
            self.counts.renewals_refused += 1;
            return self.replies.reply(turn, caller, LeaseAnswer::Unavailable(why));
        }
        self.restart_window(turn, renewal);
        turn.decide(Decision::Read(Reader::Lease(caller, renewal)));
    }

    /// Handles a node's answer to a juror; returns whether it counts.
    pub(super) fn receive_answer(&mut self, turn: &mut Turn<'_>, renewal: Renewal) -> bool {
        // No caller waits, so the answer to an older check may be dropped: it may be old itself.
        if self.checks.nonce(renewal.lease) != Some(renewal.nonce) {
            return false;
        }
        self.counts.forged_answers += u64::from(!turn.view.state.is_authentic(&renewal));
        let counts = self.renewal_refusal(turn, &renewal).is_none();
        if counts {
            self.restart_window(turn, renewal);
        }
        counts
    }

    /// Counts the answers to this leader's own challenges repeatedly, like the reports of other
    /// jurors: during a pending verdict they were refused.
    pub(super) fn receive_own_answers(&mut self, turn: &mut Turn<'_>) {
        for answer in self.juror.answers() {
            self.receive_answer(turn, answer);
        }
    }

    /// The reason why a renewal is refused.
    fn renewal_refusal(&self, turn: &Turn<'_>, renewal: &Renewal) -> Option<Unavailable> {
        if !turn.view.is_serving() {
            return Some(not_leader());
        }
        if !turn.view.state.is_authentic(renewal) {
            let why = "the renewal was not made with the secret of its lease: register again";
            return Some(Unavailable::Denied(why.into()));
        }
        self.is_deciding(renewal.lease).then(|| {
            let why = "a majority of the servers got no reply from this node: its failure is being decided";
            Unavailable::Unknown(why.into())
        })
    }

    /// Returns whether a verdict on the agent is proposed and its outcome unknown.
    fn is_deciding(&self, lease: LeaseId) -> bool {
        self.deciding.contains(&lease.agent)
    }

    /// Restarts the window of a node and closes its check.
    fn restart_window(&mut self, turn: &mut Turn<'_>, renewal: Renewal) {
        let (lease, now, state) = (renewal.lease, turn.now, turn.view.state);
        // Failed members count too if they have sessions: their answers keep those.
        let Some(agent) = state.agent_of(lease) else { return };
        let shortest = state.shortest_window(&agent.node);
        self.blame_reporter(now, lease.agent);
        self.windows.note_renewal(now, lease, shortest);
        let is_cut_off = self.reachability.renewed(now, state, &mut self.windows, renewal);
        self.counts.nodes_cut_off += u64::from(is_cut_off);
        self.juror.note_renewal(lease);
        self.refuse_registrations(turn, renewal);
        if !self.registrations.wait_for(lease) {
            self.checks.close(lease.agent);
        }
    }

    /// Replies after the read round: an end that was committed before it is applied by now, under
    /// any leader.
    pub(super) fn round_over(&mut self, turn: &mut Turn<'_>, caller: LeaseCaller, renewal: Renewal) {
        let Renewal { lease, sequence, .. } = renewal;
        let state = turn.view.state;
        let answer = match (self.renewal_refusal(turn, &renewal), state.lease_end(lease)) {
            (Some(why), _) => {
                self.counts.renewals_refused += 1;
                LeaseAnswer::Unavailable(why)
            }
            (None, Some(why)) => LeaseAnswer::Ended(lease, why),
            (None, None) if self.uninformed.refuse(lease) => {
                LeaseAnswer::Unavailable(Unavailable::Denied(RESTORED.into()))
            }
            (None, None) => {
                self.counts.renewals_acknowledged += 1;
                let agent = state.agent_of(lease);
                let shortest = agent.and_then(|agent| state.shortest_window(&agent.node));
                let keeps_from = agent.and_then(|agent| agent.former_sessions_until).unwrap_or_default();
                let (leader, term) = (turn.view.id, turn.view.term);
                LeaseAnswer::Renewed(LeaseAck { lease, sequence, shortest, keeps_from, leader, term })
            }
        };
        self.replies.reply(turn, caller, answer);
    }
}
