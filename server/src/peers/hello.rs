//! What servers say to each other on a Raft stream: a hello and its answer, then messages for ever.

use lockmesh_core::raft::message::PeerMessage;
use lockmesh_core::setback::LogPosition;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::frame_messages;
use serde::{Deserialize, Serialize};

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The first word on a stream, and the answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who speaks.
    pub from: ServerId,
    /// Whom it wants to speak to.
    pub to: ServerId,
    /// Their cluster.
    pub cluster_id: String,
    /// Where the speaker is reached.
    pub address: String,
    /// The version of the program that the speaker runs; words for people.
    pub version: String,
    /// How far the speaker has come, as its disk has it or will have it in a moment.
    pub position: LogPosition,
    /// How far it knows the other one to have come.
    pub remembers: Option<LogPosition>,
}

/// A frame of hellos; there is one in it.
#[derive(Debug, Deserialize)]
pub(crate) struct HelloFrame(#[serde(deserialize_with = "frame_messages")] pub(crate) Vec<Hello>);

/// A frame of messages.
#[derive(Debug, Deserialize)]
pub(crate) struct PeerFrame(#[serde(deserialize_with = "frame_messages")] pub(crate) Vec<PeerMessage>);
