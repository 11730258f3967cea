//! Changes of the access control lists. The texts of refusals are Consul's.

use super::super::step::Step;
use super::{Acl, bind};
use lockmesh_protocol::acl::record::{
    ANONYMOUS, ANONYMOUS_SECRET, GLOBAL_MANAGEMENT, GLOBAL_READ_ONLY, LINKS_MAX, POLICIES_MAX,
    RESERVED_PREFIX, ROLES_MAX, RULES_BYTES_MAX, RULES_MAX, TEXT_BYTES_MAX, TOKENS_MAX, management_rules,
    read_only_rules,
};
use lockmesh_protocol::acl::{
    AclChange, AclCommand, AclMode, AclSettings, Caller, Links, NewPolicy, NewRole, NewToken, Policy, Role,
    Rules, SecretHash, Token,
};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{LogIndex, WallTime};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::fmt::Write as _;
use std::sync::Arc;

pub(super) type Changed = Result<Reply, Refusal>;

/// Executes a change.
pub(in crate::state) fn change_acl(step: &mut Step<'_>, command: &AclCommand) -> Changed {
    if acl(step).settings.mode == AclMode::Off && !matches!(command, AclCommand::Configure(_)) {
        return refused("ACL support disabled");
    }
    match command {
        AclCommand::Configure(settings) => Ok(configure(step, settings)),
        AclCommand::Bootstrap(new, reset) => bootstrap(step, new, *reset),
        AclCommand::CreateToken(new) => create_token(step, new),
        AclCommand::UpdateToken(new) => update_token(step, new),
        AclCommand::DeleteToken(accessor) => delete_token(step, accessor),
        AclCommand::CreatePolicy(new) => create_policy(step, new),
        AclCommand::UpdatePolicy(new) => update_policy(step, new),
        AclCommand::DeletePolicy(id) => delete_policy(step, id),
        AclCommand::CreateRole(new) => create_role(step, new),
        AclCommand::UpdateRole(new) => update_role(step, new),
        AclCommand::DeleteRole(id) => Ok(delete_role(step, id)),
        AclCommand::SetAuthMethod(name, description) => bind::set_auth_method(step, name, description),
        AclCommand::DeleteAuthMethod(name) => Ok(bind::delete_auth_method(step, name)),
        AclCommand::CreateBindingRule(new) => bind::create_binding_rule(step, new),
        AclCommand::UpdateBindingRule(new) => bind::update_binding_rule(step, new),
        AclCommand::DeleteBindingRule(id) => Ok(bind::delete_binding_rule(step, id)),
        AclCommand::ExpireTokens(now) => Ok(expire_tokens(step, *now)),
    }
}

pub(super) fn acl<'a>(step: &'a Step<'_>) -> &'a Acl {
    &step.state.acl
}

pub(super) fn refused<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Acl(text.into()))
}

fn configure(step: &mut Step<'_>, change: &AclChange) -> Reply {
    let is_first = !acl(step).is_in_use();
    let before = acl(step).settings.clone();
    let settings = AclSettings {
        mode: change.mode.unwrap_or(before.mode),
        default_policy: change.default_policy.unwrap_or(before.default_policy),
        key_list_policy: change.key_list_policy.unwrap_or(before.key_list_policy),
        session_ownership: change.session_ownership.unwrap_or(before.session_ownership),
        peer_management: change.peer_management.unwrap_or(before.peer_management),
        datacenter: if is_first { change.datacenter.clone() } else { before.datacenter.clone() },
        bootstrap_index: before.bootstrap_index,
    };
    if is_first && settings != AclSettings::default() {
        create_built_in_rows(step);
    }
    if *acl(step).settings != settings {
        set_settings(step, settings);
    }
    Reply::Done
}

