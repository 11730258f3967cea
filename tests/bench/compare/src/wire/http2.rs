//! The subset of HTTP/2 that a gRPC client needs: frames, and header blocks that become short on a
//! warm connection.
//!
//! Headers of responses are not decoded. A successful unary call is a message followed by the end
//! of its stream, a failed one is the end without a message; the server's log has the reason.

use super::etcd::Method;
use super::malformed;
use std::io;

/// The first bytes that a client sends.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest window that flow control allows: responses are never delayed by this client.
pub(crate) const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// The initial window of every stream and every connection.
pub(crate) const FIRST_WINDOW: i64 = 65_535;

/// The longest frame that a peer accepts by default.
pub(crate) const MAX_FRAME: usize = 16_384;

/// The length of a frame's head.
pub(crate) const FRAME_HEAD: usize = 9;

/// The length of gRPC's prefix of a message.
pub(crate) const GRPC_HEAD: usize = 5;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The frames of a peer, as far as they matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A piece of a stream's messages.
    Data { stream: u32, bytes: &'a [u8], ends: bool },
    /// Headers, undecoded.
    Headers { stream: u32, ends: bool },
    /// A stream that was reset.
    Reset { stream: u32 },
    /// Settings that must be acknowledged; the initial window of new streams, if included.
    Settings { window: Option<u32> },
    /// A ping that must be answered with the same bytes.
    Ping([u8; 8]),
    /// The peer accepts no new streams.
    GoAway,
    /// More may be sent; on stream 0, in total.
    Window { stream: u32, more: u32 },
    /// Any other frame.
    Other,
}

/// Appends the head of a frame.
fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length).expect("frames are short").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends the opening of a connection: no pushes, and windows that never delay a response.
pub(crate) fn open(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    head(out, 12, SETTINGS, 0, 0);
    for (name, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, LARGEST_WINDOW)] {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    window_update(out, LARGEST_WINDOW - 65_535);
}

/// Appends a window update: the peer may send this much more on the connection.
pub(crate) fn window_update(out: &mut Vec<u8>, more: u32) {
    head(out, 4, WINDOW_UPDATE, 0, 0);
    out.extend_from_slice(&more.to_be_bytes());
}

/// Appends the acknowledgement of settings.
pub(crate) fn acknowledge_settings(out: &mut Vec<u8>) {
    head(out, 0, SETTINGS, ACK, 0);
}

/// Appends the answer to a ping.
pub(crate) fn answer_ping(out: &mut Vec<u8>, bytes: [u8; 8]) {
    head(out, 8, PING, ACK, 0);
    out.extend_from_slice(&bytes);
}

/// Appends the reset of a canceled stream.
pub(crate) fn cancel(out: &mut Vec<u8>, stream: u32) {
    const CANCEL: u32 = 8;
    head(out, 4, RESET, 0, stream);
    out.extend_from_slice(&CANCEL.to_be_bytes());
}

/// Appends a gRPC message; `ends` is set for the last of its stream.
pub(crate) fn message(out: &mut Vec<u8>, stream: u32, message: &[u8], ends: bool) {
    let length = u32::try_from(message.len()).expect("messages are short");
    head(out, GRPC_HEAD + message.len(), DATA, if ends { END_STREAM } else { 0 }, stream);
    out.push(0);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(message);
}

/// The request headers of a connection: a repeated header takes one byte.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    authority: String,
    /// The number of entries added to the peer's table.
    entries: usize,
    /// The entries of the headers common to all requests, once they were sent.
    common: Option<[usize; 3]>,
    /// The entries of the methods' paths.
    paths: [Option<usize>; Method::COUNT],
}

impl Requests {
    /// Creates the headers of a fresh connection to this host and port.
    pub(crate) fn new(authority: String) -> Self {
        Self { authority, entries: 0, common: None, paths: [None; Method::COUNT] }
    }

