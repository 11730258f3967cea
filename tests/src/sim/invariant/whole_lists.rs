//! A list that was read in parts to its end equals the state of one moment: that at which its view
//! was begun. If it is not stale, that moment is later than every reply before its first request.

use super::{Fact, Invariant, Scene, ensure};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::rpc::{AnswerPart, Request, Response};
use std::collections::BTreeMap;

/// The applied index at which each view was begun, by server and number.
#[derive(Debug, Default)]
pub(super) struct WholeLists {
    begun: BTreeMap<(ServerId, u64), LogIndex>,
}

impl WholeLists {
    fn is_whole(&self, query: &Query, parts: &[AnswerPart], scene: &Scene<'_>) -> Result<(), String> {
        let Some(AnswerPart { view, .. }) = parts.first() else { return Err("a list has no parts".into()) };
        let is_one = parts.iter().all(|part| part.view == *view);
        ensure(is_one, || format!("{query:?} was answered with parts of several views"))?;
        let index =
            self.begun.get(&(view.server, view.number)).ok_or_else(|| format!("no server began {view:?}"))?;
        let state = scene.history.state_at(*index);
        let state = state.ok_or_else(|| format!("no server has applied the index {index} of a view"))?;
        let (_, expected) = state.query(query);
        let found = joined(parts)?;
        ensure(found == expected, || {
            format!("{query:?} in {} parts as of {index}: {found:?} instead of {expected:?}", parts.len())
        })
    }
}

fn joined(parts: &[AnswerPart]) -> Result<Rows, String> {
    let mut parts = parts.iter().map(|part| part.answer.rows.clone());
    let first = parts.next().ok_or("a list has no parts")?;
    parts.try_fold(first, |whole, part| match (whole, part) {
        (Rows::Entries(whole), Rows::Entries(part)) => Ok(Rows::Entries([whole, part].concat())),
        (Rows::Keys(whole), Rows::Keys(part)) => Ok(Rows::Keys([whole, part].concat())),
        (Rows::Locks(whole), Rows::Locks(part)) => Ok(Rows::Locks([whole, part].concat())),
        (Rows::Sessions(whole), Rows::Sessions(part)) => Ok(Rows::Sessions([whole, part].concat())),
        (Rows::Nodes(whole), Rows::Nodes(part)) => Ok(Rows::Nodes([whole, part].concat())),
        (Rows::Checks(whole), Rows::Checks(part)) => Ok(Rows::Checks([whole, part].concat())),
        (Rows::Services(whole), Rows::Services(part)) => Ok(Rows::Services([whole, part].concat())),
        (Rows::Instances(whole), Rows::Instances(part)) => Ok(Rows::Instances([whole, part].concat())),
        (Rows::Coordinates(whole), Rows::Coordinates(part)) => Ok(Rows::Coordinates([whole, part].concat())),
        (Rows::PreparedQueries(whole), Rows::PreparedQueries(part)) => {
            Ok(Rows::PreparedQueries([whole, part].concat()))
        }
        (Rows::Node(Some((node, whole))), Rows::Node(Some((of, part)))) if node == of => {
            Ok(Rows::Node(Some((node, [whole, part].concat()))))
        }
        (whole, part) => Err(format!("no list is {whole:?} and {part:?}")),
    })
}

impl Invariant for WholeLists {
    fn name(&self) -> &'static str {
        "whole_lists"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Given { server, given, applied, .. } => {
                let (Response::AnswerPart(part), Request::ReadParts { query, consistency }) =
                    (&given.response, &given.asked.ask.request)
                else {
                    return Ok(());
                };
                self.begun.insert((part.view.server, part.view.number), *applied);
                let bound = given.asked.ask.bound;
                ensure(*consistency == Consistency::Stale || *applied >= bound, || {
                    format!(
                        "server {server} began {query:?} as of {applied}, but {bound} was in a reply before"
                    )
                })
            }
            Fact::Listed { query, parts } => self.is_whole(query, parts, scene),
            _ => Ok(()),
        }
    }
}
