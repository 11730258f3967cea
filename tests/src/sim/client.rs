//! The clients of an agent: locks and sessions, writes, reads, watches. Each is a small randomized
//! script.

use super::administrator::Administrator;
use super::archivist::Archivist;
use super::cataloguer::Cataloguer;
use super::fleet::resident::Resident;
use super::intruder::Intruder;
use super::judge::Judge;
use super::lists::LongList;
use super::locker::Locker;
use super::querier::{Querier, SERVICES};
use super::stage::Stage;
use super::writer::Writer;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The request.
    pub request: Request,
    /// The time at which the client began.
    pub begun: Time,
    /// The caller; [`Caller::Agent`] stands for the one of all clients.
    pub caller: Caller,
}

impl Wish {
    /// Returns a request that begins now.
    pub fn new(now: Time, request: Request) -> Self {
        Self { request, begun: now, caller: Caller::Agent }
    }
}

/// A client.
#[derive(Debug)]
pub enum Client {
    /// Takes locks under a session.
    Locker(Locker),
    /// Renews the session of the locker before it.
    Renewer,
    /// Writes.
    Writer(Writer),
    /// Reads.
    Reader(Reader),
    /// Writes the catalog.
    Cataloguer(Cataloguer),
    /// Watches.
    Watcher(Watcher),
    /// Writes and executes prepared queries.
    Querier(Querier),
    /// Makes backups and restores them.
    Archivist(Archivist),
    /// Administers the quorum.
    Administrator(Administrator),
    /// Tries what it has no right to.
    Intruder(Intruder),
    /// Takes a host's lock, in a fleet.
    Resident(Resident),
}

/// Reads what other clients write.
#[derive(Debug, Default)]
pub struct Reader {
    /// The list that it reads in parts.
    list: Option<LongList>,
    served: bool,
}

/// Repeats a blocking read.
#[derive(Debug)]
pub struct Watcher {
    query: Query,
    consistency: Consistency,
    last: Option<Answer>,
    /// The index behind which it waits for changes.
    known: LogIndex,
}

