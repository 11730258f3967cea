//! Views of long answers, which callers read in parts.
//!
//! A view keeps the rows that were replaced since it was begun. Therefore the number of views, the
//! time of each, and the size of what it keeps are limited. A caller whose view was ended receives
//! an error for its next part, so no answer looks complete that is not.
//!
//! One node has at most half of the views, on all of its connections together. A request that finds
//! no place waits in a fair, bounded queue, and keeps its query only: a view shows the state at its
//! begin. A view that is not read ends for it.

use super::event::{CallRef, Caller};
use crate::state::LongRead;
use lockmesh_protocol::acl;
use lockmesh_protocol::id::{NodeName, ServerId};
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::rpc::{Unavailable, VIEW_WAIT, ViewId};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of views.
const MAX_VIEWS: usize = 8;

/// The maximum number of views of one node.
const MAX_OF_NODE: usize = MAX_VIEWS / 2;

/// The maximum number of requests that wait for a view, half of them of one node.
const MAX_WAITING: usize = 64;

/// The time without a request for a further part after which a view ends if its place is needed.
/// Not longer than [`VIEW_WAIT`]: a request finds the place before it is refused.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// The maximum time of a view.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The maximum size of the rows that were replaced since a view was begun, in bytes.
const MAX_REPLACED: u64 = 64 << 20;

/// The time, and the size of all rows that the state has replaced so far, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) now: Time,
    pub(super) replaced_bytes: u64,
}

#[derive(Debug)]
struct OpenView {
    /// The call that began it.
    begun_by: CallRef,
    /// The node of that call.
    node: NodeName,
    read: LongRead,
    begun: Position,
    /// The position behind the newest part that was read.
    position: u64,
    /// The time at which that part was requested.
    moved: Time,
}

impl OpenView {
    fn check(&self, at: Position) -> Result<(), Unavailable> {
        if at.now.since(self.begun.now) > MAX_TIME {
            return Err(ended(&format!("it was not read within {} s", MAX_TIME.as_secs())));
        }
        if at.replaced_bytes.saturating_sub(self.begun.replaced_bytes) > MAX_REPLACED {
            let megabytes = MAX_REPLACED >> 20;
            return Err(ended(&format!("more than {megabytes} MiB of the data was changed meanwhile")));
        }
        Ok(())
    }
}

/// A request that waits for a view.
#[derive(Debug)]
pub(super) struct WaitingRead {
    pub(super) from: CallRef,
    /// The caller's node, in lower case.
    pub(super) node: NodeName,
    pub(super) client: acl::Caller,
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    /// The time at which it is refused.
    pub(super) deadline: Time,
}

/// The open views of this server, and the requests that wait for one.
#[derive(Debug, Default)]
pub(super) struct Views {
    open: BTreeMap<u64, OpenView>,
    /// In order of their arrival.
    waiting: Vec<WaitingRead>,
    last: u64,
    /// Views that were ended for a request that waited, since the last collection.
    ended_idle: u64,
}

impl Views {
    /// Returns the number of open views.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of requests that wait for a view.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a request for a view, unless too many wait.
    pub(super) fn queue(&mut self, read: WaitingRead) -> Result<(), Unavailable> {
        let of_node = self.waiting.iter().filter(|other| other.node == read.node).count();
        // Those that begin at the end of this turn take no place in the queue.
        let free = MAX_VIEWS - self.open.len();
        if of_node >= MAX_WAITING / 2 + free.min(MAX_OF_NODE - self.views_of(&read.node)) {
            return Err(no_view(&format!("{} requests of this agent wait for a view", MAX_WAITING / 2)));
        }
        if self.waiting.len() >= MAX_WAITING + free {
            return Err(no_view(&format!("{MAX_WAITING} requests wait for a view")));
        }
        self.waiting.push(read);
        Ok(())
    }

    /// Takes the next request whose view may begin: the oldest that has a place, or that gets the
    /// place of an idle view.
    pub(super) fn take_next(&mut self, now: Time) -> Option<WaitingRead> {
        let next = (0..self.waiting.len()).find(|number| self.make_room(now, *number))?;
        Some(self.waiting.remove(next))
    }

    /// Returns `true` if there is a place for a waiting request; ends the view that has been idle
    /// for the longest time if that makes one.
    fn make_room(&mut self, now: Time, number: usize) -> bool {
        let node = &self.waiting[number].node;
        let has_half = self.views_of(node) >= MAX_OF_NODE;
        if !has_half && self.open.len() < MAX_VIEWS {
            return true;
        }
        let is_idle =
            |open: &OpenView| now.since(open.moved) >= MAX_IDLE && (!has_half || open.node == *node);
        let idle = self.open.iter().filter(|(_, open)| is_idle(open)).min_by_key(|(_, open)| open.moved);
        let Some((&idle, _)) = idle else { return false };
        self.open.remove(&idle);
        self.ended_idle += 1;
        true
    }

