//! Nodes, services and checks in the spelling of the catalog, which has them as they were
//! registered: in `/v1/catalog/register` and `/v1/catalog/deregister`, and in transactions.

use super::service::{SERVICE_FIELDS, read_service, valid_weights};
use super::service_mesh::{MeshFields, visible_meta};
use super::{MetaError, Spelling, check_address, check_meta};
use crate::go::duration;
use crate::go::json::{JsonError, Object, first_value, says_nothing};
use lockmesh_protocol::command::{Deregistration, Registration};
use lockmesh_protocol::id::{CheckId, LogIndex, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, CheckStatus, Node, Service};
use serde_json::Value;

const REGISTRATION_FIELDS: &[&str] = &[
    "Datacenter",
    "ID",
    "Node",
    "Address",
    "TaggedAddresses",
    "NodeMeta",
    "Service",
    "Check",
    "Checks",
    "SkipNodeUpdate",
    "WriteRequest",
    "CreateIndex",
    "ModifyIndex",
];
const NODE_FIELDS: &[&str] =
    &["ID", "Node", "Address", "Datacenter", "TaggedAddresses", "Meta", "CreateIndex", "ModifyIndex"];
const CHECK_FIELDS: &[&str] = &[
    "Node",
    "CheckID",
    "Name",
    "Status",
    "Notes",
    "Output",
    "ServiceID",
    "ServiceName",
    "ServiceTags",
    "Type",
    "Interval",
    "Timeout",
    "ExposedPort",
    "Definition",
    "CreateIndex",
    "ModifyIndex",
];
/// Fields of the enterprise edition: accepted when empty.
const ENTERPRISE_FIELDS: &[&str] = &["Namespace", "Partition"];
/// Fields of a check's definition that are durations.
const DEFINITION_DURATIONS: &[&str] = &["Interval", "Timeout", "DeregisterCriticalServiceAfter"];

/// Parses the body of a registration: its datacenter, and the registration.
///
/// # Errors
/// The client has to change its request. Nothing was proposed.
pub fn parse_registration(body: &[u8]) -> Result<(String, Registration), JsonError> {
    let value = first_value(body)?;
    let object = Object::new("RegisterRequest", &value)?;
    object.refuse_unknown(REGISTRATION_FIELDS)?;
    let node = read_node(&object, "NodeMeta")?;
    let service =
        object.value("Service").map(|value| parse_catalog_service(value, node.name.clone())).transpose()?;
    let mut checks = Vec::new();
    for value in object.value("Check").into_iter().chain(object.list("Checks", "structs.HealthChecks")?) {
        checks.push(parse_catalog_check(value)?);
    }
    let skip_node_update = object.bool("SkipNodeUpdate")?;
    Ok((object.string("Datacenter")?.into(), Registration { node, skip_node_update, service, checks }))
}

/// Parses the body of a deregistration: its datacenter, and the deregistration.
///
/// # Errors
/// The client has to change its request. Nothing was proposed.
pub fn parse_deregistration(body: &[u8]) -> Result<(String, Deregistration), JsonError> {
    let value = first_value(body)?;
    let object = Object::new("DeregisterRequest", &value)?;
    // Clients still send the address that a much older version required.
    object.refuse_unknown_or_said(
        &["Datacenter", "Node", "Address", "ServiceID", "CheckID", "WriteRequest"],
        ENTERPRISE_FIELDS,
    )?;
    let named = |name: &str| object.string(name).map(|id| (!id.is_empty()).then_some(id));
    let deregistration = Deregistration {
        node: NodeName::from(object.string("Node")?),
        service: named("ServiceID")?.map(ServiceId::from),
        check: named("CheckID")?.map(CheckId::from),
    };
    Ok((object.string("Datacenter")?.into(), deregistration))
}

/// Parses a node as transactions write it.
///
/// # Errors
/// The client has to change its request.
pub fn parse_node(value: &Value) -> Result<Node, JsonError> {
    let object = Object::new("Node", value)?;
    object.refuse_unknown_or_said(NODE_FIELDS, &["PeerName", "Partition", "Locality"])?;
    let node = read_node(&object, "Meta")?;
    let (datacenter, index) = (object.string("Datacenter")?, object.u64("ModifyIndex")?);
    Ok(Node { datacenter: datacenter.into(), modify_index: LogIndex(index), ..node })
}

fn read_node(object: &Object<'_>, meta: &str) -> Result<Node, JsonError> {
    Ok(Node {
        name: NodeName::from(object.string("Node")?),
        id: object.string("ID")?.to_ascii_lowercase(),
        address: object.string("Address")?.into(),
        datacenter: String::new(),
        tagged_addresses: object.string_map("TaggedAddresses")?.collect(),
        meta: object.string_map(meta)?.collect(),
        create_index: LogIndex(0),
        modify_index: LogIndex(0),
    })
}

