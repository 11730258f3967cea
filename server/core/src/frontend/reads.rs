//! Reads that may be answered now: immediately, or parked until a change touches their subject
//! (blocking queries).

use super::actions::{Actions, AnswerKind};
use super::event::CallRef;
use super::pending::ReadWanted;
use super::rights::rights_to_read;
use super::status::{StatusView, leader_hint};
use super::views::{Position, WaitingRead};
use super::watches::Parked;
use super::{Frontend, LONGEST_WAIT};
use crate::core::query_view;
use crate::fault_injection::Rule;
use crate::state::{Listing, LongRead, own_rows, too_long, view};
use lockmesh_protocol::acl;
use lockmesh_protocol::id::{LogIndex, NodeName};
use lockmesh_protocol::query::{Answer, Blocking, Query};
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The fraction of the parked readers that one node can have: twice as many as an agent has
/// connections.
const WATCHES_SHARE: usize = 8;

impl Frontend {
    /// Answers a read, or parks it if its caller is up to date.
    pub(super) fn read(&mut self, now: Time, from: CallRef, read: ReadWanted, actions: &mut Actions) {
        let ReadWanted { node, client, query, consistency, blocking } = read;
        match blocking {
            // Index 0 requests the current state, as in Consul.
            Some(Blocking { index, wait }) if index.0 > 0 => {
                let deadline = now + wait.min(LONGEST_WAIT);
                let parked = Parked { from, node, client, query, consistency, known: index, deadline };
                if self.fault_point.breaks(Rule::ParkedReadsAreLookedAtFirst) {
                    return self.watches.park(parked);
                }
                // Checked first: a change may have come between the caller's last reply and this
                // call. A query with no wait counts as a plain read.
                let kind = if wait.is_zero() { AnswerKind::Read } else { AnswerKind::BlockingRead };
                answer_or_park(self, now, parked, kind, actions);
            }
            _ => {
                send_rows(
                    self,
                    now,
                    (&node, &client),
                    &query,
                    (from, LogIndex(0), AnswerKind::Read),
                    actions,
                );
            }
        }
    }

    /// Queues a read in parts: its view begins at the end of the turn, or when another one ends.
    pub(super) fn queue_for_view(&mut self, read: WaitingRead, actions: &mut Actions) {
        let from = read.from;
        if let Err(why) = self.views.queue(read) {
            actions.answer(from, Response::Unavailable(why), AnswerKind::Read);
        }
    }

    /// Begins views while places are free, and replies with their first parts. Refuses requests
    /// that have waited too long.
    pub(super) fn begin_views(&mut self, now: Time, actions: &mut Actions) {
        while let Some(WaitingRead { from, node, client, query, .. }) = self.views.take_next(now) {
            let rights = match rights_to_read(self, now, (&node, &client), &query) {
                Ok(rights) => rights,
                Err(why) => {
                    actions.answer(from, Response::Unavailable(why), AnswerKind::Read);
                    continue;
                }
            };
            let (index, view) = view(self.core.replica().state(), &query, rights.as_ref());
            let (known_leader, last_contact) = contact(&self.view(now));
            let read = LongRead { index, known_leader, last_contact, view, part: None };
            let (at, source) = (self.view_position(now), (self.config.own_record.id, self.wall_at(now).0));
            actions.long_reads.push((from, self.views.begin(at, source, (from, node), read)));
        }
        // Afterwards: at its deadline, a request gets the place of a view that became idle now.
        for (from, why) in self.views.take_overdue(now) {
            actions.answer(from, Response::Unavailable(why), AnswerKind::BlockingRead);
        }
    }

    /// Returns the time, and how much of the state was replaced so far.
    pub(super) fn view_position(&self, now: Time) -> Position {
        Position { now, replaced_bytes: self.core.replica().state().replaced_bytes() }
    }

    /// Replies to readers whose wait is over.
    pub(super) fn answer_due(&mut self, now: Time, actions: &mut Actions) {
        for parked in self.watches.take_due(now) {
            send_unchanged(self, now, &parked, AnswerKind::BlockingRead, actions);
        }
    }

    /// Checks the readers that this turn's changes touched, each once.
    pub(super) fn wake_touched(&mut self, now: Time, actions: &mut Actions) {
        for parked in self.watches.take_touched() {
            answer_or_park(self, now, parked, AnswerKind::BlockingRead, actions);
        }
    }

