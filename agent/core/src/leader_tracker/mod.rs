//! Leader discovery: decides which server is the leader, which one is home, and which servers to
//! ask and to dial. The decision depends only on received replies and the time.
//!
//! There is no socket and no clock here. **Invariants:** a server is the leader only if it claims
//! so itself, and only until it denies that, or another server claims it in a newer term. While a
//! leader answers, no server is asked for it. Questions are rate-limited by the number of agents,
//! so that a fleet without a leader is no burden.

mod identity;

use crate::cluster::{Cluster, ClusterChoice, Verdict};
use crate::servers::{Connected, Contact, KnownServer, KnownServers, Slot, StatusQuery};
use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::Status;
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// Poll intervals during a search: until the search has lasted the first duration, each server is
/// asked once per second duration.
const SEARCH_INTERVALS: [(Duration, Duration); 4] = [
    (Duration::from_secs(2), Duration::from_millis(30)),
    (Duration::from_secs(10), Duration::from_millis(100)),
    (Duration::from_secs(60), Duration::from_millis(200)),
    (Duration::MAX, Duration::from_secs(2)),
];

/// The poll interval of a server that others name as leader. It is short because that server leads
/// as soon as its first entry is durable.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// The number of answers after which a server named as leader is polled like all others.
const CLAIM_QUESTIONS: u32 = 20;

/// The interval at which a server that is still named as leader, but not reached, is dialled
/// without delay.
const HASTEN_INTERVAL: Duration = Duration::from_secs(1);

/// Limits the load of a search in a fleet of any size: a server receives at most 5,000 questions a
/// second, and a server named as leader at most 10,000.
const SEARCH_PACE: Duration = Duration::from_micros(200);
const CLAIM_PACE: Duration = Duration::from_micros(100);

/// Limits dialling during a search: 2,000 agents a second dial a server while other servers may
/// know the leader.
const DIAL_PACE: Duration = Duration::from_micros(500);

/// The maximum pause before a lost server is dialled again. After an outage, locks of its clients
/// wait that long.
const REDIAL_INTERVAL: Duration = Duration::from_millis(250);

/// Limits dialling of a server that is down to 1,000 to 2,000 agents a second in a fleet of any
/// size, within [`LONGEST_PACE`].
const REDIAL_PACE: Duration = Duration::from_millis(1);

/// The maximum interval in a fleet of any size.
const LONGEST_PACE: Duration = Duration::from_secs(2);

/// The time during which a server that rejected a call to the leader is not accepted as leader.
const REFUSAL_BACKOFF: Duration = Duration::from_millis(20);

/// The poll interval of a slow server, or of a home server without a leader.
const DOUBT_INTERVAL: Duration = Duration::from_millis(500);

/// The poll interval of a quiet home server, to learn of added and removed servers.
const HOME_INTERVAL: Duration = Duration::from_secs(10);

/// The time after which a home server without a leader is abandoned, if another server knows one.
const LEADERLESS_TIMEOUT: Duration = Duration::from_secs(2);

/// The time without contact between a home server and its leader after which the leader is asked
/// whether that server is still a member.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(3);

/// The time without contact after which a home server counts as cut off from a leader that answers,
/// and is abandoned.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which one more server is dialled during a search.
const DIAL_INTERVAL: Duration = Duration::from_millis(50);

/// The time after which a server that does not answer a question counts as dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The time after which a home server that does not answer is abandoned, if another one is healthy.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// The time that an unneeded connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time without other news after which a leader named in an older term is accepted: the cluster
/// may have been rebuilt.
const FORGET_TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// Tracks the leader, as far as this agent can know it.
#[derive(Debug)]
pub struct LeaderTracker {
    servers: KnownServers,
    /// The newest term in which a leader was named.
    term: Term,
    leader: Option<Slot>,
    home: Option<Slot>,
    /// A server named as leader, and how many of its answers did not confirm that.
    claimed: Option<(Slot, u32)>,
    /// The last time that a server named as leader was dialled without delay.
    hastened: Option<Time>,
    /// The start of the search for a leader, or for a replacement of a home server that does not
    /// answer.
    searching: Option<Time>,
    no_leader_since: Time,
    /// The number of agents, as last reported by a server.
    fleet: u32,
    random: Random,
    /// The cluster that this agent belongs to.
    cluster: Cluster,
    /// Servers to disconnect because they do not belong to this cluster.
    refused: BTreeSet<Slot>,
    /// Set when the agent moved to another cluster.
    has_moved: bool,
}

