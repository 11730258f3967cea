//! Calls that await a reply of the core.

use super::event::{CallRef, Caller};
use crate::input::CallToken;
use lockmesh_protocol::acl;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::rpc::CallId;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The origin of a pending request.
#[derive(Debug)]
pub(super) enum Pending {
    /// A caller.
    Call(CallRef, CallKind),
    /// This server's shutdown, which waits until the leadership is transferred.
    Leave,
}

/// A requested read.
#[derive(Debug)]
pub(super) struct ReadWanted {
    /// The caller's node, in lower case.
    pub(super) node: NodeName,
    pub(super) client: acl::Caller,
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    pub(super) blocking: Option<Blocking>,
}

/// The kind of a pending call.
#[derive(Debug)]
pub(super) enum CallKind {
    Write,
    Read(ReadWanted),
    /// A query whose answer is read in parts.
    ReadParts {
        /// The caller's node, in lower case.
        node: NodeName,
        client: acl::Caller,
        query: Query,
        consistency: Consistency,
        /// The time until which it may wait for a view.
        deadline: Time,
    },
    /// A backup for this node.
    Backup(NodeName),
    /// A request for the lease status of one node or of all nodes.
    NodeLeases(NodeLeaseQuery),
    /// A renewal of a node's lease, or suspicions of other nodes.
    Lease,
    /// A server that requests to join and has no id yet.
    Admission,
    /// A server with this id that is being added.
    Joining(ServerId),
    /// A server that announces its current address.
    Announcement,
}

impl CallKind {
    /// Returns `true` if the reply only starts a wait or a backup, so that the call can still be
    /// cancelled.
    fn begins_something(&self) -> bool {
        matches!(
            self,
            Self::Read(ReadWanted { blocking: Some(_), .. }) | Self::ReadParts { .. } | Self::Backup(_)
        )
    }

    /// Returns `true` if the call changes nothing, so that a failing disk need not end it.
    fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::ReadParts { .. } | Self::Backup(_) | Self::NodeLeases(_) | Self::Lease
        )
    }
}

/// All pending calls, in reusable slots. A token names a slot and its use.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    slots: Vec<CallSlot>,
    free: Vec<u32>,
    /// Calls whose reply starts something, by the call that would cancel them.
    beginning: BTreeMap<CallRef, CallToken>,
}

#[derive(Debug, Default)]
struct CallSlot {
    uses: u32,
    pending: Option<Pending>,
}

impl PendingCalls {
    /// Adds a pending request and returns the token of its reply.
    pub(super) fn insert(&mut self, pending: Pending) -> CallToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(CallSlot::default());
            u32::try_from(self.slots.len() - 1).expect("the limit of calls is far lower")
        });
        let slot = &mut self.slots[index as usize];
        // Each use has a new token, so a late reply to an earlier call is ignored.
        slot.uses = slot.uses.wrapping_add(1);
        let token = CallToken(u64::from(slot.uses) << 32 | u64::from(index));
        // Only these are looked up by caller; writes, which are frequent, need no second map.
        if let Pending::Call(from, kind) = &pending
            && kind.begins_something()
        {
            self.beginning.insert(*from, token);
        }
        slot.pending = Some(pending);
        token
    }

    /// Takes the request with this token; `None` if it was cancelled.
    pub(super) fn take(&mut self, token: CallToken) -> Option<Pending> {
        let (index, uses) = (token.0 as u32, (token.0 >> 32) as u32);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.uses == uses)?;
        let pending = slot.pending.take()?;
        self.free.push(index);
        if let Pending::Call(from, kind) = &pending
            && kind.begins_something()
        {
            self.beginning.remove(from);
        }
        Some(pending)
    }

    /// Cancels a blocking read or a backup, so that it is not parked or started. Other calls
    /// continue: the shell drops their replies.
    pub(super) fn cancel(&mut self, call: CallRef) {
        if let Some(token) = self.beginning.get(&call).copied() {
            self.take(token);
        }
    }

    /// Cancels all blocking reads and backups of a closed connection.
    pub(super) fn cancel_all(&mut self, caller: Caller) {
        let call = |id| CallRef { caller, call: CallId(id) };
        let tokens: Vec<_> =
            self.beginning.range(call(0)..=call(u64::MAX)).map(|(_, token)| *token).collect();
        for token in tokens {
            self.take(token);
        }
    }

    /// Takes all waiting writes, in slot order.
    pub(super) fn take_writes(&mut self) -> Vec<CallRef> {
        self.take_those(|kind| !kind.only_reads())
    }

    /// Takes all waiting calls that change nothing, in slot order.
    pub(super) fn take_reads(&mut self) -> Vec<CallRef> {
        self.beginning.clear();
        self.take_those(CallKind::only_reads)
    }

    fn take_those(&mut self, wanted: impl Fn(&CallKind) -> bool) -> Vec<CallRef> {
        let mut taken = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            let is_wanted = |pending: &mut Pending| matches!(pending, Pending::Call(_, kind) if wanted(kind));
            if let Some(Pending::Call(from, _)) = slot.pending.take_if(is_wanted) {
                self.free.push(index);
                taken.push(from);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::LogIndex;
    use std::time::Duration;

    fn call(caller: u64, id: u64) -> CallRef {
        CallRef { caller: Caller(caller), call: CallId(id) }
    }

    fn blocking(from: CallRef) -> Pending {
        let blocking = Some(Blocking { index: LogIndex(1), wait: Duration::from_secs(1) });
        let (node, query, consistency) = ("a1".into(), Query::Nodes, Consistency::Default);
        let client = acl::Caller::Agent;
        let kind = CallKind::Read(ReadWanted { node, client, query, consistency, blocking });
        Pending::Call(from, kind)
    }

    #[test]
    fn reused_slot_rejects_old_token() {
        let mut pending = PendingCalls::default();
        let first = pending.insert(Pending::Call(call(1, 1), CallKind::Write));
        assert!(pending.take(first).is_some());
        let second = pending.insert(Pending::Call(call(1, 2), CallKind::Write));
        assert!(pending.take(first).is_none(), "the first call was answered");
        assert!(matches!(pending.take(second), Some(Pending::Call(from, _)) if from == call(1, 2)));
    }

    #[test]
    fn disconnect_cancels_only_reads_and_backups() {
        let mut pending = PendingCalls::default();
        let parked = pending.insert(blocking(call(1, 1)));
        let backup = pending.insert(Pending::Call(call(1, 3), CallKind::Backup("a1".into())));
        let others = pending.insert(blocking(call(2, 1)));
        let write = pending.insert(Pending::Call(call(1, 2), CallKind::Write));
        pending.cancel_all(Caller(1));
        assert!(pending.take(parked).is_none() && pending.take(backup).is_none());
        assert!(pending.take(others).is_some() && pending.take(write).is_some());
        assert!(pending.beginning.is_empty());
    }

    #[test]
    fn disk_failure_ends_only_writes() {
        let mut pending = PendingCalls::default();
        let read = pending.insert(blocking(call(1, 1)));
        pending.insert(Pending::Call(call(1, 2), CallKind::Write));
        let leave = pending.insert(Pending::Leave);
        assert_eq!(pending.take_writes(), [call(1, 2)]);
        assert!(pending.take(read).is_some() && pending.take(leave).is_some());
    }
}
