//! Names and numbers as newtypes, so that the compiler keeps a term from being taken for an index.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Declares a name: an immutable string, cheap to clone, ordered bytewise.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

/// Declares a number that only ever grows.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number that follows this one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// The name of an entry: any printable string, case-sensitive, ordered bytewise.
    Key
}
name! {
    /// A session's id: 36 characters of lower-case hyphenated hex. Anything else is merely unknown.
    SessionId
}
name! {
    /// A node's name as it was registered. Nodes are looked up by [`NodeName::folded`].
    NodeName
}
name! {
    /// A health check's id, unique on its node.
    CheckId
}
name! {
    /// A service's id, unique on its node.
    ServiceId
}

impl SessionId {
    /// Takes an id as a client sent it: session ids are compared in lower case.
    pub fn parse(text: &str) -> Self {
        Self::from(text.to_ascii_lowercase())
    }

    /// Makes an id of 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::from(uuid::Uuid::from_bytes(bytes).hyphenated().to_string())
    }
}

impl NodeName {
    /// The form under which a node is looked up: node names are compared without regard to case.
    #[must_use]
    pub fn folded(&self) -> Self {
        Self::from(self.0.to_lowercase())
    }
}

number! {
    /// A position in the replicated log. Every command has one, also when it changes nothing.
    LogIndex(u64)
}
number! {
    /// A leader's term of office.
    Term(u64)
}
number! {
    /// A fencing token: one cluster-wide counter, one more at every grant of a lock, never back.
    Fence(u64)
}
number! {
    /// A server's id in the consensus group; never used again after the server was removed.
    ServerId(u64)
}
number! {
    /// An agent's number, given at its first registration and kept for life.
    AgentNumber(u32)
}
number! {
    /// Which of an agent's lives: one more at every registration.
    Generation(u32)
}

number! {
    /// Wall-clock milliseconds since 1970, stamped by the leader's shell: words for people, never a reason to act.
    WallTime(u64)
}

/// What makes a command unique across all its retries.
///
/// Replies from `lowest` on are kept by the state; a sequence below it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// Who asks.
    pub agent: AgentNumber,
    /// In which of its lives.
    pub generation: Generation,
    /// The agent's own count of its commands, from 1.
    pub sequence: u64,
    /// The lowest sequence whose reply the agent may still ask for.
    pub lowest: u64,
}
