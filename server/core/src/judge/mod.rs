//! The failure detector ("judge"): decides which nodes are alive and whose sessions end. Agents
//! renew a lease (their heartbeat), the leader keeps the windows, all voters challenge a silent
//! node, and a majority of them decides.
//!
//! ```text
//! agent ── renewal ──> any server ── in batches ──> leader: restarts the window, runs a read
//!                                                   round, then sends the acknowledgement
//! no renewal for W/3 + 200 ms, or a
//!   suspicion from the mesh ──> the leader opens a check, sent to all voters every 250 ms
//! each voter ── challenge ──> agent, every 250 ms; an answer is a renewal, relayed at once
//!            ── report ────> leader, for every check list: unanswered challenges, abstention
//! silent for W, and a majority reports it ──> FailNode, an entry; renewals are refused until
//!                                             its outcome
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `relay.rs` | renewals relayed by a follower to the leader, and the replies |
//! | `windows.rs` | the last renewal of each member, and the end of each of its windows |
//! | `checks.rs` | the checks that the leader has open, and their confirmations |
//! | `juror.rs` | the challenges and reports of each voter |
//! | `majority.rs` | the majority rule for verdicts |
//! | `brake.rs` | many silent nodes at once: longer windows at the servers |
//! | `failed_probes.rs` | nodes that renew, and that agents cannot probe |
//! | `accusers.rs` | rate limits for suspicions from the mesh |
//! | `registrations.rs` | a second process registers for a node while the first may be alive |
//! | `upkeep.rs` | former hosts, reconciliation, reaping |
//! | `messages.rs` | the messages between servers |
//! | `contents.rs` | the same messages, decoded for the simulator |
//! | `turn/` | the failure detector in the core's turns, file by file |
//! | `turn/renewals.rs` | arriving renewals and their acknowledgement |
//! | `turn/accusations.rs` | suspicions from the mesh, which open checks |
//! | `turn/verdict.rs` | opens checks, proposes verdicts |
//! | `turn/given_up.rs` | ends sessions that their guards gave up |
//! | `turn/reachability.rs` | nodes that answer challenges, but whose renewals do not arrive |
//! | `turn/force_leave.rs` | protects a living node from a force-leave |
//! | `turn/agents.rs` | challenges sent through agents |
//! | `turn/node_leases.rs` | the status of node leases, for queries |
//!
//! **Invariants:** only a leader acknowledges a renewal, after a read round that began after the
//! renewal's arrival, so a deposed leader acknowledges nothing. A window starts when a renewal
//! arrives, which is later than the sending from which the agent counts, so the agent's deadline
//! comes first. Between the proposal of a verdict and its outcome, no renewal of that node is
//! acknowledged. After an election every window restarts. A verdict that is not confirmed by a
//! majority of the voters at its entry's index has no effect, see [`without_minority`]. Uncertainty
//! makes a window longer, never shorter.
//!
//! The jurors are the voters. In addition, three agents challenge each node at the leader's
//! request: an answer to them clears the node, and their silence confirms nothing.

mod accusers;
mod brake;
mod checks;
mod contents;
mod failed_probes;
mod juror;
mod majority;
mod messages;
mod registrations;
mod relay;
mod turn;
mod upkeep;
mod windows;

#[cfg(test)]
mod tests;

use crate::state::State;
use accusers::Accusers;
use brake::Brake;
use checks::Checks;
use failed_probes::FailedProbes;
use juror::Juror;
use lockmesh_protocol::id::{AgentNumber, ServerId};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, LeaseId};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use registrations::Registrations;
use relay::Relay;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use turn::force_leave::WaitingForceLeave;
use upkeep::Upkeep;
use windows::Windows;

pub use contents::LeaseContents;
pub use majority::without_minority;
pub(crate) use messages::LeaseAnswer;

/// A server's state of the failure detector.
#[derive(Debug)]
pub(crate) struct Judge {
    windows: Windows,
    checks: Checks,
    juror: Juror,
    relay: Relay,
    accusers: Accusers,
    brake: Brake,
    registrations: Registrations,
    force_leaves: Vec<WaitingForceLeave>,
    upkeep: Upkeep,
    /// The leases of the nodes whose renewals do not arrive.
    cut_off: BTreeMap<AgentNumber, LeaseId>,
    /// The nodes that renew, and that agents cannot probe.
    failed_probes: FailedProbes,
    /// The agents with a proposed verdict whose outcome is unknown.
    deciding: BTreeSet<AgentNumber>,
    /// Replies to renewals relayed by other servers, sent at the end of the turn.
    answers: BTreeMap<ServerId, Vec<(u64, LeaseAnswer)>>,
    random: Random,
}

impl Judge {
    /// Creates the failure detector of a server, with the seed of its random draws.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            windows: Windows::default(),
            checks: Checks::default(),
            juror: Juror::default(),
            relay: Relay::new(random.number()),
            accusers: Accusers::default(),
            brake: Brake::default(),
            registrations: Registrations::default(),
            force_leaves: Vec::new(),
            upkeep: Upkeep::default(),
            cut_off: BTreeMap::new(),
            failed_probes: FailedProbes::default(),
            deciding: BTreeSet::new(),
            answers: BTreeMap::new(),
            random,
        }
    }

    /// The number of open checks.
    pub(crate) fn open_checks(&self) -> usize {
        self.checks.len()
    }

    /// Returns whether a check of this node is open.
    pub(crate) fn is_under_check(&self, number: AgentNumber) -> bool {
        self.checks.is_open(number)
    }

    /// Returns whether the brake is on.
    pub(crate) fn is_braking(&self) -> bool {
        self.brake.is_on()
    }

    /// Moves all deadlines by `gap`: this server was paused and received nothing.
    pub(crate) fn was_late(&mut self, now: Time, gap: Duration) {
        self.windows.postpone(gap);
        self.brake.postpone(gap);
        self.registrations.postpone(gap);
        self.force_leaves.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
        self.upkeep.postpone(gap);
        self.juror.was_late(now);
    }

    /// Records a new session that depends on a member's health.
    fn note_session(&mut self, now: Time, state: &State, number: AgentNumber, window: HealthWindow) {
        if self.windows.member(number).is_some() {
            self.windows.come_into_use(now, number, window);
        } else {
            // The member had failed and had no sessions left. The new session restarts its windows.
            self.follow(now, state, number);
        }
    }

    /// Follows a change of a member's row.
    fn follow(&mut self, now: Time, state: &State, number: AgentNumber) {
        let heard = self.windows.last_heard(number);
        self.windows.follow(now, state, number);
        self.upkeep.follow(now, heard, state, number);
        // The lease was replaced, or the node's health no longer matters.
        let lease = self.windows.lease(number);
        if let Some(checked) = self.checks.lease(number).filter(|checked| Some(*checked) != lease) {
            if state.lease_end(checked) == Some(LeaseEnd::Failed) {
                self.credit_accuser(now, number);
            }
            self.checks.close(number);
        }
    }

    /// Credits the accuser: a majority got no answer from the node that it suspected.
    fn credit_accuser(&mut self, now: Time, number: AgentNumber) {
        if let Some(accuser) = self.checks.take_accuser(number) {
            self.accusers.was_right(now, &accuser);
        }
    }
}
