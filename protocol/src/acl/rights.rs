//! The rights of a caller: the rules of its policies, and the reaction to what they do not name.

use super::DefaultPolicy;
use super::record::{Links, TemplatedPolicy};
use super::rules::{self, Access, Level, Resource, Rule, Rules};
use crate::id::NodeName;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The name of a caller in refusals and audit lines. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// An agent, for its own node.
    Agent(NodeName),
    /// A client without a token.
    Anonymous,
    /// The token with this accessor id.
    Token(String),
    /// A user of a host.
    Peer {
        /// Its number.
        uid: u32,
        /// Its name; empty if the host knows none.
        user: String,
        /// The host's node.
        node: NodeName,
    },
}

/// The reason why a request is refused. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoAccess {
    /// No token has the secret.
    #[error("ACL not found")]
    UnknownToken,
    /// The caller has no right to the object.
    #[error("Permission denied: {}", lacks(who, *resource, *access, name.as_deref()))]
    Denied {
        /// The caller.
        who: Box<Who>,
        /// The kind of object.
        resource: Resource,
        /// The access.
        access: Access,
        /// The object; `None` for a resource without names.
        name: Option<String>,
    },
}

fn lacks(who: &Who, resource: Resource, access: Access, name: Option<&str>) -> String {
    let on = name.map_or(String::new(), |name| format!(" on {name:?}"));
    let lacks = format!("lacks permission '{resource}:{access}'{on}");
    match who {
        Who::Agent(node) => format!(
            "agent of node '{node}' {lacks}: a request of a client needs a token, and an agent that sends it on; \
             upgrade the agent"
        ),
        Who::Anonymous => format!(
            "anonymous token {lacks}. The anonymous token is used implicitly when a request does not specify a token."
        ),
        Who::Peer { uid, user, node } => format!("unix peer '{user}' (uid {uid}) on node '{node}' {lacks}"),
        Who::Token(accessor) => format!("token with AccessorID '{accessor}' {lacks}"),
    }
}

/// The rights of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The caller.
    pub who: Who,
    /// The rules of its policies.
    pub policies: Vec<Arc<Rules>>,
    /// The reaction to requests for which there is no rule.
    pub default_policy: DefaultPolicy,
    /// Set if recursive reads of keys need the level `list`.
    pub key_list_policy: bool,
}

impl Rights {
    /// Returns `true` if the caller may access an object.
    pub fn permit(&self, resource: Resource, access: Access, name: &str) -> bool {
        match rules::level(self.rules(), resource, name) {
            Some(level) => level.permits(access),
            None => self.permits_by_default(resource),
        }
    }

    /// Checks that the caller may access an object.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, resource: Resource, access: Access, name: &str) -> Result<(), NoAccess> {
        if self.permit(resource, access, name) { Ok(()) } else { Err(self.denial(resource, access, name)) }
    }

    /// Checks that the caller may change everything below a prefix.
    ///
    /// # Errors
    /// It may not.
    pub fn check_write_below(&self, resource: Resource, prefix: &str) -> Result<(), NoAccess> {
        let default = self.permits_by_default(resource);
        match rules::permits_write_below(self.rules(), resource, prefix, default) {
            true => Ok(()),
            false => Err(self.denial(resource, Access::Write, prefix)),
        }
    }

    /// Returns the refusal of an access.
    pub fn denial(&self, resource: Resource, access: Access, name: &str) -> NoAccess {
        let name = (!resource.is_single()).then(|| name.to_owned());
        NoAccess::Denied { who: Box::new(self.who.clone()), resource, access, name }
    }

    fn rules(&self) -> impl Iterator<Item = &Rules> + Clone {
        self.policies.iter().map(|rules| &**rules)
    }

    fn permits_by_default(&self, resource: Resource) -> bool {
        self.default_policy == DefaultPolicy::Allow && resource != Resource::Acl
    }
}

/// The names of the built-in templates, each with `true` if it has a variable.
pub const TEMPLATES: [(&str, bool); 5] = [
    ("builtin/service", true),
    ("builtin/node", true),
    ("builtin/dns", false),
    ("builtin/nomad-server", false),
    ("builtin/nomad-client", false),
];

impl Links {
    /// Returns the rules of the identities and templates that count in a datacenter.
    pub fn own_rules(&self, datacenter: &str) -> Vec<Arc<Rules>> {
        let counts =
            |datacenters: &[String]| datacenters.is_empty() || datacenters.iter().any(|it| it == datacenter);
        let services = self.service_identities.iter().filter(|it| counts(&it.datacenters));
        let services = services.map(|it| service_rules(&it.service));
        let nodes = self.node_identities.iter().filter(|it| it.datacenter == datacenter);
        let nodes = nodes.map(|it| node_rules(&it.node));
        let templates = self.templated_policies.iter().filter(|it| counts(&it.datacenters));
        let all = services.chain(nodes).chain(templates.map(template_rules));
        all.map(|rules| Arc::new(rules.into())).collect()
    }
}

/// The rules of an instance of a service.
pub fn service_rules(service: &str) -> Vec<Rule> {
    vec![
        exact(Resource::Service, service, Level::Write),
        exact(Resource::Service, &format!("{service}-sidecar-proxy"), Level::Write),
        prefix(Resource::Service, Level::Read),
        prefix(Resource::Node, Level::Read),
    ]
}

/// The rules of a node.
pub fn node_rules(node: &str) -> Vec<Rule> {
    vec![exact(Resource::Node, node, Level::Write), prefix(Resource::Service, Level::Read)]
}

/// The rules of a built-in template; none for an unknown one.
pub fn template_rules(policy: &TemplatedPolicy) -> Vec<Rule> {
    match policy.template.as_str() {
        "builtin/service" => service_rules(&policy.name),
        "builtin/node" => node_rules(&policy.name),
        "builtin/dns" => {
            vec![
                prefix(Resource::Node, Level::Read),
                prefix(Resource::Service, Level::Read),
                prefix(Resource::Query, Level::Read),
            ]
        }
        "builtin/nomad-server" => {
            let acl = Rule { is_prefix: false, ..prefix(Resource::Acl, Level::Write) };
            vec![
                acl,
                prefix(Resource::Agent, Level::Read),
                prefix(Resource::Node, Level::Read),
                prefix(Resource::Service, Level::Write),
            ]
        }
        "builtin/nomad-client" => vec![
            prefix(Resource::Agent, Level::Read),
            prefix(Resource::Node, Level::Read),
            prefix(Resource::Service, Level::Write),
            prefix(Resource::Key, Level::Read),
        ],
        _ => Vec::new(),
    }
}

fn exact(resource: Resource, label: &str, level: Level) -> Rule {
    Rule { resource, is_prefix: false, label: label.into(), level }
}

fn prefix(resource: Resource, level: Level) -> Rule {
    Rule { resource, is_prefix: true, label: String::new(), level }
}
