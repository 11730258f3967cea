//! The driver's bounded event queue, and the reply path to each connection.
//!
//! Many tasks and threads post, one task receives; until there is a quorum, one plain thread.
//! **Invariants:** posting never blocks; calls beyond the limit are returned to their sender
//! (backpressure), and one node has at most half of them, while every event that releases something
//! (a cancel, an ended connection, a finished write) is always accepted; a call is canceled at most
//! once, so cancels are bounded as calls are; an answer to a canceled call is dropped here.

use crate::bootstrap::BootstrapEvent;
use crate::metrics;
use crate::snapshot::{DownloadError, Fetched};
use lockmesh_core::Input;
pub use lockmesh_core::frontend::Caller;
use lockmesh_core::frontend::Event;
use lockmesh_core::state::LongRead;
use lockmesh_net::Peer;
use lockmesh_protocol::acl;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::rpc::{CallId, Request, Response, Unavailable};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::time::Sleep;

/// The maximum number of calls queued for the driver, half of them of one node, and of other
/// servers' messages: neither kind displaces the other.
pub const EVENT_QUEUE_LIMIT: usize = 16_384;

/// The maximum number of calls of one connection that are unanswered, or answered and not yet sent,
/// unless configured otherwise.
pub const CALLS_PER_CONNECTION: usize = 65_536;

/// The maximum number of answered calls of one connection that can be canceled: parts of lists,
/// backups and snapshots. A cancel that crosses an answer follows within a round trip.
const HOLDERS_PER_CONNECTION: usize = 1024;

/// An input of the driver: an event of the frontend, or one that the driver itself has a part in.
#[derive(Debug)]
pub enum DriverEvent {
    /// An event for the frontend. Calls, fetched snapshots and leaves have variants of their own.
    Frontend(Event),
    /// A call. It is answered once through `replies`, unless it is canceled before.
    Call {
        /// The call's id on its connection.
        call: CallId,
        /// The client for which the agent sends it.
        client: acl::Caller,
        /// The request.
        request: Request,
        /// The destination of the answer, and the caller.
        replies: ReplySink,
    },
    /// A checkpoint was fetched from another server, or the reason why not.
    SnapshotFetched(Result<Box<Fetched>, DownloadError>),
    /// An event of the bootstrap, before there is a quorum.
    Bootstrap(BootstrapEvent),
    /// This server is about to stop: a leader hands over. Answered when nothing is left to do.
    Leave(oneshot::Sender<()>),
    /// The driver is to finish.
    Stop,
}

impl<E: Into<Event>> From<E> for DriverEvent {
    fn from(event: E) -> Self {
        Self::Frontend(event.into())
    }
}

impl DriverEvent {
    /// Returns the kind under which it counts against [`EVENT_QUEUE_LIMIT`], if any.
    fn limited(&self) -> Option<Limited> {
        match self {
            // Limits only events that others send without bound; every other event is rare, or
            // releases something.
            Self::Call { .. } => Some(Limited::Call),
            Self::Frontend(Event::Core(Input::Peer(..))) => Some(Limited::Peer),
            _ => None,
        }
    }
}

/// The limited kinds of events.
#[derive(Clone, Copy, Debug)]
enum Limited {
    Call = 0,
    Peer = 1,
}

/// Posts to the driver; cheap to clone.
#[derive(Clone, Debug)]
pub struct EventSender(Arc<QueueShared>);

/// Receives posted events; there is one.
#[derive(Debug)]
pub struct EventReceiver(Arc<QueueShared>);

#[derive(Debug)]
struct QueueShared {
    queue: Mutex<EventQueue>,
    news: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct EventQueue {
    events: VecDeque<DriverEvent>,
    /// The post time of the oldest of them, or the driver's last visit.
    oldest: Option<Instant>,
    /// The number of queued calls, and of other servers' messages.
    limited: [usize; 2],
    /// The number of queued calls of each node.
    nodes: HashMap<NodeName, usize>,
    /// `true` if a thread waits for the first event.
    thread_waits: bool,
    /// The task that waits for the first event.
    task: Option<Waker>,
}

/// Creates an event queue of up to `limit` calls and as many peer messages ([`EVENT_QUEUE_LIMIT`]
/// in service).
pub fn event_queue(limit: usize) -> (EventSender, EventReceiver) {
    let shared = Arc::new(QueueShared { queue: Mutex::default(), news: Condvar::new(), limit });
    (EventSender(shared.clone()), EventReceiver(shared))
}

impl EventSender {
    /// Posts one event. A full queue returns it, which happens to calls and peer messages only.
    ///
    /// # Errors
    /// The event itself: it was not queued, and is not answered elsewhere. The sender of a call
    /// answers that the server is overloaded; a peer message is dropped, as on a network.
    pub fn post(&self, event: impl Into<DriverEvent>) -> Result<(), DriverEvent> {
        let mut queue = lock(&self.0.queue);
        let posted = queue.push(event.into(), self.0.limit);
        self.wake(queue);
        posted
    }

