//! The rights that queries need, and the rows that their callers may see.

use super::super::State;
use super::command::{query_name, refused_operations};
use lockmesh_protocol::acl::record::ANONYMOUS;
use lockmesh_protocol::acl::{Access, Caller, NoAccess, Resource, Rights, Role, Token, Who};
use lockmesh_protocol::command::{KvVerb, TxnKv, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex, NodeName};
use lockmesh_protocol::query::{LinkNames, LockInfo, Query, Rows};
use lockmesh_protocol::record::{Check, Loss, Service};
use lockmesh_protocol::reply::{TxnError, TxnResult};
use std::sync::Arc;

/// Checks a query of a caller with these rights.
///
/// # Errors
/// It is not permitted. A query for a list is: rows that the caller may not see are left out.
pub fn check_query(rights: &Rights, query: &Query) -> Result<(), NoAccess> {
    let read_key = |key: &Key| rights.check(Resource::Key, Access::Read, key.as_str());
    match query {
        Query::Entry(key) | Query::HeldEntry { key, .. } => read_key(key),
        Query::Grants(keys) => keys.iter().try_for_each(read_key),
        Query::Entries(prefix) | Query::Keys { prefix, .. } if rights.key_list_policy => {
            rights.check(Resource::Key, Access::List, prefix.as_str())
        }
        Query::GossipKey => rights.check(Resource::Keyring, Access::Read, ""),
        Query::OperatorHosts | Query::Deadlocks => rights.check(Resource::Operator, Access::Read, ""),
        query if query.is_of_acl_tables() => rights.check(Resource::Acl, Access::Read, ""),
        _ => Ok(()),
    }
}

/// Answers a query about the access control lists.
pub(in crate::state) fn query_acl(state: &State, query: &Query) -> Rows {
    let acl = &state.acl;
    match query {
        Query::Tokens(None) => {
            Rows::Tokens(acl.tokens.values().map(|token| with_names(state, token)).collect())
        }
        Query::Tokens(Some(accessor)) => {
            Rows::Tokens(acl.token(accessor).map(|token| with_names(state, token)).into_iter().collect())
        }
        Query::Policies(None) => Rows::Policies(acl.policies.values().cloned().collect()),
        Query::Policies(Some(named)) => Rows::Policies(acl.policy(named).cloned().into_iter().collect()),
        Query::Roles(None) => {
            Rows::Roles(acl.roles.values().map(|role| role_with_names(state, role)).collect())
        }
        Query::Roles(Some(named)) => {
            Rows::Roles(acl.role(named).map(|role| role_with_names(state, role)).into_iter().collect())
        }
        Query::AuthMethods(None) => Rows::AuthMethods(acl.bindings.methods.values().cloned().collect()),
        Query::AuthMethods(Some(name)) => {
            let method = acl.bindings.methods.get(&name.to_ascii_lowercase());
            Rows::AuthMethods(method.cloned().into_iter().collect())
        }
        Query::BindingRules(None) => Rows::BindingRules(acl.bindings.rules.values().cloned().collect()),
        Query::BindingRules(Some(id)) => {
            let rule = acl.bindings.rules.get(&id.to_ascii_lowercase());
            Rows::BindingRules(rule.cloned().into_iter().collect())
        }
        // The caller is known to the server's frontend only: see `own_rows`.
        Query::Rights => Rows::Rights(None),
        Query::OwnToken => Rows::Tokens(Vec::new()),
        _ => Rows::AclSettings((*acl.settings).clone()),
    }
}

/// Answers a query about the caller itself; `None` for any other query.
pub fn own_rows(state: &State, caller: &Caller, rights: Option<&Rights>, query: &Query) -> Option<Rows> {
    match query {
        Query::Rights => Some(Rows::Rights(rights.map(|rights| Arc::new(rights.clone())))),
        Query::OwnToken => {
            let token = match caller {
                Caller::Token(hash) => state.acl.token_of(hash),
                Caller::Anonymous => state.acl.token(ANONYMOUS),
                // A user that no rule binds has the agent's default token.
                Caller::Peer(peer) if !matches!(rights, Some(Rights { who: Who::Peer { .. }, .. })) => {
                    match peer.otherwise {
                        Some(hash) => state.acl.token_of(&hash),
                        None => state.acl.token(ANONYMOUS),
                    }
                }
                Caller::Agent | Caller::Peer(_) => None,
            };
            Some(Rows::Tokens(token.map(|token| with_names(state, token)).into_iter().collect()))
        }
        _ => None,
    }
}

