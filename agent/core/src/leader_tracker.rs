//! Leader discovery: decides which server leads, which one is home, who is asked and who is
//! dialled: from what was heard, and the time.
//!
//! No socket and no clock in here. **Invariants:** a server leads only by its own word, and only
//! until it, or another server in a newer term, says otherwise; while there is a leader that
//! answers nobody is asked about it; questions have a pace, the slower the more agents there are,
//! so that a fleet without a leader is no burden.

mod identity;

use crate::cluster::{Cluster, ClusterChoice, Verdict};
use crate::servers::{KnownServer, KnownServers, Slot};
use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::rpc::Status;
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// Until the leader is looked for this long, each server is asked about so often.
const SEARCH_INTERVALS: [(Duration, Duration); 4] = [
    (Duration::from_secs(2), Duration::from_millis(30)),
    (Duration::from_secs(10), Duration::from_millis(100)),
    (Duration::from_secs(60), Duration::from_millis(200)),
    (Duration::MAX, Duration::from_secs(2)),
];

/// A server that is said to lead is asked about so often, because it leads as soon as its first
/// entry is durable.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// After so many answers a server that is said to lead is asked like all others.
const CLAIM_QUESTIONS: u32 = 20;

/// A server that is still said to lead and is not reached is hastened so often.
const HASTEN_INTERVAL: Duration = Duration::from_secs(1);

/// However large the fleet, no server is asked more often than 5,000 times a second by those who
/// look for the leader, and whoever is said to lead no more than 10,000 times.
const SEARCH_PACE: Duration = Duration::from_micros(200);
const CLAIM_PACE: Duration = Duration::from_micros(100);

/// Nor is it dialled by all of them at once, as long as others may know who leads: by 2,000 a
/// second.
const DIAL_PACE: Duration = Duration::from_micros(500);

/// The longest pause before a server that was lost is dialled again. Locks of its clients wait for
/// as long when the servers are back.
const REDIAL_INTERVAL: Duration = Duration::from_millis(250);

/// However large the fleet, a server that is down is dialled by 1,000 to 2,000 agents a second, as
/// long as [`LONGEST_PACE`] allows that.
const REDIAL_PACE: Duration = Duration::from_millis(1);

/// However large the fleet, nobody waits longer for its turn.
const LONGEST_PACE: Duration = Duration::from_secs(2);

/// A server that refused what a leader takes is not believed for so long.
const REFUSAL_BACKOFF: Duration = Duration::from_millis(20);

/// A server that is slow, or a home server that knows no leader, is asked so often.
const DOUBT_INTERVAL: Duration = Duration::from_millis(500);

/// A quiet home server is asked so often, to learn of servers that came and went.
const HOME_INTERVAL: Duration = Duration::from_secs(10);

/// A home server that knows no leader for so long, although there is one, is left.
const LEADERLESS_TIMEOUT: Duration = Duration::from_secs(2);

/// When a home server has not heard of its leader for so long, the leader is asked whether it still
/// has that server.
const DOUBT_TIMEOUT: Duration = Duration::from_secs(3);

/// A home server that has not heard for so long of a leader that answers is cut off from it, and
/// left.
const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(10);

/// While the leader is looked for, one more server is dialled at such intervals.
const DIAL_INTERVAL: Duration = Duration::from_millis(50);

/// A server that leaves a question open for so long is as good as dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A home server that leaves one open for so long is left, if another one is well.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// A connection that nothing needs any more is kept for so long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A leader named in an older term is believed when no other was heard of for so long: the servers
/// may have been set up anew.
const FORGET_TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// Which server leads, as far as this agent can know.
#[derive(Debug)]
pub struct LeaderTracker {
    servers: KnownServers,
    /// The newest term in which a leader was named.
    term: Term,
    leader: Option<Slot>,
    home: Option<Slot>,
    /// A server that is said to lead, and how often it was asked and did not say so itself.
    claimed: Option<(Slot, u32)>,
    /// When a server that is said to lead was hastened last.
    hastened: Option<Time>,
    /// Since when a leader is looked for, or a home server in place of one that does not answer.
    searching: Option<Time>,
    no_leader_since: Time,
    /// How many agents there are, as a server said last.
    fleet: u32,
    random: Random,
    /// The cluster that this agent belongs to.
    cluster: Cluster,
    /// Servers to be given up because they are not of it.
    refused: BTreeSet<Slot>,
    /// Set when the agent moved to another cluster.
    has_moved: bool,
}