    /// Posts many events under one lock and with one wake-up; returns those that found no room.
    pub fn post_all(&self, events: impl IntoIterator<Item = DriverEvent>) -> Vec<DriverEvent> {
        let mut queue = lock(&self.0.queue);
        let refused = events.into_iter().filter_map(|event| queue.push(event, self.0.limit).err()).collect();
        self.wake(queue);
        refused
    }

    /// Returns the number of queued events, for a gauge.
    pub fn waiting(&self) -> usize {
        lock(&self.0.queue).events.len()
    }

    fn wake(&self, mut queue: MutexGuard<'_, EventQueue>) {
        if queue.events.is_empty() {
            return;
        }
        let (thread_waits, task) = (std::mem::take(&mut queue.thread_waits), queue.task.take());
        drop(queue);
        if thread_waits {
            self.0.news.notify_one();
        }
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl EventQueue {
    fn push(&mut self, event: DriverEvent, limit: usize) -> Result<(), DriverEvent> {
        if let Some(kind) = event.limited() {
            // Each kind has its own count: a crowd of agents must not displace the leader's
            // heartbeats.
            let waiting = &mut self.limited[kind as usize];
            if *waiting >= limit {
                return Err(event);
            }
            if let DriverEvent::Call { replies, .. } = &event {
                // One that sends without pause leaves room for the renewals of others.
                let of_node = self.nodes.entry(replies.0.node.clone()).or_default();
                if *of_node >= limit.div_ceil(2) {
                    return Err(event);
                }
                *of_node += 1;
            }
            *waiting += 1;
        }
        if self.events.is_empty() {
            self.oldest = Some(Instant::now());
        }
        self.events.push_back(event);
        Ok(())
    }

    fn take(&mut self, events: &mut Vec<DriverEvent>, at_most: usize) {
        let count = at_most.min(self.events.len());
        let before = events.len();
        events.extend(self.events.drain(..count));
        for event in &events[before..] {
            let Some(kind) = event.limited() else { continue };
            self.limited[kind as usize] -= 1;
            let DriverEvent::Call { replies, .. } = event else { continue };
            if let Entry::Occupied(mut of_node) = self.nodes.entry(replies.0.node.clone()) {
                *of_node.get_mut() -= 1;
                if *of_node.get() == 0 {
                    of_node.remove();
                }
            }
        }
        if let Some(oldest) = self.oldest.take() {
            let now = Instant::now();
            metrics::QUEUE_WAITS.observe(now.duration_since(oldest).as_secs_f64());
            self.oldest = (!self.events.is_empty()).then_some(now);
        }
    }
}

impl EventReceiver {
    /// Appends up to `at_most` events to `events`, in the order of their posting. Waits for the
    /// first one until `deadline`, and always until the other tasks of this thread have had their
    /// turn.
    pub async fn arrive(&self, events: &mut Vec<DriverEvent>, at_most: usize, mut deadline: Pin<&mut Sleep>) {
        let mut gave_way = false;
        poll_fn(|context| {
            // Once per call: the other tasks of this thread post more, which the same turn then
            // takes.
            let gives_way = !std::mem::replace(&mut gave_way, true);
            let mut queue = lock(&self.0.queue);
            if !queue.events.is_empty() && gives_way {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !queue.events.is_empty() {
                queue.take(events, at_most);
                return Poll::Ready(());
            }
            // Registered under the lock, so that no post comes between the check and the wait.
            if !queue.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
                queue.task = Some(context.waker().clone());
            }
            drop(queue);
            deadline.as_mut().poll(context)
        })
        .await;
    }

    /// Appends up to `at_most` queued events without waiting.
    pub fn take_now(&self, events: &mut Vec<DriverEvent>, at_most: usize) {
        lock(&self.0.queue).take(events, at_most);
    }

    /// The same as [`EventReceiver::arrive`] for a thread, which it blocks until `deadline`.
    pub fn take(&self, events: &mut Vec<DriverEvent>, at_most: usize, deadline: Instant) {
        let mut queue = lock(&self.0.queue);
        while queue.events.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return;
            }
            // Under the same lock as the check for events: no post is missed.
            queue.thread_waits = true;
            let (woken, _) = self.0.news.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.thread_waits = false;
        }
        queue.take(events, at_most);
    }
}

/// The destination of the answers to one connection's calls; cheap to clone.
#[derive(Clone, Debug)]
pub struct ReplySink(Arc<ReplyQueue>);

#[derive(Debug)]
struct ReplyQueue {
    caller: Caller,
    peer: Arc<Peer>,
    /// Its name in lower case.
    node: NodeName,
    call_limit: usize,
    state: Mutex<Replies>,
    ready: Notify,
    room: Notify,
}

#[derive(Debug, Default)]
struct Replies {
    /// Calls with the time of their arrival.
    unanswered: HashMap<CallId, Instant>,
    /// The newest answered calls that may hold a view or a reader of a checkpoint.
    holders: BTreeSet<CallId>,
    queue: Vec<(CallId, Outgoing)>,
    gone: bool,
}

/// The result of queueing an answer.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    /// The arrival time of its call.
    arrived: Instant,
    /// `true` if the queue was empty before, so that the connection must be woken.
    is_first: bool,
}

