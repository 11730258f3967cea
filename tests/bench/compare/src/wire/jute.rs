//! ZooKeeper's records: big-endian numbers, and length prefixes of variable fields.
//!
//! A packet is its length, a header, and one record. Requests are prepared once and sent
//! repeatedly; only the number in the header changes ([`renumber`]).

use super::malformed;
use std::io;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create = 1,
    Delete = 2,
    Exists = 3,
    GetData = 4,
    SetData = 5,
    GetChildren = 8,
    Sync = 9,
    Ping = 11,
    CloseSession = -11,
}

/// The number in the header of a watch's event.
pub(crate) const EVENT: i32 = -1;
/// The number in the header of a ping.
pub(crate) const PING: i32 = -2;

/// No error.
pub(crate) const OK: i32 = 0;
/// The node does not exist.
pub(crate) const NO_NODE: i32 = -101;
/// The node exists already.
pub(crate) const NODE_EXISTS: i32 = -110;

/// The lifetime of a node, and its naming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Until it is deleted.
    Persistent = 0,
    /// Until its session ends; an increasing number is appended to its name.
    EphemeralSequential = 3,
}

/// The largest accepted packet.
const MAX_PACKET: usize = 16 << 20;

/// A packet that is being written.
#[derive(Debug)]
struct Packet(Vec<u8>);

impl Packet {
    fn new() -> Self {
        Self(vec![0; 4])
    }

    fn request(number: i32, operation: Operation) -> Self {
        Self::new().int(number).int(operation as i32)
    }

    fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn flag(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    fn bytes(mut self, value: &[u8]) -> Self {
        self = self.int(i32::try_from(value.len()).expect("values are short"));
        self.0.extend_from_slice(value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).expect("packets are short");
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Creates a session that expires after this many milliseconds of silence.
pub(crate) fn connect(timeout_ms: i32) -> Vec<u8> {
    const PROTOCOL: i32 = 0;
    const LAST_SEEN: i64 = 0;
    const NO_SESSION: i64 = 0;
    let packet = Packet::new().int(PROTOCOL).long(LAST_SEEN).int(timeout_ms).long(NO_SESSION);
    packet.bytes(&[0; 16]).flag(false).finish()
}

/// Creates a node with all permissions for all users.
pub(crate) fn create(path: &str, data: &[u8], kind: Kind) -> Vec<u8> {
    const ALL: i32 = 31;
    let packet = Packet::request(0, Operation::Create).bytes(path.as_bytes()).bytes(data);
    packet.int(1).int(ALL).bytes(b"world").bytes(b"anyone").int(kind as i32).finish()
}

/// Deletes a node, regardless of its version.
pub(crate) fn delete(path: &str) -> Vec<u8> {
    Packet::request(0, Operation::Delete).bytes(path.as_bytes()).int(-1).finish()
}

/// Writes a node's data, regardless of its version.
pub(crate) fn set_data(path: &str, data: &[u8]) -> Vec<u8> {
    Packet::request(0, Operation::SetData).bytes(path.as_bytes()).bytes(data).int(-1).finish()
}

/// Reads a node's data from the connected server.
pub(crate) fn data(path: &str) -> Vec<u8> {
    Packet::request(0, Operation::GetData).bytes(path.as_bytes()).flag(false).finish()
}

/// Checks if a node exists, and requests an event when that changes.
pub(crate) fn exists_and_watch(path: &str) -> Vec<u8> {
    Packet::request(0, Operation::Exists).bytes(path.as_bytes()).flag(true).finish()
}

/// Lists the names of the child nodes.
pub(crate) fn children(path: &str) -> Vec<u8> {
    Packet::request(0, Operation::GetChildren).bytes(path.as_bytes()).flag(false).finish()
}

/// Makes the connected server catch up with the leader.
pub(crate) fn sync(path: &str) -> Vec<u8> {
    Packet::request(0, Operation::Sync).bytes(path.as_bytes()).finish()
}

/// Keeps the session alive.
pub(crate) fn ping() -> Vec<u8> {
    Packet::request(PING, Operation::Ping).finish()
}

/// Ends the session and deletes its ephemeral nodes.
pub(crate) fn close_session() -> Vec<u8> {
    Packet::request(0, Operation::CloseSession).finish()
}

/// Sets a request's number.
pub(crate) fn renumber(request: &mut [u8], number: i32) {
    request[4..8].copy_from_slice(&number.to_be_bytes());
}

/// Returns the length of the packet at the beginning of `bytes`, its 4-byte prefix included; `None`
/// if the prefix is incomplete.
pub(crate) fn packet_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*length)) {
        Ok(length) if length <= MAX_PACKET => Ok(Some(4 + length)),
        _ => Err(malformed("a packet of ZooKeeper's without a usable length")),
    }
}

/// The head of a response or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The number of the answered request, [`EVENT`] or [`PING`].
    pub(crate) number: i32,
    /// [`OK`], or an error.
    pub(crate) error: i32,
}

