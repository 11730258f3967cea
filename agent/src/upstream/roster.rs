//! The servers as this agent knows them: where each can be dialled, and which the servers themselves say there are.

use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How many servers are taken from the servers' own list.
const MOST_SERVERS: usize = 16;

/// An address that is dialled, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(pub(super) u32);

/// What is known of the server at one place.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// What is dialled, as `host:port`.
    pub(super) address: String,
    /// Whether it was configured, and is therefore never forgotten.
    pub(super) is_seed: bool,
    /// Who answered there last.
    pub(super) id: Option<ServerId>,
    /// Whether there is a connection.
    pub(super) is_up: bool,
    /// Whether it has said something since there is.
    pub(super) is_heard: bool,
    /// Whether a call is unanswered for so long that one begins to wonder.
    pub(super) is_slow: bool,
    /// Whether nothing at all has arrived from it for so long that one begins to wonder.
    pub(super) is_quiet: bool,
    /// Attempts to connect that failed, since the last one that did not.
    pub(super) failures: u32,
    /// When its status was asked for last.
    pub(super) asked: Option<Instant>,
    /// Whether that question is still open.
    pub(super) is_asked: bool,
    /// The share of the usual pause after which it is asked again.
    pub(super) spread: f64,
    /// When it is asked again at the earliest, after it refused what a leader would take.
    pub(super) not_before: Option<Instant>,
    /// Since when it has known no leader although there is one, or has not heard of it.
    pub(super) lonely_since: Option<Instant>,
    /// How long ago it had heard of its leader when it said so last; zero where that is none.
    pub(super) silence: Duration,
    /// Whether it said that it was taken out of the quorum.
    pub(super) is_removed: bool,
    /// Until when the connection is kept although nothing needs it.
    pub(super) kept_until: Option<Instant>,
    /// Another place at which the same server is connected already.
    pub(super) double_of: Option<Place>,
    preference: u64,
}

/// All places, and the servers' own list.
#[derive(Debug)]
pub(super) struct Roster {
    agent: String,
    servers: BTreeMap<Place, Server>,
    last_place: u32,
    /// The addresses that the servers have by their own word, as of an applied index of a cluster.
    rows: BTreeMap<ServerId, String>,
    /// The servers of the quorum by the same word, also those whose address is not known.
    members: BTreeSet<ServerId>,
    version: (String, LogIndex),
}

impl Roster {
    /// A roster of configured addresses; the agent's name decides which of them it prefers.
    pub(super) fn new(agent: &str, seeds: &[String]) -> Self {
        let mut this = Self {
            agent: agent.into(),
            servers: BTreeMap::new(),
            last_place: 0,
            rows: BTreeMap::new(),
            members: BTreeSet::new(),
            version: Default::default(),
        };
        for seed in seeds {
            let place = this.place_at(seed);
            this.server_mut(place).is_seed = true;
        }
        this
    }

    pub(super) fn get(&self, place: Place) -> Option<&Server> {
        self.servers.get(&place)
    }

    pub(super) fn server_mut(&mut self, place: Place) -> &mut Server {
        self.servers.get_mut(&place).expect("a place is asked for only while it is known")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, &Server)> {
        self.servers.iter().map(|(place, server)| (*place, server))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Server)> {
        self.servers.iter_mut().map(|(place, server)| (*place, server))
    }

