//! The calls that wait for an answer on the present connection, and the frames that wait to be sent on it.
//!
//! **Invariants:** a call is answered once: by an answer, by the end of the connection or of the server's role, or by
//! its own deadline; a caller that goes away cancels its call; what waits to be sent is bounded.

use lockmesh_net::frame::{FrameQueue, TooLong};
use lockmesh_protocol::rpc::{CallId, Request, Response};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Callers wait while so many bytes wait to be sent.
const BYTES_IN_LINE: usize = 4 << 20;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// It could not be sent to this server: certainly not done.
    #[error("there is no connection to the server")]
    Down,
    /// It was sent, and the connection or the server's role ended, or the server kept silent: unknown.
    #[error("the server was lost before it answered")]
    Lost,
    /// It fits no frame: certainly not done.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// What a call needs of the server at the other end, and where it goes when that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The leader, soon. It goes again to the next leader.
    Leader,
    /// The home server, soon. It goes again to the next one.
    Home,
    /// The home server or the leader, whenever there is news. It goes again when the server is neither any more.
    Parked,
    /// This one server, as long as there is a connection to it.
    Own,
}

/// What a server is for this agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Roles {
    pub(super) leads: bool,
    pub(super) is_home: bool,
}

impl Roles {
    fn take(self, lane: Lane) -> bool {
        match lane {
            Lane::Leader => self.leads,
            Lane::Home => self.is_home,
            Lane::Parked => self.leads || self.is_home,
            Lane::Own => true,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct CallTable {
    state: Mutex<State>,
    ready: Notify,
    room: Notify,
    watch: Notify,
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    roles: Roles,
    last_call: u64,
    /// The calls that are to be answered soon, in order of their beginning.
    prompt: BTreeMap<CallId, Waiter>,
    /// The others.
    patient: HashMap<CallId, Waiter>,
    outgoing: FrameQueue,
    /// Whether somebody looks after the prompt ones by the clock.
    is_watched: bool,
}

#[derive(Debug)]
struct Waiter {
    answer: oneshot::Sender<Response>,
    lane: Lane,
    begun: Instant,
    deadline: Instant,
}

/// Encodes to the same bytes as [`lockmesh_protocol::rpc::Call`], without owning the request.
#[derive(Serialize)]
enum CallRef<'a> {
    Begin(CallId, &'a Request),
    Cancel(CallId),
}

impl CallTable {
    /// Sends a request and waits for its answer, for `patience` and a moment more.
    pub(super) async fn call(
        &self,
        request: &Request,
        lane: Lane,
        patience: Duration,
    ) -> Result<Response, CallError> {
        loop {
            let room = self.room.notified();
            let Some((call, answer)) = self.begin(request, lane, patience)? else {
                room.await;
                continue;
            };
            self.ready.notify_one();
            let mut pending = Pending { table: self, call, is_over: false };
            let answer = answer.await;
            pending.is_over = true;
            return answer.map_err(|_| CallError::Lost);
        }
    }

    /// Puts a call into the line; `None` when there is no room.
    fn begin(
        &self,
        request: &Request,
        lane: Lane,
        patience: Duration,
    ) -> Result<Option<(CallId, oneshot::Receiver<Response>)>, CallError> {
        let mut state = self.lock();
        if !state.is_open || !state.roles.take(lane) {
            return Err(CallError::Down);
        }
        if state.outgoing.byte_count() >= BYTES_IN_LINE {
            return Ok(None);
        }
        let begun = state.begin(request, lane, patience)?;
        let wants_watch = !state.is_watched && !state.prompt.is_empty();
        state.is_watched |= wants_watch;
        drop(state);
        if wants_watch {
            self.watch.notify_one();
        }
        Ok(Some(begun))
    }

    /// There is a connection.
    pub(super) fn open(&self) {
        self.lock().is_open = true;
    }

    /// There is none any more: all calls that wait are lost.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_open = false;
        state.outgoing.clear();
        let lost = (std::mem::take(&mut state.prompt), std::mem::take(&mut state.patient));
        drop(state);
        drop(lost);
        self.room.notify_waiters();
    }

    /// Takes the calls that go with these roles from now on. Those that do not fit them any more are lost here, and
    /// the server need not answer them.
    pub(super) fn set_roles(&self, roles: Roles) {
        let mut state = self.lock();
        if state.roles == roles {
            return;
        }
        state.roles = roles;
        let lost = state.cancel_where(|waiter| !roles.take(waiter.lane));
        drop(state);
        self.room.notify_waiters();
        if !lost.is_empty() {
            self.ready.notify_one();
        }
    }

    /// When the oldest call began that is to be answered soon; waits until there is one.
    pub(super) async fn oldest(&self) -> Instant {
        loop {
            if let Some(oldest) = self.oldest_now() {
                return oldest;
            }
            self.watch.notified().await;
        }
    }

    /// The same, if there is one. Where there is none, [`CallTable::oldest`] has to be waited for.
    pub(super) fn oldest_now(&self) -> Option<Instant> {
        let mut state = self.lock();
        let oldest = state.prompt.first_key_value().map(|(_, waiter)| waiter.begun);
        state.is_watched = oldest.is_some();
        oldest
    }

    /// Waits for something to send.
    pub(super) async fn ready(&self) {
        while self.lock().outgoing.is_empty() {
            self.ready.notified().await;
        }
    }

    /// Takes all that waits to be sent.
    pub(super) fn take(&self) -> Vec<bytes::Bytes> {
        let frames = self.lock().outgoing.take();
        self.room.notify_waiters();
        frames
    }

    /// Hands answers to those who wait for them; an answer that nobody waits for is dropped.
    pub(super) fn answer(&self, answers: Vec<(CallId, Response)>) {
        let mut wanted = Vec::with_capacity(answers.len());
        let mut state = self.lock();
        for (call, response) in answers {
            if let Some(waiter) = state.remove(call) {
                wanted.push((waiter.answer, response));
            }
        }
        drop(state);
        for (waiter, response) in wanted {
            // A waiter that has just left wants no answer.
            let _ = waiter.send(response);
        }
    }

    /// Gives up the calls whose deadline is past.
    pub(super) fn expire(&self, now: Instant) {
        let mut state = self.lock();
        let expired = state.cancel_where(|waiter| waiter.deadline <= now);
        drop(state);
        if !expired.is_empty() {
            self.ready.notify_one();
        }
    }

    /// How many calls wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        let state = self.lock();
        state.prompt.len() + state.patient.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change below is one step, so a panic elsewhere left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn begin(
        &mut self,
        request: &Request,
        lane: Lane,
        patience: Duration,
    ) -> Result<(CallId, oneshot::Receiver<Response>), TooLong> {
        let call = CallId(self.last_call + 1);
        self.outgoing.push(&CallRef::Begin(call, request))?;
        self.last_call = call.0;
        let (answer, receiver) = oneshot::channel();
        let begun = Instant::now();
        let waiter = Waiter { answer, lane, begun, deadline: begun + patience };
        match lane {
            Lane::Leader | Lane::Home => self.prompt.insert(call, waiter),
            Lane::Parked | Lane::Own => self.patient.insert(call, waiter),
        };
        Ok((call, receiver))
    }

    fn remove(&mut self, call: CallId) -> Option<Waiter> {
        self.prompt.remove(&call).or_else(|| self.patient.remove(&call))
    }

    /// Takes these calls out and tells the server that nobody waits for them. Their callers hear of it when what this
    /// gives is dropped.
    fn cancel_where(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let prompt = self.prompt.iter().filter(|(_, waiter)| is_it(waiter));
        let patient = self.patient.iter().filter(|(_, waiter)| is_it(waiter));
        let calls: Vec<CallId> = prompt.chain(patient).map(|(call, _)| *call).collect();
        for call in &calls {
            self.cancel(*call);
        }
        calls.into_iter().filter_map(|call| self.remove(call)).collect()
    }

    fn cancel(&mut self, call: CallId) {
        self.outgoing.push(&CallRef::Cancel(call)).expect("a cancel is short");
    }
}

/// Cancels the call when its caller goes away before the answer came.
struct Pending<'a> {
    table: &'a CallTable,
    call: CallId,
    is_over: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.table.lock();
        // A call that is not in the table was answered or lost; another connection knows nothing of it.
        if state.remove(self.call).is_some() {
            state.cancel(self.call);
            drop(state);
            self.table.ready.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CallError, CallTable, Lane, Roles};
    use lockmesh_net::frame::FrameCutter;
    use lockmesh_protocol::rpc::{Call, CallFrame, CallId, Request, Response, Unavailable};
    use std::future::{Future, poll_fn};
    use std::pin::{Pin, pin};
    use std::task::Poll;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(3600);
    const BOTH: Roles = Roles { leads: true, is_home: true };

    fn table(roles: Roles) -> CallTable {
        let table = CallTable::default();
        table.open();
        table.set_roles(roles);
        table
    }

    async fn sent(table: &CallTable) -> Vec<Call> {
        let mut cutter = FrameCutter::default();
        table.ready().await;
        cutter.feed(table.take().concat().into());
        let mut calls = Vec::new();
        while let Some(CallFrame(more)) = cutter.next_message().unwrap() {
            calls.extend(more);
        }
        calls
    }

    /// Polls once, so that a call is sent while its caller can still be dropped.
    async fn begin(future: Pin<&mut impl Future>) {
        assert!(is_pending(future).await);
    }

    async fn is_pending(mut future: Pin<&mut impl Future>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn answers_find_their_callers_in_any_order() {
        let table = table(BOTH);
        let one = table.call(&Request::Status, Lane::Home, LONG);
        let renew = Request::Renew("s".into());
        let two = table.call(&renew, Lane::Leader, LONG);
        let answers = async {
            let calls = sent(&table).await;
            assert_eq!(calls.len(), 2);
            table.answer(vec![(CallId(2), Response::Renewed(None)), (CallId(1), Response::Done)]);
        };
        let (one, two, ()) = tokio::join!(one, two, answers);
        assert_eq!((one, two), (Ok(Response::Done), Ok(Response::Renewed(None))));
        assert_eq!(table.waiting(), 0);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_cancels() {
        let table = table(BOTH);
        {
            let mut call = pin!(table.call(&Request::Status, Lane::Parked, LONG));
            begin(call.as_mut()).await;
        }
        let begun = Call::Begin(CallId(1), Request::Status);
        assert_eq!(sent(&table).await, [begun, Call::Cancel(CallId(1))]);
        assert_eq!(table.waiting(), 0);
    }

    #[tokio::test]
    async fn the_end_of_the_connection_ends_all_calls_and_forgets_what_was_not_sent() {
        let table = CallTable::default();
        table.set_roles(BOTH);
        assert_eq!(table.call(&Request::Status, Lane::Own, LONG).await, Err(CallError::Down));
        table.open();
        let mut calls = [Lane::Leader, Lane::Home, Lane::Parked, Lane::Own]
            .map(|lane| Box::pin(table.call(&Request::Status, lane, LONG)));
        for call in &mut calls {
            begin(call.as_mut()).await;
        }
        table.close();
        for call in calls {
            assert_eq!(call.await, Err(CallError::Lost));
        }
        assert!(table.lock().outgoing.is_empty());
    }

    #[tokio::test]
    async fn a_call_goes_where_its_lane_leads_and_is_lost_with_the_role() {
        let table = table(Roles { leads: true, is_home: false });
        assert_eq!(table.call(&Request::Status, Lane::Home, LONG).await, Err(CallError::Down));
        let mut command = pin!(table.call(&Request::Status, Lane::Leader, LONG));
        let mut parked = pin!(table.call(&Request::Status, Lane::Parked, LONG));
        let mut own = pin!(table.call(&Request::Status, Lane::Own, LONG));
        begin(command.as_mut()).await;
        begin(parked.as_mut()).await;
        begin(own.as_mut()).await;
        assert_eq!(sent(&table).await.len(), 3);
        table.set_roles(Roles { leads: false, is_home: true });
        assert_eq!(command.await, Err(CallError::Lost));
        assert!(is_pending(parked.as_mut()).await);
        assert_eq!(sent(&table).await, [Call::Cancel(CallId(1))]);
        table.set_roles(Roles::default());
        assert_eq!(parked.await, Err(CallError::Lost));
        table.answer(vec![(CallId(3), Response::Done)]);
        assert_eq!(own.await, Ok(Response::Done));
        assert_eq!(table.call(&Request::Status, Lane::Leader, LONG).await, Err(CallError::Down));
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up_on() {
        let table = table(BOTH);
        let mut call = pin!(table.call(&Request::Status, Lane::Leader, Duration::ZERO));
        begin(call.as_mut()).await;
        table.expire(Instant::now());
        assert_eq!(call.await, Err(CallError::Lost));
        assert_eq!(sent(&table).await.last(), Some(&Call::Cancel(CallId(1))));
        table.answer(vec![(CallId(1), Response::Unavailable(Unavailable::Unknown("late".into())))]);
    }

    #[tokio::test]
    async fn the_oldest_prompt_call_is_watched_and_no_patient_one() {
        let table = table(BOTH);
        let mut oldest = Box::pin(table.oldest());
        begin(oldest.as_mut()).await;
        let mut parked = pin!(table.call(&Request::Status, Lane::Parked, LONG));
        begin(parked.as_mut()).await;
        assert!(is_pending(oldest.as_mut()).await);
        let before = Instant::now();
        let mut first = pin!(table.call(&Request::Status, Lane::Leader, LONG));
        begin(first.as_mut()).await;
        let after = Instant::now();
        let mut second = pin!(table.call(&Request::Status, Lane::Home, LONG));
        begin(second.as_mut()).await;
        let begun = oldest.await;
        assert!(before <= begun && begun <= after);
        table.answer(vec![(CallId(2), Response::Done)]);
        assert!(table.oldest().await >= after);
        table.answer(vec![(CallId(3), Response::Done)]);
        let mut oldest = Box::pin(table.oldest());
        begin(oldest.as_mut()).await;
    }
}
