//! Definitions of services: their rules, metadata and addresses.

use super::check::parse_check_of_service;
use super::service_mesh::MeshFields;
use super::{
    DefinitionError, NewCheck, ServiceRegistration, Sidecar, Spelling, check_id, folded, sidecar_of,
};
use crate::go::json::{JsonError, Object, first_value, says_nothing};
use core::net::{Ipv4Addr, Ipv6Addr};
use lockmesh_protocol::id::ServiceId;
use lockmesh_protocol::record::{Service, ServiceAddress};
use serde_json::Value;
use std::collections::BTreeMap;

/// The fields that a service has with its agent and in the catalog, except its name.
pub(super) const SERVICE_FIELDS: &[&str] = &[
    "ID",
    "Tags",
    "Address",
    "TaggedAddresses",
    "Meta",
    "Port",
    "Weights",
    "EnableTagOverride",
    "Kind",
    "Proxy",
    "Connect",
    "SocketPath",
    "Locality",
];
/// The id of the servers' own service.
const SERVERS: &str = "consul";
/// The maximum number of pairs in the metadata, and the sizes of a key and a value.
pub const MAX_META: (usize, usize, usize) = (64, 128, 512);

/// Parses the body of a service's registration.
///
/// # Errors
/// The client has to change its request. Nothing was registered.
pub fn parse_service_registration(body: &[u8]) -> Result<ServiceRegistration, DefinitionError> {
    parse_service(&first_value(body)?, Spelling::Api)
}

/// Parses a service.
///
/// # Errors
/// The definition has to be changed.
pub fn parse_service(value: &Value, spelling: Spelling) -> Result<ServiceRegistration, DefinitionError> {
    let value = folded(value, spelling);
    let object = Object::new("ServiceDefinition", &value)?;
    let nested = object.object("Connect", "ServiceConnect")?.value("SidecarService");
    let nested = nested.map(|nested| folded(nested, spelling));
    let mut fields = Fields::read(object, spelling)?;
    let sidecar =
        nested.as_ref().map(|nested| Fields::read(Object::new("ServiceDefinition", nested)?, spelling));
    let sidecar = sidecar.transpose()?;
    let service = &fields.service;
    if service.name.is_empty() {
        return Err(wrong("Missing service name"));
    }
    if service.id.as_str().eq_ignore_ascii_case(SERVERS) {
        return Err(wrong(format!("the service {SERVERS:?} is that of the servers: use another ID")));
    }
    check_id("service", service.id.as_str())?;
    check_address(&service.address).map_err(wrong)?;
    fields.set_weights()?;
    check_meta(&fields.service.meta).map_err(|reason| wrong(format!("Invalid Service Meta: {reason}")))?;
    let mut broken = fields.mesh.broken_rules(fields.service.port, sidecar.is_some());
    broken.extend(sidecar.iter().flat_map(Fields::broken_rules_of_nested));
    if !broken.is_empty() {
        return Err(wrong(format!("Validation failed: {}", in_words(&broken))));
    }
    let checks = fields.checks()?;
    let sidecar = sidecar.map(|sidecar| sidecar.into_sidecar(&fields)).transpose()?;
    let service = fields.into_service()?;
    Ok(ServiceRegistration { service, checks, replaces_checks: false, sidecar })
}

/// Reads the fields of a service, except its weights and those that are only kept. `name` is the
/// field with its name.
pub(super) fn read_service(
    object: &Object<'_>,
    name: &str,
    spelling: Spelling,
) -> Result<Service, JsonError> {
    let (name, id) = (object.string(name)?, object.string("ID")?);
    Ok(Service {
        tags: object.strings("Tags")?.into_iter().map(str::to_owned).collect(),
        address: object.string("Address")?.into(),
        tagged_addresses: tagged_addresses(object, spelling)?,
        meta: object.string_map("Meta")?.collect(),
        port: object.port("Port")?,
        enable_tag_override: object.bool("EnableTagOverride")?,
        ..Service::of("".into(), ServiceId::from(id), name)
    })
}

fn wrong(text: impl Into<String>) -> DefinitionError {
    DefinitionError::Wrong(text.into())
}

/// The fields of a service, before any rule is applied.
struct Fields<'v> {
    object: Object<'v>,
    spelling: Spelling,
    /// Without weights, and without the fields of a service mesh.
    service: Service,
    mesh: MeshFields,
    weights: Option<(i64, i64)>,
}

