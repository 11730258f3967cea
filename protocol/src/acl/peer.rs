//! Rights of the users of a host, as the kernel names them on the agent's Unix socket: no secret to
//! distribute. Binding rules of the auth method `unix-peer` select users and bind them to policies
//! and roles.

use super::SecretHash;
use crate::id::{LogIndex, NodeName};
use serde::{Deserialize, Serialize};

/// The type of the only supported auth method.
pub const UNIX_PEER: &str = "unix-peer";

/// The maximum number of auth methods, and of binding rules.
pub const AUTH_METHODS_MAX: usize = 64;
/// See [`AUTH_METHODS_MAX`].
pub const BINDING_RULES_MAX: usize = 1_024;

/// The maximum length of a user's or a group's name in bytes.
pub const PEER_NAME_BYTES_MAX: usize = 256;

/// The maximum number of groups of a user, and of steps of a selector.
pub const GROUPS_MAX: usize = 256;
/// See [`GROUPS_MAX`].
pub const SELECTOR_STEPS_MAX: usize = 256;

/// A user of a host. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixPeer {
    /// The user's number.
    pub uid: u32,
    /// The number of its primary group.
    pub gid: u32,
    /// Its name; empty if the host knows none.
    pub user: String,
    /// The name of its primary group; empty if the host knows none.
    pub group: String,
    /// The names and numbers of all its groups.
    pub groups: Vec<String>,
    /// The agent's default token, which counts if no rule binds the user.
    pub otherwise: Option<SecretHash>,
}

impl UnixPeer {
    /// Returns `true` if it is within the limits of a caller.
    pub fn is_within_limits(&self) -> bool {
        let names = self.groups.iter().chain([&self.user, &self.group]);
        self.groups.len() <= 2 * GROUPS_MAX
            && names.map(String::len).all(|length| length <= PEER_NAME_BYTES_MAX)
    }
}

/// A property of a user that selectors compare. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerField {
    /// The user's number.
    Uid,
    /// The number of its primary group.
    Gid,
    /// Its name.
    User,
    /// The name of its primary group.
    Group,
    /// All its groups, by name and by number.
    Groups,
    /// The node, from the agent's certificate.
    Node,
}

impl PeerField {
    /// All fields with their names in selectors.
    pub const WORDS: [(&'static str, Self); 6] = [
        ("uid", Self::Uid),
        ("gid", Self::Gid),
        ("user", Self::User),
        ("group", Self::Group),
        ("groups", Self::Groups),
        ("node", Self::Node),
    ];

    /// Returns the field with this name in selectors.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, field)| field)
    }
}

/// A step of a selector in postfix order, without nesting. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SelectorStep {
    /// `true` if the field has this value, or a list contains it.
    Has(PeerField, String),
    /// The negation of the last result.
    Not,
    /// The conjunction of the last two results.
    And,
    /// The disjunction of the last two results.
    Or,
}

/// Returns `true` if a selector matches a user on a node. An empty one matches all users; a
/// malformed one matches none.
pub fn matches(selector: &[SelectorStep], peer: &UnixPeer, node: &NodeName) -> bool {
    let has = |field: PeerField, value: &str| match field {
        PeerField::Uid => value.parse() == Ok(peer.uid),
        PeerField::Gid => value.parse() == Ok(peer.gid),
        PeerField::User => !peer.user.is_empty() && peer.user == value,
        PeerField::Group => !peer.group.is_empty() && peer.group == value,
        PeerField::Groups => peer.groups.iter().any(|group| group == value),
        PeerField::Node => node.folded() == NodeName::from(value).folded(),
    };
    let mut results: Vec<bool> = Vec::new();
    for step in selector {
        let result = match step {
            SelectorStep::Has(field, value) => Some(has(*field, value)),
            SelectorStep::Not => results.pop().map(|last| !last),
            SelectorStep::And | SelectorStep::Or => {
                let both = results.pop().zip(results.pop());
                both.map(|(one, other)| if *step == SelectorStep::And { one && other } else { one || other })
            }
        };
        let Some(result) = result else { return false };
        results.push(result);
    }
    selector.is_empty() || results == [true]
}

/// Returns `true` if a selector matches users of one node only: a condition on the node, itself not
/// negated, in a selector without alternatives.
pub fn names_node(selector: &[SelectorStep]) -> bool {
    let is_negated = |at: usize| selector.get(at + 1) == Some(&SelectorStep::Not);
    let mut steps = selector.iter().enumerate();
    let has_alternatives = selector.contains(&SelectorStep::Or)
        || selector.windows(2).any(|steps| steps == [SelectorStep::And, SelectorStep::Not]);
    !has_alternatives
        && steps.any(|(at, step)| matches!(step, SelectorStep::Has(PeerField::Node, _)) && !is_negated(at))
}

