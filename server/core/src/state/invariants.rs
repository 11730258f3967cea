//! The invariants of the state after every command: a sentence for each, with the code that
//! verifies it.
//!
//! The check reads the whole state, so it is never on a command's path. Tests and simulations run
//! it after every apply, and a restore runs it before it accepts a backup.

use super::State;
use super::catalog::{Catalog, CheckKey, ServiceKey};
use super::cell::CELL_AGENTS_MAX;
use super::invalidation::{LOSS_KEYS_KEPT, LOSSES_KEPT, Losses, MAX_LOCK_DELAY, category};
use super::keys::Keys;
use super::lock::is_available;
use super::member::{Members, is_living};
use super::node::SERF_HEALTH;
use super::prepared_query::PreparedQueries;
use super::queue::{MAX_WAIT, WAITERS_MAX};
use super::replies::REPLIES_KEPT;
use super::service_index::ServiceNames;
use super::session::Sessions;
use lockmesh_protocol::change::Table;
use lockmesh_protocol::id::{Fence, SessionId};
use lockmesh_protocol::prepared_query::{QUERIES_MAX, QUERY_BYTES_MAX, QuerySpec};
use lockmesh_protocol::record::{
    Agent, Check, CheckStatus, Entry, LockMode, MemberStatus, RequestedLock, Session,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An invariant as a sentence and a predicate.
struct Invariant {
    sentence: &'static str,
    holds: fn(&State) -> bool,
}

const INVARIANTS: [Invariant; 26] = [
    Invariant { sentence: "every entry is kept under its own key", holds: entries_have_their_keys },
    Invariant {
        sentence: "no entry is newer than its table, none is older than itself",
        holds: entry_indexes,
    },
    Invariant { sentence: "every holder of a lock is a session that lives", holds: holders_live },
    Invariant {
        sentence: "no fencing token was granted twice, and none is above the counter",
        holds: fences_are_unique,
    },
    Invariant { sentence: "a key closed by a delay has no holder", holds: delayed_keys_are_free },
    Invariant {
        sentence: "a delay for exclusive requests is of a key without another delay or an exclusive holder",
        holds: shared_delays_follow_shared_holds,
    },
    Invariant {
        sentence: "an exclusive hold is never beside another, and an entry names its oldest shared holder",
        holds: holds_do_not_conflict,
    },
    Invariant { sentence: "no lock-delay is zero or longer than allowed", holds: delays_are_bounded },
    Invariant {
        sentence: "every waiter of a lock is a session that lives, and has a use for it",
        holds: waiters_live,
    },
    Invariant {
        sentence: "no waiting request could be granted without passing another",
        holds: no_waiter_is_passed_over,
    },
    Invariant {
        sentence: "no queue is longer than allowed, and no session is in one twice or before its request",
        holds: queues_are_bounded,
    },
    Invariant {
        sentence: "every session's node is registered, and every check it names is there and not critical, but for a failed member's node health",
        holds: sessions_hang_on_something,
    },
    Invariant { sentence: "a session never changes", holds: sessions_never_change },
    Invariant {
        sentence: "every binding to a process is of a session that lives on its node",
        holds: bindings_have_sessions,
    },
    Invariant {
        sentence: "every service and check is on a registered node, and a service's check has its service",
        holds: catalog_is_whole,
    },
    Invariant { sentence: "no two nodes share a name or an id", holds: nodes_are_distinct },
    Invariant { sentence: "every coordinate is of a registered node", holds: coordinates_have_nodes },
    Invariant {
        sentence: "no tombstone is newer than its table, nor was a reaped one",
        holds: tombstone_indexes,
    },
    Invariant {
        sentence: "replies are kept for registered agents only, not below the lowest wanted, not too many",
        holds: replies_are_bounded,
    },
    Invariant {
        sentence: "no lease began before the host before its own was replaced",
        holds: leases_follow_former_hosts,
    },
    Invariant {
        sentence: "no member that failed or left has an announced restart",
        holds: restarts_are_of_the_living,
    },
    Invariant { sentence: "no cell of the mesh has more agents than allowed", holds: cells_are_bounded },
    Invariant {
        sentence: "no prepared query is newer than its table, and its session lives",
        holds: queries_hang_on_sessions,
    },
    Invariant {
        sentence: "prepared queries are within their limits, and no two have a name in common",
        holds: queries_are_distinct,
    },
    Invariant { sentence: "the loss history is bounded and in order", holds: losses_are_bounded },
    Invariant { sentence: "the derived indexes match the rows", holds: derived_follows },
];

/// The sentence of an invariant that a state violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant violated: {0}")]
pub struct Violation(pub &'static str);

impl State {
    /// Checks every invariant and returns the first violation.
    ///
    /// # Errors
    /// The state is unchanged, but can no longer be trusted.
    pub fn check(&self) -> Result<(), Violation> {
        let broken = INVARIANTS.iter().find(|invariant| !(invariant.holds)(self));
        broken.map_or(Ok(()), |invariant| Err(Violation(invariant.sentence)))
    }
}

/// All entries, ascending.
fn entries(state: &State) -> impl Iterator<Item = &Arc<Entry>> {
    state.keys.entries.iter().map(|(_, entry)| entry)
}

fn entries_have_their_keys(state: &State) -> bool {
    state.keys.entries.iter().all(|(key, entry)| *key == entry.key)
}

fn entry_indexes(state: &State) -> bool {
    let newest = state.table_index(Table::Entries);
    let is_sound = |entry: &Entry| {
        entry.create_index.0 > 0 && entry.create_index <= entry.modify_index && entry.modify_index <= newest
    };
    entries(state).all(|entry| is_sound(entry))
}

fn holders_live(state: &State) -> bool {
    state.keys.held.keys().all(|session| state.sessions.rows.contains_key(session))
}

fn holds_do_not_conflict(state: &State) -> bool {
    state.keys.shared.iter().all(|(key, holders)| {
        let oldest = holders.iter().min_by_key(|(_, hold)| hold.age());
        let named = state.keys.entries.get(key.as_str()).and_then(|entry| entry.lock.session);
        named.is_some() && named == oldest.map(|(session, _)| *session)
    })
}

fn shared_delays_follow_shared_holds(state: &State) -> bool {
    let keys = &state.keys;
    keys.shared_delays.keys().all(|key| {
        let is_held_alone = keys.holders.contains_key(key) && !keys.shared.contains_key(key);
        !keys.delays.contains_key(key) && !is_held_alone
    })
}

fn fences_are_unique(state: &State) -> bool {
    let mut seen = BTreeSet::new();
    entries(state).map(|entry| &entry.lock).all(|lock| match lock.index {
        0 => lock.session.is_none() && lock.fence == Fence(0) && lock.granted_for.is_none(),
        _ => lock.fence.0 > 0 && lock.fence <= state.fence && seen.insert(lock.fence),
    })
}

fn delayed_keys_are_free(state: &State) -> bool {
    let entries = state.keys.delays.keys().filter_map(|key| state.keys.entries.get(key.as_str()));
    entries.into_iter().all(|entry| entry.lock.session.is_none())
}

fn delays_are_bounded(state: &State) -> bool {
    let newest = state.table_index(Table::Sessions);
    let is_sound = |delay: &super::LockDelay| {
        !delay.duration.is_zero() && delay.duration <= MAX_LOCK_DELAY && delay.started_at_index <= newest
    };
    state.delays().all(|(_, delay)| is_sound(delay))
}

fn waiters_live(state: &State) -> bool {
    state.keys.waiters().all(|(key, _, request)| {
        // One that waits for several locks may hold some of them.
        let waits_for_nothing = state.keys.mode_held(key, request.session).is_some_and(|mode| {
            request.locks.len() == 1 && (mode == LockMode::Exclusive || request.mode_of(key) == Some(mode))
        });
        state.sessions.rows.contains_key(&request.session) && !waits_for_nothing
    })
}

fn no_waiter_is_passed_over(state: &State) -> bool {
    let keys = &state.keys;
    keys.requests.iter().all(|(position, request)| {
        let mut locks = request.locks.iter();
        locks.any(|lock| is_available(keys, &lock.key, lock.mode, request.session, *position).is_err())
    })
}

fn queues_are_bounded(state: &State) -> bool {
    state.keys.queues.values().all(|queue| {
        let sessions: BTreeSet<_> = queue.values().map(|waiter| &waiter.session).collect();
        (1..=WAITERS_MAX).contains(&queue.len())
            && sessions.len() == queue.len()
            && queue.iter().all(|(queue_position, request)| {
                *queue_position <= request.enqueued_at_index
                    && request.wait <= MAX_WAIT
                    && request.locks.is_sorted_by(|one, next| one.key < next.key)
            })
    })
}

fn sessions_hang_on_something(state: &State) -> bool {
    let is_sound = |session: &Session| {
        let folded = session.spec.node.folded();
        let mut checks =
            session.spec.all_checks().map(|check| state.catalog.check_of(&session.spec.node, check));
        // Its sessions end with a later verdict than the one that made the check critical. That may
        // include `default` windows: the catalog may have reported a failed node as passing until
        // reconciliation.
        let is_failed =
            || state.members.of_node(&folded).is_some_and(|member| member.status == MemberStatus::Failed);
        let lives_with = |check: &Check| {
            check.status != CheckStatus::Critical || (check.id.as_str() == SERF_HEALTH && is_failed())
        };
        state.catalog.nodes.contains_key(&folded)
            && checks.all(|check| check.is_some_and(|check| lives_with(check)))
    };
    state
        .sessions
        .rows
        .iter()
        .all(|(id, session)| *id == session.spec.id && *id != SessionId::NIL && is_sound(session))
}

fn sessions_never_change(state: &State) -> bool {
    let newest = state.table_index(Table::Sessions);
    state.sessions.rows.values().all(|session| session.create_index <= newest)
}

fn bindings_have_sessions(state: &State) -> bool {
    state.sessions.bindings.iter().all(|(node, bindings)| {
        let is_of_node = |id| state.sessions.rows.get(id).is_some_and(|it| it.spec.node.folded() == *node);
        !bindings.is_empty() && bindings.keys().all(is_of_node)
    })
}

fn catalog_is_whole(state: &State) -> bool {
    let services = state.catalog.services.iter().all(|(key, service)| {
        *key == ServiceKey::new(&service.node, &service.id)
            && state.catalog.nodes.contains_key(&key.node)
            && service.modify_index <= state.table_index(Table::Services)
    });
    let checks = state.catalog.checks.iter().all(|(key, check)| {
        *key == CheckKey::new(&check.node, &check.id)
            && state.catalog.nodes.contains_key(&key.node)
            && check.service_id.as_ref().is_none_or(|id| state.catalog.service(&check.node, id).is_some())
            && check.modify_index <= state.table_index(Table::Checks)
    });
    services && checks
}

fn nodes_are_distinct(state: &State) -> bool {
    let mut ids = BTreeSet::new();
    let newest = state.table_index(Table::Nodes);
    let nodes = state.catalog.nodes.iter().all(|(name, node)| {
        *name == node.name.folded()
            && (node.id.is_empty() || ids.insert(&node.id))
            && state.catalog.node_indexes.get(name).is_some_and(|index| node.modify_index <= *index)
    });
    nodes
        && state.catalog.node_indexes.len() == state.catalog.nodes.len()
        && state.catalog.node_indexes.values().all(|index| *index <= newest)
}

fn coordinates_have_nodes(state: &State) -> bool {
    let catalog = &state.catalog;
    (catalog.coordinates.is_empty() || state.table_index(Table::Coordinates).0 > 0)
        && catalog.coordinates.keys().all(|name| catalog.nodes.contains_key(name))
}

fn tombstone_indexes(state: &State) -> bool {
    let newest = state.table_index(Table::Tombstones);
    state.keys.forgotten_tombstones <= newest
        && state.keys.tombstones.iter().all(|(_, index)| *index <= newest)
}

fn replies_are_bounded(state: &State) -> bool {
    let agents = state.members.agents.iter().all(|(number, agent)| {
        *number == agent.number && agent.generation.0 > 0 && *number <= state.members.last_agent
    });
    let replies = state.replies.iter().all(|(agent, replies)| {
        let first = replies.kept.first_key_value().map_or(u64::MAX, |(sequence, _)| *sequence);
        state.members.agents.contains_key(agent)
            && replies.lowest <= first
            && replies.kept.len() <= REPLIES_KEPT
    });
    agents && replies
}

fn leases_follow_former_hosts(state: &State) -> bool {
    let is_sound = |agent: &Agent| agent.former_sessions_until.is_none_or(|until| until <= agent.lease_began);
    state.members.agents.values().all(|agent| is_sound(agent))
}

fn restarts_are_of_the_living(state: &State) -> bool {
    state.members.agents.values().all(|agent| agent.restart_announced.is_none() || is_living(agent))
}

fn cells_are_bounded(state: &State) -> bool {
    state.members.cells.largest() <= CELL_AGENTS_MAX
}

fn losses_are_bounded(state: &State) -> bool {
    let newest = state.table_index(Table::Sessions);
    let losses = state.losses.rows.values();
    state.losses.rows.len() as u64 <= LOSSES_KEPT
        && losses.clone().all(|loss| loss.keys.len() <= LOSS_KEYS_KEPT && loss.index <= newest)
        && losses.is_sorted_by_key(|loss| loss.index)
}

fn queries_hang_on_sessions(state: &State) -> bool {
    let newest = state.table_index(Table::PreparedQueries);
    let lives = |session: Option<SessionId>| session.is_none_or(|id| state.sessions.rows.contains_key(&id));
    state.prepared_queries.rows.iter().all(|(id, query)| {
        *id == query.id
            && query.create_index <= query.modify_index
            && query.modify_index <= newest
            && lives(query.spec.session)
    })
}

fn queries_are_distinct(state: &State) -> bool {
    let queries = &state.prepared_queries.rows;
    let mut names = BTreeSet::new();
    queries.len() <= QUERIES_MAX
        && queries.values().all(|query| {
            let name = QuerySpec::folded(&query.spec.name);
            let may_repeat = name.is_empty() && !query.spec.is_template();
            query.spec.bytes() <= QUERY_BYTES_MAX && (may_repeat || names.insert(name))
        })
}

fn derived_follows(state: &State) -> bool {
    keys_follow(&state.keys)
        && sessions_follow(&state.sessions)
        && losses_follow(&state.losses)
        && queries_follow(&state.prepared_queries)
        && nodes_follow(&state.catalog)
        && members_follow(&state.members)
}

fn keys_follow(keys: &Keys) -> bool {
    let mut expected = Keys {
        held: BTreeMap::new(),
        holders: BTreeMap::new(),
        waiting: BTreeMap::new(),
        queues: BTreeMap::new(),
        upgrades: BTreeMap::new(),
        ..keys.clone()
    };
    for (key, entry) in keys.entries.iter() {
        if let Some(session) = entry.lock.session {
            expected.held.entry(session).or_default().insert(key.clone());
            expected.holders.insert(key.clone(), session);
        }
    }
    for (key, session) in keys.shared.iter().flat_map(|(key, of)| of.keys().map(move |id| (key, id))) {
        expected.held.entry(*session).or_default().insert(key.clone());
    }
    for (queue_position, request) in &keys.requests {
        for RequestedLock { key, mode, .. } in &request.locks {
            expected.waiting.entry(request.session).or_default().insert(key.clone(), *queue_position);
            expected.queues.entry(key.clone()).or_default().insert(*queue_position, request.clone());
            if *mode == LockMode::Exclusive && keys.is_shared_holder(key, request.session) {
                expected.upgrades.insert(key.clone(), request.session);
            }
        }
    }
    expected == *keys
}

fn sessions_follow(sessions: &Sessions) -> bool {
    let (rows, bindings) = (sessions.rows.clone(), sessions.bindings.clone());
    let mut expected = Sessions { rows, bindings, ..Sessions::default() };
    for (id, session) in &sessions.rows {
        expected.by_node.entry(session.spec.node.folded()).or_default().insert(*id);
        for check in session.spec.all_checks() {
            let key = CheckKey::new(&session.spec.node, check);
            expected.by_check.entry(key).or_default().insert(*id);
        }
    }
    expected == *sessions
}

fn losses_follow(losses: &Losses) -> bool {
    let mut expected = Losses { rows: losses.rows.clone(), ..Losses::default() };
    for (number, loss) in &losses.rows {
        expected.by_category.entry(category(loss)).or_default().insert(*number);
    }
    expected == *losses
}

fn queries_follow(queries: &PreparedQueries) -> bool {
    let mut expected = PreparedQueries { rows: queries.rows.clone(), ..PreparedQueries::default() };
    for (id, query) in &queries.rows {
        let name = QuerySpec::folded(&query.spec.name);
        if query.spec.is_template() {
            expected.templates.insert(name.clone(), *id);
        }
        if !name.is_empty() {
            expected.by_name.insert(name, *id);
        }
        if let Some(session) = query.spec.session {
            expected.by_session.entry(session).or_default().insert(*id);
        }
    }
    expected == *queries
}

fn nodes_follow(catalog: &Catalog) -> bool {
    let identified = catalog.nodes.iter().filter(|(_, node)| !node.id.is_empty());
    let expected: BTreeMap<_, _> = identified.map(|(name, node)| (node.id.clone(), name.clone())).collect();
    expected == catalog.node_ids && ServiceNames::of(catalog) == catalog.names
}

fn members_follow(members: &Members) -> bool {
    let mut expected =
        Members { agents: members.agents.clone(), last_agent: members.last_agent, ..Members::default() };
    for (number, agent) in &members.agents {
        expected.by_node_id.insert(agent.node_id.clone(), *number);
        expected.by_node.entry(agent.node.folded()).or_default().insert((agent.lease_began, *number));
        *expected.counts.of(agent.status) += 1;
        expected.cells.insert(agent);
    }
    expected == *members
}
