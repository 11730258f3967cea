//! The sessions of this host that end with a process (`BindProcess`). Pure: its caller watches the
//! processes, reads the list of bound sessions, and ends sessions.
//!
//! The list comes from the servers, so that an agent that restarts, or whose cluster was restored
//! from a backup, watches the processes again.
//!
//! **Invariants.** From the first order on, a read of the list is under way. A session is ended
//! only after its own process was found dead; the end is retried until it succeeds. Each listed
//! session is watched, or is being ended.

use crate::session_watch::ReadOrder;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::record::ProcessBinding;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The minimum and maximum pause after a failed read or end.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A session was created at this index, and its process is watched.
    Created(SessionId, LogIndex),
    /// The end of the last ordered read: the bound sessions of this node and their index; `None` if
    /// it failed.
    Listed(Option<(LogIndex, Vec<(SessionId, ProcessBinding)>)>),
    /// The process of a watched session has exited, or never was the one it is bound to.
    Exited(SessionId),
    /// The result of an ordered end: the index at which the session has ended, or `None`.
    Ended(SessionId, Option<LogIndex>),
}

/// Actions to execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The processes to watch.
    pub watch: Vec<(SessionId, ProcessBinding)>,
    /// The sessions to end, each after this pause.
    pub end: Vec<(SessionId, Duration)>,
    /// The sessions that need no watch any more.
    pub forget: Vec<SessionId>,
    /// A read of the list.
    pub read: Option<ReadOrder>,
}

/// The bound sessions of one agent.
#[derive(Clone, Debug)]
pub struct BoundSessions {
    sessions: BTreeMap<SessionId, Bound>,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The index from which on every list has the session while it lives.
    since: LogIndex,
    /// The index of the last list with the session; 0 if no list had it.
    listed_at: LogIndex,
    /// `true` if the end of the session was ordered.
    is_ending: bool,
}

impl BoundSessions {
    /// Returns the empty set, and its first order. Equal seeds give equal pauses.
    pub fn new(seed: u64) -> (Self, Orders) {
        let read = Some(ReadOrder { pause: Duration::ZERO, behind: None });
        let bound = Self { sessions: BTreeMap::new(), backoff: Backoff::new(PAUSES, seed) };
        (bound, Orders { read, ..Orders::default() })
    }

    /// Handles one input; returns the resulting orders.
    pub fn handle(&mut self, input: Input) -> Orders {
        let mut orders = Orders::default();
        match input {
            // Unless a list was faster.
            Input::Created(session, since) => {
                self.sessions.entry(session).or_insert(Bound {
                    since,
                    listed_at: LogIndex(0),
                    is_ending: false,
                });
            }
            Input::Listed(Some((index, listed))) => {
                self.backoff.reset();
                self.compare(index, listed, &mut orders);
                orders.read = Some(ReadOrder { pause: Duration::ZERO, behind: Some(index) });
            }
            Input::Listed(None) => {
                orders.read = Some(ReadOrder { pause: self.backoff.next_pause(), behind: None });
            }
            Input::Exited(session) => {
                if let Some(bound) = self.sessions.get_mut(&session).filter(|bound| !bound.is_ending) {
                    bound.is_ending = true;
                    orders.end.push((session, Duration::ZERO));
                }
            }
            Input::Ended(session, Some(index)) if !self.was_listed_after(session, index) => {
                self.sessions.remove(&session);
                orders.forget.push(session);
            }
            Input::Ended(session, _) => orders.end.push((session, self.backoff.next_pause())),
        }
        orders
    }

    /// Returns the number of sessions that are watched or being ended.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Returns whether a list behind this index has the session: a restore brought it back. The
    /// acknowledgement is then of an end before it.
    fn was_listed_after(&self, session: SessionId, index: LogIndex) -> bool {
        self.sessions.get(&session).is_some_and(|bound| bound.listed_at > index)
    }

