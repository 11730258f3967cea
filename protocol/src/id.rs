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

        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::from(Arc::<str>::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::from(Arc::<str>::from(text))
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
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

/// A session's id: a UUID, shown as 36 characters of lower-case hyphenated hex. In the order of
/// these texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId([u8; 16]);

impl SessionId {
    /// The id that no session ever has: what a text stands for that is no UUID, so that it is
    /// merely unknown.
    pub const NIL: Self = Self([0; 16]);

    /// Reads an id as a client sent it, in whatever case; none where the text is no hyphenated
    /// UUID.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hyphenated = text.len() == uuid::fmt::Hyphenated::LENGTH;
        let uuid = uuid::Uuid::try_parse(text).ok().filter(|_| is_hyphenated)?;
        Some(Self(uuid.into_bytes()))
    }

    /// Makes an id of 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(uuid::Uuid::from_bytes_ref(&self.0).as_hyphenated(), f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A user event's id: a UUID, shown as a session's is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId([u8; 16]);

impl EventId {
    /// Makes an id of 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(uuid::Uuid::from_bytes_ref(&self.0).as_hyphenated(), f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl NodeName {
    /// The form under which a node is looked up: node names are compared without regard to case.
    #[must_use]
    pub fn folded(&self) -> Self {
        let is_folded = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
        if self.0.bytes().all(is_folded) {
            return self.clone();
        }
        Self::from(self.0.to_lowercase())
    }
}

impl ServiceId {
    /// Whether it names the same service: ids of services are compared without regard to case.
    pub fn is_same(&self, other: &Self) -> bool {
        self == other || self.0.to_lowercase() == other.0.to_lowercase()
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
    /// A cell of the mesh: the agents in it probe each other, and know of no others.
    CellNumber(u16)
}

number! {
    /// Wall-clock milliseconds since 1970, stamped by the leader's shell: words for people, never a
    /// reason to act.
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

#[cfg(test)]
mod tests {
    use super::{NodeName, SessionId};

    #[test]
    fn session_ids_are_hyphenated_uuids_in_the_order_of_their_texts() {
        let texts = ["00000000-0000-0000-0000-00000000000a", "0a000000-0000-0000-0000-000000000000"];
        let [first, second] = texts.map(|text| SessionId::parse(text).expect("it is an id"));
        assert_eq!([first, second].map(|id| id.to_string()), texts);
        assert!(SessionId::NIL < first && first < second);
        assert_eq!(SessionId::parse(&texts[1].to_uppercase()), Some(second));
        for other in ["", "s1", "0a000000000000000000000000000000", "{0a000000-0000-0000-0000-000000000000}"]
        {
            assert_eq!(SessionId::parse(other), None, "{other:?}");
        }
        assert_eq!(SessionId::parse("0a000000-0000-0000-0000-00000000000g"), None);
    }

    #[test]
    fn node_names_fold_by_the_rules_of_all_scripts() {
        for (name, folded) in [("web-1", "web-1"), ("Web-1", "web-1"), ("ÄB", "äb"), ("ä", "ä"), ("", "")]
        {
            assert_eq!(NodeName::from(name).folded(), NodeName::from(folded));
        }
    }
}
