//! The rights that commands need.

use super::{is_enforced, read};
use crate::state::State;
use crate::state::check::check_id;
use crate::state::rights::names_of;
use crate::state::step::Step;
use lockmesh_protocol::acl::{Access, AclCommand, AclMode, Caller, NoAccess, Resource, Rights};
use lockmesh_protocol::command::{
    Command, Deregistration, KvCommand, KvVerb, QueryCommand, Registration, TxnOp,
};
use lockmesh_protocol::id::{Key, NodeName, ServiceId, SessionId, WallTime};
use lockmesh_protocol::prepared_query::QuerySpec;
use lockmesh_protocol::record::Check;
use lockmesh_protocol::reply::{Refusal, Reply, TxnError};

/// Returns the refusal of a command to whose caller it is not permitted.
pub(in crate::state) fn refusal(step: &Step<'_>, command: &Command) -> Option<Reply> {
    let is_of_lists =
        matches!(command, Command::Acl(command) if !matches!(command, AclCommand::Bootstrap(..)));
    match step.state.acl.settings.mode {
        AclMode::Off => return None,
        // What anybody could write into the lists now would count later.
        AclMode::Log if !is_of_lists => return None,
        AclMode::Log | AclMode::Enforce => {}
    }
    // Commands of the leader itself have no origin, and registrations no right to check.
    let agent = step.state.members.agents.get(&step.origin?)?;
    judge(step.state, &step.caller, &agent.node, step.at, command)
}

/// Removes the results of a transaction that its caller may not read.
pub(in crate::state) fn without_hidden_results(step: &Step<'_>, reply: Reply) -> Reply {
    let Reply::Txn(results) = reply else { return reply };
    let agent = step.origin.and_then(|agent| step.state.members.agents.get(&agent));
    let Some(agent) = agent.filter(|_| is_enforced(step.state)) else { return Reply::Txn(results) };
    let rights = step.state.acl.rights(&step.caller, &agent.node, step.at);
    let may_see = |result: &_| rights.as_ref().is_ok_and(|rights| read::shows_result(rights, result));
    Reply::Txn(results.into_iter().filter(may_see).collect())
}

/// Returns the reply to a command that is refused to its caller, in whichever mode.
pub fn judge(
    state: &State,
    caller: &Caller,
    node: &NodeName,
    now: WallTime,
    command: &Command,
) -> Option<Reply> {
    let refused = |why: NoAccess| Reply::Refused(Refusal::NoAccess(why));
    // Without a token yet.
    if matches!(command, Command::Acl(AclCommand::Bootstrap(..))) {
        return None;
    }
    let rights = match state.acl.rights(caller, node, now) {
        Ok(rights) => rights,
        Err(why) => return Some(refused(why)),
    };
    if *caller == Caller::Agent && is_of_agent(state, node, command) {
        return None;
    }
    match command {
        Command::Restricted(restricted) => {
            judge(state, caller, node, now, &Command::from(restricted.clone()))
        }
        Command::Txn(ops) => {
            let errors = refused_operations(state, &rights, ops);
            (!errors.is_empty()).then_some(Reply::TxnFailed(errors))
        }
        command => check(state, &rights, command).err().map(refused),
    }
}

/// Returns `true` for commands that an agent sends for its own node and for the sessions on it.
fn is_of_agent(state: &State, own: &NodeName, command: &Command) -> bool {
    let is_own = |node: &NodeName| node.folded() == own.folded();
    let has_session = |id: &SessionId| state.session(*id).is_none_or(|session| is_own(&session.spec.node));
    match command {
        Command::RegisterAgent(_) | Command::AnnounceRestart(_) | Command::EndRestart { .. } => true,
        Command::LeaveNode(leave) => leave.lease.is_some(),
        Command::Register(registration) => names_of(state, &registration.node).iter().all(is_own),
        Command::Deregister(deregistration) => is_own(&deregistration.node),
        Command::UpdateCoordinate { node, .. } => is_own(node),
        Command::DestroySession(id)
        | Command::GiveUpSession { session: id, .. }
        | Command::EndOfProcess(id)
        // What a client no longer waits for. It writes no value.
        | Command::Kv(KvCommand::Leave { session: id, .. } | KvCommand::StopWaiting { session: id, .. }) => {
            has_session(id)
        }
        Command::Txn(ops) => ops.iter().all(|op| match op {
            TxnOp::Kv(_) => false,
            TxnOp::Node { node, .. } => names_of(state, node).iter().all(is_own),
            TxnOp::Service { service, .. } => is_own(&service.node),
            TxnOp::Check { check, .. } => is_own(&check.node),
        }),
        _ => false,
    }
}

