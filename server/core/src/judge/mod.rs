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
//! | `reporters.rs` | rate limits for suspicions from the mesh |
//! | `registrations.rs` | a second process registers for a node while the first may be alive |
//! | `upkeep.rs` | former hosts, reconciliation, reaping |
//! | `messages.rs` | the messages between servers |
//! | `contents.rs` | the same messages, decoded for the simulator |
//! | `renewals.rs` | arriving renewals and their acknowledgement |
//! | `replies.rs` | replies to renewals, gathered for other servers |
//! | `suspicions.rs` | suspicions from the mesh, which open checks |
//! | `verdict.rs` | opens checks, proposes verdicts |
//! | `given_up.rs` | ends sessions that their guards gave up |
//! | `reachability.rs` | nodes that answer challenges, but whose renewals do not arrive |
//! | `force_leave.rs` | protects a living node from a force-leave |
//! | `agents.rs` | challenges sent through agents |
//! | `node_leases.rs` | the status of node leases, for queries |
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

mod agents;
mod brake;
mod checks;
mod contents;
mod failed_probes;
mod force_leave;
mod given_up;
mod juror;
mod majority;
mod messages;
mod node_leases;
mod reachability;
mod registrations;
mod relay;
mod renewals;
mod replies;
mod reporters;
mod suspicions;
mod upkeep;
mod verdict;
mod windows;

#[cfg(test)]
mod tests;

use crate::cluster::{ClusterView, Decision, Turn};
use crate::input::{CallToken, LeaseCaller, NodeInput};
use crate::observed::JudgeCounts;
use crate::proposal::Proposal;
use crate::raft::message::PeerMessage;
use crate::state::State;
use brake::Brake;
use checks::Checks;
use force_leave::ForceLeaves;
use juror::Juror;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::{HealthWindow, LeaseEnd, Renewal};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use reachability::Reachability;
use registrations::Registrations;
use relay::Relay;
use renewals::Uninformed;
use replies::LeaseReplies;
use reporters::Reporters;
use std::collections::BTreeSet;
use std::time::Duration;
use upkeep::Upkeep;
use windows::Windows;

pub use contents::LeaseContents;
pub use majority::without_minority;
use messages::LeaseAnswer;