    /// All places, those that are worth dialling first before the others: the servers' own list before what was
    /// only configured, and each agent in an order of its own, so that a thousand agents spread.
    pub(super) fn ranked(&self) -> Vec<Place> {
        let mut places: Vec<_> = self
            .iter()
            .filter(|(_, server)| server.double_of.is_none())
            .map(|(place, server)| (!is_listed(&self.rows, server), server.preference, place))
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(.., place)| place).collect()
    }

    /// Where a server is found: where it is connected, where the servers say that it is, or where it was before.
    pub(super) fn place_of(&mut self, id: ServerId) -> Option<Place> {
        if let Some(place) = self.connected(id) {
            return Some(place);
        }
        if let Some(address) = self.rows.get(&id).cloned() {
            return Some(self.place_at(&address));
        }
        self.iter().find(|(_, server)| server.id == Some(id)).map(|(place, _)| place)
    }

    /// The place of an address, as a server gave it; a new one where nobody has named it before.
    pub(super) fn place_at(&mut self, address: &str) -> Place {
        if let Some((place, _)) = self.iter().find(|(_, server)| server.address == address) {
            return place;
        }
        // The server of that address may be connected under another one.
        let listed = self.rows.iter().find(|(_, row)| *row == address).map(|(id, _)| *id);
        if let Some(place) = listed.and_then(|id| self.connected(id)) {
            return place;
        }
        self.last_place += 1;
        let place = Place(self.last_place);
        self.servers.insert(place, Server::new(address, self.preference(address)));
        place
    }

    fn connected(&self, id: ServerId) -> Option<Place> {
        let is_it = |server: &Server| server.is_up && server.id == Some(id) && server.double_of.is_none();
        self.iter().find(|(_, server)| is_it(server)).map(|(place, _)| place)
    }

    /// Takes what a server says of itself and of the others.
    pub(super) fn learn(&mut self, place: Place, status: &Status) {
        // A server that has not found its quorum yet is nobody in particular.
        if status.server == ServerId::default() {
            return self.server_mut(place).id = None;
        }
        self.identify(place, status.server);
        let is_older = self.version.0 == status.cluster_id && status.applied_index < self.version.1;
        let rows: BTreeMap<_, _> = status
            .servers
            .iter()
            .filter(|server| !server.address.is_empty())
            .take(MOST_SERVERS)
            .map(|server| (server.id, server.address.clone()))
            .collect();
        if is_older || rows.is_empty() {
            return;
        }
        self.version = (status.cluster_id.clone(), status.applied_index);
        self.members = status.servers.iter().map(|server| server.id).collect();
        if rows != self.rows {
            self.rows = rows;
            for id in self.rows.keys().copied().collect::<Vec<_>>() {
                self.place_of(id);
            }
            self.forget_the_unlisted();
        }
    }

    fn identify(&mut self, place: Place, id: ServerId) {
        let double = self.connected(id).filter(|other| *other != place);
        let server = self.server_mut(place);
        (server.id, server.double_of) = (Some(id), double);
    }

    /// Whether the server at a place is one that the quorum does not have any more, or not yet.
    pub(super) fn is_outside(&self, place: Place) -> bool {
        let id = self.get(place).filter(|server| server.is_up).and_then(|server| server.id);
        !self.members.is_empty() && id.is_some_and(|id| !self.members.contains(&id))
    }

    /// A place that is connected stays until it is not.
    pub(super) fn forget_the_unlisted(&mut self) {
        if !self.rows.is_empty() {
            let rows = &self.rows;
            self.servers.retain(|_, server| server.is_seed || server.is_up || is_listed(rows, server));
        }
    }

    /// The same at every start, so that an agent finds back to its server.
    fn preference(&self, address: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.agent, address).hash(&mut hasher);
        hasher.finish()
    }
}

/// Whether the servers' own list leads to this place.
fn is_listed(rows: &BTreeMap<ServerId, String>, server: &Server) -> bool {
    let is_it = |id| server.is_up && rows.contains_key(&id);
    server.id.is_some_and(is_it) || rows.values().any(|row| *row == server.address)
}

impl Server {
    fn new(address: &str, preference: u64) -> Self {
        Self {
            address: address.into(),
            is_seed: false,
            id: None,
            is_up: false,
            is_heard: false,
            is_slow: false,
            is_quiet: false,
            failures: 0,
            asked: None,
            is_asked: false,
            spread: 1.0,
            not_before: None,
            lonely_since: None,
            silence: Duration::ZERO,
            is_removed: false,
            kept_until: None,
            double_of: None,
            preference,
        }
    }

    /// Whether it can be relied on for now.
    pub(super) fn is_well(&self) -> bool {
        self.is_up && self.is_heard && !self.is_doubtful() && !self.is_removed && self.double_of.is_none()
    }

    /// Whether it is to be asked if it is there still.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_slow || self.is_quiet
    }
}
