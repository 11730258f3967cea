//! The fields of a service that only a service mesh uses: `Kind`, `Proxy` and `Connect`.
//!
//! There is no service mesh here: the fields are stored, and returned as they were sent. Stored
//! structs never change, so they have no fields of their own in the state: all three are one entry
//! of the service's metadata, under a key that clients neither see nor use.

use super::go::json::{JsonError, Object, says_nothing};
use lockmesh_client::shape::catalog::Proxy;
use lockmesh_protocol::record::Service;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The key of the entry. A control character is valid in no key of Consul's metadata.
const KEY: &str = "\u{0}service-mesh";

/// The names of the fields.
pub(crate) const FIELDS: [&str; 3] = ["Kind", "Proxy", "Connect"];

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
pub(crate) struct MeshFields {
    #[serde(skip_serializing_if = "String::is_empty")]
    kind: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    proxy: Map<String, Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    connect: Map<String, Value>,
}

impl MeshFields {
    /// Parses the fields of a service in a request.
    ///
    /// # Errors
    /// The client has to change its request.
    pub(crate) fn parse(service: &Object<'_>) -> Result<Self, JsonError> {
        let proxy = service.object("Proxy", "ConnectProxyConfig")?;
        proxy.string("Mode")?;
        for name in ["MeshGateway", "Expose"] {
            proxy.object(name, "map[string]interface {}")?;
        }
        let connect = service.object("Connect", "ServiceConnect")?;
        connect.bool("Native")?;
        Ok(Self {
            kind: service.string("Kind")?.into(),
            proxy: known(&proxy, PROXY_FIELDS)?,
            connect: known(&connect, CONNECT_FIELDS)?,
        })
    }

    /// Adds the fields to the metadata of a service, if a client set any.
    ///
    /// # Errors
    /// The metadata has the key already: the client has to change its request.
    pub(crate) fn store(&self, meta: &mut BTreeMap<String, String>) -> Result<(), JsonError> {
        if meta.contains_key(KEY) {
            return Err(JsonError::Value(format!("the key {KEY:?} of Meta is reserved: use another one")));
        }
        if *self != Self::default() {
            let text = serde_json::to_string(self).expect("maps of values have a JSON form");
            meta.insert(KEY.into(), text);
        }
        Ok(())
    }

    /// Returns the fields of a stored service.
    pub(super) fn of(service: &Service) -> Self {
        let stored = service.meta.get(KEY).and_then(|text| serde_json::from_str(text).ok());
        stored.unwrap_or_default()
    }

    /// Returns the kind; empty for a usual service.
    pub(super) fn kind(&self) -> String {
        self.kind.clone()
    }

    /// Returns the proxy; the empty one for a service that is none.
    pub(super) fn proxy(&self) -> Proxy {
        serde_json::from_value(Value::Object(self.proxy.clone())).unwrap_or_default()
    }

    /// Returns `true` for a proxy of the named service.
    pub(super) fn is_proxy_of(&self, name: &str) -> bool {
        let destination = self.proxy.get("DestinationServiceName").and_then(Value::as_str);
        let is_its = destination.is_some_and(|known| known.to_lowercase() == name.to_lowercase());
        self.kind == "connect-proxy" && is_its
    }

    /// Returns `true` for a service that needs no proxy in the service mesh.
    pub(super) fn is_native(&self) -> bool {
        self.connect.get("Native").and_then(Value::as_bool).unwrap_or_default()
    }

    /// Returns the settings of the service mesh.
    pub(super) fn connect(&self) -> Map<String, Value> {
        self.connect.clone()
    }
}

/// Returns the metadata of a service that clients see.
pub(super) fn visible_meta(service: &Service) -> BTreeMap<String, String> {
    let mut meta = service.meta.clone();
    meta.remove(KEY);
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
    fn what_go_sends_for_unset_fields_is_not_stored() {
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
    fn other_types_and_fields_are_refused() {
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
