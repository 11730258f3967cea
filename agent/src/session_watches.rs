//! The sessions that guards on this host follow. Each has a task, which feeds a [`SessionWatch`]
//! and executes its orders.
//!
//! The first follower of a session starts the watch, all others share it, and it continues for a
//! while after the last one, because guards poll. **Invariant:** every reported state comes from
//! the pure value; nothing is decided here.

use crate::boot_clock::BootClock;
use crate::loss;
use crate::metrics;
use crate::upstream::calls::{EndSession, Read};
use crate::upstream::{BoxFuture, Upstream};
use lockmesh_agent_core::handover::{GuardPoll, Handover};
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::EndReason;
use lockmesh_agent_core::session_events::{Renewal, SessionEvent, SessionEvents, SessionState, SessionView};
use lockmesh_agent_core::session_watch::{Found, Input, LINGER, Orders, READ_WAIT, ReadOrder, SessionWatch};
use lockmesh_net::random::seed;
use lockmesh_protocol::id::{LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Loss, LossCause};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The maximum number of concurrent look-ups of reasons: each reads a whole history.
const REASONS_AT_A_TIME: usize = 4;

/// The watches of one agent.
#[derive(Debug)]
pub struct SessionWatches {
    upstream: Upstream,
    node: NodeName,
    most: usize,
    clock: BootClock,
    watched: Mutex<HashMap<SessionId, Watched>>,
    reasons: Semaphore,
    stopping: watch::Sender<bool>,
    /// Which guards rely on the announced restart of an earlier process, or of this one.
    handover: Mutex<Handover>,
}

/// A watched session.
#[derive(Debug)]
struct Watched {
    event_channel: Arc<watch::Sender<SessionEvent>>,
    renewal: Renewal,
}

/// The reason why a session cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// Its deadlines use another host's clock.
    #[error("the session belongs to node {0}: ask the agent on that host, whose clock its deadlines use")]
    OtherNode(NodeName),
    /// The maximum number of sessions is followed.
    #[error("this agent follows {0} sessions, its limit: raise `session.max_watched`, or end some")]
    Full(usize),
    /// It could not be read.
    #[error(transparent)]
    Unavailable(Unavailable),
}

/// A followed session.
#[derive(Debug)]
pub(crate) struct Followed {
    event_channel: watch::Receiver<SessionEvent>,
}

/// The result of a read: when it began, and the session and the index that it found.
type SessionRead = (Time, Result<(SessionView, LogIndex), FollowError>);

impl SessionWatches {
    /// Creates an empty set of watches, for at most this many sessions at a time.
    pub(crate) fn new(upstream: Upstream, node: NodeName, most: usize) -> Arc<Self> {
        Self::with_clock(upstream, node, most, BootClock::default())
    }