/// An input of the failure detector.
#[derive(Debug)]
pub(crate) enum JudgeInput<'a> {
    /// This server begins to serve.
    Start,
    /// This server stops to lead.
    Stop,
    /// A tick, on every server.
    Tick,
    /// A message between servers for which
    /// [`is_of_judge`](crate::raft::message::MessageKind::is_of_judge) holds.
    Message(&'a PeerMessage),
    /// A proposal for which [`depends_on_liveness`] holds.
    Proposal(CallToken, Proposal),
    /// The outcome of a proposed verdict: `None` if it had no effect.
    Verdict(AgentNumber, Option<&'a NodeFailure>),
    /// The read round that a renewal waited for is over.
    RoundOver(LeaseCaller, Renewal),
    /// A renewal cannot be acknowledged, for this reason.
    RoundFailed(LeaseCaller, Unavailable),
    /// An input from outside this server.
    Node(NodeInput),
    /// The end of a turn: gathered messages to other servers are sent.
    Flush,
}

/// A server's failure detector, as one pure value.
#[derive(Debug)]
pub(crate) struct Judge {
    windows: Windows,
    checks: Checks,
    juror: Juror,
    relay: Relay,
    reporters: Reporters,
    brake: Brake,
    registrations: Registrations,
    force_leaves: ForceLeaves,
    upkeep: Upkeep,
    reachability: Reachability,
    uninformed: Uninformed,
    /// The agents with a proposed verdict whose outcome is unknown.
    deciding: BTreeSet<AgentNumber>,
    replies: LeaseReplies,
    random: Random,
    counts: JudgeCounts,
}

/// Returns `true` if a command may be proposed only once it is known whether a node is alive.
pub(crate) fn depends_on_liveness(command: &Command) -> bool {
    matches!(command, Command::RegisterAgent(_) | Command::LeaveNode(_))
}

impl Judge {
    /// Creates the failure detector of a server, with the seed of its random draws. Members that
    /// failed this long ago are forgotten.
    pub(crate) fn new(seed: u64, reap_failed_after: Duration) -> Self {
        let mut random = Random::new(seed);
        Self {
            windows: Windows::default(),
            checks: Checks::default(),
            juror: Juror::default(),
            relay: Relay::new(random.number()),
            reporters: Reporters::default(),
            brake: Brake::default(),
            registrations: Registrations::default(),
            force_leaves: ForceLeaves::default(),
            upkeep: Upkeep::new(reap_failed_after),
            reachability: Reachability::default(),
            uninformed: Uninformed::default(),
            deciding: BTreeSet::new(),
            replies: LeaseReplies::default(),
            random,
            counts: JudgeCounts::default(),
        }
    }

    /// Handles one input. The caller carries out the decisions, in their order.
    pub(crate) fn handle(
        &mut self,
        view: &ClusterView<'_>,
        now: Time,
        input: JudgeInput<'_>,
        decisions: &mut Vec<Decision>,
    ) {
        let turn = &mut Turn { view, now, decisions };
        match input {
            JudgeInput::Start => self.start(now, view.state),
            JudgeInput::Stop => self.stop(turn),
            JudgeInput::Tick => self.tick(turn),
            JudgeInput::Message(message) => self.message(turn, message),
            JudgeInput::Proposal(token, proposal) => self.proposal(turn, token, proposal),
            JudgeInput::Verdict(number, failure) => self.verdict_known(turn, number, failure),
            JudgeInput::RoundOver(caller, renewal) => self.round_over(turn, caller, renewal),
            JudgeInput::RoundFailed(caller, why) => {
                self.replies.reply(turn, caller, LeaseAnswer::Unavailable(why));
            }
            JudgeInput::Node(input) => self.handle_node_input(turn, input),
            JudgeInput::Flush => self.flush(turn),
        }
    }

    fn handle_node_input(&mut self, turn: &mut Turn<'_>, input: NodeInput) {
        match input {
            NodeInput::RenewLease(token, renewal, given_up) => {
                if let Some(given_up) = given_up {
                    given_up::handle(turn, &mut self.counts, &given_up);
                }
                self.renew(turn, token, renewal);
            }
            NodeInput::Suspect(token, reporter, suspected) => self.suspect(turn, token, reporter, suspected),
            NodeInput::Challenged(challenge, answer) => {
                self.challenged(turn, challenge, answer.map(|answer| *answer));
            }
            NodeInput::AgentAnswered(answer) => self.agent_answered(turn, *answer),
        }
    }

    /// Follows the changes that were applied at the leader.
    pub(crate) fn applied(&mut self, now: Time, state: &State, changes: &[Change]) {
        // A restore replaced all rows, so the windows and checks are obsolete.
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            self.windows.restart(now, state);
            self.upkeep.restart(now, state);
            self.checks.close_all();
            self.reachability.restored();
            self.uninformed = Uninformed::of(state);
            return;
        }
        for change in changes {
            match change {
                Change::Agent(number, _) => self.follow(now, state, *number),
                Change::Session(_, Some(session)) if State::depends_on_its_node(session) => {
                    if let Some(agent) = state.member(&session.spec.node.folded()) {
                        self.note_session(now, state, agent.number, session.spec.health_window);
                    }
                }
                _ => {}
            }
        }
    }

    /// Moves all deadlines by `gap`: this server was paused and received nothing.
    pub(crate) fn was_late(&mut self, now: Time, gap: Duration) {
        self.windows.postpone(gap);
        self.brake.postpone(gap);
        self.registrations.postpone(gap);
        self.force_leaves.postpone(gap);
        self.upkeep.postpone(gap);
        self.juror.was_late(now);
    }

    /// Returns the measurements since the last call.
    pub(crate) fn take_counts(&mut self) -> JudgeCounts {
        std::mem::take(&mut self.counts)
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

    /// The folded names of the nodes that suspect an agent's node; empty without an open check.
    pub(crate) fn suspected_by(&self, number: AgentNumber) -> &[NodeName] {
        self.checks.suspected_by(number)
    }

    /// The number of nodes that renew, and that agents cannot probe.
    pub(crate) fn failed_probes_len(&self) -> usize {
        self.reachability.failed_probes_len()
    }

    /// The number of nodes that answer challenges and do not renew.
    pub(crate) fn cut_off_len(&self) -> usize {
        self.reachability.cut_off_len()
    }

    /// Starts without knowledge of any node.
    fn start(&mut self, now: Time, state: &State) {
        self.windows.restart(now, state);
        self.upkeep.restart(now, state);
        // Checks of the former leader: their answers would not count.
        self.juror.close_all();
        // It may have failed before it refused a renewal of each lease.
        self.uninformed = Uninformed::of(state);
    }

    /// Stops when leadership is lost. The next leader must challenge, and agents retry there.
    fn stop(&mut self, turn: &mut Turn<'_>) {
        self.windows = Windows::default();
        self.checks = Checks::default();
        self.reporters = Reporters::default();
        self.brake = Brake::default();
        self.upkeep.clear();
        self.uninformed = Uninformed::default();
        self.deciding.clear();
        self.reachability = Reachability::default();
        turn.refuse(self.registrations.take().into_iter().map(|waiting| waiting.token));
        turn.refuse(self.force_leaves.take_callers());
        self.relay.refuse_late(turn);
    }

    fn tick(&mut self, turn: &mut Turn<'_>) {
        let (view, now) = (turn.view, turn.now);
        self.relay.refuse_late(turn);
        if view.is_serving() {
            self.reporters.forget(now);
            self.receive_own_answers(turn);
            self.reachability.forget(now, view.state, &self.windows);
            self.check_overdue_nodes(now);
            self.brake.follow(now, &self.windows);
            // A server that refuses all clients receives no renewals. It proposes no verdict until
            // another server leads.
            if !view.is_corrupt {
                self.propose_verdicts(turn);
                self.resolve_registrations(turn);
                self.upkeep.run(turn);
            }
            self.force_leaves.resolve(turn, (&self.windows, self.brake.is_on()));
            self.send_list(turn);
            agents::ask_due(turn, &mut self.checks);
        }
        turn.decisions.extend(self.juror.ask(now).into_iter().map(Decision::Challenge));
    }

    /// Sends the gathered messages to other servers.
    fn flush(&mut self, turn: &mut Turn<'_>) {
        // A server with a set-back disk sends no replies.
        if turn.view.is_set_back {
            return self.replies.clear();
        }
        self.relay.flush(turn);
        self.replies.flush(turn);
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
                self.credit_reporter(now, number);
            }
            self.checks.close(number);
        }
    }

    /// Credits the reporter: a majority got no answer from the node that it suspected.
    fn credit_reporter(&mut self, now: Time, number: AgentNumber) {
        if let Some(reporter) = self.checks.take_reporter(number) {
            self.reporters.was_right(now, &reporter);
        }
    }
}
