//! `/v1/lockmesh/…`: extensions to Consul's API. Holders of locks, and the causes of lost locks.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::Call;
use super::super::shapes;
use http::Response;
use lockmesh_protocol::id::Key;
use lockmesh_protocol::query::{Query, Rows};

pub(super) async fn locks(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let prefix = Key::from(call.params.value("prefix").unwrap_or_default());
    let answer = call.read(Query::Locks(prefix), options, Some(MetaKind::Plain)).await?;
    let Rows::Locks(locks) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shapes: Vec<_> = locks.iter().map(shapes::lock).collect();
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), &answer, MetaKind::Plain))
}

pub(super) async fn losses(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let answer = call.read(Query::Losses, options, Some(MetaKind::Plain)).await?;
    let Rows::Losses(losses) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shapes: Vec<_> = losses.iter().map(|loss| shapes::loss(loss)).collect();
    Ok(answer::with_meta(answer::json(&shapes, call.layout()), &answer, MetaKind::Plain))
}
