//! Admission control and backpressure: permissions per request, and limits. A request that is
//! rejected here was certainly not executed.

use super::actions::AnswerKind;
use super::stalls::{WriteHealth, has_other_voters};
use crate::core::Core;
use lockmesh_protocol::acl::AclCommand;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, NodeName, RequestId};
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::peer::{Peer, Role};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::record::{MAX_REQUESTED_LOCKS, RequestedLock};
use lockmesh_protocol::reply;
use lockmesh_protocol::rpc::{Request, Unavailable};

/// The maximum number of operations in a transaction; an agent that enforces its own limit never
/// exceeds it.
pub(super) const MAX_TXN_OPERATIONS: usize = 128;

/// The maximum number of operator hosts.
const MAX_OPERATOR_HOSTS: usize = 256;

/// The maximum number of keys whose grants are read at once.
const MAX_GRANTS: usize = 64;

/// Returns the reason why this peer may not send this request. A certificate represents one node,
/// so it registers no other; a command that could be repeated unnoticed is never accepted.
pub fn denied(peer: &Peer, request: &Request) -> Option<String> {
    let (role, wanted) = match request {
        // The only command without a request id: an agent has none before it is registered, and a
        // repeated registration only begins a new generation.
        Request::Propose(None, Command::RegisterAgent(registration)) => (None, &registration.node.name),
        Request::Propose(None, _) => return Some("a command needs a request id: register first".into()),
        Request::AddServer(server) => (Some(Role::Server), &server.node),
        Request::Introduce(introduction) => (Some(Role::Server), &introduction.server.node),
        Request::Announce(server) => (Some(Role::Server), &server.node),
        Request::SnapshotPart { .. } => (Some(Role::Server), &peer.node),
        // Named, so that a new request is not open to every node by default.
        Request::Propose(Some(_), _)
        | Request::Read { .. }
        | Request::ReadParts { .. }
        | Request::ReadPart { .. }
        | Request::EndView(..)
        | Request::BackupPart { .. }
        | Request::Renew(_)
        | Request::RenewLease(_)
        | Request::RenewGivingUp(_)
        | Request::Status
        | Request::Autopilot
        | Request::TransferLeader(_)
        | Request::RemoveServer(_)
        | Request::Invite(_)
        | Request::Challenge(_)
        | Request::AskNode(_)
        | Request::SyncMesh(_)
        | Request::Suspect(_)
        | Request::NodeLeases(_)
        | Request::Spread(_)
        | Request::TellMesh(_) => return None,
    };
    if role.is_some_and(|role| role != peer.role) {
        return Some("its certificate is not a server's".into());
    }
    (peer.node.folded() != wanted.folded())
        .then(|| format!("its certificate names the node {:?}, so it cannot speak for {wanted:?}", peer.node))
}

/// Checks that an operator's request, which is no command, comes through the agent of an operator
/// host. The state checks commands.
pub(super) fn check_host(core: &Core, peer: &Peer, request: &Request) -> Result<(), Unavailable> {
    let is_of_operator =
        matches!(request, Request::BackupPart { .. } | Request::TransferLeader(_) | Request::RemoveServer(_));
    if !is_of_operator || peer.role == Role::Server || core.replica().state().is_operator_host(&peer.node) {
        return Ok(());
    }
    Err(Unavailable::Denied(reply::Refusal::NotOperatorHost(peer.node.clone()).to_string()))
}

/// The rejection of a request, and the kind of its reply.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Unavailable, pub(super) AnswerKind);

impl Refusal {
    /// This server does not accept the request, whatever its state.
    pub(super) fn denied(why: &str) -> Self {
        Unavailable::Denied(why.into()).into()
    }
}

impl From<Unavailable> for Refusal {
    fn from(why: Unavailable) -> Self {
        Self(why, AnswerKind::Other)
    }
}

/// Checks a read before it reaches the state.
pub(super) fn check_read(query: &Query) -> Result<(), Unavailable> {
    match query {
        Query::Txn(operations) if operations.len() > MAX_TXN_OPERATIONS => Err(too_many_operations()),
        Query::Grants(keys) if keys.len() > MAX_GRANTS => {
            Err(Unavailable::Denied(format!("the grants of at most {MAX_GRANTS} keys are read at once")))
        }
        Query::RequestOutcome { keys, .. } if keys.is_empty() || keys.len() > MAX_REQUESTED_LOCKS => {
            Err(wrong_locks())
        }
        _ => Ok(()),
    }
}

/// Checks a read in parts before it reaches the state.
pub(super) fn check_parts(query: &Query) -> Result<(), Unavailable> {
    match query {
        Query::Txn(_) | Query::QueuePosition { .. } | Query::RequestOutcome { .. } => {
            Err(Unavailable::Denied("this query has no answer in parts".into()))
        }
        _ => Ok(()),
    }
}

fn are_locks_of_one_request(locks: &[RequestedLock]) -> bool {
    (1..=MAX_REQUESTED_LOCKS).contains(&locks.len())
        && !locks[0].key.as_str().is_empty()
        && locks.is_sorted_by(|one, next| one.key < next.key)
}

fn wrong_locks() -> Unavailable {
    let what =
        format!("a request has 1 to {MAX_REQUESTED_LOCKS} locks, ascending by key, without an empty key");
    Unavailable::Denied(what)
}

