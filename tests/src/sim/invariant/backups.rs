//! A backup equals the state that the log produced at one index, and a backup that is not stale
//! contains everything in replies sent before its request. After any restore, no index in a reply
//! is used again.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::corruption::without_stray_row;
use lockmesh_core::State;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::rpc::{BackupPart, Request, Response};

/// The last index in a reply.
#[derive(Debug, Default)]
pub(super) struct Backups {
    last: LogIndex,
}

/// Returns `true` if a backup contains a row of this kind: parts of a restore in progress, kept
/// replies and the number of the gossip key are left out.
fn is_backed_up(row: &Change) -> bool {
    !matches!(row, Change::RestorePart(..) | Change::Reply(..) | Change::GossipKey(_))
}

fn state_of(rows: impl Iterator<Item = Change>) -> State {
    let mut state = State::default();
    rows.for_each(|row| state.load(row));
    state
}

fn is_whole(parts: &[BackupPart], scene: &Scene<'_>) -> Result<(), String> {
    let Some(first) = parts.first() else { return Ok(()) };
    let (index, term) = (first.index, first.term);
    let one = parts.iter().all(|part| (part.index, part.term) == (index, term));
    ensure(one, || format!("the parts of a backup have different indexes: {index} and others"))?;
    let expected = scene.history.state_at(index);
    let expected = expected.ok_or_else(|| format!("no server has applied the backup's index {index}"))?;
    let expected = without_stray_row(state_of(expected.rows().filter(is_backed_up)));
    let found = without_stray_row(state_of(parts.iter().flat_map(|part| part.rows.iter().cloned())));
    ensure(found == expected, || {
        let lost: Vec<Change> = expected.rows().filter(|row| !found.rows().any(|r| r == *row)).collect();
        let added: Vec<Change> = found.rows().filter(|row| !expected.rows().any(|r| r == *row)).collect();
        format!("a backup of {index} lacks {lost:?} and also has {added:?}")
    })
}

impl Invariant for Backups {
    fn name(&self) -> &'static str {
        "backups"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::BackedUp { parts } => is_whole(parts, scene),
            Fact::Given { given, .. } => {
                let Response::BackupPart(part) = &given.response else { return Ok(()) };
                let fresh = Request::BackupPart { backup: None, number: 0, stale: false };
                let bound = given.asked.ask.bound;
                ensure(given.asked.ask.request != fresh || part.index >= bound, || {
                    format!("a backup has index {}, but {bound} was in a reply before", part.index)
                })
            }
            Fact::Applied(past) => {
                let before = std::mem::replace(&mut self.last, past.index);
                ensure(past.index > before, || format!("the index went from {before} to {}", past.index))
            }
            _ => Ok(()),
        }
    }
}
