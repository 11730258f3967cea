//! One stream of calls: frames in, mails to the driver, answers out.

use super::RpcService;
use super::counters::one_more;
use crate::mailbox::{Begun, Mail, ReplySink};
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Connection, LinkError, Role};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::rpc::{Call, CallFrame, CallId, MAX_FRAME_BYTES, Request, Response, Unavailable};
use std::sync::atomic::Ordering;

/// A peer that lets so many answers wait is not asked for more calls until it has read some.
const ANSWERS_IN_LINE: usize = 4096;

/// So many bytes of answers are encoded before they are sent.
const BYTES_AT_ONCE: usize = 1 << 20;

pub(super) struct Stream {
    pub(super) service: RpcService,
    pub(super) replies: ReplySink,
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
        self.replies.close();
        self.service.forget(self.replies.caller());
    }

    async fn take_calls(&self, receiver: &mut FrameReceiver) -> Result<(), LinkError> {
        while let Some(CallFrame(calls)) = receiver.receive().await? {
            one_more(&self.service.counters.call_frames);
            self.service.counters.calls.fetch_add(calls.len() as u64, Ordering::Relaxed);
            let mut duplicate = None;
            let mails = calls.into_iter().filter_map(|call| self.mail(call, &mut duplicate));
            let refused = self.service.mailbox.post_all(mails);
            for mail in refused {
                self.shed(mail);
            }
            if let Some(CallId(id)) = duplicate {
                return Err(LinkError::Malformed(format!("call {id} twice")));
            }
            self.replies.room(ANSWERS_IN_LINE).await;
        }
        Ok(())
    }

    /// What the driver is told about a call; nothing if it is answered here.
    fn mail(&self, call: Call, duplicate: &mut Option<CallId>) -> Option<Mail> {
        let (call, request) = match call {
            Call::Begin(call, request) => (call, request),
            Call::Cancel(call) => {
                one_more(&self.service.counters.cancels);
                let from = self.replies.caller();
                return self.replies.cancel(call).then_some(Mail::Cancel { from, call });
            }
        };
        match self.replies.begin(call) {
            Begun::Yes => {}
            Begun::TooMany => {
                one_more(&self.service.counters.overloaded);
                let reason = "this connection has too many calls that are not answered";
                self.replies.refuse(call, Unavailable::Overloaded(reason.into()));
                return None;
            }
            Begun::Duplicate => {
                *duplicate = Some(call);
                return None;
            }
        }
        if let Some(reason) = self.denied(&request) {
            self.service
                .counters
                .denied
                .count_and_warn(|| format!("refused {}: {reason}", self.replies.peer()));
            self.replies.answer(call, Response::Unavailable(Unavailable::Denied(reason)));
            return None;
        }
        Some(Mail::Call { call, request, replies: self.replies.clone() })
    }

    /// Why the peer may not ask this. A certificate speaks for one node, so it registers no other; and a command
    /// that could be repeated unnoticed is never taken.
    fn denied(&self, request: &Request) -> Option<String> {
        let certified = self.replies.peer();
        let (role, wanted) = match request {
            Request::Propose(None, Command::RegisterAgent(registration)) => (None, &registration.node.name),
            Request::Propose(None, _) => return Some("a command without a request id is not taken".into()),
            Request::AddServer(server) => (Some(Role::Server), &server.node),
            Request::Introduce(introduction) => (Some(Role::Server), &introduction.server.node),
            Request::Announce(server) => (Some(Role::Server), &server.node),
            Request::ImagePart { .. } => (Some(Role::Server), &certified.node),
            _ => return None,
        };
        if role.is_some_and(|role| role != certified.role) {
            return Some("its certificate is not a server's".into());
        }
        (certified.node.folded() != wanted.folded()).then(|| {
            format!("its certificate names the node {:?}, so it cannot speak for {wanted:?}", certified.node)
        })
    }

    fn shed(&self, mail: Mail) {
        if let Mail::Call { call, .. } = mail {
            one_more(&self.service.counters.overloaded);
            let reason = "more calls wait for its driver than it takes on";
            self.replies.answer(call, Response::Unavailable(Unavailable::Overloaded(reason.into())));
        }
    }

    async fn send_answers(&self, sender: &mut FrameSender) -> Result<(), LinkError> {
        let mut queue = FrameQueue::default();
        loop {
            for answer in self.replies.ready().await {
                self.encode(&mut queue, &answer);
                if queue.byte_count() >= BYTES_AT_ONCE {
                    self.send(&mut queue, sender).await?;
                }
            }
            self.send(&mut queue, sender).await?;
        }
    }

    async fn send(&self, queue: &mut FrameQueue, sender: &mut FrameSender) -> Result<(), LinkError> {
        let frames = queue.take();
        self.service.counters.reply_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
        sender.send(frames).await
    }

    fn encode(&self, queue: &mut FrameQueue, answer: &(CallId, Response)) {
        one_more(&self.service.counters.replies);
        if queue.push(answer).is_err() {
            one_more(&self.service.counters.too_long);
            let refusal = Unavailable::AnswerTooLong { limit: MAX_FRAME_BYTES as u64 };
            let refusal = Response::Unavailable(refusal);
            queue.push(&(answer.0, refusal)).expect("a refusal is short");
        }
    }
}
