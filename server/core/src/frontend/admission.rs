//! Admission and backpressure: who may ask what, and when there is too much. What is refused here
//! was certainly not done.

use super::Frontend;
use super::event::DiskHealth;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::RequestId;
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::peer::{Peer, Role};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::rpc::{Request, Unavailable};

/// The most operations of a transaction; an agent that keeps its own limit never meets this one.
pub(super) const MAX_TXN_OPERATIONS: usize = 128;

/// Why this peer may not ask this at all. A certificate speaks for one node, so it registers no
/// other; and a command that could be repeated unnoticed is never taken.
pub fn denied(peer: &Peer, request: &Request) -> Option<String> {
    let (role, wanted) = match request {
        // The one command without a request id: an agent has none before it is registered, and
        // registering again only begins a new generation.
        Request::Propose(None, Command::RegisterAgent(registration)) => (None, &registration.node.name),
        Request::Propose(None, _) => return Some("a command needs a request id: register first".into()),
        Request::AddServer(server) => (Some(Role::Server), &server.node),
        Request::Introduce(introduction) => (Some(Role::Server), &introduction.server.node),
        Request::Announce(server) => (Some(Role::Server), &server.node),
        Request::SnapshotPart { .. } => (Some(Role::Server), &peer.node),
        _ => return None,
    };
    if role.is_some_and(|role| role != peer.role) {
        return Some("its certificate is not a server's".into());
    }
    (peer.node.folded() != wanted.folded())
        .then(|| format!("its certificate names the node {:?}, so it cannot speak for {wanted:?}", peer.node))
}

/// Why a read is refused before it is asked of the state.
pub(super) fn read_refusal(query: &Query) -> Option<Unavailable> {
    match query {
        Query::Txn(operations) if operations.len() > MAX_TXN_OPERATIONS => Some(too_many_operations()),
        _ => None,
    }
}

impl Frontend {
    /// Why a proposal does not even reach the core.
    pub(super) fn proposal_refusal(
        &self,
        peer: &Peer,
        request: Option<&RequestId>,
        command: &Command,
    ) -> Option<Unavailable> {
        // An agent that could end sessions or lock-delays would need no lock.
        if is_of_the_leader(command) {
            return Some(Unavailable::Denied("only the leader itself may decide this".into()));
        }
        // Somebody else's lease is nobody's to end: a node is made to leave by its name.
        if let (Some(lease), Some(id)) = (lease_of(command), request)
            && lease.agent != id.agent
        {
            return Some(Unavailable::Denied("this lease is another agent's".into()));
        }
        // In the log it would keep every server busy at once.
        if matches!(command, Command::Txn(operations) if operations.len() > MAX_TXN_OPERATIONS) {
            return Some(too_many_operations());
        }
        // Request ids count for one agent: whoever used another one's could take its answers or
        // have it refused.
        if let Some(agent) = request.and_then(|id| self.core.state().agent(id.agent))
            && agent.node.folded() != peer.node.folded()
        {
            let why =
                format!("agent {} speaks for node {}: register as another one", agent.number, agent.node);
            return Some(Unavailable::Denied(why));
        }
        // Last, since the others are refused for good and this one is worth a retry.
        self.disk_refusal()
    }

    /// Why a renewal does not even reach the core: a lease is renewed by its own node alone.
    pub(super) fn renewal_refusal(&self, peer: &Peer, renewal: &Renewal) -> Option<Unavailable> {
        let agent = self.core.state().agent(renewal.lease.agent)?;
        (agent.node.folded() != peer.node.folded()).then(|| {
            let why = format!(
                "its certificate names the node {:?}, so it cannot renew the lease of {:?}",
                peer.node, agent.node
            );
            Unavailable::Denied(why)
        })
    }

    /// A leader whose disk refuses can have nothing decided: where others could lead, they are
    /// asked instead. Where none could, the reason is told.
    fn disk_refusal(&self) -> Option<Unavailable> {
        if let Some(why) = self.no_majority_writes.as_ref().filter(|_| self.core.is_serving()) {
            return Some(Unavailable::Disk(why.clone()));
        }
        match &self.disk {
            // The agent goes on asking until another server leads, which this one sees to with its
            // next tick.
            DiskHealth::Failing(_) if self.core.is_serving() && self.has_other_voters() => {
                Some(Unavailable::NotLeader { leader: None })
            }
            // Alone it is of no use to look elsewhere: the reason is told instead.
            DiskHealth::Failing(reason) if self.core.is_serving() => Some(Unavailable::Disk(reason.clone())),
            _ => None,
        }
    }
}

/// Commands that come from the leader's own timers and from the way servers come and go, never from
/// a client.
fn is_of_the_leader(command: &Command) -> bool {
    matches!(
        command,
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
            | Command::EndRestart { .. }
    )
}

/// The lease that its own agent alone may say this of.
fn lease_of(command: &Command) -> Option<LeaseId> {
    match command {
        Command::AnnounceRestart(lease) => Some(*lease),
        Command::LeaveNode(leave) => leave.lease,
        _ => None,
    }
}

fn too_many_operations() -> Unavailable {
    Unavailable::Denied(format!("a transaction has at most {MAX_TXN_OPERATIONS} operations"))
}