    /// The same, with another clock.
    pub(crate) fn with_clock(upstream: Upstream, node: NodeName, most: usize, clock: BootClock) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            node,
            most,
            clock,
            watched: Mutex::default(),
            reasons: Semaphore::new(REASONS_AT_A_TIME),
            stopping: watch::Sender::new(false),
            handover: Mutex::default(),
        })
    }

    /// Returns the clock of the deadlines.
    pub(crate) fn clock(&self) -> BootClock {
        self.clock
    }

    /// Ends all watches, now and from now on. The current state of the lease is reported first.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Changes the state of the guards' hand-over.
    pub(crate) fn change_handover<T>(&self, change: impl FnOnce(&mut Handover) -> T) -> T {
        change(&mut self.handover.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the state of the guards' hand-over.
    pub(crate) fn handover(&self) -> Handover {
        self.handover.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that a report is about to be sent to a follower of the session, and sets its index.
    pub(crate) fn reported(
        &self,
        session: SessionId,
        event: SessionEvent,
        poll: Option<GuardPoll>,
    ) -> SessionEvent {
        let is_announced = self.upstream.lease().borrow().announced.is_some();
        let index = self.change_handover(|handover| handover.reported(session, &event, is_announced, poll));
        SessionEvent { index, ..event }
    }

    /// Follows a session; a session that has ended is reported as lost.
    ///
    /// # Errors
    /// [`FollowError`]; the session is not followed.
    pub(crate) async fn follow(self: &Arc<Self>, session: SessionId) -> Result<Followed, FollowError> {
        if let Some(watched) = self.table().get(&session) {
            return Ok(Followed { event_channel: watched.event_channel.subscribe() });
        }
        let lease = self.upstream.lease().borrow().clone();
        let (began, read) = self.read(session, None).await;
        let (view, index) = read?;
        let events = SessionEvents::new(began, lease, self.clock.now(), view);
        if events.is_over() {
            let (_, event_channel) = watch::channel(events.event().clone());
            return Ok(Followed { event_channel });
        }
        let mut table = self.table();
        // Another caller may have been first.
        if let Some(watched) = table.get(&session) {
            return Ok(Followed { event_channel: watched.event_channel.subscribe() });
        }
        if table.len() >= self.most {
            return Err(FollowError::Full(self.most));
        }
        let (event_channel, receiver) = watch::channel(events.event().clone());
        let event_channel = Arc::new(event_channel);
        let renewal = Renewal { at: began, ttl: None };
        table.insert(session, Watched { event_channel: Arc::clone(&event_channel), renewal });
        metrics::WATCHED_SESSIONS.set(i64::try_from(table.len()).unwrap_or(i64::MAX));
        drop(table);
        let (watch, orders) = SessionWatch::new(events, index, seed());
        tokio::spawn(WatchTask { watches: Arc::clone(self), session, watch, event_channel }.run(orders));
        Ok(Followed { event_channel: receiver })
    }

    /// Returns the reason for the end of a session that its guard gives up; see
    /// [`SessionEvent::end_reason`].
    pub(crate) fn end_reason(&self, session: SessionId, claimed: Option<Duration>) -> EndReason {
        let now = self.clock.now();
        let reason =
            |watched: &Watched| watched.event_channel.borrow().end_reason(claimed, watched.renewal, now);
        self.table().get(&session).map_or(EndReason::Unconfirmed, reason)
    }

    /// Notes that a renewal of a session's TTL was acknowledged.
    pub(crate) fn renewed(&self, session: SessionId, ttl: Option<Duration>) {
        if let Some(watched) = self.table().get_mut(&session) {
            watched.renewal = Renewal { at: self.clock.now(), ttl };
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<SessionId, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a watch, unless it has a follower and `may_go_on` is set.
    fn forget(&self, session: SessionId, may_go_on: bool) -> bool {
        let mut table = self.table();
        if may_go_on && table.get(&session).is_some_and(|watched| !watched.event_channel.is_closed()) {
            return false;
        }
        table.remove(&session);
        metrics::WATCHED_SESSIONS.set(i64::try_from(table.len()).unwrap_or(i64::MAX));
        true
    }

    /// Reads a session from the leader; with an index, waits for a change after it.
    async fn read(&self, session: SessionId, behind: Option<LogIndex>) -> SessionRead {
        let began = self.clock.now();
        let blocking = behind.map(|index| Blocking { index, wait: READ_WAIT });
        let query = Query::Session(session);
        let read = Read { query, consistency: Consistency::Default, blocking };
        let answer = self.upstream.call(read).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(unavailable) => return (began, Err(FollowError::Unavailable(unavailable))),
        };
        let keeps_from = self.upstream.lease().borrow().keeps_from;
        let view = match Found::of(&answer, &self.node, keeps_from) {
            Found::Here(view) => view,
            Found::OtherNode(node) => return (began, Err(FollowError::OtherNode(node))),
            Found::Gone => SessionView::Gone(self.reason(session).await),
        };
        (began, Ok((view, answer.index)))
    }

    /// Returns the reason why a session is gone, as text.
    async fn reason(&self, session: SessionId) -> String {
        let _permit = self.reasons.acquire().await;
        let read = Read { query: Query::Losses, consistency: Consistency::Default, blocking: None };
        let answer = self.upstream.call(read).await;
        let Ok(Rows::Losses(losses)) = answer.as_ref().map(|answer| &answer.rows) else {
            return "the session is gone; the reason could not be looked up".into();
        };
        let is_end = |loss: &&Arc<Loss>| loss.session == session && loss.cause != LossCause::KeyDeleted;
        match losses.iter().find(is_end) {
            Some(found) => loss::shape(found).in_words(),
            None => "the session does not exist: it ended long ago, was never created, or a restored backup lacks it".into(),
        }
    }
}

impl Followed {
    /// Returns the current event.
    pub(crate) fn event(&self) -> SessionEvent {
        self.event_channel.borrow().clone()
    }

    /// Returns the current event and marks it as seen.
    pub(crate) fn newest(&mut self) -> SessionEvent {
        self.event_channel.borrow_and_update().clone()
    }

    /// Waits for an event other than the last one seen; returns `false` if there will be none.
    pub(crate) async fn changed(&mut self) -> bool {
        self.event_channel.changed().await.is_ok()
    }

    /// Waits for an event after this index, or until there will be none.
    pub(crate) async fn behind(&mut self, index: u64) {
        loop {
            let shown = self.event_channel.borrow_and_update().index;
            // A higher index comes from another boot of this host.
            if shown != index || !self.changed().await {
                return;
            }
        }
    }
}

/// The task of one watch.
struct WatchTask {
    watches: Arc<SessionWatches>,
    session: SessionId,
    watch: SessionWatch,
    event_channel: Arc<watch::Sender<SessionEvent>>,
}

impl WatchTask {
    async fn run(mut self, mut orders: Orders) {
        let clock = self.watches.clock;
        let mut stopping = self.watches.stopping.subscribe();
        let mut lease = self.watches.upstream.lease();
        // It may have changed since the session was read.
        lease.mark_changed();
        let (mut reading, mut ending): (Option<BoxFuture<SessionRead>>, Option<BoxFuture<bool>>) =
            (None, None);
        let mut lingering = self.begin_linger();
        while !self.watch.is_over() {
            // A read replaces the one under way.
            reading = orders.read.take().map(|order| self.begin_read(order)).or(reading);
            ending = orders.end.take().map(|pause| self.begin_end(pause)).or(ending);
            orders = tokio::select! {
                // The end comes last: guards first receive the state of the lease.
                biased;
                stands = next_lease(&mut lease) => self.handle_input(Input::Lease(stands)),
                (began, read) = finished(&mut reading) => self.take_read(began, read),
                is_ended = finished(&mut ending) => self.handle_input(Input::Ended(is_ended)),
                () = clock.sleep_until(self.watch.wakes_at()) => self.handle_input(Input::Tick),
                () = &mut lingering => {
                    if self.watch.may_stop() && self.watches.forget(self.session, true) {
                        return;
                    }
                    lingering = self.begin_linger();
                    Orders::default()
                }
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
        }
        self.watches.forget(self.session, false);
    }

    fn handle_input(&mut self, input: Input) -> Orders {
        let before = self.watch.event().state;
        let orders = self.watch.handle(self.watches.clock.now(), input);
        let event = self.watch.event();
        if event.state != before {
            metrics::SESSION_STATES.with_label_values(&[event.state.as_str()]).inc();
            self.log(event);
        }
        self.event_channel.send_if_modified(|shown| {
            let is_news = shown.index != event.index;
            *shown = event.clone();
            is_news
        });
        orders
    }

    fn log(&self, event: &SessionEvent) {
        let (session, reason) = (self.session, event.reason.as_str());
        match event.state {
            SessionState::Safe => tracing::info!(%session, "the session is safe again"),
            SessionState::Jeopardy => tracing::info!(%session, reason, "the session is in jeopardy"),
            SessionState::Suspended => tracing::warn!(%session, reason, "the session is suspended"),
            // Its client ended it.
            SessionState::Lost if reason == "destroyed" => tracing::info!(%session, "the session has ended"),
            SessionState::Lost => tracing::warn!(%session, reason, "the session is lost"),
        }
    }

    fn take_read(&mut self, began: Time, read: Result<(SessionView, LogIndex), FollowError>) -> Orders {
        let found = read.inspect_err(|error| {
            tracing::debug!(session = %self.session, %error, "a followed session cannot be read");
        });
        self.handle_input(Input::Read { began, found: found.ok() })
    }

    fn begin_read(&self, ReadOrder { pause, behind }: ReadOrder) -> BoxFuture<SessionRead> {
        let (watches, session) = (Arc::clone(&self.watches), self.session);
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            watches.read(session, behind).await
        })
    }

    /// Ends when there has been no follower for a while.
    fn begin_linger(&self) -> BoxFuture<()> {
        let event_channel = Arc::clone(&self.event_channel);
        Box::pin(async move {
            loop {
                event_channel.closed().await;
                tokio::time::sleep(LINGER).await;
                // Guards poll: one may have returned meanwhile.
                if event_channel.is_closed() {
                    return;
                }
            }
        })
    }

    /// Ends the session; returns `true` when that is done.
    fn begin_end(&self, pause: Duration) -> BoxFuture<bool> {
        let (upstream, session) = (self.watches.upstream.clone(), self.session);
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let ended = upstream.call(EndSession { session, reason: EndReason::GivenUp(None) }).await;
            if let Err(error) = &ended {
                tracing::debug!(%session, %error, "cannot end a session that was given up; retrying");
            }
            ended.is_ok()
        })
    }
}

/// Waits for a change of the lease, and returns it.
async fn next_lease(lease: &mut watch::Receiver<LeaseState>) -> LeaseState {
    match lease.changed().await {
        Ok(()) => lease.borrow_and_update().clone(),
        // A stand-in for the quorum keeps no lease.
        Err(_) => std::future::pending().await,
    }
}

/// Returns the result of this work, once; pending forever without any.
pub(crate) async fn finished<T>(work: &mut Option<BoxFuture<T>>) -> T {
    let Some(under_way) = work else { return std::future::pending().await };
    let done = under_way.await;
    *work = None;
    done
}
