//! A command that a client was told is not done is never done: *unknown* is not reported as *no*.
//!
//! A write with a value, a session creation and a description of a query are unique: no other
//! client requests the same. A wait for a lock is not done if its position was given up again, even
//! if it was granted in the meantime; after that it is granted nothing. Its value may stay in the
//! entry, and later grants in shared mode keep it: they write no value (seed 11332).

use super::mutual_exclusion::SharedHolds;
use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, QueryCommand};
use lockmesh_protocol::reply::{Refusal, Reply};
use lockmesh_protocol::wire;
use std::collections::BTreeSet;

/// The commands in the log, and those that were reported as not done, in encoded form.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    applied: BTreeSet<Vec<u8>>,
    not_done: BTreeSet<Vec<u8>>,
    /// The values of waits that were reported as not done.
    not_granted: BTreeSet<Bytes>,
    shared: SharedHolds,
}

impl Outcomes {
    fn nobody_is_granted_late(&mut self, changes: &[Change]) -> Result<(), String> {
        if is_restore(changes) {
            self.shared.clear();
        }
        changes.iter().for_each(|change| self.shared.see(change));
        if is_restore(changes) {
            return Ok(());
        }
        let late = changes.iter().find_map(|change| match change {
            Change::Entry(key, Some(entry))
                if entry.lock.session.is_some() && !self.shared.is_shared(key) =>
            {
                self.not_granted.contains(&entry.value).then_some((key, &entry.lock.session))
            }
            _ => None,
        });
        ensure(late.is_none(), || format!("{late:?} was granted to a wait that was reported as not done"))
    }
}

/// Returns `true` if a command did nothing because its agent had registered again.
fn is_forgotten(past: &Past) -> bool {
    past.reply.as_ref().is_some_and(|applied| applied.reply == Reply::Refused(Refusal::Forgotten))
}

/// Returns the encoding of a command that is never requested twice.
fn unique(command: &Command) -> Option<Vec<u8>> {
    let is_unique = match command {
        Command::CreateSession(_)
        | Command::PreparedQuery(QueryCommand::Create(..) | QueryCommand::Update(..)) => true,
        // A position in a queue that was given up again is not done either.
        Command::Kv(KvCommand::Set(new) | KvCommand::Cas(new, _) | KvCommand::Acquire(new, _)) => {
            !new.value.is_empty()
        }
        Command::AcquireLocks { locks, wait, .. } => {
            wait.is_zero() && locks.iter().all(|lock| !lock.value.is_empty())
        }
        _ => false,
    };
    is_unique.then(|| wire::encode(command))
}

impl Invariant for Outcomes {
    fn name(&self) -> &'static str {
        "outcomes"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => {
                self.nobody_is_granted_late(&past.changes)?;
                let Some(proposal) = past.proposal.as_ref().filter(|_| !is_forgotten(past)) else {
                    return Ok(());
                };
                let Some(bytes) = unique(&proposal.command) else { return Ok(()) };
                let was_denied = self.not_done.contains(&bytes);
                self.applied.insert(bytes);
                ensure(!was_denied, || format!("{:?} was done after a denial", proposal.command))
            }
            Fact::ToldNotDone { command: Command::Kv(KvCommand::Enqueue { new, .. }) } => {
                self.not_granted.insert(new.value.clone());
                Ok(())
            }
            Fact::ToldNotDone { command: Command::AcquireLocks { locks, wait, .. } } if !wait.is_zero() => {
                self.not_granted.extend(locks.iter().map(|lock| lock.value.clone()));
                Ok(())
            }
            Fact::ToldNotDone { command } => {
                let Some(bytes) = unique(command) else { return Ok(()) };
                let was_done = self.applied.contains(&bytes);
                self.not_done.insert(bytes);
                ensure(!was_done, || format!("{command:?} was done, but its client was told that it was not"))
            }
            _ => Ok(()),
        }
    }
}