fn create_built_in_rows(step: &mut Step<'_>) {
    let management = (GLOBAL_MANAGEMENT, "global-management", management_rules());
    let read_only = (GLOBAL_READ_ONLY, "builtin/global-read-only", read_only_rules());
    for (id, name, rules) in [management, read_only] {
        let description = "A built-in policy of the cluster".into();
        let (id, name, text, datacenters) = (id.to_owned(), name.into(), in_words(&rules), Vec::new());
        set_policy(step, &NewPolicy { id, name, description, text, rules, datacenters }, step.index);
    }
    let token = NewToken {
        accessor: ANONYMOUS.into(),
        secret: ANONYMOUS_SECRET.into(),
        description: "Anonymous Token".into(),
        links: Links::default(),
        is_local: false,
        expires_at: None,
    };
    set_token(step, &token, None);
}

/// The text of rules for all objects.
fn in_words(rules: &Rules) -> String {
    let mut text = String::new();
    for rule in rules.as_slice() {
        let level = if rule.level.permits(lockmesh_protocol::acl::Access::Write) { "write" } else { "read" };
        let written = match rule.is_prefix {
            false => writeln!(text, "{} = \"{level}\"", rule.resource),
            true => writeln!(text, "{}_prefix \"\" {{\n  policy = \"{level}\"\n}}", rule.resource),
        };
        written.expect("a string has room");
    }
    text
}

fn bootstrap(step: &mut Step<'_>, new: &NewToken, reset: Option<LogIndex>) -> Changed {
    let index = acl(step).settings.bootstrap_index;
    match reset {
        _ if index == LogIndex(0) => {}
        Some(reset) if reset == index => {}
        Some(reset) => {
            return refused(format!(
                "Invalid bootstrap reset index (specified {reset}, reset index: {index})"
            ));
        }
        None => {
            let text = format!("Permission denied: ACL bootstrap no longer allowed (reset index: {index})");
            return Err(Refusal::AclBootstrap(text));
        }
    }
    [&new.secret, &new.description].into_iter().try_for_each(|text| check_text(text))?;
    check_ids_are_free(step, new)?;
    let links = Links { policies: vec![GLOBAL_MANAGEMENT.into()], ..Links::default() };
    let token = set_token(step, &NewToken { links, ..new.clone() }, None);
    let settings = AclSettings { bootstrap_index: step.index, ..(*acl(step).settings).clone() };
    set_settings(step, settings);
    Ok(Reply::Token(token))
}

fn set_settings(step: &mut Step<'_>, settings: AclSettings) {
    step.set(Change::AclSettings(Arc::new(settings)));
    step.touch(Table::AclSettings);
}

fn create_token(step: &mut Step<'_>, new: &NewToken) -> Changed {
    for (what, id) in [("AccessorID", &new.accessor), ("SecretID", &new.secret)] {
        if !is_uuid(id) {
            return refused(format!("Invalid Token: {what} - not a valid UUID"));
        }
        if id.starts_with(RESERVED_PREFIX) {
            return refused(format!("Invalid Token: UUIDs with the prefix {RESERVED_PREFIX:?} are reserved"));
        }
    }
    check_ids_are_free(step, new)?;
    if acl(step).tokens.len() >= TOKENS_MAX {
        return refused(format!(
            "there are {TOKENS_MAX} tokens, the maximum: delete tokens that nothing needs"
        ));
    }
    let links = resolved(step, &new.links)?;
    check_text(&new.description)?;
    Ok(Reply::Token(set_token(step, &NewToken { links, ..new.clone() }, None)))
}

fn check_ids_are_free(step: &Step<'_>, new: &NewToken) -> Result<(), Refusal> {
    if acl(step).token(&new.accessor).is_some() {
        return refused("Invalid Token: AccessorID is already in use");
    }
    match acl(step).by_secret.contains_key(&SecretHash::of(&new.secret)) {
        true => refused("Invalid Token: SecretID is already in use"),
        false => Ok(()),
    }
}