/// What shall be done now, and when to ask again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Takes commands, renewals and linearizable reads.
    pub leader: Option<Slot>,
    /// Takes stale and blocking reads.
    pub home: Option<Slot>,
    /// To be connected, or to become so; all others are not.
    pub keep: BTreeSet<Slot>,
    /// To be connected without delay.
    pub hasten: Option<Slot>,
    /// To be asked for their status now.
    pub ask: Vec<Slot>,
    /// Dead, whatever the connection says.
    pub cut: Vec<Slot>,
    /// Not of this agent's cluster: given up, and dialled again after a long pause.
    pub refuse: Vec<Slot>,
    /// When that changes although nothing happens.
    pub wakes_at: Option<Time>,
}

impl LeaderTracker {
    /// Knows configured servers only, and follows any cluster unless [`Self::with_cluster`] says
    /// which. `seed` makes this agent's pauses differ from others'.
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

    /// What is dialled at a slot that is known.
    pub fn address(&self, slot: Slot) -> Option<&str> {
        self.servers.get(slot).map(|server| server.address.as_str())
    }

    /// The cluster that this agent belongs to; empty before that is known.
    pub fn cluster_id(&self) -> &str {
        self.cluster.expected().unwrap_or_default()
    }

    /// Every slot that is known.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.servers.iter().map(|(slot, _)| slot)
    }

    /// There is a server at this address, as `host:port`: it is never forgotten.
    pub fn add_server(&mut self, address: &str) {
        self.servers.add_seed(address);
    }

    /// There is a connection.
    pub fn connected(&mut self, slot: Slot) {
        if self.servers.get(slot).is_some() {
            let server = self.servers.server_mut(slot);
            (server.is_up, server.is_heard, server.failures) = (true, false, 0);
            // Asked at once: what was known is of an earlier connection.
            (server.asked, server.not_before) = (None, None);
            (server.index, server.older_since) = (None, None);
        }
    }

    /// There is no connection any more, or none could be made.
    pub fn lost(&mut self, slot: Slot, now: Time) {
        if self.servers.get(slot).is_none() {
            return;
        }
        let server = self.servers.server_mut(slot);
        server.failures = server.failures.saturating_add(1);
        (server.is_up, server.is_heard, server.is_asked, server.is_slow) = (false, false, false, false);
        (server.double_of, server.leaderless_since, server.kept_until) = (None, None, None);
        (server.silence, server.is_removed, server.is_quiet) = (Duration::ZERO, false, false);
        // The other way to the same server is the only one now.
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

    /// A call is unanswered for a while, or none is any more.
    pub fn slow(&mut self, slot: Slot, is_slow: bool) {
        if self.servers.get(slot).is_some() {
            self.servers.server_mut(slot).is_slow = is_slow;
        }
    }

    /// Nothing has arrived for a while, or something does again.
    pub fn quiet(&mut self, slot: Slot, is_quiet: bool) {
        if self.servers.get(slot).is_some() {
            self.servers.server_mut(slot).is_quiet = is_quiet;
        }
    }

    /// A server refused a call because it does not lead; it may have said who does.
    pub fn refused(&mut self, slot: Slot, hint: Option<&str>, now: Time) {
        if self.servers.get(slot).is_none() {
            return;
        }
        if self.leader == Some(slot) {
            self.forget_leader(now);
            self.servers.server_mut(slot).not_before = Some(now + REFUSAL_BACKOFF);
        } else if self.home == Some(slot) {
            self.servers.server_mut(slot).leaderless_since.get_or_insert(now);
        }
        if self.leader.is_none()
            && let Some(address) = hint
        {
            // What one server believes of another: it says whom to ask, and not who leads.
            let named = self.servers.slot_at(address);
            if named != slot {
                self.claim(named, now);
            }
        }
    }

    /// A server acknowledged a renewal as the leader of a term; the answer may have come through
    /// another server.
    pub fn acknowledged(&mut self, leader: ServerId, term: Term, now: Time) {
        if term <= self.term {
            return;
        }
        match (self.servers.slot_of(leader), self.home) {
            (None, Some(home)) => self.ask_again(home),
            _ => self.elected(leader, term, now),
        }
    }

    /// A server refused a call because it was taken out of the quorum: it is of no use any more,
    /// whoever leads.
    pub fn removed(&mut self, slot: Slot, now: Time) {
        if self.servers.get(slot).is_none() {
            return;
        }
        let server = self.servers.server_mut(slot);
        (server.is_asked, server.is_removed) = (false, true);
        self.is_no_leader(slot, now);
        self.claimed = self.claimed.filter(|(claimed, _)| *claimed != slot);
        if self.home == Some(slot) {
            self.home = None;
        }
    }

    /// A server answered a question with something else.
    pub fn unheard(&mut self, slot: Slot) {
        if self.servers.get(slot).is_some() {
            self.servers.server_mut(slot).is_asked = false;
        }
    }

    /// A server answered a question that was asked too early: it is asked once more, now.
    pub fn ask_again(&mut self, slot: Slot) {
        if self.servers.get(slot).is_some() {
            let server = self.servers.server_mut(slot);
            (server.is_asked, server.asked) = (false, None);
        }
    }

    /// A server told what it knows.
    pub fn heard(&mut self, slot: Slot, status: &Status, now: Time) {
        if !self.servers.get(slot).is_some_and(|server| server.is_up) {
            return;
        }
        self.servers.server_mut(slot).is_asked = false;
        match self.judge(slot, status, now) {
            Verdict::Ours => {}
            Verdict::Unknown => {
                let server = self.servers.server_mut(slot);
                (server.id, server.is_heard) = (None, false);
                return self.is_no_leader(slot, now);
            }
            Verdict::Refused => return self.refuse(slot, now),
        }
        let server = self.servers.server_mut(slot);
        server.is_heard = true;
        server.silence = status.last_contact.unwrap_or_default();
        self.fleet = u32::try_from(status.agents).unwrap_or(u32::MAX);
        self.servers.learn(slot, status);
        if self.servers.get(slot).is_some_and(|server| server.double_of.is_some()) {
            // The same server is connected under another address, and its word counts there.
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
        self.look_whether_leaderless(slot, status, now);
        self.look_at_home(slot);
    }

    fn leads(&mut self, slot: Slot, term: Term, now: Time) {
        let is_long_leaderless =
            self.leader.is_none() && now.since(self.no_leader_since) >= FORGET_TERM_TIMEOUT;
        let is_believed =
            self.servers.get(slot).is_some_and(|server| server.not_before.is_none_or(|at| at <= now));
        // A leader that was deposed may not know that yet; its older term gives it away.
        if (term < self.term && !is_long_leaderless) || !is_believed {
            return self.is_no_leader(slot, now);
        }
        self.term = term;
        self.claimed = None;
        self.servers.server_mut(slot).not_before = None;
        if self.leader == Some(slot) {
            return;
        }
        self.leader = Some(slot);
        // A home that was silent while another took its place is most likely dead.
        let is_well = |home: Slot| self.servers.get(home).is_some_and(|server| !server.is_slow);
        if self.home != Some(slot) && self.home.is_some_and(|home| !is_well(home)) {
            self.home = None;
        }
    }

    fn follows(&mut self, slot: Slot, leader: ServerId, term: Term, now: Time) {
        self.is_no_leader(slot, now);
        // Old news: this server has not heard of the election since.
        if term < self.term {
            return;
        }
        self.elected(leader, term, now);
    }

    /// A server is said to lead in a term that is no older than any that was heard of.
    fn elected(&mut self, leader: ServerId, term: Term, now: Time) {
        let Some(named) = self.servers.slot_of(leader) else { return };
        // Another one was elected in a newer term, so ours is deposed, whether or not it knows
        // that.
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
        // Servers name a leader again that was frozen or cut off, and the attempt to reach it is of
        // that time.
        let is_down = self.servers.get(slot).is_some_and(|server| !server.is_up);
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

    fn look_whether_leaderless(&mut self, slot: Slot, status: &Status, now: Time) {
        let knows_less = status.leader.is_none() || status.term < self.term;
        let is_leaderless =
            self.leader.is_some_and(|leader| leader != slot && (knows_less || self.is_in_doubt(slot)));
        let server = self.servers.server_mut(slot);
        match (is_leaderless, server.leaderless_since) {
            (false, _) => server.leaderless_since = None,
            (true, None) => server.leaderless_since = Some(now),
            (true, Some(since))
                if knows_less && self.home == Some(slot) && now.since(since) >= LEADERLESS_TIMEOUT =>
            {
                self.home = None;
            }
            // Not for long enough, or not home; one only in doubt is left by the leader's word
            // alone.
            (true, Some(_)) => {}
        }
    }

    /// The leader, by whose word the quorum is known and which has just answered, decides whether
    /// home is left: it may have been taken out of the quorum without having heard of it, and may
    /// wait for its leader for ever.
    fn look_at_home(&mut self, slot: Slot) {
        let Some(home) = self.home.filter(|home| self.leader == Some(slot) && *home != slot) else {
            return;
        };
        let silence = self.servers.get(home).map_or(Duration::ZERO, |server| server.silence);
        if self.servers.is_outside(home) || silence >= CUT_OFF_TIMEOUT {
            self.home = None;
        }
    }

    fn is_in_doubt(&self, slot: Slot) -> bool {
        self.servers.get(slot).is_some_and(|server| server.silence >= DOUBT_TIMEOUT)
    }

    /// What shall be done now.
    pub fn actions(&mut self, now: Time) -> Actions {
        // In this order: the dead are no home, and without a home one is searched.
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
        self.ask(&mut actions, now);
        actions
    }

    fn cut_the_dead(&mut self, now: Time) -> Vec<Slot> {
        let is_dead = |server: &KnownServer| {
            server.is_asked && server.asked.is_some_and(|asked| now >= asked + ANSWER_TIMEOUT)
        };
        let dead = self.servers.iter().filter(|(_, server)| is_dead(server)).map(|(slot, _)| slot);
        let dead: Vec<_> = dead.collect();
        for slot in &dead {
            self.lost(*slot, now);
        }
        dead
    }

    fn notice_search(&mut self, now: Time) {
        let is_fine = |slot: Option<Slot>| {
            slot.and_then(|slot| self.servers.get(slot)).is_some_and(|server| !server.is_slow)
        };
        if is_fine(self.leader) && is_fine(self.home) {
            self.searching = None;
        } else {
            self.searching.get_or_insert(now);
        }
    }

    fn choose_home(&mut self, now: Time) {
        let is_silent = |server: &KnownServer| {
            server.is_asked && server.asked.is_some_and(|asked| now >= asked + SILENCE_TIMEOUT)
        };
        // Slowness or quiet may have other reasons; a question left open as well is the server's
        // fault.
        let is_good = |server: &KnownServer| !(server.is_doubtful() && is_silent(server));
        if self.home.and_then(|home| self.servers.get(home)).is_some_and(is_good) {
            return;
        }
        let is_well = |slot: &Slot| {
            self.servers.get(*slot).is_some_and(|server| server.is_well() && !is_silent(server))
        };
        let is_leaderless = |slot: &Slot| {
            self.servers.is_outside(*slot)
                || self.servers.get(*slot).is_some_and(|server| server.leaderless_since.is_some())
        };
        let well: Vec<_> = self.servers.ranked().into_iter().filter(is_well).collect();
        // One that knows no leader still answers stale reads.
        let best = well.iter().find(|slot| !is_leaderless(slot)).or(well.first()).copied();
        // A doubtful home is better than none.
        self.home = best.or(self.home);
    }

    /// Leader, home, one in reserve; while the leader is looked for one more after the other.
    fn keep(&mut self, actions: &mut Actions, now: Time) {
        let ranked = self.servers.ranked();
        let mut needed: BTreeSet<Slot> = [self.leader, self.home].into_iter().flatten().collect();
        if let Some((claimed, count)) = self.claimed {
            needed.insert(claimed);
            let is_up = self.servers.get(claimed).is_some_and(|server| server.is_up);
            actions.hasten = (!is_up && count == 0).then_some(claimed);
            if actions.hasten.is_some() {
                self.hastened = Some(now);
            }
            if !is_up {
                // It was hastened once; how soon a dead one is dialled again, its own pauses say.
                self.claimed = Some((claimed, 1));
            }
        }
        if let Some(since) = self.searching {
            let age = now.since(since);
            let interval = self.paced(DIAL_INTERVAL, DIAL_PACE);
            let count = age.as_millis() / interval.as_millis();
            let count = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(1).min(ranked.len());
            needed.extend(&ranked[..count]);
            if count < ranked.len() {
                wake_at(actions, since + interval * u32::try_from(count).unwrap_or(u32::MAX));
            }
        } else if needed.len() < 2 {
            // Leader and home are one: when it goes, there is another that can be asked at once.
            needed.extend(self.reserve(&ranked, &needed));
        }
        for (slot, server) in self.servers.iter_mut() {
            if needed.contains(&slot) {
                server.kept_until = Some(now + IDLE_TIMEOUT);
            } else if server.is_up
                && server.double_of.is_none()
                && server.kept_until.is_some_and(|at| at > now)
            {
                needed.insert(slot);
                wake_at(actions, server.kept_until.unwrap_or(now));
            }
        }
        actions.keep = needed;
    }

    /// One that is connected already, or else the one that failed least.
    fn reserve(&self, ranked: &[Slot], needed: &BTreeSet<Slot>) -> Option<Slot> {
        let is_free = |slot: &Slot| !needed.contains(slot) && !self.is_refused(*slot);
        let free = ranked.iter().enumerate().filter(|(_, slot)| is_free(slot));
        let costs = free.map(|(rank, slot)| {
            let server = self.servers.get(*slot);
            let is_up = server.is_some_and(|server| server.is_up);
            (!is_up, server.map_or(0, |server| server.failures), rank, *slot)
        });
        costs.min().map(|(.., slot)| slot)
    }

    fn ask(&mut self, actions: &mut Actions, now: Time) {
        let slots: Vec<Slot> = self.servers.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(due) = self.due(slot, now) else { continue };
            if due > now {
                wake_at(actions, due);
                continue;
            }
            let spread = self.spread();
            let server = self.servers.server_mut(slot);
            (server.asked, server.is_asked, server.spread) = (Some(now), true, spread);
            actions.ask.push(slot);
            wake_at(actions, now + SILENCE_TIMEOUT);
        }
    }

    /// When a slot is to be asked; where a question is open, when it has been for too long.
    fn due(&self, slot: Slot, now: Time) -> Option<Time> {
        let server = self.servers.get(slot).filter(|server| server.is_up)?;
        let Some(asked) = server.asked else { return Some(now) };
        if server.is_asked {
            let silent = asked + SILENCE_TIMEOUT;
            return Some(if now < silent { silent } else { asked + ANSWER_TIMEOUT });
        }
        let (is_doubtful, not_before, spread) = (server.is_doubtful(), server.not_before, server.spread);
        let is_leaderless = server.leaderless_since.is_some();
        let pause = match (self.searching, self.claimed) {
            (_, Some((claimed, count))) if claimed == slot && count < CLAIM_QUESTIONS => {
                self.paced(CLAIM_INTERVAL, CLAIM_PACE)
            }
            _ if is_doubtful => DOUBT_INTERVAL,
            (Some(since), _) => self.paced(search_interval(now.since(since)), SEARCH_PACE),
            _ if self.home == Some(slot) && is_leaderless => DOUBT_INTERVAL,
            _ if self.leader == Some(slot) && self.home.is_some_and(|home| self.is_in_doubt(home)) => {
                DOUBT_INTERVAL
            }
            _ if self.home == Some(slot) => HOME_INTERVAL,
            // It has not shown yet that it is of this agent's cluster.
            _ if !server.is_heard => DOUBT_INTERVAL,
            _ => return None,
        };
        let due = asked + pause.mul_f64(spread);
        // Before that it would not be believed anyway.
        Some(not_before.map_or(due, |at| due.max(at)))
    }

    /// So often, or as seldom as so large a fleet has to.
    /// The longest pause before a server that was lost is dialled again.
    pub fn longest_pause(&self) -> Duration {
        self.paced(REDIAL_INTERVAL, REDIAL_PACE)
    }

    fn paced(&self, interval: Duration, pace: Duration) -> Duration {
        interval.max(pace.saturating_mul(self.fleet).min(LONGEST_PACE))
    }

    /// Between 0.7 and 1.3, evenly.
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