/// An outgoing message on a connection.
#[derive(Debug)]
pub enum Outgoing {
    /// An answer.
    Response(Response),
    /// An answer with a large number of rows, which the connection builds in the background.
    LongRead(Box<LongRead>),
}

impl From<Response> for Outgoing {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}

/// The result of beginning a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It may go to the driver.
    Yes,
    /// The connection has too many unanswered calls.
    TooMany,
    /// The id belongs to an unanswered call: a protocol error of the peer.
    Duplicate,
}

impl ReplySink {
    /// Creates the sink of a new connection, which may have up to `call_limit` calls unanswered.
    pub fn new(caller: Caller, peer: Peer, call_limit: usize) -> Self {
        let (state, ready, room) = (Mutex::default(), Notify::new(), Notify::new());
        let (node, peer) = (peer.node.folded(), Arc::new(peer));
        Self(Arc::new(ReplyQueue { caller, peer, node, call_limit, state, ready, room }))
    }

    /// Returns the connection.
    pub fn caller(&self) -> Caller {
        self.0.caller
    }

    /// Returns the peer that its certificate names.
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Returns the same peer, shared.
    pub(crate) fn shared_peer(&self) -> Arc<Peer> {
        Arc::clone(&self.0.peer)
    }

    /// Answers a call and wakes the connection; a driver uses a [`WakeList`], which wakes once a
    /// turn.
    pub fn answer(&self, call: CallId, response: Response) {
        if self.push(call, response.into()).is_some_and(|pushed| pushed.is_first) {
            self.0.ready.notify_one();
        }
    }

    /// Answers a call that did not begin.
    pub(crate) fn refuse(&self, call: CallId, reason: Unavailable) {
        let mut state = lock(&self.0.state);
        if !state.gone {
            state.queue.push((call, Response::Unavailable(reason).into()));
            drop(state);
            self.0.ready.notify_one();
        }
    }

    /// Queues an answer if it is still wanted.
    fn push(&self, call: CallId, outgoing: Outgoing) -> Option<Pushed> {
        let mut state = lock(&self.0.state);
        if state.gone {
            return None;
        }
        let arrived = state.unanswered.remove(&call)?;
        let may_hold = match &outgoing {
            Outgoing::Response(response) => {
                matches!(response, Response::BackupPart(_) | Response::SnapshotPart(_))
            }
            Outgoing::LongRead(read) => read.part.is_some(),
        };
        if may_hold {
            state.holders.insert(call);
            if state.holders.len() > HOLDERS_PER_CONNECTION {
                // Ids ascend, so this is the oldest.
                state.holders.pop_first();
            }
        }
        state.queue.push((call, outgoing));
        Some(Pushed { arrived, is_first: state.queue.len() == 1 })
    }

    /// Registers a call that begins, with its arrival time.
    pub fn begin(&self, call: CallId, arrived: Instant) -> Begun {
        let mut state = lock(&self.0.state);
        // Also counts unsent answers: a peer that does not read fills memory in the same way.
        if state.unanswered.len() + state.queue.len() >= self.0.call_limit {
            return Begun::TooMany;
        }
        match state.unanswered.entry(call) {
            Entry::Vacant(place) => {
                place.insert(arrived);
                Begun::Yes
            }
            Entry::Occupied(_) => Begun::Duplicate,
        }
    }

    /// Drops interest in an answer. Returns `true` if the driver may hold something for the call,
    /// once for each call that began.
    pub fn cancel(&self, call: CallId) -> bool {
        let mut state = lock(&self.0.state);
        state.unanswered.remove(&call).is_some() | state.holders.remove(&call)
    }