impl Client {
    /// Returns the clients of one agent.
    pub fn all(stage: &mut Stage, place: usize) -> Vec<Client> {
        let plan = stage.plan.clients.clone();
        if let Some(residents) = plan.residents {
            return Resident::all(residents, place, plan.agents).into_iter().map(Self::Resident).collect();
        }
        let mut all = Vec::new();
        for _ in 0..plan.lockers {
            all.push(Self::Locker(Locker::new(place)));
            all.push(Self::Renewer);
        }
        for number in 0..plan.writers {
            all.push(Self::Writer(Writer::new(format!("w{place}.{number}"))));
        }
        all.push(Self::Cataloguer(Cataloguer::new(place)));
        all.extend((0..plan.readers).map(|_| Self::Reader(Reader::default())));
        all.extend(Watcher::all(stage).into_iter().map(Self::Watcher));
        all.push(Self::Administrator(Administrator::new(place)));
        all.extend(plan.archives.then(|| Self::Archivist(Archivist::default())));
        all.extend(plan.has_queries.then(|| Self::Querier(Querier::new(place))));
        all.extend(stage.plan.has_acl.then(|| Self::Intruder(Intruder::new(place))));
        all
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Locker(_) => "a locker",
            Self::Renewer => "a renewer",
            Self::Writer(_) => "a writer",
            Self::Cataloguer(_) => "a cataloguer",
            Self::Reader(_) => "a reader",
            Self::Watcher(_) => "a watcher",
            Self::Querier(_) => "a querier",
            Self::Archivist(_) => "an archivist",
            Self::Administrator(_) => "an administrator",
            Self::Intruder(_) => "an intruder",
            Self::Resident(_) => "a resident",
        }
    }

    /// Returns the next request, if any; `partner` is the client before it.
    pub fn wish(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        partner: Option<&mut Client>,
    ) -> Option<Wish> {
        match (self, partner) {
            (Self::Locker(locker), _) => locker.wish(stage, judge),
            (Self::Renewer, Some(Self::Locker(locker))) => locker.renewal(stage),
            (Self::Renewer, _) => None,
            (Self::Writer(writer), _) => writer.wish(stage),
            (Self::Cataloguer(cataloguer), _) => cataloguer.wish(stage),
            (Self::Reader(reader), _) => reader.wish(stage),
            (Self::Watcher(watcher), _) => Some(watcher.wish(stage)),
            (Self::Querier(querier), _) => querier.wish(stage),
            (Self::Archivist(archivist), _) => archivist.wish(stage),
            (Self::Administrator(administrator), _) => administrator.wish(stage, judge),
            (Self::Intruder(intruder), _) => intruder.wish(stage, judge),
            (Self::Resident(resident), _) => resident.wish(stage, judge),
        }
    }

    /// Receives the response to a request.
    pub fn receive_response(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        partner: Option<&mut Client>,
        wish: &Wish,
        response: Response,
    ) {
        match (self, partner) {
            (Self::Locker(locker), _) => locker.receive_response(stage, judge, wish, &response),
            (Self::Renewer, Some(Self::Locker(locker))) => {
                locker.renewed(stage, judge, wish, &response);
            }
            (Self::Writer(writer), _) => writer.receive_response(stage, wish, &response),
            (Self::Cataloguer(cataloguer), _) => cataloguer.receive_response(stage, wish, &response),
            (Self::Reader(reader), _) => reader.receive_response(stage, judge, response),
            (Self::Watcher(watcher), _) => watcher.receive_answer(response),
            (Self::Querier(querier), _) => querier.receive_response(stage, wish, &response),
            (Self::Archivist(archivist), _) => archivist.receive_response(stage, judge, response),
            (Self::Administrator(administrator), _) => administrator.receive_response(stage, &response),
            (Self::Intruder(intruder), _) => {
                if let Err(what) = intruder.receive_response(stage, &response) {
                    judge.object("access", what);
                }
            }
            (Self::Resident(resident), _) => resident.receive_response(stage, &response),
            (Self::Renewer, _) => {}
        }
    }

    /// The request was definitely not done.
    pub fn refused(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        match self {
            Self::Locker(locker) => locker.refused(stage, judge, wish),
            _ => self.gave_up(stage, judge, wish),
        }
    }

    /// The request timed out: it may be done or not.
    pub fn gave_up(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        match self {
            Self::Locker(locker) => locker.gave_up(stage, judge, wish),
            Self::Archivist(archivist) => archivist.gave_up(stage),
            Self::Watcher(watcher) => watcher.gave_up(),
            Self::Reader(reader) => reader.gave_up(stage),
            _ => {}
        }
    }

    /// The client disconnected before the reply: its agent releases an undelivered grant.
    pub fn went_away(&mut self, stage: &mut Stage, judge: &mut Judge, wish: &Wish) {
        match self {
            Self::Locker(locker) => locker.went_away(stage, judge, wish),
            _ => self.gave_up(stage, judge, wish),
        }
    }

    /// The agent reports that an undelivered grant may remain with a session.
    pub fn may_stay_granted(&mut self, session: &SessionId) {
        if let Self::Locker(locker) = self {
            locker.may_stay_granted(session);
        }
    }

    /// Its agent died and came back.
    pub fn restart(&mut self, stage: &mut Stage, judge: &mut Judge) {
        match self {
            Self::Locker(locker) => locker.restart(stage, judge),
            Self::Archivist(archivist) => archivist.gave_up(stage),
            Self::Reader(reader) => reader.gave_up(stage),
            Self::Resident(resident) => resident.restart(),
            _ => {}
        }
    }

    /// Returns `true` if it was served since the storm ended, and wants nothing more.
    pub fn is_content(&self) -> bool {
        match self {
            Self::Renewer | Self::Watcher(_) | Self::Resident(_) => true,
            Self::Locker(locker) => locker.is_content(),
            Self::Writer(writer) => writer.is_content(),
            Self::Cataloguer(cataloguer) => cataloguer.is_content(),
            Self::Reader(reader) => reader.served,
            Self::Querier(querier) => querier.is_content(),
            Self::Archivist(archivist) => archivist.is_content(),
            Self::Administrator(administrator) => administrator.is_content(),
            Self::Intruder(intruder) => intruder.is_content(),
        }
    }

    /// Returns `true` if it waits for changes forever.
    pub fn watches(&self) -> bool {
        matches!(self, Self::Watcher(_))
    }

    /// Returns a watcher's query, and the last answer that it saw.
    pub fn last_seen(&self) -> Option<(&Query, Option<&Answer>)> {
        match self {
            Self::Watcher(watcher) => Some((&watcher.query, watcher.last.as_ref())),
            _ => None,
        }
    }
}

