//! The fields of a service that are only kept: `Kind`, `Proxy` and `Connect` of a service mesh,
//! `SocketPath` and `Locality`.
//!
//! There is no service mesh here: the fields are stored, and returned as they were sent. Stored
//! structs never change, so they have no fields of their own in the state: all are one entry of the
//! service's metadata, under a key that clients neither see nor use. A proxy has a second entry, by
//! which the servers find the proxies of a service.

use crate::go::json::{JsonError, Object, says_nothing};
use lockmesh_protocol::record::{PROXY_OF, Service};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The key of the entry. A control character is valid in no key of Consul's metadata.
const KEY: &str = "\u{0}service-mesh";

/// The kind of a proxy for another service.
const CONNECT_PROXY: &str = "connect-proxy";
/// The kinds of gateways, and whether each needs a port.
const GATEWAYS: [(&str, bool); 4] = [
    ("mesh-gateway", true),
    ("terminating-gateway", true),
    ("ingress-gateway", false),
    ("api-gateway", false),
];
/// Fields of a proxy that a gateway must not have.
const NOT_OF_GATEWAYS: [&str; 6] = [
    "DestinationServiceName",
    "DestinationServiceID",
    "LocalServiceAddress",
    "LocalServicePort",
    "LocalServiceSocketPath",
    "Upstreams",
];

const PROXY_FIELDS: &[&str] = &[
    "DestinationServiceName",
    "DestinationServiceID",
    "LocalServiceAddress",
    "LocalServicePort",
    "LocalServiceSocketPath",
    "Mode",
    "TransparentProxy",
    "MutualTLSMode",
    "Config",
    "Upstreams",
    "MeshGateway",
    "Expose",
    "AccessLogs",
    "EnvoyExtensions",
];
const CONNECT_FIELDS: &[&str] = &["Native", "SidecarService", "PeerMeta"];

/// The fields of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeshFields {
    /// The kind; empty for a usual service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The proxy; empty for a service that is none.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub proxy: Map<String, Value>,
    /// The settings of the service mesh.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub connect: Map<String, Value>,
    /// The path of the Unix socket; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The region and the zone; empty for none.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub locality: Map<String, Value>,
}

impl MeshFields {
    /// Parses the fields of a service in a request.
    ///
    /// # Errors
    /// The client has to change its request.
    pub fn parse(service: &Object<'_>) -> Result<Self, JsonError> {
        let proxy = service.object("Proxy", "ConnectProxyConfig")?;
        for name in ["Mode", "DestinationServiceName", "DestinationServiceID", "LocalServiceAddress"] {
            proxy.string(name)?;
        }
        proxy.string("LocalServiceSocketPath")?;
        proxy.port("LocalServicePort")?;
        for name in ["MeshGateway", "Expose"] {
            proxy.object(name, "map[string]interface {}")?;
        }
        let connect = service.object("Connect", "ServiceConnect")?;
        connect.bool("Native")?;
        let locality = service.object("Locality", "Locality")?;
        locality.string("Region")?;
        locality.string("Zone")?;
        Ok(Self {
            kind: service.string("Kind")?.into(),
            proxy: known(&proxy, PROXY_FIELDS)?,
            connect: known(&connect, CONNECT_FIELDS)?,
            socket_path: service.string("SocketPath")?.into(),
            locality: known(&locality, &["Region", "Zone"])?,
        })
    }

    /// Returns the rules of Consul's agents that a service with this port breaks. `has_sidecar` is
    /// set if a sidecar is registered with it.
    pub fn broken_rules(&self, port: u16, has_sidecar: bool) -> Vec<String> {
        let mut broken = Vec::new();
        let mut add = |is_broken: bool, rule: String| broken.extend(is_broken.then_some(rule));
        let kind = &self.kind;
        if kind == CONNECT_PROXY {
            let (destination, name) =
                (self.proxy_text("DestinationServiceName"), "Proxy.DestinationServiceName");
            let of = "for Connect proxy services";
            add(destination.trim().is_empty(), format!("{name} must be non-empty {of}"));
            add(destination == "*", format!("{name} must not be a wildcard {of}"));
            add(self.is_native(), "A Proxy cannot also be Connect Native, only typical services".into());
        }
        if let Some((_, needs_port)) = GATEWAYS.iter().find(|(gateway, _)| gateway == kind) {
            add(*needs_port && port == 0, format!("Port must be non-zero for a {kind}"));
            add(has_sidecar, format!("A {kind} cannot have a sidecar service defined"));
            for field in NOT_OF_GATEWAYS {
                let is_set = self.proxy.contains_key(field);
                add(is_set, format!("The Proxy.{field} configuration is invalid for a {kind}"));
            }
        }
        let is_unreachable = self.is_native() && port == 0 && self.socket_path.is_empty();
        add(is_unreachable, "Port or SocketPath must be set for a Connect native service.".into());
        broken
    }

    /// Removes the definition of a sidecar, which is registered as a service of its own.
    pub fn without_sidecar(mut self) -> Self {
        self.connect.remove("SidecarService");
        self
    }