/// Parses a service; its node is named outside of it.
///
/// # Errors
/// The client has to change its request.
pub fn parse_catalog_service(value: &Value, node: NodeName) -> Result<Service, JsonError> {
    let object = Object::new("NodeService", value)?;
    let known = [SERVICE_FIELDS, &["Service", "CreateIndex", "ModifyIndex"]].concat();
    object.refuse_unknown_or_said(&known, &["PeerName", "Namespace", "Partition"])?;
    let mut meta = object.string_map("Meta")?.collect();
    MeshFields::parse(&object)?.store(&mut meta)?;
    let service = read_service(&object, "Service", Spelling::Api)?;
    let (weights, index) = (valid_weights(&object)?, object.u64("ModifyIndex")?);
    Ok(Service { node, meta, weights, modify_index: LogIndex(index), ..service })
}

/// The reason why a service cannot be stored, in Consul's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Its address stands for every address.
    #[error("{0}")]
    Address(&'static str),
    /// Its metadata has to be changed.
    #[error("Invalid Service Meta for node {node} and serviceID {id}: {reason}")]
    Meta {
        /// Its node.
        node: NodeName,
        /// Its id.
        id: String,
        /// The reason.
        reason: MetaError,
    },
}

/// Checks what the state stores as it is: the address and the metadata of a service, by the rules
/// of a registration with an agent.
///
/// # Errors
/// The client has to change its request.
pub fn check_service(service: &Service) -> Result<(), ServiceError> {
    check_address(&service.address).map_err(ServiceError::Address)?;
    let id = if service.id.as_str().is_empty() { &service.name } else { service.id.as_str() };
    check_meta(&visible_meta(service)).map_err(|reason| ServiceError::Meta {
        node: service.node.clone(),
        id: id.to_owned(),
        reason,
    })
}

/// Parses a check. Its id defaults to its name, and its status to critical.
///
/// # Errors
/// The client has to change its request.
pub fn parse_catalog_check(value: &Value) -> Result<Check, JsonError> {
    let object = Object::new("HealthCheck", value)?;
    object.refuse_unknown_or_said(CHECK_FIELDS, &["PeerName", "Namespace", "Partition"])?;
    let name = object.string("Name")?;
    let kind = match object.string("Type")? {
        // Clients describe the check that is run, and leave the kind to Consul.
        "" => kind_of_definition(&object)?,
        said => said,
    };
    let id = Some(object.string("CheckID")?).filter(|id| !id.is_empty()).unwrap_or(name);
    Ok(Check {
        node: NodeName::from(object.string("Node")?),
        id: CheckId::from(id),
        name: name.into(),
        status: parse_status(object.string("Status")?)?,
        notes: object.string("Notes")?.into(),
        output: object.string("Output")?.into(),
        service_id: Some(object.string("ServiceID")?).filter(|id| !id.is_empty()).map(ServiceId::from),
        service_name: object.string("ServiceName")?.into(),
        service_tags: object.strings("ServiceTags")?.into_iter().map(str::to_owned).collect(),
        kind: kind.into(),
        interval: object.string("Interval")?.into(),
        timeout: object.string("Timeout")?.into(),
        exposed_port: object.port("ExposedPort")?,
        definition: parse_definition(&object)?,
        create_index: LogIndex(0),
        modify_index: LogIndex(object.u64("ModifyIndex")?),
    })
}

/// Parses a status. Consul accepts any word here. Only `critical` ends sessions, so a misspelled
/// status would never end any, and is rejected instead.
fn parse_status(word: &str) -> Result<CheckStatus, JsonError> {
    if word.is_empty() {
        return Ok(CheckStatus::default());
    }
    let invalid =
        || JsonError::Value(format!("Invalid check status: '{word}': use passing, warning or critical"));
    CheckStatus::parse(word).ok_or_else(invalid)
}

/// Returns the kind of check that a definition describes; empty without one.
fn kind_of_definition(check: &Object<'_>) -> Result<&'static str, JsonError> {
    /// The target field of each kind, in order of precedence.
    const KINDS: [(&str, &str); 6] = [
        ("GRPC", "grpc"),
        ("HTTP", "http"),
        ("TCP", "tcp"),
        ("UDP", "udp"),
        ("H2PING", "h2ping"),
        ("OSService", "os_service"),
    ];
    let Some(Value::Object(_)) = check.value("Definition") else { return Ok("") };
    let definition = check.object("Definition", "HealthCheckDefinition")?;
    let is_said = |name: &str| {
        let value = definition.value(name);
        // `0s` is Go's notation for an unset duration.
        value.is_some_and(|value| !says_nothing(value) && value.as_str() != Some("0s"))
    };
    if is_said("AliasNode") || is_said("AliasService") {
        return Ok("alias");
    }
    // Without an interval a check is never run, and so has no kind.
    let kind = KINDS.iter().find(|(target, _)| is_said(target) && is_said("Interval"));
    Ok(kind.map_or("", |(_, kind)| kind))
}

/// Parses a definition, which is kept as sent, except that durations may be numbers of nanoseconds
/// and are shown as text.
fn parse_definition(check: &Object<'_>) -> Result<String, JsonError> {
    let Some(value) = check.value("Definition") else { return Ok(String::new()) };
    let Value::Object(fields) = value else {
        return Err(check.wrong("Definition", value, "HealthCheckDefinition"));
    };
    let mut definition = fields.clone();
    definition.retain(|_, value| !value.is_null());
    for (name, value) in &mut definition {
        if DEFINITION_DURATIONS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            *value = parse_duration_field(value)?;
        }
    }
    Ok(if definition.is_empty() { String::new() } else { Value::Object(definition).to_string() })
}

