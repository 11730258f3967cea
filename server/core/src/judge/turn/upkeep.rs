//! Proposes the upkeep commands that are due.

use crate::core::Core;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The interval between two checks for due upkeep.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The interval between two comparisons of catalog and roster (anti-entropy).
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// The same interval after a comparison that found differences: there may be more.
const RECONCILE_AGAIN: Duration = Duration::from_secs(1);
/// The maximum number of members and nodes that one command reconciles.
const RECONCILED_AT_ONCE: usize = 256;

impl Core {
    pub(super) fn run_upkeep(&mut self, now: Time) {
        if now < self.judge.upkeep.look_at {
            return;
        }
        self.judge.upkeep.look_at = now + LOOK_INTERVAL;
        self.end_restarts(now);
        self.end_former_hosts(now);
        self.reap_failed_members(now);
        self.reconcile_if_due(now);
    }

    fn end_restarts(&mut self, now: Time) {
        let (Some(term), base) = (self.serving, self.state.index_base()) else { return };
        for (agent, announced_at) in self.judge.upkeep.restarts_due(now) {
            self.gather_own(Command::EndRestart { agent, announced_at, term, base });
        }
    }

    fn end_former_hosts(&mut self, now: Time) {
        let (Some(term), base) = (self.serving, self.state.index_base()) else { return };
        for (number, window) in self.judge.upkeep.former_due(now) {
            if let Some(lease) = self.state.agent(number).map(|agent| agent.lease()) {
                self.gather_own(Command::EndFormerSessions { lease, window, term, base });
            }
        }
    }

    fn reap_failed_members(&mut self, now: Time) {
        let (Some(term), base) = (self.serving, self.state.index_base()) else { return };
        for lease in self.judge.upkeep.reap_due(now, self.config.timers.reap_failed_after) {
            self.gather_own(Command::ReapMember { lease, term, base });
        }
    }

    fn reconcile_if_due(&mut self, now: Time) {
        if now < self.judge.upkeep.reconcile_at {
            return;
        }
        let (members, strangers) = self.state.unreconciled(RECONCILED_AT_ONCE);
        let found = members.len() + strangers.len();
        self.judge.upkeep.reconcile_at = now + if found > 0 { RECONCILE_AGAIN } else { RECONCILE_INTERVAL };
        if found > 0 {
            tracing::info!(
                members = members.len(),
                strangers = strangers.len(),
                "reconciling the catalog with the roster of members"
            );
            self.gather_own(Command::Reconcile { members, strangers });
        }
    }
}
