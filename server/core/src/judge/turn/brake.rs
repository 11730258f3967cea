//! Whether the brake is on: looked at by the leader once a tick.

use crate::core::Core;
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;

impl Core {
    /// Whether very many nodes are silent at once, so that this leader's windows are long.
    pub fn is_braking(&self) -> bool {
        self.judge.is_braking()
    }

    pub(super) fn update_brake(&mut self, now: Time) {
        let judge = &self.judge;
        // An announced restart is no sign of anything.
        let is_unexpected = |number| {
            judge.windows.member(number).is_some_and(|member| member.status != MemberStatus::Restarting)
        };
        // Not the open checks alone: in a large fleet fewer are open than are needed to brake.
        let silent = judge.windows.overdue(now).filter(|number| is_unexpected(*number)).count();
        let members = judge.windows.len();
        if !self.judge.brake.update(now, silent, members) {
            return;
        }
        if self.judge.brake.is_on() {
            tracing::warn!(
                silent,
                members,
                "very many nodes are silent at once: until fewer are, none is failed before 15 s of silence"
            );
        } else {
            tracing::info!(members, "few nodes are silent: nodes are failed after their own windows again");
        }
    }
}
