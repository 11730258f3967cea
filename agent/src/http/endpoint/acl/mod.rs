//! `/v1/acl/…`, `/v1/internal/acl/authorize` and `/v1/lockmesh/acl`: access control. The servers
//! keep the tables, judge every request by its token, and validate changes, with Consul's texts.
//!
//! | file | is |
//! |---|---|
//! | `token.rs`, `policy.rs`, `role.rs` | the tables |
//! | `binding.rs` | auth methods and binding rules |
//! | `template.rs` | the built-in templates of policies |
//! | `settings.rs` | the bootstrap, the settings, and questions about the own rights |
//! | `body.rs` | from bodies of requests to the new content of a row |
//! | `shape.rs` | from rows to the client's JSON |
//!
//! **Invariant:** no text of a failure and no log line has a secret.

pub(super) mod binding;
mod body;
pub(super) mod policy;
pub(super) mod role;
pub(super) mod settings;
mod shape;
pub(super) mod template;
pub(super) mod token;

use super::super::answer::{self, Failure, MetaKind};
use super::super::audit::{self, Action};
use super::super::body::Body;
use super::super::call::Call;
use super::misfit;
use crate::go::json::{JsonError, first_value};
use http::{Response, StatusCode};
use lockmesh_net::random;
use lockmesh_protocol::acl::AclCommand;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;

/// The text of Consul's clients for a token, a policy or a role that is gone.
const NOT_FOUND: &str = "ACL not found";

/// Answers a change, with a line in the audit log.
async fn audited(
    call: &Call<'_>,
    answer: impl Future<Output = Result<Response<Body>, Failure>>,
) -> Result<Response<Body>, Failure> {
    audit::recorded(call, Action::Operate, &[], answer).await
}

/// Changes the tables.
async fn propose(call: &Call<'_>, command: AclCommand) -> Result<Applied, Failure> {
    let applied = call.propose(Command::Acl(command)).await?;
    match applied.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(applied),
    }
}

/// Deletes a row. An unknown id is a success.
async fn delete(call: &Call<'_>, what: &str, command: AclCommand) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let applied = propose(call, command).await.map_err(|failure| {
            // Consul's clients take this text as a success.
            match failure.reason().contains(NOT_FOUND) {
                true => Failure::not_found(format!("Cannot find {what} to delete")),
                false => failure,
            }
        })?;
        Ok(answer::with_write_index(answer::flag(true, call.layout()), applied.index))
    })
    .await
}

/// Reads the row with the id or name in the path. `what` is its kind.
async fn read_row(
    call: &Call<'_>,
    what: &str,
    query: impl FnOnce(Option<String>) -> Query,
) -> Result<Arc<Answer>, Failure> {
    let options = call.read_options()?;
    let answer = call.read(query(Some(call.tail.into())), options, Some(MetaKind::Plain)).await?;
    match answer.rows.len() {
        0 => Err(Failure::not_found(format!("Requested {what} does not exist: {NOT_FOUND}"))),
        _ => Ok(answer),
    }
}

/// Rejects a path without an id or a name; `what` is both its kind and the lacking part.
fn check_named(call: &Call<'_>, what: &str) -> Result<(), Failure> {
    match call.tail.is_empty() {
        true => Err(Failure::bad_request(format!("Missing {what}"))),
        false => Ok(()),
    }
}

/// Reads a body with a JSON value. `what` is the kind of its object.
async fn decoded<T>(
    call: &Call<'_>,
    body: Body,
    what: &str,
    parse: impl FnOnce(&Value) -> Result<T, JsonError>,
) -> Result<T, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let parsed = first_value(&body).and_then(|value| parse(&value));
    parsed.map_err(|error| Failure::bad_request(format!("{what} decoding failed: {error}")))
}

/// Returns the id of a replaced row: that in the path, which the body may repeat.
fn same_id(call: &Call<'_>, in_body: &str, what: &str) -> Result<String, Failure> {
    match in_body.is_empty() || in_body.eq_ignore_ascii_case(call.tail) {
        true => Ok(call.tail.into()),
        false => Err(Failure::bad_request(format!("{what} ID in URL and payload do not match"))),
    }
}

/// Returns a random UUID.
fn fresh_id() -> Result<String, Failure> {
    let bytes = random::bytes().map_err(|error| Failure::not_done(error.to_string()))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().hyphenated().to_string())
}

/// Answers with a row of a list with one row.
fn shown<T: serde::Serialize>(
    call: &Call<'_>,
    answer: &Answer,
    shape: impl FnOnce(&Rows) -> Option<T>,
) -> Result<Response<Body>, Failure> {
    let shape = shape(&answer.rows).ok_or_else(misfit::wrong_rows)?;
    Ok(answer::with_meta(answer::json(&shape, call.layout()), answer, MetaKind::Plain))
}

/// The failure of a request that needs a token that exists.
fn unknown_token() -> Failure {
    Failure::new(StatusCode::FORBIDDEN, NOT_FOUND)
}