/// Returns one of the keys that are written.
pub fn data_key(stage: &mut Stage) -> Key {
    Key::from(format!("data/{}", stage.draw.below(stage.plan.clients.keys)))
}

/// Returns one of the contended lock keys.
pub fn lock_key(stage: &mut Stage) -> Key {
    Key::from(format!("lock/{}", stage.draw.below(stage.plan.clients.locks)))
}

impl Reader {
    fn wish(&mut self, stage: &mut Stage) -> Option<Wish> {
        if self.served {
            return None;
        }
        if let Some(list) = &self.list {
            return Some(list.wish(stage));
        }
        let kinds = if stage.plan.clients.has_queries { 14 } else { 9 };
        let query = match stage.draw.below(kinds) {
            0 => Query::Entries("data/".into()),
            1 => Query::Locks("lock/".into()),
            2 => Query::Sessions,
            3 => Query::Entries("".into()),
            4 => Query::Keys { prefix: "".into(), separator: "/".into() },
            5 => Query::Nodes,
            6 => Query::ChecksInState(None),
            7 => Query::NodeSessions("x0".into()),
            9 => Query::Services,
            10 => Query::ServiceInstances((*stage.draw.pick(&SERVICES)).into()),
            11 => Query::Node("y0".into()),
            12 => Query::PreparedQueries,
            13 => Query::Coordinates,
            _ => Query::Entry(data_key(stage)),
        };
        let consistency =
            *stage.draw.pick(&[Consistency::Stale, Consistency::Default, Consistency::Consistent]);
        if !matches!(query, Query::Entry(_)) && stage.draw.once_in(2) {
            return Some(self.list.insert(LongList::new(query, consistency)).wish(stage));
        }
        Some(Wish::new(stage.now, Request::Read { query, consistency, blocking: None }))
    }

    fn receive_response(&mut self, stage: &mut Stage, judge: &mut Judge, response: Response) {
        let list = self.list.take();
        self.list = list.and_then(|list| list.receive_response(stage, judge, response));
        self.served |= stage.calm && self.list.is_none();
    }

    fn gave_up(&mut self, stage: &mut Stage) {
        if let Some(list) = self.list.take() {
            list.gave_up(stage);
        }
    }
}

impl Watcher {
    /// Returns the watchers of one agent; some watch the same query.
    fn all(stage: &mut Stage) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for _ in 0..stage.plan.clients.watchers {
            let same = all.first().filter(|_| stage.draw.once_in(2));
            let same = same.map(|first| (first.query.clone(), first.consistency));
            let mut watcher = Self::draw(stage);
            if let Some((query, consistency)) = same {
                (watcher.query, watcher.consistency) = (query, consistency);
            }
            all.push(watcher);
        }
        all
    }

    fn draw(stage: &mut Stage) -> Self {
        let kinds = if stage.plan.clients.has_queries { 9 } else { 7 };
        let query = match stage.draw.below(kinds) {
            0 => Query::Entries("data/".into()),
            1 => Query::Sessions,
            2 => Query::Entry(lock_key(stage)),
            3 => Query::Nodes,
            4 => Query::ChecksInState(None),
            5 => Query::Keys { prefix: "aux/".into(), separator: "".into() },
            7 => Query::PreparedQueries,
            8 => Query::ServiceInstances((*stage.draw.pick(&SERVICES)).into()),
            _ => Query::Entry(data_key(stage)),
        };
        let consistency = *stage.draw.pick(&[Consistency::Stale, Consistency::Default]);
        Self { query, consistency, last: None, known: LogIndex(0) }
    }

    /// After the storm it waits forever: only a change can wake it.
    fn wish(&self, stage: &Stage) -> Wish {
        let wait = if stage.calm { Duration::from_secs(3_600) } else { stage.plan.clients.watch };
        let blocking = Some(Blocking { index: self.known, wait });
        let request = Request::Read { query: self.query.clone(), consistency: self.consistency, blocking };
        Wish::new(stage.now, request)
    }

    /// Restarts from the current state: too many reads may be parked.
    fn gave_up(&mut self) {
        self.known = LogIndex(0);
    }

    /// Receives an answer. As Consul advises its clients, restarts if the index has gone back, by a
    /// restore or at a lagging server.
    fn receive_answer(&mut self, response: Response) {
        let Response::Answer(answer) = response else { return };
        self.known = if answer.index < self.known { LogIndex(0) } else { answer.index };
        self.last = Some(answer);
    }
}
