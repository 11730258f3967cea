//! Names and numbers as newtypes, so that the compiler keeps a term from being taken for an index.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::hash::{Hash, Hasher};
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

        text!($name);
    };
}

/// What every name can do that is made from an `Arc<str>` and shows itself by `as_str`.
macro_rules! text {
    ($name:ident) => {
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

/// A session's id: 36 characters of lower-case hyphenated hex. Anything else is merely unknown.
///
/// Ids are random, so their first bytes tell them apart: these lie beside the pointer, and a search among many ids
/// need not follow one after the other to its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    /// The first bytes of the text, zeros behind a shorter one: numbers in the order of the texts.
    head: u64,
    text: Arc<str>,
}

text!(SessionId);

impl SessionId {
    /// The id as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Takes an id as a client sent it: session ids are compared in lower case.
    pub fn parse(text: &str) -> Self {
        Self::from(text.to_ascii_lowercase())
    }

    /// Makes an id of 16 random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self::from(uuid::Uuid::from_bytes(bytes).hyphenated().to_string())
    }
}

impl From<Arc<str>> for SessionId {
    fn from(text: Arc<str>) -> Self {
        let mut head = [0; 8];
        let length = text.len().min(head.len());
        head[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self { head: u64::from_be_bytes(head), text }
    }
}

/// As its text's, since it is looked up by that too.
impl Hash for SessionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::<str>::deserialize(deserializer).map(Self::from)
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

#[cfg(test)]
mod tests {
    use super::{NodeName, SessionId};
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    #[test]
    fn session_ids_are_in_the_order_of_their_texts_and_found_by_them() {
        let texts =
            ["", "\0", "a", "a\0", "a\0b", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "abcdefgi", "b", "é"];
        for one in texts {
            for other in texts {
                let ids = (SessionId::from(one), SessionId::from(other));
                assert_eq!(ids.0.cmp(&ids.1), one.cmp(other), "{one:?} and {other:?}");
                assert_eq!(ids.0 == ids.1, one == other);
            }
        }
        let ordered: BTreeSet<_> = texts.map(SessionId::from).into();
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        for text in texts {
            assert!(ordered.contains(text));
            assert_eq!(hasher.hash_one(SessionId::from(text)), hasher.hash_one(text));
        }
    }

    #[test]
    fn node_names_fold_by_the_rules_of_all_scripts() {
        for (name, folded) in [("web-1", "web-1"), ("Web-1", "web-1"), ("ÄB", "äb"), ("ä", "ä"), ("", "")]
        {
            assert_eq!(NodeName::from(name).folded(), NodeName::from(folded));
        }
    }
}
