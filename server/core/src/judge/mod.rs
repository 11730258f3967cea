//! The judge: which nodes live, and whose sessions end. Agents renew a lease, the leader keeps the
//! windows, all voters ask a node that is silent, and a majority of them decides.
//!
//! ```text
//! agent ── renewal ──> any server ── in batches ──> leader: its window starts anew, then a read round,
//!                                                   then the acknowledgement
//! no renewal for W/3 + 200 ms, or an
//!   accusation of the mesh ──> the leader opens a check, and tells all voters every 250 ms
//! each voter ── challenge ──> agent, every 250 ms; an answer is a renewal, and goes to the leader at once
//!            ── report ────> leader, with every list of checks: how often it asked in vain, whether it abstains
//! silent for W, and a majority reports it ──> FailNode, an entry; renewals are refused until its outcome
//! ```
//!
//! | file | is |
//! |---|---|
//! | `relay.rs` | renewals on their way from a follower to the leader, and the answers back |
//! | `windows.rs` | when each member was heard last, and when each of its windows ends |
//! | `checks.rs` | the checks that the leader has open, and who confirms them |
//! | `juror.rs` | what every voter does that is told of a check |
//! | `majority.rs` | what a verdict is without a majority |
//! | `brake.rs` | many at once: the servers' windows become long |
//! | `accusers.rs` | which agents in the mesh are listened to |
//! | `registrations.rs` | another process registers for a node while the first one may live |
//! | `upkeep.rs` | former hosts, reconciliation, reaping |
//! | `messages.rs` | what servers tell each other of all this |
//! | `contents.rs` | the same, for whoever looks on |
//! | `turn/` | what the core does with all that in its turns, file by file |
//! | `turn/renewals.rs` | renewals as they arrive, and their acknowledgement |
//! | `turn/accusations.rs` | what agents in the mesh suspect opens checks |
//! | `turn/verdict.rs` | opens checks, proposes verdicts |
//! | `turn/given_up.rs` | ends sessions that their guards gave up |
//! | `turn/reachability.rs` | nodes that answer challenges, but whose renewals do not arrive |
//! | `turn/force_leave.rs` | a living node is not made to leave |
//! | `turn/agents.rs` | has agents ask nodes, too |
//! | `turn/node_leases.rs` | how nodes' leases stand, for whoever asks |
//!
//! **Invariants:** only a leader acknowledges a renewal, after a read round that began after the
//! renewal's arrival, so a deposed one acknowledges nothing. A window starts with the arrival,
//! which is later than the sending from which the agent counts, so the agent's deadline comes
//! first. Between the proposal of a verdict and its outcome no renewal of that node is
//! acknowledged. After an election every window starts afresh. A verdict that no majority of the
//! voters of its entry's index confirms does nothing, see [`without_minority`]. Whatever is unsure
//! makes a window longer, never shorter.
//!
//! The jurors are the voters. Three agents ask each node besides, at the leader's word: what they
//! hear clears the node, and what they do not hear confirms nothing.

mod accusers;
mod brake;
mod checks;
mod contents;
mod juror;
mod majority;
mod messages;
mod registrations;
mod relay;
mod turn;
mod upkeep;
mod windows;

use crate::state::State;
use accusers::Accusers;
use brake::Brake;
use checks::Checks;
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

/// What a server knows of the members' lives.
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
    /// The nodes whose renewals do not arrive, by their leases.
    cut_off: BTreeMap<AgentNumber, LeaseId>,
    /// The agents on whom a verdict is proposed whose outcome is not known.
    deciding: BTreeSet<AgentNumber>,
    /// Answers to renewals that other servers relayed: told at the end of the turn.
    answers: BTreeMap<ServerId, Vec<(u64, LeaseAnswer)>>,
    random: Random,
}

impl Judge {
    /// That of a server whose random draws begin here.
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
            deciding: BTreeSet::new(),
            answers: BTreeMap::new(),
            random,
        }
    }

    /// How many checks are open.
    pub(crate) fn open_checks(&self) -> usize {
        self.checks.len()
    }

    /// Whether a check of this node is open.
    pub(crate) fn is_under_check(&self, number: AgentNumber) -> bool {
        self.checks.is_open(number)
    }

    /// Whether very many are silent at once.
    pub(crate) fn is_braking(&self) -> bool {
        self.brake.is_on()
    }

    /// This server did not run for `gap`, and heard nothing meanwhile.
    pub(crate) fn was_late(&mut self, now: Time, gap: Duration) {
        self.windows.postpone(gap);
        self.brake.postpone(gap);
        self.registrations.postpone(gap);
        self.force_leaves.iter_mut().for_each(|waiting| waiting.came = waiting.came + gap);
        self.upkeep.postpone(gap);
        self.juror.was_late(now);
    }

    /// A session was made that ends with a member's silence.
    fn note_session(&mut self, now: Time, state: &State, number: AgentNumber, window: HealthWindow) {
        if self.windows.member(number).is_some() {
            self.windows.come_into_use(now, number, window);
        } else {
            // It had failed, and nothing hung on its life any more. The catalog says otherwise.
            self.follow(now, state, number);
        }
    }

    /// Looks at a member whose row changed.
    fn follow(&mut self, now: Time, state: &State, number: AgentNumber) {
        let heard = self.windows.last_heard(number);
        self.windows.follow(now, state, number);
        self.upkeep.follow(now, heard, state, number);
        // Its lease is another one by now, or nobody need know whether it lives.
        let lease = self.windows.lease(number);
        if let Some(checked) = self.checks.lease(number).filter(|checked| Some(*checked) != lease) {
            if state.lease_end(checked) == Some(LeaseEnd::Failed) {
                self.credit_accuser(now, number);
            }
            self.checks.close(number);
        }
    }

    /// A majority did not hear from a node: whoever had it asked was right.
    fn credit_accuser(&mut self, now: Time, number: AgentNumber) {
        if let Some(accuser) = self.checks.take_accuser(number) {
            self.accusers.was_right(now, &accuser);
        }
    }
}
