//! Parses queries of the script language, and formats their answers.

use super::commands::txn_op;
use super::words::Words;
use super::{acl, show};
use crate::names::session;
use lockmesh_core::State;
use lockmesh_protocol::deadlock::{AwaitedLock, LockWait};
use lockmesh_protocol::id::{Key, LogIndex, NodeName, QueryId, WallTime};
use lockmesh_protocol::query::{LockInfo, Query, Rows};
use lockmesh_protocol::record::CheckStatus;

/// Answers a query line; `None` if its first word is not a query.
pub(crate) fn answer(state: &State, line: &str) -> Result<Option<Vec<String>>, String> {
    if let Some(rest) = line.strip_prefix("news ") {
        return news(state, rest).map(Some);
    }
    if let Some(rest) = line.strip_prefix("by ") {
        return answer_as(state, rest).map(Some);
    }
    let Some(query) = query(line)? else { return Ok(None) };
    let (index, rows) = state.query(&query);
    let mut lines = vec![format!("index {index}")];
    lines.extend(show_rows(&rows).into_iter().map(|line| format!("  {line}")));
    Ok(Some(lines))
}

/// The answer to a caller: `by t1 list a/`.
fn answer_as(state: &State, line: &str) -> Result<Vec<String>, String> {
    let (name, question) = line.split_once(' ').ok_or("the caller is missing")?;
    let query = query(question)?.ok_or_else(|| format!("what is {question:?}?"))?;
    let answer = acl::answer(state, (&acl::caller(name), "n1"), WallTime(1_000), &query);
    Ok(match answer {
        Err(refused) => vec![format!("refused: {refused}")],
        Ok((rows, is_filtered)) => {
            let first = if is_filtered { "filtered" } else { "whole" };
            let rows = show_rows(&rows).into_iter().map(|line| format!("  {line}"));
            std::iter::once(first.into()).chain(rows).collect()
        }
    })
}

/// The answer to a client that knows everything up to an index: `news 7 list web/`.
fn news(state: &State, line: &str) -> Result<Vec<String>, String> {
    let (known, question) = line.split_once(' ').ok_or("the known index is missing")?;
    let known = LogIndex(known.parse().map_err(|_| "the known index is not a number")?);
    let query = query(question)?.ok_or_else(|| format!("what is {question:?}?"))?;
    Ok(vec![match state.news(&query, known) {
        Some(index) => format!("news at index {index}"),
        None => "it waits".into(),
    }])
}

fn query(line: &str) -> Result<Option<Query>, String> {
    if let Some(ops) = line.strip_prefix("read-txn ") {
        let ops: Result<Vec<_>, String> = ops.split(';').map(|op| txn_op(op.trim())).collect();
        return Ok(Some(Query::Txn(ops?)));
    }
    let mut words = Words::new(line);
    let verb = words.word()?;
    let separator = words.option("separator").unwrap_or_default();
    let query = match verb.as_str() {
        "get" => Query::Entry(Key::from(words.word()?)),
        "list" => Query::Entries(Key::from(words.word_or_empty())),
        "keys" => Query::Keys { prefix: Key::from(words.word_or_empty()), separator },
        "info" => Query::Session(session(&words.word()?)),
        "sessions" => Query::Sessions,
        "node-sessions" => Query::NodeSessions(NodeName::from(words.word()?)),
        "nodes" => Query::Nodes,
        "node" => Query::Node(NodeName::from(words.word()?)),
        "node-checks" => Query::NodeChecks(NodeName::from(words.word()?)),
        "service-checks" => Query::ServiceChecks(words.word()?),
        "checks" => Query::ChecksInState(match words.word_or_empty().as_str() {
            "" => None,
            status => Some(CheckStatus::parse(status).ok_or("an unknown status")?),
        }),
        "services" => Query::Services,
        "instances" => Query::ServiceInstances(words.word()?),
        "locks" => Query::Locks(Key::from(words.word_or_empty())),
        "grants" => Query::Grants(words.word()?.split(',').map(Key::from).collect()),
        "bindings" => Query::Bindings(NodeName::from(words.word()?)),
        "waits" => Query::Waits(Key::from(words.word_or_empty())),
        "found-deadlocks" => Query::Deadlocks,
        "list-operator-hosts" => Query::OperatorHosts,
        "list-tokens" => Query::Tokens(None),
        "list-policies" => Query::Policies(None),
        "list-roles" => Query::Roles(None),
        "list-auth-methods" => Query::AuthMethods(None),
        "list-binding-rules" => Query::BindingRules(None),
        "show-acl" => Query::AclSettings,
        "rights" => Query::Rights,
        "own-token" => Query::OwnToken,
        "losses" => Query::Losses,
        "agents" => Query::Agents,
        "gossip-key" => Query::GossipKey,
        "coordinates" => Query::Coordinates,
        "queries" => Query::PreparedQueries,
        "query-info" => Query::PreparedQuery(query_id(&words.word()?)),
        "resolve" => {
            let text = words.word_or_empty();
            let id = text.strip_prefix('?').map(|id| query_id(id).to_string().to_uppercase());
            Query::ResolvePreparedQuery(id.unwrap_or(text))
        }
        "place" => Query::QueuePosition {
            key: Key::from(words.word()?),
            session: session(&words.word()?),
            queue_position: LogIndex(words.number()?),
            enqueued_at_index: LogIndex(words.number()?),
        },
        "held" => Query::HeldEntry { key: Key::from(words.word()?), session: session(&words.word()?) },
        "outcome" => Query::RequestOutcome {
            keys: words.word()?.split(',').map(Key::from).collect(),
            session: session(&words.word()?),
            queue_position: LogIndex(words.number()?),
            enqueued_at_index: LogIndex(words.number()?),
        },
        _ => return Ok(None),
    };
    words.end()?;
    Ok(Some(query))
}

