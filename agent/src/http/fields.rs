//! The rows of each endpoint with `?filter=`, and their fields as filters see them: Consul's
//! exported fields by its names, without the indexes.

use super::answer::Failure;
use super::call::Call;
use super::filter::{Count, Filter, FilterError, List, Record, Value};
use lockmesh_client::shape::agent::Service as AgentService;
use lockmesh_client::shape::catalog::{Node, Proxy, Service, ServiceAddress, ServiceNode, Weights};
use lockmesh_client::shape::health::{Check, ServiceInstance};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use tokio::task::yield_now;

/// The number of steps after which other requests get a turn: some milliseconds.
const STEPS_PER_TURN: u64 = 1 << 20;

/// A type of rows that an endpoint lists.
pub(super) trait Row: Record + Default + Send + Sync {}

impl<T: Record + Default + Send + Sync> Row for T {}

/// The filter of a request, for rows of one type; without `?filter=` it selects all.
#[derive(Debug)]
pub(super) struct RowFilter<T> {
    filter: Option<Filter>,
    /// The work so far.
    steps: u64,
    rows: PhantomData<fn(&T)>,
}

impl<T: Row> RowFilter<T> {
    /// Parses the filter of a request. A filter that is wrong for these rows is an error even if
    /// there are none.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let text = call.params.non_empty("filter");
        let filter = text.map(|text| Filter::new(text, &T::default())).transpose()?;
        Ok(Self { filter, steps: 0, rows: PhantomData })
    }

    /// Returns `true` if the request has a filter.
    pub(super) fn is_set(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns the selected rows, in their order.
    pub(super) fn select(
        &mut self,
        rows: impl Iterator<Item = T>,
    ) -> impl Iterator<Item = Result<T, Failure>> {
        rows.filter_map(|row| match self.selects(&row) {
            Ok(true) => Some(Ok(row)),
            Ok(false) => None,
            Err(failure) => Some(Err(failure)),
        })
    }

    /// The same for the shared thread.
    pub(super) async fn select_in_turns(&mut self, rows: impl Iterator<Item = T>) -> Result<Vec<T>, Failure> {
        let mut selected = Vec::new();
        for row in rows {
            let turn = self.steps / STEPS_PER_TURN;
            if self.selects(&row)? {
                selected.push(row);
            }
            if self.steps / STEPS_PER_TURN > turn {
                yield_now().await;
            }
        }
        Ok(selected)
    }

    fn selects(&mut self, row: &T) -> Result<bool, Failure> {
        match &self.filter {
            Some(filter) => Ok(filter.selects(row, &mut self.steps)?),
            None => Ok(true),
        }
    }
}

impl From<FilterError> for Failure {
    fn from(error: FilterError) -> Self {
        if error.is_limit() {
            crate::metrics::LIMITS.with_label_values(&["filter"]).inc();
        }
        Self::refused(format!("Failed to create boolean expression evaluator: {error}"))
    }
}

impl Record for Node {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "ID" => Value::Text(&self.id),
            "Node" => Value::Text(&self.node),
            "Address" => Value::Text(&self.address),
            "Datacenter" => Value::Text(&self.datacenter),
            "TaggedAddresses" => texts_by_key(&self.tagged_addresses),
            "Meta" => texts_by_key(&self.meta),
            _ => return None,
        })
    }
}

/// The fields of a service, as the catalog and the agent have it: one omits what the other leaves
/// empty.
macro_rules! service_fields {
    ($service:ty, $texts:path, $texts_by_key:path, $proxy:path) => {
        impl Record for $service {
            fn field(&self, name: &str) -> Option<Value<'_>> {
                Some(match name {
                    "Kind" => Value::Text(&self.kind),
                    "ID" => Value::Text(&self.id),
                    "Service" => Value::Text(&self.service),
                    "Tags" => $texts(&self.tags),
                    "Address" => Value::Text(&self.address),
                    "TaggedAddresses" => Value::RecordMap(&self.tagged_addresses),
                    "Meta" => $texts_by_key(&self.meta),
                    "Port" => Value::Number(self.port.into()),
                    "Weights" => Value::Record(Box::new(&self.weights)),
                    "EnableTagOverride" => Value::Bool(self.enable_tag_override),
                    "Proxy" => Value::Record(Box::new(MeshProxy($proxy(&self.proxy)))),
                    "Connect" => connect(&self.connect),
                    _ => return None,
                })
            }
        }
    };
}

service_fields!(Service, texts, texts_by_key, Some);
service_fields!(AgentService, Value::Texts, Value::TextMap, Option::as_ref);

impl Record for ServiceNode {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "ID" => Value::Text(&self.id),
            "Node" => Value::Text(&self.node),
            "Address" => Value::Text(&self.address),
            "Datacenter" => Value::Text(&self.datacenter),
            "TaggedAddresses" => texts_by_key(&self.tagged_addresses),
            "NodeMeta" => texts_by_key(&self.node_meta),
            "ServiceKind" => Value::Text(&self.service_kind),
            "ServiceID" => Value::Text(&self.service_id),
            "ServiceName" => Value::Text(&self.service_name),
            "ServiceTags" => Value::Texts(&self.service_tags),
            "ServiceAddress" => Value::Text(&self.service_address),
            "ServiceTaggedAddresses" => Value::RecordMap(&self.service_tagged_addresses),
            "ServiceWeights" => Value::Record(Box::new(&self.service_weights)),
            "ServiceMeta" => Value::TextMap(&self.service_meta),
            "ServicePort" => Value::Number(self.service_port.into()),
            "ServiceEnableTagOverride" => Value::Bool(self.service_enable_tag_override),
            "ServiceProxy" => Value::Record(Box::new(MeshProxy(Some(&self.service_proxy)))),
            "ServiceConnect" => connect(&self.service_connect),
            _ => return None,
        })
    }
}