    /// Returns `true` if the answer to this call is still awaited.
    pub fn awaits(&self, call: CallId) -> bool {
        lock(&self.0.state).unanswered.contains_key(&call)
    }

    /// Closes the sink: unsent answers are dropped, and so is every later answer.
    pub fn close(&self) {
        let mut state = lock(&self.0.state);
        *state = Replies { gone: true, ..Replies::default() };
        drop(state);
        // The task that receives calls could wait here forever otherwise.
        self.0.room.notify_waiters();
    }

    /// Waits for answers and takes all that are ready.
    pub async fn ready(&self) -> Vec<(CallId, Outgoing)> {
        loop {
            let taken = std::mem::take(&mut lock(&self.0.state).queue);
            if !taken.is_empty() {
                self.0.room.notify_waiters();
                return taken;
            }
            self.0.ready.notified().await;
        }
    }

    /// Waits until fewer than `answers` are unsent: a peer that does not read must not send more
    /// calls.
    pub async fn room(&self, answers: usize) {
        loop {
            // Created before the check, so that room made in between is not missed.
            let room = self.0.room.notified();
            {
                let state = lock(&self.0.state);
                if state.gone || state.queue.len() < answers {
                    return;
                }
            }
            room.await;
        }
    }
}

/// Carries the answers of one driver turn and wakes each connection once.
#[derive(Debug, Default)]
pub struct WakeList {
    woken: Vec<ReplySink>,
}

impl WakeList {
    /// Puts an answer into its connection's queue; it is sent by [`WakeList::deliver`]. Returns the
    /// arrival time of the call if its answer is still wanted.
    pub fn answer(
        &mut self,
        replies: &ReplySink,
        call: CallId,
        outgoing: impl Into<Outgoing>,
    ) -> Option<Instant> {
        let Pushed { arrived, is_first } = replies.push(call, outgoing.into())?;
        if is_first {
            self.woken.push(replies.clone());
        }
        Some(arrived)
    }

    /// Wakes every connection that has answers: the end of a turn.
    pub fn deliver(&mut self) {
        for replies in self.woken.drain(..) {
            replies.0.ready.notify_one();
        }
    }
}

