//! A client of prepared queries: it creates, updates, deletes, lists and executes them by the calls
//! that an agent makes for its own clients. All queriers share a few names, so some are in use.
//!
//! Most queries are bound to a session on the node of any agent. The session ends by the querier's
//! own act, by its TTL, or with a node that has failed. The querier does not follow it, so it also
//! names sessions that have ended.
//!
//! It also writes what queries look up: services of a node that has no agent, and coordinates.

use super::client::Wish;
use super::marks::Mark;
use super::stage::Stage;
use lockmesh_agent_core::prepared_query::{Execution, check, filled};
use lockmesh_protocol::command::{Command, Deregistration, NewQuery, QueryCommand, Registration};
use lockmesh_protocol::id::{NodeName, QueryId, ServiceId, SessionId};
use lockmesh_protocol::prepared_query::{NAME_PREFIX_MATCH, QueryService, QuerySpec, QueryTemplate};
use lockmesh_protocol::query::{Answer, Consistency, Query, Rows};
use lockmesh_protocol::record::{Coordinate, Finite, Node, Service, SessionSpec};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeSet;

/// The names of queries, each with its service. Two are templates; one name is empty, as many
/// queries may have.
const NAMES: [(&str, &str); 6] = [
    ("web", "web"),
    ("WEB", "db"),
    ("db", "db"),
    ("", "web"),
    ("geo-", "${name.suffix}"),
    ("", "${name.full}"),
];

/// The names that are looked up.
const LOOKED_UP: [&str; 4] = ["Web", "db", "geo-web", "other"];

/// The services that it registers.
pub(super) const SERVICES: [&str; 2] = ["web", "db"];

/// The number of known queries from which on it deletes instead of creating.
const MAX_QUERIES: usize = 6;

/// The state of the client.
#[derive(Debug)]
pub struct Querier {
    /// The node whose services it writes.
    node: NodeName,
    /// The queries that may exist.
    queries: BTreeSet<QueryId>,
    /// The session that it created last.
    session: Option<SessionId>,
    /// The execution whose instances are read next.
    execution: Option<Execution>,
    written: u64,
    served: bool,
}

impl Querier {
    /// Returns a querier on an agent's host.
    pub fn new(place: usize) -> Self {
        let (node, queries) = (format!("y{place}").into(), BTreeSet::new());
        Self { node, queries, session: None, execution: None, written: 0, served: false }
    }

    /// Returns `true` if it was served since the storm ended.
    pub fn is_content(&self) -> bool {
        self.served
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage) -> Option<Wish> {
        if self.served {
            return None;
        }
        let known: Vec<QueryId> = self.queries.iter().copied().collect();
        let command = match stage.draw.below(16) {
            number @ 0..=6 => Command::PreparedQuery(self.write(stage, number, &known)?),
            7 | 8 => self.session(stage),
            9 | 10 => self.service(stage),
            11 => self.coordinate(stage),
            _ => return Some(self.read(stage, &known)),
        };
        Some(Wish::new(stage.now, Request::Propose(None, command)))
    }

    /// Writes or deletes a query.
    fn write(&mut self, stage: &mut Stage, number: u64, known: &[QueryId]) -> Option<QueryCommand> {
        Some(match number {
            0..=2 if known.len() < MAX_QUERIES => {
                let (id, new) = (QueryId::from_random(bytes(stage)), self.query(stage)?);
                // The outcome may never be known.
                self.queries.insert(id);
                QueryCommand::Create(id, new)
            }
            3..=5 => QueryCommand::Update(stage.draw.any(known)?, self.query(stage)?),
            _ => QueryCommand::Delete(stage.draw.any(known)?),
        })
    }

    /// Returns a description, unless the agent would reject it.
    fn query(&mut self, stage: &mut Stage) -> Option<Box<NewQuery>> {
        self.written += 1;
        let (name, service) = *stage.draw.pick(&NAMES);
        let kind = if service.starts_with('$') { NAME_PREFIX_MATCH } else { "" };
        let spec = QuerySpec {
            name: name.into(),
            session: self.session.filter(|_| !stage.draw.once_in(4)),
            // Every description is unique, and a list of two has several parts.
            token: format!("{}-{:0150}", self.node, self.written),
            template: QueryTemplate { kind: kind.into(), ..QueryTemplate::default() },
            service: QueryService { service: service.into(), ..QueryService::default() },
            dns_ttl: String::new(),
        };
        check(&spec, 0).ok()?;
        let template_error = filled(&spec, &spec.name).err().map(|error| error.to_string());
        Some(Box::new(NewQuery { spec, template_error }))
    }