    fn compare(&mut self, index: LogIndex, listed: Vec<(SessionId, ProcessBinding)>, orders: &mut Orders) {
        let here: BTreeSet<SessionId> = listed.iter().map(|(session, _)| *session).collect();
        // A list that was read before the creation of a session does not have it yet.
        let is_gone = |session: &SessionId, bound: &Bound| {
            !here.contains(session) && bound.since <= index && !bound.is_ending
        };
        let gone = self.sessions.iter().filter(|(session, bound)| is_gone(session, bound));
        orders.forget = gone.map(|(session, _)| *session).collect();
        self.sessions.retain(|session, _| !orders.forget.contains(session));
        for (session, binding) in listed {
            match self.sessions.entry(session) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Bound { since: index, listed_at: index, is_ending: false });
                    orders.watch.push((session, binding));
                }
                Entry::Occupied(mut known) => known.get_mut().listed_at = index,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINDING: ProcessBinding =
        ProcessBinding { pid: 7, started_at: 100, boot_id: [1; 16], keeps_lock_delay: false };

    fn session(number: u8) -> SessionId {
        SessionId::from_random([number; 16])
    }

    fn listed(bound: &mut BoundSessions, index: u64, numbers: &[u8]) -> Orders {
        let list = numbers.iter().map(|number| (session(*number), BINDING)).collect();
        bound.handle(Input::Listed(Some((LogIndex(index), list))))
    }

    #[test]
    fn listed_sessions_watched_once() {
        let (mut bound, first) = BoundSessions::new(1);
        assert_eq!(first.read, Some(ReadOrder { pause: Duration::ZERO, behind: None }));
        assert!(bound.handle(Input::Listed(None)).read.is_some_and(|read| !read.pause.is_zero()));
        assert_eq!(listed(&mut bound, 5, &[1, 2]).watch, [(session(1), BINDING), (session(2), BINDING)]);
        let again = listed(&mut bound, 6, &[1, 2]);
        assert_eq!((again.watch, again.forget), (Vec::new(), Vec::new()));
        assert_eq!(again.read, Some(ReadOrder { pause: Duration::ZERO, behind: Some(LogIndex(6)) }));
        assert_eq!(listed(&mut bound, 7, &[2]).forget, [session(1)]);
        assert_eq!(bound.len(), 1);
    }

    #[test]
    fn older_list_keeps_new_session() {
        let (mut bound, _) = BoundSessions::new(1);
        assert_eq!(bound.handle(Input::Created(session(1), LogIndex(9))), Orders::default());
        assert_eq!(listed(&mut bound, 8, &[]).forget, []);
        let own = listed(&mut bound, 9, &[1]);
        assert_eq!((own.watch, own.forget), (Vec::new(), Vec::new()), "it is watched already");
        assert_eq!(listed(&mut bound, 10, &[]).forget, [session(1)]);
        assert!(bound.is_empty());
    }

    #[test]
    fn end_retried_until_done() {
        let (mut bound, _) = BoundSessions::new(1);
        listed(&mut bound, 5, &[1]);
        assert_eq!(bound.handle(Input::Exited(session(1))).end, [(session(1), Duration::ZERO)]);
        assert_eq!(bound.handle(Input::Exited(session(1))), Orders::default());
        // Not before its end is acknowledged: the list may be of another state.
        assert_eq!(listed(&mut bound, 6, &[]).forget, []);
        let [(again, pause)] = bound.handle(Input::Ended(session(1), None)).end[..] else { panic!() };
        assert!(again == session(1) && !pause.is_zero());
        assert_eq!(bound.handle(Input::Ended(session(1), Some(LogIndex(6)))).forget, [session(1)]);
        assert_eq!(bound.handle(Input::Exited(session(1))), Orders::default(), "it is unknown now");
        // A list that was read before the end brings it back, and its process is found dead again.
        assert_eq!(listed(&mut bound, 6, &[1]).watch.len(), 1);
    }

    /// Seed 11148.
    #[test]
    fn restored_session_ended_again() {
        let (mut bound, _) = BoundSessions::new(1);
        listed(&mut bound, 5, &[1]);
        bound.handle(Input::Exited(session(1)));
        // A restore at 9 brings the session back before the end at 6 is acknowledged.
        listed(&mut bound, 9, &[1]);
        let again = bound.handle(Input::Ended(session(1), Some(LogIndex(6))));
        assert_eq!((again.forget, again.end.len()), (Vec::new(), 1));
        assert_eq!(bound.handle(Input::Ended(session(1), Some(LogIndex(10)))).forget, [session(1)]);
    }
}
