//! `/v1/lockmesh/…`: extensions to Consul's API. Holders of locks, the verification of fencing
//! tokens, and the causes of lost locks.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::listing::Piece;
use super::super::shapes;
use crate::loss;
use http::Response;
use lockmesh_client::shape::json::Layout;
use lockmesh_client::shape::lockmesh::{FenceClaim, FenceVerdict};
use lockmesh_protocol::id::{Fence, Key};
use lockmesh_protocol::query::{Blocking, Consistency, Grant, Query, Rows};
use tokio::time::Instant;

/// The maximum number of fencing tokens of a request.
const MAX_FENCES: usize = 64;

pub(super) async fn locks(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let prefix = Key::from(call.params.value("prefix").unwrap_or_default());
    call.list(Query::Locks(prefix), options, rendered).await
}

pub(super) async fn losses(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.list(Query::Losses, call.read_options()?, rendered).await
}

/// Verifies fencing tokens with the leader. With `?wait` the response comes once a token is not
/// that of the current grant, or when the wait is over.
pub(super) async fn verify_fences(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.consistency()? == Consistency::Stale {
        let text = "Fencing tokens are verified by the leader: remove ?stale and ?max_stale";
        return Err(Failure::bad_request(text));
    }
    let deadline = call.lock_wait()?.map(|wait| Instant::now() + wait);
    let claims = parse_claims(&call.small_body(body).await?)?;
    let keys: Vec<Key> = claims.iter().map(|claim| Key::from(claim.key.as_str())).collect();
    let mut blocking = None;
    loop {
        let options = ReadOptions { consistency: Consistency::Consistent, blocking };
        let answer = call.read(Query::Grants(keys.clone()), options, None).await?;
        let Rows::Grants(grants) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
        let verdicts: Vec<FenceVerdict> =
            claims.iter().zip(grants).map(|(claim, grant)| verdict(claim, grant)).collect();
        let wait = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero() && verdicts.iter().all(|verdict| verdict.is_current)) {
            Some(wait) => blocking = Some(Blocking { index: answer.index, wait }),
            None => return Ok(answer::with_contact(answer::json(&verdicts, call.layout()), &answer)),
        }
    }
}

fn parse_claims(body: &[u8]) -> Result<Vec<FenceClaim>, Failure> {
    let claims: Vec<FenceClaim> = serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "Request decode failed: {error}; send [{{\"Key\": KEY, \"Fence\": FENCE}}]"
        ))
    })?;
    match claims.len() {
        1..=MAX_FENCES => Ok(claims),
        count => {
            Err(Failure::bad_request(format!("Send 1 to {MAX_FENCES} fencing tokens instead of {count}")))
        }
    }
}

fn verdict(claim: &FenceClaim, grant: &Grant) -> FenceVerdict {
    let FenceClaim { key, fence } = claim.clone();
    // A key that was never locked has the token 0, which no grant has.
    let is_current = grant.is_held && grant.fence == Fence(fence);
    FenceVerdict { key, fence, is_current, newest_fence: grant.fence.0 }
}

fn rendered(rows: &Rows, layout: Layout) -> Result<Piece, Failure> {
    match rows {
        Rows::Locks(locks) => Piece::array(locks.iter().map(|lock| Ok(shapes::lock(lock))), layout),
        Rows::Losses(losses) => Piece::array(losses.iter().map(|loss| Ok(loss::shape(loss))), layout),
        _ => Err(super::misfit::wrong_rows()),
    }
}
