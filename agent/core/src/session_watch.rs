//! The watch over one session that guards on this host follow. It feeds [`SessionEvents`], and
//! decides when the session is read and when it is ended. Pure: its caller has the connections, and
//! executes reads and ends.
//!
//! **Invariants.** From the first order on, a read is always under way: one that waits for news, or
//! one that is answered at once if the session must be checked now. Each replaces the one before. A
//! session that was given up is ended, and the end is retried until it succeeds.

use crate::lease::LeaseState;
use crate::session_events::{self, SessionEvent, SessionEvents, SessionView};
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::id::{LogIndex, NodeName};
use lockmesh_protocol::query::{Answer, Rows};
use lockmesh_protocol::record::{SERF_HEALTH, Session};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The minimum and maximum pause after a failed read or end.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The time that a read waits for news of the session.
pub const READ_WAIT: Duration = Duration::from_secs(300);

/// The reason for a session that this node's lease does not keep.
const REPLACED: &str =
    "host-replaced: another host registered this node after the session was made, so the servers end it";

/// The time that a watch without followers is kept: guards poll.
pub const LINGER: Duration = Duration::from_secs(15);

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The state of the node's lease.
    Lease(LeaseState),
    /// The end of the last ordered read.
    Read {
        /// The start of the read, after its pause.
        began: Time,
        /// The session and the index that it found; `None` if it failed.
        found: Option<(SessionView, LogIndex)>,
    },
    /// The result of ending the session: `true` if it ended.
    Ended(bool),
    /// Time has passed without another input.
    Tick,
}

/// Actions to execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// A read of the session, which replaces the one under way.
    pub read: Option<ReadOrder>,
    /// Set to end the session, after this pause.
    pub end: Option<Duration>,
}

/// A read to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOrder {
    /// The pause before it.
    pub pause: Duration,
    /// Answered as soon as there is news after this index; at once if `None`.
    pub behind: Option<LogIndex>,
}

/// The result of a read for a guard on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The session exists.
    Here(SessionView),
    /// The session belongs to another node, and its deadlines use that node's clock.
    OtherNode(NodeName),
    /// The session does not exist; the history of losses may contain the reason.
    Gone,
}

impl Found {
    /// Interprets an answer for an agent on this node, whose lease keeps sessions from that index
    /// on.
    pub fn of(answer: &Answer, node: &NodeName, keeps_from: LogIndex) -> Self {
        let found = match &answer.rows {
            Rows::Sessions(sessions) => sessions.first(),
            _ => None,
        };
        match found {
            Some(session) if session.spec.node.folded() != node.folded() => {
                Self::OtherNode(session.spec.node.clone())
            }
            Some(session) => Self::Here(view(session, keeps_from)),
            None => Self::Gone,
        }
    }
}

/// Returns how a session depends on its node, according to its checks.
fn view(session: &Session, keeps_from: LogIndex) -> SessionView {
    let spec = &session.spec;
    match spec.all_checks().any(|check| check.as_str() == SERF_HEALTH) {
        // It still exists, but no renewal of this lease keeps it.
        true if session.create_index < keeps_from => SessionView::Gone(REPLACED.into()),
        true => SessionView::Bound(spec.health_window),
        false => SessionView::Unbound,
    }
}

/// The watch over one session, with its reads and its end under way.
#[derive(Clone, Debug)]
pub struct SessionWatch {
    events: SessionEvents,
    /// The index up to which the session is known.
    index: LogIndex,
    /// `true` if the read under way is one that is answered at once.
    is_looking: bool,
    /// `true` if the end of the session was ordered.
    is_ending: bool,
    backoff: Backoff,
}

impl SessionWatch {
    /// Creates the watch over a session that was found at this index, and its first order. Equal
    /// seeds give equal pauses.
    pub fn new(events: SessionEvents, index: LogIndex, seed: u64) -> (Self, Orders) {
        let backoff = Backoff::new(PAUSES, seed);
        let mut watch = Self { events, index, is_looking: false, is_ending: false, backoff };
        let read = Some(watch.read_after(Duration::ZERO));
        (watch, Orders { read, end: None })
    }