/// A panic under the lock leaves no partial change: each change below is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Begun, Caller, DriverEvent, HOLDERS_PER_CONNECTION, ReplySink, WakeList, event_queue};
    use lockmesh_core::frontend::Event;
    use lockmesh_net::{Peer, Role};
    use lockmesh_protocol::id::{LogIndex, Term};
    use lockmesh_protocol::rpc::{BackupPart, CallId, Request, Response};
    use std::pin::pin;
    use std::time::{Duration, Instant};

    fn sink_of(node: &str, call_limit: usize) -> ReplySink {
        ReplySink::new(Caller(1), Peer { role: Role::Agent, node: node.into() }, call_limit)
    }

    fn sink(call_limit: usize) -> ReplySink {
        sink_of("web-1", call_limit)
    }

    fn call_of(node: &str, id: u64) -> DriverEvent {
        DriverEvent::Call {
            call: CallId(id),
            client: lockmesh_protocol::acl::Caller::Agent,
            request: Request::Status,
            replies: sink_of(node, 1),
        }
    }

    /// A call of a node that has no other.
    fn call(id: u64) -> DriverEvent {
        call_of(&format!("web-{id}"), id)
    }

    fn is_call(event: &DriverEvent, id: u64) -> bool {
        matches!(event, DriverEvent::Call { call, .. } if call.0 == id)
    }

    #[test]
    fn excess_calls_rejected_until_taken() {
        let (sender, receiver) = event_queue(2);
        let refused = sender.post_all([call(1), call(2), call(3)]);
        assert!(matches!(&refused[..], [event] if is_call(event, 3)));
        assert!(sender.post(Event::Disconnected(Caller(1))).is_ok());
        assert_eq!(sender.waiting(), 3);
        let mut events = Vec::new();
        receiver.take(&mut events, 1, Instant::now());
        assert!(sender.post(call(4)).is_ok());
        receiver.take(&mut events, 10, Instant::now());
        assert!(
            matches!(&events[..], [a, b, DriverEvent::Frontend(Event::Disconnected(_)), c] if is_call(a, 1) && is_call(b, 2) && is_call(c, 4))
        );
    }

    #[test]
    fn one_node_limited_to_half() {
        let (sender, receiver) = event_queue(4);
        let hostile = |count| sender.post_all((0..count).map(|id| call_of("web-1", id))).len();
        assert_eq!(hostile(10), 8);
        assert!(sender.post(call_of("WEB-1", 11)).is_err(), "names differ in case only");
        assert!(sender.post_all([call(2), call(3)]).is_empty());
        receiver.take(&mut Vec::new(), 1, Instant::now());
        assert_eq!(hostile(10), 9);
        receiver.take(&mut Vec::new(), 10, Instant::now());
        assert!(super::lock(&sender.0.queue).nodes.is_empty());
    }

    #[test]
    fn driver_wakes_on_event_or_deadline() {
        let (sender, receiver) = event_queue(10);
        let mut events = Vec::new();
        receiver.take(&mut events, 10, Instant::now() + Duration::from_millis(1));
        assert!(events.is_empty());
        let driver = std::thread::spawn(move || {
            receiver.take(&mut events, 10, Instant::now() + Duration::from_secs(3600));
            events.len()
        });
        assert!(sender.post(DriverEvent::Stop).is_ok());
        assert_eq!(driver.join().expect("it only waits"), 1);
    }

    #[tokio::test]
    async fn task_wakes_and_yields_before_taking() {
        let (sender, receiver) = event_queue(10);
        let mut events = Vec::new();
        let after = |time: Duration| tokio::time::sleep_until((Instant::now() + time).into());
        let mut soon = pin!(after(Duration::from_millis(1)));
        receiver.arrive(&mut events, 10, soon.as_mut()).await;
        assert!(events.is_empty());
        let mut never = pin!(after(Duration::from_secs(3600)));
        let poster = async { assert!(sender.post(call(1)).is_ok()) };
        tokio::join!(receiver.arrive(&mut events, 10, never.as_mut()), poster);
        assert!(matches!(&events[..], [event] if is_call(event, 1)));
        assert!(sender.post(call(2)).is_ok());
        let poster = async { assert!(sender.post(call(3)).is_ok()) };
        tokio::join!(receiver.arrive(&mut events, 10, never.as_mut()), poster);
        assert!(matches!(&events[1..], [a, b] if is_call(a, 2) && is_call(b, 3)), "both share a turn");
    }

    #[tokio::test]
    async fn only_open_calls_are_answered() {
        let (sink, mut wakes) = (sink(3), WakeList::default());
        assert_eq!([1, 2, 2, 3, 4].map(|id| sink.begin(CallId(id), Instant::now())), {
            [Begun::Yes, Begun::Yes, Begun::Duplicate, Begun::Yes, Begun::TooMany]
        });
        assert_eq!([2, 2, 7].map(|id| sink.cancel(CallId(id))), [true, false, false]);
        for id in [1, 1, 2, 9, 3] {
            wakes.answer(&sink, CallId(id), Response::Done);
        }
        wakes.deliver();
        let answered = sink.ready().await.into_iter().map(|(call, _)| call);
        assert!(answered.eq([CallId(1), CallId(3)]));
        assert_eq!(sink.begin(CallId(1), Instant::now()), Begun::Yes);
    }

    /// A part of a list, backup or snapshot may hold something that only a cancel ends.
    #[test]
    fn each_call_is_cancelled_once() {
        let sink = sink(usize::MAX);
        let part = Response::BackupPart(BackupPart {
            backup: 1,
            cluster_id: String::new(),
            index: LogIndex(1),
            term: Term(1),
            number: 0,
            last: false,
            rows: Vec::new(),
        });
        let answer = |id: u64, response: &Response| {
            sink.begin(CallId(id), Instant::now());
            sink.answer(CallId(id), response.clone());
        };
        answer(1, &part);
        answer(2, &Response::Done);
        assert_eq!([1, 1, 2].map(|id| sink.cancel(CallId(id))), [true, false, false]);
        let newest = HOLDERS_PER_CONNECTION as u64;
        (0..=newest).for_each(|id| answer(id, &part));
        assert_eq!([0, 1, newest].map(|id| sink.cancel(CallId(id))), [false, true, true]);
    }

    #[tokio::test]
    async fn backpressure_until_answers_taken_or_dropped() {
        let sink = sink(10);
        for id in [1, 2] {
            sink.begin(CallId(id), Instant::now());
            sink.answer(CallId(id), Response::Done);
        }
        sink.room(3).await;
        let (_, taken) = tokio::join!(sink.room(2), sink.ready());
        assert_eq!(taken.len(), 2);
        sink.begin(CallId(3), Instant::now());
        sink.answer(CallId(3), Response::Done);
        tokio::join!(sink.room(1), async { sink.close() });
        sink.answer(CallId(3), Response::Done);
        sink.begin(CallId(4), Instant::now());
        sink.answer(CallId(4), Response::Done);
        sink.room(1).await;
    }
}