impl Record for Check {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Node" => Value::Text(&self.node),
            "CheckID" => Value::Text(&self.check_id),
            "Name" => Value::Text(&self.name),
            "Status" => Value::Text(&self.status),
            "Notes" => Value::Text(&self.notes),
            "Output" => Value::Text(&self.output),
            "ServiceID" => Value::Text(&self.service_id),
            "ServiceName" => Value::Text(&self.service_name),
            "ServiceTags" => texts(&self.service_tags),
            "Type" => Value::Text(&self.kind),
            _ => return None,
        })
    }
}

impl Record for ServiceInstance {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Node" => Value::Record(Box::new(&self.node)),
            "Service" => Value::Record(Box::new(&self.service)),
            "Checks" => Value::Records(Box::new(self.checks.as_slice())),
            _ => return None,
        })
    }
}

impl Record for Weights {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        match name {
            "Passing" => Some(Value::Number(self.passing.into())),
            "Warning" => Some(Value::Number(self.warning.into())),
            _ => None,
        }
    }
}

impl Record for ServiceAddress {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        match name {
            "Address" => Some(Value::Text(&self.address)),
            "Port" => Some(Value::Number(self.port.into())),
            _ => None,
        }
    }
}

fn texts(list: &Option<Vec<String>>) -> Value<'_> {
    Value::Texts(list.as_deref().unwrap_or_default())
}

fn texts_by_key(map: &Option<BTreeMap<String, String>>) -> Value<'_> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    Value::TextMap(map.as_ref().unwrap_or(&NONE))
}

/// The type of a field of the service mesh, which is stored as JSON.
enum Type {
    Text,
    Number,
    Bool,
    Struct(&'static Fields),
    List(&'static Fields),
}

type Fields = [(&'static str, Type)];

const PROXY: &Fields = &[
    ("DestinationServiceName", Type::Text),
    ("DestinationServiceID", Type::Text),
    ("LocalServiceAddress", Type::Text),
    ("LocalServicePort", Type::Number),
    ("Upstreams", Type::List(UPSTREAM)),
];
const UPSTREAM: &Fields = &[
    ("DestinationType", Type::Text),
    ("DestinationNamespace", Type::Text),
    ("DestinationName", Type::Text),
    ("Datacenter", Type::Text),
    ("LocalBindAddress", Type::Text),
    ("LocalBindPort", Type::Number),
    ("MeshGateway", Type::Struct(MESH_GATEWAY)),
];
const MESH_GATEWAY: &Fields = &[("Mode", Type::Text)];
const EXPOSE: &Fields = &[("Checks", Type::Bool), ("Paths", Type::List(EXPOSED_PATH))];
const EXPOSED_PATH: &Fields = &[
    ("ListenerPort", Type::Number),
    ("Path", Type::Text),
    ("LocalPathPort", Type::Number),
    ("Protocol", Type::Text),
    ("ParsedFromCheck", Type::Bool),
];
const CONNECT: &Fields = &[("Native", Type::Bool)];

/// The proxy of a service; other services have empty fields.
struct MeshProxy<'a>(Option<&'a Proxy>);

impl Record for MeshProxy<'_> {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        let part = |of: fn(&Proxy) -> &Map<String, Json>, fields| {
            Value::Record(Box::new(MeshObject { object: self.0.map(of), fields }))
        };
        match name {
            "Mode" => Some(Value::Text(self.0.map_or("", |proxy| &proxy.mode))),
            "MeshGateway" => Some(part(|proxy| &proxy.mesh_gateway, MESH_GATEWAY)),
            "Expose" => Some(part(|proxy| &proxy.expose, EXPOSE)),
            _ => mesh_field(self.0.map(|proxy| &proxy.more), PROXY, name),
        }
    }
}

fn connect(object: &Map<String, Json>) -> Value<'_> {
    Value::Record(Box::new(MeshObject { object: Some(object), fields: CONNECT }))
}

/// A JSON object with these fields; what it does not have is empty.
struct MeshObject<'a> {
    object: Option<&'a Map<String, Json>>,
    fields: &'static Fields,
}

impl Record for MeshObject<'_> {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        mesh_field(self.object, self.fields, name)
    }
}

fn mesh_field<'a>(
    object: Option<&'a Map<String, Json>>,
    fields: &'static Fields,
    name: &str,
) -> Option<Value<'a>> {
    let (_, kind) = fields.iter().find(|(known, _)| *known == name)?;
    let value = object.and_then(|object| object.get(name));
    Some(match kind {
        Type::Text => Value::Text(value.and_then(Json::as_str).unwrap_or_default()),
        Type::Number => Value::Number(value.and_then(Json::as_i64).unwrap_or_default()),
        Type::Bool => Value::Bool(value.and_then(Json::as_bool).unwrap_or_default()),
        Type::Struct(fields) => {
            Value::Record(Box::new(MeshObject { object: value.and_then(Json::as_object), fields }))
        }
        Type::List(fields) => {
            let list = value.and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
            Value::Records(Box::new(MeshList { list, fields }))
        }
    })
}

/// A JSON list of objects with these fields.
struct MeshList<'a> {
    list: &'a [Json],
    fields: &'static Fields,
}

impl Count for MeshList<'_> {
    fn has_none(&self) -> bool {
        self.list.is_empty()
    }

    fn sample(&self) -> Box<dyn Record> {
        Box::new(MeshObject { object: None, fields: self.fields })
    }
}

impl List for MeshList<'_> {
    fn any(&self, fits: &mut dyn FnMut(&dyn Record) -> bool) -> bool {
        self.list.iter().any(|element| fits(&MeshObject { object: element.as_object(), fields: self.fields }))
    }
}
