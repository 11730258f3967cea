//! Decides which server leads, which one is home, who is asked and who is dialled: from what was heard, and the time.
//!
//! No socket and no clock in here. **Invariants:** a server leads only by its own word, and only until it, or another
//! server in a newer term, says otherwise; while there is a leader that answers nobody is asked about it; questions
//! have a pace, so that an agent without a leader is no burden.

use super::roster::{Place, Roster, Server};
use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::rpc::Status;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Until the leader is looked for this long, each server is asked about so often.
const HUNT_INTERVALS: [(Duration, Duration); 4] = [
    (Duration::from_secs(2), Duration::from_millis(30)),
    (Duration::from_secs(10), Duration::from_millis(100)),
    (Duration::from_secs(60), Duration::from_millis(500)),
    (Duration::MAX, Duration::from_secs(2)),
];

/// A server that is said to lead is asked about so often, because it leads as soon as its first entry is durable.
const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// After so many answers a server that is said to lead is asked like all others.
const CLAIM_QUESTIONS: u32 = 20;

/// A server that refused what a leader takes is not believed for so long.
const REFUSAL_TIME: Duration = Duration::from_millis(20);

/// A server that is slow, or a home server that knows no leader, is asked so often.
const DOUBT_INTERVAL: Duration = Duration::from_millis(500);

/// A quiet home server is asked so often, to learn of servers that came and went.
const HOME_INTERVAL: Duration = Duration::from_secs(10);

/// A home server that knows no leader for so long, although there is one, is left.
const LONELY_TIME: Duration = Duration::from_secs(2);

/// When a home server has not heard of its leader for so long, the leader is asked whether it still has that server.
const DOUBT_SILENCE: Duration = Duration::from_secs(3);

/// A home server that has not heard for so long of a leader that answers is cut off from it, and left.
const CUT_OFF_SILENCE: Duration = Duration::from_secs(10);

/// While the leader is looked for, one more server is dialled at such intervals.
const DIAL_INTERVAL: Duration = Duration::from_millis(50);

/// A server that leaves a question open for so long is as good as dead.
const DEAD_TIME: Duration = Duration::from_secs(3);

/// A home server that leaves one open for so long is left, if another one is well.
const SILENT_TIME: Duration = Duration::from_millis(300);

/// A connection that nothing needs any more is kept for so long.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// A leader named in an older term is believed when no other was heard of for so long: the servers may have been
/// set up anew.
const FORGET_TERM_TIME: Duration = Duration::from_secs(2);

/// Which server leads, as far as this agent can know.
#[derive(Debug)]
pub(super) struct Compass {
    roster: Roster,
    /// The newest term in which a leader was named.
    term: Term,
    leader: Option<Place>,
    home: Option<Place>,
    /// A server that is said to lead, and how often it was asked and did not say so itself.
    claimed: Option<(Place, u32)>,
    /// Since when a leader is looked for, or a home server in place of one that does not answer.
    hunting: Option<Instant>,
    leaderless_since: Instant,
    chance: u64,
}

/// What shall be done now, and when to ask for orders again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Orders {
    /// Takes commands, renewals and linearizable reads.
    pub(super) leader: Option<Place>,
    /// Takes stale and blocking reads.
    pub(super) home: Option<Place>,
    /// To be connected, or to become so; all others are not.
    pub(super) keep: BTreeSet<Place>,
    /// To be connected without delay.
    pub(super) hasten: Option<Place>,
    /// To be asked for their status now.
    pub(super) ask: Vec<Place>,
    /// Dead, whatever the connection says.
    pub(super) cut: Vec<Place>,
    /// When orders change although nothing happens.
    pub(super) wake: Option<Instant>,
}

impl Compass {
    /// Knows configured servers only. `chance` makes this agent's pauses differ from others'.
    pub(super) fn new(agent: &str, seeds: &[String], chance: u64, now: Instant) -> Self {
        Self {
            roster: Roster::new(agent, seeds),
            term: Term(0),
            leader: None,
            home: None,
            claimed: None,
            hunting: None,
            leaderless_since: now,
            chance,
        }
    }

    /// What is dialled at a place that is known.
    pub(super) fn address(&self, place: Place) -> Option<&str> {
        self.roster.get(place).map(|server| server.address.as_str())
    }

