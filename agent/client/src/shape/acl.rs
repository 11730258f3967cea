//! Access control lists: tokens, policies, roles, and Lockmesh's settings. Empty lists are omitted,
//! as in Consul.

use super::null_as_default;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The policies, roles and identities of a token or a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Links {
    /// Policies.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Link>,
    /// Roles; none for a role.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Link>,
    /// Services.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_identities: Vec<ServiceIdentity>,
    /// Nodes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub node_identities: Vec<NodeIdentity>,
    /// Built-in templates.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub templated_policies: Vec<TemplatedPolicy>,
}

/// A link to a policy or a role. A request has an id or a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Link {
    /// Its id.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The rights of an instance of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceIdentity {
    /// The service.
    pub service_name: String,
    /// The datacenters in which it counts; empty for all.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// The rights of a node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeIdentity {
    /// The node.
    pub node_name: String,
    /// The datacenter in which it counts.
    pub datacenter: String,
}

/// A built-in template with its variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TemplatedPolicy {
    /// The template, such as `builtin/service`.
    pub template_name: String,
    /// Its variables, such as `name`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub template_variables: BTreeMap<String, String>,
    /// The datacenters in which it counts; empty for all.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// A token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Token {
    /// The secret again, in the reply to a bootstrap only.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Its id in lists, logs and refusals.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// Its secret; `<hidden>` without the right to it.
    #[serde(rename = "SecretID")]
    pub secret_id: String,
    /// A text for people.
    pub description: String,
    /// Its policies, roles and identities.
    #[serde(flatten)]
    pub links: Links,
    /// Set for a token of one datacenter.
    pub local: bool,
    /// The login method that created it; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub auth_method: String,
    /// The time at which it ends, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
    /// The time of its creation, in RFC 3339.
    pub create_time: String,
    /// A digest of its content, as base64.
    pub hash: String,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The body of `PUT /v1/acl/token`, and with an accessor id in the path, of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewToken {
    /// Its accessor id; empty to let the agent choose one.
    #[serde(rename = "AccessorID", skip_serializing_if = "String::is_empty")]
    pub accessor_id: String,
    /// Its secret; empty to let the agent choose one, and for a change.
    #[serde(rename = "SecretID", skip_serializing_if = "String::is_empty")]
    pub secret_id: String,
    /// A text for people.
    pub description: String,
    /// Its policies, roles and identities.
    #[serde(flatten)]
    pub links: Links,
    /// Set for a token of one datacenter. It cannot change.
    pub local: bool,
    /// The time until its end as a Go duration, 1 minute to 24 hours; empty for no end, and for a
    /// change.
    #[serde(rename = "ExpirationTTL", skip_serializing_if = "String::is_empty")]
    pub expiration_ttl: String,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Policy {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its rules, in HCL or JSON; `None` in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<String>,
    /// The datacenters in which it counts; empty for all.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
    /// A digest of its content, as base64.
    pub hash: String,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The body of `PUT /v1/acl/policy`, and with an id in the path, of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewPolicy {
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its rules, in HCL or JSON.
    pub rules: String,
    /// The datacenters in which it counts; empty for all.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Role {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its policies and identities.
    #[serde(flatten)]
    pub links: Links,
    /// A digest of its content, as base64.
    pub hash: String,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The body of `PUT /v1/acl/role`, and with an id in the path, of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewRole {
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its policies and identities.
    #[serde(flatten)]
    pub links: Links,
}

/// The body of `PUT /v1/acl/token/<accessor id>/clone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewClone {
    /// A text for people; empty to keep that of the original.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// An auth method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthMethod {
    /// Its name.
    pub name: String,
    /// Its type: `unix-peer`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// A text for people.
    pub description: String,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The body of `PUT /v1/acl/auth-method`, and with a name in the path, of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewAuthMethod {
    /// Its name.
    pub name: String,
    /// Its type: `unix-peer`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// A text for people.
    pub description: String,
}

/// A binding rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BindingRule {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its content.
    #[serde(flatten)]
    pub spec: NewBindingRule,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// The body of `PUT /v1/acl/binding-rule`, and with an id in the path, of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NewBindingRule {
    /// A text for people.
    pub description: String,
    /// The name of its auth method.
    pub auth_method: String,
    /// The condition on a user, such as `user == "deploy"`; empty for all users.
    pub selector: String,
    /// The kind of object to which it binds users: `policy` or `role`.
    pub bind_type: String,
    /// The name of the object; may have the variables `${user}`, `${uid}` and `${node}`.
    pub bind_name: String,
}

/// One element of the body and of the reply of `POST /v1/internal/acl/authorize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Permission {
    /// The resource, such as `key`.
    pub resource: String,
    /// The access: `read`, `list` or `write`.
    pub access: String,
    /// The name of the object; empty for a resource without names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub segment: String,
    /// Set in the reply: `true` if the caller has the permission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<bool>,
}

/// The effect of the access control lists.
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
    /// It is permitted.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// The reply of `GET /v1/lockmesh/acl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclSettings {
    /// The mode.
    pub mode: AclMode,
    /// The reaction to requests for which there is no rule.
    pub default_policy: DefaultPolicy,
    /// Set if recursive reads of keys need the level `list`.
    pub key_list_policy: bool,
    /// Set if a lock also needs `session:write` on its session's node.
    pub session_ownership: bool,
    /// Set if binding rules without a condition on the node may bind users to management.
    pub peer_management: bool,
    /// The index of the bootstrap, which a reset must name; 0 before it.
    pub bootstrap_index: u64,
}

