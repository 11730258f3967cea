//! The subset of etcd's messages that the work needs; field numbers as in etcd 3.4's `rpc.proto`
//! and `kv.proto`.

use super::malformed;
use super::protobuf::{Message, read};
use std::io;

/// The methods that are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Reads keys.
    Range,
    /// Writes a key.
    Put,
    /// Deletes keys.
    DeleteRange,
    /// A transaction.
    Txn,
    /// A stream of events.
    Watch,
    /// Creates a lease.
    LeaseGrant,
    /// Ends a lease and deletes its keys.
    LeaseRevoke,
    /// Returns a member's status.
    Status,
}

impl Method {
    /// The number of methods.
    pub(crate) const COUNT: usize = 8;

    /// Returns its path in gRPC.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::DeleteRange => "/etcdserverpb.KV/DeleteRange",
            Self::Txn => "/etcdserverpb.KV/Txn",
            Self::Watch => "/etcdserverpb.Watch/Watch",
            Self::LeaseGrant => "/etcdserverpb.Lease/LeaseGrant",
            Self::LeaseRevoke => "/etcdserverpb.Lease/LeaseRevoke",
            Self::Status => "/etcdserverpb.Maintenance/Status",
        }
    }
}

/// Returns the end of the range of all keys with a prefix.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// `PutRequest`.
pub(crate) fn put(key: &[u8], value: &[u8], lease: u64) -> Message {
    Message::default().bytes(1, key).bytes(2, value).number(3, lease)
}

/// `RangeRequest` of one key; linearizable unless `serializable`, which any member answers from its
/// own state.
pub(crate) fn get(key: &[u8], serializable: bool) -> Message {
    Message::default().bytes(1, key).number(7, u64::from(serializable))
}

/// `RangeRequest` of the first-created key below a prefix.
fn first_created(prefix: &[u8]) -> Message {
    Message::default().bytes(1, prefix).bytes(2, &prefix_end(prefix)).number(3, 1).number(5, 1).number(6, 2)
}

/// `RangeRequest` of the last-created key below a prefix that is not newer than a revision.
pub(crate) fn last_created(prefix: &[u8], not_after: u64) -> Message {
    let range = Message::default().bytes(1, prefix).bytes(2, &prefix_end(prefix)).number(3, 1);
    range.number(5, 2).number(6, 2).number(13, not_after)
}

/// `DeleteRangeRequest` of one key.
pub(crate) fn delete(key: &[u8]) -> Message {
    Message::default().bytes(1, key)
}

/// `TxnRequest` with which the official clients' mutex joins the queue: creates the client's key if
/// it is missing, and returns the first key of the queue.
pub(crate) fn stand_in_line(key: &[u8], prefix: &[u8], lease: u64) -> Message {
    let is_missing = Message::default().number(2, 1).bytes(3, key);
    // The compared revision is 0, which must be written because it selects the comparison.
    let is_missing = is_missing.finish().into_iter().chain([5 << 3, 0]).collect::<Vec<u8>>();
    let owner = Message::default().message(1, &first_created(prefix));
    let make = Message::default().message(2, &put(key, b"", lease));
    let look = Message::default().message(1, &get(key, false));
    let txn = Message::default().bytes(1, &is_missing).message(2, &make).message(2, &owner);
    txn.message(3, &look).message(3, &owner)
}

/// `WatchRequest` that starts a watch of one key behind a revision.
pub(crate) fn watch(key: &[u8], start_revision: u64) -> Message {
    Message::default().message(1, &Message::default().bytes(1, key).number(3, start_revision))
}

/// `WatchRequest` that ends a watch.
pub(crate) fn cancel_watch(id: u64) -> Message {
    Message::default().message(2, &Message::default().number(1, id))
}

/// `LeaseGrantRequest`; the TTL is in seconds.
pub(crate) fn grant_lease(seconds: u64) -> Message {
    Message::default().number(1, seconds)
}