    /// Handles one input; returns the resulting orders.
    pub fn handle(&mut self, now: Time, input: Input) -> Orders {
        let mut orders = Orders::default();
        match input {
            Input::Lease(lease) => self.events.handle(now, session_events::Input::Lease(lease)),
            Input::Read { began, found: Some((view, index)) } => {
                self.index = index;
                self.backoff.reset();
                self.events.handle(now, session_events::Input::Read { began, view });
                orders.read = Some(self.read_after(Duration::ZERO));
            }
            Input::Read { found: None, .. } => {
                self.events.handle(now, session_events::Input::Tick);
                let pause = self.backoff.next_pause();
                orders.read = Some(self.read_after(pause));
            }
            Input::Ended(is_done) => {
                self.events.handle(now, session_events::Input::Tick);
                orders.end = (!is_done).then(|| self.backoff.next_pause());
            }
            Input::Tick => self.events.handle(now, session_events::Input::Tick),
        }
        if self.events.wants_read() && !self.is_looking {
            // A read that waits for news would find the session only at its end.
            orders.read = Some(self.read_after(Duration::ZERO));
        }
        if self.events.wants_end() && !self.is_ending {
            self.is_ending = true;
            orders.end = Some(Duration::ZERO);
        }
        // After the end, no order is needed.
        if self.is_over() { Orders::default() } else { orders }
    }

    /// Returns the current event for guards.
    pub fn event(&self) -> &SessionEvent {
        self.events.event()
    }

    /// Returns `true` if there will be no further event.
    pub fn is_over(&self) -> bool {
        self.events.is_over()
    }

    /// Returns `true` if the watch may stop after [`LINGER`] without followers: not before a
    /// session that was given up has ended.
    pub fn may_stop(&self) -> bool {
        !self.events.wants_end()
    }

    /// Returns when to pass [`Input::Tick`] if there is no other input before.
    pub fn wakes_at(&self) -> Option<Time> {
        self.events.wakes_at()
    }

