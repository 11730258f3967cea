//! Messages between machines and data on disk: one decoder with a limit reads all of them.

use super::samples;
use lockmesh_core::Proposal;
use lockmesh_core::raft::log::LogEntry;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format;
use lockmesh_protocol::rpc::{Call, CallFrame, CallId, MAX_FRAME_BYTES, ReplyFrame, Request, Response};
use lockmesh_protocol::wire;
use lockmesh_server::peers::Hello;
use lockmesh_server::store::RowReader;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// An agent's message.
pub fn wire_call_frame(data: &[u8]) {
    message::<CallFrame>(data);
}

/// A server's reply.
pub fn wire_reply_frame(data: &[u8]) {
    message::<ReplyFrame>(data);
}

/// A message between servers. Its validation accepts any sender and never panics.
pub fn wire_peer_message(data: &[u8]) {
    message::<PeerMessage>(data);
    if let Ok(message) = wire::decode::<PeerMessage, MAX_FRAME_BYTES>(data) {
        let _ = message.fault(message.from, message.to);
    }
}

/// The beginning of a stream between servers.
pub fn wire_hello(data: &[u8]) {
    message::<Vec<Hello>>(data);
}

/// Rows of a snapshot from another server, in two pieces. The position of the cut has no effect.
pub fn wire_snapshot_rows(data: &[u8]) {
    let mut whole = RowReader::default();
    let Ok(rows) = whole.add(data) else { return };
    let (first, second) = data.split_at(data.len() / 3);
    let mut pieces = RowReader::default();
    let mut taken = pieces.add(first).expect("it is the beginning of good rows");
    taken.extend(pieces.add(second).expect("it is the rest of good rows"));
    assert_eq!((taken, pieces.is_done()), (rows, whole.is_done()));
}

/// The data of a log entry.
pub fn wire_proposal(data: &[u8]) {
    message::<Proposal>(data);
}

/// A row of the snapshot, or one inside a backup: without a version of its own.
pub fn wire_change(data: &[u8]) {
    bare::<Change>(data);
}

/// An entry of the log on disk.
pub fn wire_log_entry(data: &[u8]) {
    bare::<LogEntry>(data);
}

/// Returns seeds of [`wire_call_frame`].
pub fn call_frame_seeds() -> Vec<Vec<u8>> {
    let of_command = |command| CallFrame(vec![Call::Begin(CallId(1), Request::Propose(None, command))]);
    let commands = samples::of::<Command>().into_iter().map(of_command);
    samples::some::<CallFrame>().into_iter().chain(commands).map(|frame| wire::encode(&frame)).collect()
}

/// Returns seeds of [`wire_reply_frame`].
pub fn reply_frame_seeds() -> Vec<Vec<u8>> {
    let replies =
        samples::of::<Response>().into_iter().map(|response| ReplyFrame(vec![(CallId(1), response)]));
    replies.chain([ReplyFrame(Vec::new())]).map(|frame| wire::encode(&frame)).collect()
}

/// Returns seeds of [`wire_peer_message`].
pub fn peer_message_seeds() -> Vec<Vec<u8>> {
    samples::of::<PeerMessage>().iter().map(wire::encode).collect()
}

/// Returns seeds of [`wire_hello`].
pub fn hello_seeds() -> Vec<Vec<u8>> {
    samples::of::<Vec<Hello>>().iter().map(wire::encode).collect()
}

/// Returns seeds of [`wire_snapshot_rows`].
pub fn snapshot_row_seeds() -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    for change in samples::of::<Change>() {
        let row = format::encode(&change);
        bytes.extend((row.len() as u32).to_be_bytes());
        bytes.extend(row);
    }
    vec![bytes[..bytes.len() / 2].to_vec(), bytes]
}

/// Returns seeds of [`wire_proposal`].
pub fn proposal_seeds() -> Vec<Vec<u8>> {
    samples::of::<Proposal>().iter().map(wire::encode).collect()
}

/// Returns seeds of [`wire_change`].
pub fn change_seeds() -> Vec<Vec<u8>> {
    samples::of::<Change>().iter().map(encode_bare).collect()
}

/// Returns seeds of [`wire_log_entry`].
pub fn log_entry_seeds() -> Vec<Vec<u8>> {
    samples::of::<LogEntry>().iter().map(encode_bare).collect()
}

fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let Ok(value) = wire::decode::<T, MAX_FRAME_BYTES>(data) else { return };
    let again = wire::decode::<T, MAX_FRAME_BYTES>(&wire::encode(&value));
    assert_eq!(again, Ok(value), "the decoded value changed");
}

fn bare<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    let Ok(value) = wire::decode_bare::<T, MAX_FRAME_BYTES>(data) else { return };
    let again = wire::decode_bare::<T, MAX_FRAME_BYTES>(&encode_bare(&value));
    assert_eq!(again, Ok(value), "the decoded value changed");
}

fn encode_bare<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode_into(value, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_well_formed() {
        for seed in call_frame_seeds() {
            wire::decode::<CallFrame, MAX_FRAME_BYTES>(&seed).expect("a seed decodes");
        }
        for seed in reply_frame_seeds() {
            wire::decode::<ReplyFrame, MAX_FRAME_BYTES>(&seed).expect("a seed decodes");
        }
        for seed in proposal_seeds() {
            wire::decode::<Proposal, MAX_FRAME_BYTES>(&seed).expect("a seed decodes");
        }
        for seed in peer_message_seeds() {
            wire::decode::<PeerMessage, MAX_FRAME_BYTES>(&seed).expect("a seed decodes");
        }
        for seed in change_seeds() {
            wire::decode_bare::<Change, MAX_FRAME_BYTES>(&seed).expect("a seed decodes");
        }
    }
}