/// Parses the head of a packet, without its length, and returns the record behind it.
pub(crate) fn head(packet: &[u8]) -> io::Result<(Head, &[u8])> {
    let mut rest = packet;
    let number = int(&mut rest)?;
    take(&mut rest, 8)?;
    let error = int(&mut rest)?;
    Ok((Head { number, error }, rest))
}

/// Returns the timeout in milliseconds in the response to [`connect`]; 0 if there is no session.
pub(crate) fn connected(mut packet: &[u8]) -> io::Result<i32> {
    int(&mut packet)?;
    int(&mut packet)
}

/// Parses a record that is a path, or begins with data.
pub(crate) fn text(mut record: &[u8]) -> io::Result<&[u8]> {
    bytes(&mut record)
}

/// Parses a record that is a list of names.
pub(crate) fn names(mut record: &[u8]) -> io::Result<Vec<&[u8]>> {
    let count = int(&mut record)?;
    (0..count).map(|_| bytes(&mut record)).collect()
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> io::Result<&'a [u8]> {
    let (taken, left) = rest
        .split_at_checked(length)
        .ok_or_else(|| malformed("a record of ZooKeeper's that ends too early"))?;
    *rest = left;
    Ok(taken)
}

fn int(rest: &mut &[u8]) -> io::Result<i32> {
    let bytes = take(rest, 4)?;
    Ok(i32::from_be_bytes(bytes.try_into().expect("4 were taken")))
}

fn bytes<'a>(rest: &mut &'a [u8]) -> io::Result<&'a [u8]> {
    // A length of -1 means absent bytes.
    let length = int(rest)?.max(0);
    take(rest, usize::try_from(length).expect("not below 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bytes() {
        let expected: &[u8] = b"\0\0\0\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x75\x30\0\0\0\0\0\0\0\0\
            \0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(connect(30_000), expected);
        let expected: &[u8] = b"\0\0\0\x32\0\0\0\0\0\0\0\x01\0\0\0\x02/a\0\0\0\x01x\
            \0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\0\0\0\x03";
        assert_eq!(create("/a", b"x", Kind::EphemeralSequential), expected);
        assert_eq!(delete("/a"), b"\0\0\0\x12\0\0\0\0\0\0\0\x02\0\0\0\x02/a\xff\xff\xff\xff");
        assert_eq!(exists_and_watch("/a"), b"\0\0\0\x0f\0\0\0\0\0\0\0\x03\0\0\0\x02/a\x01");
        assert_eq!(data("/a"), b"\0\0\0\x0f\0\0\0\0\0\0\0\x04\0\0\0\x02/a\x00");
        assert_eq!(
            set_data("/a", b"x"),
            b"\0\0\0\x17\0\0\0\0\0\0\0\x05\0\0\0\x02/a\0\0\0\x01x\xff\xff\xff\xff"
        );
        assert_eq!(children("/a"), b"\0\0\0\x0f\0\0\0\0\0\0\0\x08\0\0\0\x02/a\x00");
        assert_eq!(sync("/a"), b"\0\0\0\x0e\0\0\0\0\0\0\0\x09\0\0\0\x02/a");
        assert_eq!(ping(), b"\0\0\0\x08\xff\xff\xff\xfe\0\0\0\x0b");
        assert_eq!(close_session(), b"\0\0\0\x08\0\0\0\0\xff\xff\xff\xf5");
    }

    #[test]
    fn a_request_gets_its_number() {
        let mut request = sync("/a");
        renumber(&mut request, 258);
        assert_eq!(request, b"\0\0\0\x0e\0\0\x01\x02\0\0\0\x09\0\0\0\x02/a");
    }

    #[test]
    fn answers_are_read() {
        let packet = b"\0\0\0\x07\0\0\0\0\0\0\0\x09\xff\xff\xff\x9b\0\0\0\x02/a";
        let (head, record) = head(packet).expect("good");
        assert_eq!(head, Head { number: 7, error: NO_NODE });
        assert_eq!(text(record).expect("good"), b"/a");
        let list = names(b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc").expect("good");
        assert_eq!(list, [&b"a"[..], b"bc"]);
        assert_eq!(names(b"\xff\xff\xff\xff").expect("none"), [] as [&[u8]; 0]);
        assert_eq!(text(b"\xff\xff\xff\xff").expect("none"), b"");
        assert_eq!(connected(b"\0\0\0\0\0\0\x27\x10").expect("good"), 10_000);
    }

    #[test]
    fn packets_are_waited_for_and_never_misread() {
        assert_eq!(packet_length(b"\0\0\0").expect("nothing wrong yet"), None);
        assert_eq!(packet_length(b"\0\0\0\x05abc").expect("good"), Some(9));
        assert!(packet_length(b"\xff\xff\xff\xff").is_err());
        assert!(head(b"\0\0\0\x07\0\0").is_err());
        assert!(names(b"\0\0\0\x02\0\0\0\x01a").is_err());
    }
}
