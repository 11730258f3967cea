//! Stories of the tracker: its inputs and the resulting actions. The story controls the time.

use lockmesh_agent_core::leader_tracker::{Actions, LeaderTracker};
use lockmesh_agent_core::servers::Slot;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::rpc::{ServerStatus, Status};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

const A: Slot = Slot(1);
const B: Slot = Slot(2);
const C: Slot = Slot(3);

/// Three servers configured as `a:1`, `b:1` and `c:1`, with the ids 1, 2 and 3, which know each
/// other.
struct Story {
    tracker: LeaderTracker,
    now: Time,
    actions: Actions,
    /// The number of agents that servers report.
    agents: u64,
}

impl Story {
    fn begin() -> Self {
        Self::with_seeds(&["a:1", "b:1", "c:1"])
    }

    fn with_seeds(seeds: &[&str]) -> Self {
        let seeds: Vec<_> = seeds.iter().map(|seed| (*seed).to_owned()).collect();
        let now = Time(0);
        let mut tracker = LeaderTracker::new("web-1", &seeds, 7, now);
        let actions = tracker.actions(now);
        Self { tracker, now, actions, agents: 0 }
    }

    /// All three are connected and have reported a status; `leader` leads in the term, `home` is
    /// home.
    fn at_rest(leader: Slot, home: Slot, term: u64) -> Self {
        let mut story = Self::begin();
        let others = [A, B, C].into_iter().filter(|slot| *slot != home);
        for slot in [home].into_iter().chain(others) {
            story.up(slot);
            story.reports_leader(slot, Some(leader), term);
        }
        story.reports_leader(leader, Some(leader), term);
        story.pass(5000);
        assert_eq!((story.actions.leader, story.actions.home), (Some(leader), Some(home)));
        story
    }

    fn step(&mut self) -> &Actions {
        self.actions = self.tracker.actions(self.now);
        &self.actions
    }

    fn pass(&mut self, milliseconds: u64) -> &Actions {
        self.now = self.now + Duration::from_millis(milliseconds);
        self.step()
    }

    /// Lets time pass while each server answers as `says` returns: a leader and a term, or no
    /// reply. Returns the number of questions to each slot.
    fn run(&mut self, milliseconds: u64, says: impl Fn(Slot) -> Option<(Option<Slot>, u64)>) -> [usize; 3] {
        let end = self.now + Duration::from_millis(milliseconds);
        let mut asked = [0; 3];
        loop {
            for slot in std::mem::take(&mut self.actions.ask) {
                asked[slot.0 as usize - 1] += 1;
                if let Some((leader, term)) = says(slot) {
                    let agents = self.agents;
                    let status = Status { agents, ..status(slot, leader, term) };
                    self.tracker.record_status(slot, &status, self.now);
                }
            }
            self.step();
            if self.actions.ask.is_empty() {
                match self.actions.wakes_at {
                    Some(wakes_at) if wakes_at <= end => self.now = wakes_at.max(self.now),
                    _ => break,
                }
                self.step();
            }
        }
        self.now = end;
        self.step();
        asked
    }

    fn up(&mut self, slot: Slot) {
        self.tracker.connected(slot);
        let actions = self.step();
        assert!(actions.ask.contains(&slot), "connected servers are asked: {actions:?}");
    }

    fn reports_leader(&mut self, slot: Slot, leader: Option<Slot>, term: u64) {
        let status = Status { agents: self.agents, ..status(slot, leader, term) };
        self.tracker.record_status(slot, &status, self.now);
        self.step();
    }

    fn slow(&mut self, slot: Slot) {
        self.tracker.slow(slot, true);
        self.step();
    }

    fn refuses(&mut self, slot: Slot, hint: Option<&str>) {
        self.tracker.refused(slot, hint, self.now);
        self.step();
    }

    fn lost(&mut self, slot: Slot) {
        self.tracker.lost(slot, self.now);
        self.step();
    }

    fn leader(&self) -> Option<Slot> {
        self.actions.leader
    }
}

fn status(slot: Slot, leader: Option<Slot>, term: u64) -> Status {
    status_of(u64::from(slot.0), leader.map(|leader| u64::from(leader.0)), term, &["a:1", "b:1", "c:1"])
}