/// The body of `PUT /v1/lockmesh/acl`. A setting that is `None` is not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default, deny_unknown_fields)]
pub struct AclChange {
    /// The mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<AclMode>,
    /// The reaction to requests for which there is no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_policy: Option<DefaultPolicy>,
    /// Set if recursive reads of keys need the level `list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_list_policy: Option<bool>,
    /// Set if a lock also needs `session:write` on its session's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_ownership: Option<bool>,
    /// Set if binding rules without a condition on the node may bind users to management.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_management: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_encoded_like_consul() {
        let token = Token {
            accessor_id: "a".into(),
            secret_id: "s".into(),
            links: Links {
                policies: vec![Link { id: "p".into(), name: "jobs".into() }],
                node_identities: vec![NodeIdentity { node_name: "n1".into(), datacenter: "dc1".into() }],
                ..Links::default()
            },
            create_index: 13,
            ..Token::default()
        };
        let json = serde_json::to_string(&token).expect("it has string keys");
        let expected = "{\"AccessorID\":\"a\",\"SecretID\":\"s\",\"Description\":\"\",\
                        \"Policies\":[{\"ID\":\"p\",\"Name\":\"jobs\"}],\
                        \"NodeIdentities\":[{\"NodeName\":\"n1\",\"Datacenter\":\"dc1\"}],\"Local\":false,\
                        \"CreateTime\":\"\",\"Hash\":\"\",\"CreateIndex\":13,\"ModifyIndex\":0}";
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Token>(expected).expect("it is good"), token);
    }

    #[test]
    fn lists_and_unknown_fields_parsed() {
        let text = "{\"ID\":\"p\",\"Name\":\"n\",\"Datacenters\":null,\"Namespace\":\"x\",\"CreateIndex\":3}";
        let policy: Policy = serde_json::from_str(text).expect("it is good");
        assert_eq!((policy.rules, policy.datacenters.len(), policy.create_index), (None, 0, 3));
        let role: Role = serde_json::from_str("{\"Policies\":null,\"Namespace\":\"x\"}").expect("it is good");
        assert_eq!(role, Role::default());
    }

    #[test]
    fn requests_omit_unset_fields() {
        let json = |value: &dyn Fn() -> serde_json::Result<String>| value().expect("it has string keys");
        let token = json(&|| serde_json::to_string(&NewToken::default()));
        assert_eq!(token, "{\"Description\":\"\",\"Local\":false}");
        let change = AclChange { mode: Some(AclMode::Log), ..AclChange::default() };
        assert_eq!(json(&|| serde_json::to_string(&change)), "{\"Mode\":\"log\"}");
        let asked = Permission { resource: "acl".into(), access: "read".into(), ..Permission::default() };
        let expected = "{\"Resource\":\"acl\",\"Access\":\"read\"}";
        assert_eq!(json(&|| serde_json::to_string(&asked)), expected);
    }
}
