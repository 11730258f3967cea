//! `/v1/lockmesh/…`: extensions to Consul's API. Holders of locks, and the causes of lost locks.

use super::super::answer::Failure;
use super::super::body::Body;
use super::super::call::Call;
use super::super::listing::Piece;
use super::super::shapes;
use crate::loss;
use http::Response;
use lockmesh_client::shape::json::Layout;
use lockmesh_protocol::id::Key;
use lockmesh_protocol::query::{Query, Rows};

pub(super) async fn locks(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let prefix = Key::from(call.params.value("prefix").unwrap_or_default());
    call.list(Query::Locks(prefix), options, rendered).await
}

pub(super) async fn losses(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.list(Query::Losses, call.read_options()?, rendered).await
}

fn rendered(rows: &Rows, layout: Layout) -> Result<Piece, Failure> {
    match rows {
        Rows::Locks(locks) => Piece::array(locks.iter().map(|lock| Ok(shapes::lock(lock))), layout),
        Rows::Losses(losses) => Piece::array(losses.iter().map(|loss| Ok(loss::shape(loss))), layout),
        _ => Err(super::misfit::wrong_rows()),
    }
}
