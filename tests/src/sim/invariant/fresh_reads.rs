//! A read that is not stale sees every write that was answered, and everything that was read, before it began; one about a
//! place in a queue sees at least how the place began.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response};

/// Needs no memory: a request carries what it must see.
#[derive(Debug)]
pub(super) struct FreshReads;

impl Invariant for FreshReads {
    fn name(&self) -> &'static str {
        "fresh_reads"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        let Fact::Given { server, given, applied, .. } = fact else { return Ok(()) };
        let Response::Answer(_) = given.response else { return Ok(()) };
        let Request::Read { query, consistency, .. } = &given.asked.ask.request else { return Ok(()) };
        // What became of a place is a fact of the log's beginning: it need not be fresh, only late enough.
        let bound = match query {
            Query::Place { ticket, .. } => scene.history.place_of_index(*ticket),
            _ => given.asked.ask.bound,
        };
        ensure(*consistency == Consistency::Stale || *applied >= bound, || {
            format!("server {server} answered {query:?} as of {applied}, but {bound} was answered before")
        })
    }
}