/// Replaces the variables `${user}`, `${uid}` and `${node}` in a name. `None` if it has the name of
/// a user that the host does not know: an empty name would widen a prefix.
pub fn filled_in(text: &str, peer: &UnixPeer, node: &NodeName) -> Option<String> {
    if !text.contains("${") {
        return Some(text.into());
    }
    if peer.user.is_empty() && text.contains("${user}") {
        return None;
    }
    let text = text.replace("${uid}", &peer.uid.to_string()).replace("${node}", node.as_str());
    // Last, and by value: a user's name is not searched for variables.
    Some(text.replace("${user}", &peer.user))
}

/// An auth method. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthMethod {
    /// Its name, unique.
    pub name: String,
    /// Its type: [`UNIX_PEER`].
    pub kind: String,
    /// A text for people.
    pub description: String,
    /// The index of its creation.
    pub create_index: LogIndex,
    /// The index of its last change.
    pub modify_index: LogIndex,
}

/// The object to which a rule binds users. Stored: only appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BindType {
    /// A policy.
    Policy,
    /// A role.
    Role,
}

/// A binding rule. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRule {
    /// Its content.
    pub spec: NewBindingRule,
    /// The index of its creation.
    pub create_index: LogIndex,
    /// The index of its last change.
    pub modify_index: LogIndex,
}

/// The content of a binding rule. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewBindingRule {
    /// Its id.
    pub id: String,
    /// A text for people.
    pub description: String,
    /// The name of its auth method.
    pub method: String,
    /// The selector as written.
    pub selector: String,
    /// The same, parsed by the agent.
    pub steps: Vec<SelectorStep>,
    /// The kind of object.
    pub bind_type: BindType,
    /// The name of the object; may have variables.
    pub bind_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> UnixPeer {
        UnixPeer {
            uid: 1001,
            gid: 100,
            user: "deploy".into(),
            group: String::new(),
            groups: vec!["wheel".into(), "100".into()],
            otherwise: None,
        }
    }

    #[test]
    fn selector_steps_evaluated_in_postfix_order() {
        use PeerField::{Gid, Group, Groups, Node, Uid, User};
        use SelectorStep::{And, Not, Or};
        let has = |field, value: &str| SelectorStep::Has(field, value.into());
        for (steps, expected) in [
            (vec![], true),
            (vec![has(Uid, "1001")], true),
            (vec![has(Uid, "deploy")], false),
            (vec![has(User, "deploy"), has(Node, "WEB-1"), And], true),
            (vec![has(User, "root"), has(Gid, "100"), Or], true),
            (vec![has(Groups, "wheel"), Not], false),
            (vec![has(Group, "")], false),
            (vec![And], false),
            (vec![Not], false),
            (vec![has(Uid, "1001"), has(Uid, "1001")], false),
        ] {
            assert_eq!(matches(&steps, &peer(), &"web-1".into()), expected, "{steps:?}");
        }
    }

    #[test]
    fn variables_filled_in_once() {
        let tricky = UnixPeer { user: "${node}".into(), ..peer() };
        let filled = |text, peer: &UnixPeer| filled_in(text, peer, &"n1".into());
        assert_eq!(filled("jobs-${user}-${uid}-${node}", &peer()).as_deref(), Some("jobs-deploy-1001-n1"));
        assert_eq!(filled("${user}", &tricky).as_deref(), Some("${node}"));
        let unknown = UnixPeer { user: String::new(), ..peer() };
        assert_eq!(
            (filled("a/${user}", &unknown), filled("a/${uid}", &unknown)),
            (None, Some("a/1001".into()))
        );
    }

    #[test]
    fn only_one_nodes_selector_names_it() {
        use SelectorStep::{And, Not, Or};
        let (node, uid) =
            (SelectorStep::Has(PeerField::Node, "n1".into()), SelectorStep::Has(PeerField::Uid, "0".into()));
        assert!(
            names_node(std::slice::from_ref(&node)) && names_node(&[uid.clone(), Not, node.clone(), And])
        );
        for steps in [
            vec![],
            vec![uid.clone()],
            vec![node.clone(), Not],
            vec![uid.clone(), node.clone(), Or],
            vec![uid, node, And, Not],
        ] {
            assert!(!names_node(&steps), "{steps:?}");
        }
    }
}
