//! What a client was told is not done is never done: *unknown* is not taken for *no*.
//!
//! A write with a value, and a session, are of a kind: no other client asks for the same.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::wire;
use std::collections::BTreeSet;

/// The commands that the log holds, and those that were told not to be done, as their bytes.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    applied: BTreeSet<Vec<u8>>,
    not_done: BTreeSet<Vec<u8>>,
}

/// The bytes of a command that is never asked for twice.
fn unique(command: &Command) -> Option<Vec<u8>> {
    let is_unique = match command {
        Command::CreateSession(_) => true,
        // A position in a queue that was given up again is not done either.
        Command::Kv(KvCommand::Set(new) | KvCommand::Cas(new, _) | KvCommand::Acquire(new, _)) => {
            !new.value.is_empty()
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
                let Some(proposal) = &past.proposal else { return Ok(()) };
                let Some(bytes) = unique(&proposal.command) else { return Ok(()) };
                let was_denied = self.not_done.contains(&bytes);
                self.applied.insert(bytes);
                ensure(!was_denied, || format!("{:?} was done after all", proposal.command))
            }
            Fact::ToldNotDone { command } => {
                let Some(bytes) = unique(command) else { return Ok(()) };
                let was_done = self.applied.contains(&bytes);
                self.not_done.insert(bytes);
                ensure(!was_done, || format!("{command:?} was done, and its client was told that it was not"))
            }
            _ => Ok(()),
        }
    }
}
