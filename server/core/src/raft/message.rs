//! What servers say to each other: our own mirror of the engine's messages.

use serde::{Deserialize, Serialize};

/// One message between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMessage {}
