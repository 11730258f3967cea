//! `/v1/txn`: several operations, all or none.

use super::super::access::{self, Keys, Need};
use super::super::answer::{self, Failure};
use super::super::audit::{self, Action};
use super::super::body::Body;
use super::super::call::Call;
use super::super::shapes;
use crate::config::Level;
use crate::definitions::{check_service, parse_catalog_check, parse_catalog_service, parse_node};
use crate::go::json::{JsonError, Object, first_value, kind};
use bytes::Bytes;
use http::{Response, StatusCode};
use lockmesh_client::outcome::Outcome;
use lockmesh_client::shape::blob::decode_base64;
use lockmesh_client::shape::json::render;
use lockmesh_client::shape::txn::{TxnAnswer, TxnError as TxnErrorShape, TxnReadAnswer};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::{CatalogVerb, Command, KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex, NodeName};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::{Reply, TxnError, TxnResult};
use serde::Serialize;
use serde_json::Value;

/// The documentation of the limit; part of a text that clients know.
const BODY_SIZE_HELP: &str = "https://developer.hashicorp.com/docs/agent/config/config-files#txn_max_req_len";

pub(super) async fn run(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let limits = &call.api.limits;
    // The larger of the two, as in Consul. Values are base64 here: one of more than three quarters
    // of this size can only be written alone.
    let body_limit = limits.txn_max_req_len.max(limits.kv_max_value_size);
    let too_large = |length: Option<u64>| {
        let measured = length.map(|length| format!("({length} bytes)")).unwrap_or_default();
        format!("Request body{measured} too large, max size: {body_limit} bytes. See {BODY_SIZE_HELP}.")
    };
    let body = call.body(body, body_limit, too_large).await?;
    let operations =
        parse_body(&body).map_err(|error| Failure::bad_request(format!("Failed to parse body: {error}")))?;
    access::check(call, operations.iter().flatten().map(need_of))?;
    check_sizes(call, &operations)?;
    let mut operations: Vec<TxnOp> = operations.into_iter().flatten().collect();
    operations.iter_mut().for_each(|operation| complete(call, operation));
    let errors: Vec<TxnErrorShape> = wrong_services(&operations).collect();
    if !errors.is_empty() {
        return Ok(failed(call, &TxnAnswer { results: None, errors: Some(errors) }));
    }
    let trees = deleted_trees(&operations);
    let trees: Vec<&str> = trees.iter().map(Key::as_str).collect();
    if !trees.is_empty() {
        audit::recorded(call, Action::DeleteTree, &trees, write(call, operations)).await
    } else if operations.iter().any(TxnOp::is_write) {
        write(call, operations).await
    } else {
        read(call, operations).await
    }
}

/// Returns the facts of an operation that rules judge.
fn need_of(operation: &TxnOp) -> Need<'_> {
    let (level, keys) = match operation {
        TxnOp::Kv(TxnKv { verb, key, .. }) => (level_of(verb), Keys::Below(key.as_str())),
        TxnOp::Node { verb, .. } | TxnOp::Service { verb, .. } | TxnOp::Check { verb, .. } => {
            (if *verb == CatalogVerb::Get { Level::Read } else { Level::All }, Keys::None)
        }
    };
    Need { level, keys, instead: "use the verbs lock, unlock, cas and delete-cas" }
}

fn level_of(verb: &KvVerb) -> Level {
    match verb {
        KvVerb::Get | KvVerb::GetOrEmpty | KvVerb::GetTree => Level::Read,
        KvVerb::CheckSession | KvVerb::CheckIndex | KvVerb::CheckNotExists => Level::Read,
        KvVerb::Lock | KvVerb::Unlock | KvVerb::Cas | KvVerb::DeleteCas => Level::Locks,
        KvVerb::Set | KvVerb::Delete | KvVerb::DeleteTree | KvVerb::Unknown(_) => Level::All,
    }
}

/// Sets the datacenter of a node that names none: this one.
fn complete(call: &Call<'_>, operation: &mut TxnOp) {
    if let TxnOp::Node { node, .. } = operation
        && node.datacenter.is_empty()
    {
        node.datacenter.clone_from(&call.api.identity.datacenter);
    }
}

/// Returns an error for each service that must not be stored.
fn wrong_services(operations: &[TxnOp]) -> impl Iterator<Item = TxnErrorShape> + '_ {
    (0..).zip(operations).filter_map(|(op_index, operation)| match operation {
        TxnOp::Service { verb: CatalogVerb::Set | CatalogVerb::Cas, service, .. } => {
            let what = check_service(service).err()?.to_string();
            Some(TxnErrorShape { op_index, what })
        }
        _ => None,
    })
}

/// Returns the prefixes that a transaction deletes.
fn deleted_trees(operations: &[TxnOp]) -> Vec<Key> {
    let trees = operations.iter().filter_map(|operation| match operation {
        TxnOp::Kv(TxnKv { verb: KvVerb::DeleteTree, key, .. }) => Some(key.clone()),
        _ => None,
    });
    trees.collect()
}