fn status_of(server: u64, leader: Option<u64>, term: u64, addresses: &[&str]) -> Status {
    let row = |(number, address): (usize, &&str)| ServerStatus {
        id: ServerId(number as u64 + 1),
        node_id: String::new(),
        node: String::new(),
        address: (*address).into(),
        voter: true,
        last_index: LogIndex(0),
        last_contact: None,
        healthy: true,
        stable_since: None,
        version: String::new(),
    };
    Status {
        cluster_id: "c".into(),
        server: ServerId(server),
        leader: leader.map(ServerId),
        term: Term(term),
        servers: addresses.iter().enumerate().map(row).collect(),
        ..Status::default()
    }
}

fn slots(slots: &[Slot]) -> BTreeSet<Slot> {
    slots.iter().copied().collect()
}

#[test]
fn single_server_is_leader_and_home() {
    let mut story = Story::with_seeds(&["a:1"]);
    assert_eq!(story.actions.keep, slots(&[A]));
    story.up(A);
    assert_eq!((story.leader(), story.actions.home), (None, None));
    let status = status_of(1, Some(1), 1, &["a:1"]);
    story.tracker.record_status(A, &status, story.now);
    let actions = story.step();
    assert_eq!((actions.leader, actions.home, &actions.keep), (Some(A), Some(A), &slots(&[A])));
    // Only the home server's list is read from time to time.
    assert!(story.actions.wakes_at.unwrap() - story.now > Duration::from_secs(5));
}

#[test]
fn initial_dials_are_staggered() {
    let mut story = Story::begin();
    let first = story.actions.keep.clone();
    assert_eq!(first.len(), 1);
    assert_eq!(story.pass(60).keep.len(), 2);
    assert_eq!(story.pass(60).keep.len(), 3);
    let others: Vec<_> =
        (0..20).map(|agent| LeaderTracker::new(&format!("web-{agent}"), &seeds(), 0, story.now)).collect();
    let firsts: BTreeSet<_> =
        others.into_iter().flat_map(|mut other| other.actions(story.now).keep).collect();
    assert_eq!(firsts, slots(&[A, B, C]), "not all agents begin with the same server");
}

fn seeds() -> Vec<String> {
    ["a:1", "b:1", "c:1"].map(String::from).into()
}

#[test]
fn leader_needs_its_own_report() {
    let mut story = Story::begin();
    story.up(B);
    story.reports_leader(B, Some(A), 3);
    assert_eq!(story.leader(), None);
    assert!(story.actions.keep.contains(&A), "the named leader is dialled");
    assert_eq!((story.actions.hasten, story.pass(1).hasten), (Some(A), None), "and hastened, once");
    story.up(A);
    story.reports_leader(A, None, 3);
    assert_eq!(story.leader(), None, "it does not serve yet");
    story.reports_leader(A, Some(A), 3);
    assert_eq!((story.leader(), story.actions.home), (Some(A), Some(B)));
}

#[test]
fn discovers_servers_from_roster() {
    let mut story = Story::with_seeds(&["b:1"]);
    let b = story.actions.keep.first().copied().unwrap();
    story.up(b);
    story.tracker.record_status(b, &status_of(2, Some(1), 3, &["a:1", "b:1", "c:1"]), story.now);
    story.step();
    let leader = *story.actions.keep.iter().find(|slot| **slot != b).unwrap();
    assert_eq!(story.tracker.address(leader), Some("a:1"));
    story.up(leader);
    story.tracker.record_status(leader, &status_of(1, Some(1), 3, &["a:1", "b:1", "c:1"]), story.now);
    assert_eq!((story.step().leader, story.actions.home), (Some(leader), Some(b)));
    // The configured server dies: a server learned from the roster becomes home, and the third one
    // the reserve.
    story.lost(b);
    assert_eq!(story.actions.home, Some(leader));
    let addresses: Vec<_> = story.actions.keep.iter().map(|slot| story.tracker.address(*slot)).collect();
    assert_eq!(addresses, [Some("a:1"), Some("c:1")]);
}

#[test]
fn answering_leader_is_not_queried() {
    let mut story = Story::at_rest(A, B, 3);
    let asked = story.run(60_000, |_| Some((Some(A), 3)));
    assert_eq!((asked[0], asked[2]), (0, 0));
    assert!((4..=9).contains(&asked[1]), "home is asked about every ten seconds: {asked:?}");
    assert_eq!(story.actions.keep, slots(&[A, B]), "the idle third connection was closed");
}

