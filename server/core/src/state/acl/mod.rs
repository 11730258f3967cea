//! Access control lists: tokens, policies and roles as tables, and the judgement of requests by
//! them.
//!
//! | module | contents |
//! |---|---|
//! | `bind` | auth methods and binding rules: the rights of users of a host |
//! | `write` | changes of the tables |
//! | `command` | the rights that a command needs |
//! | `read` | the rights that a query needs, and the rows that its caller may see |
//!
//! A command is judged at its log entry, so a deleted token or a changed policy counts from its own
//! entry. A query is judged from the state that answers it; a blocking one again when it wakes. The
//! tables stay through a restore: a backup neither opens the cluster nor brings back deleted
//! tokens. Only a cluster that has never had settings takes them from the backup.

mod bind;
mod command;
mod read;
mod write;

use super::State;
use super::rows::put;
use bind::Bindings;
use lockmesh_protocol::acl::record::ANONYMOUS;
use lockmesh_protocol::acl::{
    AclMode, AclSettings, Caller, Level, Links, NoAccess, Policy, Resource, Rights, Role, Rule, Rules,
    SecretHash, Token, Who,
};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{NodeName, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use command::judge;
pub(super) use command::{refusal, without_hidden_results};
pub(super) use read::{acl_index, may_read_key, query_acl};
pub use read::{check_query, own_rows, read_txn_as, visible};
pub(super) use write::change_acl;

/// The tables, and their derived indexes. Ids and names are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    settings: Arc<AclSettings>,
    tokens: BTreeMap<String, Arc<Token>>,
    by_secret: BTreeMap<SecretHash, String>,
    /// The tokens that end, by time.
    ends: BTreeSet<(WallTime, String)>,
    policies: BTreeMap<String, Arc<Policy>>,
    policy_names: BTreeMap<String, String>,
    roles: BTreeMap<String, Arc<Role>>,
    role_names: BTreeMap<String, String>,
    bindings: Bindings,
}

impl Acl {
    /// The settings.
    pub fn settings(&self) -> &AclSettings {
        &self.settings
    }

    /// Returns `true` if a token has this secret.
    pub fn has_secret(&self, secret: &str) -> bool {
        self.by_secret.contains_key(&SecretHash::of(secret))
    }

    /// The first time at which a token ends.
    pub fn first_end(&self) -> Option<WallTime> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Returns the rights of a caller whose agent runs on this node.
    ///
    /// # Errors
    /// No token has its secret, or the token has ended.
    pub fn rights(&self, caller: &Caller, node: &NodeName, now: WallTime) -> Result<Rights, NoAccess> {
        let (who, policies) = match caller {
            Caller::Agent => (Who::Agent(node.clone()), vec![Arc::new(rules_of_agent(node))]),
            Caller::Anonymous => (Who::Anonymous, self.policies_of(self.token(ANONYMOUS))),
            Caller::Peer(peer) => {
                let Some(rules) = self.rules_of_peer(peer, node) else {
                    let otherwise = peer.otherwise.map_or(Caller::Anonymous, Caller::Token);
                    return self.rights(&otherwise, node, now);
                };
                (Who::Peer { uid: peer.uid, user: peer.user.clone(), node: node.clone() }, rules)
            }
            Caller::Token(hash) => {
                let token = self.token_of(hash).filter(|token| token.expires_at.is_none_or(|end| end > now));
                let token = token.ok_or(NoAccess::UnknownToken)?;
                let is_anonymous = token.accessor == ANONYMOUS;
                let who = if is_anonymous { Who::Anonymous } else { Who::Token(token.accessor.clone()) };
                (who, self.policies_of(Some(token)))
            }
        };
        let AclSettings { default_policy, key_list_policy, .. } = *self.settings;
        Ok(Rights { who, policies, default_policy, key_list_policy })
    }

    /// The token whose secret has this hash.
    fn token_of(&self, hash: &SecretHash) -> Option<&Arc<Token>> {
        self.tokens.get(self.by_secret.get(hash)?)
    }

    /// The token with an accessor id.
    fn token(&self, accessor: &str) -> Option<&Arc<Token>> {
        self.tokens.get(&accessor.to_ascii_lowercase())
    }

    /// The policy with an id or a name.
    fn policy(&self, named: &str) -> Option<&Arc<Policy>> {
        let named = named.to_ascii_lowercase();
        self.policies.get(&named).or_else(|| self.policies.get(self.policy_names.get(&named)?))
    }

    /// The role with an id or a name.
    fn role(&self, named: &str) -> Option<&Arc<Role>> {
        let named = named.to_ascii_lowercase();
        self.roles.get(&named).or_else(|| self.roles.get(self.role_names.get(&named)?))
    }