fn with_names(state: &State, token: &Arc<Token>) -> (Arc<Token>, LinkNames) {
    (token.clone(), link_names(state, &token.links.policies, &token.links.roles))
}

fn role_with_names(state: &State, role: &Arc<Role>) -> (Arc<Role>, LinkNames) {
    (role.clone(), link_names(state, &role.links.policies, &[]))
}

fn link_names(state: &State, policies: &[String], roles: &[String]) -> LinkNames {
    let policies = policies.iter().map(|id| state.acl.policies.get(id).map(|row| row.name.clone()));
    let roles = roles.iter().map(|id| state.acl.roles.get(id).map(|row| row.name.clone()));
    LinkNames {
        policies: policies.map(Option::unwrap_or_default).collect(),
        roles: roles.map(Option::unwrap_or_default).collect(),
    }
}

/// Answers a transaction without writes for a caller with these rights. A read without the
/// right has no result, whether its key exists or not.
pub fn read_txn_as(
    state: &State,
    rights: &Rights,
    ops: &[TxnOp],
) -> (Result<Vec<TxnResult>, Vec<TxnError>>, bool) {
    let errors = refused_operations(state, rights, ops);
    if !errors.is_empty() {
        return (Err(errors), false);
    }
    let hidden = |op: &TxnOp| match op {
        TxnOp::Kv(kv) if kv.verb == KvVerb::Get && !may_read_key(rights, &kv.key) => {
            TxnOp::Kv(TxnKv { verb: KvVerb::GetOrEmpty, ..kv.clone() })
        }
        op => op.clone(),
    };
    let ops: Vec<TxnOp> = ops.iter().map(hidden).collect();
    let mut results = match state.read_txn(&ops) {
        Ok(results) => results,
        Err(errors) => return (Err(errors), false),
    };
    let count = results.len();
    results.retain(|result| shows_result(rights, result));
    let is_filtered = results.len() < count;
    (Ok(results), is_filtered)
}

/// Returns `true` if a caller may read a key.
pub(crate) fn may_read_key(rights: &Rights, key: &Key) -> bool {
    rights.permit(Resource::Key, Access::Read, key.as_str())
}

fn may_read_node(rights: &Rights, node: &NodeName) -> bool {
    rights.permit(Resource::Node, Access::Read, node.as_str())
}

fn may_read_sessions(state: &State, rights: &Rights, node: &NodeName) -> bool {
    rights.permit(Resource::Session, Access::Read, state.registered_name(node).as_str())
}

fn may_read_service(rights: &Rights, service: &Service) -> bool {
    may_read_node(rights, &service.node) && rights.permit(Resource::Service, Access::Read, &service.name)
}

fn may_read_check(rights: &Rights, check: &Check) -> bool {
    let of_service = || rights.permit(Resource::Service, Access::Read, &check.service_name);
    may_read_node(rights, &check.node) && (check.service_name.is_empty() || of_service())
}

/// Returns `true` if a caller may see a result of a transaction.
pub(in crate::state) fn shows_result(rights: &Rights, result: &TxnResult) -> bool {
    match result {
        TxnResult::Kv(entry) => may_read_key(rights, &entry.key),
        TxnResult::Node(node) => may_read_node(rights, &node.name),
        TxnResult::Service(service) => may_read_service(rights, service),
        TxnResult::Check(check) => may_read_check(rights, check),
    }
}

