//! `/v1/acl/auth-method…` and `/v1/acl/binding-rule…`: rights of the users of a host, by the auth
//! method `unix-peer`. Its callers need no login: the kernel names them on the Unix socket.

use super::super::super::answer::{self, Failure, MetaKind};
use super::super::super::body::Body;
use super::super::super::call::Call;
use super::super::super::filter::peer_selector;
use super::super::super::listing::{Form, Listing, Piece};
use super::super::misfit;
use super::{audited, check_named, decoded, delete, fresh_id, propose, read_row, same_id, shown};
use crate::go::json::{JsonError, Object};
use http::{Method, Response, StatusCode};
use lockmesh_protocol::acl::peer::UNIX_PEER;
use lockmesh_protocol::acl::{self, AclCommand, BindType, NewBindingRule};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::Reply;
use serde::Serialize;
use serde_json::Value;

/// The reason why there is nothing to log in to.
const NO_LOGIN: &str = "Permission denied: the auth method unix-peer needs no login: the kernel names the user of each \
                        request on the agent's Unix socket";

const METHOD_FIELDS: &[&str] = &[
    "Name",
    "Type",
    "DisplayName",
    "Description",
    "MaxTokenTTL",
    "TokenLocality",
    "Config",
    "CreateIndex",
    "ModifyIndex",
];
const RULE_FIELDS: &[&str] = &[
    "ID",
    "Description",
    "AuthMethod",
    "Selector",
    "BindType",
    "BindName",
    "BindVars",
    "CreateIndex",
    "ModifyIndex",
];

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct AuthMethod {
    name: String,
    #[serde(rename = "Type")]
    kind: String,
    description: String,
    config: Value,
    create_index: u64,
    modify_index: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BindingRule {
    #[serde(rename = "ID")]
    id: String,
    description: String,
    auth_method: String,
    selector: String,
    bind_type: &'static str,
    bind_name: String,
    create_index: u64,
    modify_index: u64,
}

fn method_shape(row: &acl::AuthMethod) -> AuthMethod {
    AuthMethod {
        name: row.name.clone(),
        kind: row.kind.clone(),
        description: row.description.clone(),
        config: Value::Object(serde_json::Map::new()),
        create_index: row.create_index.0,
        modify_index: row.modify_index.0,
    }
}

fn rule_shape(row: &acl::BindingRule) -> BindingRule {
    let NewBindingRule { id, description, method, selector, bind_type, bind_name, .. } = row.spec.clone();
    BindingRule {
        id,
        description,
        auth_method: method,
        selector,
        bind_type: if bind_type == BindType::Role { "role" } else { "policy" },
        bind_name,
        create_index: row.create_index.0,
        modify_index: row.modify_index.0,
    }
}

/// All auth methods.
pub(in super::super) async fn methods(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let first = call.read_list(Query::AuthMethods(None), call.read_options()?, Some(MetaKind::Plain)).await?;
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    let piece = |rows: &Rows, layout| {
        let Rows::AuthMethods(rows) = rows else { return Err(misfit::wrong_rows()) };
        Piece::array(rows.iter().map(|row| Ok(method_shape(row))), layout)
    };
    Listing::from(first).respond(form, piece).await
}

/// Creates an auth method.
pub(in super::super) async fn create_method(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let (name, description) = decoded(call, body, "AuthMethod", method_body).await??;
        write_method(call, name, description).await
    })
    .await
}

/// One auth method: read, replaced or deleted with its rules.
pub(in super::super) async fn method(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "auth method name")?;
    match *call.method() {
        Method::GET => {
            let answer = read_row(call, "auth method", Query::AuthMethods).await?;
            shown(call, &answer, |rows| match rows {
                Rows::AuthMethods(rows) => rows.first().map(|row| method_shape(row)),
                _ => None,
            })
        }
        Method::PUT => {
            audited(call, async {
                let (name, description) = decoded(call, body, "AuthMethod", method_body).await??;
                if !name.is_empty() && name != call.tail {
                    return Err(Failure::bad_request("Auth Method name in URL and payload do not match"));
                }
                write_method(call, call.tail.into(), description).await
            })
            .await
        }
        _ => {
            call.check_place()?;
            delete(call, "auth method", AclCommand::DeleteAuthMethod(call.tail.into())).await
        }
    }
}

async fn write_method(call: &Call<'_>, name: String, description: String) -> Result<Response<Body>, Failure> {
    let applied = propose(call, AclCommand::SetAuthMethod(name, description)).await?;
    let Reply::AuthMethod(row) = applied.reply else { return Err(misfit::wrong_reply(&applied.reply)) };
    Ok(answer::with_write_index(answer::json(&method_shape(&row), call.layout()), applied.index))
}