    /// Appends the headers that open a stream.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>, stream: u32, method: Method) {
        let at = out.len();
        head(out, 0, HEADERS, END_HEADERS, stream);
        // `:method: POST` and `:scheme: http`, from the static table.
        out.extend_from_slice(&[0x83, 0x86]);
        match self.paths[method as usize] {
            Some(entry) => self.known(out, entry),
            None => self.paths[method as usize] = Some(self.named(out, 0x44, method.path())),
        }
        match self.common {
            Some(entries) => entries.into_iter().for_each(|entry| self.known(out, entry)),
            None => {
                let authority = self.authority.clone();
                let authority = self.named(out, 0x41, &authority);
                let kind = self.named(out, 0x5f, "application/grpc");
                out.push(0x40);
                text(out, "te");
                text(out, "trailers");
                self.entries += 1;
                self.common = Some([authority, kind, self.entries - 1]);
            }
        }
        let length = u32::try_from(out.len() - at - FRAME_HEAD).expect("headers are short").to_be_bytes();
        out[at..at + 3].copy_from_slice(&length[1..]);
    }

    /// Appends a header whose name is in the static table, and adds it to the peer's table.
    fn named(&mut self, out: &mut Vec<u8>, name: u8, value: &str) -> usize {
        out.push(name);
        text(out, value);
        self.entries += 1;
        self.entries - 1
    }

    /// Appends a header of the peer's table; the newest entry has the number 62.
    fn known(&self, out: &mut Vec<u8>, entry: usize) {
        let number = u8::try_from(62 + self.entries - 1 - entry).expect("there are few headers");
        out.push(0x80 | number);
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
    out.push(length.expect("headers are short"));
    out.extend_from_slice(text.as_bytes());
}

/// Parses the first frame in `bytes` and returns its length; `None` if it is incomplete.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD>() else { return Ok(None) };
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    if length > MAX_FRAME {
        return Err(malformed("an HTTP/2 frame that is longer than was allowed"));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
    Ok(Some((frame(head[3], head[4], stream, body)?, FRAME_HEAD + length)))
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> io::Result<Frame<'_>> {
    let ends = flags & END_STREAM != 0;
    Ok(match kind {
        DATA if flags & PADDED != 0 => return Err(malformed("padding, which gRPC servers do not send")),
        DATA => Frame::Data { stream, bytes: body, ends },
        HEADERS => Frame::Headers { stream, ends },
        RESET => Frame::Reset { stream },
        SETTINGS if flags & ACK == 0 => Frame::Settings { window: settings(body)? },
        PING if flags & ACK == 0 => {
            Frame::Ping(body.try_into().map_err(|_| malformed("a ping that is not 8 bytes"))?)
        }
        GO_AWAY => Frame::GoAway,
        WINDOW_UPDATE => {
            let more = body.try_into().map_err(|_| malformed("a window update that is not 4 bytes"))?;
            Frame::Window { stream, more: u32::from_be_bytes(more) & LARGEST_WINDOW }
        }
        _ => Frame::Other,
    })
}

/// Returns the initial window of streams, if the settings include it.
fn settings(body: &[u8]) -> io::Result<Option<u32>> {
    let mut window = None;
    for setting in body.chunks(6) {
        let Ok([a, b, c, d, e, f]) = <[u8; 6]>::try_from(setting) else {
            return Err(malformed("settings that end too early"));
        };
        let value = u32::from_be_bytes([c, d, e, f]);
        match u16::from_be_bytes([a, b]) {
            HEADER_TABLE_SIZE if value < 4096 => return Err(malformed("a header table that is too small")),
            INITIAL_WINDOW_SIZE => window = Some(value),
            _ => {}
        }
    }
    Ok(window)
}