/// Returns the rows that a caller may see, and `true` if some are left out.
pub fn visible(state: &State, rights: &Rights, rows: Rows) -> (Rows, bool) {
    let before = rows.len();
    let may_read_sessions = |node: &NodeName| may_read_sessions(state, rights, node);
    let rows = match rows {
        Rows::Entries(rows) => Rows::Entries(kept(rows, |entry| may_read_key(rights, &entry.key))),
        Rows::Sessions(rows) => Rows::Sessions(kept(rows, |row| may_read_sessions(&row.spec.node))),
        Rows::Nodes(rows) => Rows::Nodes(kept(rows, |node| may_read_node(rights, &node.name))),
        Rows::Node(Some((node, _))) if !may_read_node(rights, &node.name) => return (Rows::Node(None), true),
        Rows::Node(Some((node, services))) => {
            let count = services.len();
            let services = kept(services, |service| may_read_service(rights, service));
            let is_filtered = services.len() < count;
            return (Rows::Node(Some((node, services))), is_filtered);
        }
        Rows::Checks(rows) => Rows::Checks(kept(rows, |check| may_read_check(rights, check))),
        Rows::Services(rows) => {
            Rows::Services(kept(rows, |(name, _)| rights.permit(Resource::Service, Access::Read, name)))
        }
        Rows::Instances(rows) => Rows::Instances(kept(rows, |row| may_read_service(rights, &row.service))),
        Rows::Locks(rows) => Rows::Locks(
            kept(rows, |lock| may_read_key(rights, &lock.key))
                .into_iter()
                .map(|row| shown_lock(row, may_read_sessions))
                .collect(),
        ),
        Rows::Losses(rows) => Rows::Losses(
            kept(rows, |loss| may_read_sessions(&loss.node))
                .into_iter()
                .map(|loss| shown_loss(rights, loss))
                .collect(),
        ),
        Rows::Agents(rows) => Rows::Agents(kept(rows, |agent| may_read_node(rights, &agent.node))),
        Rows::Coordinates(rows) => Rows::Coordinates(kept(rows, |(node, _)| may_read_node(rights, node))),
        Rows::PreparedQueries(rows) => {
            Rows::PreparedQueries(kept(rows, |query| match query_name(&query.spec) {
                Some(name) => rights.permit(Resource::Query, Access::Read, name),
                None => rights.permit(Resource::Acl, Access::Write, ""),
            }))
        }
        Rows::Waits(rows) => Rows::Waits(kept(rows, |wait| {
            let session = &wait.session.spec.node;
            wait.locks.iter().all(|lock| may_read_key(rights, &lock.key)) && may_read_sessions(session)
        })),
        Rows::Tokens(rows) if !rights.permit(Resource::Acl, Access::Write, "") => {
            let hidden = |(token, names): (Arc<Token>, LinkNames)| {
                (Arc::new(Token { secret: String::new(), ..Arc::unwrap_or_clone(token) }), names)
            };
            Rows::Tokens(rows.into_iter().map(hidden).collect())
        }
        other => other,
    };
    let is_filtered = rows.len() < before;
    (rows, is_filtered)
}

fn kept<T>(rows: Vec<T>, may_see: impl Fn(&T) -> bool) -> Vec<T> {
    rows.into_iter().filter(|row| may_see(row)).collect()
}

/// A lock without its holder, if the caller may not see the holder's sessions.
fn shown_lock(lock: LockInfo, may_read_sessions: impl Fn(&NodeName) -> bool) -> LockInfo {
    let session = lock.session.filter(|session| may_read_sessions(&session.spec.node));
    LockInfo { session, ..lock }
}

/// A loss with the keys that the caller may read. Their number stays.
fn shown_loss(rights: &Rights, loss: Arc<Loss>) -> Arc<Loss> {
    if loss.keys.iter().all(|(key, _)| may_read_key(rights, key)) {
        return loss;
    }
    let mut loss = Arc::unwrap_or_clone(loss);
    loss.keys.retain(|(key, _)| may_read_key(rights, key));
    Arc::new(loss)
}

/// The index of a query about the access control lists, from the tables that it depends on.
pub(in crate::state) fn acl_index(state: &State, query: &Query) -> LogIndex {
    use lockmesh_protocol::change::Table::{AclSettings, AuthMethods, Policies, Roles, Tokens};
    let newest =
        |tables: &[_]| tables.iter().map(|table| state.table_index(*table)).max().unwrap_or_default();
    match query {
        Query::Tokens(_) => newest(&[Tokens]),
        Query::Policies(_) => newest(&[Policies]),
        Query::Roles(_) => newest(&[Roles]),
        Query::AclSettings => newest(&[AclSettings]),
        Query::AuthMethods(_) | Query::BindingRules(_) => newest(&[AuthMethods]),
        _ => newest(&[Tokens, Policies, Roles, AclSettings, AuthMethods]),
    }
}
