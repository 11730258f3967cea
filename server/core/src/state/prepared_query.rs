//! Prepared queries: written, deleted with their session, and found by id, name or prefix.
//!
//! A name is unique without regard to case, and is no other query's id: a query is looked up by
//! either.

use super::State;
use super::catalog::Replaced;
use super::error::QueryError;
use super::rows::{put, take_out};
use super::step::{Step, reply_or_refusal};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{NewQuery, QueryCommand};
use lockmesh_protocol::id::{LogIndex, QueryId, SessionId};
use lockmesh_protocol::prepared_query::{
    PreparedQuery, QUERIES_MAX, QUERY_BYTES_MAX, QuerySpec, TEMPLATE_ERROR_MAX,
};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// The prepared queries. No derived set is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PreparedQueries {
    pub(super) rows: BTreeMap<QueryId, Arc<PreparedQuery>>,
    /// The queries with a name, by its folded form.
    pub(super) by_name: BTreeMap<String, QueryId>,
    /// The templates, by the folded form of their prefix, which may be empty.
    pub(super) templates: BTreeMap<String, QueryId>,
    /// The queries that end with each session.
    pub(super) by_session: BTreeMap<SessionId, BTreeSet<QueryId>>,
    pub(super) replaced: Replaced,
}

impl PreparedQueries {
    pub(super) fn rows(&self) -> impl Iterator<Item = Change> + '_ {
        self.rows.iter().map(|(id, row)| Change::PreparedQuery(*id, Some(row.clone())))
    }

    pub(super) fn load(&mut self, id: QueryId, query: Option<Arc<PreparedQuery>>) {
        if let Some(before) = self.rows.get(&id).cloned() {
            self.replaced.add_bytes(before.spec.bytes());
            let name = QuerySpec::folded(&before.spec.name);
            for names in [&mut self.by_name, &mut self.templates] {
                if names.get(&name) == Some(&id) {
                    names.remove(&name);
                }
            }
            if let Some(session) = before.spec.session {
                take_out(&mut self.by_session, &session, &id);
            }
        }
        if let Some(query) = &query {
            let name = QuerySpec::folded(&query.spec.name);
            if query.spec.is_template() {
                self.templates.insert(name.clone(), id);
            }
            if !name.is_empty() {
                self.by_name.insert(name, id);
            }
            if let Some(session) = query.spec.session {
                self.by_session.entry(session).or_default().insert(id);
            }
        }
        put(&mut self.rows, id, query);
    }

    /// The query for a text: with this id, with this name, or else the template with the longest
    /// prefix of it.
    fn resolve(&self, text: &str) -> Option<&Arc<PreparedQuery>> {
        let by_id = QueryId::parse(text).and_then(|id| self.rows.get(&id));
        let name = QuerySpec::folded(text);
        let by_name = || self.by_name.get(&name).or_else(|| self.longest_prefix(&name));
        by_id.or_else(|| self.rows.get(by_name()?))
    }

    /// The template with the longest prefix of a folded name.
    fn longest_prefix(&self, name: &str) -> Option<&QueryId> {
        let mut rest = name;
        loop {
            let up_to_it = (Bound::Unbounded, Bound::Included(rest));
            let (prefix, id) = self.templates.range::<str, _>(up_to_it).next_back()?;
            if rest.starts_with(prefix.as_str()) {
                return Some(id);
            }
            // Every shorter prefix of the name is also one of what both begin with.
            let common = rest.char_indices().zip(prefix.chars()).find(|((_, one), other)| one != other);
            rest = common.map_or("", |((at, _), _)| &rest[..at]);
        }
    }
}

pub(super) fn write_query(step: &mut Step<'_>, command: &QueryCommand) -> Reply {
    let outcome = match command {
        QueryCommand::Create(id, new) => create(step, *id, new),
        QueryCommand::Update(id, new) => update(step, *id, new),
        QueryCommand::Delete(id) => delete(step, *id),
    };
    reply_or_refusal(outcome.map(|()| Reply::Done))
}