/// Returns the gRPC message at the beginning of `bytes` and its end; `None` if it is incomplete.
pub(crate) fn first_message(bytes: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some((head, rest)) = bytes.split_first_chunk::<GRPC_HEAD>() else { return Ok(None) };
    if head[0] != 0 {
        return Err(malformed("a compressed message, though none was asked for"));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    Ok(rest.get(..length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_opens_with_known_bytes() {
        let mut out = Vec::new();
        open(&mut out);
        let expected: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
            \x00\x00\x0c\x04\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff\
            \x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\x00\x00";
        assert_eq!(out, expected);
    }

    #[test]
    fn the_second_request_is_short() {
        let mut requests = Requests::new("h:1".into());
        let mut out = Vec::new();
        requests.begin(&mut out, 1, Method::Put);
        let expected: &[u8] = b"\x00\x00\x3c\x01\x04\x00\x00\x00\x01\x83\x86\
            \x44\x14/etcdserverpb.KV/Put\x41\x03h:1\x5f\x10application/grpc\x40\x02te\x08trailers";
        assert_eq!(out, expected);
        out.clear();
        requests.begin(&mut out, 3, Method::Put);
        // The newest entry is `te`, 62; before it the kind, 63, the authority, 64, and the path,
        // 65.
        assert_eq!(out, b"\x00\x00\x06\x01\x04\x00\x00\x00\x03\x83\x86\xc1\xc0\xbf\xbe");
        out.clear();
        requests.begin(&mut out, 5, Method::Txn);
        assert_eq!(
            out,
            b"\x00\x00\x1b\x01\x04\x00\x00\x00\x05\x83\x86\x44\x14/etcdserverpb.KV/Txn\xc1\xc0\xbf"
        );
        out.clear();
        requests.begin(&mut out, 7, Method::Put);
        assert_eq!(out, b"\x00\x00\x06\x01\x04\x00\x00\x00\x07\x83\x86\xc2\xc1\xc0\xbf");
    }

    #[test]
    fn a_message_is_framed_twice() {
        let mut out = Vec::new();
        message(&mut out, 9, b"abc", true);
        assert_eq!(out, b"\x00\x00\x08\x00\x01\x00\x00\x00\x09\x00\x00\x00\x00\x03abc");
        let (frame, length) = parse(&out).expect("good").expect("whole");
        assert_eq!(length, out.len());
        let Frame::Data { stream: 9, bytes, ends: true } = frame else { panic!("{frame:?}") };
        assert_eq!(first_message(bytes).expect("good"), Some(&b"abc"[..]));
        assert_eq!(first_message(&bytes[..7]).expect("good"), None);
        for cut in 0..out.len() {
            assert_eq!(parse(&out[..cut]).expect("nothing wrong yet"), None);
        }
    }

    #[test]
    fn what_a_server_sends_is_understood() {
        let one = |bytes: &'static [u8]| parse(bytes).expect("good").expect("whole").0;
        let settings = one(b"\x00\x00\x0c\x04\x00\0\0\0\0\x00\x03\0\0\0\x09\x00\x04\0\x01\0\0");
        assert_eq!(settings, Frame::Settings { window: Some(65_536) });
        assert_eq!(one(b"\0\0\0\x04\x01\0\0\0\0"), Frame::Other, "an acknowledgement");
        assert_eq!(one(b"\0\0\x08\x06\0\0\0\0\0abcdefgh"), Frame::Ping(*b"abcdefgh"));
        assert_eq!(one(b"\0\0\x04\x08\0\0\0\0\x05\0\0\0\x07"), Frame::Window { stream: 5, more: 7 });
        assert_eq!(one(b"\0\0\x01\x01\x05\0\0\0\x05\x88"), Frame::Headers { stream: 5, ends: true });
        assert_eq!(one(b"\0\0\x04\x03\0\0\0\0\x05\0\0\0\x08"), Frame::Reset { stream: 5 });
        assert_eq!(one(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0"), Frame::GoAway);
        for bad in [&b"\0\0\x02\x00\x08\0\0\0\x01ab"[..], b"\0\0\x01\x06\0\0\0\0\0a", b"\xff\0\0\0\0\0\0\0\0"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