#[test]
fn silent_leader_replaced_by_successor() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(A);
    assert_eq!(story.leader(), Some(A), "no other server is known to lead");
    // No server has newer information for a while.
    let asked = story.run(300, |slot| (slot != A).then_some((Some(A), 3)));
    assert!((7..=16).contains(&asked[1]) && (7..=16).contains(&asked[2]), "{asked:?}");
    assert_eq!((asked[0], story.leader()), (1, Some(A)));
    // B reports that C leads now: A no longer leads, and C is asked at once.
    story.reports_leader(B, Some(C), 4);
    assert_eq!(story.leader(), None);
    let asked = story.run(7, |slot| (slot != A).then_some((Some(C), 4)));
    assert_eq!((asked[2], story.leader(), story.actions.home), (1, Some(C), Some(B)));
    let asked = story.run(1000, |slot| (slot != A).then_some((Some(C), 4)));
    assert_eq!(asked, [0, 0, 0], "A has not answered, the others are not asked");
}

#[test]
fn successor_found_within_one_interval() {
    for home in [B, C] {
        let mut story = Story::at_rest(A, home, 3);
        story.slow(A);
        story.run(250, |slot| (slot != A).then_some((None, 3)));
        story.run(40, |slot| (slot != A).then_some((Some(C), 4)));
        assert_eq!(story.leader(), Some(C));
    }
}

#[test]
fn dead_leader_loses_home_role() {
    let mut story = Story::at_rest(A, A, 3);
    story.slow(A);
    story.reports_leader(C, Some(C), 4);
    assert_eq!((story.leader(), story.actions.home.is_some_and(|home| home != A)), (Some(C), true));
}

#[test]
fn deposed_live_leader_stays_home() {
    let mut story = Story::at_rest(A, A, 3);
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), None);
    story.run(7, |_| Some((Some(C), 4)));
    assert_eq!((story.leader(), story.actions.home), (Some(C), Some(A)));
}

#[test]
fn hint_is_verified_before_use() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), None);
    // C is asked within 5 ms, and reports that it does not lead; the hint was outdated.
    let asked = story.run(10, |slot| Some(if slot == B { (Some(B), 4) } else { (None, 3) }));
    assert!(asked[2] >= 1, "{asked:?}");
    story.run(40, |slot| Some(if slot == B { (Some(B), 4) } else { (None, 3) }));
    assert_eq!(story.leader(), Some(B));
    // A late refusal from the former leader has no effect.
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), Some(B));
}

#[test]
fn mutual_hints_are_rate_limited() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("b:1"));
    let asked = story.run(1000, |slot| match slot {
        A => Some((Some(B), 3)),
        B => Some((Some(A), 3)),
        _ => None,
    });
    assert!(asked[0] <= 260 && asked[1] <= 260, "{asked:?}");
}

#[test]
fn refusing_leader_trusted_again_later() {
    let mut story = Story::at_rest(A, B, 3);
    for _ in 0..3 {
        story.refuses(A, None);
        story.reports_leader(A, Some(A), 3);
        assert_eq!(story.leader(), None);
        story.run(60, |_| Some((Some(A), 3)));
        assert_eq!(story.leader(), Some(A));
    }
}

#[test]
fn acknowledgement_reveals_new_leader() {
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.acknowledged(ServerId(1), Term(3), story.now);
    story.step();
    assert_eq!((story.leader(), story.actions.ask.len()), (Some(A), 0), "no news");
    story.tracker.acknowledged(ServerId(3), Term(4), story.now);
    story.step();
    assert_eq!(story.leader(), None, "it leads by its own report only");
    assert!(story.actions.keep.contains(&C), "{:?}", story.actions);
    story.up(C);
    story.reports_leader(C, Some(C), 4);
    assert_eq!(story.leader(), Some(C));
    // An older one arrives late.
    story.tracker.acknowledged(ServerId(1), Term(3), story.now);
    assert_eq!(story.step().leader, Some(C));
    // For an unknown server, home is asked.
    story.tracker.acknowledged(ServerId(9), Term(5), story.now);
    story.step();
    assert_eq!((story.actions.leader, story.actions.ask.as_slice()), (Some(C), [B].as_slice()));
}

#[test]
fn lagging_follower_changes_nothing() {
    let mut story = Story::at_rest(C, B, 4);
    story.reports_leader(B, Some(A), 3);
    assert_eq!((story.leader(), story.actions.home), (Some(C), Some(B)));
    story.reports_leader(A, Some(A), 3);
    assert_eq!(story.leader(), Some(C), "a deposed one that does not know it yet");
    // It leads if there is nothing newer for a long time: the cluster was rebuilt.
    story.lost(C);
    story.reports_leader(A, Some(A), 3);
    assert_eq!(story.leader(), None);
    story.pass(2000);
    story.reports_leader(A, Some(A), 3);
    assert_eq!(story.leader(), Some(A));
}