    fn read_after(&mut self, pause: Duration) -> ReadOrder {
        self.is_looking = self.events.wants_read();
        ReadOrder { pause, behind: (!self.is_looking).then_some(self.index) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Input, Orders, ReadOrder, SessionWatch};
    use crate::lease::{LeaseState, margin};
    use crate::session_events::{SessionEvents, SessionState, SessionView};
    use lockmesh_protocol::id::{CheckId, LogIndex, SessionId, WallTime};
    use lockmesh_protocol::lease::HealthWindow;
    use lockmesh_protocol::query::{Answer, Rows};
    use lockmesh_protocol::record::{Behavior, SERF_HEALTH, Session, SessionSpec};
    use lockmesh_protocol::time::Time;
    use std::sync::Arc;
    use std::time::Duration;

    const BOUND: SessionView = SessionView::Bound(HealthWindow::Default);
    const NEWS: ReadOrder = ReadOrder { pause: Duration::ZERO, behind: Some(LogIndex(7)) };
    const LOOK: ReadOrder = ReadOrder { pause: Duration::ZERO, behind: None };

    fn at(millis: u64) -> Time {
        Time(0) + Duration::from_millis(millis)
    }

    fn renewed(millis: u64) -> LeaseState {
        LeaseState { renewed: Some(at(millis)), ..LeaseState::default() }
    }

    /// The end of the lease that was renewed at 0.
    fn deadline() -> Time {
        at(0) + (HealthWindow::Default.validity() - margin(HealthWindow::Default))
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A watch over a session that was found when its node's lease had just been renewed.
    fn watch() -> SessionWatch {
        let events = SessionEvents::new(at(0), renewed(0), at(1), BOUND);
        let (watch, orders) = SessionWatch::new(events, LogIndex(7), 1);
        assert_eq!(orders, Orders { read: Some(NEWS), end: None });
        watch
    }

    #[test]
    fn replaced_host_loses_older_session() {
        let session = |checks: &[&str]| {
            let spec = SessionSpec {
                id: SessionId::from_random([1; 16]),
                name: String::new(),
                node: "n1".into(),
                lock_delay: Duration::ZERO,
                behavior: Behavior::Release,
                ttl_text: String::new(),
                ttl: None,
                checks: checks.iter().map(|check| CheckId::from(*check)).collect(),
                node_checks: Vec::new(),
                service_checks: None,
                health_window: HealthWindow::Default,
            };
            let session = Session { spec, created_at: WallTime(0), create_index: LogIndex(40) };
            let rows = Rows::Sessions(vec![Arc::new(session)]);
            Answer {
                index: LogIndex(50),
                rows,
                known_leader: true,
                last_contact: Duration::ZERO,
                is_filtered: false,
            }
        };
        let found =
            |checks: &[&str], keeps_from| Found::of(&session(checks), &"N1".into(), LogIndex(keeps_from));
        assert_eq!(found(&[SERF_HEALTH], 40), Found::Here(BOUND));
        let Found::Here(SessionView::Gone(why)) = found(&[SERF_HEALTH], 41) else { panic!("it is not kept") };
        assert!(why.starts_with("host-replaced"), "{why}");
        assert_eq!(found(&[], 41), Found::Here(SessionView::Unbound), "its node does not matter");
    }

    #[test]
    fn interruption_triggers_one_immediate_read() {
        let mut watch = watch();
        assert_eq!(watch.handle(deadline(), Input::Tick), Orders::default());
        assert_eq!(watch.event().state, SessionState::Suspended);
        let acknowledged = watch.handle(at(7_000), Input::Lease(renewed(6_900)));
        assert_eq!(acknowledged.read, Some(LOOK), "it replaces the one that waits");
        assert_eq!(watch.handle(at(7_010), Input::Lease(renewed(7_000))).read, None, "one is enough");
        let found = Input::Read { began: at(7_000), found: Some((BOUND, LogIndex(7))) };
        assert_eq!(watch.handle(at(7_020), found).read, Some(NEWS));
        assert_eq!(watch.event().state, SessionState::Safe);
    }

    #[test]
    fn failed_reads_back_off() {
        let mut watch = watch();
        let failed = || Input::Read { began: at(10), found: None };
        let pauses = [0; 3].map(|_| watch.handle(at(20), failed()).read.unwrap().pause);
        assert!(pauses.iter().all(|pause| !pause.is_zero()) && pauses[2] > pauses[0], "{pauses:?}");
    }

    #[test]
    fn session_end_retried_until_done() {
        let mut watch = watch();
        watch.handle(deadline(), Input::Tick);
        assert!(watch.may_stop());
        let given_up = deadline() + HealthWindow::Default.duration();
        assert_eq!(watch.handle(given_up, Input::Tick).end, Some(Duration::ZERO));
        assert_eq!(watch.event().state, SessionState::Lost);
        assert!(!watch.may_stop() && !watch.is_over());
        assert_eq!(watch.handle(given_up + ms(10), Input::Tick).end, None, "it is under way");
        assert!(
            watch.handle(given_up + ms(50), Input::Ended(false)).end.is_some_and(|pause| !pause.is_zero())
        );
        assert_eq!(watch.handle(given_up + ms(150), Input::Ended(true)), Orders::default());
        let gone = SessionView::Gone("destroyed".into());
        let gone = Input::Read { began: given_up + ms(200), found: Some((gone, LogIndex(9))) };
        assert_eq!(watch.handle(given_up + ms(210), gone), Orders::default());
        assert!(watch.is_over() && watch.may_stop());
    }
}
