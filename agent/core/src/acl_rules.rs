//! Parsing of ACL rules: Consul's language, in HCL 1 or JSON.
//!
//! ```hcl
//! key_prefix "jobs/" { policy = "write" }
//! key "jobs/secret"  { policy = "deny" }
//! operator = "read"
//! ```
//!
//! Consul ignores unknown words. Here they are errors, because a rule with a mistyped word may be
//! one that denies. Words of Consul's other features are accepted and mean nothing.

use crate::hcl::{self, Format, Members, Node, SyntaxError, Value};
use lockmesh_protocol::acl::record::RULES_BYTES_MAX;
use lockmesh_protocol::acl::{Level, Resource, Rule, Rules};

/// Words of Consul's rules, also with `_prefix`, for features that Lockmesh does not have.
const IGNORED: [&str; 6] = ["intentions", "mesh", "namespace", "partition", "peering", "sentinel"];

/// The reason why rules are rejected. The texts begin as Consul's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The text is too long.
    #[error("Failed to parse ACL rules: longer than {RULES_BYTES_MAX} bytes; use several policies")]
    Large,
    /// The text is neither HCL nor JSON.
    #[error("Failed to parse ACL rules: {0}")]
    Syntax(#[from] SyntaxError),
    /// The text has other words than rules.
    #[error("Failed to parse ACL rules: line {line}: {problem}")]
    Structure {
        /// The line, from 1.
        line: usize,
        /// The defect and its remedy.
        problem: String,
    },
    /// A rule has no level, or one that its resource does not have.
    #[error("Invalid {word} policy: {found} on line {line}; use {}", levels(word))]
    Level {
        /// The word of the rule.
        word: String,
        /// The level and the label.
        found: String,
        /// The line, from 1.
        line: usize,
    },
}

/// Parses the rules of a policy. An empty text has none.
///
/// # Errors
/// The text is too long, or the first rule that is invalid.
pub fn parse(text: &str) -> Result<Rules, RulesError> {
    if text.len() > RULES_BYTES_MAX {
        return Err(RulesError::Large);
    }
    let mut rules = Vec::new();
    // An empty text is no JSON, and HCL without members.
    for (word, node) in &hcl::parse(text, Format::Hcl)? {
        let (name, is_prefix) = word.strip_suffix("_prefix").map_or((&**word, false), |name| (name, true));
        match Resource::named(name) {
            Some(resource) if !resource.is_single() => labelled(word, node, resource, is_prefix, &mut rules)?,
            Some(resource) if !is_prefix => {
                let level = single(word, node)?;
                let rule = |level| Rule { resource, is_prefix, label: String::new(), level };
                rules.extend(level.map(rule));
            }
            _ if IGNORED.contains(&name) => check_ignored(word, node)?,
            _ => return Err(unknown(word, node.line)),
        }
    }
    Ok(rules.into())
}

/// Adds the rules of one word: `word "label" { policy = "level" }`, any number of times.
fn labelled(
    word: &str,
    node: &Node,
    resource: Resource,
    is_prefix: bool,
    rules: &mut Vec<Rule>,
) -> Result<(), RulesError> {
    let shape = || format!("expected `{word} \"name\" {{ policy = \"read\" }}`");
    for (label, node) in sections(node, &shape)?.into_iter().flatten() {
        for block in sections(node, &shape)? {
            let own = match block.get("policy") {
                Some(policy) => level(word, policy, label)?,
                None => return Err(bad_level(word, format!("none for {label:?}"), node.line)),
            };
            for (key, node) in block {
                match key.as_str() {
                    "policy" | "sentinel" => {}
                    // Intentions are part of the service mesh.
                    "intentions" if resource == Resource::Service => {
                        level(&format!("{word} intentions"), node, label)?;
                    }
                    _ => {
                        let problem = format!("unknown word {key:?} in {word} {label:?}; remove it");
                        return Err(RulesError::Structure { line: node.line, problem });
                    }
                }
            }
            rules.push(Rule { resource, is_prefix, label: label.clone(), level: own });
        }
    }
    Ok(())
}

/// The level of `word = "level"`. As in Consul, an empty one is no rule.
fn single(word: &str, node: &Node) -> Result<Option<Level>, RulesError> {
    match &node.value {
        Value::Null => Ok(None),
        Value::Text(text) if text.is_empty() => Ok(None),
        Value::Text(_) => level(word, node, "").map(Some),
        _ => {
            let problem = format!("expected `{word} = \"read\"`");
            Err(RulesError::Structure { line: node.line, problem })
        }
    }
}

