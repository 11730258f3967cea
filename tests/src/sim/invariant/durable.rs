//! No promise before it is durable: no vote, no acknowledgement, no leader's message of a term that
//! the leader could forget, and no reply to a client before a majority's disks hold the write.

use super::{Fact, Invariant, Scene, ensure};
use crate::sim::durable::Durable;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::Response;

/// Needs no memory: it checks the disks.
#[derive(Debug)]
pub(super) struct NothingPromisedEarly;

fn sent(server: ServerId, message: &PeerMessage, durable: &Durable) -> Result<(), String> {
    let (disk, term) = (durable.hard_state, message.term);
    match message.kind {
        // An entry of an earlier term may have been replaced since: the leader of that term cannot
        // win by it, for this server had the entry when it voted for the next leader.
        MessageKind::AppendResponse if !message.reject && term >= disk.term => {
            let index = message.index;
            let is_there = index <= durable.last_index() || index <= durable.mark.index;
            ensure(is_there, || {
                format!("{server} acknowledged index {index}, but its disk ends at {}", durable.last_index())
            })
        }
        MessageKind::RequestVoteResponse if !message.reject => {
            let is_there = disk.term > term || (disk.term == term && disk.vote == message.to);
            ensure(is_there, || {
                format!("{server} voted for {} in term {term}, but its disk has {disk:?}", message.to)
            })
        }
        MessageKind::RequestVote
        | MessageKind::Append
        | MessageKind::Heartbeat
        | MessageKind::Snapshot
        | MessageKind::TimeoutNow => ensure(disk.term >= term, || {
            format!("{server} sent {:?} in term {term}, but its disk has {disk:?}", message.kind)
        }),
        _ => Ok(()),
    }
}

impl Invariant for NothingPromisedEarly {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Sent { server, message, durable } => sent(*server, message, durable),
            Fact::Given { server, given, copies, voters, .. } => match &given.response {
                Response::Applied(applied) => ensure(copies * 2 > *voters, || {
                    format!(
                        "{server} answered index {}, which is on {copies} of {voters} disks",
                        applied.index
                    )
                }),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
