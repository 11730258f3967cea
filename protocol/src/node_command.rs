//! Writes about nodes: their catalog entries and their sessions.
//!
//! A client without an operator's right may send them only about its agent's own node, or about a
//! node without an agent; it may also remove what a dead agent's node left. The agent marks such a
//! command with [`Command::restricted`], and the state checks it at its log entry. A type of its
//! own keeps the mark from being nested.

use crate::command::{Command, Deregistration, Registration, TxnOp};
use crate::id::{NodeName, SessionId};
use crate::record::{Coordinate, SessionSpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A command that may be about another node. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeCommand {
    /// [`Command::Register`].
    Register(Registration),
    /// [`Command::Deregister`].
    Deregister(Deregistration),
    /// [`Command::DestroySession`].
    DestroySession(SessionId),
    /// [`Command::GiveUpSession`].
    GiveUpSession {
        /// The session.
        session: SessionId,
        /// The time since the last acknowledged renewal.
        silent_for: Duration,
    },
    /// [`Command::UpdateCoordinate`].
    UpdateCoordinate {
        /// The node; case-insensitive.
        node: NodeName,
        /// Its coordinate.
        coordinate: Coordinate,
    },
    /// [`Command::Txn`] with a write to the catalog.
    Txn(Vec<TxnOp>),
    /// [`Command::CreateSession`] on another node.
    CreateSession(SessionSpec),
}

impl From<NodeCommand> for Command {
    fn from(command: NodeCommand) -> Self {
        match command {
            NodeCommand::Register(registration) => Self::Register(registration),
            NodeCommand::Deregister(deregistration) => Self::Deregister(deregistration),
            NodeCommand::DestroySession(session) => Self::DestroySession(session),
            NodeCommand::GiveUpSession { session, silent_for } => Self::GiveUpSession { session, silent_for },
            NodeCommand::UpdateCoordinate { node, coordinate } => Self::UpdateCoordinate { node, coordinate },
            NodeCommand::Txn(ops) => Self::Txn(ops),
            NodeCommand::CreateSession(session) => Self::CreateSession(session),
        }
    }
}

impl Command {
    /// Returns `true` if [`Self::restricted`] marks the command, except for new sessions: almost
    /// all are of the agent's own node.
    pub fn is_about_nodes(&self) -> bool {
        match self {
            Self::Register(_)
            | Self::Deregister(_)
            | Self::DestroySession(_)
            | Self::GiveUpSession { .. }
            | Self::UpdateCoordinate { .. } => true,
            Self::Txn(ops) => ops.iter().any(writes_catalog),
            _ => false,
        }
    }

    /// Marks the command of a client without an operator's right, if it may be about another node.
    #[must_use]
    pub fn restricted(self) -> Self {
        Self::Restricted(match self {
            Self::Register(registration) => NodeCommand::Register(registration),
            Self::Deregister(deregistration) => NodeCommand::Deregister(deregistration),
            Self::DestroySession(session) => NodeCommand::DestroySession(session),
            Self::GiveUpSession { session, silent_for } => NodeCommand::GiveUpSession { session, silent_for },
            Self::UpdateCoordinate { node, coordinate } => NodeCommand::UpdateCoordinate { node, coordinate },
            Self::Txn(ops) if ops.iter().any(writes_catalog) => NodeCommand::Txn(ops),
            Self::CreateSession(session) => NodeCommand::CreateSession(session),
            other => return other,
        })
    }

    /// Returns the operations of a transaction.
    pub fn operations(&self) -> Option<&[TxnOp]> {
        match self {
            Self::Txn(ops) | Self::Restricted(NodeCommand::Txn(ops)) => Some(ops),
            _ => None,
        }
    }
}

fn writes_catalog(op: &TxnOp) -> bool {
    op.is_write() && !matches!(op, TxnOp::Kv(_))
}