fn update_token(step: &mut Step<'_>, new: &NewToken) -> Changed {
    let Some(before) = acl(step).token(&new.accessor).cloned() else {
        return refused(format!("Cannot find token {:?}", new.accessor));
    };
    let id = &before.accessor;
    if !new.secret.is_empty() && new.secret != before.secret {
        return refused("Changing a token's SecretID is not permitted");
    }
    if new.is_local != before.is_local {
        return refused(format!("cannot toggle local mode of {id}"));
    }
    if new.expires_at.is_some_and(|end| Some(end) != before.expires_at) {
        return refused(format!("Cannot change expiration time of {id}"));
    }
    let links = resolved(step, &new.links)?;
    check_text(&new.description)?;
    let new = NewToken {
        accessor: id.clone(),
        secret: before.secret.clone(),
        links,
        expires_at: before.expires_at,
        ..new.clone()
    };
    Ok(Reply::Token(set_token(step, &new, Some(&before))))
}

fn delete_token(step: &mut Step<'_>, accessor: &str) -> Changed {
    let Some(token) = acl(step).token(accessor).cloned() else { return Ok(Reply::Done) };
    if token.accessor == ANONYMOUS {
        return refused("Delete operation not permitted on the anonymous token");
    }
    if matches!(step.caller, Caller::Token(hash) if hash == SecretHash::of(&token.secret)) {
        return refused("Deletion of the request's authorization token is not permitted");
    }
    step.set(Change::Token(token.accessor.to_ascii_lowercase(), None));
    step.touch(Table::Tokens);
    Ok(Reply::Done)
}

fn expire_tokens(step: &mut Step<'_>, now: WallTime) -> Reply {
    let over: Vec<String> = acl(step)
        .ends
        .iter()
        .take_while(|(end, _)| *end <= now)
        .map(|(_, accessor)| accessor.clone())
        .collect();
    for accessor in over {
        step.set(Change::Token(accessor, None));
        step.touch(Table::Tokens);
    }
    Reply::Done
}

fn set_token(step: &mut Step<'_>, new: &NewToken, before: Option<&Token>) -> Arc<Token> {
    let NewToken { accessor, secret, description, links, is_local, expires_at } = new.clone();
    let token = Arc::new(Token {
        accessor,
        secret,
        description,
        links,
        is_local,
        expires_at,
        created_at: before.map_or(step.at, |before| before.created_at),
        create_index: before.map_or(step.index, |before| before.create_index),
        modify_index: step.index,
    });
    step.set(Change::Token(token.accessor.to_ascii_lowercase(), Some(token.clone())));
    step.touch(Table::Tokens);
    token
}

fn create_policy(step: &mut Step<'_>, new: &NewPolicy) -> Changed {
    if acl(step).policies.contains_key(&new.id.to_ascii_lowercase()) {
        return refused(format!("the policy id {} is in use", new.id));
    }
    if acl(step).policies.len() >= POLICIES_MAX {
        return refused(format!(
            "there are {POLICIES_MAX} policies, the maximum: delete policies that nothing needs"
        ));
    }
    check_policy(step, new)?;
    Ok(Reply::Policy(set_policy(step, new, step.index)))
}

fn update_policy(step: &mut Step<'_>, new: &NewPolicy) -> Changed {
    let Some(before) = acl(step).policies.get(&new.id.to_ascii_lowercase()).cloned() else {
        return refused(format!("cannot find policy {}", new.id));
    };
    if is_built_in(&before) && (new.text != before.text || new.datacenters != before.datacenters) {
        let name = &before.name;
        return refused(format!("Changing the Rules for the builtin {name} policy is not permitted"));
    }
    check_policy(step, new)?;
    let new = NewPolicy { id: before.id.clone(), ..new.clone() };
    let rules = if is_built_in(&before) { before.rules.clone() } else { Arc::new(new.rules.clone()) };
    Ok(Reply::Policy(set_policy(step, &NewPolicy { rules: (*rules).clone(), ..new }, before.create_index)))
}

fn is_built_in(policy: &Policy) -> bool {
    [GLOBAL_MANAGEMENT, GLOBAL_READ_ONLY].contains(&policy.id.as_str())
}

