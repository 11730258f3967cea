//! Access control lists in the script language: commands, callers, and rows. The ids of a token, a
//! policy or a role consist of its name; the secret of the token `t1` is that of `t1s`.

use super::words::Words;
use crate::names::session;
use lockmesh_core::state::{check_query, own_rows, read_txn_as, visible};
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::acl::peer::{PeerField, SelectorStep};
use lockmesh_protocol::acl::{
    AclChange, AclCommand, AclMode, AclSettings, AuthMethod, BindType, BindingRule, Caller, DefaultPolicy,
    Level, Links, NewBindingRule, NewPolicy, NewRole, NewToken, NodeIdentity, Policy, Resource, Role, Rule,
    SecretHash, ServiceIdentity, Token, UnixPeer,
};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, WallTime};
use lockmesh_protocol::query::{Query, Rows};
use std::sync::Arc;

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
        "auth-method" => AclCommand::SetAuthMethod(words.word()?, String::new()),
        "delete-auth-method" => AclCommand::DeleteAuthMethod(words.word()?),
        "bind" => AclCommand::CreateBindingRule(Box::new(binding(words)?)),
        "update-bind" => AclCommand::UpdateBindingRule(Box::new(binding(words)?)),
        "delete-bind" => AclCommand::DeleteBindingRule(id(&words.word()?)),
        "expire-tokens" => AclCommand::ExpireTokens(WallTime(words.number()?)),
        _ => return Ok(None),
    }))
}

/// Returns the caller with a name: `anonymous`, or that of a token.
pub(crate) fn caller(name: &str) -> Caller {
    match name {
        "anonymous" => Caller::Anonymous,
        name if let Some(peer) = peer(name) => Caller::Peer(Arc::new(peer)),
        name => Caller::Token(SecretHash::of(&secret(name))),
    }
}

/// A user such as `deploy/1001/wheel`: its name, its number and its groups; behind a `?` the
/// default token.
fn peer(text: &str) -> Option<UnixPeer> {
    let (text, otherwise) = text.split_once('?').map_or((text, None), |(text, token)| (text, Some(token)));
    let mut parts = text.split('/');
    let (user, uid) = (parts.next()?, parts.next()?.parse().ok()?);
    Some(UnixPeer {
        uid,
        gid: uid,
        user: user.into(),
        group: user.into(),
        groups: parts.map(str::to_owned).collect(),
        otherwise: otherwise.map(|token| SecretHash::of(&secret(token))),
    })
}

/// A binding rule such as `b1 peers policy jobs user:deploy node:n1`: all conditions hold, those
/// behind a `!` do not.
fn binding(words: &mut Words) -> Result<NewBindingRule, String> {
    let (name, method) = (words.word()?, words.word()?);
    let bind_type = if words.word()? == "role" { BindType::Role } else { BindType::Policy };
    let bind_name = words.word()?;
    let (mut selector, mut steps) = (String::new(), Vec::new());
    loop {
        let text = words.word_or_empty();
        let condition = text.strip_prefix('!').unwrap_or(&text);
        let Some((field, value)) = condition.split_once(':') else { break };
        let is_first = steps.is_empty();
        steps.push(SelectorStep::Has(PeerField::named(field).ok_or("what field?")?, value.into()));
        steps.extend(text.starts_with('!').then_some(SelectorStep::Not));
        steps.extend((!is_first).then_some(SelectorStep::And));
        selector += &text;
    }
    let description = String::new();
    Ok(NewBindingRule { id: id(&name), description, method, selector, steps, bind_type, bind_name })
}

/// Answers a query of a caller on a node, as a server would.
pub(crate) fn answer(
    state: &State,
    (caller, node): (&Caller, &str),
    now: WallTime,
    query: &Query,
) -> Result<(Rows, bool), String> {
    let rights = state.acl().rights(caller, &node.into(), now).map_err(|why| why.to_string())?;
    check_query(&rights, query).map_err(|why| why.to_string())?;
    if let Some(rows) = own_rows(state, caller, Some(&rights), query) {
        return Ok((rows, false));
    }
    match query {
        Query::Txn(ops) => {
            let (results, is_filtered) = read_txn_as(state, &rights, ops);
            Ok((Rows::Txn(results), is_filtered))
        }
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

fn settings(words: &mut Words) -> Result<AclChange, String> {
    let mode = match words.word()?.as_str() {
        "off" => AclMode::Off,
        "log" => AclMode::Log,
        "enforce" => AclMode::Enforce,
        other => return Err(format!("what is the mode {other:?}?")),
    };
    let is_deny = words.option("default").is_some_and(|word| word == "deny");
    Ok(AclChange {
        mode: Some(mode),
        default_policy: is_deny.then_some(DefaultPolicy::Deny),
        key_list_policy: words.option("list-policy").map(|word| word == "yes"),
        session_ownership: words.option("ownership").map(|word| word == "yes"),
        peer_management: words.option("peer-management").map(|word| word == "yes"),
        datacenter: "dc1".into(),
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
    let id = words.option("id").unwrap_or_else(|| id(&name));
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
        Change::AuthMethod(name, None) => format!("auth method {name} is gone"),
        Change::AuthMethod(_, Some(row)) => show_method(row),
        Change::BindingRule(id, None) => format!("binding rule {id} is gone"),
        Change::BindingRule(_, Some(row)) => show_binding(row),
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
        Rows::AuthMethods(rows) => rows.iter().map(|row| show_method(row)).collect(),
        Rows::BindingRules(rows) => rows.iter().map(|row| show_binding(row)).collect(),
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

pub(crate) fn show_method(row: &AuthMethod) -> String {
    format!("auth method {} of type {}", row.name, row.kind)
}

pub(crate) fn show_binding(row: &BindingRule) -> String {
    let NewBindingRule { id, method, selector, bind_type, bind_name, .. } = &row.spec;
    format!("binding rule {id} of {method}: {selector:?} to {bind_type:?} {bind_name}")
}

fn show_links(links: &Links) -> String {
    let services = links.service_identities.iter().map(|identity| format!("service {}", identity.service));
    let nodes = links.node_identities.iter().map(|identity| format!("node {}", identity.node));
    let policies = links.policies.iter().map(|id| format!("policy {id}"));
    let roles = links.roles.iter().map(|id| format!("role {id}"));
    policies.chain(roles).chain(services).chain(nodes).map(|link| format!(", {link}")).collect()
}