/// The actions to take now, and the time to ask for the next ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// The server for commands, renewals and linearizable reads.
    pub leader: Option<Slot>,
    /// The server for stale and blocking reads.
    pub home: Option<Slot>,
    /// Servers to keep connected or to connect; all others are disconnected.
    pub keep: BTreeSet<Slot>,
    /// The server to connect without delay.
    pub hasten: Option<Slot>,
    /// Servers to ask for their status now.
    pub ask: Vec<Slot>,
    /// Servers that are dead even if their connection still stands.
    pub cut: Vec<Slot>,
    /// Servers of another cluster: disconnected, and dialled again after a long pause.
    pub refuse: Vec<Slot>,
    /// The time at which the actions change without further input.
    pub wakes_at: Option<Time>,
}

impl LeaderTracker {
    /// Creates a tracker that knows only the configured servers, and follows any cluster unless
    /// [`Self::with_cluster`] selects one. `seed` randomizes jitter.
    pub fn new(agent: &str, seeds: &[String], seed: u64, now: Time) -> Self {
        Self {
            servers: KnownServers::new(agent, seeds),
            term: Term(0),
            leader: None,
            home: None,
            claimed: None,
            hastened: None,
            searching: None,
            no_leader_since: now,
            fleet: 0,
            random: Random::new(seed),
            cluster: Cluster::new(ClusterChoice::Any, None, now),
            refused: BTreeSet::new(),
            has_moved: false,
        }
    }

    /// Returns the address to dial for a known slot.
    pub fn address(&self, slot: Slot) -> Option<&str> {
        self.servers.get(slot).map(|server| server.address.as_str())
    }

    /// Returns the cluster that this agent belongs to; empty before that is known.
    pub fn cluster_id(&self) -> &str {
        self.cluster.expected().unwrap_or_default()
    }