fn check_sizes(call: &Call<'_>, operations: &[Option<TxnOp>]) -> Result<(), Failure> {
    let limits = &call.api.limits;
    let too_large = |limit: &str, text: String| {
        crate::metrics::LIMITS.with_label_values(&[limit]).inc();
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let (count, most) = (operations.len(), limits.txn_max_operations);
    if count > most {
        let text = format!("Transaction contains too many operations ({count} > {most})");
        return Err(too_large("txn_operations", text));
    }
    for operation in operations.iter().flatten() {
        let TxnOp::Kv(TxnKv { key, value, .. }) = operation else { continue };
        let (length, longest) = (value.len(), limits.kv_max_value_size);
        if length > longest {
            let text = format!("Value for key {:?} is too large ({length} > {longest} bytes)", key.as_str());
            return Err(too_large("value_size", text));
        }
    }
    Ok(())
}

async fn write(call: &Call<'_>, operations: Vec<TxnOp>) -> Result<Response<Body>, Failure> {
    let applied = call.propose(Command::Txn(operations)).await?;
    let response = match applied.reply {
        Reply::Txn(results) => {
            let answer = TxnAnswer { results: Some(shaped(&results)), errors: None };
            answer::json(&answer, call.layout())
        }
        Reply::TxnFailed(errors) => {
            failed(call, &TxnAnswer { results: None, errors: Some(shaped_errors(&errors)) })
        }
        Reply::Refused(refusal) => return Err(refusal.into()),
        other => return Err(super::misfit::wrong_reply(&other)),
    };
    Ok(answer::with_write_index(response, applied.index))
}

/// Runs a transaction without a write, as a read: any consistency, no waiting, no index in its
/// headers.
async fn read(call: &Call<'_>, operations: Vec<TxnOp>) -> Result<Response<Body>, Failure> {
    let options = super::super::call::ReadOptions { consistency: call.consistency()?, blocking: None };
    let answer = call.read(Query::Txn(operations), options, None).await?;
    let Rows::Txn(outcome) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let mut shape = TxnReadAnswer {
        index: answer.index.0.max(1),
        last_contact: u64::try_from(answer.last_contact.as_nanos()).unwrap_or(u64::MAX),
        known_leader: answer.known_leader,
        results_filtered_by_acls: answer.is_filtered && matches!(call.caller, Caller::Token(_)),
        ..TxnReadAnswer::default()
    };
    let response = match outcome {
        Ok(results) => {
            shape.results = Some(shaped(results));
            answer::json(&shape, call.layout())
        }
        Err(errors) => {
            shape.errors = Some(shaped_errors(errors));
            failed(call, &shape)
        }
    };
    Ok(answer::with_contact(response, &answer))
}

fn shaped(results: &[TxnResult]) -> Vec<lockmesh_client::shape::txn::TxnResult> {
    results.iter().map(shapes::txn_result).collect()
}

fn shaped_errors(errors: &[TxnError]) -> Vec<TxnErrorShape> {
    let shape = |error: &TxnError| TxnErrorShape { op_index: error.op_index, what: error.what.clone() };
    errors.iter().map(shape).collect()
}

/// Returns 409 with all errors.
fn failed(call: &Call<'_>, answer: &impl Serialize) -> Response<Body> {
    crate::metrics::REFUSALS.with_label_values(&["txn"]).inc();
    let response = answer::json_bytes(StatusCode::CONFLICT, render(answer, call.layout()));
    answer::with_outcome(response, Outcome::Refused)
}

/// Parses the body of a transaction. An element without an operation is `None`: it is counted, and
/// then dropped.
///
/// # Errors
/// The client has to change its request. None of its operations was proposed.
pub fn parse_body(body: &[u8]) -> Result<Vec<Option<TxnOp>>, JsonError> {
    match first_value(body)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(elements) => elements.iter().map(parse_operation).collect(),
        other => Err(JsonError::Whole { found: kind(&other), wanted: "api.TxnOps" }),
    }
}

fn parse_operation(element: &Value) -> Result<Option<TxnOp>, JsonError> {
    let object = Object::new("TxnOp", element)?;
    object.refuse_unknown(&["KV", "Node", "Service", "Check"])?;
    if let Some(value) = object.value("KV") {
        return parse_kv(value).map(Some);
    }
    if let Some(value) = object.value("Node") {
        let (verb, object) = parse_verb("NodeTxnOp", value, &["Verb", "Node"])?;
        let node = parse_node(object.value("Node").unwrap_or(&Value::Null))?;
        let expected = node.modify_index;
        return Ok(Some(TxnOp::Node { verb, node, expected }));
    }
    if let Some(value) = object.value("Service") {
        let (verb, object) = parse_verb("ServiceTxnOp", value, &["Verb", "Node", "Service"])?;
        let node = NodeName::from(object.string("Node")?);
        let service = parse_catalog_service(object.value("Service").unwrap_or(&Value::Null), node)?;
        let expected = service.modify_index;
        return Ok(Some(TxnOp::Service { verb, service, expected }));
    }
    if let Some(value) = object.value("Check") {
        let (verb, object) = parse_verb("CheckTxnOp", value, &["Verb", "Check"])?;
        let check = parse_catalog_check(object.value("Check").unwrap_or(&Value::Null))?;
        let expected = check.modify_index;
        return Ok(Some(TxnOp::Check { verb, check, expected }));
    }
    Ok(None)
}

