//! A turn's messages to a follower are consistent, however many messages arrived before it.

use crate::solo::{Disk, entry};
use lockmesh_core::raft::TICK;
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::{CallToken, Core, Input, Outbox, Proposal};
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::time::Time;

/// A leader of three servers, two of which the test plays.
struct Leader {
    core: Core,
    now: Time,
    outbox: Outbox,
}

impl Leader {
    fn elected() -> Self {
        let voters = [1, 2, 3].map(ServerId);
        let disk = Disk::new(Core::bootstrap_snapshot(&voters));
        let mut leader = Self { core: disk.open(ServerId(1), 7), now: Time(0), outbox: Outbox::default() };
        for _ in 0..100 {
            leader.now = leader.now + TICK;
            let said = leader.turn([Input::Tick(WallTime(1))]);
            let votes = said.iter().filter_map(|message| granted(message, ServerId(2)));
            let votes: Vec<_> = votes.collect();
            leader.turn(votes).into_iter().for_each(|message| {
                leader.turn(granted(&message, ServerId(2)));
            });
            let first = leader.core.replica().log_status().last_index;
            if first > LogIndex(1) {
                leader.turn([acknowledged(&leader.core, ServerId(2), first)]);
                assert!(leader.core.replica().is_serving());
                return leader;
            }
        }
        panic!("no leader was elected");
    }

    /// Runs one turn of all these inputs, with durable writes; returns the messages sent.
    fn turn(&mut self, inputs: impl IntoIterator<Item = Input>) -> Vec<PeerMessage> {
        let mut said = Vec::new();
        inputs.into_iter().for_each(|input| self.core.handle(self.now, input, &mut self.outbox));
        loop {
            self.core.settle(self.now, &mut self.outbox);
            said.extend(self.outbox.shell.messages.drain(..).map(|(_, message)| message));
            let Some(number) = self.outbox.writes.drain(..).next_back().map(|write| write.number) else {
                return said;
            };
            self.core.handle(self.now, Input::Persisted(number), &mut self.outbox);
        }
    }
}

/// A vote for any request.
fn granted(request: &PeerMessage, voter: ServerId) -> Option<Input> {
    let kind = match request.kind {
        MessageKind::RequestPreVote => MessageKind::RequestPreVoteResponse,
        MessageKind::RequestVote => MessageKind::RequestVoteResponse,
        _ => return None,
    };
    let answer = PeerMessage { kind, from: voter, to: request.from, ..request.clone() };
    (request.to == voter).then_some(Input::Peer(voter, answer))
}

/// An acknowledgement that the follower has everything up to an index.
fn acknowledged(core: &Core, from: ServerId, index: LogIndex) -> Input {
    let kind = MessageKind::AppendResponse;
    let term = core.replica().log_status().term;
    let message = PeerMessage { kind, from, to: ServerId(1), term, index, ..nothing() };
    Input::Peer(from, message)
}

/// A rejection by a follower that lacks the entries before an index, and has those before `hint`.
fn rejected(core: &Core, from: ServerId, index: LogIndex, hint: LogIndex) -> Input {
    let Input::Peer(from, message) = acknowledged(core, from, index) else { unreachable!("it is a message") };
    let term = core.replica().log_status().term;
    Input::Peer(from, PeerMessage { reject: true, reject_hint: hint, log_term: term, ..message })
}

fn nothing() -> PeerMessage {
    PeerMessage::new(MessageKind::Heartbeat, ServerId(0), ServerId(0))
}

fn put(key: &str) -> Input {
    let command = Command::Kv(KvCommand::Set(entry(key)));
    Input::Propose(CallToken(1), Proposal::new(None, WallTime(1), command))
}

#[test]
fn append_entries_follow_previous_index() {
    let mut leader = Leader::elected();
    let known = leader.core.replica().log_status().last_index;
    for from in [2, 3].map(ServerId) {
        leader.turn([acknowledged(&leader.core, from, known)]);
    }
    leader.turn([put("a")]);
    leader.turn([put("b")]);
    let last = leader.core.replica().log_status().last_index;
    // One follower has everything; the other missed the first message and received the second.
    let all = acknowledged(&leader.core, ServerId(2), last);
    let gap = rejected(&leader.core, ServerId(3), LogIndex(last.0 - 1), known);
    let said = leader.turn([all, gap]);
    let appends = said.iter().filter(|message| !message.entries.is_empty());
    let appends: Vec<_> = appends.map(|message| (message.index.next(), message.entries[0].index)).collect();
    assert_eq!(appends, [(known.next(), known.next())], "a follower would acknowledge missing entries");
}