    /// Sets what a sidecar of this service does not define itself.
    pub fn complete_sidecar(&mut self, parent: &Service, of_parent: &Self) {
        if self.kind.is_empty() {
            self.kind = CONNECT_PROXY.into();
        }
        self.default_proxy("DestinationServiceName", parent.name.as_str().into());
        self.default_proxy("DestinationServiceID", parent.id.as_str().into());
        let has = |name: &str| self.proxy.contains_key(name);
        if has("LocalServiceSocketPath") || (has("LocalServiceAddress") && has("LocalServicePort")) {
            return;
        }
        if of_parent.socket_path.is_empty() {
            self.default_proxy("LocalServiceAddress", "127.0.0.1".into());
            self.default_proxy("LocalServicePort", parent.port.into());
        } else {
            self.default_proxy("LocalServiceSocketPath", of_parent.socket_path.as_str().into());
        }
    }

    fn default_proxy(&mut self, name: &str, value: Value) {
        if !says_nothing(&value) {
            self.proxy.entry(name).or_insert(value);
        }
    }

    /// Returns the address of the service that a proxy is for.
    pub fn local_address(&self) -> &str {
        self.proxy_text("LocalServiceAddress")
    }

    /// Adds the fields to the metadata of a service, if a client set any.
    ///
    /// # Errors
    /// The metadata has the key already: the client has to change its request.
    pub fn store(&self, meta: &mut BTreeMap<String, String>) -> Result<(), JsonError> {
        if let Some(key) = [KEY, PROXY_OF].into_iter().find(|key| meta.contains_key(*key)) {
            return Err(JsonError::Value(format!("the key {key:?} of Meta is reserved: use another one")));
        }
        if *self != Self::default() {
            let text = serde_json::to_string(self).expect("maps of values have a JSON form");
            meta.insert(KEY.into(), text);
        }
        if self.kind == CONNECT_PROXY {
            meta.insert(PROXY_OF.into(), self.proxy_text("DestinationServiceName").into());
        }
        Ok(())
    }

    /// Returns the fields of a stored service.
    pub fn of(service: &Service) -> Self {
        let stored = service.meta.get(KEY).and_then(|text| serde_json::from_str(text).ok());
        stored.unwrap_or_default()
    }

    /// Returns `true` for a kind whose proxy settings agents show: a proxy or a gateway.
    pub fn shows_proxy(&self) -> bool {
        self.kind == CONNECT_PROXY || GATEWAYS.iter().any(|(gateway, _)| *gateway == self.kind)
    }

    /// Returns `true` for a proxy of the named service.
    pub fn is_proxy_of(&self, name: &str) -> bool {
        let destination = self.proxy_text("DestinationServiceName");
        self.kind == CONNECT_PROXY && destination.to_lowercase() == name.to_lowercase()
    }

    fn proxy_text(&self, name: &str) -> &str {
        self.proxy.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns `true` for a service that needs no proxy in the service mesh.
    pub fn is_native(&self) -> bool {
        self.connect.get("Native").and_then(Value::as_bool).unwrap_or_default()
    }
}

/// Returns the metadata of a service that clients see.
pub fn visible_meta(service: &Service) -> BTreeMap<String, String> {
    let mut meta = service.meta.clone();
    meta.remove(KEY);
    meta.remove(PROXY_OF);
    meta
}

/// Returns the fields that are set, each under its own spelling.
fn known(object: &Object<'_>, names: &[&str]) -> Result<Map<String, Value>, JsonError> {
    object.refuse_unknown(names)?;
    let set = names.iter().filter_map(|name| Some((*name, object.value(name)?)));
    let set = set.filter(|(_, value)| !says_nothing(value));
    Ok(set.map(|(name, value)| (name.to_owned(), value.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(service: &Value) -> Result<MeshFields, String> {
        let object = Object::new("NodeService", service).map_err(|error| error.to_string())?;
        MeshFields::parse(&object).map_err(|error| error.to_string())
    }

    #[test]
    fn unset_go_fields_not_stored() {
        for unset in [
            json!({}),
            json!({"Kind": "", "Proxy": null, "Connect": null}),
            json!({"Proxy": {"Mode": "", "MeshGateway": {}, "Expose": {}, "Upstreams": null}, "Connect": {"Native": false}}),
        ] {
            let mut meta = BTreeMap::from([("a".into(), "b".into())]);
            parse(&unset).expect("it is good").store(&mut meta).expect("the key is free");
            assert_eq!(meta.len(), 1, "{unset}");
        }
    }

    #[test]
    fn invalid_types_and_fields_rejected() {
        for (service, text) in [
            (json!({"Kind": 7}), "NodeService.Kind of type string"),
            (json!({"Proxy": "x"}), "NodeService.Proxy of type ConnectProxyConfig"),
            (json!({"Proxy": {"Nonsense": 1}}), "json: unknown field \"Nonsense\""),
            (json!({"Proxy": {"MeshGateway": []}}), "ConnectProxyConfig.MeshGateway"),
            (json!({"Proxy": {"Mode": 1}}), "ConnectProxyConfig.Mode of type string"),
            (json!({"Connect": {"Native": "yes"}}), "ServiceConnect.Native of type bool"),
        ] {
            let error = parse(&service).expect_err("it is wrong");
            assert!(error.contains(text), "{service}: {error}");
        }
        let mut taken = BTreeMap::from([(KEY.to_owned(), String::new())]);
        assert!(
            MeshFields::default()
                .store(&mut taken)
                .is_err_and(|error| error.to_string().contains("reserved"))
        );
    }
}