fn parse_duration_field(value: &Value) -> Result<Value, JsonError> {
    let nanoseconds = match value {
        Value::String(text) => duration::parse(text).map_err(|error| JsonError::Value(error.to_string()))?,
        other => other.as_i64().ok_or_else(|| JsonError::Value(format!("invalid duration {other}")))?,
    };
    Ok(Value::String(duration::format_duration(duration::clamped(nanoseconds))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_whole_registration_is_read() {
        let body = br#"{"node":"n1","Address":"10.0.0.1","ID":"40E4A748-2192-161A-0510-9BF59FE950B5",
            "TaggedAddresses":{"lan":"10.0.0.1"},"NodeMeta":{"rack":"a"},
            "Service":{"ID":"s1","Service":"web","Tags":["a"],"Port":80,"Weights":{"Passing":3,"Warning":2},
                "TaggedAddresses":{"lan":{"Address":"10.0.0.2","Port":81}},"Proxy":{"MeshGateway":{}},"Kind":""},
            "Check":{"Name":"alive","Status":"passing","Definition":{"Interval":10000000000,"HTTP":null}},
            "Checks":[{"CheckID":"c2","ServiceID":"s1"}]}"#;
        let (datacenter, registration) = parse_registration(body).unwrap();
        assert_eq!(datacenter, "");
        assert_eq!(registration.node.id, "40e4a748-2192-161a-0510-9bf59fe950b5");
        let service = registration.service.unwrap();
        assert_eq!((service.port, service.weights), (80, (3, 2)));
        assert_eq!(service.tagged_addresses["lan"].port, 81);
        assert_eq!(registration.checks[0].id.as_str(), "alive");
        assert_eq!(registration.checks[0].definition, r#"{"Interval":"10s"}"#);
        assert_eq!(registration.checks[1].status, CheckStatus::Critical);
    }

    #[test]
    fn check_type_inferred_from_definition() {
        let kind = |check: &str| {
            let body = format!(r#"{{"Node":"n","Check":{check}}}"#);
            parse_registration(body.as_bytes()).unwrap().1.checks[0].kind.clone()
        };
        assert_eq!(kind(r#"{"Definition":{"TCP":"1.1.1.1:53","Interval":"5s","HTTP":""}}"#), "tcp");
        assert_eq!(kind(r#"{"Definition":{"udp":"1.1.1.1:53","interval":5000000000}}"#), "udp");
        assert_eq!(kind(r#"{"Definition":{"HTTP":"http://a","Interval":"5s"},"Type":"mine"}"#), "mine");
        assert_eq!(kind(r#"{"Definition":{"AliasNode":"n2"}}"#), "alias");
        for none in
            [r#"{}"#, r#"{"Definition":null}"#, r#"{"Definition":{"HTTP":"http://a","Interval":"0s"}}"#]
        {
            assert_eq!(kind(none), "", "{none}");
        }
    }

    #[test]
    fn unknown_fields_rejected_by_name() {
        for (body, text) in [
            (r#"{"Node":"n","Nonsense":1}"#, "json: unknown field \"Nonsense\""),
            (r#"{"Node":"n","Check":{"Nonsense":1}}"#, "json: unknown field \"Nonsense\""),
            (r#"{"Node":"n","Service":{"PeerName":"p"}}"#, "json: unknown field \"PeerName\""),
        ] {
            assert_eq!(parse_registration(body.as_bytes()).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn deregistration_ignores_address() {
        let (_, node) = parse_deregistration(br#"{"Node":"n","Address":"x"}"#).unwrap();
        assert_eq!((node.service, node.check), (None, None));
        let (_, check) = parse_deregistration(br#"{"Node":"n","CheckID":"c","ServiceID":""}"#).unwrap();
        assert_eq!(check.check, Some(CheckId::from("c")));
        assert!(parse_deregistration(br#"{"Node":"n","Nonsense":""}"#).is_err());
        assert!(parse_deregistration(b"").is_err());
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in r#"\{("(Node|Check|Service|Checks|Weights)":[{}\[\]",:a-z0-9]{0,16},?){0,3}\}"#) {
            let _ = parse_registration(body.as_bytes());
            let _ = parse_deregistration(body.as_bytes());
        }
    }
}
