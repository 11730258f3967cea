//! The rules of a policy, and their precedence.
//!
//! An exact rule precedes every prefix rule, and a longer prefix a shorter one, in whichever
//! policies they are. Rules for the same name are merged: `deny`, then `write`, `list`, `read`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A kind of object with rights of its own, in Consul's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// The access control lists, and backups, which contain their secrets.
    Acl,
    /// An agent's own data, by the name of its node.
    Agent,
    /// User events, by name.
    Event,
    /// Keys and their locks.
    Key,
    /// The gossip keys.
    Keyring,
    /// Nodes of the catalog.
    Node,
    /// The servers and the cluster's settings.
    Operator,
    /// Prepared queries, by name.
    Query,
    /// Services of the catalog.
    Service,
    /// Sessions, by the name of their node.
    Session,
}

impl Resource {
    /// All resources with their names in rules.
    pub const WORDS: [(&'static str, Self); 10] = [
        ("acl", Self::Acl),
        ("agent", Self::Agent),
        ("event", Self::Event),
        ("key", Self::Key),
        ("keyring", Self::Keyring),
        ("node", Self::Node),
        ("operator", Self::Operator),
        ("query", Self::Query),
        ("service", Self::Service),
        ("session", Self::Session),
    ];

    /// Returns the resource with this name in rules.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, resource)| resource)
    }

    /// Returns `true` if there is one object only, and rules for it have no label.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Acl | Self::Keyring | Self::Operator)
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, resource)| resource == self).map(|(word, _)| *word);
        f.write_str(word.unwrap_or_default())
    }
}

/// The level of a rule. Of two rules for the same name, the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Permits reads.
    Read,
    /// Permits reads, and lists of keys.
    List,
    /// Permits everything.
    Write,
    /// Permits nothing.
    Deny,
}

impl Level {
    /// All levels with their names in rules.
    pub const WORDS: [(&'static str, Self); 4] =
        [("read", Self::Read), ("list", Self::List), ("write", Self::Write), ("deny", Self::Deny)];

    /// Returns the level with this name in rules.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, level)| level)
    }

    /// Returns `true` if a rule of this level permits the access.
    pub fn permits(self, access: Access) -> bool {
        match self {
            Self::Deny => false,
            Self::Write => true,
            Self::List => access != Access::Write,
            Self::Read => access == Access::Read,
        }
    }
}

/// A kind of access to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Reads it.
    Read,
    /// Lists the keys below it.
    List,
    /// Changes it.
    Write,
}

impl Access {
    /// Returns the access with this name in a permission such as `key:write`.
    pub fn named(word: &str) -> Option<Self> {
        [Self::Read, Self::List, Self::Write].into_iter().find(|access| access.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A rule of a policy. In the order of the fields, so that the rules of a kind are adjacent and
/// ordered by label. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// The kind of object.
    pub resource: Resource,
    /// Set if the rule is for all names that begin with its label.
    pub is_prefix: bool,
    /// The name or prefix; empty for a single resource.
    pub label: String,
    /// The level.
    pub level: Level,
}

/// The rules of a policy, sorted, one for each name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Rule>")]
pub struct Rules(Vec<Rule>);

impl From<Vec<Rule>> for Rules {
    /// Sorts and merges rules.
    fn from(mut rules: Vec<Rule>) -> Self {
        rules.sort_unstable();
        // The greatest level of a name is the last of its rules.
        rules.dedup_by(|next, kept| {
            let is_same = (next.resource, next.is_prefix) == (kept.resource, kept.is_prefix)
                && next.label == kept.label;
            if is_same {
                kept.level = next.level;
            }
            is_same
        });
        Self(rules)
    }
}

impl Rules {
    /// Returns the rules, sorted.
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }

    fn of_kind(&self, resource: Resource, is_prefix: bool) -> &[Rule] {
        let kind = |rule: &Rule| (rule.resource, rule.is_prefix);
        let from = self.0.partition_point(|rule| kind(rule) < (resource, is_prefix));
        let to = self.0.partition_point(|rule| kind(rule) <= (resource, is_prefix));
        &self.0[from..to]
    }

    fn exact(&self, resource: Resource, name: &str) -> Option<Level> {
        level_of(self.of_kind(resource, false), name)
    }

    fn longest_prefix(&self, resource: Resource, name: &str) -> Option<&Rule> {
        let rules = self.of_kind(resource, true);
        let mut rest = name;
        loop {
            let count = rules.partition_point(|rule| rule.label.as_str() <= rest);
            let rule = rules[..count].last()?;
            if rest.starts_with(&rule.label) {
                return Some(rule);
            }
            // Every shorter prefix of the name is also one of what both begin with.
            rest = common_start(rest, &rule.label);
        }
    }
}

fn level_of(rules: &[Rule], label: &str) -> Option<Level> {
    let at = rules.binary_search_by(|rule| rule.label.as_str().cmp(label)).ok()?;
    Some(rules[at].level)
}

fn common_start<'a>(one: &'a str, other: &str) -> &'a str {
    let differs = one.char_indices().zip(other.chars()).find(|((_, one), other)| one != other);
    // Without a difference the other text is longer, or it would be a prefix.
    differs.map_or("", |((at, _), _)| &one[..at])
}