fn check_policy(step: &Step<'_>, new: &NewPolicy) -> Result<(), Refusal> {
    check_name("Policy", &new.name)?;
    check_text(&new.description)?;
    let labels = new.rules.as_slice().iter().map(|rule| rule.label.len());
    let is_too_long = new.text.len() > RULES_BYTES_MAX || labels.sum::<usize>() > RULES_BYTES_MAX;
    if is_too_long || new.rules.as_slice().len() > RULES_MAX || new.datacenters.len() > LINKS_MAX {
        return refused(format!(
            "Invalid Policy: the rules have more than {RULES_BYTES_MAX} bytes: divide the policy"
        ));
    }
    let owner = acl(step).policy_names.get(&new.name.to_ascii_lowercase());
    match owner.is_some_and(|owner| *owner != new.id.to_ascii_lowercase()) {
        true => refused(format!("Invalid Policy: A Policy with Name {:?} already exists", new.name)),
        false => Ok(()),
    }
}

fn delete_policy(step: &mut Step<'_>, id: &str) -> Changed {
    let Some(policy) = acl(step).policies.get(&id.to_ascii_lowercase()).cloned() else {
        return Ok(Reply::Done);
    };
    if is_built_in(&policy) {
        let name = &policy.name;
        return refused(format!("Delete operation not permitted on the builtin {name} policy"));
    }
    let id = policy.id.to_ascii_lowercase();
    step.set(Change::Policy(id.clone(), None));
    step.touch(Table::Policies);
    unlink(step, &id);
    Ok(Reply::Done)
}

fn set_policy(step: &mut Step<'_>, new: &NewPolicy, create_index: LogIndex) -> Arc<Policy> {
    let NewPolicy { id, name, description, text, rules, datacenters } = new.clone();
    let (rules, modify_index) = (Arc::new(rules), step.index);
    let policy = Policy { id, name, description, text, rules, datacenters, create_index, modify_index };
    let policy = Arc::new(policy);
    step.set(Change::Policy(policy.id.to_ascii_lowercase(), Some(policy.clone())));
    step.touch(Table::Policies);
    policy
}

fn create_role(step: &mut Step<'_>, new: &NewRole) -> Changed {
    if acl(step).roles.contains_key(&new.id.to_ascii_lowercase()) {
        return refused(format!("the role id {} is in use", new.id));
    }
    if acl(step).roles.len() >= ROLES_MAX {
        return refused(format!("there are {ROLES_MAX} roles, the maximum: delete roles that nothing needs"));
    }
    set_role(step, new, step.index)
}

fn update_role(step: &mut Step<'_>, new: &NewRole) -> Changed {
    let Some(before) = acl(step).roles.get(&new.id.to_ascii_lowercase()).cloned() else {
        return refused(format!("cannot find role {}", new.id));
    };
    set_role(step, &NewRole { id: before.id.clone(), ..new.clone() }, before.create_index)
}

fn set_role(step: &mut Step<'_>, new: &NewRole, create_index: LogIndex) -> Changed {
    check_name("Role", &new.name)?;
    check_text(&new.description)?;
    let owner = acl(step).role_names.get(&new.name.to_ascii_lowercase());
    if owner.is_some_and(|owner| *owner != new.id.to_ascii_lowercase()) {
        return refused(format!("Invalid Role: A Role with Name {:?} already exists", new.name));
    }
    let links = Links { roles: Vec::new(), ..resolved(step, &new.links)? };
    let NewRole { id, name, description, .. } = new.clone();
    let role = Arc::new(Role { id, name, description, links, create_index, modify_index: step.index });
    step.set(Change::Role(role.id.to_ascii_lowercase(), Some(role.clone())));
    step.touch(Table::Roles);
    Ok(Reply::Role(role))
}

fn delete_role(step: &mut Step<'_>, id: &str) -> Reply {
    let id = id.to_ascii_lowercase();
    if acl(step).roles.contains_key(&id) {
        step.set(Change::Role(id.clone(), None));
        step.touch(Table::Roles);
        unlink(step, &id);
    }
    Reply::Done
}

