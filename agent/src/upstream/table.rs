//! The calls that wait for an answer on the present connection, and the frames that wait to be sent on it.
//!
//! **Invariants:** a call is answered once, by an answer, by the connection's end or by its own deadline; a caller
//! that goes away cancels its call; what waits to be sent is bounded.

use lockmesh_net::frame::{FrameQueue, TooLong};
use lockmesh_protocol::rpc::{CallId, Request, Response};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, oneshot};

/// Callers wait while so many bytes wait to be sent.
const BYTES_IN_LINE: usize = 4 << 20;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// There is no connection on which it could be sent: certainly not done.
    #[error("there is no connection to a server")]
    Down,
    /// It was sent, and the connection ended or the server kept silent: unknown.
    #[error("the server was lost before it answered")]
    Lost,
    /// It fits no frame: certainly not done.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// Who may be heard on the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Admission {
    /// There is no connection.
    #[default]
    Nobody,
    /// The agent's registration alone.
    Registration,
    /// Everybody.
    Everybody,
}

#[derive(Debug, Default)]
pub(super) struct CallTable {
    state: Mutex<State>,
    ready: Notify,
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    admission: Admission,
    last_call: u64,
    waiting: HashMap<CallId, Waiter>,
    outgoing: FrameQueue,
}

#[derive(Debug)]
struct Waiter {
    answer: oneshot::Sender<Response>,
    deadline: Instant,
}

/// Encodes to the same bytes as [`lockmesh_protocol::rpc::Call`], without owning the request.
#[derive(Serialize)]
enum CallRef<'a> {
    Begin(CallId, &'a Request),
    Cancel(CallId),
}

impl CallTable {
    /// Sends a request and waits for its answer, at the latest until a moment after `deadline`.
    pub(super) async fn call(
        &self,
        request: &Request,
        deadline: Instant,
        needs: Admission,
    ) -> Result<Response, CallError> {
        loop {
            let room = self.room.notified();
            let Some((call, answer)) = self.begin(request, deadline, needs)? else {
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
        deadline: Instant,
        needs: Admission,
    ) -> Result<Option<(CallId, oneshot::Receiver<Response>)>, CallError> {
        let mut state = self.lock();
        if state.admission < needs {
            return Err(CallError::Down);
        }
        if state.outgoing.byte_count() >= BYTES_IN_LINE {
            return Ok(None);
        }
        Ok(Some(state.begin(request, deadline)?))
    }

    /// Lets calls in, or no longer. Without a connection all calls that wait are lost.
    pub(super) fn admit(&self, admission: Admission) {
        let mut state = self.lock();
        state.admission = admission;
        if admission == Admission::Nobody {
            state.outgoing.clear();
            let lost = std::mem::take(&mut state.waiting);
            drop(state);
            drop(lost);
            self.room.notify_waiters();
        }
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
            if let Some(waiter) = state.waiting.remove(&call) {
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
        let expired: Vec<_> =
            state.waiting.extract_if(|_, waiter| waiter.deadline <= now).map(|(call, _)| call).collect();
        for call in &expired {
            state.cancel(*call);
        }
        drop(state);
        if !expired.is_empty() {
            self.ready.notify_one();
        }
    }

    /// How many calls wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
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
        deadline: Instant,
    ) -> Result<(CallId, oneshot::Receiver<Response>), TooLong> {
        let call = CallId(self.last_call + 1);
        self.outgoing.push(&CallRef::Begin(call, request))?;
        self.last_call = call.0;
        let (answer, receiver) = oneshot::channel();
        self.waiting.insert(call, Waiter { answer, deadline });
        Ok((call, receiver))
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
        if state.waiting.remove(&self.call).is_some() {
            state.cancel(self.call);
            drop(state);
            self.table.ready.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, CallError, CallTable};
    use lockmesh_net::frame::FrameCutter;
    use lockmesh_protocol::rpc::{Call, CallFrame, CallId, Request, Response, Unavailable};
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;
    use std::time::{Duration, Instant};

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
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
    async fn begin(future: std::pin::Pin<&mut impl Future>) {
        let mut future = future;
        poll_fn(|context| {
            assert!(future.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn answers_find_their_callers_in_any_order() {
        let table = CallTable::default();
        table.admit(Admission::Everybody);
        let one = table.call(&Request::Status, later(), Admission::Everybody);
        let renew = Request::Renew("s".into());
        let two = table.call(&renew, later(), Admission::Everybody);
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
        let table = CallTable::default();
        table.admit(Admission::Everybody);
        {
            let mut call = pin!(table.call(&Request::Status, later(), Admission::Everybody));
            begin(call.as_mut()).await;
        }
        let begun = Call::Begin(CallId(1), Request::Status);
        assert_eq!(sent(&table).await, [begun, Call::Cancel(CallId(1))]);
        assert_eq!(table.waiting(), 0);
    }

    #[tokio::test]
    async fn the_end_of_the_connection_ends_all_calls_and_forgets_what_was_not_sent() {
        let table = CallTable::default();
        assert_eq!(table.call(&Request::Status, later(), Admission::Everybody).await, Err(CallError::Down));
        table.admit(Admission::Registration);
        assert_eq!(table.call(&Request::Status, later(), Admission::Everybody).await, Err(CallError::Down));
        let mut call = pin!(table.call(&Request::Status, later(), Admission::Registration));
        begin(call.as_mut()).await;
        table.admit(Admission::Nobody);
        assert_eq!(call.await, Err(CallError::Lost));
        assert!(table.lock().outgoing.is_empty());
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up_on() {
        let table = CallTable::default();
        table.admit(Admission::Everybody);
        let mut call = pin!(table.call(&Request::Status, Instant::now(), Admission::Everybody));
        begin(call.as_mut()).await;
        table.expire(Instant::now());
        assert_eq!(call.await, Err(CallError::Lost));
        assert_eq!(sent(&table).await.last(), Some(&Call::Cancel(CallId(1))));
        table.answer(vec![(CallId(1), Response::Unavailable(Unavailable::Unknown("late".into())))]);
    }
}
