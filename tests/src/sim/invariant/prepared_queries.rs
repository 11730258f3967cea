//! A prepared query lives exactly as long as its client was told: it is gone only by a delete of
//! it, or in the log entry that ends its session. No query outlives its session, and no two share a
//! name. A write is done if and only if its name is free and its session lives. An acknowledged
//! write is in the state behind its entry, and a read shows the queries of the state that it was
//! answered from: all, the one with its ID, or the one that its text names. A text names a query by
//! its ID, then by its whole name, then by the longest prefix of a template.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NewQuery, QueryCommand};
use lockmesh_protocol::id::{LogIndex, QueryId, SessionId};
use lockmesh_protocol::prepared_query::{PreparedQuery, QuerySpec};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Queries = BTreeMap<QueryId, Arc<PreparedQuery>>;

/// Sessions and queries, according to the changes.
#[derive(Debug, Default)]
pub(super) struct PreparedQueries {
    sessions: BTreeSet<SessionId>,
    queries: Queries,
    /// The queries behind every entry that changed them.
    past: BTreeMap<LogIndex, Queries>,
}

/// The command of an entry, unless a kept reply answers it.
fn command_of(past: &Past) -> Option<(&QueryCommand, &Reply)> {
    let Some(Command::PreparedQuery(command)) = past.proposal.as_ref().map(|proposal| &proposal.command)
    else {
        return None;
    };
    let applied = past.reply.as_ref().filter(|applied| applied.index == past.index)?;
    Some((command, &applied.reply))
}

impl PreparedQueries {
    fn change(&mut self, change: &Change) {
        match change {
            Change::Session(id, Some(_)) => drop(self.sessions.insert(*id)),
            Change::Session(id, None) => drop(self.sessions.remove(id)),
            Change::PreparedQuery(id, Some(query)) => drop(self.queries.insert(*id, query.clone())),
            Change::PreparedQuery(id, None) => drop(self.queries.remove(id)),
            Change::Cleared => (self.sessions, self.queries) = Default::default(),
            _ => {}
        }
    }

    fn entry(
        &mut self,
        index: LogIndex,
        written: Option<(&QueryCommand, &Reply)>,
        changes: &[Change],
    ) -> Result<(), String> {
        let is_one = |change: &Change| {
            matches!(change, Change::Cleared | Change::Session(..) | Change::PreparedQuery(..))
        };
        if written.is_none() && !changes.iter().any(is_one) {
            return Ok(());
        }
        if let Some((command, reply)) = written {
            self.outcome(command, reply)?;
        }
        let command = written.map(|(command, _)| command);
        if !is_restore(changes) {
            for change in changes {
                self.is_caused(index, command, change, changes)?;
            }
        }
        changes.iter().for_each(|change| self.change(change));
        self.past.insert(index, self.queries.clone());
        self.are_sound()
    }

    /// Checks that a write is done if and only if it may be.
    fn outcome(&self, command: &QueryCommand, reply: &Reply) -> Result<(), String> {
        let may_be_done = match command {
            QueryCommand::Create(id, new) => !self.queries.contains_key(id) && self.may_be_written(id, new),
            QueryCommand::Update(id, new) => self.queries.contains_key(id) && self.may_be_written(id, new),
            QueryCommand::Delete(id) => self.queries.contains_key(id),
        };
        let is_done = match reply {
            Reply::Done => true,
            Reply::Refused(Refusal::InvalidSession(_) | Refusal::PreparedQuery(_)) => false,
            _ => return Ok(()),
        };
        ensure(is_done == may_be_done, || format!("{command:?} was answered {reply:?}"))
    }

    fn may_be_written(&self, id: &QueryId, NewQuery { spec, template_error }: &NewQuery) -> bool {
        let mut others = self.queries.values().filter(|query| query.id != *id);
        template_error.is_none()
            && spec.session.is_none_or(|session| self.sessions.contains(&session))
            && !others.any(|other| share_a_name(&other.spec, spec))
    }