#[test]
fn leaderless_home_is_replaced() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(B, None);
    assert_eq!((story.leader(), story.actions.home), (Some(A), Some(B)));
    story.run(1500, |slot| Some(if slot == B { (None, 3) } else { (Some(A), 3) }));
    assert_eq!(story.actions.home, Some(B), "elections are short");
    story.run(1500, |slot| Some(if slot == B { (None, 3) } else { (Some(A), 3) }));
    assert_ne!(story.actions.home, Some(B));
}

#[test]
fn silent_home_replaced_then_disconnected() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(B);
    let others = |slot| (slot != B).then_some((Some(A), 3));
    story.run(290, others);
    assert_eq!((story.leader(), story.actions.home), (Some(A), Some(B)));
    story.run(20, others);
    assert!(story.actions.home.is_some_and(|home| home != B));
    let mut cut = Vec::new();
    while cut.is_empty() {
        story.now = story.actions.wakes_at.unwrap();
        cut = story.step().cut.clone();
    }
    assert_eq!(cut, [B]);
    assert_eq!(story.step().cut, []);
}

#[test]
fn home_replaced_despite_dead_leader() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(B);
    // No call to A is pending, but A has left a question unanswered for as long as B.
    story.run(310, |slot| (slot == C).then_some((None, 3)));
    assert_eq!((story.actions.home, story.leader()), (Some(C), Some(A)));
}

#[test]
fn leaderless_queries_back_off() {
    let mut story = Story::at_rest(A, B, 3);
    story.lost(A);
    let ask = |_| Some((None, 5));
    let [_, first, _] = story.run(2000, ask);
    let [_, second, _] = story.run(8000, ask);
    story.run(50_000, ask);
    let [_, later, _] = story.run(60_000, ask);
    assert!((40..=110).contains(&first), "{first}");
    assert!((55..=120).contains(&second), "{second}");
    assert!((20..=45).contains(&later), "{later}");
}

#[test]
fn large_fleet_queries_less_often() {
    // Questions of one agent in the first second without a leader.
    let asked = |agents: u64| {
        let mut story = Story::at_rest(A, A, 3);
        story.agents = agents;
        story.reports_leader(A, Some(A), 3);
        for slot in [B, C] {
            story.up(slot);
            story.reports_leader(slot, Some(A), 3);
        }
        story.lost(A);
        let [_, b, c] = story.run(1_000, |slot| (slot != A).then_some((None, 3)));
        b + c
    };
    assert!(asked(10) > 40, "a small fleet is quick: {}", asked(10));
    assert!((5..20).contains(&asked(1_000)), "{}", asked(1_000));
    assert!(asked(10_000) <= 2, "{}", asked(10_000));
}

#[test]
fn named_leader_hastened_once_per_second() {
    let mut story = Story::begin();
    story.up(B);
    let mut hastened = 0;
    for _ in 0..300 {
        story.reports_leader(B, Some(A), 3);
        hastened += u32::from(story.actions.hasten == Some(A));
        story.pass(10);
    }
    assert_eq!(hastened, 3);
}

#[test]
fn redial_delay_grows_with_fleet() {
    let longest = |agents: u64| {
        let mut story = Story::at_rest(A, A, 3);
        story.agents = agents;
        story.reports_leader(A, Some(A), 3);
        story.tracker.longest_pause().as_millis()
    };
    assert_eq!([0, 250, 1_000, 100_000].map(longest), [250, 250, 1_000, 2_000]);
}

#[test]
fn hinted_leader_not_overrun_by_fleet() {
    let asked = |agents: u64| {
        let mut story = Story::at_rest(A, B, 3);
        story.agents = agents;
        story.reports_leader(B, Some(A), 3);
        story.up(C);
        story.reports_leader(C, Some(A), 3);
        story.refuses(A, Some("c:1"));
        let [.., c] = story.run(100, |_| Some((None, 3)));
        c
    };
    assert!(asked(10) > 10, "a small fleet is quick: {}", asked(10));
    assert!(asked(10_000) <= 1, "{}", asked(10_000));
}

