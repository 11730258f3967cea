//! A server whose state diverges from the log, and its detection by the corruption checks.
//!
//! At most one server of a run receives a row that no entry has made, as a bug in its state machine
//! would write it. Its snapshots carry the row to others. From then on the state of any server with
//! the row is not checked by the invariants.
//!
//! **Invariants:** no other server is ever found to be corrupt, however many have the row. If no
//! server has it, all compared checksums match. In the end every server that has it knows so if a
//! majority has another state; if there is no such majority, the leader at least reports that
//! states differ.

use super::chaos::Kind;
use super::machine::Machine;
use super::marks::Mark;
use super::process::Turn;
use super::stage::Event;
use super::world::World;
use lockmesh_core::State;
use lockmesh_core::corruption::Finding;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use std::time::Duration;

/// Delay of the fault if there is no leader.
const LATER: Duration = Duration::from_secs(1);

/// The key of the stray row.
const STRAY_KEY: &str = "nobody deleted this";

/// Returns the row: it is older than everything, so that no reply shows it.
fn stray_row() -> Change {
    Change::Tombstone(STRAY_KEY.into(), Some(LogIndex(1)))
}

/// The remnant of the row once tombstones as old as it are forgotten.
const FORGOTTEN: Change = Change::ForgottenTombstones(LogIndex(1));

fn has_stray_row(state: &State) -> bool {
    state.tombstones().any(|(key, _)| key.as_str() == STRAY_KEY) || state.rows().any(|row| row == FORGOTTEN)
}

/// Returns a state without the row: a corrupt server's backup contains it, and that cannot be
/// detected.
pub fn without_stray_row(mut state: State) -> State {
    state.load(Change::Tombstone(STRAY_KEY.into(), None));
    if state.rows().any(|row| row == FORGOTTEN) {
        state.load(Change::ForgottenTombstones(LogIndex(0)));
    }
    state
}

impl World {
    /// Puts the row on a voter's disk, if there are enough others to detect it.
    pub(super) fn corrupt_some(&mut self) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else {
            return self.stage.after(LATER, Event::Fault(Kind::Corruption));
        };
        let members = leader.process.as_ref().expect("it serves").core().replica().membership();
        let voters: Vec<_> =
            members.voters.iter().copied().filter(|id| self.running().contains(id)).collect();
        if voters.len() < 3 || members.is_joint() {
            return;
        }
        // A leader with corrupt state is the rarer and the harder case.
        let leader = leader.id;
        let id = if self.stage.draw.once_in(2) { leader } else { *self.stage.draw.pick(&voters) };
        self.stage.hit(Mark::Corrupted);
        self.stage.log(|| format!("the state of server {id} is corrupted"));
        self.judge.corrupted.insert(id);
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        machine.process.as_mut().expect("it runs").record(stray_row());
    }

    /// Notes that a server installed a snapshot.
    pub(super) fn note_spread(&mut self, id: ServerId) {
        let process = self.machines[&id].process.as_ref().expect("it has just installed a snapshot");
        if has_stray_row(process.core().replica().state()) && self.judge.corrupted.insert(id) {
            self.stage.hit(Mark::CorruptionSpread);
            self.stage.log(|| format!("the state of server {id} is a copy of one that is corrupt"));
        }
    }

    /// Returns the facts about the servers' states that should be known by now and are not.
    pub(super) fn unfound(&self) -> Vec<String> {
        let leader = self.machines.values().find(|machine| machine.serves());
        let Some(leader) = leader.and_then(|machine| machine.process.as_ref()) else { return Vec::new() };
        let members = leader.core().replica().membership();
        let machines: Vec<_> = members.all().iter().filter_map(|id| self.machines.get(id)).collect();
        let (wrong, right): (Vec<_>, Vec<_>) =
            machines.into_iter().partition(|machine| has_stray_row(&machine.disk.durable.state));
        let is_witness = |machine: &&&Machine| {
            let process = machine.process.as_ref();
            members.voters.contains(&machine.id)
                && process.is_some_and(|process| process.core().replica().own_memory().copy_of.is_none())
        };
        if right.iter().filter(is_witness).count() > (members.voters.len() / 2).max(1) {
            let unfound = wrong.iter().filter(|machine| !machine.found_corrupt && !machine.gone);
            return unfound
                .map(|machine| format!("server {} does not know that it is corrupt", machine.id))
                .collect();
        }
        let all_answer = right.iter().chain(&wrong).all(|machine| machine.process.is_some());
        let is_said = *leader.core().corruption_checks().finding() != Finding::Alike;
        if wrong.is_empty() || right.is_empty() || !all_answer || is_said {
            return Vec::new();
        }
        vec!["the states of servers differ, but their leader does not report it".into()]
    }

    /// Checks the result of a server's comparison, or its own finding.
    pub(super) fn judge_corruption(&mut self, id: ServerId, turn: &Turn) {
        if turn.found_corrupt {
            self.stage.hit(Mark::FoundCorrupt);
            if self.machines[&id].serves() {
                self.stage.hit(Mark::CorruptLeader);
            }
            self.stage.log(|| format!("server {id} has learned that its state is corrupt"));
            self.machines.get_mut(&id).expect("the machine exists").found_corrupt = true;
            if !self.judge.corrupted.contains(&id) {
                self.judge.object("corruption", format!("server {id} was reported to be corrupt"));
            }
        }
        let Some(process) = &self.machines[&id].process else { return };
        let checks = process.core().corruption_checks();
        let is_wrong = match checks.finding() {
            Finding::Alike => false,
            Finding::Corrupt(servers) => !servers.is_subset(&self.judge.corrupted),
            Finding::Undecided => self.judge.corrupted.is_empty(),
        };
        if *checks.finding() == Finding::Undecided {
            self.stage.hit(Mark::CorruptUndecided);
        }
        if is_wrong {
            let what = format!("server {id} found that the states differ: {:?}", checks.finding());
            self.judge.object("corruption", what);
        } else if checks.compared() > self.compared {
            self.compared = checks.compared();
            self.stage.hit(Mark::Compared);
        }
    }
}
