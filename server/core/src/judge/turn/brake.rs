//! The brake in the core's turns: the leader updates it once per tick.

use crate::core::Core;
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;

impl Core {
    /// Returns whether very many nodes are silent at once, so that this leader's windows are long.
    pub fn is_braking(&self) -> bool {
        self.judge.is_braking()
    }

    pub(super) fn update_brake(&mut self, now: Time) {
        let judge = &self.judge;
        // An announced restart is expected.
        let is_unexpected = |number| {
            judge.windows.member(number).is_some_and(|member| member.status != MemberStatus::Restarting)
        };
        // Not the open checks alone: in a large fleet fewer are open than the brake needs.
        let silent = judge.windows.overdue(now).filter(|number| is_unexpected(*number)).count();
        let members = judge.windows.len();
        if !self.judge.brake.update(now, silent, members) {
            return;
        }
        if self.judge.brake.is_on() {
            tracing::warn!(
                silent,
                members,
                "very many nodes are silent at once: nodes fail only after 15 s of silence until fewer are"
            );
        } else {
            tracing::info!(members, "few nodes are silent: nodes fail after their own windows again");
        }
    }
}