/// Checks the levels of a word that means nothing, in any of the forms that Consul has.
fn check_ignored(word: &str, node: &Node) -> Result<(), RulesError> {
    match &node.value {
        Value::Text(_) => single(word, node).map(|_| ()),
        Value::List(list) => list.iter().try_for_each(|node| check_ignored(word, node)),
        Value::Section(members) => members.iter().try_for_each(|(key, node)| match key.as_str() {
            "policy" => level(word, node, "").map(|_| ()),
            // The text of a program or its place, and not a level.
            _ if matches!(node.value, Value::Text(_)) => Ok(()),
            _ => check_ignored(word, node),
        }),
        _ => Ok(()),
    }
}

/// The sections of a value.
fn sections<'n>(node: &'n Node, shape: &dyn Fn() -> String) -> Result<Vec<&'n Members>, RulesError> {
    let nodes = match &node.value {
        Value::List(list) => list.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let section = |node: &'n Node| match &node.value {
        Value::Section(members) => Ok(members),
        _ => Err(RulesError::Structure { line: node.line, problem: shape() }),
    };
    nodes.iter().map(section).collect()
}

fn level(word: &str, node: &Node, label: &str) -> Result<Level, RulesError> {
    let Value::Text(text) = &node.value else {
        return Err(bad_level(word, format!("no text for {label:?}"), node.line));
    };
    let has_it = |level: &Level| *level != Level::List || has_lists(word);
    Level::named(text).filter(has_it).ok_or_else(|| {
        let of = if label.is_empty() { String::new() } else { format!(" for {label:?}") };
        bad_level(word, format!("{text:?}{of}"), node.line)
    })
}

fn has_lists(word: &str) -> bool {
    matches!(word, "key" | "key_prefix")
}

fn levels(word: &str) -> &'static str {
    if has_lists(word) { "read, list, write or deny" } else { "read, write or deny" }
}

fn bad_level(word: &str, found: String, line: usize) -> RulesError {
    RulesError::Level { word: word.into(), found, line }
}

