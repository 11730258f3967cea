//! Encoding of messages to frames and back, without a socket.
//!
//! A frame is its length in four bytes, followed by one encoded sequence of messages: messages that
//! are ready together travel together. A frame has at most [`MAX_FRAME_BYTES`]. A longer message is
//! returned to its sender; a longer frame is the peer's fault.

use bytes::{Buf, Bytes, BytesMut};
use lockmesh_protocol::rpc::MAX_FRAME_BYTES;
use lockmesh_protocol::wire::{self, WireError};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;

/// The size in bytes of a frame's length field.
const LENGTH_BYTES: usize = 4;

/// The space in front of a frame's messages for its length, the version and the count of messages.
const HEADER_ROOM: usize = LENGTH_BYTES + 1 + 9;

/// The size in bytes from which a frame accepts no further message, so that the receiver can start
/// processing.
const FULL_BYTES: usize = 64 << 10;

/// The same limit as a number of messages, far below the receiver's limit.
const FULL_MESSAGES: u64 = 4096;

/// A message exceeds the size of a frame. Nothing of it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is longer than a frame of {MAX_FRAME_BYTES} bytes")]
pub struct TooLong;

/// The maximum size in bytes of a message.
const MAX_MESSAGE_BYTES: usize = MAX_FRAME_BYTES - (HEADER_ROOM - LENGTH_BYTES);

/// An encoded message, for senders that encode in another task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded(Vec<u8>);

impl Encoded {
    /// Encodes a message. Encoding stops as soon as it exceeds a frame.
    ///
    /// # Errors
    /// The message exceeds a frame.
    pub fn new<T: Serialize>(message: &T) -> Result<Self, TooLong> {
        let mut bytes = Vec::new();
        wire::encode_within(message, &mut bytes, MAX_MESSAGE_BYTES).map_err(|_| TooLong)?;
        Ok(Self(bytes))
    }
}

/// Collects messages into frames until they can be sent.
#[derive(Debug, Default)]
pub struct FrameQueue {
    full: VecDeque<Bytes>,
    open: Vec<u8>,
    count: u64,
    full_bytes: usize,
}

impl FrameQueue {
    /// Appends a message.
    ///
    /// # Errors
    /// The message exceeds a frame. Nothing of it was kept; earlier messages are unaffected.
    pub fn push<T: Serialize>(&mut self, message: &T) -> Result<(), TooLong> {
        if self.open.len() >= FULL_BYTES || self.count >= FULL_MESSAGES {
            self.close();
        }
        if self.open.is_empty() {
            self.open.resize(HEADER_ROOM, 0);
        }
        let start = self.open.len();
        if wire::encode_within(message, &mut self.open, MAX_MESSAGE_BYTES).is_err() {
            // The message has grown the buffer by megabytes, which the connection would keep.
            self.open.shrink_to(FULL_BYTES);
            return Err(TooLong);
        }
        // Short messages do not wait until the receiver has decoded a long one.
        if self.count == 0 || self.open.len() - start < FULL_BYTES {
            self.count += 1;
            return Ok(());
        }
        let message = self.open.split_off(start);
        self.close();
        self.begin_with(&message);
        Ok(())
    }

    /// Appends an encoded message.
    pub fn push_encoded(&mut self, message: &Encoded) {
        let Encoded(bytes) = message;
        let is_full = self.open.len() >= FULL_BYTES || self.count >= FULL_MESSAGES;
        // A long message begins a frame, so that short ones before it are not decoded with it.
        if is_full || self.open.is_empty() || bytes.len() >= FULL_BYTES {
            self.close();
            self.begin_with(bytes);
        } else {
            self.open.extend_from_slice(bytes);
            self.count += 1;
        }
    }

    /// Starts a frame with a message.
    fn begin_with(&mut self, message: &[u8]) {
        self.open.clear();
        self.open.resize(HEADER_ROOM, 0);
        self.open.extend_from_slice(message);
        self.count = 1;
    }

    /// Takes all frames, oldest first. They are closed to further messages.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.close();
        self.full_bytes = 0;
        self.full.drain(..).collect()
    }

    /// Returns the number of queued bytes.
    pub fn byte_count(&self) -> usize {
        self.full_bytes + self.open.len()
    }

    /// Returns `true` if nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.count == 0
    }

    /// Discards everything that is queued.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn close(&mut self) {
        if self.count == 0 {
            return;
        }
        // The same bytes as in the encoded sequence, which starts with its length.
        let mut header = wire::encode(&self.count);
        let length = header.len() + self.open.len() - HEADER_ROOM;
        let length = u32::try_from(length).expect("no frame is longer than its limit");
        header.splice(0..0, length.to_be_bytes());
        let start = HEADER_ROOM - header.len();
        self.open[start..HEADER_ROOM].copy_from_slice(&header);
        let mut frame = Bytes::from(std::mem::take(&mut self.open));
        frame.advance(start);
        self.full_bytes += frame.len();
        self.full.push_back(frame);
        self.count = 0;
    }
}