/// `LeaseRevokeRequest`.
pub(crate) fn revoke_lease(lease: u64) -> Message {
    Message::default().number(1, lease)
}

/// Returns the id in a `LeaseGrantResponse`.
pub(crate) fn granted_lease(response: &[u8]) -> io::Result<u64> {
    let mut lease = 0;
    read(response, |field, value| {
        if field == 2 {
            lease = value.number();
        }
    })?;
    if lease == 0 { Err(malformed("etcd granted no lease")) } else { Ok(lease) }
}

/// The needed fields of a `RangeResponse`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The store's revision.
    pub(crate) revision: u64,
    /// The first key found and the revision that created it.
    pub(crate) first: Option<(Vec<u8>, u64)>,
}

/// Parses a `RangeResponse`.
pub(crate) fn found(response: &[u8]) -> io::Result<Found> {
    let (mut header, mut first) = (&[][..], None);
    read(response, |field, value| match field {
        1 => header = value.bytes(),
        2 if first.is_none() => first = Some(value.bytes()),
        _ => {}
    })?;
    let first = match first {
        None => None,
        Some(pair) => {
            let (mut key, mut created) = (&[][..], 0);
            read(pair, |field, value| match field {
                1 => key = value.bytes(),
                2 => created = value.number(),
                _ => {}
            })?;
            Some((key.to_vec(), created))
        }
    };
    Ok(Found { revision: revision(header)?, first })
}

fn revision(header: &[u8]) -> io::Result<u64> {
    let mut revision = 0;
    read(header, |field, value| {
        if field == 3 {
            revision = value.number();
        }
    })?;
    Ok(revision)
}

/// A client's queue position after [`stand_in_line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The revision that created the client's own key.
    pub(crate) mine: u64,
    /// The revision that created the first key in the queue; 0 if the queue is empty.
    pub(crate) first: u64,
}

/// Parses the `TxnResponse` to [`stand_in_line`].
pub(crate) fn place(response: &[u8]) -> io::Result<Place> {
    let (mut header, mut made, mut answers) = (&[][..], false, [&[][..]; 2]);
    let mut count = 0;
    read(response, |field, value| match field {
        1 => header = value.bytes(),
        2 => made = value.number() == 1,
        3 => {
            if let Some(answer) = answers.get_mut(count) {
                *answer = value.bytes();
            }
            count += 1;
        }
        _ => {}
    })?;
    let range = |answer: &[u8]| -> io::Result<u64> {
        let mut inner = None;
        read(answer, |field, value| {
            if field == 1 {
                inner = Some(value.bytes().to_vec());
            }
        })?;
        let found = found(&inner.unwrap_or_default())?;
        Ok(found.first.map_or(0, |(_, created)| created))
    };
    let mine = if made { revision(header)? } else { range(answers[0])? };
    Ok(Place { mine, first: range(answers[1])? })
}

/// The needed fields of a `WatchResponse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// The id of the watch.
    pub(crate) id: u64,
    /// The watch begins.
    pub(crate) created: bool,
    /// The watch has ended.
    pub(crate) canceled: bool,
    /// A key was deleted.
    pub(crate) deleted: bool,
}

/// Parses a `WatchResponse`.
pub(crate) fn watched(response: &[u8]) -> io::Result<Watched> {
    let mut watched = Watched::default();
    let mut events = Vec::new();
    read(response, |field, value| match field {
        2 => watched.id = value.number(),
        3 => watched.created = value.number() == 1,
        4 => watched.canceled = value.number() == 1,
        11 => events.push(value.bytes()),
        _ => {}
    })?;
    for event in events {
        read(event, |field, value| watched.deleted |= field == 1 && value.number() == 1)?;
    }
    Ok(watched)
}

/// The needed fields of a `StatusResponse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The member that answers.
    pub(crate) member: u64,
    /// The leader known to it, 0 for none.
    pub(crate) leader: u64,
    /// The log index up to which it has applied.
    pub(crate) applied: u64,
}