    fn views_of(&self, node: &NodeName) -> usize {
        self.open.values().filter(|open| open.node == *node).count()
    }

    /// Takes the number of views that were ended for a request that waited.
    pub(super) fn take_ended_idle(&mut self) -> u64 {
        std::mem::take(&mut self.ended_idle)
    }

    /// Begins a view; `seed` is a number that another process of this server did not use.
    pub(super) fn begin(
        &mut self,
        at: Position,
        (server, seed): (ServerId, u64),
        (begun_by, node): (CallRef, NodeName),
        read: LongRead,
    ) -> LongRead {
        self.last = seed.max(self.last + 1);
        let read = LongRead { part: Some((ViewId { server, number: self.last }, 0)), ..read };
        let view = OpenView { begun_by, node, read: read.clone(), begun: at, position: 0, moved: at.now };
        self.open.insert(self.last, view);
        read
    }

    /// Takes the requests that have waited too long, with the error for each.
    pub(super) fn take_overdue(&mut self, now: Time) -> impl Iterator<Item = (CallRef, Unavailable)> {
        let overdue = self.take_waiting(|read| read.deadline <= now).into_iter();
        let why = || no_view(&format!("this request waited {} s for its turn", VIEW_WAIT.as_secs()));
        overdue.map(move |from| (from, why()))
    }

    /// Takes all waiting requests that need a leader's reply, when this server stops leading.
    pub(super) fn take_leaders_readers(&mut self) -> Vec<CallRef> {
        self.take_waiting(|read| read.consistency != Consistency::Stale)
    }

    /// Takes all waiting requests.
    pub(super) fn take_all_waiting(&mut self) -> Vec<CallRef> {
        self.take_waiting(|_| true)
    }

    fn take_waiting(&mut self, is_wanted: impl Fn(&WaitingRead) -> bool) -> Vec<CallRef> {
        self.waiting.extract_if(.., |read| is_wanted(read)).map(|read| read.from).collect()
    }

    /// Returns the part of a view behind a position.
    pub(super) fn part(
        &mut self,
        at: Position,
        caller: Caller,
        view: ViewId,
        after: u64,
    ) -> Result<LongRead, Unavailable> {
        let of_caller = |open: &&mut OpenView| {
            open.begun_by.caller == caller && open.read.part.as_ref().is_some_and(|(id, _)| *id == view)
        };
        let Some(open) = self.open.get_mut(&view.number).filter(of_caller) else {
            let why = format!(
                "its view has ended: it was not read for {} s while others waited, or the server has restarted",
                MAX_IDLE.as_secs()
            );
            return Err(ended(&why));
        };
        // The same part again moves nothing.
        if after > open.position {
            (open.position, open.moved) = (after, at.now);
        }
        let checked = open.check(at).map(|()| LongRead { part: Some((view, after)), ..open.read.clone() });
        if checked.is_err() {
            self.open.remove(&view.number);
        }
        checked
    }

    /// Ends a view of a caller.
    pub(super) fn end(&mut self, caller: Caller, view: ViewId) {
        if self.open.get(&view.number).is_some_and(|open| open.begun_by.caller == caller) {
            self.open.remove(&view.number);
        }
    }

    /// Ends all views of a connection, and forgets its waiting requests.
    pub(super) fn end_of_caller(&mut self, caller: Caller) {
        self.waiting.retain(|read| read.from.caller != caller);
        self.open.retain(|_, open| open.begun_by.caller != caller);
    }

    /// Ends the view that a call began or waits for, because its caller does not wait for the first
    /// part.
    pub(super) fn cancel(&mut self, call: CallRef) {
        self.waiting.retain(|read| read.from != call);
        self.open.retain(|_, open| open.begun_by != call);
    }

    /// Ends all views, because the whole state was replaced. Waiting requests then begin views of
    /// the new state.
    pub(super) fn end_all(&mut self) {
        self.open.clear();
    }

    /// Ends the views that exceed a limit. Their readers learn of it with their next part.
    pub(super) fn end_overdue(&mut self, at: Position) {
        self.open.retain(|_, open| open.check(at).is_ok());
    }
}

fn no_view(why: &str) -> Unavailable {
    Unavailable::Overloaded(format!(
        "{MAX_VIEWS} long answers are being read here, and {why}: read fewer long lists at once, or shorter ones"
    ))
}

fn ended(why: &str) -> Unavailable {
    Unavailable::Overloaded(format!("the answer is incomplete: {why}"))
}
