//! The body of a prepared query, as Consul reads it: unknown fields are errors, and an absent list
//! differs from an empty one.

use crate::go::json::{JsonError, Object};
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::prepared_query::{QueryService, QuerySpec, QueryTarget, QueryTemplate};
use serde_json::Value;
use std::collections::BTreeMap;

const FIELDS: &[&str] =
    &["ID", "Name", "Session", "Token", "Template", "Service", "DNS", "CreateIndex", "ModifyIndex"];
const SERVICE_FIELDS: &[&str] = &[
    "Service",
    "Failover",
    "OnlyPassing",
    "IgnoreCheckIDs",
    "Near",
    "Tags",
    "NodeMeta",
    "ServiceMeta",
    "Connect",
    "Peer",
];

/// A prepared query as a client described it.
#[derive(Debug)]
pub(super) struct Draft {
    /// The id in the body, of meaning only for a creation.
    pub(super) id: String,
    /// The session, as text.
    pub(super) session: String,
    /// The description.
    pub(super) spec: QuerySpec,
    /// The number of datacenters, which may be negative.
    pub(super) nearest_n: i64,
}

/// Parses a body.
///
/// # Errors
/// The client has to change its request. Nothing was written.
pub(super) fn parse(value: &Value) -> Result<Draft, JsonError> {
    let object = Object::new("PreparedQuery", value)?;
    object.refuse_unknown(FIELDS)?;
    // Clients send back what they have read.
    object.u64("CreateIndex")?;
    object.u64("ModifyIndex")?;
    let session = object.string("Session")?.to_owned();
    let (service, nearest_n) = service(&object.object("Service", "ServiceQuery.Service")?)?;
    let spec = QuerySpec {
        name: object.string("Name")?.into(),
        session: match session.as_str() {
            "" => None,
            text => Some(SessionId::parse(text).unwrap_or(SessionId::NIL)),
        },
        token: object.string("Token")?.into(),
        template: template(&object.object("Template", "QueryTemplateOptions.Template")?)?,
        service,
        dns_ttl: {
            let dns = object.object("DNS", "QueryDNSOptions.DNS")?;
            dns.refuse_unknown(&["TTL"])?;
            dns.string("TTL")?.into()
        },
    };
    Ok(Draft { id: object.string("ID")?.into(), session, spec, nearest_n })
}

fn template(object: &Object<'_>) -> Result<QueryTemplate, JsonError> {
    object.refuse_unknown(&["Type", "Regexp", "RemoveEmptyTags"])?;
    Ok(QueryTemplate {
        kind: object.string("Type")?.into(),
        regexp: object.string("Regexp")?.into(),
        remove_empty_tags: object.bool("RemoveEmptyTags")?,
    })
}

fn service(object: &Object<'_>) -> Result<(QueryService, i64), JsonError> {
    object.refuse_unknown_or_said(SERVICE_FIELDS, &["SamenessGroup"])?;
    let failover = object.object("Failover", "QueryDatacenterOptions.Service.Failover")?;
    failover.refuse_unknown(&["NearestN", "Datacenters", "Targets"])?;
    let nearest_n = failover.i64("NearestN")?;
    let service = QueryService {
        service: object.string("Service")?.into(),
        nearest_n: u64::try_from(nearest_n).unwrap_or_default(),
        datacenters: strings(&failover, "Datacenters")?,
        targets: targets(&failover)?,
        only_passing: object.bool("OnlyPassing")?,
        ignore_check_ids: strings(object, "IgnoreCheckIDs")?,
        near: object.string("Near")?.into(),
        tags: strings(object, "Tags")?,
        node_meta: pairs(object, "NodeMeta")?,
        service_meta: pairs(object, "ServiceMeta")?,
        connect: object.bool("Connect")?,
        peer: object.string("Peer")?.into(),
    };
    Ok((service, nearest_n))
}

fn targets(failover: &Object<'_>) -> Result<Option<Vec<QueryTarget>>, JsonError> {
    if failover.value("Targets").is_none() {
        return Ok(None);
    }
    let target = |value: &Value| {
        let object = Object::new("QueryFailoverTarget", value)?;
        object.refuse_unknown_or_said(&["Peer", "Datacenter"], &["Partition", "Namespace"])?;
        let (peer, datacenter) = (object.string("Peer")?.into(), object.string("Datacenter")?.into());
        Ok(QueryTarget { peer, datacenter })
    };
    let targets = failover.list("Targets", "[]structs.QueryFailoverTarget")?;
    targets.iter().map(target).collect::<Result<_, JsonError>>().map(Some)
}

fn strings(object: &Object<'_>, name: &str) -> Result<Option<Vec<String>>, JsonError> {
    let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
    object.value(name).map(|_| object.strings(name).map(owned)).transpose()
}

fn pairs(object: &Object<'_>, name: &str) -> Result<Option<BTreeMap<String, String>>, JsonError> {
    object.value(name).map(|_| object.string_map(name).map(Iterator::collect)).transpose()
}
