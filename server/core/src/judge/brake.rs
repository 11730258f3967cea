//! The brake. If very many nodes are silent at once, the likely cause is the network or the
//! servers, not the nodes. The brake then lengthens the servers' windows, never the agents' own
//! deadlines.

use super::windows::Windows;
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The number of nodes under check that never triggers the brake.
const ALWAYS_ALLOWED: usize = 4;
/// Above [`ALWAYS_ALLOWED`], one silent node per this many members is allowed.
const MEMBERS_A_SILENT_ONE: usize = 20;
/// The brake is released after fewer than half the allowed nodes were silent for this long.
const RELEASE_DELAY: Duration = Duration::from_secs(30);

/// The state of the brake: while it is on, the servers' windows are long.
#[derive(Debug, Default)]
pub(super) struct Brake {
    is_on: bool,
    calm_since: Option<Time>,
}

impl Brake {
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn postpone(&mut self, gap: Duration) {
        self.calm_since = self.calm_since.map(|since| since + gap);
    }

    /// Follows the windows of all members. The leader calls this once per tick.
    pub(super) fn follow(&mut self, now: Time, windows: &Windows) {
        // An announced restart is expected.
        let is_unexpected =
            |number| windows.member(number).is_some_and(|member| member.status != MemberStatus::Restarting);
        // Not the open checks alone: in a large fleet fewer are open than the brake needs.
        let silent = windows.overdue(now).filter(|number| is_unexpected(*number)).count();
        let members = windows.len();
        if !self.update(now, silent, members) {
            return;
        }
        if self.is_on {
            tracing::warn!(
                silent,
                members,
                "very many nodes are silent at once: nodes fail only after 15 s of silence until fewer are"
            );
        } else {
            tracing::info!(members, "few nodes are silent: nodes fail after their own windows again");
        }
    }

    /// Updates the brake with the number of silent members; returns whether it switched on or off.
    fn update(&mut self, now: Time, silent: usize, members: usize) -> bool {
        let allowed = ALWAYS_ALLOWED.max(members / MEMBERS_A_SILENT_ONE);
        let was_on = self.is_on;
        if silent > allowed {
            self.is_on = true;
        }
        if 2 * silent < allowed {
            let since = *self.calm_since.get_or_insert(now);
            self.is_on &= now.since(since) < RELEASE_DELAY;
        } else {
            self.calm_since = None;
        }
        self.is_on != was_on
    }
}

#[cfg(test)]
mod tests {
    use super::Brake;
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    #[test]
    fn engages_until_calm_period_ends() {
        let at = |seconds| Time(0) + Duration::from_secs(seconds);
        let mut brake = Brake::default();
        assert!(!brake.update(at(0), 4, 5) && !brake.is_on());
        assert!(brake.update(at(1), 5, 5) && brake.is_on());
        assert!(!brake.update(at(2), 1, 5), "not calm for long enough");
        assert!(!brake.update(at(20), 2, 5), "half of the allowed number restarts the calm period");
        assert!(!brake.update(at(40), 1, 5) && !brake.update(at(69), 1, 5));
        assert!(brake.update(at(70), 1, 5) && !brake.is_on());
        assert!(!brake.update(at(80), 50, 1_000), "one in twenty may be silent");
        assert!(brake.update(at(81), 51, 1_000));
    }
}
