//! Views of long answers, which callers read in parts.
//!
//! A view keeps the rows that were replaced since it was begun. Therefore the number of views, the
//! time of each, and the size of what it keeps are limited. A caller whose view was ended receives
//! an error for its next part, so no answer looks complete that is not.

use super::event::{CallRef, Caller};
use crate::state::LongRead;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::{Unavailable, ViewId};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of views.
const MAX_VIEWS: usize = 8;

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
    read: LongRead,
    begun: Position,
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

/// The open views of this server.
#[derive(Debug, Default)]
pub(super) struct Views {
    open: BTreeMap<u64, OpenView>,
    last: u64,
}

impl Views {
    /// Returns the number of open views.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Begins a view; `seed` is a number that another process of this server did not use.
    pub(super) fn begin(
        &mut self,
        at: Position,
        (server, seed): (ServerId, u64),
        begun_by: CallRef,
        read: LongRead,
    ) -> Result<LongRead, Unavailable> {
        self.end_overdue(at);
        if self.open.len() >= MAX_VIEWS {
            return Err(Unavailable::Overloaded(format!("{MAX_VIEWS} long answers are being read here")));
        }
        self.last = seed.max(self.last + 1);
        let read = LongRead { part: Some((ViewId { server, number: self.last }, 0)), ..read };
        self.open.insert(self.last, OpenView { begun_by, read: read.clone(), begun: at });
        Ok(read)
    }

    /// Returns the part of a view behind a position.
    pub(super) fn part(
        &mut self,
        at: Position,
        caller: Caller,
        view: ViewId,
        after: u64,
    ) -> Result<LongRead, Unavailable> {
        let of_caller = |open: &&OpenView| {
            open.begun_by.caller == caller && open.read.part.as_ref().is_some_and(|(id, _)| *id == view)
        };
        let Some(open) = self.open.get(&view.number).filter(of_caller) else {
            return Err(ended("the server that it was read from no longer has it"));
        };
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

    /// Ends all views of a connection.
    pub(super) fn end_of_caller(&mut self, caller: Caller) {
        self.open.retain(|_, open| open.begun_by.caller != caller);
    }

    /// Ends the view that a call began, because its caller does not wait for the first part.
    pub(super) fn cancel(&mut self, call: CallRef) {
        self.open.retain(|_, open| open.begun_by != call);
    }

    /// Ends all views, because the whole state was replaced.
    pub(super) fn end_all(&mut self) {
        self.open.clear();
    }

    /// Ends the views that exceed a limit. Their readers learn of it with their next part.
    pub(super) fn end_overdue(&mut self, at: Position) {
        self.open.retain(|_, open| open.check(at).is_ok());
    }
}

fn ended(why: &str) -> Unavailable {
    Unavailable::Overloaded(format!("the answer is incomplete: {why}"))
}
