//! A verdict is one only by a majority of the voters of its entry's index.

use crate::proposal::Proposal;
use crate::raft::log::Membership;
use lockmesh_protocol::command::{Command, NodeFailure};

/// A verdict as the state may take it: without its confirmations where those who confirm it are no
/// majority of the voters of its index, so that it does nothing. Every server applies the same
/// entries and changes of membership before it, so all see the same voters.
pub fn without_minority(proposal: Proposal, voters: &Membership) -> Proposal {
    match proposal.command {
        Command::FailNode(failure)
            if !voters.is_majority(|server| failure.confirmed_by.contains(&server)) =>
        {
            let failure = NodeFailure { confirmed_by: Vec::new(), ..failure };
            Proposal { command: Command::FailNode(failure), ..proposal }
        }
        command => Proposal { command, ..proposal },
    }
}