/// The level that the rules of several policies give for a name; `None` if no rule is for it.
pub fn level<'a>(
    policies: impl Iterator<Item = &'a Rules> + Clone,
    resource: Resource,
    name: &str,
) -> Option<Level> {
    let exact = policies.clone().filter_map(|rules| rules.exact(resource, name)).max();
    let longest = || {
        let prefixes = policies.filter_map(|rules| rules.longest_prefix(resource, name));
        prefixes.max_by_key(|rule| (rule.label.len(), rule.level)).map(|rule| rule.level)
    };
    exact.or_else(longest)
}

/// Returns `true` if the rules of several policies permit writes of everything below a prefix; of
/// names without a rule, if `default_allows`.
pub fn permits_write_below<'a>(
    policies: impl Iterator<Item = &'a Rules> + Clone,
    resource: Resource,
    prefix: &str,
    default_allows: bool,
) -> bool {
    let longest = policies.clone().filter_map(|rules| rules.longest_prefix(resource, prefix));
    let longest = longest.max_by_key(|rule| (rule.label.len(), rule.level));
    let is_permitted = longest.map_or(default_allows, |rule| rule.level == Level::Write);
    is_permitted
        && [false, true].into_iter().all(|is_prefix| {
            policies.clone().all(|rules| {
                let rules = rules.of_kind(resource, is_prefix);
                let from = rules.partition_point(|rule| rule.label.as_str() < prefix);
                let below = rules[from..].iter().take_while(|rule| rule.label.starts_with(prefix));
                below.map(|rule| &rule.label).all(|label| {
                    let levels = policies.clone();
                    let levels =
                        levels.filter_map(|rules| level_of(rules.of_kind(resource, is_prefix), label));
                    levels.max() == Some(Level::Write)
                })
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, bool, Level)]) -> Rules {
        let rule = |(label, is_prefix, level): &(&str, bool, Level)| Rule {
            resource: Resource::Key,
            is_prefix: *is_prefix,
            label: (*label).into(),
            level: *level,
        };
        rules.iter().map(rule).collect::<Vec<_>>().into()
    }

    fn key_level(policies: &[Rules], name: &str) -> Option<Level> {
        level(policies.iter(), Resource::Key, name)
    }

    #[test]
    fn exact_then_longest_prefix() {
        use Level::{Deny, Read, Write};
        let policies = [
            rules(&[("", true, Deny), ("a/b", true, Read), ("a/x", false, Read), ("a/bä", true, Write)]),
            rules(&[("a/", true, Write), ("a/x", true, Write), ("a/bz", true, Deny)]),
        ];
        for (name, expected) in [
            ("b", Deny),
            ("a/", Write),
            ("a/c", Write),
            ("a/b", Read),
            ("a/bb", Read),
            ("a/bää", Write),
            ("a/bö", Read),
            ("a/bz1", Deny),
            ("a/x", Read),
            ("a/xx", Write),
        ] {
            assert_eq!(key_level(&policies, name), Some(expected), "{name}");
        }
        assert_eq!(key_level(&policies[1..], "b"), None);
        assert_eq!(level(policies.iter(), Resource::Node, "a/"), None);
    }

    /// Contract: 139.
    #[test]
    fn equal_labels_merged() {
        use Level::{Deny, List, Read, Write};
        for (levels, merged) in
            [([Read, List], List), ([List, Write], Write), ([Deny, Write], Deny), ([Write, Read], Write)]
        {
            let [one, other] = levels.map(|level| rules(&[("a", true, level)]));
            assert_eq!(key_level(&[one, other], "ab"), Some(merged), "{levels:?}");
            let both = rules(&[("a", true, levels[0]), ("a", true, levels[1])]);
            assert_eq!(key_level(&[both], "ab"), Some(merged), "{levels:?} in one policy");
        }
    }

    /// Contract: 141.
    #[test]
    fn recursive_write_needs_everything_below() {
        use Level::{Deny, Read, Write};
        let below = |policies: &[Rules], prefix, default| {
            permits_write_below(policies.iter(), Resource::Key, prefix, default)
        };
        let policies = [rules(&[("a/", true, Write), ("a/secret", false, Deny), ("r/", true, Read)])];
        assert!(!below(&policies, "a/", false) && !below(&policies, "a/s", false));
        assert!(below(&policies, "a/y", false));
        assert!(
            !below(&policies, "", false) && !below(&policies, "", true) && !below(&policies, "r/x", true)
        );
        assert!(below(&policies, "z", true) && !below(&policies, "z", false));
        let more = [policies[0].clone(), rules(&[("a/secret", false, Write), ("a/r", true, Write)])];
        assert!(!below(&more, "a/", false), "deny precedes write");
        let merged = [rules(&[("a/", true, Write), ("a/r", true, Read)]), rules(&[("a/r", true, Write)])];
        assert!(below(&merged, "a/", false), "write precedes read");
    }
}
