//! `/v1/coordinate/…`: the network coordinates of nodes. Clients store them; the agents measure
//! none.

use super::super::answer::{self, Failure, MetaKind};
use super::super::body::Body;
use super::super::call::{Call, check_datacenter};
use super::super::listing::Piece;
use super::super::shapes;
use super::misfit;
use crate::go::json::{JsonError, Object, first_value};
use crate::upstream::calls::StatusOf;
use crate::upstream::parts::Part;
use http::{Response, StatusCode};
use lockmesh_client::shape::catalog::{CoordinateMap, NodeCoordinate};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{Coordinate, DIMENSIONS, Finite};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;

/// Returns the zero coordinate of each server: there are no other datacenters to measure.
pub(super) async fn datacenters(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let status = call.upstream.call(StatusOf::Nearest).await?;
    let datacenter = &call.api.identity.datacenter;
    let servers = status.servers.iter();
    let map = CoordinateMap {
        datacenter: datacenter.clone(),
        // Consul's name of the area that all datacenters are in.
        area_id: "wan".into(),
        coordinates: servers.map(|server| shapes::coordinate(&server.node, &Coordinate::default())).collect(),
    };
    Ok(answer::json(&[map], call.layout()))
}

pub(super) async fn nodes(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let is_listed = is_listed(call);
    call.list(Query::Coordinates, options, move |rows, layout| {
        let listed = coordinates(rows)?.iter().filter(|_| is_listed);
        Piece::array(listed.map(|row| Ok(shape(row))), layout)
    })
    .await
}

/// Returns the coordinate of one node: the parts of a long list are read until it is found.
pub(super) async fn node(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let wanted = NodeName::from(call.tail).folded();
    let found = |part: &Part| {
        let mut listed = coordinates(&part.answer.rows)?.iter().filter(|_| is_listed(call));
        Ok::<_, Failure>(listed.find(|(node, _)| node.folded() == wanted).map(shape))
    };
    let meta = MetaKind::Plain;
    let mut part = call.read_list(Query::Coordinates, options, Some(meta)).await?;
    let mut coordinate = found(&part)?;
    while coordinate.is_none()
        && let Some(next) = Part::behind(part.rest.take()).await?
    {
        coordinate = found(&next)?;
        part = next;
    }
    let response = coordinate.map_or_else(answer::absent, |row| answer::json(&[row], call.layout()));
    Ok(answer::with_meta(response, &part.answer, meta))
}

type Row = (NodeName, Arc<Coordinate>);

fn coordinates(rows: &Rows) -> Result<&[Row], Failure> {
    match rows {
        Rows::Coordinates(rows) => Ok(rows),
        _ => Err(misfit::wrong_rows()),
    }
}

/// There are no network segments, so a named one has no nodes.
fn is_listed(call: &Call<'_>) -> bool {
    call.params.non_empty("segment").is_none()
}

fn shape((node, row): &Row) -> NodeCoordinate {
    shapes::coordinate(node.as_str(), row)
}

pub(super) async fn update(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let undecodable = |error: JsonError| Failure::bad_request(format!("Request decode failed: {error}"));
    let value = first_value(&body).map_err(undecodable)?;
    let update = Update::parse(&value).map_err(undecodable)?;
    check_datacenter(call.api, update.datacenter)?;
    if !update.segment.is_empty() {
        return Err(Failure::bad_request("Network segments are a Consul Enterprise feature: omit Segment"));
    }
    let (vec, coordinate) =
        update.coord.ok_or_else(|| Failure::bad_request("Missing Coord: send the coordinate of the node"))?;
    let vec =
        <[Finite; DIMENSIONS]>::try_from(vec).map_err(|_| Failure::refused("incompatible coordinate"))?;
    let coordinate = Coordinate { vec, ..coordinate };
    let applied = call.propose(Command::UpdateCoordinate { node: update.node, coordinate }).await?;
    match applied.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(answer::with_write_index(answer::text(StatusCode::OK, ""), applied.index)),
    }
}

/// The body of an update.
struct Update<'v> {
    datacenter: &'v str,
    node: NodeName,
    segment: &'v str,
    /// The position as sent, and the coordinate without it.
    coord: Option<(Vec<Finite>, Coordinate)>,
}

impl<'v> Update<'v> {
    fn parse(value: &'v serde_json::Value) -> Result<Self, JsonError> {
        let object = Object::new("CoordinateUpdateRequest", value)?;
        object.refuse_unknown(&["Datacenter", "Node", "Segment", "Coord", "WriteRequest"])?;
        let coord = object.value("Coord").map(|_| -> Result<_, JsonError> {
            let coord = object.object("Coord", "Coordinate.Coord")?;
            coord.refuse_unknown(&["Vec", "Error", "Adjustment", "Height"])?;
            let number = |name| match coord.value(name) {
                Some(value) => finite(&coord, name, value),
                None => Ok(Finite::default()),
            };
            let vec = coord.list("Vec", "[]float64")?.iter().map(|value| finite(&coord, "Vec", value));
            let vec = vec.collect::<Result<Vec<_>, _>>()?;
            let (error, adjustment, height) = (number("Error")?, number("Adjustment")?, number("Height")?);
            Ok((vec, Coordinate { error, adjustment, height, ..Coordinate::default() }))
        });
        Ok(Self {
            datacenter: object.string("Datacenter")?,
            node: NodeName::from(object.string("Node")?),
            segment: object.string("Segment")?,
            coord: coord.transpose()?,
        })
    }
}

fn finite(object: &Object<'_>, name: &str, value: &serde_json::Value) -> Result<Finite, JsonError> {
    let number = value.as_f64().ok_or_else(|| object.wrong(name, value, "float64"))?;
    Finite::try_from(number).map_err(|error| JsonError::Value(format!("{name}: {error}")))
}
