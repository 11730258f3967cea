//! The tables of the access control lists, and the commands that change them.

use super::peer::NewBindingRule;
use super::rules::{Level, Resource, Rule, Rules};
use crate::id::{LogIndex, WallTime};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The id of the built-in policy that permits everything.
pub const GLOBAL_MANAGEMENT: &str = "00000000-0000-0000-0000-000000000001";

/// The id of the built-in policy that permits all reads.
pub const GLOBAL_READ_ONLY: &str = "00000000-0000-0000-0000-000000000002";

/// The accessor id of the anonymous token.
pub const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";

/// The secret of the anonymous token, which requests may send.
pub const ANONYMOUS_SECRET: &str = "anonymous";

/// The start of the ids that no caller may choose.
pub const RESERVED_PREFIX: &str = "00000000-0000-0000-0000-0000000000";

/// The maximum numbers of tokens, of policies and of roles: about 100 MiB of each at most sizes
/// that occur.
pub const TOKENS_MAX: usize = 100_000;
/// See [`TOKENS_MAX`].
pub const POLICIES_MAX: usize = 10_000;
/// See [`TOKENS_MAX`].
pub const ROLES_MAX: usize = 10_000;

/// The maximum length of a policy's text in bytes.
pub const RULES_BYTES_MAX: usize = 64 << 10;

/// The maximum number of rules of a policy.
pub const RULES_MAX: usize = 4_096;

/// The maximum number of links of a token or a role, each kind counted, and the maximum length of
/// a name or a description in bytes.
pub const LINKS_MAX: usize = 64;
/// See [`LINKS_MAX`].
pub const TEXT_BYTES_MAX: usize = 1_024;

/// Whether requests are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AclMode {
    /// No request is judged, and tokens are ignored.
    #[default]
    Off,
    /// Requests are judged, and refusals are only logged.
    Log,
    /// Requests are judged.
    Enforce,
}

/// The reaction to a request for which there is no rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultPolicy {
    /// It is permitted, unless it needs a right to the access control lists.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// The settings of the access control lists. Stored: never changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclSettings {
    /// The mode.
    pub mode: AclMode,
    /// The reaction to requests for which there is no rule.
    pub default_policy: DefaultPolicy,
    /// Set if recursive reads of keys need the level `list`.
    pub key_list_policy: bool,
    /// Set if a lock also needs `session:write` on its session's node.
    pub session_ownership: bool,
    /// Set if users bound on every host may change the access control lists and the servers.
    pub peer_management: bool,
    /// The datacenter of the cluster: policies and identities of others do not count.
    pub datacenter: String,
    /// The index of the bootstrap, which a reset must name; 0 before it.
    pub bootstrap_index: LogIndex,
}

/// A change of the settings; what is `None` stays. Stored: never changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclChange {
    /// See [`AclSettings`].
    pub mode: Option<AclMode>,
    /// See [`AclSettings`].
    pub default_policy: Option<DefaultPolicy>,
    /// See [`AclSettings`].
    pub key_list_policy: Option<bool>,
    /// See [`AclSettings`].
    pub session_ownership: Option<bool>,
    /// See [`AclSettings`].
    pub peer_management: Option<bool>,
    /// The datacenter of a cluster that has no settings yet.
    pub datacenter: String,
}

/// The policies and identities that a token or a role has. Stored: never changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Policies, by id.
    pub policies: Vec<String>,
    /// Roles, by id; none for a role.
    pub roles: Vec<String>,
    /// Services.
    pub service_identities: Vec<ServiceIdentity>,
    /// Nodes.
    pub node_identities: Vec<NodeIdentity>,
    /// Built-in templates.
    pub templated_policies: Vec<TemplatedPolicy>,
}

/// The rights of an instance of a service: to register itself and to find others. Stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceIdentity {
    /// The service.
    pub service: String,
    /// The datacenters in which it counts; empty for all.
    pub datacenters: Vec<String>,
}

/// The rights of an agent: to register its node and to find services. Stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The node.
    pub node: String,
    /// The datacenter in which it counts.
    pub datacenter: String,
}

/// A built-in template with its variable. Stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplatedPolicy {
    /// The template, such as `builtin/service`.
    pub template: String,
    /// The variable `name`; empty if the template has none.
    pub name: String,
    /// The datacenters in which it counts; empty for all.
    pub datacenters: Vec<String>,
}