/// Checks a proposal before it reaches the core.
pub(super) fn check_proposal(
    core: &Core,
    write_health: &WriteHealth,
    peer: &Peer,
    request: Option<&RequestId>,
    command: &Command,
) -> Result<(), Unavailable> {
    // An agent that could end sessions or lock-delays would not need locks.
    if is_of_the_leader(command) {
        return Err(Unavailable::Denied("only the leader itself may decide this".into()));
    }
    // An agent may not end another agent's lease: a node is made to leave by its name.
    if let (Some(lease), Some(id)) = (lease_of(command), request)
        && lease.agent != id.agent
    {
        return Err(Unavailable::Denied("this lease is another agent's".into()));
    }
    // Only its own agent can see a process.
    if process_host(core, command).is_some_and(|node| node.folded() != peer.node.folded()) {
        return Err(Unavailable::Denied("this session is bound to a process of another node".into()));
    }
    // In the log it would occupy every server at once.
    if command.operations().is_some_and(|operations| operations.len() > MAX_TXN_OPERATIONS) {
        return Err(too_many_operations());
    }
    if matches!(command, Command::ConfigureOperatorHosts(hosts) if hosts.len() > MAX_OPERATOR_HOSTS) {
        return Err(Unavailable::Denied(format!("there are at most {MAX_OPERATOR_HOSTS} operator hosts")));
    }
    if matches!(command, Command::AcquireLocks { locks, .. } if !are_locks_of_one_request(locks)) {
        return Err(wrong_locks());
    }
    // Request ids belong to one agent: a peer that used another agent's could take its replies or
    // get its requests rejected.
    if let Some(agent) = request.and_then(|id| core.replica().state().agent(id.agent))
        && agent.node.folded() != peer.node.folded()
    {
        let why = format!("agent {} speaks for node {}: register as another one", agent.number, agent.node);
        return Err(Unavailable::Denied(why));
    }
    // Last, since the other rejections are final and this one allows a retry.
    if core.replica().is_serving() { write_health.check(has_other_voters(core)) } else { Ok(()) }
}

/// Checks a renewal before it reaches the core: only its own node may renew a lease.
pub(super) fn check_renewal(core: &Core, peer: &Peer, renewal: &Renewal) -> Result<(), Unavailable> {
    match core.replica().state().agent(renewal.lease.agent) {
        Some(agent) if agent.node.folded() != peer.node.folded() => Err(Unavailable::Denied(format!(
            "its certificate names the node {:?}, so it cannot renew the lease of {:?}",
            peer.node, agent.node
        ))),
        _ => Ok(()),
    }
}

/// Returns `true` for commands that come from the leader's own timers and from membership changes,
/// never from a client.
fn is_of_the_leader(command: &Command) -> bool {
    match command {
        Command::ExpireSession { .. }
        | Command::EndLockDelay { .. }
        | Command::EndWait { .. }
        | Command::ReapTombstones { .. }
        | Command::Bootstrap { .. }
        | Command::AdmitServer(_)
        | Command::UpdateServer(_)
        | Command::ForgetServer(_)
        | Command::CorruptionCheck
        | Command::RaiseFormat(_)
        | Command::FailNode(_)
        | Command::EndFormerSessions { .. }
        | Command::Reconcile { .. }
        | Command::ReapMember { .. }
        | Command::Acl(AclCommand::ExpireTokens(_) | AclCommand::Bootstrap(_, Some(_))) => true,
        Command::Kv(_)
        | Command::CreateSession(_)
        | Command::DestroySession(_)
        | Command::GiveUpSession { .. }
        | Command::Txn(_)
        | Command::Register(_)
        | Command::Deregister(_)
        | Command::RegisterAgent(_)
        | Command::Restore(_)
        | Command::ConfigureAutopilot(..)
        | Command::LeaveNode(_)
        | Command::AnnounceRestart(_)
        | Command::EndRestart { .. }
        | Command::RotateGossipKey { .. }
        | Command::UpdateCoordinate { .. }
        | Command::PreparedQuery(_)
        | Command::CreateBoundSession(..)
        | Command::EndOfProcess(_)
        | Command::AcquireLocks { .. }
        | Command::ConfigureDeadlocks(_)
        | Command::Restricted(_)
        | Command::ConfigureOperatorHosts(_)
        | Command::Acl(_) => false,
    }
}

/// Returns the lease of a command that only the lease's own agent may send.
fn lease_of(command: &Command) -> Option<LeaseId> {
    match command {
        Command::AnnounceRestart(lease) => Some(*lease),
        Command::LeaveNode(leave) => leave.lease,
        Command::EndRestart { agent, announced_at: began, .. } => {
            Some(LeaseId { agent: *agent, began: *began })
        }
        _ => None,
    }
}

/// Returns the node of the process that a command is about.
fn process_host<'a>(core: &'a Core, command: &'a Command) -> Option<&'a NodeName> {
    match command {
        Command::CreateBoundSession(session, _) => Some(&session.node),
        Command::EndOfProcess(id) => Some(&core.replica().state().session(*id)?.spec.node),
        _ => None,
    }
}

/// Completes a command that an agent gives without what only the leader knows.
pub(super) fn completed(core: &Core, acl_reset: Option<LogIndex>, command: Command) -> Command {
    let Command::EndRestart { agent, announced_at: began, .. } = command else {
        return match command {
            Command::Acl(AclCommand::Bootstrap(new, None)) => {
                Command::Acl(AclCommand::Bootstrap(new, acl_reset))
            }
            command => command,
        };
    };
    let lease = LeaseId { agent, began };
    // A restart that this process announced itself is not the one it means.
    let before = core.replica().state().agent_of(lease).and_then(|agent| agent.restart_announced);
    let announced_at = before.filter(|at| *at < began).unwrap_or(began);
    let (term, base) = (core.replica().log_position().term, core.replica().state().index_base());
    Command::EndRestart { agent, announced_at, term, base }
}

fn too_many_operations() -> Unavailable {
    Unavailable::Denied(format!("a transaction has at most {MAX_TXN_OPERATIONS} operations"))
}
