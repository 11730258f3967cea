//! One stream of calls: receives frames, posts events to the driver, sends answers.

use super::counters::one_more;
use super::long::{Built, LongReads};
use super::service::RpcService;
use crate::event_queue::{Begun, DriverEvent, Outgoing, ReplySink};
use lockmesh_core::frontend::{CallRef, Event, denied};
use lockmesh_core::state::too_long;
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Connection, LinkError};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::dialect::Dialect;
use lockmesh_protocol::rpc::{Call, CallFrame, CallId, MAX_FRAME_BYTES, Response, Unavailable};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The maximum number of unsent answers before the peer's next calls are received (backpressure).
const ANSWERS_IN_LINE: usize = 4096;

/// The bytes of answers that are encoded before they are sent.
const BYTES_AT_ONCE: usize = 1 << 20;

pub(super) struct Stream {
    pub(super) service: RpcService,
    pub(super) replies: ReplySink,
    /// The messages that the peer supports.
    pub(super) dialect: Dialect,
}

impl Stream {
    /// Serves the stream until one of its directions ends, then frees what the driver keeps for it.
    pub(super) async fn run(
        self,
        connection: Connection,
        mut sender: FrameSender,
        mut receiver: FrameReceiver,
    ) {
        let ended = tokio::select! {
            ended = self.take_calls(&mut receiver) => ended,
            ended = self.send_answers(&mut sender) => ended,
        };
        if let Err(LinkError::Malformed(what)) = ended {
            self.service.cut(&connection, &what);
        }
        // First: an answer that comes now is dropped, instead of growing a queue.
        self.replies.close();
        self.service.forget(self.replies.caller());
    }

    async fn take_calls(&self, receiver: &mut FrameReceiver) -> Result<(), LinkError> {
        while let Some(CallFrame(calls)) = receiver.receive().await? {
            one_more(&self.service.counters.call_frames);
            self.service.counters.calls.fetch_add(calls.len() as u64, Ordering::Relaxed);
            let mut duplicate = None;
            let arrived = Instant::now();
            let events = calls.into_iter().filter_map(|call| self.event(call, arrived, &mut duplicate));
            let refused = self.service.sender.post_all(events);
            // Rejected at once, with a reason: the caller would wait for a call that is silently
            // dropped.
            for event in refused {
                self.shed(event);
            }
            // After the others of the frame: they have begun, and are freed with the connection.
            if let Some(CallId(id)) = duplicate {
                return Err(LinkError::Malformed(format!("call {id} twice")));
            }
            self.replies.room(ANSWERS_IN_LINE).await;
        }
        Ok(())
    }

    /// Returns the driver's event for a call; `None` if it is answered here.
    fn event(&self, call: Call, arrived: Instant, duplicate: &mut Option<CallId>) -> Option<DriverEvent> {
        let (call, client, request) = match call {
            Call::Begin(call, request) => (call, Caller::Agent, request),
            Call::BeginAs(call, client, request) => (call, client, request),
            Call::Cancel(call) => {
                one_more(&self.service.counters.cancels);
                // Also after its answer: the view or backup that it began would be kept.
                let is_held = self.replies.cancel(call);
                let cancel = || Event::Cancel(CallRef { caller: self.replies.caller(), call });
                return is_held.then(|| cancel().into());
            }
        };
        match self.replies.begin(call, arrived) {
            Begun::Yes => {}
            Begun::TooMany => {
                one_more(&self.service.counters.overloaded);
                let reason = "too many unanswered calls on this connection";
                // Its id is not registered, so the caller may retry the same call later.
                self.replies.refuse(call, Unavailable::Overloaded(reason.into()));
                return None;
            }
            Begun::Duplicate => {
                *duplicate = Some(call);
                return None;
            }
        }
        // The frontend checks this again: here it is counted, and it also applies before there is a
        // quorum.
        if let Some(reason) = denied(self.replies.peer(), &request) {
            self.service
                .counters
                .denied
                .count_and_warn(|| format!("rejected {}: {reason}", self.replies.peer()));
            self.replies.answer(call, Response::Unavailable(Unavailable::Denied(reason)));
            return None;
        }
        Some(DriverEvent::Call { call, client, request, replies: self.replies.clone() })
    }

    fn shed(&self, event: DriverEvent) {
        if let DriverEvent::Call { call, .. } = event {
            one_more(&self.service.counters.overloaded);
            let reason = "request queue is full";
            self.replies.answer(call, Response::Unavailable(Unavailable::Overloaded(reason.into())));
        }
    }

    async fn send_answers(&self, sender: &mut FrameSender) -> Result<(), LinkError> {
        let mut queue = FrameQueue::default();
        let mut long_reads = LongReads::new(Arc::clone(&self.service.long_reads));
        loop {
            tokio::select! {
                answers = self.replies.ready() => for (call, outgoing) in answers {
                    let response = match outgoing {
                        Outgoing::Response(response) => Some(response),
                        Outgoing::LongRead(read) => long_reads.queue(call, *read),
                    };
                    if let Some(response) = response {
                        self.encode(&mut queue, &(call, response.in_dialect(self.dialect)));
                    }
                    if queue.byte_count() >= BYTES_AT_ONCE {
                        self.send(&mut queue, sender).await?;
                    }
                },
                built = long_reads.built() => self.push_built(&mut queue, &built),
            }
            self.send(&mut queue, sender).await?;
        }
    }

    fn push_built(&self, queue: &mut FrameQueue, built: &Built) {
        let counters = &self.service.counters;
        one_more(&counters.replies);
        if built.is_too_long {
            one_more(&counters.too_long);
        }
        queue.push_encoded(&built.answer);
    }

    async fn send(&self, queue: &mut FrameQueue, sender: &mut FrameSender) -> Result<(), LinkError> {
        let frames = queue.take();
        self.service.counters.reply_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
        sender.send(frames).await
    }

    fn encode(&self, queue: &mut FrameQueue, answer: &(CallId, Response)) {
        one_more(&self.service.counters.replies);
        // Too long for a frame: an error answers the caller, which would wait forever otherwise.
        if queue.push(answer).is_err() {
            one_more(&self.service.counters.too_long);
            queue.push(&(answer.0, too_long(MAX_FRAME_BYTES))).expect("a refusal is short");
        }
    }
}