fn create(step: &mut Step<'_>, id: QueryId, new: &NewQuery) -> Result<(), Refusal> {
    let queries = &step.state.prepared_queries;
    if queries.rows.contains_key(&id) {
        return Err(QueryError::IdInUse(id).into());
    }
    may_be_written(step, id, new)?;
    if step.state.prepared_queries.rows.len() >= QUERIES_MAX {
        return Err(QueryError::Full.into());
    }
    set(step, id, &new.spec, step.index);
    Ok(())
}

fn update(step: &mut Step<'_>, id: QueryId, new: &NewQuery) -> Result<(), Refusal> {
    let before = step.state.prepared_queries.rows.get(&id);
    let created = before.ok_or(QueryError::Unknown(id))?.create_index;
    may_be_written(step, id, new)?;
    set(step, id, &new.spec, created);
    Ok(())
}

fn delete(step: &mut Step<'_>, id: QueryId) -> Result<(), Refusal> {
    if !step.state.prepared_queries.rows.contains_key(&id) {
        return Err(QueryError::Unknown(id).into());
    }
    remove(step, id);
    Ok(())
}

/// Deletes the queries of a session that has ended.
pub(super) fn delete_queries_of(step: &mut Step<'_>, session: SessionId) {
    let queries = step.state.prepared_queries.by_session.get(&session).cloned();
    queries.into_iter().flatten().for_each(|id| remove(step, id));
}

fn remove(step: &mut Step<'_>, id: QueryId) {
    step.set(Change::PreparedQuery(id, None));
    step.touch(Table::PreparedQueries);
}

fn set(step: &mut Step<'_>, id: QueryId, spec: &QuerySpec, create_index: LogIndex) {
    let query = PreparedQuery { id, spec: spec.clone(), create_index, modify_index: step.index };
    step.set(Change::PreparedQuery(id, Some(Arc::new(query))));
    step.touch(Table::PreparedQueries);
}

/// Checks a description in Consul's order: its name, its session, its template.
fn may_be_written(step: &Step<'_>, id: QueryId, new: &NewQuery) -> Result<(), Refusal> {
    let (queries, spec) = (&step.state.prepared_queries, &new.spec);
    let is_other = |known: Option<&QueryId>| known.is_some_and(|known| *known != id);
    let name = QuerySpec::folded(&spec.name);
    if name.is_empty() {
        if spec.is_template() && is_other(queries.templates.get(&name)) {
            return Err(QueryError::SecondCatchAll.into());
        }
    } else if is_other(queries.by_name.get(&name)) {
        return Err(QueryError::NameInUse(spec.name.clone()).into());
    } else if QueryId::parse(&spec.name).is_some_and(|id| queries.rows.contains_key(&id)) {
        return Err(QueryError::NameIsId(spec.name.clone()).into());
    }
    if let Some(session) = spec.session.filter(|session| step.state.session(*session).is_none()) {
        return Err(Refusal::InvalidSession(session));
    }
    if let Some(reason) = &new.template_error {
        // An agent quotes texts of the query, which have no limit before the check below.
        let reason = reason.chars().take(TEMPLATE_ERROR_MAX).collect();
        return Err(QueryError::Template(reason).into());
    }
    // The agent has checked it; a row is limited here too.
    if spec.bytes() > QUERY_BYTES_MAX {
        return Err(QueryError::Large(spec.bytes()).into());
    }
    Ok(())
}

impl State {
    pub(super) fn prepared_query(&self, id: QueryId) -> Option<&Arc<PreparedQuery>> {
        self.prepared_queries.rows.get(&id)
    }

    pub(super) fn resolved_query(&self, text: &str) -> Option<&Arc<PreparedQuery>> {
        self.prepared_queries.resolve(text)
    }
}