/// Removes all links to a deleted policy or role. The ids of both are UUIDs, so they differ.
fn unlink(step: &mut Step<'_>, id: &str) {
    let without = |links: &Links| {
        let has = |list: &[String]| list.iter().any(|linked| linked == id);
        (has(&links.policies) || has(&links.roles)).then(|| {
            let mut links = links.clone();
            links.policies.retain(|linked| linked != id);
            links.roles.retain(|linked| linked != id);
            links
        })
    };
    let modify_index = step.index;
    let tokens = acl(step).tokens.values().filter_map(|token| {
        let links = without(&token.links)?;
        Some(Arc::new(Token { links, modify_index, ..(**token).clone() }))
    });
    let tokens: Vec<Arc<Token>> = tokens.collect();
    let roles = acl(step).roles.values().filter_map(|role| {
        let links = without(&role.links)?;
        Some(Arc::new(Role { links, modify_index, ..(**role).clone() }))
    });
    let roles: Vec<Arc<Role>> = roles.collect();
    for token in tokens {
        step.set(Change::Token(token.accessor.to_ascii_lowercase(), Some(token)));
        step.touch(Table::Tokens);
    }
    for role in roles {
        step.set(Change::Role(role.id.to_ascii_lowercase(), Some(role)));
        step.touch(Table::Roles);
    }
}

/// The links with the ids of all policies and roles, each once.
fn resolved(step: &Step<'_>, links: &Links) -> Result<Links, Refusal> {
    let Links { policies, roles, service_identities, node_identities, templated_policies } = links;
    let identities = service_identities.len() + node_identities.len() + templated_policies.len();
    if policies.len() > LINKS_MAX || roles.len() > LINKS_MAX || identities > LINKS_MAX {
        return refused(format!("more than {LINKS_MAX} policies, roles or identities: put them into roles"));
    }
    let services = service_identities.iter().map(|identity| &identity.service);
    let nodes = node_identities.iter().map(|identity| &identity.node);
    let templates = templated_policies.iter().flat_map(|policy| [&policy.template, &policy.name]);
    services.chain(nodes).chain(templates).try_for_each(|name| check_text(name))?;
    let mut found = Links { policies: Vec::new(), roles: Vec::new(), ..links.clone() };
    for named in policies {
        let policy = acl(step).policy(named).map(|policy| policy.id.to_ascii_lowercase());
        add(&mut found.policies, policy, "policy", named)?;
    }
    for named in roles {
        add(&mut found.roles, acl(step).role(named).map(|role| role.id.to_ascii_lowercase()), "role", named)?;
    }
    Ok(found)
}

fn add(list: &mut Vec<String>, id: Option<String>, kind: &str, named: &str) -> Result<(), Refusal> {
    let Some(id) = id else {
        let by = if is_uuid(named) { "ID" } else { "name" };
        return refused(format!("No such ACL {kind} with {by} {named:?}"));
    };
    if !list.contains(&id) {
        list.push(id);
    }
    Ok(())
}

fn check_name(kind: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return refused(format!("Invalid {kind}: no Name is set"));
    }
    // Slashes since Consul 1.17, for policies.
    let may_have = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if name.len() > TEXT_BYTES_MAX
        || !name.chars().all(|letter| may_have(letter) || kind == "Policy" && letter == '/')
    {
        return refused(format!(
            "Invalid {kind}: invalid Name. Only alphanumeric characters, '-' and '_' are allowed"
        ));
    }
    Ok(())
}

pub(super) fn check_text(text: &str) -> Result<(), Refusal> {
    match text.len() <= TEXT_BYTES_MAX {
        true => Ok(()),
        false => refused(format!("a name or a description has more than {TEXT_BYTES_MAX} bytes")),
    }
}

fn is_uuid(text: &str) -> bool {
    let is_digit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_digit)
}