fn unknown(word: &str, line: usize) -> RulesError {
    let words: Vec<_> = Resource::WORDS.iter().map(|(word, _)| *word).collect();
    let problem = format!("unknown resource {word:?}; use {}, or a form with _prefix", words.join(", "));
    RulesError::Structure { line, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::acl::rules::Access;
    use lockmesh_protocol::acl::{DefaultPolicy, Rights, Who};
    use std::sync::Arc;

    /// The rules in one form, `key_prefix a/ write` and so on.
    fn shown(text: &str) -> String {
        let rules = match parse(text) {
            Ok(rules) => rules,
            Err(error) => return error.to_string(),
        };
        let show = |rule: &Rule| {
            let level =
                Level::WORDS.into_iter().find(|(_, level)| *level == rule.level).map(|(word, _)| word);
            let form = if rule.is_prefix { "_prefix" } else { "" };
            format!("{}{form} {:?} {}", rule.resource, rule.label, level.unwrap_or_default())
        };
        rules.as_slice().iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// Contract: 143, 144.
    #[test]
    fn rules_parsed_in_all_forms() {
        let prefix = "key_prefix \"a/\" write";
        for (text, expected) in [
            ("", ""),
            (" # nothing\n", ""),
            ("{}", ""),
            ("key_prefix \"a/\" { policy = \"write\" }", prefix),
            ("key_prefix \"a/\" = { policy = \"write\" } // c", prefix),
            ("key_prefix = { \"a/\" = { policy = \"write\", } }", prefix),
            (
                "\"key_prefix\" \"a/\" {\n \"policy\" = <<E\nwrite\nE\n}",
                "Invalid key_prefix policy: \"write\\n\" for \"a/\" on line 2; use read, list, write or deny",
            ),
            ("{\"key_prefix\": {\"a/\": {\"policy\": \"write\"}}}", prefix),
            ("{\"key_prefix\": [{\"a/\": [{\"policy\": \"write\"}]}], \"acl\": null}", prefix),
            ("key \"\\u0061 \\\"\\t\" { policy = \"list\" }", "key \"a \\\"\\t\" list"),
            ("session \"${node}\" { policy = \"write\" }", "session \"${node}\" write"),
            ("key \"a\" { policy = \"read\" } key \"a\" { policy = \"deny\" }", "key \"a\" deny"),
            (
                "operator = \"write\"\nacl = \"\", keyring = \"deny\"",
                "keyring \"\" deny, operator \"\" write",
            ),
            ("service \"w\" { policy = \"write\" intentions = \"read\" }", "service \"w\" write"),
            ("event_prefix \"\" { policy = \"read\" sentinel { code = \"x\" } }", "event_prefix \"\" read"),
            ("mesh = \"read\" peering = \"deny\" intentions \"w\" { policy = \"read\" }", ""),
            ("namespace_prefix \"x\" { policy = \"read\" key \"a\" { policy = \"read\" } }", ""),
            ("partition \"x\" { } sentinel { code = \"bogus\" }", ""),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    /// Contract: 143, 144.
    #[test]
    fn invalid_rules_rejected_like_consul() {
        for (text, expected) in [
            (
                "key \"a\" { policy = \"bogus\" }",
                "Invalid key policy: \"bogus\" for \"a\" on line 1; use read, list, write or deny",
            ),
            (
                "\nnode_prefix \"\" { policy = \"list\" }",
                "Invalid node_prefix policy: \"list\" on line 2; use read, write or deny",
            ),
            ("session \"n\" { }", "Invalid session policy: none for \"n\" on line 1"),
            (
                "service \"w\" { policy = \"read\" intentions = \"x\" }",
                "Invalid service intentions policy: \"x\"",
            ),
            ("operator = \"list\"", "Invalid operator policy: \"list\" on line 1"),
            ("acl = \"Write\"", "Invalid acl policy: \"Write\""),
            ("mesh = \"x\"", "Invalid mesh policy: \"x\""),
            ("intentions \"w\" { policy = \"list\" }", "Invalid intentions policy: \"list\""),
            ("query \"q\" { policy = 1 }", "Invalid query policy: no text for \"q\""),
            (
                "sessions \"x\" { policy = \"deny\" }",
                "Failed to parse ACL rules: line 1: unknown resource \"sessions\"; use acl, ",
            ),
            (
                "operator_prefix = \"read\"",
                "Failed to parse ACL rules: line 1: unknown resource \"operator_prefix\"",
            ),
            (
                "key \"a\" { policy = \"read\" deny = true }",
                "Failed to parse ACL rules: line 1: unknown word \"deny\" in key \"a\"",
            ),
            ("key = \"read\"", "Failed to parse ACL rules: line 1: expected `key \"name\" { policy"),
            ("key { policy = \"read\" }", "Failed to parse ACL rules: line 1: expected `key \"name\""),
            (
                "operator \"x\" { policy = \"read\" }",
                "Failed to parse ACL rules: line 1: expected `operator = ",
            ),
            (
                "key \"a\" {\n policy = \"read\"",
                "Failed to parse ACL rules: line 2: expected \"}\", found the end",
            ),
            (
                "{\"key\": {\"a\": {\"policy\": \"deny\"}}, \"key\": null}",
                "Failed to parse ACL rules: line 1: expected `key",
            ),
            ("{\"key\": {\"a\": \"read\"}}", "Failed to parse ACL rules: line 1: expected `key"),
        ] {
            assert!(shown(text).starts_with(expected), "{text}: {}", shown(text));
        }
    }

    /// Contract: 139.
    #[test]
    fn parsed_rules_decide_as_written() {
        let own = "key_prefix \"a/\" { policy = \"write\" }\nkey \"a/secret\" { policy = \"deny\" }\n\
                   key_prefix \"r/\" { policy = \"read\" }\nsession \"n1\" { policy = \"write\" }";
        let rights = |texts: &[&str]| Rights {
            who: Who::Anonymous,
            policies: texts.iter().map(|text| Arc::new(parse(text).expect("it is good"))).collect(),
            default_policy: DefaultPolicy::Deny,
            key_list_policy: false,
        };
        let may = |rights: &Rights, access, name| rights.permit(Resource::Key, access, name);
        let token = rights(&[own]);
        assert!(may(&token, Access::Write, "a/x") && may(&token, Access::Read, "r/1"));
        assert!(!may(&token, Access::Read, "a/secret") && !may(&token, Access::Read, "z"));
        assert!(!may(&token, Access::Write, "r/1") && token.permit(Resource::Session, Access::Write, "n1"));
        assert!(!token.permit(Resource::Session, Access::Write, "n2"));
        let merged = rights(&[
            "key_prefix \"\" { policy = \"deny\" }",
            "{\"key_prefix\": {\"a/\": {\"policy\": \"write\"}}, \"key\": {\"a/x\": {\"policy\": \"read\"}}}",
        ]);
        assert!(may(&merged, Access::Write, "a/xx") && may(&merged, Access::Read, "a/x"));
        assert!(!may(&merged, Access::Write, "a/x") && !may(&merged, Access::Read, "b"));
    }

    #[test]
    fn hostile_rules_rejected_without_panic() {
        let long = |text: &str| text.repeat(RULES_BYTES_MAX / text.len());
        for text in [
            long("{"),
            long("[{"),
            long("key \"a\" {"),
            long("key \"a\" "),
            long("{\"key\":"),
            long("\u{0}"),
            "key \u{0} { }".into(),
            "key \"a\" { policy = <<E\nread".into(),
            "key \"a".into(),
            "key \"\\u12".into(),
            "/*".into(),
        ] {
            assert!(shown(&text).starts_with("Failed to parse ACL rules: line "), "{text:.20}");
        }
        let large = " ".repeat(RULES_BYTES_MAX + 1);
        assert_eq!(parse(&large), Err(RulesError::Large));
        assert_eq!(shown(&large[1..]), "");
        let rule = "key \"a\" { policy = \"read\" }\n";
        assert_eq!(shown(&long(rule)), "key \"a\" read");
    }
}
