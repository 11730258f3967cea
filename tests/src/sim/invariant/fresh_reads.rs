//! A read that is not stale reflects every write and read with a reply before it began. A read of a
//! queue position reflects at least the start of that position. This holds at the server, and for
//! each local caller of an agent, even if callers share a read.

use super::agent_event::AgentEvent;
use super::{Fact, Invariant, Scene, ensure};
use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeMap;

/// The index that each local caller must see; a request at a server has its own.
#[derive(Debug, Default)]
pub(super) struct FreshReads {
    callers: BTreeMap<(usize, CallToken), LogIndex>,
}

impl FreshReads {
    fn agent(&mut self, agent: usize, event: &AgentEvent<'_>) -> Result<(), String> {
        match event {
            AgentEvent::Started => self.callers.retain(|(of, _), _| *of != agent),
            AgentEvent::Called { token, call: LocalCall::Read { consistency, .. }, bound }
                if *consistency != Consistency::Stale =>
            {
                self.callers.insert((agent, *token), *bound);
            }
            AgentEvent::Left { token } => drop(self.callers.remove(&(agent, *token))),
            AgentEvent::Told { token, answer, as_of } => {
                let Some(bound) = self.callers.remove(&(agent, *token)) else { return Ok(()) };
                let (Ok(Answered::Response(Response::Answer(_)) | Answered::Shared(_)), Some(as_of)) =
                    (answer, as_of)
                else {
                    return Ok(());
                };
                return ensure(*as_of >= bound, || {
                    format!(
                        "agent {agent} replied to a read as of {as_of}, but {bound} was in a reply before it began"
                    )
                });
            }
            _ => {}
        }
        Ok(())
    }
}

impl Invariant for FreshReads {
    fn name(&self) -> &'static str {
        "fresh_reads"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        if let Fact::Agent { agent, event } = fact {
            return self.agent(*agent, event);
        }
        let Fact::Given { server, given, applied, .. } = fact else { return Ok(()) };
        let Response::Answer(_) = given.response else { return Ok(()) };
        let Request::Read { query, consistency, .. } = &given.asked.ask.request else { return Ok(()) };
        // The outcome of a position follows from the log up to its start: it need not be fresh,
        // only late enough.
        let bound = match query {
            Query::QueuePosition { queue_position, .. } => scene.history.place_of_index(*queue_position),
            _ => given.asked.ask.bound,
        };
        ensure(*consistency == Consistency::Stale || *applied >= bound, || {
            format!("server {server} answered {query:?} as of {applied}, but {bound} was in a reply before")
        })
    }
}
