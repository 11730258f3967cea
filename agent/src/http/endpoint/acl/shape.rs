//! From rows of the tables to the JSON that clients see.

use lockmesh_client::shape::blob::encode_base64;
use lockmesh_protocol::acl::{self, Links};
use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::query::LinkNames;
use lockmesh_protocol::wire;
use serde::Serialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The text in place of a secret that the client may not see.
pub(super) const HIDDEN: &str = "<hidden>";

/// Go's time of an event that never was.
pub(super) const NEVER: &str = "0001-01-01T00:00:00Z";

/// A token.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Token {
    /// The secret again, in the answer to a bootstrap.
    #[serde(rename = "ID", skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "AccessorID")]
    accessor_id: String,
    #[serde(rename = "SecretID")]
    secret_id: String,
    description: String,
    #[serde(flatten)]
    links: LinksShape,
    local: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_time: Option<String>,
    create_time: String,
    hash: String,
    create_index: u64,
    modify_index: u64,
}

/// A policy.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Policy {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<String>,
    #[serde(skip_serializing_if = "is_left_out")]
    datacenters: Datacenters,
    hash: String,
    create_index: u64,
    modify_index: u64,
}

/// The datacenters of a policy.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Datacenters {
    /// Some, or `null` in a list.
    Shown(Option<Vec<String>>),
    /// None, of a policy alone.
    LeftOut,
}

/// A role.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Role {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    description: String,
    #[serde(flatten)]
    links: LinksShape,
    hash: String,
    create_index: u64,
    modify_index: u64,
}

/// The links of a token or a role.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct LinksShape {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<Link>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    roles: Vec<Link>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    service_identities: Vec<ServiceIdentity>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node_identities: Vec<NodeIdentity>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    templated_policies: Vec<TemplatedPolicy>,
}

#[derive(Clone, Debug, Serialize)]
struct Link {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ServiceIdentity {
    service_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    datacenters: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct NodeIdentity {
    node_name: String,
    datacenter: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct TemplatedPolicy {
    template_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    template_variables: Option<Variables>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    datacenters: Vec<String>,
}

/// The variables of a template, with the name that Consul's clients read.
#[derive(Clone, Debug, Serialize)]
struct Variables {
    name: String,
}

/// A token. The servers leave the secret empty for a client that may not see it.
pub(super) fn token(token: &acl::Token, names: &LinkNames) -> Token {
    let secret = token.secret.as_str();
    Token {
        id: None,
        accessor_id: token.accessor.clone(),
        secret_id: if secret.is_empty() { HIDDEN.into() } else { secret.into() },
        description: token.description.clone(),
        links: links(&token.links, names),
        local: token.is_local,
        expiration_time: token.expires_at.map(time_text),
        create_time: time_text(token.created_at),
        hash: hash(&(&token.accessor, &token.description, &token.links, token.is_local)),
        create_index: token.create_index.0,
        modify_index: token.modify_index.0,
    }
}

/// A user of a host in place of a token. The accessor id is the same for each request of the user.
pub(super) fn peer(peer: &acl::UnixPeer, node: &str) -> Token {
    let digest = Sha256::digest(format!("unix:{node}:{}", peer.uid));
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    let user = if peer.user.is_empty() { String::new() } else { format!("{} ", peer.user) };
    Token {
        id: None,
        accessor_id: uuid::Uuid::from_bytes(id).hyphenated().to_string(),
        secret_id: HIDDEN.into(),
        description: format!("unix peer {user}(uid {}) on {node}", peer.uid),
        links: links(&Links::default(), &LinkNames::default()),
        local: true,
        expiration_time: None,
        create_time: NEVER.into(),
        hash: hash(&(peer.uid, node)),
        create_index: 0,
        modify_index: 0,
    }
}

impl Token {
    /// The token of a bootstrap: its secret is shown twice.
    pub(super) fn of_bootstrap(self) -> Self {
        Self { id: Some(self.secret_id.clone()), ..self }
    }
}

/// A policy alone.
pub(super) fn policy(policy: &acl::Policy) -> Policy {
    let datacenters = Some(policy.datacenters.clone()).filter(|list| !list.is_empty());
    Policy {
        id: policy.id.clone(),
        name: policy.name.clone(),
        description: policy.description.clone(),
        rules: Some(policy.text.clone()),
        datacenters: datacenters.map_or(Datacenters::LeftOut, |list| Datacenters::Shown(Some(list))),
        hash: hash(&(&policy.name, &policy.description, &policy.text, &policy.datacenters)),
        create_index: policy.create_index.0,
        modify_index: policy.modify_index.0,
    }
}

/// A policy in a list: without its rules.
pub(super) fn listed_policy(listed: &acl::Policy) -> Policy {
    let datacenters = Some(listed.datacenters.clone()).filter(|list| !list.is_empty());
    Policy { rules: None, datacenters: Datacenters::Shown(datacenters), ..policy(listed) }
}

/// A role.
pub(super) fn role(role: &acl::Role, names: &LinkNames) -> Role {
    Role {
        id: role.id.clone(),
        name: role.name.clone(),
        description: role.description.clone(),
        links: links(&role.links, names),
        hash: hash(&(&role.name, &role.description, &role.links)),
        create_index: role.create_index.0,
        modify_index: role.modify_index.0,
    }
}

fn links(links: &Links, names: &LinkNames) -> LinksShape {
    let named = |ids: &[String], names: &[String]| {
        let name = |number: usize| names.get(number).cloned().unwrap_or_default();
        ids.iter().enumerate().map(|(number, id)| Link { id: id.clone(), name: name(number) }).collect()
    };
    let service = |it: &acl::ServiceIdentity| ServiceIdentity {
        service_name: it.service.clone(),
        datacenters: it.datacenters.clone(),
    };
    let node = |it: &acl::NodeIdentity| NodeIdentity {
        node_name: it.node.clone(),
        datacenter: it.datacenter.clone(),
    };
    let template = |it: &acl::TemplatedPolicy| TemplatedPolicy {
        template_name: it.template.clone(),
        template_variables: (!it.name.is_empty()).then(|| Variables { name: it.name.clone() }),
        datacenters: it.datacenters.clone(),
    };
    LinksShape {
        policies: named(&links.policies, &names.policies),
        roles: named(&links.roles, &names.roles),
        service_identities: links.service_identities.iter().map(service).collect(),
        node_identities: links.node_identities.iter().map(node).collect(),
        templated_policies: links.templated_policies.iter().map(template).collect(),
    }
}

/// Returns the SHA-256 of contents in their stored form, in base64.
pub(super) fn hash(contents: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    wire::encode_into(contents, &mut bytes);
    encode_base64(&Sha256::digest(bytes))
}

fn time_text(at: WallTime) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

fn is_left_out(datacenters: &Datacenters) -> bool {
    matches!(datacenters, Datacenters::LeftOut)
}