impl<'v> Fields<'v> {
    fn read(object: Object<'v>, spelling: Spelling) -> Result<Self, JsonError> {
        object.refuse_unknown(&[SERVICE_FIELDS, &["Name", "Check", "Checks", "Token"]].concat())?;
        let mut service = read_service(&object, "Name", spelling)?;
        if service.id.as_str().is_empty() {
            service.id = ServiceId::from(service.name.as_str());
        }
        let mesh = MeshFields::parse(&object)?.without_sidecar();
        Ok(Self { object, spelling, service, mesh, weights: weights(&object)? })
    }

    fn set_weights(&mut self) -> Result<(), DefinitionError> {
        let checked = checked_weights(self.weights);
        self.service.weights = checked.map_err(|reason| wrong(format!("Invalid Weights: {reason}")))?;
        Ok(())
    }

    /// Returns the rules that these fields break as a service inside another one.
    fn broken_rules_of_nested(&self) -> Vec<String> {
        let has = |object: &Object<'_>, name: &str| object.value(name).is_some_and(|value| value != "");
        let connect = self.object.object("Connect", "ServiceConnect");
        let is_nested = connect.is_ok_and(|connect| has(&connect, "SidecarService"));
        let rules = [
            (
                has(&self.object, "ID"),
                "A SidecarService cannot specify an ID as this is managed by the agent",
            ),
            (is_nested, "A SidecarService cannot have a nested SidecarService"),
        ];
        rules.into_iter().filter(|(is_broken, _)| *is_broken).map(|(_, rule)| rule.into()).collect()
    }

    fn checks(&self) -> Result<Vec<NewCheck>, DefinitionError> {
        // An empty `Check` counts as absent; in the list it has no kind, which is an error.
        let single = self.object.value("Check").filter(|check| !says_nothing(check));
        let values: Vec<&Value> =
            single.into_iter().chain(self.object.list("Checks", "structs.CheckTypes")?).collect();
        let is_only = values.len() == 1;
        let Service { id, name, .. } = &self.service;
        let parsed = values.into_iter().enumerate().map(|(position, value)| {
            let id = match is_only {
                true => format!("service:{id}"),
                false => format!("service:{id}:{}", position + 1),
            };
            parse_check_of_service(value, self.spelling, name, id)
        });
        parsed.collect()
    }

    /// Returns the sidecar of this service that these fields describe.
    fn into_sidecar(mut self, parent: &Fields<'_>) -> Result<Sidecar, DefinitionError> {
        self.set_weights()?;
        check_meta(&self.service.meta)
            .map_err(|reason| wrong(format!("Invalid SidecarService: {reason}")))?;
        let Service { id, name, address, tags, meta, .. } = &mut self.service;
        *id = ServiceId::from(sidecar_of(parent.service.id.as_str()));
        if name.is_empty() {
            *name = sidecar_of(&parent.service.name);
        }
        if address.is_empty() {
            address.clone_from(&parent.service.address);
        }
        if tags.is_empty() {
            tags.clone_from(&parent.service.tags);
        }
        if meta.is_empty() {
            meta.clone_from(&parent.service.meta);
        }
        let checks = self.checks().map_err(|error| match error {
            DefinitionError::Wrong(text) => {
                wrong(text.replacen("Invalid check:", "Invalid check in sidecar_service:", 1))
            }
            unusable @ DefinitionError::Unusable(_) => unusable,
        })?;
        self.mesh.complete_sidecar(&parent.service, &parent.mesh);
        let broken = self.mesh.broken_rules(self.service.port, false);
        if !broken.is_empty() {
            return Err(wrong(format!("Failed Validation: {}", in_words(&broken))));
        }
        let host = match self.service.address.as_str() {
            "" => self.mesh.local_address(),
            address => address,
        };
        let host = host.to_owned();
        Ok(Sidecar { service: self.into_service()?, checks, host })
    }

    fn into_service(mut self) -> Result<Service, DefinitionError> {
        self.mesh.store(&mut self.service.meta)?;
        check_families(&self.service)?;
        Ok(self.service)
    }
}

/// Returns errors as Consul lists them.
fn in_words(errors: &[String]) -> String {
    let count = if let [_] = errors { "1 error".into() } else { format!("{} errors", errors.len()) };
    let list: String = errors.iter().map(|error| format!("\n\t* {error}")).collect();
    format!("{count} occurred:{list}\n\n")
}

/// Checks the address of a service.
///
/// # Errors
/// It stands for every address, so no client could connect to it.
pub fn check_address(address: &str) -> Result<(), &'static str> {
    match address {
        "0.0.0.0" | "::" | "[::]" => Err("Invalid service address"),
        _ => Ok(()),
    }
}

