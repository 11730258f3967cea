//! Lists that are read in parts of one view, as an agent reads long ones for its clients.
//!
//! The parts are small, so that many writes, elections, crashes and restores come between the first
//! and the last. A list is complete with its last part only; if its view has ended, the reader is
//! told so, and starts another list.

use super::client::Wish;
use super::invariant::Fact;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{AnswerPart, Request, Response};

/// A list that is being read.
#[derive(Debug)]
pub struct LongList {
    query: Query,
    consistency: Consistency,
    parts: Vec<AnswerPart>,
}

impl LongList {
    /// Returns a list of which no part is read.
    pub fn new(query: Query, consistency: Consistency) -> Self {
        Self { query, consistency, parts: Vec::new() }
    }

    /// Returns the next request: for the next part, or to end the view behind the last.
    pub fn wish(&self, stage: &Stage) -> Wish {
        let consistency = self.consistency;
        let request = match self.parts.last() {
            None => Request::ReadParts { query: self.query.clone(), consistency },
            Some(AnswerPart { view, next: Some(after), .. }) => {
                Request::ReadPart { view: *view, after: *after, consistency }
            }
            Some(part) => Request::EndView(part.view, consistency),
        };
        Wish::new(stage.now, request)
    }

    /// Receives the response to a request; returns the list, unless it is over.
    pub fn receive_response(
        mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        response: Response,
    ) -> Option<Self> {
        // Its view has ended.
        let Response::AnswerPart(part) = response else { return None };
        self.parts.push(*part);
        if self.is_complete() {
            stage.hit(Mark::ListRead);
            if self.parts.len() > 1 {
                self.note_kind(stage);
            }
            judge.see(stage, &Fact::Listed { query: &self.query, parts: &self.parts });
        }
        Some(self)
    }

    /// The request failed: what was read so far is no list.
    pub fn gave_up(self, stage: &mut Stage) {
        if !self.parts.is_empty() && !self.is_complete() {
            stage.hit(Mark::ListBrokenOff);
        }
    }

    /// Notes a list of a kind that few runs have.
    fn note_kind(&self, stage: &mut Stage) {
        stage.hit(match self.query {
            Query::Services => Mark::ServicesInParts,
            Query::ServiceInstances(_) => Mark::InstancesInParts,
            Query::Node(_) => Mark::NodeInParts,
            Query::PreparedQueries => Mark::QueriesInParts,
            Query::Coordinates => Mark::CoordinatesInParts,
            _ => return,
        });
    }

    fn is_complete(&self) -> bool {
        self.parts.last().is_some_and(|part| part.next.is_none())
    }
}
