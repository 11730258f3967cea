//! The role of a server: it starts to serve as leader, stops, and ends its work if its disk was set
//! back or if it cannot read the cluster's format.

use super::{ClusterStart, Core};
use crate::autopilot::AutopilotInput;
use crate::durability::setback::SetBack;
use crate::judge::JudgeInput;
use crate::outbox::{Outbox, lost_leadership, not_leader};
use crate::raft::log::LogPosition;
use crate::time::deadlines::Deadlines;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::time::Time;

/// Logs the leader once per change, so that operators can follow an election.
#[derive(Debug, Default)]
pub(super) struct LeaderLog {
    /// The last leader that was logged.
    logged: Option<ServerId>,
}

impl LeaderLog {
    pub(super) fn note(
        &mut self,
        own: ServerId,
        leader: Option<ServerId>,
        term: Term,
        node: impl Fn(ServerId) -> String,
    ) {
        if leader == self.logged {
            return;
        }
        let former = std::mem::replace(&mut self.logged, leader);
        let term = term.0;
        match (leader, former) {
            // Its own leadership is logged when it starts to serve and when it stops.
            (Some(leader), _) if leader == own => {}
            (None, Some(former)) if former == own => {}
            (Some(leader), _) => {
                tracing::info!(node = %node(leader), server = leader.0, term, "following the leader");
            }
            (None, Some(former)) => {
                let (node, server) = (node(former), former.0);
                tracing::warn!(%node, server, term, "lost the leader: waiting for an election");
            }
            (None, None) => {}
        }
    }

    /// Logs that this server no longer leads.
    fn note_stop(term: Term, is_leaderless: bool) {
        let term = term.0;
        if is_leaderless {
            // A leader without replies from a majority steps down on its own, within its term.
            tracing::warn!(term, "this server no longer leads, and no other leader is known");
        } else {
            tracing::info!(term, "this server no longer leads");
        }
    }
}

impl Core {
    /// Starts or stops serving.
    pub(super) fn notice_role(&mut self, now: Time, outbox: &mut Outbox) {
        // After an entry of its own term is applied: before, the state may lack earlier replies.
        let may_lead = self.replica.engine.leads_its_term() && self.replica.set_back.is_none();
        let leads = may_lead.then(|| self.replica.engine.term());
        let led = std::mem::replace(&mut self.led, self.replica.engine.is_leader());
        // Also if it led without serving: accepted proposals may be waiting.
        if (led && !self.led) || (self.replica.serving.is_some() && leads != self.replica.serving) {
            let is_leaderless =
                self.replica.engine.leader().is_none() && leads.is_none() && self.replica.set_back.is_none();
            LeaderLog::note_stop(self.replica.engine.term(), is_leaderless);
            self.replica.serving = None;
            self.step_down(now, outbox);
        }
        if leads == self.replica.serving {
            return;
        }
        self.replica.serving = leads;
        if let Some(term) = leads {
            tracing::info!(term = term.0, "this server leads");
            self.with_deadlines(now, Deadlines::start, outbox);
            self.judge(now, JudgeInput::Start, outbox);
            // A leader may have died between its first entry and this one, so each leader that
            // finds none proposes it; only the first counts.
            if self.replica.state.cluster_id().is_empty() {
                let ClusterStart { cluster_id, servers, lease_key, .. } =
                    self.replica.config.cluster_start.clone();
                self.replica.gather_own(Command::Bootstrap { cluster_id, servers, lease_key });
            }
            self.manage(now, AutopilotInput::Start, outbox);
        }
    }

    /// Ends all work of a leader.
    fn step_down(&mut self, now: Time, outbox: &mut Outbox) {
        self.deadlines.timers.clear();
        self.observer.step_down();
        // A round that was begun as leader is lost with the role; readers are redirected to the
        // next leader at once.
        for reader in self.replica.read_index.drain() {
            self.refuse_reader(now, reader, outbox);
        }
        // They are in the log, and the next leader may or may not commit them.
        for origin in self.replica.proposals.take_pending(LogIndex(u64::MAX)) {
            self.fail_proposal(now, origin, lost_leadership(), outbox);
        }
        self.manage(now, AutopilotInput::Stop, outbox);
        self.corruption.step_down();
        self.judge(now, JudgeInput::Stop, outbox);
    }

    /// Fails all waiting calls and stops sending: this build cannot read the cluster's format. The
    /// applied state stays: a newer build continues from it.
    pub(super) fn fall_silent(&mut self, now: Time, outbox: &mut Outbox) {
        self.replica.serving = None;
        self.step_down(now, outbox);
        outbox.shell.messages.clear();
    }

    /// Handles evidence that this server has lost acknowledged entries or votes: it must not vote,
    /// acknowledge or reply again.
    pub(super) fn notice_set_back(
        &mut self,
        now: Time,
        by: ServerId,
        known: LogPosition,
        outbox: &mut Outbox,
    ) {
        let Some(set_back) =
            SetBack::find(self.replica.config.id, self.replica.log_position(), by, Some(known))
        else {
            return;
        };
        tracing::error!("{set_back}");
        self.replica.set_back = Some(set_back);
        self.replica.serving = None;
        // Messages of this turn may depend on the lost entries or votes.
        outbox.shell.messages.clear();
        self.step_down(now, outbox);
        // These are not in the log, so they are certainly not done.
        for origin in self.replica.proposals.take_gathered() {
            self.fail_proposal(now, origin, not_leader(), outbox);
        }
    }
}