#[test]
fn query_intervals_are_jittered() {
    let pauses: BTreeSet<Duration> = (0..50)
        .map(|seed| {
            let now = Time(0);
            let mut tracker = LeaderTracker::new("web-1", &["a:1".into()], seed, now);
            tracker.connected(A);
            tracker.actions(now);
            tracker.record_status(A, &status_of(1, None, 1, &["a:1"]), now);
            tracker.actions(now).wakes_at.unwrap() - now
        })
        .collect();
    assert!(pauses.len() > 40);
    assert!(pauses.first().unwrap() >= &Duration::from_millis(20));
    assert!(pauses.last().unwrap() <= &Duration::from_millis(40));
}

#[test]
fn aliased_server_connected_once() {
    let mut story = Story::with_seeds(&["name:1", "a:1"]);
    story.pass(60);
    let (name, a) = (Slot(1), Slot(2));
    story.up(name);
    story.tracker.record_status(name, &status_of(1, Some(1), 3, &["a:1"]), story.now);
    assert_eq!(story.step().leader, Some(name));
    story.up(a);
    story.tracker.record_status(a, &status_of(1, Some(1), 3, &["a:1"]), story.now);
    assert_eq!((story.step().leader, &story.actions.keep), (Some(name), &slots(&[name])));
    story.lost(name);
    assert!(story.actions.keep.contains(&a), "now the other address will do");
}

/// Real agents with host names in their configuration connected 600 times a second to a server that
/// had lost its quorum: the second connection was closed as soon as it was identified, and then
/// looked like a server that was not asked yet.
#[test]
fn alias_not_redialled_without_leader() {
    let mut story = Story::with_seeds(&["name:1", "a:1"]);
    let (name, a) = (Slot(1), Slot(2));
    for slot in [name, a] {
        story.up(slot);
        story.tracker.record_status(slot, &status_of(1, None, 3, &["a:1"]), story.now);
        story.step();
    }
    assert_eq!(story.actions.keep, slots(&[name]), "it is the same server");
    story.lost(a);
    story.pass(2_000);
    assert_eq!(story.actions.keep, slots(&[name]));
    story.lost(name);
    assert!(story.actions.keep.contains(&a), "now it is the way to that server");
}

#[test]
fn removed_server_is_forgotten() {
    let mut story = Story::with_seeds(&["a:1"]);
    story.up(A);
    story.tracker.record_status(A, &status_of(1, Some(1), 3, &["a:1", "b:1"]), story.now);
    assert_eq!(story.step().keep.len(), 2);
    let mut later = status_of(1, Some(1), 3, &["a:1"]);
    later.applied_index = LogIndex(9);
    story.tracker.record_status(A, &later, story.now);
    assert_eq!(story.step().keep, slots(&[A]));
    assert_eq!(story.tracker.address(B), None);
    // An older list, from a server that lags, does not bring it back.
    story.tracker.record_status(A, &status_of(1, Some(1), 3, &["a:1", "b:1"]), story.now);
    assert_eq!(story.step().keep, slots(&[A]));
}

#[test]
fn added_servers_kept_within_limit() {
    let mut tracker = LeaderTracker::new("agent", &seeds()[..1], 7, Time(0));
    let names: Vec<String> = (0..17).map(|number| format!("later-{number}:1")).collect();
    names.iter().for_each(|name| tracker.add_server(name));
    tracker.add_server(&names[16]);
    let slot_of = |tracker: &LeaderTracker, name: &str| {
        tracker.slots().find(|slot| tracker.address(*slot) == Some(name))
    };
    let first = slot_of(&tracker, &seeds()[0]).expect("it is configured");
    tracker.connected(first);
    tracker.record_status(first, &status_of(1, Some(1), 1, &[&seeds()[0]]), Time(0));
    tracker.actions(Time(0));
    let is_known: Vec<bool> = names.iter().map(|name| slot_of(&tracker, name).is_some()).collect();
    assert_eq!(is_known, [&[false][..], &[true; 16]].concat(), "only the one added first is dropped");
}

#[test]
fn bootstrapping_servers_stay_distinct() {
    let mut story = Story::begin();
    for slot in [A, B, C] {
        story.up(slot);
        story.tracker.record_status(slot, &Status::default(), story.now);
    }
    story.pass(200);
    assert_eq!((&story.actions.keep, story.leader()), (&slots(&[A, B, C]), None));
    story.run(1000, |_| Some((Some(C), 1)));
    assert_eq!(story.leader(), Some(C));
}

/// The status of a follower without contact to its leader for this long.
fn silent_status(slot: Slot, leader: Slot, term: u64, seconds: u64) -> Status {
    Status { last_contact: Some(Duration::from_secs(seconds)), ..status(slot, Some(leader), term) }
}