    /// Checks that a query changes by a command for it, or with its session.
    fn is_caused(
        &self,
        index: LogIndex,
        command: Option<&QueryCommand>,
        change: &Change,
        changes: &[Change],
    ) -> Result<(), String> {
        let Change::PreparedQuery(id, query) = change else { return Ok(()) };
        let known = self.queries.get(id);
        let is_caused = match (query, command) {
            (Some(query), Some(QueryCommand::Create(of, new))) => {
                let indexes = (query.create_index, query.modify_index);
                of == id && query.spec == new.spec && indexes == (index, index)
            }
            (Some(query), Some(QueryCommand::Update(of, new))) => {
                let indexes = (Some(query.create_index), query.modify_index);
                of == id
                    && query.spec == new.spec
                    && indexes == (known.map(|known| known.create_index), index)
            }
            (None, Some(QueryCommand::Delete(of))) => of == id,
            (None, None) => {
                let session = known.and_then(|known| known.spec.session);
                session.is_some_and(|session| changes.contains(&Change::Session(session, None)))
            }
            _ => false,
        };
        ensure(is_caused, || format!("{command:?} at {index} changed query {id} to {query:?}"))
    }

    fn are_sound(&self) -> Result<(), String> {
        for query in self.queries.values() {
            let lives = query.spec.session.is_none_or(|session| self.sessions.contains(&session));
            ensure(lives, || format!("query {} outlives its session: {:?}", query.id, query.spec))?;
            let mut others = self.queries.values().filter(|other| other.id > query.id);
            let other = others.find(|other| share_a_name(&other.spec, &query.spec));
            ensure(other.is_none(), || format!("query {} shares its name with {other:?}", query.id))?;
        }
        Ok(())
    }