fn check(state: &State, rights: &Rights, command: &Command) -> Result<(), NoAccess> {
    let write = |resource, name: &str| rights.check(resource, Access::Write, name);
    match command {
        Command::Kv(command) => check_kv(state, rights, command),
        Command::AcquireLocks { locks, session, .. } => {
            locks.iter().try_for_each(|lock| write(Resource::Key, lock.key.as_str()))?;
            check_owner(state, rights, *session)
        }
        Command::CreateSession(spec) | Command::CreateBoundSession(spec, _) => {
            write(Resource::Session, state.registered_name(&spec.node).as_str())
        }
        Command::DestroySession(id)
        | Command::GiveUpSession { session: id, .. }
        | Command::EndOfProcess(id) => check_session(state, rights, *id),
        Command::Register(registration) => check_registration(state, rights, registration),
        Command::Deregister(deregistration) => check_deregistration(state, rights, deregistration),
        Command::UpdateCoordinate { node, .. } => check_node(state, rights, node),
        Command::PreparedQuery(command) => check_query_command(state, rights, command),
        Command::Restore(_) | Command::Acl(_) => write(Resource::Acl, ""),
        Command::RotateGossipKey { .. } => write(Resource::Keyring, ""),
        // Commands of agents for themselves, of servers, and operations in a transaction do not
        // come here for a client.
        _ => write(Resource::Operator, ""),
    }
}

fn check_kv(state: &State, rights: &Rights, command: &KvCommand) -> Result<(), NoAccess> {
    let write = |key: &Key| rights.check(Resource::Key, Access::Write, key.as_str());
    match command {
        KvCommand::Set(new) | KvCommand::Cas(new, _) => write(&new.key),
        KvCommand::Acquire(new, session)
        | KvCommand::Enqueue { new, session, .. }
        | KvCommand::Release(new, session) => {
            write(&new.key)?;
            check_owner(state, rights, *session)
        }
        KvCommand::Leave { key, .. }
        | KvCommand::StopWaiting { key, .. }
        | KvCommand::Delete(key)
        | KvCommand::DeleteCas(key, _) => write(key),
        KvCommand::DeleteTree(prefix) => rights.check_write_below(Resource::Key, prefix.as_str()),
    }
}

/// Checks a session that takes or releases a lock, if that needs a right to it.
fn check_owner(state: &State, rights: &Rights, session: SessionId) -> Result<(), NoAccess> {
    if state.acl.settings.session_ownership { check_session(state, rights, session) } else { Ok(()) }
}

/// Checks the right to a session. An unknown one is looked up first, as in Consul.
fn check_session(state: &State, rights: &Rights, session: SessionId) -> Result<(), NoAccess> {
    let Some(session) = state.session(session) else { return Ok(()) };
    rights.check(Resource::Session, Access::Write, state.registered_name(&session.spec.node).as_str())
}

fn check_node(state: &State, rights: &Rights, node: &NodeName) -> Result<(), NoAccess> {
    rights.check(Resource::Node, Access::Write, state.registered_name(node).as_str())
}

fn check_registration(state: &State, rights: &Rights, registration: &Registration) -> Result<(), NoAccess> {
    let Registration { node, skip_node_update, service, checks } = registration;
    let is_known = || state.catalog.nodes.contains_key(&node.name.folded());
    if !*skip_node_update || !is_known() {
        names_of(state, node).iter().try_for_each(|name| check_node(state, rights, name))?;
    }
    if let Some(service) = service {
        check_service(state, rights, &node.name, &service.id)?;
        rights.check(Resource::Service, Access::Write, &service.name)?;
    }
    checks.iter().try_for_each(|check| match (&check.service_id, service) {
        (Some(id), Some(service)) if id.folded() == service.id.folded() => {
            check_stored_check(state, rights, &node.name, check)
        }
        _ => check_check(state, rights, &node.name, check),
    })
}

/// Checks the right to a service that exists; a change of its name needs the right to the old one.
fn check_service(state: &State, rights: &Rights, node: &NodeName, id: &ServiceId) -> Result<(), NoAccess> {
    match state.catalog.service(node, id) {
        Some(service) => rights.check(Resource::Service, Access::Write, &service.name),
        None => Ok(()),
    }
}

