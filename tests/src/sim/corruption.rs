//! A server whose state is another one than the log has made, and what the corruption checks make of it.
//!
//! At most one server of a run is given a row that no entry has made, as a flaw in its state machine would. From then on
//! its own state is not judged. **Invariant:** nobody else is ever found to be corrupt, and where no server is, all that
//! are compared are alike.

use super::marks::Mark;
use super::process::Turn;
use super::world::World;
use lockmesh_core::State;
use lockmesh_core::corruption::Finding;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};

/// The row that nobody made: it is older than everything, so that no answer shows it.
fn stray_row(is_there: bool) -> Change {
    Change::Tombstone("nobody deleted this".into(), is_there.then_some(LogIndex(1)))
}

/// What a corrupt server gives to others: if it spread, a majority would soon agree on what is wrong.
pub fn without_stray_row(mut state: State) -> State {
    state.load(stray_row(false));
    state
}

impl World {
    /// A voter's disk is given the row, where there are others enough to tell.
    pub(super) fn corrupt_some(&mut self) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else { return };
        let members = leader.process.as_ref().expect("it serves").core().membership();
        let voters: Vec<_> =
            members.voters.iter().copied().filter(|id| self.running().contains(id)).collect();
        if voters.len() < 3 || members.is_joint() {
            return;
        }
        // A leader that is corrupt is the rarer case, and the harder one.
        let leader = leader.id;
        let id = if self.stage.draw.once_in(2) { leader } else { *self.stage.draw.pick(&voters) };
        self.stage.hit(Mark::Corrupted);
        self.stage.say(|| format!("the state of server {id} is corrupted"));
        self.judge.corrupted.insert(id);
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        machine.process.as_mut().expect("it runs").record(stray_row(true));
    }

    /// Judges what a server found of the others, or learned of itself.
    pub(super) fn judge_corruption(&mut self, id: ServerId, turn: &Turn) {
        if turn.found_corrupt {
            self.stage.hit(Mark::FoundCorrupt);
            if self.machines[&id].serves() {
                self.stage.hit(Mark::CorruptLeader);
            }
            self.stage.say(|| format!("server {id} knows that its state is corrupt"));
            self.machines.get_mut(&id).expect("the machine exists").found_corrupt = true;
            if !self.judge.corrupted.contains(&id) {
                self.judge.object("corruption", format!("server {id} was told that its state is corrupt"));
            }
        }
        let Some(process) = &self.machines[&id].process else { return };
        let checks = process.core().corruption_checks();
        let is_wrong = match checks.finding() {
            Finding::Alike => false,
            Finding::Corrupt(servers) => !servers.is_subset(&self.judge.corrupted),
            Finding::Undecided => self.judge.corrupted.is_empty(),
        };
        if is_wrong {
            let what = format!("server {id} found that the states differ: {:?}", checks.finding());
            self.judge.object("corruption", what);
        } else if checks.compared() > self.compared {
            self.compared = checks.compared();
            self.stage.hit(Mark::Compared);
        }
    }
}
