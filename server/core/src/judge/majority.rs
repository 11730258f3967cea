//! The majority rule: a verdict needs a majority of the voters at its entry's index. A minority
//! that is cut off from the others (split brain) fails no node.

use crate::proposal::Proposal;
use crate::raft::log::Membership;
use lockmesh_protocol::command::{Command, NodeFailure};

/// Removes the confirmations from a verdict if they are no majority of the voters at its index, so
/// that it has no effect. Every server applies the same entries and membership changes before it,
/// so all servers see the same voters.
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
