//! The servers as this agent knows them: where each can be dialled, and which the servers
//! themselves say there are.

use crate::cluster::ClusterRefusal;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::Status;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How many servers are taken from the servers' own list.
const MOST_SERVERS: usize = 16;

/// How many servers are kept that were named while the agent runs; the one that was named first
/// goes first.
const MOST_ADDED: usize = 16;

/// An address that is dialled, by a number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// What is known of the server at one slot.
#[derive(Clone, Debug)]
pub struct KnownServer {
    /// What is dialled, as `host:port`.
    pub address: String,
    /// Whether it was configured, or named since, and is therefore never forgotten.
    pub is_seed: bool,
    /// Who answered there last.
    pub id: Option<ServerId>,
    /// Whether there is a connection.
    pub is_up: bool,
    /// Whether it has said something since there is.
    pub is_heard: bool,
    /// Whether a call is unanswered for so long that one begins to wonder.
    pub is_slow: bool,
    /// Whether nothing at all has arrived from it for so long that one begins to wonder.
    pub is_quiet: bool,
    /// Attempts to connect that failed, since the last one that did not.
    pub failures: u32,
    /// When its status was asked for last.
    pub asked: Option<Time>,
    /// Whether that question is still open.
    pub is_asked: bool,
    /// The share of the usual pause after which it is asked again.
    pub spread: f64,
    /// When it is asked again at the earliest, after it refused what a leader would take.
    pub not_before: Option<Time>,
    /// Since when it has known no leader although there is one, or has not heard of it.
    pub leaderless_since: Option<Time>,
    /// How long ago it had heard of its leader when it said so last; zero where that is none.
    pub silence: Duration,
    /// Whether it said that it was taken out of the quorum.
    pub is_removed: bool,
    /// Until when the connection is kept although nothing needs it.
    pub kept_until: Option<Time>,
    /// Another slot at which the same server is connected already.
    pub double_of: Option<Slot>,
    /// The cluster that it named last; kept when the connection ends.
    pub cluster: Option<String>,
    /// Set if it is not of this agent's cluster; kept when the connection ends.
    pub refusal: Option<ClusterRefusal>,
    /// `true` once it has said which cluster it is of, or that it is of none.
    pub has_answered: bool,
    /// The index of its newest row, as it said on this connection; it counts the index base.
    pub index: Option<LogIndex>,
    /// Since when its index base has been an older copy's, on this connection.
    pub older_since: Option<Time>,
    /// When it is contacted although nothing needs it.
    pub contact_at: Option<Time>,
    preference: u64,
}

/// All slots, and the servers' own list.
#[derive(Debug)]
pub struct KnownServers {
    agent: String,
    servers: BTreeMap<Slot, KnownServer>,
    last_slot: u32,
    /// The servers that were named since the start, in that order.
    added: VecDeque<Slot>,
    /// The addresses that the servers have by their own word, as of an applied index of a cluster.
    rows: BTreeMap<ServerId, String>,
    /// The servers of the quorum by the same word, also those whose address is not known.
    members: BTreeSet<ServerId>,
    version: (String, LogIndex),
}

impl KnownServers {
    /// Knows configured addresses; the agent's name decides which of them it prefers.
    pub fn new(agent: &str, seeds: &[String]) -> Self {
        let mut this = Self {
            agent: agent.into(),
            servers: BTreeMap::new(),
            last_slot: 0,
            added: VecDeque::new(),
            rows: BTreeMap::new(),
            members: BTreeSet::new(),
            version: Default::default(),
        };
        for seed in seeds {
            let slot = this.slot_at(seed);
            this.server_mut(slot).is_seed = true;
        }
        this
    }

    /// Knows one more address as if it were configured.
    pub fn add_seed(&mut self, address: &str) {
        let slot = self.slot_at(address);
        if std::mem::replace(&mut self.server_mut(slot).is_seed, true) {
            return;
        }
        self.added.push_back(slot);
        if self.added.len() > MOST_ADDED
            && let Some(first) = self.added.pop_front()
        {
            self.server_mut(first).is_seed = false;
        }
    }

    /// The server at a slot, where that is known.
    pub fn get(&self, slot: Slot) -> Option<&KnownServer> {
        self.servers.get(&slot)
    }

    /// The server at a slot that is known.
    pub(crate) fn server_mut(&mut self, slot: Slot) -> &mut KnownServer {
        self.servers.get_mut(&slot).expect("a slot is asked for only while it is known")
    }

