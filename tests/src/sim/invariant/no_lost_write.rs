//! A write with a reply is in the log at the index in the reply, and the reply follows from the
//! log.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::process::Given;
use lockmesh_protocol::command::{Command, NodeLeave};
use lockmesh_protocol::id::{LogIndex, RequestId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeMap;

/// The indexes in replies.
#[derive(Debug, Default)]
pub(super) struct NoLostWrite {
    answered: BTreeMap<LogIndex, Option<RequestId>>,
}

impl NoLostWrite {
    fn given(&mut self, given: &Given, scene: &Scene<'_>) -> Result<(), String> {
        let (Request::Propose(request, command), Response::Applied(applied)) =
            (&given.asked.ask.request, &given.response)
        else {
            return Ok(());
        };
        // A force-leave of a live node is answered as done without an entry, and so is a retry of
        // one that took effect before the node registered again.
        let is_forced = matches!(command, Command::LeaveNode(NodeLeave { lease: None, .. }));
        if is_forced && applied.reply == Reply::Done {
            return Ok(());
        }
        let past = scene.history.answered(applied.index);
        let past = past.ok_or_else(|| format!("index {} of a reply is not in the log", applied.index))?;
        let proposal = past.proposal.as_ref();
        let is_its_own = proposal.is_some_and(|proposal| {
            let same_request = match (request, proposal.request) {
                (Some(asked), Some(found)) => {
                    (asked.agent, asked.generation, asked.sequence)
                        == (found.agent, found.generation, found.sequence)
                }
                (asked, found) => asked.is_none() && found.is_none(),
            };
            same_request && is_as_asked(&proposal.command, command)
        });
        ensure(is_its_own, || {
            format!("{command:?} was answered with index {}, which has {proposal:?}", applied.index)
        })?;
        self.answered.insert(past.entry.index, *request);
        let replies: Vec<_> = match request {
            Some(request) => scene.history.places_of(request).to_vec(),
            None => vec![past.entry.index],
        };
        let follows = replies.iter().filter_map(|index| scene.history.at(*index)?.reply.as_deref());
        ensure(follows.into_iter().any(|reply| is_same(reply, applied)), || {
            format!("{command:?} was answered {applied:?}, which does not follow from the log")
        })
    }
}

/// Compares two replies; the remaining time of a lock-delay is known only to the leader.
fn is_same(log: &Applied, answer: &Applied) -> bool {
    let both_delayed = matches!((&log.reply, &answer.reply), (Reply::Delayed { .. }, Reply::Delayed { .. }));
    log.index == answer.index && (log.reply == answer.reply || both_delayed)
}

impl Invariant for NoLostWrite {
    fn name(&self) -> &'static str {
        "no_lost_write"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Given { given, .. } => self.given(given, scene),
            Fact::Opened { .. } => {
                let newest = self.answered.last_key_value().map(|(index, _)| *index).unwrap_or_default();
                ensure(newest <= scene.history.last(), || format!("index {newest} of a reply is lost"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns `true` if the log has the command that an agent asked for. The leader completes the end
/// of a restart.
fn is_as_asked(found: &Command, asked: &Command) -> bool {
    match (found, asked) {
        (
            Command::EndRestart { agent: found, announced_at, .. },
            Command::EndRestart { agent: asked, announced_at: began, .. },
        ) => found == asked && announced_at <= began,
        (found, asked) => found == asked,
    }
}