/// A defect of the bytes that a peer sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is too long.
    #[error("a frame of {0} bytes, but at most {MAX_FRAME_BYTES} are allowed")]
    Length(usize),
    /// The frame's content is invalid.
    #[error(transparent)]
    Content(#[from] WireError),
}

/// Splits a stream of bytes, which arrives in arbitrary chunks, into frames.
#[derive(Debug, Default)]
pub struct FrameCutter {
    /// The last chunk, not yet processed.
    piece: Bytes,
    /// The start of an incomplete frame. It grows with the bytes that arrive, not with the
    /// announced length.
    begun: BytesMut,
}

impl FrameCutter {
    /// Adds a chunk. Before the next chunk, call [`FrameCutter::next_frame`] until it returns
    /// `None`.
    pub fn feed(&mut self, piece: Bytes) {
        debug_assert!(self.piece.is_empty(), "the last piece was not used up");
        self.piece = piece;
    }

    /// Returns `true` if a frame is incomplete.
    pub fn is_within_frame(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Returns the next complete frame, for [`decode`]; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The peer sent a frame that is too long. The rest of the stream cannot be trusted: close it.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.begun.is_empty() {
            // A frame that lies within one chunk is not copied.
            if let Some(length) = frame_length(&self.piece)?
                && self.piece.len() >= LENGTH_BYTES + length
            {
                self.piece.advance(LENGTH_BYTES);
                return Ok(Some(self.piece.split_to(length)));
            }
        } else if self.begun.len() < LENGTH_BYTES {
            self.move_until(LENGTH_BYTES);
        }
        let Some(length) = self.begun_length()? else { return Ok(None) };
        self.move_until(LENGTH_BYTES + length);
        if self.begun.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        let mut frame = std::mem::take(&mut self.begun).freeze();
        frame.advance(LENGTH_BYTES);
        Ok(Some(frame))
    }

    /// Returns the length of the incomplete frame, after moving the start of a new one out of the
    /// chunk.
    fn begun_length(&mut self) -> Result<Option<usize>, FrameError> {
        self.move_until(LENGTH_BYTES);
        frame_length(&self.begun)
    }

    fn move_until(&mut self, wanted: usize) {
        let missing = wanted.saturating_sub(self.begun.len()).min(self.piece.len());
        self.begun.extend_from_slice(&self.piece.split_to(missing));
    }
}

/// Decodes a frame.
///
/// # Errors
/// The peer sent invalid content. The rest of the stream cannot be trusted: close it.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    Ok(wire::decode::<T, MAX_FRAME_BYTES>(frame)?)
}

fn frame_length(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    // Rejected before the bytes arrive, so that a peer cannot make this end collect them.
    if length > MAX_FRAME_BYTES { Err(FrameError::Length(length)) } else { Ok(Some(length)) }
}

#[cfg(test)]
mod tests {
    use super::{Encoded, FrameCutter, FrameError, FrameQueue, MAX_FRAME_BYTES, TooLong, decode};
    use bytes::Bytes;
    use lockmesh_protocol::query::{Consistency, Query};
    use lockmesh_protocol::rpc::{Call, CallFrame, CallId, Request};
    use lockmesh_protocol::wire;
    use proptest::prelude::{
        Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };
    use serde::de::DeserializeOwned;

    /// A call of any length.
    fn ask(id: u64, name: String) -> Call {
        let (query, consistency) = (Query::ServiceChecks(name), Consistency::Default);
        Call::Begin(CallId(id), Request::Read { query, consistency, blocking: None })
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let ask = (any::<u64>(), "[a-z]{0,300}").prop_map(|(id, name)| ask(id, name));
        let status = any::<u64>().prop_map(|id| Call::Begin(CallId(id), Request::Status));
        let cancel = any::<u64>().prop_map(|id| Call::Cancel(CallId(id)));
        prop::collection::vec(prop_oneof![ask, status, cancel, Just(Call::Cancel(CallId(0)))], 0..700)
    }

    fn next_message<T: DeserializeOwned>(cutter: &mut FrameCutter) -> Result<Option<T>, FrameError> {
        cutter.next_frame()?.map(|frame| decode(&frame)).transpose()
    }

