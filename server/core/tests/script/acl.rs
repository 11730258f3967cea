//! Access control lists in the script language: commands, callers, and rows. The ids of a token, a
//! policy or a role consist of its name; the secret of the token `t1` is that of `t1s`.

use super::words::Words;
use crate::names::session;
use lockmesh_core::state::visible;
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::acl::{
    AclCommand, AclMode, AclSettings, Caller, DefaultPolicy, Level, Links, NewPolicy, NewRole, NewToken,
    NodeIdentity, Policy, Resource, Role, Rule, SecretHash, ServiceIdentity, Token,
};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, WallTime};
use lockmesh_protocol::query::{Query, Rows};

/// Parses a line as a command; `None` if its first word is none of them.
pub(crate) fn command(verb: &str, words: &mut Words) -> Result<Option<AclCommand>, String> {
    Ok(Some(match verb {
        "acl" => AclCommand::Configure(settings(words)?),
        "bootstrap-acl" => {
            let reset = words.number_option("reset")?.map(LogIndex);
            AclCommand::Bootstrap(Box::new(token(words)?), reset)
        }
        "token" => AclCommand::CreateToken(Box::new(token(words)?)),
        "update-token" => {
            let is_same = words.option("secret").is_none();
            let token = token(words)?;
            let secret = if is_same { String::new() } else { id("another") };
            AclCommand::UpdateToken(Box::new(NewToken { secret, ..token }))
        }
        "delete-token" => AclCommand::DeleteToken(id_or_text(&words.word()?)),
        "policy" => AclCommand::CreatePolicy(Box::new(policy(words)?)),
        "update-policy" => AclCommand::UpdatePolicy(Box::new(policy(words)?)),
        "delete-policy" => AclCommand::DeletePolicy(id_or_text(&words.word()?)),
        "role" => AclCommand::CreateRole(Box::new(role(words)?)),
        "update-role" => AclCommand::UpdateRole(Box::new(role(words)?)),
        "delete-role" => AclCommand::DeleteRole(id(&words.word()?)),
        "expire-tokens" => AclCommand::ExpireTokens(WallTime(words.number()?)),
        _ => return Ok(None),
    }))
}

/// Returns the caller with a name: `anonymous`, or that of a token.
pub(crate) fn caller(name: &str) -> Caller {
    match name {
        "anonymous" => Caller::Anonymous,
        name => Caller::Token(SecretHash::of(&secret(name))),
    }
}

/// Answers a query of a caller on a node, as a server would.
pub(crate) fn answer(
    state: &State,
    (caller, node): (&Caller, &str),
    now: WallTime,
    query: &Query,
) -> Result<(Rows, bool), String> {
    let rights = state.acl().rights(caller, &node.into(), now).map_err(|why| why.to_string())?;
    state.check_query(&rights, query).map_err(|why| why.to_string())?;
    if let Some(rows) = state.own_rows(caller, Some(&rights), query) {
        return Ok((rows, false));
    }
    match query {
        Query::Txn(ops) => Ok((Rows::Txn(state.read_txn_as(&rights, ops)), false)),
        query => Ok(visible(state, &rights, state.query(query).1)),
    }
}

/// Returns the proposal of a command by a caller.
pub(crate) fn by(caller: Caller, proposal: Proposal) -> Proposal {
    Proposal { caller, ..proposal }
}

fn id(name: &str) -> String {
    session(name).to_string()
}

/// The id of a name; a text with a dash is one already.
fn id_or_text(name: &str) -> String {
    if name.contains('-') { name.into() } else { id(name) }
}

fn secret(name: &str) -> String {
    id(&format!("{}s", name.get(..8).unwrap_or(name)))
}

fn settings(words: &mut Words) -> Result<AclSettings, String> {
    let mode = match words.word()?.as_str() {
        "off" => AclMode::Off,
        "log" => AclMode::Log,
        "enforce" => AclMode::Enforce,
        other => return Err(format!("what is the mode {other:?}?")),
    };
    let is_deny = words.option("default").is_some_and(|word| word == "deny");
    Ok(AclSettings {
        mode,
        default_policy: if is_deny { DefaultPolicy::Deny } else { DefaultPolicy::Allow },
        key_list_policy: words.option("list-policy").is_some(),
        session_ownership: words.option("ownership").is_some(),
        datacenter: "dc1".into(),
        bootstrap_index: LogIndex(0),
    })
}

fn token(words: &mut Words) -> Result<NewToken, String> {
    let name = words.word()?;
    let secret = words.option("like").map_or_else(|| secret(&name), |other| secret(&other));
    Ok(NewToken {
        accessor: id_or_text(&name),
        secret,
        description: String::new(),
        expires_at: words.number_option("until")?.map(WallTime),
        is_local: words.option("local").is_some(),
        links: links(words),
    })
}

