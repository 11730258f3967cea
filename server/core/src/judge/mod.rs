//! The judge: which nodes live, and whose sessions end. Agents renew a lease, the leader keeps the
//! windows, all voters ask a node that is silent, and a majority of them decides.
//!
//! ```text
//! agent ── renewal ──> any server ── in batches ──> leader: its window starts anew, then a read round,
//!                                                   then the acknowledgement
//! no renewal for W/3 + 200 ms ──> the leader opens a check, and tells all voters every 250 ms
//! each voter ── challenge ──> agent, every 250 ms; an answer is a renewal, and goes to the leader at once
//!            ── report ────> leader, with every list of checks: how often it asked in vain, whether it abstains
//! silent for W, and a majority reports it ──> FailNode, an entry; renewals are refused until its outcome
//! ```
//!
//! | file | is |
//! |---|---|
//! | `renewals.rs` | renewals as they arrive, and their acknowledgement |
//! | `relay.rs` | renewals on their way from a follower to the leader, and the answers back |
//! | `windows.rs` | when each member was heard last, and when each of its windows ends |
//! | `checks.rs` | the checks that the leader has open, and who confirms them |
//! | `juror.rs` | what every voter does that is told of a check |
//! | `verdict.rs` | opens checks, proposes verdicts |
//! | `brake.rs` | many at once: the servers' windows become long |
//! | `registrations.rs` | another process registers for a node while the first one may live |
//! | `upkeep.rs` | former hosts, reconciliation, reaping |
//! | `messages.rs` | what servers tell each other of all this |
//!
//! **Invariants:** only a leader acknowledges a renewal, after a read round that began after the
//! renewal's arrival, so a deposed one acknowledges nothing. A window starts with the arrival,
//! which is later than the sending from which the agent counts, so the agent's deadline comes
//! first.
//! Between the proposal of a verdict and its outcome no renewal of that node is acknowledged. After
//! an election every window starts afresh. A verdict that no majority of the voters of its entry's
//! index confirms does nothing, see [`without_minority`]. Whatever is unsure makes a window
//! longer, never shorter.
//!
//! The jurors are the voters. Other agents may become jurors too, with reports like theirs that
//! open a check or clear a node, but never confirm a verdict.

mod brake;
mod checks;
mod juror;
mod messages;
mod registrations;
mod relay;
mod renewals;
mod upkeep;
mod verdict;
mod windows;

use crate::core::Core;
use crate::fault_injection::Rule;
use crate::outbox::Outbox;
use crate::state::State;
use brake::Brake;
use checks::Checks;
use juror::Juror;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{AgentNumber, ServerId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use messages::LeaseAnswer;
use registrations::Registrations;
use relay::Relay;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use upkeep::Upkeep;
use windows::Windows;

pub use juror::ChallengeWanted;
pub(crate) use messages::LeaseCaller;
pub use verdict::without_minority;

/// How often a server asks a node that is under check, and the leader tells the voters.
const ASK_INTERVAL: Duration = Duration::from_millis(250);

/// What a server knows of the members' lives.
#[derive(Debug)]
pub(crate) struct Judge {
    windows: Windows,
    checks: Checks,
    juror: Juror,
    relay: Relay,
    brake: Brake,
    registrations: Registrations,
    upkeep: Upkeep,
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
            brake: Brake::default(),
            registrations: Registrations::default(),
            upkeep: Upkeep::default(),
            deciding: BTreeSet::new(),
            answers: BTreeMap::new(),
            random,
        }
    }

    /// How many checks are open.
    pub(crate) fn open_checks(&self) -> usize {
        self.checks.len()
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
        self.windows.follow(now, state, number);
        self.upkeep.follow(now, state, number);
        // Its lease is another one by now, or nobody need know whether it lives.
        let lease = self.windows.lease(number);
        if self.checks.lease(number).is_some_and(|checked| Some(checked) != lease) {
            self.checks.close(number);
        }
    }
}

impl Core {
    /// This server begins to serve: nothing is known of anybody yet.
    pub(crate) fn start_judge(&mut self, now: Time) {
        let heard = match self.engine.fault_point.breaks(Rule::NodeWindowsOutliveElections) {
            true => Time(now.0.saturating_sub(windows::LONGEST.as_micros() as u64)),
            false => now,
        };
        self.judge.windows.restart(heard, &self.state);
        self.judge.upkeep.restart(now, &self.state);
    }

    /// This server no longer leads.
    pub(crate) fn stop_judge(&mut self, now: Time, outbox: &mut Outbox) {
        self.judge.windows = Windows::default();
        self.judge.checks = Checks::default();
        self.judge.brake = Brake::default();
        self.judge.upkeep = Upkeep::default();
        self.judge.deciding.clear();
        self.drop_registrations(outbox);
        self.refuse_relayed(now, outbox);
    }

    /// The leader learns what became true.
    pub(crate) fn note_members(&mut self, now: Time, changes: &[Change]) {
        let Self { judge, state, .. } = self;
        // A restore: what was known is of other rows.
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            judge.windows.restart(now, state);
            judge.upkeep.restart(now, state);
            judge.checks.close_all();
            return;
        }
        for change in changes {
            match change {
                Change::Agent(number, _) => judge.follow(now, state, *number),
                Change::Session(_, Some(session)) if State::depends_on_its_node(session) => {
                    if let Some(agent) = state.member(&session.spec.node.folded()) {
                        judge.note_session(now, state, agent.number, session.spec.health_window);
                    }
                }
                _ => {}
            }
        }
    }

    /// Once a tick, on every server.
    pub(crate) fn tick_judge(&mut self, now: Time, outbox: &mut Outbox) {
        self.refuse_relayed(now, outbox);
        if self.is_serving() {
            self.open_checks(now);
            self.update_brake(now);
            self.propose_verdicts(now);
            self.look_at_registrations(now, outbox);
            self.run_upkeep(now);
            self.tell_jurors(now, outbox);
        }
        outbox.challenges.append(&mut self.judge.juror.ask(now));
    }

    /// At the end of a turn: what was gathered for other servers.
    pub(crate) fn flush_judge(&mut self, outbox: &mut Outbox) {
        // It is silent, whatever was asked of it.
        if self.set_back().is_some() {
            self.judge.answers.clear();
            return;
        }
        self.flush_relay(outbox);
        self.flush_answers(outbox);
    }
}