    fn policies_of(&self, token: Option<&Arc<Token>>) -> Vec<Arc<Rules>> {
        let Some(token) = token else { return Vec::new() };
        let roles = token.links.roles.iter().filter_map(|id| self.roles.get(id));
        self.rules_of_links(std::iter::once(&token.links).chain(roles.map(|role| &role.links)))
    }

    /// The rules of policies and identities that count in this datacenter.
    fn rules_of_links<'a>(&self, links: impl Iterator<Item = &'a Links> + Clone) -> Vec<Arc<Rules>> {
        let ids: BTreeSet<&String> = links.clone().flat_map(|links| &links.policies).collect();
        let datacenter = &self.settings.datacenter;
        let counts =
            |policy: &&Arc<Policy>| policy.datacenters.is_empty() || policy.datacenters.contains(datacenter);
        let policies = ids.into_iter().filter_map(|id| self.policies.get(id)).filter(counts);
        let policies = policies.map(|policy| policy.rules.clone());
        policies.chain(links.flat_map(|links| links.own_rules(datacenter))).collect()
    }

    pub(super) fn load_settings(&mut self, settings: Arc<AclSettings>) {
        self.settings = settings;
    }

    pub(super) fn load_token(&mut self, accessor: String, token: Option<Arc<Token>>) {
        if let Some(before) = self.tokens.get(&accessor) {
            self.by_secret.remove(&SecretHash::of(&before.secret));
            before.expires_at.map(|end| self.ends.remove(&(end, accessor.clone())));
        }
        if let Some(token) = &token {
            self.by_secret.insert(SecretHash::of(&token.secret), accessor.clone());
            token.expires_at.map(|end| self.ends.insert((end, accessor.clone())));
        }
        put(&mut self.tokens, accessor, token);
    }

    pub(super) fn load_policy(&mut self, id: String, policy: Option<Arc<Policy>>) {
        if let Some(before) = self.policies.get(&id) {
            self.policy_names.remove(&before.name.to_ascii_lowercase());
        }
        if let Some(policy) = &policy {
            self.policy_names.insert(policy.name.to_ascii_lowercase(), id.clone());
        }
        put(&mut self.policies, id, policy);
    }

    pub(super) fn load_role(&mut self, id: String, role: Option<Arc<Role>>) {
        if let Some(before) = self.roles.get(&id) {
            self.role_names.remove(&before.name.to_ascii_lowercase());
        }
        if let Some(role) = &role {
            self.role_names.insert(role.name.to_ascii_lowercase(), id.clone());
        }
        put(&mut self.roles, id, role);
    }

    pub(super) fn load_binding(&mut self, change: Change) {
        self.bindings.load(change);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        let settings =
            (*self.settings != AclSettings::default()).then(|| Change::AclSettings(self.settings.clone()));
        let tokens = self.tokens.iter().map(|(id, row)| Change::Token(id.clone(), Some(row.clone())));
        let policies = self.policies.iter().map(|(id, row)| Change::Policy(id.clone(), Some(row.clone())));
        let roles = self.roles.iter().map(|(id, row)| Change::Role(id.clone(), Some(row.clone())));
        settings.into_iter().chain(tokens).chain(policies).chain(roles).chain(self.bindings.rows())
    }

    /// Returns `true` if the cluster has or had tokens.
    pub(super) fn is_in_use(&self) -> bool {
        !self.policies.is_empty()
    }
}

impl State {
    /// The access control lists.
    pub fn acl(&self) -> &Acl {
        &self.acl
    }

    /// The name of a node as it was registered: rules distinguish case, names of nodes do not.
    pub fn registered_name<'a>(&'a self, node: &'a NodeName) -> &'a NodeName {
        self.catalog.nodes.get(&node.folded()).map_or(node, |registered| &registered.name)
    }
}

/// The rules of an agent, as its certificate names it. Clients have none of them.
fn rules_of_agent(node: &NodeName) -> Rules {
    let own = |resource| Rule { resource, is_prefix: false, label: node.to_string(), level: Level::Write };
    let all = |resource| Rule { resource, is_prefix: true, label: String::new(), level: Level::Read };
    vec![
        own(Resource::Node),
        own(Resource::Session),
        own(Resource::Agent),
        all(Resource::Node),
        all(Resource::Service),
        all(Resource::Session),
    ]
    .into()
}

/// Returns `true` if commands and queries are judged.
pub(super) fn is_enforced(state: &State) -> bool {
    state.acl.settings.mode == AclMode::Enforce
}