fn links(words: &mut Words) -> Links {
    let mut list = |name| words.list_option(name).unwrap_or_default();
    let service = |service| ServiceIdentity { service, datacenters: Vec::new() };
    let node = |node| NodeIdentity { node, datacenter: "dc1".into() };
    Links {
        policies: list("policies"),
        roles: list("roles"),
        service_identities: list("services").into_iter().map(service).collect(),
        node_identities: list("nodes").into_iter().map(node).collect(),
        templated_policies: Vec::new(),
    }
}

/// A policy with rules such as `key_prefix:a/:write,operator:read`.
fn policy(words: &mut Words) -> Result<NewPolicy, String> {
    let name = words.word()?;
    let text = words.word_or_empty();
    let rules = text.split(',').filter(|rule| !rule.is_empty()).map(rule).collect::<Result<Vec<_>, _>>()?;
    let id = words.option("id").map_or_else(|| id(&name), |id| id);
    let datacenters = words.list_option("in").unwrap_or_default();
    Ok(NewPolicy { id, name, description: String::new(), text, rules: rules.into(), datacenters })
}

fn rule(text: &str) -> Result<Rule, String> {
    let wrong = || format!("what is the rule {text:?}?");
    let (word, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (label, level) = rest.rsplit_once(':').unwrap_or(("", rest));
    let (word, is_prefix) = word.strip_suffix("_prefix").map_or((word, false), |word| (word, true));
    let resource = Resource::named(word).ok_or_else(wrong)?;
    Ok(Rule { resource, is_prefix, label: label.into(), level: Level::named(level).ok_or_else(wrong)? })
}

fn role(words: &mut Words) -> Result<NewRole, String> {
    let name = words.word()?;
    Ok(NewRole { id: id(&name), name, description: String::new(), links: links(words) })
}

/// A row, without its indexes.
pub(crate) fn row(change: &Change) -> String {
    match change {
        Change::AclSettings(settings) => show_settings(settings),
        Change::Token(id, None) => format!("token {id} is gone"),
        Change::Token(_, Some(row)) => show_token(row),
        Change::Policy(id, None) => format!("policy {id} is gone"),
        Change::Policy(_, Some(row)) => show_policy(row),
        Change::Role(id, None) => format!("role {id} is gone"),
        Change::Role(_, Some(row)) => show_role(row),
        other => unreachable!("{other:?} is shown elsewhere"),
    }
}

/// The rows of an answer about access control lists.
pub(crate) fn rows(rows: &Rows) -> Vec<String> {
    match rows {
        Rows::AclSettings(settings) => vec![show_settings(settings)],
        Rows::Rights(None) => vec!["all rights".into()],
        Rows::Rights(Some(rights)) => {
            vec![format!("{:?} with {} policies", rights.who, rights.policies.len())]
        }
        Rows::Tokens(rows) => rows.iter().map(|(row, _)| show_token(row)).collect(),
        Rows::Policies(rows) => rows.iter().map(|row| show_policy(row)).collect(),
        Rows::Roles(rows) => rows.iter().map(|(row, _)| show_role(row)).collect(),
        other => unreachable!("{other:?} are shown elsewhere"),
    }
}

fn show_settings(settings: &AclSettings) -> String {
    let AclSettings { mode, default_policy, key_list_policy, session_ownership, bootstrap_index, .. } =
        settings;
    let mut text = format!("acl {mode:?}, default {default_policy:?}, bootstrap at {bootstrap_index}");
    if *key_list_policy {
        text += ", list policy";
    }
    if *session_ownership {
        text += ", session ownership";
    }
    text
}

pub(crate) fn show_token(row: &Token) -> String {
    let secret = if row.secret.is_empty() { "hidden" } else { &row.secret };
    let until = row.expires_at.map_or(String::new(), |end| format!(" until {}", end.0));
    format!("token {}, secret {secret}{until}{}", row.accessor, show_links(&row.links))
}

pub(crate) fn show_policy(row: &Policy) -> String {
    let datacenters =
        if row.datacenters.is_empty() { String::new() } else { format!(" in {}", row.datacenters.join(" ")) };
    format!("policy {} {}{datacenters}: {} rules", row.id, row.name, row.rules.as_slice().len())
}

pub(crate) fn show_role(row: &Role) -> String {
    format!("role {} {}{}", row.id, row.name, show_links(&row.links))
}

fn show_links(links: &Links) -> String {
    let services = links.service_identities.iter().map(|identity| format!("service {}", identity.service));
    let nodes = links.node_identities.iter().map(|identity| format!("node {}", identity.node));
    let policies = links.policies.iter().map(|id| format!("policy {id}"));
    let roles = links.roles.iter().map(|id| format!("role {id}"));
    policies.chain(roles).chain(services).chain(nodes).map(|link| format!(", {link}")).collect()
}