    /// All slots with their servers.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &KnownServer)> {
        self.servers.iter().map(|(slot, server)| (*slot, server))
    }

    /// The same, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut KnownServer)> {
        self.servers.iter_mut().map(|(slot, server)| (*slot, server))
    }

    /// All slots, those that are worth dialling first before the others: the servers' own list
    /// before what was only configured, and each agent in an order of its own, so that a thousand
    /// agents spread.
    pub fn ranked(&self) -> Vec<Slot> {
        let mut slots: Vec<_> = self
            .iter()
            .filter(|(_, server)| server.double_of.is_none())
            .map(|(slot, server)| {
                (server.refusal.is_some(), !is_listed(&self.rows, server), server.preference, slot)
            })
            .collect();
        slots.sort_unstable();
        slots.into_iter().map(|(.., slot)| slot).collect()
    }

    /// Where a server is found: where it is connected, where the servers say that it is, or where
    /// it was before.
    pub fn slot_of(&mut self, id: ServerId) -> Option<Slot> {
        if let Some(slot) = self.connected(id) {
            return Some(slot);
        }
        if let Some(address) = self.rows.get(&id).cloned() {
            return Some(self.slot_at(&address));
        }
        self.iter().find(|(_, server)| server.id == Some(id)).map(|(slot, _)| slot)
    }

    /// The slot of an address, as a server gave it; a new one where nobody has named it before.
    pub fn slot_at(&mut self, address: &str) -> Slot {
        if let Some((slot, _)) = self.iter().find(|(_, server)| server.address == address) {
            return slot;
        }
        // The server of that address may be connected under another one.
        let listed = self.rows.iter().find(|(_, row)| *row == address).map(|(id, _)| *id);
        if let Some(slot) = listed.and_then(|id| self.connected(id)) {
            return slot;
        }
        self.last_slot += 1;
        let slot = Slot(self.last_slot);
        self.servers.insert(slot, KnownServer::new(address, self.preference(address)));
        slot
    }

    fn connected(&self, id: ServerId) -> Option<Slot> {
        let is_it =
            |server: &KnownServer| server.is_up && server.id == Some(id) && server.double_of.is_none();
        self.iter().find(|(_, server)| is_it(server)).map(|(slot, _)| slot)
    }

    /// The roster of another cluster, and who answered where, count no more.
    pub(crate) fn forget_roster(&mut self) {
        (self.rows, self.members, self.version) = (BTreeMap::new(), BTreeSet::new(), Default::default());
        for server in self.servers.values_mut() {
            (server.id, server.double_of, server.leaderless_since) = (None, None, None);
        }
    }

    /// Takes what a server of this agent's cluster says of itself and of the others.
    pub fn learn(&mut self, slot: Slot, status: &Status) {
        self.identify(slot, status.server);
        // Answers of several servers come in any order: what one that is behind says must not undo
        // newer news. Indexes of different clusters say nothing of each other.
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
                self.slot_of(id);
            }
            self.forget_the_unlisted();
        }
    }

    fn identify(&mut self, slot: Slot, id: ServerId) {
        // One server may be reached at several addresses; to use both would only look like two.
        let double = self.connected(id).filter(|other| *other != slot);
        let server = self.server_mut(slot);
        (server.id, server.double_of) = (Some(id), double);
    }

    /// Whether the server at a slot is one that the quorum does not have any more, or not yet.
    pub fn is_outside(&self, slot: Slot) -> bool {
        let id = self.get(slot).filter(|server| server.is_up).and_then(|server| server.id);
        // As long as nobody named the members, nobody is known to be outside.
        !self.members.is_empty() && id.is_some_and(|id| !self.members.contains(&id))
    }

    /// A slot that is connected stays until it is not.
    pub fn forget_the_unlisted(&mut self) {
        if !self.rows.is_empty() {
            let rows = &self.rows;
            // Seeds stay: when all other servers were replaced, only these lead back.
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

/// Whether the servers' own list leads to this slot.
fn is_listed(rows: &BTreeMap<ServerId, String>, server: &KnownServer) -> bool {
    let is_it = |id| server.is_up && rows.contains_key(&id);
    server.id.is_some_and(is_it) || rows.values().any(|row| *row == server.address)
}

impl KnownServer {
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
            leaderless_since: None,
            silence: Duration::ZERO,
            is_removed: false,
            kept_until: None,
            double_of: None,
            cluster: None,
            refusal: None,
            has_answered: false,
            index: None,
            older_since: None,
            contact_at: None,
            preference,
        }
    }

    /// Whether it can be relied on for now.
    pub fn is_well(&self) -> bool {
        self.is_up && self.is_heard && !self.is_doubtful() && !self.is_removed && self.double_of.is_none()
    }

    /// Whether it is to be asked if it is there still.
    pub fn is_doubtful(&self) -> bool {
        self.is_slow || self.is_quiet
    }
}