/// A token. Stored: never changed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its id in lists, logs and refusals.
    pub accessor: String,
    /// Its secret.
    pub secret: String,
    /// A text for people.
    pub description: String,
    /// Its policies, roles and identities.
    pub links: Links,
    /// Set for a token of one datacenter; only shown.
    pub is_local: bool,
    /// The time at which it ends.
    pub expires_at: Option<WallTime>,
    /// The time of its creation.
    pub created_at: WallTime,
    /// The index of its creation.
    pub create_index: LogIndex,
    /// The index of its last change.
    pub modify_index: LogIndex,
}

/// A policy. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Its id.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// The rules as written.
    pub text: String,
    /// The rules, as the agent parsed them.
    pub rules: Arc<Rules>,
    /// The datacenters in which it counts; empty for all.
    pub datacenters: Vec<String>,
    /// The index of its creation.
    pub create_index: LogIndex,
    /// The index of its last change.
    pub modify_index: LogIndex,
}

/// A role: policies and identities under a name. Stored: never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its id.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its policies and identities.
    pub links: Links,
    /// The index of its creation.
    pub create_index: LogIndex,
    /// The index of its last change.
    pub modify_index: LogIndex,
}

/// The new content of a token. Its links name policies and roles by id or by name.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Its accessor id.
    pub accessor: String,
    /// Its secret; for a change empty, or equal to the present one.
    pub secret: String,
    /// A text for people.
    pub description: String,
    /// Its policies, roles and identities.
    pub links: Links,
    /// Set for a token of one datacenter.
    pub is_local: bool,
    /// The time at which it ends.
    pub expires_at: Option<WallTime>,
}

/// The new content of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewPolicy {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// The rules as written.
    pub text: String,
    /// The same, parsed.
    pub rules: Rules,
    /// The datacenters in which it counts; empty for all.
    pub datacenters: Vec<String>,
}

/// The new content of a role. Its links name policies by id or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRole {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its policies and identities.
    pub links: Links,
}

/// A change of the access control lists. Stored: only appended to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AclCommand {
    /// Changes the settings. The first one also creates the built-in policies and the anonymous
    /// token.
    Configure(AclChange),
    /// Creates the first management token; again only with the index of the last bootstrap, which
    /// proves access to a server's disk.
    Bootstrap(Box<NewToken>, Option<LogIndex>),
    /// Creates a token.
    CreateToken(Box<NewToken>),
    /// Replaces a token.
    UpdateToken(Box<NewToken>),
    /// Deletes a token, by accessor id. An unknown one is a success.
    DeleteToken(String),
    /// Creates a policy.
    CreatePolicy(Box<NewPolicy>),
    /// Replaces a policy.
    UpdatePolicy(Box<NewPolicy>),
    /// Deletes a policy, by id, and all links to it. An unknown one is a success.
    DeletePolicy(String),
    /// Creates a role.
    CreateRole(Box<NewRole>),
    /// Replaces a role.
    UpdateRole(Box<NewRole>),
    /// Deletes a role, by id, and all links to it. An unknown one is a success.
    DeleteRole(String),
    /// Creates or replaces an auth method.
    SetAuthMethod(String, String),
    /// Deletes an auth method with its binding rules. An unknown one is a success.
    DeleteAuthMethod(String),
    /// Creates a binding rule.
    CreateBindingRule(Box<NewBindingRule>),
    /// Replaces a binding rule.
    UpdateBindingRule(Box<NewBindingRule>),
    /// Deletes a binding rule, by id. An unknown one is a success.
    DeleteBindingRule(String),
    /// Deletes all tokens that end at this time or before. Only the leader sends it.
    ExpireTokens(WallTime),
}

impl fmt::Debug for Token {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("accessor", &self.accessor)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NewToken {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken")
            .field("accessor", &self.accessor)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

/// The rules of the built-in policy that permits everything.
pub fn management_rules() -> Rules {
    everything(Level::Write)
}

/// The rules of the built-in policy that permits all reads.
pub fn read_only_rules() -> Rules {
    everything(Level::Read)
}

fn everything(level: Level) -> Rules {
    let rule = |(_, resource): (_, Resource)| Rule {
        resource,
        is_prefix: !resource.is_single(),
        label: String::new(),
        level,
    };
    Resource::WORDS.into_iter().map(rule).collect::<Vec<_>>().into()
}
