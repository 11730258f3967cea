//! Auth methods and binding rules: the rights of users of a host.

use super::super::step::Step;
use super::write::{Changed, acl, check_text, refused};
use super::{Acl, put};
use lockmesh_protocol::acl::peer::{
    AUTH_METHODS_MAX, BINDING_RULES_MAX, SELECTOR_STEPS_MAX, UNIX_PEER, filled_in, matches, names_node,
};
use lockmesh_protocol::acl::{
    AuthMethod, BindType, BindingRule, Level, Links, NewBindingRule, Rule, Rules, UnixPeer,
};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::reply::Reply;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tables of auth methods and binding rules, by name and by id in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bindings {
    pub(super) methods: BTreeMap<String, Arc<AuthMethod>>,
    pub(super) rules: BTreeMap<String, Arc<BindingRule>>,
}

impl Bindings {
    pub(super) fn load(&mut self, change: Change) {
        match change {
            Change::AuthMethod(name, method) => put(&mut self.methods, name, method),
            Change::BindingRule(id, rule) => put(&mut self.rules, id, rule),
            _ => {}
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let methods = self.methods.iter();
        let methods = methods.map(|(name, row)| Change::AuthMethod(name.clone(), Some(row.clone())));
        let rules = self.rules.iter().map(|(id, row)| Change::BindingRule(id.clone(), Some(row.clone())));
        methods.chain(rules)
    }
}

impl Acl {
    /// The rules of all policies to which a user is bound; `None` if no binding rule matches.
    pub(super) fn rules_of_peer(&self, peer: &UnixPeer, node: &NodeName) -> Option<Vec<Arc<Rules>>> {
        let bound: Vec<_> =
            self.bindings.rules.values().filter(|rule| matches(&rule.spec.steps, peer, node)).collect();
        if bound.is_empty() {
            return None;
        }
        let rules = bound.into_iter().flat_map(|rule| {
            let links = self.links_of(&rule.spec, peer, node);
            // Whoever can choose a host's users could otherwise manage the whole cluster.
            let manages = self.settings.peer_management || names_node(&rule.spec.steps);
            self.rules_of_links(links.iter())
                .into_iter()
                .map(move |rules| for_peer(rules, peer, node, manages))
        });
        Some(rules.collect())
    }

    fn links_of(&self, rule: &NewBindingRule, peer: &UnixPeer, node: &NodeName) -> Vec<Links> {
        let Some(name) = filled_in(&rule.bind_name, peer, node) else { return Vec::new() };
        match rule.bind_type {
            BindType::Role => self.role(&name).map(|role| role.links.clone()).into_iter().collect(),
            BindType::Policy => {
                let policy = self.policy(&name).map(|policy| policy.id.to_ascii_lowercase());
                policy.map(|id| Links { policies: vec![id], ..Links::default() }).into_iter().collect()
            }
        }
    }
}

/// The rules of a policy for a user: with its variables, and without the management of the cluster
/// unless the user `manages` it.
fn for_peer(rules: Arc<Rules>, peer: &UnixPeer, node: &NodeName, manages: bool) -> Arc<Rules> {
    let is_management = |rule: &Rule| rule.level == Level::Write && rule.resource.is_single();
    let is_plain = |rule: &Rule| !rule.label.contains("${") && (manages || !is_management(rule));
    if rules.as_slice().iter().all(is_plain) {
        return rules;
    }
    let filled = rules.as_slice().iter().filter_map(|rule| {
        let level = if is_management(rule) && !manages { Level::Read } else { rule.level };
        Some(Rule { label: filled_in(&rule.label, peer, node)?, level, ..rule.clone() })
    });
    Arc::new(filled.collect::<Vec<_>>().into())
}

pub(super) fn set_auth_method(step: &mut Step<'_>, name: &str, description: &str) -> Changed {
    check_text(name)?;
    check_text(description)?;
    if name.is_empty() {
        return refused("Invalid Auth Method: no Name is set");
    }
    let id = name.to_ascii_lowercase();
    let before = acl(step).bindings.methods.get(&id);
    if before.is_none() && acl(step).bindings.methods.len() >= AUTH_METHODS_MAX {
        return refused(format!("there are {AUTH_METHODS_MAX} auth methods, the maximum"));
    }
    let method = Arc::new(AuthMethod {
        name: name.into(),
        kind: UNIX_PEER.into(),
        description: description.into(),
        create_index: before.map_or(step.index, |before| before.create_index),
        modify_index: step.index,
    });
    step.set(Change::AuthMethod(id, Some(method.clone())));
    step.touch(Table::AuthMethods);
    Ok(Reply::AuthMethod(method))
}

pub(super) fn delete_auth_method(step: &mut Step<'_>, name: &str) -> Reply {
    let name = name.to_ascii_lowercase();
    if !acl(step).bindings.methods.contains_key(&name) {
        return Reply::Done;
    }
    let rules = acl(step).bindings.rules.iter();
    let rules = rules.filter(|(_, rule)| rule.spec.method.to_ascii_lowercase() == name);
    let rules: Vec<String> = rules.map(|(id, _)| id.clone()).collect();
    for id in rules {
        step.set(Change::BindingRule(id, None));
    }
    step.set(Change::AuthMethod(name, None));
    step.touch(Table::AuthMethods);
    Reply::Done
}

pub(super) fn create_binding_rule(step: &mut Step<'_>, new: &NewBindingRule) -> Changed {
    if acl(step).bindings.rules.contains_key(&new.id.to_ascii_lowercase()) {
        return refused(format!("the binding rule id {} is in use", new.id));
    }
    if acl(step).bindings.rules.len() >= BINDING_RULES_MAX {
        return refused(format!("there are {BINDING_RULES_MAX} binding rules, the maximum"));
    }
    set_binding_rule(step, new, None)
}

pub(super) fn update_binding_rule(step: &mut Step<'_>, new: &NewBindingRule) -> Changed {
    let Some(before) = acl(step).bindings.rules.get(&new.id.to_ascii_lowercase()).cloned() else {
        return refused(format!("cannot find binding rule {}", new.id));
    };
    set_binding_rule(step, new, Some(&before))
}

fn set_binding_rule(step: &mut Step<'_>, new: &NewBindingRule, before: Option<&BindingRule>) -> Changed {
    if !acl(step).bindings.methods.contains_key(&new.method.to_ascii_lowercase()) {
        return refused(format!("Invalid Binding Rule: cannot find auth method with name {:?}", new.method));
    }
    if new.bind_name.is_empty() {
        return refused("Invalid Binding Rule: no BindName is set");
    }
    [&new.description, &new.bind_name, &new.selector].into_iter().try_for_each(|text| check_text(text))?;
    if new.steps.len() > SELECTOR_STEPS_MAX {
        return refused(format!(
            "Invalid Binding Rule: more than {SELECTOR_STEPS_MAX} conditions in Selector"
        ));
    }
    let rule = Arc::new(BindingRule {
        spec: new.clone(),
        create_index: before.map_or(step.index, |before| before.create_index),
        modify_index: step.index,
    });
    step.set(Change::BindingRule(new.id.to_ascii_lowercase(), Some(rule.clone())));
    step.touch(Table::AuthMethods);
    Ok(Reply::BindingRule(rule))
}

pub(super) fn delete_binding_rule(step: &mut Step<'_>, id: &str) -> Reply {
    let id = id.to_ascii_lowercase();
    if acl(step).bindings.rules.contains_key(&id) {
        step.set(Change::BindingRule(id, None));
        step.touch(Table::AuthMethods);
    }
    Reply::Done
}