/// The status of a leader after B was removed from the quorum.
fn status_without_b(leader: Slot, term: u64) -> Status {
    let mut status = Status { applied_index: LogIndex(9), ..status(leader, Some(leader), term) };
    status.servers.retain(|server| server.id != ServerId(2));
    status
}

#[test]
fn removed_home_is_replaced() {
    let mut story = Story::at_rest(A, B, 3);
    // It never campaigns, so it keeps its leader and its term; only the missing contact reveals it.
    story.tracker.record_status(B, &silent_status(B, A, 3, 4), story.now);
    let actions = story.step();
    assert!(
        actions.ask.contains(&A) && actions.home == Some(B),
        "the leader knows whether B is one of its servers"
    );
    story.tracker.record_status(A, &status_without_b(A, 3), story.now);
    assert_eq!((story.step().leader, story.actions.home), (Some(A), Some(C)));
    // Its further reports do not bring it back.
    story.tracker.record_status(B, &silent_status(B, A, 3, 5), story.now);
    assert_eq!(story.step().home, Some(C));
}

#[test]
fn home_unknown_to_new_leader_replaced() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("c:1"));
    story.up(C);
    story.tracker.record_status(C, &status_without_b(C, 4), story.now);
    assert_eq!((story.step().leader, story.actions.home), (Some(C), Some(C)));
}

#[test]
fn home_kept_while_leader_unknown() {
    let mut story = Story::at_rest(A, B, 3);
    story.lost(A);
    story.up(C);
    let mut follower = status_without_b(C, 3);
    follower.leader = None;
    story.tracker.record_status(C, &follower, story.now);
    story.tracker.record_status(B, &silent_status(B, A, 3, 60), story.now);
    assert_eq!((story.step().leader, story.actions.home), (None, Some(B)));
    story.run(5000, |slot| (slot != A).then_some((None, 3)));
    assert_eq!(story.actions.home, Some(B));
}

#[test]
fn home_partitioned_from_leader_replaced() {
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.record_status(B, &silent_status(B, A, 3, 9), story.now);
    story.reports_leader(A, Some(A), 3);
    assert_eq!(story.actions.home, Some(B), "it may have been busy for a while");
    story.pass(1000);
    story.tracker.record_status(B, &silent_status(B, A, 3, 10), story.now);
    assert_eq!(story.step().home, Some(B), "the leader itself may be the one that is gone");
    story.reports_leader(A, Some(A), 3);
    assert_eq!((story.leader(), story.actions.home), (Some(A), Some(C)));
    // A server that has contact with its leader again is as good as before.
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.record_status(B, &silent_status(B, A, 3, 4), story.now);
    story.tracker.record_status(B, &silent_status(B, A, 3, 0), story.now);
    let asked = story.run(60_000, |_| Some((Some(A), 3)));
    assert!(asked[0] <= 1 && story.actions.home == Some(B), "{asked:?}");
}

#[test]
fn server_reporting_removal_is_dropped() {
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.removed(B, story.now);
    assert_eq!((story.step().leader, story.actions.home), (Some(A), Some(C)));
    // The same without a leader, and without a replacement.
    let mut story = Story::at_rest(A, A, 3);
    story.tracker.removed(A, story.now);
    assert_eq!(story.step().leader, None);
    assert_ne!(story.actions.home, Some(A));
    story.run(1000, |slot| (slot != A).then_some((None, 3)));
    assert_ne!(story.actions.home, Some(A));
    // It may join again as a new server, with a new connection.
    story.lost(A);
    story.up(A);
    story.reports_leader(A, Some(A), 4);
    assert_eq!(story.leader(), Some(A));
}

#[test]
fn quiet_home_queried_before_replacement() {
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.quiet(B, true);
    assert!(story.step().ask.contains(&B) && story.actions.home == Some(B), "it may have had nothing to say");
    let others = |slot| (slot != B).then_some((Some(A), 3));
    story.run(290, others);
    assert_eq!(story.actions.home, Some(B));
    let asked = story.run(20, others);
    assert_eq!((story.leader(), story.actions.home, asked[0]), (Some(A), Some(C), 0));
    // A server that answers stays.
    let mut story = Story::at_rest(A, B, 3);
    story.tracker.quiet(B, true);
    story.step();
    story.run(5000, |_| Some((Some(A), 3)));
    assert_eq!(story.actions.home, Some(B));
}
