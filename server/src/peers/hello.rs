//! The messages on a Raft stream between servers: a hello and its answer, then Raft messages until
//! its end.

use lockmesh_core::raft::log::LogPosition;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::frame_messages;
use serde::{Deserialize, Serialize};

/// The version of this program, with the commit of its build if known.
pub(crate) const VERSION: &str = env!("LOCKMESH_BUILD");

/// The first message on a stream, and the answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The sender.
    pub from: ServerId,
    /// The intended receiver.
    pub to: ServerId,
    /// Their cluster.
    pub cluster_id: String,
    /// The address of the sender.
    pub address: String,
    /// The version of the sender's program; shown to users only.
    pub version: String,
    /// The sender's position in the log, durable now or in a moment.
    pub position: LogPosition,
    /// The receiver's position as known to the sender.
    pub remembers: Option<LogPosition>,
}

/// A frame of hellos; there is one in it.
#[derive(Debug, Deserialize)]
pub(crate) struct HelloFrame(#[serde(deserialize_with = "frame_messages")] pub(crate) Vec<Hello>);

/// A frame of messages.
#[derive(Debug, Deserialize)]
pub(crate) struct PeerFrame(#[serde(deserialize_with = "frame_messages")] pub(crate) Vec<PeerMessage>);
