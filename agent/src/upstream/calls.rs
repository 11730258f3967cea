//! The calls of the agent, each a type with the type of its answer. A new request needs its line in
//! the table at the end, and no method of the upstream.

use lockmesh_agent_core::quorum_client::{Answered, EndReason, LocalCall};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{LogIndex, ServerId, SessionId};
use lockmesh_protocol::lease::{LeaseId, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::record::{Autopilot, RequestedLock, Session};
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::{self, BackupPart, Request, Response, Status, ViewId};
use std::sync::Arc;
use std::time::Duration;

/// A call to the quorum.
pub trait Call {
    /// The answer to the call.
    type Answer;

    /// Returns the call as the quorum client knows it.
    fn local_call(self) -> LocalCall;

    /// Unpacks the answer.
    ///
    /// # Errors
    /// It is the answer to another call.
    fn answer(answered: Answered) -> Result<Self::Answer, Answered>;
}

/// Acquires locks, all or none, or waits in their queues for up to `wait`. The answer is the index
/// of the enqueue and the reply of an acquire. Dropping the future gives up the position.
///
/// After an error the locks may have been granted to the session, unless that was
/// [certainly not done](lockmesh_protocol::rpc::Unavailable::certainly_not_done): the owner of the
/// session must release them, or end the session.
#[derive(Debug)]
pub struct Acquire {
    /// The locks, ascending by key, at least one.
    pub locks: Vec<RequestedLock>,
    /// The session that is to hold them.
    pub session: SessionId,
    /// The maximum wait.
    pub wait: Duration,
}

/// Ends a session. The agent retries that until it is done, even if the future is dropped. For a
/// session that was given up, the future only waits for the order to be accepted.
///
/// After an error the agent keeps retrying, unless the session is
/// [certain](lockmesh_protocol::rpc::Unavailable::certainly_not_done) to remain because too many are
/// being ended.
#[derive(Debug)]
pub struct EndSession {
    /// The session.
    pub session: SessionId,
    /// The reason why it ends.
    pub reason: EndReason,
}

/// Reads from the state. A blocking read shares one upstream request with all identical ones.
#[derive(Clone, Debug)]
pub struct Read {
    /// The query.
    pub query: Query,
    /// The consistency mode.
    pub consistency: Consistency,
    /// Parameters of a blocking read.
    pub blocking: Option<Blocking>,
}

/// Keeps a session alive; the answer is `None` if there is no session with that id. Renewing again
/// is safe.
#[derive(Debug)]
pub struct Renew(pub SessionId);

/// The quorum as one server sees it.
#[derive(Debug)]
pub enum StatusOf {
    /// The nearest server. Fails at once while this agent is not connected.
    Nearest,
    /// The server that leads when the request is sent; see [`super::Upstream::leader_status`].
    Leader,
}

/// Requests what this agent lacks of the mesh; see [`super::Upstream::sync_mesh`].
#[derive(Debug)]
pub struct SyncMesh {
    /// The data that this agent has.
    pub digest: RosterDigest,
    /// Set to ask the leader instead of the nearest server.
    pub from_leader: bool,
}

/// Reports failed probes of these leases to the nearest server. After an error, the suspicion may
/// have reached the leader.
#[derive(Debug)]
pub struct Suspect(pub Vec<LeaseId>);

/// Sends an event of this host to the nearest server, for hosts that gossip does not reach. After
/// an error, it may still spread.
#[derive(Debug)]
pub struct Spread(pub bytes::Bytes);

/// Returns the autopilot configuration, and the index at which it was set; 0 for the default.
#[derive(Debug)]
pub struct ReadAutopilot;

/// Transfers leadership to another server; `None` for any that is able.
///
/// [`Denied`](lockmesh_protocol::rpc::Unavailable::Denied) carries the reason why the leader stays.
/// After another error the leadership may still be transferred.
#[derive(Debug)]
pub struct TransferLeader(pub Option<ServerId>);

/// Removes a server from the quorum.
///
/// [`Denied`](lockmesh_protocol::rpc::Unavailable::Denied) carries the reason why the quorum keeps
/// the server. After another error it may be removed.
#[derive(Debug)]
pub struct RemoveServer(pub ServerId);

/// Returns a part of a backup; the first part begins it. After an error, the parts read so far are
/// not a backup: begin a new one.
#[derive(Debug)]
pub struct ReadBackup {
    /// The id of the backup; `None` to start one.
    pub backup: Option<u64>,
    /// The number of the part, from 0.
    pub number: u32,
    /// Set if any server may serve it.
    pub stale: bool,
}

/// Reads an answer of any size; its rows arrive in parts of one view.
#[derive(Debug)]
pub struct ReadParts {
    /// The query.
    pub query: Query,
    /// The consistency mode.
    pub consistency: Consistency,
}

/// Reads the next part of a view. After an error the view has ended.
#[derive(Debug)]
pub struct ReadPart {
    /// The view.
    pub view: ViewId,
    /// The position behind the last part.
    pub after: u64,
    /// The consistency mode of the view.
    pub consistency: Consistency,
}

/// Ends a view. It otherwise ends after a minute.
#[derive(Debug)]
pub struct EndView {
    /// The view.
    pub view: ViewId,
    /// The consistency mode of the view.
    pub consistency: Consistency,
}

/// Some rows of an answer.
#[derive(Debug)]
pub struct AnswerPart {
    /// The rows, with the index of the whole answer.
    pub answer: Answer,
    /// The view; `None` if the answer is complete without one.
    pub rest: Option<Rest>,
}

/// The other rows of a view.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// The view.
    pub view: ViewId,
    /// The position of the next part, if any.
    pub next: Option<u64>,
}

