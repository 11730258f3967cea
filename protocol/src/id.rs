//! Names and numbers as newtypes, so that the compiler distinguishes, for example, a term from an
//! index.

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
            /// Returns the original name.
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

/// Declares a number that only increases.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the next number.
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
    /// A node's registered name. Nodes are looked up by [`NodeName::folded`].
    NodeName
}
name! {
    /// A health check's id, unique on its node. Checks are looked up by [`CheckId::folded`].
    CheckId
}
name! {
    /// A service's id, unique on its node. Services are looked up by [`ServiceId::folded`].
    ServiceId
}

/// Declares an id: a UUID, displayed as 36 characters of lower-case hyphenated hex. Ordered like
/// these texts.
macro_rules! uuid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Creates an id from 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// Parses an id from a client, case-insensitively; `None` if the text is not a
            /// hyphenated UUID.
            pub fn parse(text: &str) -> Option<Self> {
                // The library also accepts other forms, such as one in braces or without hyphens.
                let is_hyphenated = text.len() == uuid::fmt::Hyphenated::LENGTH;
                let uuid = uuid::Uuid::try_parse(text).ok().filter(|_| is_hyphenated)?;
                Some(Self(uuid.into_bytes()))
            }

            /// Returns the bytes of the id.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(uuid::Uuid::from_bytes_ref(&self.0).as_hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{self}\"")
            }
        }
    };
}

uuid! {
    /// A session's id.
    SessionId
}
uuid! {
    /// A user event's id.
    EventId
}
uuid! {
    /// A prepared query's id.
    QueryId
}

impl SessionId {
    /// The id that no session has. It represents a text that is not a UUID, which is thus merely
    /// unknown.
    pub const NIL: Self = Self([0; 16]);
}

/// Declares that names are case-insensitive.
macro_rules! folded {
    ($($name:ident),*) => {
        $(impl $name {
            /// Returns the form used for look-ups: these names are case-insensitive.
            #[must_use]
            pub fn folded(&self) -> Self {
                let is_folded = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
                // The usual case: the text is shared, not copied.
                if self.0.bytes().all(is_folded) {
                    return self.clone();
                }
                Self::from(self.0.to_lowercase())
            }
        })*
    };
}

folded!(NodeName, CheckId, ServiceId);

number! {
    /// A position in the replicated log. Every command has one, even if it changes nothing.
    LogIndex(u64)
}
number! {
    /// A Raft term.
    Term(u64)
}
number! {
    /// A fencing token: a cluster-wide counter that increases with every grant of a lock and never
    /// decreases.
    Fence(u64)
}
number! {
    /// A server's Raft id; never reused after the server was removed.
    ServerId(u64)
}
number! {
    /// An agent's number, assigned at its first registration and never changed.
    AgentNumber(u32)
}
number! {
    /// An agent's generation, which increases with every registration.
    Generation(u32)
}
number! {
    /// A cell of the mesh: its agents probe each other and know no agents of other cells.
    CellNumber(u16)
}

number! {
    /// Wall-clock milliseconds since 1970, stamped by the leader. For display only, never a reason
    /// to act.
    WallTime(u64)
}

/// The id that a command keeps across all of its retries, so that it is applied exactly once.
///
/// The state keeps replies from `lowest` on; a lower sequence is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// The requesting agent.
    pub agent: AgentNumber,
    /// The agent's generation.
    pub generation: Generation,
    /// The agent's own count of its commands, from 1.
    pub sequence: u64,
    /// The lowest sequence whose reply the agent may still request.
    pub lowest: u64,
}

#[cfg(test)]
mod tests {
    use super::{NodeName, SessionId};

    #[test]
    fn session_id_uuid_parsing_and_order() {
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
    fn node_names_fold_unicode_case() {
        for (name, folded) in [("web-1", "web-1"), ("Web-1", "web-1"), ("ÄB", "äb"), ("ä", "ä"), ("", "")]
        {
            assert_eq!(NodeName::from(name).folded(), NodeName::from(folded));
        }
    }
}
