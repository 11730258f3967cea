//! The failure detector in the core's turns: starts and stops with the leadership, follows applied
//! changes, and runs what is due.

mod accusations;
mod agents;
mod brake;
mod checks;
pub(super) mod force_leave;
mod given_up;
mod messages;
mod node_leases;
mod reachability;
mod registrations;
mod relay;
mod renewals;
mod upkeep;
mod verdict;

use crate::core::Core;
use crate::input::CallToken;
use crate::judge::accusers::Accusers;
use crate::judge::brake::Brake;
use crate::judge::checks::Checks;
use crate::judge::failed_probes::FailedProbes;
use crate::judge::upkeep::Upkeep;
use crate::judge::windows::Windows;
use crate::outbox::Outbox;
use crate::proposal::Proposal;
use crate::state::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::time::Time;

impl Core {
    /// Starts the failure detector when this server begins to serve, without knowledge of any node.
    pub(crate) fn start_judge(&mut self, now: Time) {
        self.judge.windows.restart(now, &self.state);
        self.judge.upkeep.restart(now, &self.state);
        // Checks of the former leader: their answers would not count.
        self.judge.juror.close_all();
    }

    /// Stops the failure detector when leadership is lost.
    pub(crate) fn stop_judge(&mut self, now: Time, outbox: &mut Outbox) {
        self.judge.windows = Windows::default();
        self.judge.checks = Checks::default();
        self.judge.accusers = Accusers::default();
        self.judge.brake = Brake::default();
        self.judge.upkeep = Upkeep::default();
        self.judge.deciding.clear();
        self.judge.cut_off.clear();
        self.judge.failed_probes = FailedProbes::default();
        self.drop_registrations(outbox);
        self.drop_force_leaves(outbox);
        self.refuse_relayed(now, outbox);
    }

    /// Holds a proposal that depends on a node's liveness; returns one that may enter the log.
    pub(crate) fn hold_for_judge(
        &mut self,
        now: Time,
        token: CallToken,
        proposal: Proposal,
        outbox: &mut Outbox,
    ) -> Option<Proposal> {
        match &proposal.command {
            // If another process of the node is alive, it remains the node's agent.
            Command::RegisterAgent(_) => self.hold_registration(now, token, proposal, outbox),
            Command::LeaveNode(_) => self.hold_force_leave(now, token, proposal, outbox),
            _ => Some(proposal),
        }
    }

    /// Follows the changes that were applied at the leader.
    pub(crate) fn note_members(&mut self, now: Time, changes: &[Change]) {
        let Self { judge, state, .. } = self;
        // A restore replaced all rows, so the windows and checks are obsolete.
        if changes.iter().any(|change| matches!(change, Change::Cleared)) {
            judge.windows.restart(now, state);
            judge.upkeep.restart(now, state);
            judge.checks.close_all();
            judge.cut_off.clear();
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

    /// Runs once per tick, on every server.
    pub(crate) fn tick_judge(&mut self, now: Time, outbox: &mut Outbox) {
        self.refuse_relayed(now, outbox);
        if self.is_serving() {
            self.judge.accusers.forget(now);
            self.hear_own_answers(now, outbox);
            self.forget_cut_off();
            self.forget_failed_probes(now);
            self.open_checks(now);
            self.update_brake(now);
            // A server that refuses all clients receives no renewals. It proposes no verdict until
            // another server leads.
            if !self.corruption.is_known_here() {
                self.propose_verdicts(now);
                self.look_at_registrations(now, outbox);
                self.run_upkeep(now);
            }
            self.look_at_force_leaves(now, outbox);
            self.tell_jurors(now, outbox);
            self.ask_through_agents(now, outbox);
        }
        outbox.challenges.append(&mut self.judge.juror.ask(now));
    }

    /// Sends the gathered messages to other servers at the end of a turn.
    pub(crate) fn flush_judge(&mut self, outbox: &mut Outbox) {
        // A server with a set-back disk sends no replies.
        if self.set_back().is_some() {
            self.judge.answers.clear();
            return;
        }
        self.flush_relay(outbox);
        self.flush_answers(outbox);
    }
}
