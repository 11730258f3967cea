//! The servers that this agent knows: the addresses to dial, and the members that the servers
//! report.

use crate::cluster::ClusterRefusal;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::Status;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The maximum number of servers accepted from the servers' own list.
const MOST_SERVERS: usize = 16;

/// The maximum number of servers kept that were added while the agent runs; the oldest is dropped
/// first.
const MOST_ADDED: usize = 16;

/// The number of an address to dial; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// The state of the server at one slot.
#[derive(Clone, Debug, Default)]
pub struct KnownServer {
    /// The address to dial, as `host:port`.
    pub address: String,
    /// `true` if it was configured or added, and is therefore never forgotten.
    pub is_seed: bool,
    /// The contact with it.
    pub contact: Contact,
    /// The server that last answered there.
    pub id: Option<ServerId>,
    /// The time until which an unneeded connection is kept.
    pub kept_until: Option<Time>,
    /// Another slot at which the same server is connected already.
    pub double_of: Option<Slot>,
    /// The cluster that it last reported; kept when the connection ends.
    pub cluster: Option<String>,
    /// Set if it does not belong to this agent's cluster; kept when the connection ends.
    pub refusal: Option<ClusterRefusal>,
    /// `true` once it has reported its cluster, or that it has none.
    pub has_answered: bool,
    /// The time at which it is contacted even if nothing needs it.
    pub contact_at: Option<Time>,
    preference: u64,
}

/// The contact with a server.
#[derive(Clone, Debug)]
pub enum Contact {
    /// There is no connection.
    Down {
        /// Failed attempts to connect since the last successful one.
        failures: u32,
    },
    /// There is a connection.
    Up(Connected),
}

/// What a server has shown on its present connection.
#[derive(Clone, Debug, Default)]
pub struct Connected {
    /// `true` once it has reported its status.
    pub is_heard: bool,
    /// `true` if it reported that it was removed from the quorum; it may still report its
    /// status.
    pub is_removed: bool,
    /// `true` if a call has been unanswered for suspiciously long.
    pub is_slow: bool,
    /// `true` if no data has arrived from it for suspiciously long.
    pub is_quiet: bool,
    /// The last status query; `None` if the next one is due at once.
    pub query: Option<StatusQuery>,
    /// The earliest time of the next query, after it rejected a call to the leader.
    pub not_before: Option<Time>,
    /// Since when it has known no leader although there is one, or has had no contact with it.
    pub leaderless_since: Option<Time>,
    /// The time since its last contact with its leader, as last reported; zero without a leader.
    pub silence: Duration,
    /// The index of its newest row; includes the index base.
    pub index: Option<LogIndex>,
    /// Since when its index base has been an older copy's.
    pub older_since: Option<Time>,
}

/// A status query.
#[derive(Clone, Copy, Debug)]
pub struct StatusQuery {
    /// The time at which it was sent.
    pub at: Time,
    /// `true` while it is unanswered.
    pub is_open: bool,
    /// The share of the usual pause after which the next one is sent.
    pub spread: f64,
}

/// All slots, and the servers' own list.
#[derive(Debug, Default)]
pub struct KnownServers {
    agent: String,
    servers: BTreeMap<Slot, KnownServer>,
    last_slot: u32,
    /// The servers added since startup, in that order.
    added: VecDeque<Slot>,
    /// The addresses that the servers report, as of an applied index of a cluster.
    rows: BTreeMap<ServerId, String>,
    /// The reported members of the quorum, including those without a known address.
    members: BTreeSet<ServerId>,
    version: (String, LogIndex),
}

impl KnownServers {
    /// Creates a list of the configured addresses; the agent's name decides which of them it
    /// prefers.
    pub fn new(agent: &str, seeds: &[String]) -> Self {
        let mut this = Self { agent: agent.into(), ..Self::default() };
        for seed in seeds {
            let slot = this.slot_at(seed);
            this.server_mut(slot).is_seed = true;
        }
        this
    }

    /// Adds an address as if it were configured.
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

    /// Returns the server at a slot, if known.
    pub fn get(&self, slot: Slot) -> Option<&KnownServer> {
        self.servers.get(&slot)
    }

    /// Returns the server at a known slot.
    pub(crate) fn server_mut(&mut self, slot: Slot) -> &mut KnownServer {
        self.servers.get_mut(&slot).expect("a slot is asked for only while it is known")
    }

    /// Returns the connection of a slot, if there is one.
    pub fn up(&self, slot: Slot) -> Option<&Connected> {
        self.get(slot)?.up()
    }

    /// Returns the connection of a slot, mutably.
    pub(crate) fn up_mut(&mut self, slot: Slot) -> Option<&mut Connected> {
        self.servers.get_mut(&slot)?.up_mut()
    }

