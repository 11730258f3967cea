//! A prepared query lives exactly as long as its client was told: it is gone only by a delete of
//! it, or in the log entry that ends its session. No query outlives its session, and no two share a
//! name. A write is done if and only if its name is free and its session lives. An acknowledged
//! creation is in the log.

use super::{Fact, Invariant, Scene, ensure, is_restore};
use crate::sim::history::Past;
use crate::sim::process::Given;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, NewQuery, QueryCommand};
use lockmesh_protocol::id::{LogIndex, QueryId, SessionId};
use lockmesh_protocol::prepared_query::{PreparedQuery, QuerySpec};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Sessions and queries, according to the changes.
#[derive(Debug, Default)]
pub(super) struct PreparedQueries {
    sessions: BTreeSet<SessionId>,
    queries: BTreeMap<QueryId, Arc<PreparedQuery>>,
    /// All queries that were ever created, also by a restore.
    created: BTreeSet<QueryId>,
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
            Change::PreparedQuery(id, Some(query)) => {
                self.created.insert(*id);
                self.queries.insert(*id, query.clone());
            }
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
        let is_one = |change: &Change| matches!(change, Change::Session(..) | Change::PreparedQuery(..));
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

    fn given(&self, given: &Given) -> Result<(), String> {
        match (&given.asked.ask.request, &given.response) {
            (
                Request::Propose(_, Command::PreparedQuery(QueryCommand::Create(id, _))),
                Response::Applied(Applied { reply: Reply::Done, .. }),
            ) => ensure(self.created.contains(id), || format!("query {id} was never created")),
            _ => Ok(()),
        }
    }
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

    fn see(&mut self, fact: &Fact<'_>, _scene: &Scene<'_>) -> Result<(), String> {
        match fact {
            Fact::Applied(past) => self.entry(past.index, command_of(past), &past.changes),
            Fact::Given { given, .. } => self.given(given),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_query_lives_as_long_as_its_session_and_no_shorter() {
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
    fn a_write_is_done_if_and_only_if_it_may_be() {
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
}
