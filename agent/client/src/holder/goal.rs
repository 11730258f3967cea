//! What can be held: a lock's key, or a slot of a semaphore. What differs between them stands here:
//! what is read, how a look is judged, and how it is taken.

use super::outbox::{Request, Write};
use super::slots::Slots;
use crate::LOCK_FLAGS;
use crate::entry::Entry;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use bytes::Bytes;
use std::time::Duration;

/// The flags by which Consul's clients know the keys of a semaphore.
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// Something that can be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A lock.
    Lock(LockGoal),
    /// A slot of a semaphore.
    Slot(SlotGoal),
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockGoal {
    /// The key.
    pub key: String,
    /// What it shall hold while it is held, and when it is given back.
    pub value: Bytes,
    /// The flags that tell a lock from other keys.
    pub flags: u64,
}

/// A slot of a semaphore: the session's name in the list of holders under the prefix, and a key of
/// its own that ends with the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotGoal {
    /// The prefix, without a slash at its end.
    pub prefix: String,
    /// How many slots there are.
    pub limit: usize,
    /// What the session's own key shall hold.
    pub value: Bytes,
}

/// What a look gave to somebody who wants it.
#[derive(Debug)]
pub(super) enum Look {
    /// It is held already, by a request whose answer was not heard.
    Mine,
    /// Others hold it.
    Taken,
    /// It may be had, with this request.
    Free(Request),
}

impl Goal {
    /// The key or prefix, for people.
    pub fn name(&self) -> &str {
        match self {
            Self::Lock(lock) => &lock.key,
            Self::Slot(slot) => &slot.prefix,
        }
    }

    /// The request that looks who holds it.
    pub(super) fn look(&self, read: Read) -> Request {
        match self {
            Self::Lock(lock) => Request::Get(lock.key.clone(), read),
            Self::Slot(slot) => Request::List(slot.folder(), read),
        }
    }

    /// What has to be taken first, for as long as the session lives.
    pub(super) fn own_key(&self, session: &str) -> Option<Request> {
        match self {
            Self::Lock(_) => None,
            Self::Slot(slot) => Some(Request::Acquire(
                slot.write(slot.own_key(session), slot.value.clone()),
                session.into(),
                None,
            )),
        }
    }

    /// What a look says to a session that wants it and would wait in its queue for so long.
    pub(super) fn judge_look(
        &self,
        session: &str,
        entries: &[Entry],
        queue_for: Option<Duration>,
    ) -> Result<Look, Error> {
        match self {
            Self::Lock(lock) => {
                let entry = entries.first();
                entry.map_or(Ok(()), |entry| lock.check(entry))?;
                let holder = entry.and_then(|entry| entry.session.as_deref());
                // With a queue it is asked for also while others hold it: the request waits there.
                if queue_for.is_none() && holder.is_some_and(|holder| holder != session) {
                    return Ok(Look::Taken);
                }
                Ok(Look::Free(Request::Acquire(lock.write(), session.into(), queue_for)))
            }
            Self::Slot(slot) => {
                let mut slots = slot.slots(entries)?.unwrap_or_else(|| Slots::empty(slot.limit));
                // The dead hold nothing: the write that takes a slot strikes them off.
                slots.prune(entries);
                if slots.holds(session) {
                    return Ok(Look::Mine);
                }
                if !slots.enter(session) {
                    return Ok(Look::Taken);
                }
                Ok(Look::Free(slot.replace(&slots)))
            }
        }
    }

    /// What a look says about a session's hold; `None` when all is well.
    pub(super) fn judge_hold(&self, session: &str, entries: &[Entry]) -> Result<Option<Loss>, Error> {
        match self {
            Self::Lock(_) => Ok(match entries.first().map(|entry| entry.session.as_deref()) {
                None => Some(Loss::Deleted),
                Some(None) => Some(Loss::Released),
                Some(Some(holder)) if holder != session => Some(Loss::Taken(holder.to_owned())),
                Some(Some(_)) => None,
            }),
            Self::Slot(slot) => {
                let Some(mut slots) = slot.slots(entries)? else { return Ok(Some(Loss::Deleted)) };
                // To the others a holder without its own key is dead, so it must be to itself.
                slots.prune(entries);
                Ok((!slots.holds(session)).then_some(Loss::Unlisted))
            }
        }
    }
}

/// The use of a key by its flags, for people.
fn use_of(entry: &Entry) -> String {
    match entry.flags {
        SEMAPHORE_FLAGS => "it is a semaphore".into(),
        LOCK_FLAGS => "it is a lock".into(),
        flags => format!("it is a key with flags {flags:#x}"),
    }
}

impl LockGoal {
    /// Refuses a key that is not a lock, before anything in it is overwritten.
    pub(crate) fn check(&self, entry: &Entry) -> Result<(), Error> {
        if entry.flags == self.flags {
            return Ok(());
        }
        let reason = format!("{}, not a lock with flags {:#x}", use_of(entry), self.flags);
        Err(Error::Conflict { key: self.key.clone(), reason })
    }

    pub(super) fn write(&self) -> Write {
        Write { key: self.key.clone(), value: self.value.clone(), flags: self.flags }
    }
}

impl SlotGoal {
    /// What all keys of the semaphore start with.
    pub(crate) fn folder(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The key of the list of holders.
    pub(crate) fn list_key(&self) -> String {
        format!("{}/.lock", self.prefix)
    }

    pub(super) fn own_key(&self, session: &str) -> String {
        format!("{}/{session}", self.prefix)
    }

    /// The list of holders among the entries under the prefix; `None` where there is none yet.
    pub(crate) fn slots(&self, entries: &[Entry]) -> Result<Option<Slots>, Error> {
        let key = self.list_key();
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { return Ok(None) };
        let conflict = |reason| Error::Conflict { key: key.clone(), reason };
        if entry.flags != SEMAPHORE_FLAGS {
            return Err(conflict(format!("{}, not a semaphore", use_of(entry))));
        }
        Slots::parse(entry, self.limit).map(Some).map_err(conflict)
    }

    /// Writes this list, unless somebody else changed it since it was read.
    pub(super) fn replace(&self, slots: &Slots) -> Request {
        Request::Cas(self.write(self.list_key(), slots.to_json().into()), slots.modify_index)
    }

    fn write(&self, key: String, value: Bytes) -> Write {
        Write { key, value, flags: SEMAPHORE_FLAGS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_the_key_is_judged() {
        let lock = Goal::Lock(LockGoal { key: "job".into(), value: Bytes::new(), flags: 0 });
        let held_by = |session: Option<&str>| Entry { session: session.map(Into::into), ..Entry::default() };
        let judge = |entry: Option<Entry>| {
            lock.judge_hold("me", entry.as_slice()).expect("a lock is never in conflict")
        };
        assert_eq!(judge(Some(held_by(Some("me")))), None);
        assert_eq!(judge(Some(held_by(Some("you")))), Some(Loss::Taken("you".into())));
        assert_eq!(judge(Some(held_by(None))), Some(Loss::Released));
        assert_eq!(judge(None), Some(Loss::Deleted));
    }
}