fn parse_verb<'v>(
    name: &'static str,
    value: &'v Value,
    fields: &[&str],
) -> Result<(CatalogVerb, Object<'v>), JsonError> {
    let object = Object::new(name, value)?;
    object.refuse_unknown(fields)?;
    Ok((CatalogVerb::parse(object.string("Verb")?), object))
}

fn parse_kv(value: &Value) -> Result<TxnOp, JsonError> {
    let object = Object::new("KVTxnOp", value)?;
    object.refuse_unknown(&["Verb", "Key", "Value", "Flags", "Index", "Session"])?;
    Ok(TxnOp::Kv(TxnKv {
        verb: KvVerb::parse(object.string("Verb")?),
        key: Key::from(object.string("Key")?),
        value: parse_value(&object)?,
        flags: object.u64("Flags")?,
        index: LogIndex(object.u64("Index")?),
        session: Some(object.string("Session")?).filter(|text| !text.is_empty()).map(str::to_owned),
    }))
}

fn parse_value(object: &Object<'_>) -> Result<Bytes, JsonError> {
    match object.optional_string("Value")? {
        Some(text) => decode_base64(text).map_err(|error| JsonError::Value(error.to_string())),
        None => Ok(Bytes::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(body: &str) -> String {
        parse_body(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn null_kinds_and_any_case_accepted() {
        let body = br#"[{"KV":{"verb":"SET","Key":"a","value":"dGVzdA==","FLAGS":18446744073709551615},
            "Node":null,"Service":null,"Check":null},{},{"kv":{"Verb":"get","Key":"b","Value":null}}]"#;
        let operations = parse_body(body).unwrap();
        assert_eq!(operations.len(), 3);
        let Some(TxnOp::Kv(first)) = &operations[0] else { panic!("{operations:?}") };
        assert_eq!((first.value.as_ref(), first.flags), (&b"test"[..], u64::MAX));
        assert_eq!(first.verb, KvVerb::Unknown("SET".into()), "verbs are exact");
        assert_eq!(operations[1], None);
        let Some(TxnOp::Kv(third)) = &operations[2] else { panic!("{operations:?}") };
        assert_eq!((&third.verb, third.value.len()), (&KvVerb::Get, 0));
    }

    #[test]
    fn other_kinds_are_read() {
        let body = br#"[{"Node":{"Verb":"cas","Node":{"Node":"n","Address":"a","ModifyIndex":7}}},
            {"Service":{"Verb":"set","Node":"n","Service":{"Service":"s"}}},
            {"Check":{"Verb":"delete","Check":{"Node":"n","CheckID":"c"}}}]"#;
        let operations: Vec<TxnOp> = parse_body(body).unwrap().into_iter().flatten().collect();
        assert!(matches!(&operations[0], TxnOp::Node { verb: CatalogVerb::Cas, expected: LogIndex(7), .. }));
        assert!(matches!(&operations[1], TxnOp::Service { service, .. } if service.node.as_str() == "n"));
        assert!(matches!(&operations[2], TxnOp::Check { check, .. } if check.id.as_str() == "c"));
    }

    #[test]
    fn invalid_bodies_rejected_with_reason() {
        assert_eq!(text(""), "EOF");
        assert_eq!(
            text(r#"[{"KV":{"Verb":"set","Key":"a","Value":"!"}}]"#),
            "illegal base64 data at input byte 0"
        );
        assert_eq!(text(r#"[{"KV":{"Verbs":"set"}}]"#), "json: unknown field \"Verbs\"");
        assert_eq!(text(r#"[{"Zv":{}}]"#), "json: unknown field \"Zv\"");
        for body in ["{}", "[1]", r#"[{"KV":{"Flags":-1}}]"#, r#"[{"KV":{"Index":"1"}}]"#, "[", "nonsense"] {
            assert!(parse_body(body.as_bytes()).is_err(), "{body}");
        }
        assert_eq!(parse_body(b"[]"), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in r#"\[(\{"(KV|Node|Check)":[{}\[\]",:a-zA-Z0-9=]{0,24}\},?){0,3}\]"#) {
            let _ = parse_body(body.as_bytes());
        }
    }
}
