//! `/v1/operator/gossip…`: the number of the mesh's key, and its rotation. No endpoint ever returns
//! a key.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::misfit;
use super::operator::denied;
use crate::go::number;
use crate::upstream::calls::Read;
use http::Response;
use lockmesh_client::shape::operator::GossipKey;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::reply::Reply;

pub(super) async fn key(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let number = in_use(call, call.consistency()?).await?;
    Ok(answer::json(&GossipKey { number }, call.layout()))
}

/// Rotates to the next key; returns 409 if that is too soon. With `?from` only if that key is still
/// in use, so that a request whose response was lost can be retried.
pub(super) async fn rotate(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let from = match call.params.non_empty("from") {
        Some(text) => number::parse_u64(text).ok().and_then(|number| u32::try_from(number).ok()),
        None => Some(in_use(call, Consistency::Default).await?),
    };
    let from = from.ok_or_else(|| Failure::bad_request("Invalid number of a gossip key in ?from"))?;
    let rotate = Command::RotateGossipKey { from };
    let applied = call.upstream.call(rotate).await.map_err(denied)?;
    match applied.reply {
        Reply::GossipKey(number) => {
            let response = answer::json(&GossipKey { number }, call.layout());
            Ok(answer::with_write_index(response, applied.index))
        }
        Reply::Refused(refusal) => Err(refusal.into()),
        other => Err(misfit::wrong_reply(&other)),
    }
}

async fn in_use(call: &Call<'_>, consistency: Consistency) -> Result<u32, Failure> {
    let answer = call.upstream.call(Read { query: Query::GossipKey, consistency, blocking: None }).await?;
    match answer.rows {
        Rows::GossipKey(number) => Ok(number),
        _ => Err(misfit::wrong_rows()),
    }
}
