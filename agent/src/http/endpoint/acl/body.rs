//! From bodies of requests to the new content of a row. Unknown fields are errors; those that only
//! the servers set are accepted, because clients send back what they have read.

use super::shape::HIDDEN;
use crate::go::duration;
use crate::go::json::{JsonError, Object};
use lockmesh_protocol::acl::{Links, NodeIdentity, ServiceIdentity, TemplatedPolicy};
use lockmesh_protocol::id::WallTime;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const TOKEN_FIELDS: &[&str] = &[
    "AccessorID",
    "SecretID",
    "Description",
    "Policies",
    "Roles",
    "ServiceIdentities",
    "NodeIdentities",
    "TemplatedPolicies",
    "Local",
    "AuthMethod",
    "ExpirationTTL",
    "ExpirationTime",
    "CreateTime",
    "Rules",
    "Hash",
    "CreateIndex",
    "ModifyIndex",
];
const ROLE_FIELDS: &[&str] = &[
    "ID",
    "Name",
    "Description",
    "Policies",
    "ServiceIdentities",
    "NodeIdentities",
    "TemplatedPolicies",
    "Hash",
    "CreateIndex",
    "ModifyIndex",
];
const POLICY_FIELDS: &[&str] =
    &["ID", "Name", "Description", "Rules", "Datacenters", "Hash", "CreateIndex", "ModifyIndex"];
/// Fields of Consul's enterprise edition and of older versions, accepted while empty.
const SILENT: &[&str] = &["Namespace", "Partition", "AuthMethodNamespace", "Legacy", "Type"];

/// The content of a token in a request.
#[derive(Debug)]
pub(super) struct TokenBody {
    pub(super) accessor: String,
    /// Empty also for the text in place of a hidden secret.
    pub(super) secret: String,
    pub(super) description: String,
    pub(super) links: Links,
    pub(super) is_local: bool,
    /// `true` if it names an auth method, or has rules of its own.
    pub(super) has_method: bool,
    pub(super) has_rules: bool,
    /// In nanoseconds.
    pub(super) ttl: Option<i64>,
    pub(super) expires_at: Option<WallTime>,
}

/// The content of a policy in a request.
#[derive(Debug)]
pub(super) struct PolicyBody {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) text: String,
    pub(super) datacenters: Vec<String>,
}

/// The content of a role in a request.
#[derive(Debug)]
pub(super) struct RoleBody {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) links: Links,
}

pub(super) fn token(value: &Value) -> Result<TokenBody, JsonError> {
    let object = Object::new("ACLToken", value)?;
    object.refuse_unknown_or_said(TOKEN_FIELDS, SILENT)?;
    let secret = object.string("SecretID")?;
    Ok(TokenBody {
        accessor: object.string("AccessorID")?.into(),
        secret: if secret == HIDDEN { String::new() } else { secret.into() },
        description: object.string("Description")?.into(),
        links: links(&object)?,
        is_local: object.bool("Local")?,
        has_method: !object.string("AuthMethod")?.is_empty(),
        has_rules: !object.string("Rules")?.is_empty(),
        ttl: ttl(&object)?,
        expires_at: object.optional_string("ExpirationTime")?.map(wall_time).transpose()?,
    })
}

pub(super) fn policy(value: &Value) -> Result<PolicyBody, JsonError> {
    let object = Object::new("ACLPolicy", value)?;
    object.refuse_unknown_or_said(POLICY_FIELDS, SILENT)?;
    Ok(PolicyBody {
        id: object.string("ID")?.into(),
        name: object.string("Name")?.into(),
        description: object.string("Description")?.into(),
        text: object.string("Rules")?.into(),
        datacenters: strings(&object, "Datacenters")?,
    })
}

pub(super) fn role(value: &Value) -> Result<RoleBody, JsonError> {
    let object = Object::new("ACLRole", value)?;
    object.refuse_unknown_or_said(ROLE_FIELDS, SILENT)?;
    Ok(RoleBody {
        id: object.string("ID")?.into(),
        name: object.string("Name")?.into(),
        description: object.string("Description")?.into(),
        links: links(&object)?,
    })
}

fn links(object: &Object<'_>) -> Result<Links, JsonError> {
    Ok(Links {
        policies: each(object, "Policies", link)?,
        roles: each(object, "Roles", link)?,
        service_identities: each(object, "ServiceIdentities", service_identity)?,
        node_identities: each(object, "NodeIdentities", node_identity)?,
        templated_policies: each(object, "TemplatedPolicies", templated_policy)?,
    })
}

fn each<T>(
    object: &Object<'_>,
    name: &str,
    parse: impl Fn(&Value) -> Result<T, JsonError>,
) -> Result<Vec<T>, JsonError> {
    object.list(name, "[]api.ACLLink")?.iter().map(parse).collect()
}

/// Returns the id of a policy or a role, or its name.
fn link(value: &Value) -> Result<String, JsonError> {
    let object = Object::new("ACLLink", value)?;
    object.refuse_unknown(&["ID", "Name"])?;
    let id = object.string("ID")?;
    Ok(if id.is_empty() { object.string("Name")? } else { id }.into())
}

fn service_identity(value: &Value) -> Result<ServiceIdentity, JsonError> {
    let object = Object::new("ACLServiceIdentity", value)?;
    object.refuse_unknown(&["ServiceName", "Datacenters"])?;
    let service = object.string("ServiceName")?.into();
    Ok(ServiceIdentity { service, datacenters: strings(&object, "Datacenters")? })
}

fn node_identity(value: &Value) -> Result<NodeIdentity, JsonError> {
    let object = Object::new("ACLNodeIdentity", value)?;
    object.refuse_unknown(&["NodeName", "Datacenter"])?;
    let node = object.string("NodeName")?.into();
    Ok(NodeIdentity { node, datacenter: object.string("Datacenter")?.into() })
}

fn templated_policy(value: &Value) -> Result<TemplatedPolicy, JsonError> {
    let object = Object::new("ACLTemplatedPolicy", value)?;
    object.refuse_unknown_or_said(&["TemplateName", "TemplateVariables", "Datacenters"], &["TemplateID"])?;
    let variables = object.object("TemplateVariables", "ACLTemplatedPolicyVariables")?;
    variables.refuse_unknown(&["Name"])?;
    Ok(TemplatedPolicy {
        template: object.string("TemplateName")?.into(),
        name: variables.string("Name")?.into(),
        datacenters: strings(&object, "Datacenters")?,
    })
}

/// Returns a duration in nanoseconds, from text or a number; `None` if absent or 0.
fn ttl(object: &Object<'_>) -> Result<Option<i64>, JsonError> {
    let nanoseconds = match object.value("ExpirationTTL") {
        Some(Value::String(text)) if text.is_empty() => 0,
        Some(Value::String(text)) => {
            duration::parse(text).map_err(|error| JsonError::Value(error.to_string()))?
        }
        _ => object.i64("ExpirationTTL")?,
    };
    Ok(Some(nanoseconds).filter(|nanoseconds| *nanoseconds != 0))
}

fn wall_time(text: &str) -> Result<WallTime, JsonError> {
    let wrong = || JsonError::Value(format!("parsing time {text:?} as RFC 3339: cannot parse"));
    let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| wrong())?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).map(WallTime).map_err(|_| wrong())
}

fn strings(object: &Object<'_>, name: &str) -> Result<Vec<String>, JsonError> {
    Ok(object.strings(name)?.into_iter().map(str::to_owned).collect())
}