    /// Returns every known slot.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.servers.iter().map(|(slot, _)| slot)
    }

    /// Adds a server by address, as `host:port`; it is never forgotten.
    pub fn add_server(&mut self, address: &str) {
        self.servers.add_seed(address);
    }

    /// Records a new connection.
    pub fn connected(&mut self, slot: Slot) {
        if self.servers.get(slot).is_some() {
            self.servers.server_mut(slot).contact = Contact::Up(Connected::default());
        }
    }

    /// Records that the connection was lost or could not be made.
    pub fn lost(&mut self, slot: Slot, now: Time) {
        if self.servers.get(slot).is_none() {
            return;
        }
        let server = self.servers.server_mut(slot);
        server.contact = Contact::Down { failures: server.failures().saturating_add(1) };
        // Still a double: dialled again, it would only be recognized and disconnected again.
        server.kept_until = None;
        // This slot no longer serves as the other route to the same server.
        for (_, other) in self.servers.iter_mut() {
            other.double_of = other.double_of.filter(|double| *double != slot);
        }
        if self.leader == Some(slot) {
            self.forget_leader(now);
        }
        if self.home == Some(slot) {
            self.home = None;
        }
    }

    /// Records that a call has been unanswered for a while, or that this is over.
    pub fn slow(&mut self, slot: Slot, is_slow: bool) {
        if let Some(up) = self.servers.up_mut(slot) {
            up.is_slow = is_slow;
        }
    }

    /// Records that nothing has arrived for a while, or that data arrives again.
    pub fn quiet(&mut self, slot: Slot, is_quiet: bool) {
        if let Some(up) = self.servers.up_mut(slot) {
            up.is_quiet = is_quiet;
        }
    }

    /// Records that a server rejected a call because it is not the leader; `hint` names the leader
    /// if known.
    pub fn refused(&mut self, slot: Slot, hint: Option<&str>, now: Time) {
        if self.servers.get(slot).is_none() {
            return;
        }
        if self.leader == Some(slot) {
            self.forget_leader(now);
            if let Some(up) = self.servers.up_mut(slot) {
                up.not_before = Some(now + REFUSAL_BACKOFF);
            }
        } else if self.home == Some(slot)
            && let Some(up) = self.servers.up_mut(slot)
        {
            up.leaderless_since.get_or_insert(now);
        }
        if self.leader.is_none()
            && let Some(address) = hint
        {
            // A hint from another server selects whom to ask; it does not decide who leads.
            let named = self.servers.slot_at(address);
            if named != slot {
                self.claim(named, now);
            }
        }
    }

    /// Records that a server acknowledged a renewal as the leader of a term. The reply may have
    /// come through another server.
    pub fn acknowledged(&mut self, leader: ServerId, term: Term, now: Time) {
        if term <= self.term {
            return;
        }
        match (self.servers.slot_of(leader), self.home) {
            (None, Some(home)) => self.ask_again(home),
            _ => self.elected(leader, term, now),
        }
    }

    /// Records that a server rejected a call because it was removed from the quorum. It is of no
    /// further use, even with another leader.
    pub fn removed(&mut self, slot: Slot, now: Time) {
        let Some(up) = self.servers.up_mut(slot) else { return };
        up.is_removed = true;
        up.close_query();
        self.is_no_leader(slot, now);
        self.claimed = self.claimed.filter(|(claimed, _)| *claimed != slot);
        if self.home == Some(slot) {
            self.home = None;
        }
    }

    /// Records that a server answered a question with an unexpected reply.
    pub fn unheard(&mut self, slot: Slot) {
        if let Some(up) = self.servers.up_mut(slot) {
            up.close_query();
        }
    }

    /// Asks a server again at once, because its reply came too early to be used.
    pub fn ask_again(&mut self, slot: Slot) {
        if let Some(up) = self.servers.up_mut(slot) {
            up.query = None;
        }
    }

    /// Records a server's status.
    pub fn record_status(&mut self, slot: Slot, status: &Status, now: Time) {
        let Some(up) = self.servers.up_mut(slot) else { return };
        up.close_query();
        match self.judge(slot, status, now) {
            Verdict::Ours => {}
            Verdict::Unknown => {
                self.servers.server_mut(slot).id = None;
                if let Some(up) = self.servers.up_mut(slot) {
                    up.is_heard = false;
                }
                return self.is_no_leader(slot, now);
            }
            Verdict::Refused => return self.refuse(slot, now),
        }
        if let Some(up) = self.servers.up_mut(slot) {
            (up.is_heard, up.silence) = (true, status.last_contact.unwrap_or_default());
        }
        self.fleet = u32::try_from(status.agents).unwrap_or(u32::MAX);
        self.servers.learn(slot, status);
        if self.servers.get(slot).is_some_and(|server| server.double_of.is_some()) {
            // The same server is connected under another address, and its status counts there.
            return self.is_no_leader(slot, now);
        }
        match status.leader {
            Some(leader) if leader == status.server => self.leads(slot, status.term, now),
            Some(leader) => self.follows(slot, leader, status.term, now),
            None => self.is_no_leader(slot, now),
        }
        if let Some((claimed, count)) = &mut self.claimed
            && *claimed == slot
        {
            *count += 1;
        }
        self.check_for_leader(slot, status, now);
        self.check_home(slot);
    }

    fn leads(&mut self, slot: Slot, term: Term, now: Time) {
        let is_long_leaderless =
            self.leader.is_none() && now.since(self.no_leader_since) >= FORGET_TERM_TIMEOUT;
        let is_believed = |up: &&mut Connected| up.not_before.is_none_or(|at| at <= now);
        let up = self.servers.up_mut(slot).filter(is_believed);
        // A deposed leader may not know that yet; its older term reveals it.
        let Some(up) = up.filter(|_| term >= self.term || is_long_leaderless) else {
            return self.is_no_leader(slot, now);
        };
        up.not_before = None;
        self.term = term;
        self.claimed = None;
        if self.leader == Some(slot) {
            return;
        }
        self.leader = Some(slot);
        // A home server that did not answer while a new leader was elected is most likely dead.
        let is_well = |home: Slot| self.servers.up(home).is_some_and(|up| !up.is_slow);
        if self.home != Some(slot) && self.home.is_some_and(|home| !is_well(home)) {
            self.home = None;
        }
    }

    fn follows(&mut self, slot: Slot, leader: ServerId, term: Term, now: Time) {
        self.is_no_leader(slot, now);
        // Outdated: this server has not learned of the election yet.
        if term < self.term {
            return;
        }
        self.elected(leader, term, now);
    }

    /// Records that a server was named as leader in a term that is at least as new as any known.
    fn elected(&mut self, leader: ServerId, term: Term, now: Time) {
        let Some(named) = self.servers.slot_of(leader) else { return };
        // Another server was elected in a newer term, so the current leader is deposed, even if it
        // does not know that.
        if term > self.term && self.leader.is_some_and(|leader| leader != named) {
            self.forget_leader(now);
        }
        self.term = term;
        if self.leader.is_none() {
            self.claim(named, now);
        }
    }

    fn claim(&mut self, slot: Slot, now: Time) {
        let is_new = self.claimed.is_none_or(|(claimed, _)| claimed != slot);
        // After a freeze or a partition, servers name the same leader again. The dial under way may
        // be from before that.
        let is_down = self.servers.get(slot).is_some_and(|server| server.up().is_none());
        let is_due = self.hastened.is_none_or(|at| now.since(at) >= HASTEN_INTERVAL);
        if is_new || (is_down && is_due) {
            self.claimed = Some((slot, 0));
        }
    }

    fn is_no_leader(&mut self, slot: Slot, now: Time) {
        if self.leader == Some(slot) {
            self.forget_leader(now);
        }
    }

    fn forget_leader(&mut self, now: Time) {
        self.leader = None;
        self.no_leader_since = now;
    }

    fn check_for_leader(&mut self, slot: Slot, status: &Status, now: Time) {
        let knows_less = status.leader.is_none() || status.term < self.term;
        let is_leaderless =
            self.leader.is_some_and(|leader| leader != slot && (knows_less || self.is_in_doubt(slot)));
        let Some(up) = self.servers.up_mut(slot) else { return };
        match (is_leaderless, up.leaderless_since) {
            (false, _) => up.leaderless_since = None,
            (true, None) => up.leaderless_since = Some(now),
            (true, Some(since))
                if knows_less && self.home == Some(slot) && now.since(since) >= LEADERLESS_TIMEOUT =>
            {
                self.home = None;
            }
            // Not long enough, or not home. A home server that is only in doubt is left on the
            // leader's report alone.
            (true, Some(_)) => {}
        }
    }

    /// Lets the leader, which has just answered and knows the members, decide whether home is
    /// abandoned. The home server may have been removed without learning of it, and would then wait
    /// for its leader forever.
    fn check_home(&mut self, slot: Slot) {
        let Some(home) = self.home.filter(|home| self.leader == Some(slot) && *home != slot) else {
            return;
        };
        let silence = self.servers.up(home).map_or(Duration::ZERO, |up| up.silence);
        if self.servers.is_outside(home) || silence >= CUT_OFF_TIMEOUT {
            self.home = None;
        }
    }

    fn is_in_doubt(&self, slot: Slot) -> bool {
        self.servers.up(slot).is_some_and(|up| up.silence >= DOUBT_TIMEOUT)
    }

    /// Returns the actions to take now.
    pub fn actions(&mut self, now: Time) -> Actions {
        // The order matters: a dead server is no home, and without a home a search begins.
        let cut = self.cut_the_dead(now);
        self.choose_home(now);
        self.notice_search(now);
        self.servers.forget_the_unlisted();
        let refuse = std::mem::take(&mut self.refused).into_iter().collect();
        let mut actions = Actions { cut, refuse, ..Actions::default() };
        if self.is_settled(now) {
            (actions.leader, actions.home) = (self.leader, self.home);
        }
        self.keep(&mut actions, now);
        self.contact(&mut actions, now);
        self.query_servers(&mut actions, now);
        actions
    }

    fn cut_the_dead(&mut self, now: Time) -> Vec<Slot> {
        let is_dead = |server: &KnownServer| server.up().is_some_and(|up| up.is_silent(now, ANSWER_TIMEOUT));
        let dead = self.servers.iter().filter(|(_, server)| is_dead(server)).map(|(slot, _)| slot);
        let dead: Vec<_> = dead.collect();
        for slot in &dead {
            self.lost(*slot, now);
        }
        dead
    }

    fn notice_search(&mut self, now: Time) {
        let is_fine =
            |slot: Option<Slot>| slot.and_then(|slot| self.servers.up(slot)).is_some_and(|up| !up.is_slow);
        if is_fine(self.leader) && is_fine(self.home) {
            self.searching = None;
        } else {
            self.searching.get_or_insert(now);
        }
    }

    fn choose_home(&mut self, now: Time) {
        let is_silent = |up: &Connected| up.is_silent(now, SILENCE_TIMEOUT);
        // Slowness or quiet may have other causes; an unanswered question as well is the server's
        // fault.
        let is_good = |up: &Connected| !(up.is_doubtful() && is_silent(up));
        if self.home.and_then(|home| self.servers.up(home)).is_some_and(is_good) {
            return;
        }
        let is_well = |slot: &Slot| {
            let server = self.servers.get(*slot).filter(|server| server.is_well());
            server.and_then(KnownServer::up).is_some_and(|up| !is_silent(up))
        };
        let is_leaderless = |slot: &Slot| {
            self.servers.is_outside(*slot)
                || self.servers.up(*slot).is_some_and(|up| up.leaderless_since.is_some())
        };
        let well: Vec<_> = self.servers.ranked().into_iter().filter(is_well).collect();
        // A server without a leader still answers stale reads.
        let best = well.iter().find(|slot| !is_leaderless(slot)).or(well.first()).copied();
        // A doubtful home is better than none.
        self.home = best.or(self.home);
    }

    /// Selects the leader, home and one reserve; during a search, one more server after the other.
    fn keep(&mut self, actions: &mut Actions, now: Time) {
        let ranked = self.servers.ranked();
        let mut needed: BTreeSet<Slot> = [self.leader, self.home].into_iter().flatten().collect();
        if let Some((claimed, count)) = self.claimed {
            needed.insert(claimed);
            let is_up = self.servers.up(claimed).is_some();
            actions.hasten = (!is_up && count == 0).then_some(claimed);
            self.hastened = actions.hasten.map(|_| now).or(self.hastened);
            if !is_up {
                // Dialled without delay once; further attempts follow the link's own backoff.
                self.claimed = Some((claimed, 1));
            }
        }
        if let Some(since) = self.searching {
            let interval = self.paced(DIAL_INTERVAL, DIAL_PACE);
            let intervals = now.since(since).as_millis() / interval.as_millis();
            let count =
                usize::try_from(intervals).map_or(ranked.len(), |count| (count + 1).min(ranked.len()));
            needed.extend(&ranked[..count]);
            if count < ranked.len() {
                wake_at(actions, since + interval * u32::try_from(count).unwrap_or(u32::MAX));
            }
        } else if needed.len() < 2 {
            // Leader and home may be one server. If it fails, the reserve can be asked at once.
            needed.extend(self.reserve(&ranked, &needed));
        }
        for (slot, server) in self.servers.iter_mut() {
            if needed.contains(&slot) {
                server.kept_until = Some(now + IDLE_TIMEOUT);
            } else if server.up().is_some()
                && server.double_of.is_none()
                && server.kept_until.is_some_and(|at| at > now)
            {
                needed.insert(slot);
                wake_at(actions, server.kept_until.unwrap_or(now));
            }
        }
        actions.keep = needed;
    }

    /// Prefers a server that is already connected, then the one with the fewest failures.
    fn reserve(&self, ranked: &[Slot], needed: &BTreeSet<Slot>) -> Option<Slot> {
        let is_free = |slot: &Slot| !needed.contains(slot) && !self.is_refused(*slot);
        let free = ranked.iter().enumerate().filter(|(_, slot)| is_free(slot));
        let costs = free.map(|(rank, slot)| {
            let failures = self.servers.get(*slot).map_or(0, KnownServer::failures);
            (self.servers.up(*slot).is_none(), failures, rank, *slot)
        });
        costs.min().map(|(.., slot)| slot)
    }

    fn query_servers(&mut self, actions: &mut Actions, now: Time) {
        let slots: Vec<Slot> = self.servers.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(due) = self.due(slot, now) else { continue };
            if due > now {
                wake_at(actions, due);
                continue;
            }
            let spread = self.spread();
            if let Some(up) = self.servers.up_mut(slot) {
                up.query = Some(StatusQuery { at: now, is_open: true, spread });
            }
            actions.ask.push(slot);
            wake_at(actions, now + SILENCE_TIMEOUT);
        }
    }

    /// Returns when to ask a slot; while a question is open, when it times out.
    fn due(&self, slot: Slot, now: Time) -> Option<Time> {
        let up = self.servers.up(slot)?;
        let Some(StatusQuery { at, is_open, spread }) = up.query else { return Some(now) };
        if is_open {
            let silent = at + SILENCE_TIMEOUT;
            return Some(if now < silent { silent } else { at + ANSWER_TIMEOUT });
        }
        let is_leaderless = up.leaderless_since.is_some();
        let pause = match (self.searching, self.claimed) {
            (_, Some((claimed, count))) if claimed == slot && count < CLAIM_QUESTIONS => {
                self.paced(CLAIM_INTERVAL, CLAIM_PACE)
            }
            _ if up.is_doubtful() => DOUBT_INTERVAL,
            (Some(since), _) => self.paced(search_interval(now.since(since)), SEARCH_PACE),
            _ if self.home == Some(slot) && is_leaderless => DOUBT_INTERVAL,
            _ if self.leader == Some(slot) && self.home.is_some_and(|home| self.is_in_doubt(home)) => {
                DOUBT_INTERVAL
            }
            _ if self.home == Some(slot) => HOME_INTERVAL,
            // It has not shown yet that it belongs to this agent's cluster.
            _ if !up.is_heard => DOUBT_INTERVAL,
            _ => return None,
        };
        let due = at + pause.mul_f64(spread);
        // It would not be accepted as leader before that.
        Some(up.not_before.map_or(due, |at| due.max(at)))
    }

    /// The maximum pause before a lost server is dialled again; longer in a large fleet.
    pub fn longest_pause(&self) -> Duration {
        self.paced(REDIAL_INTERVAL, REDIAL_PACE)
    }

    fn paced(&self, interval: Duration, pace: Duration) -> Duration {
        interval.max(pace.saturating_mul(self.fleet).min(LONGEST_PACE))
    }

    /// A uniform factor between 0.7 and 1.3.
    fn spread(&mut self) -> f64 {
        0.7 + 0.6 * self.random.fraction()
    }
}

fn search_interval(age: Duration) -> Duration {
    let is_it = |(until, _): &&(Duration, Duration)| age < *until;
    SEARCH_INTERVALS.iter().find(is_it).map_or(DOUBT_INTERVAL, |(_, interval)| *interval)
}

fn wake_at(actions: &mut Actions, at: Time) {
    actions.wakes_at = Some(actions.wakes_at.map_or(at, |wakes_at| wakes_at.min(at)));
}