    /// Checks a response of a server that has applied `applied`.
    fn given(&self, request: &Request, response: &Response, applied: LogIndex) -> Result<(), String> {
        match (request, response) {
            (
                Request::Propose(_, Command::PreparedQuery(command)),
                Response::Applied(Applied { index, reply: Reply::Done }),
            ) => ensure(is_in(command, &self.as_of(*index)), || {
                format!("{command:?} was acknowledged at {index} and is not in the state behind it")
            }),
            // A blocking read that times out is answered before the entries of its turn.
            (
                Request::Read { query, blocking: None, .. },
                Response::Answer(Answer { rows: Rows::PreparedQueries(rows), .. }),
            ) => {
                let expected = selected(query, &self.as_of(applied));
                ensure(*rows == expected, || {
                    format!("{query:?} was answered {rows:?} as of {applied}, instead of {expected:?}")
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the queries behind an index.
    fn as_of(&self, index: LogIndex) -> Queries {
        self.past.range(..=index).next_back().map(|(_, queries)| queries.clone()).unwrap_or_default()
    }
}

/// Returns `true` if the queries are as a command leaves them.
fn is_in(command: &QueryCommand, queries: &Queries) -> bool {
    match command {
        QueryCommand::Create(id, new) | QueryCommand::Update(id, new) => {
            queries.get(id).is_some_and(|query| query.spec == new.spec)
        }
        QueryCommand::Delete(id) => !queries.contains_key(id),
    }
}

/// Returns the queries that a read selects.
fn selected(query: &Query, queries: &Queries) -> Vec<Arc<PreparedQuery>> {
    let one = match query {
        Query::PreparedQueries => return queries.values().cloned().collect(),
        Query::PreparedQuery(id) => queries.get(id),
        Query::ResolvePreparedQuery(text) => resolved(text, queries),
        _ => None,
    };
    one.cloned().into_iter().collect()
}

/// Returns the query that a text names.
fn resolved<'a>(text: &str, queries: &'a Queries) -> Option<&'a Arc<PreparedQuery>> {
    let name_of = |query: &PreparedQuery| query.spec.name.to_lowercase();
    let text_folded = text.to_lowercase();
    let has_name = |query: &&Arc<PreparedQuery>| !query.spec.name.is_empty() && name_of(query) == text_folded;
    let is_prefix =
        |query: &&Arc<PreparedQuery>| query.spec.is_template() && text_folded.starts_with(&name_of(query));
    let by_id = QueryId::parse(text).and_then(|id| queries.get(&id));
    by_id
        .or_else(|| queries.values().find(has_name))
        .or_else(|| queries.values().filter(is_prefix).max_by_key(|query| name_of(query).len()))
}

/// Returns `true` if two queries cannot both exist. Only one template has no name.
fn share_a_name(one: &QuerySpec, other: &QuerySpec) -> bool {
    let may_repeat = one.name.is_empty() && !(one.is_template() && other.is_template());
    one.name.to_lowercase() == other.name.to_lowercase() && !may_repeat
}

impl Invariant for PreparedQueries {
    fn name(&self) -> &'static str {
        "prepared_queries"
    }

    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(past.index, command_of(past), &past.changes),
            Fact::Given { given, applied, .. } => {
                let applied = scene.history.at(*applied).map(|past| past.index).unwrap_or_default();
                self.given(&given.asked.ask.request, &given.response, applied)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::prepared_query::NAME_PREFIX_MATCH;
    use lockmesh_protocol::query::Consistency;
    use std::time::Duration;

    const SESSION: SessionId = SessionId::NIL;

    fn id(number: u8) -> QueryId {
        QueryId::from_random([number; 16])
    }

    fn new(name: &str, session: Option<SessionId>) -> Box<NewQuery> {
        let spec = QuerySpec { name: name.into(), session, ..QuerySpec::default() };
        Box::new(NewQuery { spec, template_error: None })
    }

    /// The row of a query that was created at 1.
    fn row(number: u8, new: &NewQuery, modify_index: u64) -> Change {
        let (spec, create_index) = (new.spec.clone(), LogIndex(1));
        let modify_index = LogIndex(modify_index);
        let query = PreparedQuery { id: id(number), spec, create_index, modify_index };
        Change::PreparedQuery(id(number), Some(Arc::new(query)))
    }

    fn gone(number: u8) -> Change {
        Change::PreparedQuery(id(number), None)
    }

    /// Query 1, bound to the session, and the free query 2.
    fn begun() -> PreparedQueries {
        let mut seen = PreparedQueries { sessions: [SESSION].into(), ..PreparedQueries::default() };
        for (number, new) in [(1, new("Web", Some(SESSION))), (2, new("db", None))] {
            let changes = [row(number, &new, 1)];
            let create = QueryCommand::Create(id(number), new);
            seen.entry(LogIndex(1), Some((&create, &Reply::Done)), &changes).expect("it may be created");
        }
        seen
    }

    #[test]
    fn query_ends_exactly_with_session() {
        let ended = Change::Session(SESSION, None);
        for (changes, is_right) in [
            (vec![ended.clone(), gone(1)], true),
            (vec![ended.clone()], false),
            (vec![gone(1)], false),
            (vec![ended, gone(1), gone(2)], false),
            (vec![row(2, &new("db", None), 5)], false),
            (vec![Change::Cleared], true),
            (vec![Change::Cleared, row(1, &new("Web", Some(SESSION)), 1)], false),
        ] {
            assert_eq!(begun().entry(LogIndex(5), None, &changes).is_ok(), is_right, "{changes:?}");
        }
    }

    #[test]
    fn empty_restore_deletes_all_queries() {
        let mut seen = begun();
        seen.entry(LogIndex(5), None, &[Change::Cleared]).expect("it is a restore");
        assert_eq!((seen.as_of(LogIndex(4)).len(), seen.as_of(LogIndex(5)).len()), (2, 0));
        let refused = Reply::Refused(Refusal::PreparedQuery("no".into()));
        let delete = QueryCommand::Delete(id(2));
        seen.entry(LogIndex(6), Some((&delete, &refused)), &[]).expect("it is no longer there");
    }

    #[test]
    fn write_applied_exactly_when_valid() {
        let refused = Reply::Refused(Refusal::PreparedQuery("no".into()));
        let invalid = Reply::Refused(Refusal::InvalidSession(SESSION));
        let other = SessionId::from_random([1; 16]);
        let free = new("free", None);
        let renamed = || QueryCommand::Update(id(2), new("free", None));
        for (command, reply, changes, is_right) in [
            (renamed(), Reply::Done, vec![row(2, &free, 5)], true),
            (renamed(), Reply::Done, vec![row(2, &free, 4)], false),
            (renamed(), Reply::Done, vec![row(1, &free, 5)], false),
            (renamed(), refused.clone(), vec![], false),
            (QueryCommand::Update(id(2), new("WEB", None)), refused.clone(), vec![], true),
            (
                QueryCommand::Update(id(2), new("WEB", None)),
                Reply::Done,
                vec![row(2, &new("WEB", None), 5)],
                false,
            ),
            (QueryCommand::Update(id(3), new("free", None)), refused.clone(), vec![], true),
            (QueryCommand::Create(id(3), new("new", Some(other))), invalid.clone(), vec![], true),
            (QueryCommand::Create(id(3), new("new", Some(SESSION))), invalid, vec![], false),
            (QueryCommand::Create(id(2), new("new", None)), refused, vec![], true),
            (QueryCommand::Delete(id(2)), Reply::Done, vec![gone(2)], true),
            (QueryCommand::Delete(id(2)), Reply::Done, vec![gone(1)], false),
            (QueryCommand::Delete(id(3)), Reply::Done, vec![], false),
        ] {
            let said = begun().entry(LogIndex(5), Some((&command, &reply)), &changes);
            assert_eq!(said.is_ok(), is_right, "{command:?} {reply:?} {changes:?}");
        }
    }

    fn acknowledged(command: &QueryCommand, index: u64) -> (Request, Response) {
        let applied = Applied { index: LogIndex(index), reply: Reply::Done };
        (Request::Propose(None, Command::PreparedQuery(command.clone())), Response::Applied(applied))
    }

    fn answered(query: Query, rows: &[Change]) -> (Request, Response) {
        let row = |change: &Change| match change {
            Change::PreparedQuery(_, Some(query)) => query.clone(),
            _ => panic!("{change:?} is no row"),
        };
        let rows = Rows::PreparedQueries(rows.iter().map(row).collect());
        let answer = Answer {
            index: LogIndex(1),
            rows,
            known_leader: true,
            last_contact: Duration::ZERO,
            is_filtered: false,
        };
        (Request::Read { query, consistency: Consistency::Stale, blocking: None }, Response::Answer(answer))
    }

    #[test]
    fn acknowledged_write_is_in_state() {
        let mut seen = begun();
        let free = new("free", None);
        let update = QueryCommand::Update(id(2), free.clone());
        let delete = QueryCommand::Delete(id(2));
        for (index, command, changes) in [(5, &update, vec![row(2, &free, 5)]), (6, &delete, vec![gone(2)])] {
            seen.entry(LogIndex(index), Some((command, &Reply::Done)), &changes).expect("it may be done");
        }
        for (command, index, is_right) in [
            (QueryCommand::Create(id(2), new("db", None)), 1, true),
            (QueryCommand::Create(id(3), new("db", None)), 1, false),
            (update.clone(), 5, true),
            (update.clone(), 4, false),
            (update, 6, false),
            (QueryCommand::Update(id(2), new("other", None)), 5, false),
            (delete.clone(), 6, true),
            (delete, 5, false),
        ] {
            let (request, response) = acknowledged(&command, index);
            let said = seen.given(&request, &response, LogIndex(9));
            assert_eq!(said.is_ok(), is_right, "{command:?} at {index}");
        }
    }

    #[test]
    fn read_matches_its_applied_state() {
        let mut seen = begun();
        let template = |name: &str| {
            let mut new = new(name, None);
            new.spec.template.kind = NAME_PREFIX_MATCH.into();
            new
        };
        let [all, geo, geo_eu] = [(3, ""), (4, "geo-"), (5, "Geo-EU-")].map(|(number, name)| {
            let change = row(number, &template(name), 1);
            seen.change(&change);
            change
        });
        seen.past.insert(LogIndex(5), seen.queries.clone());
        let (web, db) = (row(1, &new("Web", Some(SESSION)), 1), row(2, &new("db", None), 1));
        let resolve = |text: &str| Query::ResolvePreparedQuery(text.into());
        for (query, applied, rows, is_right) in [
            (Query::PreparedQueries, 1, vec![web.clone(), db.clone()], true),
            (Query::PreparedQueries, 4, vec![db.clone()], false),
            (Query::PreparedQueries, 5, vec![web.clone(), db.clone()], false),
            (Query::PreparedQueries, 0, vec![], true),
            (Query::PreparedQuery(id(2)), 1, vec![db.clone()], true),
            (Query::PreparedQuery(id(2)), 1, vec![web.clone()], false),
            (Query::PreparedQuery(id(4)), 1, vec![], true),
            (Query::PreparedQuery(id(4)), 5, vec![], false),
            (resolve("WEB"), 5, vec![web], true),
            (resolve("web"), 5, vec![all.clone()], false),
            (resolve(&id(2).to_string()), 5, vec![db], true),
            (resolve(&id(2).to_string()), 5, vec![all.clone()], false),
            (resolve("geo-eu-web"), 5, vec![geo_eu.clone()], true),
            (resolve("geo-eu-web"), 5, vec![geo.clone()], false),
            (resolve("geo-web"), 5, vec![geo], true),
            (resolve("geo-web"), 5, vec![geo_eu], false),
            (resolve("geo"), 5, vec![all], true),
            (resolve("geo"), 5, vec![], false),
            (resolve("geo"), 1, vec![], true),
        ] {
            let (request, response) = answered(query, &rows);
            let said = seen.given(&request, &response, LogIndex(applied));
            assert_eq!(said.is_ok(), is_right, "{request:?} as of {applied}: {rows:?}");
        }
    }
}