/// Checks the right to a check: that to its service, or else to its node. One that exists under the
/// same id also needs the right to its present owner.
fn check_check(state: &State, rights: &Rights, node: &NodeName, check: &Check) -> Result<(), NoAccess> {
    check_stored_check(state, rights, node, check)?;
    check_owner_of_check(state, rights, node, check)
}

fn check_stored_check(
    state: &State,
    rights: &Rights,
    node: &NodeName,
    check: &Check,
) -> Result<(), NoAccess> {
    match state.catalog.check_of(node, &check_id(check)) {
        Some(stored) => check_owner_of_check(state, rights, node, stored),
        None => Ok(()),
    }
}

fn check_owner_of_check(
    state: &State,
    rights: &Rights,
    node: &NodeName,
    check: &Check,
) -> Result<(), NoAccess> {
    let service = check.service_id.as_ref().and_then(|id| state.catalog.service(node, id));
    match service {
        Some(service) => rights.check(Resource::Service, Access::Write, &service.name),
        None => check_node(state, rights, node),
    }
}

fn check_deregistration(
    state: &State,
    rights: &Rights,
    deregistration: &Deregistration,
) -> Result<(), NoAccess> {
    let Deregistration { node, service, check } = deregistration;
    let of_node = check_node(state, rights, node);
    if of_node.is_ok() {
        return of_node;
    }
    let of_check = check.as_ref().and_then(|id| state.catalog.check_of(node, id));
    let of_check = of_check.and_then(|check| check.service_id.clone());
    let service = service.clone().or(of_check).and_then(|id| state.catalog.service(node, &id));
    match service {
        Some(service) => rights.check(Resource::Service, Access::Write, &service.name),
        None => of_node,
    }
}

fn check_query_command(state: &State, rights: &Rights, command: &QueryCommand) -> Result<(), NoAccess> {
    let check = |spec: &QuerySpec| match query_name(spec) {
        Some(name) => rights.check(Resource::Query, Access::Write, name),
        None => Ok(()),
    };
    let (id, new) = match command {
        QueryCommand::Create(_, new) => return check(&new.spec),
        QueryCommand::Update(id, new) => (id, Some(new)),
        QueryCommand::Delete(id) => (id, None),
    };
    state.prepared_query(*id).map_or(Ok(()), |query| check(&query.spec))?;
    new.map_or(Ok(()), |new| check(&new.spec))
}

/// The name of a prepared query for rules; `None` for one that only needs its id.
pub(super) fn query_name(spec: &QuerySpec) -> Option<&str> {
    (!spec.name.is_empty() || spec.is_template()).then_some(spec.name.as_str())
}

/// The refusals of the operations of a transaction.
pub(super) fn refused_operations(state: &State, rights: &Rights, ops: &[TxnOp]) -> Vec<TxnError> {
    let judged = (0u32..).zip(ops).filter_map(|(op_index, op)| {
        let why = check_operation(state, rights, op).err()?;
        Some(TxnError { op_index, what: why.to_string() })
    });
    judged.collect()
}

/// Checks an operation of a transaction.
fn check_operation(state: &State, rights: &Rights, op: &TxnOp) -> Result<(), NoAccess> {
    match op {
        TxnOp::Kv(op) => {
            let key = op.key.as_str();
            match op.verb {
                // Filtered.
                KvVerb::Get | KvVerb::GetOrEmpty | KvVerb::GetTree | KvVerb::Unknown(_) => Ok(()),
                KvVerb::CheckSession | KvVerb::CheckIndex => rights.check(Resource::Key, Access::Read, key),
                KvVerb::DeleteTree => rights.check_write_below(Resource::Key, key),
                KvVerb::Lock | KvVerb::Unlock => {
                    rights.check(Resource::Key, Access::Write, key)?;
                    let session = op.session.as_deref().and_then(SessionId::parse);
                    session.map_or(Ok(()), |session| check_owner(state, rights, session))
                }
                KvVerb::Set | KvVerb::Cas | KvVerb::Delete | KvVerb::DeleteCas | KvVerb::CheckNotExists => {
                    rights.check(Resource::Key, Access::Write, key)
                }
            }
        }
        op if !op.is_write() => Ok(()),
        TxnOp::Node { node, .. } => {
            names_of(state, node).iter().try_for_each(|name| check_node(state, rights, name))
        }
        TxnOp::Service { service, .. } => {
            check_service(state, rights, &service.node, &service.id)?;
            rights.check(Resource::Service, Access::Write, &service.name)
        }
        TxnOp::Check { check, .. } => check_check(state, rights, &check.node, check),
    }
}