/// All binding rules, or those of `?authmethod`.
pub(in super::super) async fn rules(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let of = call.params.non_empty("authmethod").map(str::to_owned);
    let first =
        call.read_list(Query::BindingRules(None), call.read_options()?, Some(MetaKind::Plain)).await?;
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    let piece = move |rows: &Rows, layout| {
        let Rows::BindingRules(rows) = rows else { return Err(misfit::wrong_rows()) };
        let is_of = |row: &acl::BindingRule| {
            of.as_ref().is_none_or(|method| row.spec.method.eq_ignore_ascii_case(method))
        };
        Piece::array(rows.iter().filter(|row| is_of(row)).map(|row| Ok(rule_shape(row))), layout)
    };
    Listing::from(first).respond(form, piece).await
}

/// Creates a binding rule.
pub(in super::super) async fn create_rule(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let rule = decoded(call, body, "BindingRule", rule_body).await??;
        if !rule.id.is_empty() {
            return Err(Failure::bad_request("Cannot specify the ID when creating a new binding rule"));
        }
        let rule = NewBindingRule { id: fresh_id()?, ..rule };
        written(call, AclCommand::CreateBindingRule(Box::new(rule))).await
    })
    .await
}

/// One binding rule: read, replaced or deleted.
pub(in super::super) async fn rule(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "binding rule ID")?;
    match *call.method() {
        Method::GET => {
            let answer = read_row(call, "binding rule", Query::BindingRules).await?;
            shown(call, &answer, |rows| match rows {
                Rows::BindingRules(rows) => rows.first().map(|row| rule_shape(row)),
                _ => None,
            })
        }
        Method::PUT => {
            audited(call, async {
                let rule = decoded(call, body, "BindingRule", rule_body).await??;
                let rule = NewBindingRule { id: same_id(call, &rule.id, "Binding Rule")?, ..rule };
                written(call, AclCommand::UpdateBindingRule(Box::new(rule))).await
            })
            .await
        }
        _ => {
            call.check_place()?;
            delete(call, "binding rule", AclCommand::DeleteBindingRule(call.tail.into())).await
        }
    }
}

async fn written(call: &Call<'_>, command: AclCommand) -> Result<Response<Body>, Failure> {
    let applied = propose(call, command).await?;
    let Reply::BindingRule(row) = applied.reply else { return Err(misfit::wrong_reply(&applied.reply)) };
    Ok(answer::with_write_index(answer::json(&rule_shape(&row), call.layout()), applied.index))
}

/// Rejects a login, which the auth method does not need.
pub(in super::super) fn login() -> Result<Response<Body>, Failure> {
    Err(Failure::new(StatusCode::FORBIDDEN, NO_LOGIN))
}

/// Returns the name and the description of an auth method in a body. The inner error has a status
/// of its own.
fn method_body(value: &Value) -> Result<Result<(String, String), Failure>, JsonError> {
    let object = Object::new("ACLAuthMethod", value)?;
    object.refuse_unknown(METHOD_FIELDS)?;
    let (name, kind) = (object.string("Name")?, object.string("Type")?);
    if !kind.is_empty() && kind != UNIX_PEER {
        let text = format!("Invalid Auth Method: Type should be one of: [{UNIX_PEER}]");
        return Ok(Err(Failure::refused(text)));
    }
    Ok(Ok((name.into(), object.string("Description")?.into())))
}

fn rule_body(value: &Value) -> Result<Result<NewBindingRule, Failure>, JsonError> {
    let object = Object::new("ACLBindingRule", value)?;
    object.refuse_unknown(RULE_FIELDS)?;
    let selector = object.string("Selector")?;
    let bind_type = match object.string("BindType")? {
        "role" => BindType::Role,
        "policy" => BindType::Policy,
        other => {
            let text = format!("Invalid Binding Rule: unknown BindType {other:?}: use policy or role");
            return Ok(Err(Failure::refused(text)));
        }
    };
    let steps = match peer_selector(selector) {
        Ok(steps) => steps,
        Err(error) => {
            return Ok(Err(Failure::refused(format!("invalid Binding Rule: Selector is invalid: {error}"))));
        }
    };
    Ok(Ok(NewBindingRule {
        id: object.string("ID")?.into(),
        description: object.string("Description")?.into(),
        method: object.string("AuthMethod")?.into(),
        selector: selector.into(),
        steps,
        bind_type,
        bind_name: object.string("BindName")?.into(),
    }))
}