    /// Every place that is known.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.roster.iter().map(|(place, _)| place)
    }

    /// There is a connection.
    pub(super) fn connected(&mut self, place: Place) {
        if self.roster.get(place).is_some() {
            let server = self.roster.server_mut(place);
            (server.is_up, server.is_heard, server.failures) = (true, false, 0);
            (server.asked, server.not_before) = (None, None);
        }
    }

    /// There is no connection any more, or none could be made.
    pub(super) fn lost(&mut self, place: Place, now: Instant) {
        if self.roster.get(place).is_none() {
            return;
        }
        let server = self.roster.server_mut(place);
        server.failures = server.failures.saturating_add(1);
        (server.is_up, server.is_heard, server.is_asked, server.is_slow) = (false, false, false, false);
        (server.double_of, server.lonely_since, server.kept_until) = (None, None, None);
        (server.silence, server.is_removed, server.is_quiet) = (Duration::ZERO, false, false);
        for (_, other) in self.roster.iter_mut() {
            other.double_of = other.double_of.filter(|double| *double != place);
        }
        if self.leader == Some(place) {
            self.unseat(now);
        }
        if self.home == Some(place) {
            self.home = None;
        }
    }

    /// A call is unanswered for a while, or none is any more.
    pub(super) fn slow(&mut self, place: Place, is_slow: bool) {
        if self.roster.get(place).is_some() {
            self.roster.server_mut(place).is_slow = is_slow;
        }
    }

    /// Nothing has arrived for a while, or something does again.
    pub(super) fn quiet(&mut self, place: Place, is_quiet: bool) {
        if self.roster.get(place).is_some() {
            self.roster.server_mut(place).is_quiet = is_quiet;
        }
    }

    /// A server refused a call because it does not lead; it may have said who does.
    pub(super) fn refused(&mut self, place: Place, hint: Option<&str>, now: Instant) {
        if self.roster.get(place).is_none() {
            return;
        }
        if self.leader == Some(place) {
            self.unseat(now);
            self.roster.server_mut(place).not_before = Some(now + REFUSAL_TIME);
        } else if self.home == Some(place) {
            self.roster.server_mut(place).lonely_since.get_or_insert(now);
        }
        if self.leader.is_none()
            && let Some(address) = hint
        {
            let named = self.roster.place_at(address);
            if named != place {
                self.claim(named);
            }
        }
    }

    /// A server refused a call because it was taken out of the quorum: it is of no use any more, whoever leads.
    pub(super) fn removed(&mut self, place: Place, now: Instant) {
        if self.roster.get(place).is_none() {
            return;
        }
        let server = self.roster.server_mut(place);
        (server.is_asked, server.is_removed) = (false, true);
        self.is_no_leader(place, now);
        self.claimed = self.claimed.filter(|(claimed, _)| *claimed != place);
        if self.home == Some(place) {
            self.home = None;
        }
    }

    /// A server answered a question with something else.
    pub(super) fn unheard(&mut self, place: Place) {
        if self.roster.get(place).is_some() {
            self.roster.server_mut(place).is_asked = false;
        }
    }

    /// A server answered a question that was asked too early: it is asked once more, now.
    pub(super) fn ask_again(&mut self, place: Place) {
        if self.roster.get(place).is_some() {
            let server = self.roster.server_mut(place);
            (server.is_asked, server.asked) = (false, None);
        }
    }

    /// A server told what it knows.
    pub(super) fn heard(&mut self, place: Place, status: &Status, now: Instant) {
        if !self.roster.get(place).is_some_and(|server| server.is_up) {
            return;
        }
        let server = self.roster.server_mut(place);
        (server.is_asked, server.is_heard) = (false, true);
        server.silence = status.last_contact.unwrap_or_default();
        self.roster.learn(place, status);
        if self.roster.get(place).is_some_and(|server| server.double_of.is_some()) {
            return self.is_no_leader(place, now);
        }
        match status.leader {
            Some(leader) if leader == status.server => self.leads(place, status.term, now),
            Some(leader) => self.follows(place, leader, status.term, now),
            None => self.is_no_leader(place, now),
        }
        if let Some((claimed, count)) = &mut self.claimed
            && *claimed == place
        {
            *count += 1;
        }
        self.look_whether_lonely(place, status, now);
        self.look_at_home(place);
    }

    fn leads(&mut self, place: Place, term: Term, now: Instant) {
        let is_long_leaderless =
            self.leader.is_none() && now.duration_since(self.leaderless_since) >= FORGET_TERM_TIME;
        let is_believed =
            self.roster.get(place).is_some_and(|server| server.not_before.is_none_or(|at| at <= now));
        if (term < self.term && !is_long_leaderless) || !is_believed {
            return self.is_no_leader(place, now);
        }
        self.term = term;
        self.claimed = None;
        self.roster.server_mut(place).not_before = None;
        if self.leader == Some(place) {
            return;
        }
        self.leader = Some(place);
        // A home that was silent while another took its place is most likely dead.
        let is_well = |home: Place| self.roster.get(home).is_some_and(|server| !server.is_slow);
        if self.home != Some(place) && self.home.is_some_and(|home| !is_well(home)) {
            self.home = None;
        }
    }

    fn follows(&mut self, place: Place, leader: ServerId, term: Term, now: Instant) {
        self.is_no_leader(place, now);
        if term < self.term {
            return;
        }
        let Some(named) = self.roster.place_of(leader) else { return };
        if term > self.term && self.leader.is_some_and(|leader| leader != named) {
            self.unseat(now);
        }
        self.term = term;
        if self.leader.is_none() {
            self.claim(named);
        }
    }

    fn claim(&mut self, place: Place) {
        if self.claimed.is_none_or(|(claimed, _)| claimed != place) {
            self.claimed = Some((place, 0));
        }
    }

    fn is_no_leader(&mut self, place: Place, now: Instant) {
        if self.leader == Some(place) {
            self.unseat(now);
        }
    }

    fn unseat(&mut self, now: Instant) {
        self.leader = None;
        self.leaderless_since = now;
    }

    fn look_whether_lonely(&mut self, place: Place, status: &Status, now: Instant) {
        let knows_less = status.leader.is_none() || status.term < self.term;
        let is_lonely =
            self.leader.is_some_and(|leader| leader != place && (knows_less || self.is_in_doubt(place)));
        let server = self.roster.server_mut(place);
        match (is_lonely, server.lonely_since) {
            (false, _) => server.lonely_since = None,
            (true, None) => server.lonely_since = Some(now),
            (true, Some(since))
                if knows_less && self.home == Some(place) && now.duration_since(since) >= LONELY_TIME =>
            {
                self.home = None;
            }
            (true, Some(_)) => {}
        }
    }

    /// The leader, by whose word the quorum is known and which has just answered, decides whether home is left: it may
    /// have been taken out of the quorum without having heard of it, and may wait for its leader for ever.
    fn look_at_home(&mut self, place: Place) {
        let Some(home) = self.home.filter(|home| self.leader == Some(place) && *home != place) else {
            return;
        };
        let silence = self.roster.get(home).map_or(Duration::ZERO, |server| server.silence);
        if self.roster.is_outside(home) || silence >= CUT_OFF_SILENCE {
            self.home = None;
        }
    }

    fn is_in_doubt(&self, place: Place) -> bool {
        self.roster.get(place).is_some_and(|server| server.silence >= DOUBT_SILENCE)
    }

    /// What shall be done now.
    pub(super) fn orders(&mut self, now: Instant) -> Orders {
        let cut = self.cut_the_dead(now);
        self.choose_home(now);
        self.notice_hunt(now);
        self.roster.forget_the_unlisted();
        let mut orders = Orders { leader: self.leader, home: self.home, cut, ..Orders::default() };
        self.keep(&mut orders, now);
        self.ask(&mut orders, now);
        orders
    }

    fn cut_the_dead(&mut self, now: Instant) -> Vec<Place> {
        let is_dead =
            |server: &Server| server.is_asked && server.asked.is_some_and(|asked| now >= asked + DEAD_TIME);
        let dead = self.roster.iter().filter(|(_, server)| is_dead(server)).map(|(place, _)| place);
        let dead: Vec<_> = dead.collect();
        for place in &dead {
            self.lost(*place, now);
        }
        dead
    }

    fn notice_hunt(&mut self, now: Instant) {
        let is_fine = |place: Option<Place>| {
            place.and_then(|place| self.roster.get(place)).is_some_and(|server| !server.is_slow)
        };
        if is_fine(self.leader) && is_fine(self.home) {
            self.hunting = None;
        } else {
            self.hunting.get_or_insert(now);
        }
    }

    fn choose_home(&mut self, now: Instant) {
        let is_silent =
            |server: &Server| server.is_asked && server.asked.is_some_and(|asked| now >= asked + SILENT_TIME);
        let is_good = |server: &Server| !(server.is_doubtful() && is_silent(server));
        if self.home.and_then(|home| self.roster.get(home)).is_some_and(is_good) {
            return;
        }
        let is_well = |place: &Place| {
            self.roster.get(*place).is_some_and(|server| server.is_well() && !is_silent(server))
        };
        let is_lonely = |place: &Place| {
            self.roster.is_outside(*place)
                || self.roster.get(*place).is_some_and(|server| server.lonely_since.is_some())
        };
        let well: Vec<_> = self.roster.ranked().into_iter().filter(is_well).collect();
        let best = well.iter().find(|place| !is_lonely(place)).or(well.first()).copied();
        self.home = best.or(self.home);
    }

    /// Leader, home, one in reserve; while the leader is looked for one more after the other.
    fn keep(&mut self, orders: &mut Orders, now: Instant) {
        let ranked = self.roster.ranked();
        let mut needed: BTreeSet<Place> = [self.leader, self.home].into_iter().flatten().collect();
        if let Some((claimed, count)) = self.claimed {
            needed.insert(claimed);
            let is_up = self.roster.get(claimed).is_some_and(|server| server.is_up);
            orders.hasten = (!is_up && count == 0).then_some(claimed);
            if !is_up {
                // It was hastened once; how soon a dead one is dialled again, its own pauses say.
                self.claimed = Some((claimed, 1));
            }
        }
        if let Some(since) = self.hunting {
            let age = now.duration_since(since);
            let count = age.as_millis() / DIAL_INTERVAL.as_millis();
            let count = usize::try_from(count).unwrap_or(usize::MAX).saturating_add(1).min(ranked.len());
            needed.extend(&ranked[..count]);
            if count < ranked.len() {
                wake_at(orders, since + DIAL_INTERVAL * u32::try_from(count).unwrap_or(u32::MAX));
            }
        } else if needed.len() < 2 {
            needed.extend(self.reserve(&ranked, &needed));
        }
        for (place, server) in self.roster.iter_mut() {
            if needed.contains(&place) {
                server.kept_until = Some(now + IDLE_TIME);
            } else if server.is_up
                && server.double_of.is_none()
                && server.kept_until.is_some_and(|at| at > now)
            {
                needed.insert(place);
                wake_at(orders, server.kept_until.unwrap_or(now));
            }
        }
        orders.keep = needed;
    }

    /// One that is connected already, or else the one that failed least.
    fn reserve(&self, ranked: &[Place], needed: &BTreeSet<Place>) -> Option<Place> {
        let free = ranked.iter().enumerate().filter(|(_, place)| !needed.contains(place));
        let costs = free.map(|(rank, place)| {
            let server = self.roster.get(*place);
            let is_up = server.is_some_and(|server| server.is_up);
            (!is_up, server.map_or(0, |server| server.failures), rank, *place)
        });
        costs.min().map(|(.., place)| place)
    }

    fn ask(&mut self, orders: &mut Orders, now: Instant) {
        let places: Vec<Place> = self.roster.iter().map(|(place, _)| place).collect();
        for place in places {
            let Some(due) = self.due(place, now) else { continue };
            if due > now {
                wake_at(orders, due);
                continue;
            }
            let spread = self.spread();
            let server = self.roster.server_mut(place);
            (server.asked, server.is_asked, server.spread) = (Some(now), true, spread);
            orders.ask.push(place);
            wake_at(orders, now + SILENT_TIME);
        }
    }

    /// When a place is to be asked; where a question is open, when it has been for too long.
    fn due(&self, place: Place, now: Instant) -> Option<Instant> {
        let server = self.roster.get(place).filter(|server| server.is_up)?;
        let Some(asked) = server.asked else { return Some(now) };
        if server.is_asked {
            let silent = asked + SILENT_TIME;
            return Some(if now < silent { silent } else { asked + DEAD_TIME });
        }
        let (is_doubtful, not_before, spread) = (server.is_doubtful(), server.not_before, server.spread);
        let is_lonely = server.lonely_since.is_some();
        let pause = match (self.hunting, self.claimed) {
            (_, Some((claimed, count))) if claimed == place && count < CLAIM_QUESTIONS => CLAIM_INTERVAL,
            _ if is_doubtful => DOUBT_INTERVAL,
            (Some(since), _) => hunt_interval(now.duration_since(since)),
            _ if self.home == Some(place) && is_lonely => DOUBT_INTERVAL,
            _ if self.leader == Some(place) && self.home.is_some_and(|home| self.is_in_doubt(home)) => {
                DOUBT_INTERVAL
            }
            _ if self.home == Some(place) => HOME_INTERVAL,
            _ => return None,
        };
        let due = asked + pause.mul_f64(spread);
        Some(not_before.map_or(due, |at| due.max(at)))
    }

    /// Between 0.7 and 1.3, evenly.
    fn spread(&mut self) -> f64 {
        // A step of splitmix64: good enough to keep agents out of step.
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ (self.chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        0.7 + 0.6 * f64::from((mixed >> 32) as u32) / f64::from(u32::MAX)
    }
}

fn hunt_interval(age: Duration) -> Duration {
    let is_it = |(until, _): &&(Duration, Duration)| age < *until;
    HUNT_INTERVALS.iter().find(is_it).map_or(DOUBT_INTERVAL, |(_, interval)| *interval)
}

fn wake_at(orders: &mut Orders, at: Instant) {
    orders.wake = Some(orders.wake.map_or(at, |wake| wake.min(at)));
}