    /// Splits everything in the chunks.
    fn cut(pieces: impl IntoIterator<Item = Bytes>) -> Result<Vec<CallFrame>, FrameError> {
        let (mut cutter, mut frames) = (FrameCutter::default(), Vec::new());
        for piece in pieces {
            cutter.feed(piece);
            while let Some(frame) = next_message(&mut cutter)? {
                frames.push(frame);
            }
        }
        assert!(!cutter.is_within_frame());
        Ok(frames)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn messages_survive_any_fragmentation(
            calls in calls(),
            cuts in prop::collection::vec(1usize..3000, 1..50),
        ) {
            let mut queue = FrameQueue::default();
            for call in &calls {
                queue.push(call).unwrap();
            }
            prop_assert_eq!(queue.is_empty(), calls.is_empty());
            let frames = queue.take();
            prop_assert!(queue.is_empty() && queue.byte_count() == 0);
            let mut bytes = Bytes::from(frames.concat());
            let mut pieces = Vec::new();
            for cut in cuts.iter().cycle() {
                if bytes.is_empty() { break; }
                pieces.push(bytes.split_to((*cut).min(bytes.len())));
            }
            let received: Vec<Call> = cut(pieces).unwrap().into_iter().flat_map(|frame| frame.0).collect();
            prop_assert_eq!(received, calls);
        }

        #[test]
        fn frame_equals_encoded_sequence(calls in calls()) {
            let calls: Vec<Call> = calls.into_iter().take(100).collect();
            let mut queue = FrameQueue::default();
            calls.iter().for_each(|call| queue.push(call).unwrap());
            let frames = queue.take();
            if let [frame] = &frames[..] {
                prop_assert_eq!(&frame[4..], &wire::encode(&CallFrame(calls))[..]);
            } else {
                prop_assert!(calls.is_empty() && frames.is_empty());
            }
        }

        #[test]
        fn arbitrary_input_never_panics(noise in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut cutter = FrameCutter::default();
            cutter.feed(noise.into());
            while let Ok(Some(CallFrame(_))) = next_message(&mut cutter) {}
        }
    }

    #[test]
    fn messages_share_frame_until_full() {
        let mut queue = FrameQueue::default();
        for id in 0..1000 {
            queue.push(&Call::Cancel(CallId(id))).unwrap();
        }
        assert_eq!(queue.take().len(), 1);
        for id in 0..10_000 {
            queue.push(&Call::Cancel(CallId(id))).unwrap();
        }
        assert_eq!(queue.take().len(), 3);
        let long = "s".repeat(10_000);
        for id in 0..20 {
            queue.push(&ask(id, long.clone())).unwrap();
        }
        assert_eq!(queue.take().len(), 3);
    }

    #[test]
    fn oversized_message_rejected_others_kept() {
        let mut queue = FrameQueue::default();
        let long = |length: usize| ask(7, "s".repeat(length));
        queue.push(&Call::Cancel(CallId(1))).unwrap();
        assert_eq!(queue.push(&long(MAX_FRAME_BYTES)), Err(TooLong));
        assert_eq!(Encoded::new(&long(MAX_FRAME_BYTES)), Err(TooLong));
        queue.push(&Call::Cancel(CallId(2))).unwrap();
        queue.push(&long(MAX_FRAME_BYTES - 22)).unwrap();
        let frames = cut(queue.take()).unwrap();
        let counts: Vec<usize> = frames.iter().map(|frame| frame.0.len()).collect();
        assert_eq!(counts, [2, 1]);
        for encoded in [false, true] {
            for message in [Call::Cancel(CallId(3)), long(100_000), Call::Cancel(CallId(4))] {
                match encoded {
                    true => queue.push_encoded(&Encoded::new(&message).unwrap()),
                    false => queue.push(&message).unwrap(),
                }
            }
            assert_eq!(queue.take().len(), 3, "a long message has a frame of its own");
        }
    }

    #[test]
    fn pre_encoded_messages_round_trip() {
        let long = |length: usize| ask(7, "s".repeat(length));
        let messages =
            [long(1), long(MAX_FRAME_BYTES - 22), Call::Cancel(CallId(1)), long(100), long(70_000)];
        let mut queue = FrameQueue::default();
        messages.iter().for_each(|message| queue.push_encoded(&Encoded::new(message).unwrap()));
        queue.push(&Call::Cancel(CallId(2))).unwrap();
        let received: Vec<Call> = cut(queue.take()).unwrap().into_iter().flat_map(|frame| frame.0).collect();
        assert_eq!(received[..5], messages);
        assert_eq!(received[5], Call::Cancel(CallId(2)));
    }

    #[test]
    fn oversized_frame_length_rejected_early() {
        let mut cutter = FrameCutter::default();
        cutter.feed(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff]));
        assert_eq!(next_message::<CallFrame>(&mut cutter), Err(FrameError::Length(u32::MAX as usize)));
        let mut cutter = FrameCutter::default();
        cutter.feed(Bytes::from_static(&[0, 0, 0, 2, 99, 0]));
        assert!(matches!(next_message::<CallFrame>(&mut cutter), Err(FrameError::Content(_))));
    }
}