    /// Returns all slots with their servers.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &KnownServer)> {
        self.servers.iter().map(|(slot, server)| (*slot, server))
    }

    /// Returns all slots with their servers, mutably.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut KnownServer)> {
        self.servers.iter_mut().map(|(slot, server)| (*slot, server))
    }

    /// Returns all slots in order of preference: the servers' own list before configured addresses.
    /// The order differs between agents, so that a thousand agents spread over the servers.
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

    /// Finds the slot of a server: its connected slot, its reported address, or its last known
    /// slot.
    pub fn slot_of(&mut self, id: ServerId) -> Option<Slot> {
        if let Some(slot) = self.connected(id) {
            return Some(slot);
        }
        if let Some(address) = self.rows.get(&id).cloned() {
            return Some(self.slot_at(&address));
        }
        self.iter().find(|(_, server)| server.id == Some(id)).map(|(slot, _)| slot)
    }

    /// Returns the slot of an address; a new one if it is unknown.
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
        let (address, preference) = (address.to_owned(), self.preference(address));
        self.servers.insert(slot, KnownServer { address, preference, ..KnownServer::default() });
        slot
    }

    fn connected(&self, id: ServerId) -> Option<Slot> {
        let is_it = |server: &KnownServer| {
            server.up().is_some() && server.id == Some(id) && server.double_of.is_none()
        };
        self.iter().find(|(_, server)| is_it(server)).map(|(slot, _)| slot)
    }

    /// Discards the roster of another cluster, and which server answered at each address.
    pub(crate) fn forget_roster(&mut self) {
        (self.rows, self.members, self.version) = (BTreeMap::new(), BTreeSet::new(), Default::default());
        for server in self.servers.values_mut() {
            (server.id, server.double_of) = (None, None);
            if let Some(up) = server.up_mut() {
                up.leaderless_since = None;
            }
        }
    }

    /// Applies the status of a server of this agent's cluster.
    pub fn learn(&mut self, slot: Slot, status: &Status) {
        self.identify(slot, status.server);
        // Replies of several servers arrive in any order: a server that lags must not undo newer
        // information. Indexes of different clusters are not comparable.
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
        // One server may be reached at several addresses; using both would only look like two
        // servers.
        let double = self.connected(id).filter(|other| *other != slot);
        let server = self.server_mut(slot);
        (server.id, server.double_of) = (Some(id), double);
    }

    /// Returns `true` if the server at a slot is not a member of the quorum, or not yet.
    pub fn is_outside(&self, slot: Slot) -> bool {
        let id = self.get(slot).filter(|server| server.up().is_some()).and_then(|server| server.id);
        // Until the members are known, no server counts as outside.
        !self.members.is_empty() && id.is_some_and(|id| !self.members.contains(&id))
    }

    /// Forgets unlisted servers; a connected slot stays until its connection ends.
    pub fn forget_the_unlisted(&mut self) {
        if !self.rows.is_empty() {
            let rows = &self.rows;
            // Seeds stay: when all other servers were replaced, only these lead back.
            self.servers
                .retain(|_, server| server.is_seed || server.up().is_some() || is_listed(rows, server));
        }
    }

    /// Stable across restarts, so that an agent returns to its server.
    fn preference(&self, address: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.agent, address).hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns `true` if the servers' own list includes this slot.
fn is_listed(rows: &BTreeMap<ServerId, String>, server: &KnownServer) -> bool {
    let is_it = |id| server.up().is_some() && rows.contains_key(&id);
    server.id.is_some_and(is_it) || rows.values().any(|row| *row == server.address)
}

impl Default for Contact {
    fn default() -> Self {
        Self::Down { failures: 0 }
    }
}

impl KnownServer {
    /// Returns the connection, if there is one.
    pub fn up(&self) -> Option<&Connected> {
        match &self.contact {
            Contact::Up(up) => Some(up),
            Contact::Down { .. } => None,
        }
    }

    /// Returns the connection, mutably.
    pub(crate) fn up_mut(&mut self) -> Option<&mut Connected> {
        match &mut self.contact {
            Contact::Up(up) => Some(up),
            Contact::Down { .. } => None,
        }
    }

    /// Returns the number of failed attempts to connect since the last successful one.
    pub fn failures(&self) -> u32 {
        match self.contact {
            Contact::Down { failures } => failures,
            Contact::Up(_) => 0,
        }
    }

    /// Requires the server to show again which one it is.
    pub(crate) fn doubt(&mut self) {
        self.id = None;
        if let Some(up) = self.up_mut() {
            (up.is_heard, up.index) = (false, None);
        }
    }

    /// Returns `true` if the server can be relied on for now.
    pub fn is_well(&self) -> bool {
        self.double_of.is_none()
            && self.up().is_some_and(|up| up.is_heard && !up.is_doubtful() && !up.is_removed)
    }
}

impl Connected {
    /// Returns `true` if the server should be asked for a sign of life.
    pub fn is_doubtful(&self) -> bool {
        self.is_slow || self.is_quiet
    }

    /// Returns `true` if the last status query is unanswered for this long.
    pub fn is_silent(&self, now: Time, timeout: Duration) -> bool {
        self.query.is_some_and(|query| query.is_open && now >= query.at + timeout)
    }

    /// Records that the last status query is answered, or needs no answer.
    pub(crate) fn close_query(&mut self) {
        if let Some(query) = &mut self.query {
            query.is_open = false;
        }
    }
}
