//! Time bound for a new leader when the present leader's disk hangs while a majority of servers can
//! write.
//!
//! Only a hang of the leader's disk counts, once a committed write has waited for it for [`HANG`],
//! and only while a majority of the voters run, have disks that accept writes, and reach each
//! other. Any disturbance of this majority restarts the time.

use super::machine::Machine;
use super::network::Place;
use super::world::World;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Shortest hang of a disk that counts.
const HANG: Duration = Duration::from_secs(5);
/// Maximum time after that without a leader in such a majority: several elections, in a network
/// that loses messages.
const BOUND: Duration = Duration::from_secs(15);

impl World {
    /// Checks after a server's turn that servers that can write have a leader.
    pub(super) fn judge_handover(&mut self) {
        if self.stage.plan.hangs.is_empty() {
            return;
        }
        let (now, is_due) = (self.stage.now, self.is_handover_due());
        let since = *self.handover_due.get_or_insert(now);
        if !is_due {
            self.handover_due = None;
        } else if now.since(since) > BOUND {
            let why = "a majority of servers that can write has no leader while the leader's disk hangs";
            self.judge.object("handover", why.into());
        }
    }

    /// Returns `true` if a leader's disk hangs, and a majority of servers that does not need it has
    /// no leader.
    fn is_handover_due(&self) -> bool {
        let now = self.stage.now;
        let mut machines = self.machines.values();
        if !machines.any(|machine| machine.serves() && is_overtaken(machine, now)) {
            return false;
        }
        let able: Vec<ServerId> = self.voters.iter().copied().filter(|id| self.can_write(*id, now)).collect();
        let reach = |from: ServerId, to: ServerId| {
            self.stage.network.carries((Place::Server(from), Place::Server(to)))
        };
        let are_connected = able.iter().all(|from| able.iter().all(|to| from == to || reach(*from, *to)));
        let is_led = able.iter().any(|id| self.machines[id].serves());
        2 * able.len() > self.voters.len() && are_connected && !is_led
    }

    fn can_write(&self, id: ServerId, now: Time) -> bool {
        let Some(machine) = self.machines.get(&id) else { return false };
        let is_well = machine
            .process
            .as_ref()
            .is_some_and(|process| process.stands_until.is_none() && !process.failing);
        is_well && !machine.disk.is_troubled(now)
    }
}

/// Returns `true` if a disk hangs and the other servers have committed an entry that waits for it.
fn is_overtaken(machine: &Machine, now: Time) -> bool {
    let Some(process) = &machine.process else { return false };
    let is_long = |since: Option<Time>| since.is_some_and(|since| now.since(since) >= HANG);
    let log = process.core().replica().log_status();
    is_long(machine.disk.hangs_since(now))
        && is_long(process.core().disk().unpersisted_since())
        && log.commit_index > log.applied_index
}