/// The id of the prepared query with this name, of at most 16 letters.
pub(super) fn query_id(word: &str) -> QueryId {
    QueryId::from_random(*session(word).as_bytes())
}

fn show_rows(rows: &Rows) -> Vec<String> {
    match rows {
        Rows::Entries(rows) => rows.iter().map(|row| show::entry(row)).collect(),
        Rows::Keys(names) => names.clone(),
        Rows::Sessions(rows) => rows.iter().map(|row| show::session(row)).collect(),
        Rows::Nodes(rows) => rows.iter().map(|row| show::node(row)).collect(),
        Rows::Node(None) => Vec::new(),
        Rows::Node(Some((node, services))) => {
            let services = services.iter().map(|service| show::service(service));
            [show::node(node)].into_iter().chain(services).collect()
        }
        Rows::Checks(rows) => rows.iter().map(|row| show::check(row)).collect(),
        Rows::Services(rows) => {
            rows.iter().map(|(name, tags)| format!("{name} [{}]", tags.join(" "))).collect()
        }
        Rows::Instances(rows) => rows
            .iter()
            .flat_map(|row| {
                let checks = row.checks.iter().map(|check| format!("  {}", show::check(check)));
                [show::service(&row.service)].into_iter().chain(checks).collect::<Vec<_>>()
            })
            .collect(),
        Rows::Txn(Ok(results)) => results.iter().map(show::txn_result).collect(),
        Rows::Txn(Err(errors)) => show::txn_errors(errors),
        Rows::Locks(locks) => locks.iter().map(show_lock).collect(),
        Rows::Grants(rows) => {
            let held = |is_held| if is_held { "held" } else { "free" };
            rows.iter().map(|row| format!("fence {}, {}", row.fence, held(row.is_held))).collect()
        }
        Rows::Bindings(rows) => {
            rows.iter().map(|(id, row)| format!("{id} with process {}", row.pid)).collect()
        }
        Rows::Waits(rows) => rows.iter().flat_map(show_wait).collect(),
        Rows::Deadlocks(policy, rows) => {
            let found = rows.iter().map(|(row, exists)| {
                format!("{}, {}", show::deadlock(row), if *exists { "exists" } else { "is over" })
            });
            std::iter::once(format!("policy {policy:?}")).chain(found).collect()
        }
        Rows::AclSettings(_)
        | Rows::Rights(_)
        | Rows::Tokens(_)
        | Rows::Policies(_)
        | Rows::Roles(_)
        | Rows::AuthMethods(_)
        | Rows::BindingRules(_) => acl::rows(rows),
        Rows::OperatorHosts(rows) => rows.iter().map(ToString::to_string).collect(),
        Rows::Losses(rows) => rows.iter().map(|row| show::loss(row)).collect(),
        Rows::QueuePosition(reply) => show::reply(reply),
        Rows::Coordinates(rows) => rows.iter().map(|(node, row)| show::coordinate(node, row)).collect(),
        Rows::PreparedQueries(rows) => rows.iter().map(|row| show::query(row)).collect(),
        Rows::GossipKey(number) => vec![format!("gossip key {number}")],
        Rows::Agents(rows) => rows
            .iter()
            .map(|row| format!("agent {}, node {}, life {}", row.number, row.node, row.generation))
            .collect(),
    }
}

fn show_wait(wait: &LockWait) -> Vec<String> {
    let circle = if wait.is_deadlocked { ", in a deadlock" } else { "" };
    let whole = format!("{} at {}{circle}", wait.session.spec.id, wait.queue_position);
    let of_lock = |lock: &AwaitedLock| {
        let blockers: Vec<String> = lock.blocked_by.iter().map(ToString::to_string).collect();
        let AwaitedLock { key, mode, ahead, .. } = lock;
        format!("  {key}, {mode:?}, {ahead} ahead, blocked by [{}]", blockers.join(" "))
    };
    std::iter::once(whole).chain(wait.locks.iter().map(of_lock)).collect()
}

fn show_lock(lock: &LockInfo) -> String {
    let holder = match &lock.session {
        Some(session) => format!("held by {}", session.spec.id),
        None => "free".into(),
    };
    let delay = match &lock.delay {
        Some(delay) => format!(", closed for {}", show::delay(delay)),
        None => String::new(),
    };
    let waiters = match lock.waiters {
        0 => String::new(),
        count => format!(", {count} wait"),
    };
    format!(
        "lock {} is {holder}{delay}{waiters}, lock index {}, fence {}",
        lock.key, lock.lock_index, lock.fence
    )
}