    /// Creates a session on an agent's node, or ends the last one.
    fn session(&mut self, stage: &mut Stage) -> Command {
        if let Some(session) = self.session.filter(|_| stage.draw.once_in(2)) {
            return Command::DestroySession(session);
        }
        let (node, ttl) = (stage.draw.below(stage.plan.clients.agents as u64), stage.plan.clients.ttl);
        let ttl = stage.draw.once_in(3).then_some(ttl);
        let spec = SessionSpec::of(SessionId::from_random(bytes(stage)), format!("n{node}").into());
        Command::CreateSession(SessionSpec { ttl, ..spec })
    }

    /// Registers or deregisters a service.
    fn service(&self, stage: &mut Stage) -> Command {
        let name = *stage.draw.pick(&SERVICES);
        let id: ServiceId = format!("{name}-{}", stage.draw.below(3)).into();
        if stage.draw.once_in(4) {
            let deregistration = Deregistration { node: self.node.clone(), service: Some(id), check: None };
            return Command::Deregister(deregistration);
        }
        let node = Node::of(self.node.clone(), String::new(), "127.0.0.1");
        let tags = vec![format!("version-{:0200}", stage.draw.below(3))];
        let service = Some(Service { tags, ..Service::of(self.node.clone(), id, name) });
        Command::Register(Registration { node, skip_node_update: true, service, checks: Vec::new() })
    }

    /// Writes the coordinate of its node, or of an agent's.
    fn coordinate(&self, stage: &mut Stage) -> Command {
        let agent = stage.draw.below(stage.plan.clients.agents as u64);
        let node = if stage.draw.once_in(2) { self.node.clone() } else { format!("n{agent}").into() };
        let height = Finite::try_from(stage.draw.below(1_000) as f64 / 1e4).expect("it is finite");
        Command::UpdateCoordinate { node, coordinate: Coordinate { height, ..Coordinate::default() } }
    }

    /// Lists, reads or executes queries.
    fn read(&self, stage: &mut Stage, known: &[QueryId]) -> Wish {
        let query = match (&self.execution, stage.draw.below(4), stage.draw.any(known)) {
            (Some(execution), ..) => execution.queries().remove(0),
            (None, 0, _) => Query::PreparedQueries,
            (None, 1, Some(id)) => Query::PreparedQuery(id),
            _ => Query::ResolvePreparedQuery((*stage.draw.pick(&LOOKED_UP)).into()),
        };
        let consistency = *stage.draw.pick(&[Consistency::Stale, Consistency::Default]);
        Wish::new(stage.now, Request::Read { query, consistency, blocking: None })
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &mut Stage, wish: &Wish, response: &Response) {
        self.served |= stage.calm;
        match (&wish.request, response) {
            (Request::Propose(_, command), Response::Applied(Applied { reply, .. })) => {
                self.receive_reply(stage, command, reply);
            }
            (Request::Read { query, .. }, Response::Answer(Answer { rows, .. })) => {
                self.receive_rows(stage, query, rows);
            }
            _ => {}
        }
    }

    fn receive_reply(&mut self, stage: &mut Stage, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::CreateSession(_), Reply::Session(id)) => self.session = Some(*id),
            (Command::PreparedQuery(QueryCommand::Delete(id)), _) => drop(self.queries.remove(id)),
            (Command::PreparedQuery(_), Reply::Refused(Refusal::InvalidSession(_))) => {
                stage.hit(Mark::QueryOfEndedSession);
            }
            (Command::PreparedQuery(command), Reply::Refused(Refusal::PreparedQuery(reason))) => {
                let is_update = matches!(command, QueryCommand::Update(..));
                match reason.contains("non-existent") {
                    true => stage.hit(Mark::QueryUpdatedTooLate),
                    false if is_update => stage.hit(Mark::QueryRenamedInVain),
                    false => stage.hit(Mark::QueryNameInUse),
                }
            }
            _ => {}
        }
    }

    fn receive_rows(&mut self, stage: &mut Stage, query: &Query, rows: &Rows) {
        match (query, rows) {
            (Query::PreparedQueries, Rows::PreparedQueries(rows)) => {
                self.queries = rows.iter().map(|row| row.id).collect();
            }
            (Query::ResolvePreparedQuery(name), Rows::PreparedQueries(rows)) => {
                let Some(row) = rows.first() else { return };
                if row.spec.is_template() {
                    stage.hit(Mark::QueryByTemplate);
                }
                self.execution = filled(&row.spec, name).ok().map(|spec| Execution::new(spec.service, false));
            }
            (Query::ServiceInstances(_), Rows::Instances(rows)) => {
                let run = |execution: Execution| execution.run(rows, None, 0, usize::MAX);
                if self.execution.take().map(run).is_some_and(|found| !found.is_empty()) {
                    stage.hit(Mark::QueryExecuted);
                }
            }
            _ => {}
        }
    }
}

fn bytes(stage: &mut Stage) -> [u8; 16] {
    (u128::from(stage.draw.bits()) << 64 | u128::from(stage.draw.bits())).to_be_bytes()
}