/// Reads the weights as in Consul's catalog, which has 1 and 1 instead of invalid ones.
///
/// # Errors
/// A field has another type, or is unknown: the definition has to be changed.
pub(super) fn valid_weights(service: &Object<'_>) -> Result<(u32, u32), JsonError> {
    Ok(checked_weights(weights(service)?).unwrap_or((1, 1)))
}

fn weights(object: &Object<'_>) -> Result<Option<(i64, i64)>, JsonError> {
    if object.value("Weights").is_none() {
        return Ok(None);
    }
    let weights = object.object("Weights", "Weights")?;
    weights.refuse_unknown(&["Passing", "Warning"])?;
    Ok(Some((weights.i64("Passing")?, weights.i64("Warning")?)))
}

fn checked_weights(weights: Option<(i64, i64)>) -> Result<(u32, u32), &'static str> {
    let Some((passing, warning)) = weights else { return Ok((1, 1)) };
    if passing < 1 {
        return Err("Passing must be greater than 0");
    }
    if warning < 0 {
        return Err("Warning must be greater or equal than 0");
    }
    let weight = |number: i64| u16::try_from(number).map(u32::from);
    match (weight(passing), weight(warning)) {
        (Ok(passing), Ok(warning)) => Ok((passing, warning)),
        _ => Err("DNS Weight must be between 0 and 65535"),
    }
}

/// The reason why metadata is rejected, in Consul's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// There are more pairs than this maximum.
    #[error("Node metadata cannot contain more than {0} key/value pairs")]
    TooMany(usize),
    /// A pair has to be changed.
    #[error("Couldn't load metadata pair ('{key}', '{value}'): {reason}")]
    Pair {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        reason: String,
    },
}

/// Checks the metadata of a service or a node.
///
/// # Errors
/// The pair that has to be changed, and the reason, in Consul's words.
pub fn check_meta(meta: &BTreeMap<String, String>) -> Result<(), MetaError> {
    check_pairs(meta, Some("consul-"))
}

/// The same, with the prefix that no key may have.
pub(crate) fn check_pairs(meta: &BTreeMap<String, String>, reserved: Option<&str>) -> Result<(), MetaError> {
    let (max_pairs, max_key, max_value) = MAX_META;
    if meta.len() > max_pairs {
        return Err(MetaError::TooMany(max_pairs));
    }
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    for (key, value) in meta {
        let reason = if key.is_empty() {
            "Key cannot be blank".to_owned()
        } else if !key.chars().all(is_valid) {
            "Key contains invalid characters".into()
        } else if key.len() > max_key {
            format!("Key is too long (limit: {max_key} characters)")
        } else if let Some(prefix) = reserved.filter(|prefix| key.starts_with(prefix)) {
            format!("Key prefix '{prefix}' is reserved for internal use")
        } else if value.len() > max_value {
            format!("Value is too long (limit: {max_value} characters)")
        } else {
            continue;
        };
        return Err(MetaError::Pair { key: key.clone(), value: value.clone(), reason });
    }
    Ok(())
}

/// Reads the addresses by tag.
///
/// # Errors
/// An address has a field of another type, or an unknown one: the definition has to be changed.
fn tagged_addresses(
    service: &Object<'_>,
    spelling: Spelling,
) -> Result<BTreeMap<String, ServiceAddress>, JsonError> {
    let map = service.object("TaggedAddresses", "map[string]ServiceAddress")?;
    let mut addresses = BTreeMap::new();
    for tag in map.names() {
        map.object(tag, "ServiceAddress")?;
        let value = folded(map.value(tag).unwrap_or(&Value::Null), spelling);
        let address = Object::new("ServiceAddress", &value)?;
        address.refuse_unknown(&["Address", "Port"])?;
        let known =
            ServiceAddress { address: address.string("Address")?.into(), port: address.port("Port")? };
        addresses.insert(tag.to_owned(), known);
    }
    Ok(addresses)
}

/// Checks that a tagged address is of the family that its tag names.
fn check_families(service: &Service) -> Result<(), DefinitionError> {
    for (tag, address) in &service.tagged_addresses {
        let (family, is_valid) = match tag.as_str() {
            "lan_ipv4" | "wan_ipv4" => ("ipv4", address.address.parse::<Ipv4Addr>().is_ok()),
            "lan_ipv6" | "wan_ipv6" => ("ipv6", address.address.parse::<Ipv6Addr>().is_ok()),
            _ => continue,
        };
        if !is_valid {
            let reason = format!("Service tagged address {tag:?} must be a valid {family} address");
            return Err(DefinitionError::Unusable(reason));
        }
    }
    Ok(())
}