impl AnswerPart {
    fn of(part: rpc::AnswerPart) -> Self {
        let rpc::AnswerPart { answer, view, next } = part;
        Self { answer, rest: Some(Rest { view, next }) }
    }
}

/// Implements [`Call`] for each type: its answer, its local call, and its replies.
macro_rules! calls {
    ($($name:ident -> $answer:ty {
        $fields:pat => $call:expr,
        $reply:pat => $unpacked:expr $(, $other:pat => $otherwise:expr)?
    })+) => {$(
        impl Call for $name {
            type Answer = $answer;

            fn local_call(self) -> LocalCall {
                let $fields = self;
                $call
            }

            fn answer(answered: Answered) -> Result<Self::Answer, Answered> {
                match answered {
                    $reply => Ok($unpacked),
                    $($other => Ok($otherwise),)?
                    misfit => Err(misfit),
                }
            }
        }
    )+};
}

calls! {
    Command -> Applied {
        command => LocalCall::Propose(command),
        Answered::Response(Response::Applied(applied)) => applied
    }
    Acquire -> (LogIndex, Applied) {
        Acquire { locks, session, wait } => LocalCall::Acquire { locks, session, wait },
        Answered::Acquired(enqueued_at_index, applied) => (enqueued_at_index, applied)
    }
    EndSession -> Option<Applied> {
        EndSession { session, reason } => LocalCall::EndSession { session, reason },
        Answered::Response(Response::Applied(applied)) => Some(applied),
        Answered::Response(Response::Done) => None
    }
    Read -> Arc<Answer> {
        Read { query, consistency, blocking } => LocalCall::Read { query, consistency, blocking },
        Answered::Response(Response::Answer(answer)) => Arc::new(answer),
        Answered::Shared(answer) => answer
    }
    Renew -> Option<Arc<Session>> {
        Renew(session) => LocalCall::Ask(Request::Renew(session)),
        Answered::Response(Response::Renewed(session)) => session
    }
    StatusOf -> Status {
        server => match server {
            StatusOf::Nearest => LocalCall::AskHome(Request::Status),
            StatusOf::Leader => LocalCall::Ask(Request::Status),
        },
        Answered::Response(Response::Status(status)) => status
    }
    SyncMesh -> MeshNews {
        SyncMesh { digest, from_leader } => match from_leader {
            false => LocalCall::AskHome(Request::SyncMesh(digest)),
            true => LocalCall::Ask(Request::SyncMesh(digest)),
        },
        Answered::Response(Response::Mesh(news)) => *news
    }
    Suspect -> () {
        Suspect(leases) => LocalCall::AskHome(Request::Suspect(leases)),
        Answered::Response(Response::Done) => ()
    }
    Spread -> () {
        Spread(item) => LocalCall::AskHome(Request::Spread(item)),
        Answered::Response(Response::Done) => ()
    }
    ReadAutopilot -> (Autopilot, LogIndex) {
        ReadAutopilot => LocalCall::Ask(Request::Autopilot),
        Answered::Response(Response::Autopilot(autopilot, index)) => (autopilot, index)
    }
    NodeLeaseQuery -> NodeLeases {
        query => LocalCall::Ask(Request::NodeLeases(query)),
        Answered::Response(Response::NodeLeases(leases)) => leases
    }
    TransferLeader -> () {
        TransferLeader(to) => LocalCall::Ask(Request::TransferLeader(to)),
        Answered::Response(_) => ()
    }
    RemoveServer -> () {
        RemoveServer(server) => LocalCall::Ask(Request::RemoveServer(server)),
        Answered::Response(_) => ()
    }
    ReadBackup -> BackupPart {
        ReadBackup { backup, number, stale } => {
            LocalCall::Ask(Request::BackupPart { backup, number, stale })
        },
        Answered::Response(Response::BackupPart(part)) => part
    }
    ReadParts -> AnswerPart {
        ReadParts { query, consistency } => LocalCall::Ask(Request::ReadParts { query, consistency }),
        Answered::Response(Response::AnswerPart(part)) => AnswerPart::of(*part),
        // From a server that knows no parts.
        Answered::Response(Response::Answer(answer)) => AnswerPart { answer, rest: None }
    }
    ReadPart -> AnswerPart {
        ReadPart { view, after, consistency } => {
            LocalCall::Ask(Request::ReadPart { view, after, consistency })
        },
        Answered::Response(Response::AnswerPart(part)) => AnswerPart::of(*part)
    }
    EndView -> () {
        EndView { view, consistency } => LocalCall::Ask(Request::EndView(view, consistency)),
        Answered::Response(Response::Done) => ()
    }
}