    /// Redirects the blocking readers of a leader that stepped down, and those that wait for a
    /// view.
    pub(super) fn notice_role(&mut self, actions: &mut Actions) {
        if self.leaders.record_serving(self.core.replica().is_serving()) {
            // They requested the leader's state, and this server's may be stale from now on.
            for parked in self.watches.take_leaders_readers() {
                let lost = Response::Unavailable(leader_hint(&self.core));
                actions.answer(parked.from, lost, AnswerKind::BlockingRead);
            }
            for from in self.views.take_leaders_readers() {
                let lost = Response::Unavailable(leader_hint(&self.core));
                actions.answer(from, lost, AnswerKind::BlockingRead);
            }
        }
    }
}

/// The contact to the leader, for an answer: whether one is known, and the time since its last
/// message.
fn contact(view: &StatusView<'_>) -> (bool, Duration) {
    let leader = view.core.replica().leader();
    let last_contact = leader.and_then(|leader| view.core.last_contact(view.now, leader));
    // Clients use it to bound the age of a stale reply, so it grows while there is no leader, and
    // while this server is too far behind for what the leader sends.
    let last_contact = last_contact.unwrap_or_else(|| view.leaders.silence(view.now));
    let behind = view.behind_since.map_or(Duration::ZERO, |since| view.now.since(since));
    (leader.is_some(), last_contact.max(behind))
}

/// Replies with the current rows that the client may see, under an index of at least `least`.
fn send_rows(
    frontend: &mut Frontend,
    now: Time,
    (node, client): (&NodeName, &acl::Caller),
    query: &Query,
    (to, least, kind): (CallRef, LogIndex, AnswerKind),
    actions: &mut Actions,
) {
    let rights = match rights_to_read(frontend, now, (node, client), query) {
        Ok(rights) => rights,
        Err(why) => return actions.answer(to, Response::Unavailable(why), kind),
    };
    let view = frontend.view(now);
    let (index, listing) = query_view(view.core, now, query, MAX_FRAME_BYTES, rights.as_ref());
    let own = own_rows(view.core.replica().state(), client, rights.as_deref(), query);
    let listing = own.map_or(listing, |rows| Listing::Rows(rows, false));
    // At least the index that woke the reader, or it would retry with the same index in a loop.
    let index = index.max(least);
    let (known_leader, last_contact) = contact(&view);
    match listing {
        Listing::Rows(rows, is_filtered) => {
            let answer = Answer { index, rows, known_leader, last_contact, is_filtered };
            actions.answer(to, Response::answer(answer), kind);
        }
        Listing::View(view) => {
            let read = LongRead { index, known_leader, last_contact, view, part: None };
            actions.long_reads.push((to, read));
        }
        Listing::TooLong => actions.answer(to, too_long(MAX_FRAME_BYTES), kind),
    }
}

/// Replies to a reader whose wait is over with the same rows.
fn send_unchanged(
    frontend: &mut Frontend,
    now: Time,
    parked: &Parked,
    kind: AnswerKind,
    actions: &mut Actions,
) {
    let least = frontend.core.replica().state().least_index(&parked.query, parked.known);
    let client = (&parked.node, &parked.client);
    send_rows(frontend, now, client, &parked.query, (parked.from, least, kind), actions);
}

fn answer_or_park(
    frontend: &mut Frontend,
    now: Time,
    parked: Parked,
    kind: AnswerKind,
    actions: &mut Actions,
) {
    // Rows are built only for readers that get a reply.
    if let Some(index) = frontend.core.replica().state().news(&parked.query, parked.known) {
        send_rows(
            frontend,
            now,
            (&parked.node, &parked.client),
            &parked.query,
            (parked.from, index, kind),
            actions,
        );
    } else if parked.deadline <= now {
        // There is no wait, or it is over.
        send_unchanged(frontend, now, &parked, kind, actions);
    } else if let Some(what) = no_room(frontend, &parked.node) {
        let overloaded = Response::Unavailable(Unavailable::Overloaded(what));
        actions.answer(parked.from, overloaded, AnswerKind::BlockingRead);
    } else {
        frontend.watches.park(parked);
    }
}

/// Returns the reason why no further reader of a node can be parked. A memory limit: each is
/// kept until its wait is over.
fn no_room(frontend: &Frontend, node: &NodeName) -> Option<String> {
    let max = frontend.config.max_watches;
    if frontend.watches.len() >= max {
        return Some(format!("{max} blocking queries are parked here"));
    }
    let max_of_node = (max / WATCHES_SHARE).max(1);
    let is_full = frontend.watches.len_of(node) >= max_of_node;
    is_full.then(|| format!("{max_of_node} blocking queries of this agent are parked here"))
}