/// Parses a `StatusResponse`.
pub(crate) fn status(response: &[u8]) -> io::Result<Status> {
    let mut status = Status::default();
    let mut header = &[][..];
    read(response, |field, value| match field {
        1 => header = value.bytes(),
        4 => status.leader = value.number(),
        7 => status.applied = value.number(),
        _ => {}
    })?;
    read(header, |field, value| {
        if field == 2 {
            status.member = value.number();
        }
    })?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bytes_by_the_published_field_numbers() {
        assert_eq!(put(b"k", b"v", 7).finish(), b"\x0a\x01k\x12\x01v\x18\x07");
        assert_eq!(get(b"k", false).finish(), b"\x0a\x01k");
        assert_eq!(get(b"k", true).finish(), b"\x0a\x01k\x38\x01");
        assert_eq!(last_created(b"l/", 9).finish(), b"\x0a\x02l/\x12\x02l0\x18\x01\x28\x02\x30\x02\x68\x09");
        assert_eq!(watch(b"k", 5).finish(), b"\x0a\x05\x0a\x01k\x18\x05");
        assert_eq!(cancel_watch(3).finish(), b"\x12\x02\x08\x03");
        assert_eq!(grant_lease(60).finish(), b"\x08\x3c");
        assert_eq!(revoke_lease(300).finish(), b"\x08\xac\x02");
        assert_eq!(delete(b"k").finish(), b"\x0a\x01k");
    }

    #[test]
    fn the_mutex_transaction_says_what_the_official_one_says() {
        let expected: &[u8] = b"\x0a\x08\x10\x01\x1a\x02l/\x28\x00\
            \x12\x0a\x12\x08\x0a\x02l/\x12\x00\x18\x09\
            \x12\x10\x0a\x0e\x0a\x02l/\x12\x02l0\x18\x01\x28\x01\x30\x02\
            \x1a\x06\x0a\x04\x0a\x02l/\
            \x1a\x10\x0a\x0e\x0a\x02l/\x12\x02l0\x18\x01\x28\x01\x30\x02";
        assert_eq!(stand_in_line(b"l/", b"l/", 9).finish(), expected);
    }

    #[test]
    fn answers_are_read() {
        let header = Message::default().number(1, 99).number(2, 11).number(3, 42);
        let pair = Message::default().bytes(1, b"k").number(2, 40).number(3, 41).bytes(5, b"value");
        let range = Message::default().message(1, &header).message(2, &pair).number(4, 1);
        let range_bytes = range.clone().finish();
        assert_eq!(
            found(&range_bytes).expect("good"),
            Found { revision: 42, first: Some((b"k".to_vec(), 40)) }
        );

        let made = Message::default().message(2, &Message::default().message(1, &header));
        let owner = Message::default().message(1, &range);
        let txn = Message::default().message(1, &header).number(2, 1).message(3, &made).message(3, &owner);
        assert_eq!(place(&txn.finish()).expect("good"), Place { mine: 42, first: 40 });
        let txn = Message::default().message(1, &header).message(3, &owner).message(3, &owner);
        assert_eq!(place(&txn.finish()).expect("good"), Place { mine: 40, first: 40 });

        let event = Message::default().number(1, 1).message(2, &pair);
        let response = Message::default().message(1, &header).number(2, 5).message(11, &event).finish();
        let expected = Watched { id: 5, deleted: true, ..Watched::default() };
        assert_eq!(watched(&response).expect("good"), expected);
        let put_event = Message::default().message(2, &pair);
        let response = Message::default().number(3, 1).message(11, &put_event).finish();
        assert_eq!(watched(&response).expect("good"), Watched { created: true, ..Watched::default() });

        let response = Message::default().message(1, &header).number(4, 12).number(7, 1000).finish();
        assert_eq!(status(&response).expect("good"), Status { member: 11, leader: 12, applied: 1000 });
        assert!(granted_lease(b"").is_err());
        assert_eq!(granted_lease(&Message::default().number(2, 8).finish()).expect("good"), 8);
    }
}
