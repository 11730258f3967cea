//! Stories of the compass: what is heard, and what is done then. Time is what the story says.

use super::compass::{Compass, Orders};
use super::roster::Place;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::rpc::{ServerStatus, Status};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const A: Place = Place(1);
const B: Place = Place(2);
const C: Place = Place(3);

/// Three servers that are configured as `a:1`, `b:1`, `c:1`, have the ids 1, 2 and 3, and know each other.
struct Story {
    compass: Compass,
    now: Instant,
    orders: Orders,
}

impl Story {
    fn begin() -> Self {
        Self::with_seeds(&["a:1", "b:1", "c:1"])
    }

    fn with_seeds(seeds: &[&str]) -> Self {
        let seeds: Vec<_> = seeds.iter().map(|seed| (*seed).to_owned()).collect();
        let now = Instant::now();
        let mut compass = Compass::new("web-1", &seeds, 7, now);
        let orders = compass.orders(now);
        Self { compass, now, orders }
    }

    /// All three connected and heard; `leader` leads in the term, `home` is home.
    fn at_rest(leader: Place, home: Place, term: u64) -> Self {
        let mut story = Self::begin();
        let others = [A, B, C].into_iter().filter(|place| *place != home);
        for place in [home].into_iter().chain(others) {
            story.up(place);
            story.says(place, Some(leader), term);
        }
        story.says(leader, Some(leader), term);
        story.pass(5000);
        assert_eq!((story.orders.leader, story.orders.home), (Some(leader), Some(home)));
        story
    }

    fn step(&mut self) -> &Orders {
        self.orders = self.compass.orders(self.now);
        &self.orders
    }

    fn pass(&mut self, milliseconds: u64) -> &Orders {
        self.now += Duration::from_millis(milliseconds);
        self.step()
    }

    /// Lets the clock run and everybody who is asked answer, with what `says` gives: a leader and a term, or silence.
    /// Gives how often each place was asked.
    fn run(&mut self, milliseconds: u64, says: impl Fn(Place) -> Option<(Option<Place>, u64)>) -> [usize; 3] {
        let end = self.now + Duration::from_millis(milliseconds);
        let mut asked = [0; 3];
        loop {
            for place in std::mem::take(&mut self.orders.ask) {
                asked[place.0 as usize - 1] += 1;
                if let Some((leader, term)) = says(place) {
                    self.compass.heard(place, &status(place, leader, term), self.now);
                }
            }
            self.step();
            if self.orders.ask.is_empty() {
                match self.orders.wake {
                    Some(wake) if wake <= end => self.now = wake.max(self.now),
                    _ => break,
                }
                self.step();
            }
        }
        self.now = end;
        self.step();
        asked
    }

    fn up(&mut self, place: Place) {
        self.compass.connected(place);
        let orders = self.step();
        assert!(orders.ask.contains(&place), "who is connected is asked: {orders:?}");
    }

    fn says(&mut self, place: Place, leader: Option<Place>, term: u64) {
        self.compass.heard(place, &status(place, leader, term), self.now);
        self.step();
    }

    fn slow(&mut self, place: Place) {
        self.compass.slow(place, true);
        self.step();
    }

    fn refuses(&mut self, place: Place, hint: Option<&str>) {
        self.compass.refused(place, hint, self.now);
        self.step();
    }

    fn lost(&mut self, place: Place) {
        self.compass.lost(place, self.now);
        self.step();
    }

    fn leader(&self) -> Option<Place> {
        self.orders.leader
    }
}

fn status(place: Place, leader: Option<Place>, term: u64) -> Status {
    status_of(u64::from(place.0), leader.map(|leader| u64::from(leader.0)), term, &["a:1", "b:1", "c:1"])
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

fn places(places: &[Place]) -> BTreeSet<Place> {
    places.iter().copied().collect()
}

#[test]
fn one_server_is_leader_and_home_and_is_then_left_in_peace() {
    let mut story = Story::with_seeds(&["a:1"]);
    assert_eq!(story.orders.keep, places(&[A]));
    story.up(A);
    assert_eq!((story.leader(), story.orders.home), (None, None));
    let status = status_of(1, Some(1), 1, &["a:1"]);
    story.compass.heard(A, &status, story.now);
    let orders = story.step();
    assert_eq!((orders.leader, orders.home, &orders.keep), (Some(A), Some(A), &places(&[A])));
    // Only the home server's roster is looked at now and then.
    assert!(story.orders.wake.unwrap() - story.now > Duration::from_secs(5));
}

#[test]
fn servers_are_dialled_one_after_the_other_until_one_answers() {
    let mut story = Story::begin();
    let first = story.orders.keep.clone();
    assert_eq!(first.len(), 1);
    assert_eq!(story.pass(60).keep.len(), 2);
    assert_eq!(story.pass(60).keep.len(), 3);
    let others: Vec<_> =
        (0..20).map(|agent| Compass::new(&format!("web-{agent}"), &seeds(), 0, story.now)).collect();
    let firsts: BTreeSet<_> = others.into_iter().flat_map(|mut other| other.orders(story.now).keep).collect();
    assert_eq!(firsts, places(&[A, B, C]), "not all agents begin with the same server");
}

fn seeds() -> Vec<String> {
    ["a:1", "b:1", "c:1"].map(String::from).into()
}

#[test]
fn a_server_leads_by_its_own_word_only() {
    let mut story = Story::begin();
    story.up(B);
    story.says(B, Some(A), 3);
    assert_eq!(story.leader(), None);
    assert!(story.orders.keep.contains(&A), "who is said to lead is dialled");
    assert_eq!((story.orders.hasten, story.pass(1).hasten), (Some(A), None), "and told to hurry, once");
    story.up(A);
    story.says(A, None, 3);
    assert_eq!(story.leader(), None, "it does not serve yet");
    story.says(A, Some(A), 3);
    assert_eq!((story.leader(), story.orders.home), (Some(A), Some(B)));
}

#[test]
fn the_servers_that_were_not_configured_are_found_and_used() {
    let mut story = Story::with_seeds(&["b:1"]);
    let b = story.orders.keep.first().copied().unwrap();
    story.up(b);
    story.compass.heard(b, &status_of(2, Some(1), 3, &["a:1", "b:1", "c:1"]), story.now);
    story.step();
    let leader = *story.orders.keep.iter().find(|place| **place != b).unwrap();
    assert_eq!(story.compass.address(leader), Some("a:1"));
    story.up(leader);
    story.compass.heard(leader, &status_of(1, Some(1), 3, &["a:1", "b:1", "c:1"]), story.now);
    assert_eq!((story.step().leader, story.orders.home), (Some(leader), Some(b)));
    // The configured one dies: a server that was only heard of becomes the new home, and the third one the reserve.
    story.lost(b);
    assert_eq!(story.orders.home, Some(leader));
    let addresses: Vec<_> = story.orders.keep.iter().map(|place| story.compass.address(*place)).collect();
    assert_eq!(addresses, [Some("a:1"), Some("c:1")]);
}

#[test]
fn a_leader_that_answers_costs_no_questions() {
    let mut story = Story::at_rest(A, B, 3);
    let asked = story.run(60_000, |_| Some((Some(A), 3)));
    assert_eq!((asked[0], asked[2]), (0, 0));
    assert!((4..=9).contains(&asked[1]), "home is asked about every ten seconds: {asked:?}");
    assert_eq!(story.orders.keep, places(&[A, B]), "the idle third connection was closed");
}

#[test]
fn a_silent_leader_is_replaced_as_soon_as_another_one_leads() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(A);
    assert_eq!(story.leader(), Some(A), "nobody else is known to lead");
    // Nobody knows better for a while.
    let asked = story.run(300, |place| (place != A).then_some((Some(A), 3)));
    assert!((7..=16).contains(&asked[1]) && (7..=16).contains(&asked[2]), "{asked:?}");
    assert_eq!((asked[0], story.leader()), (1, Some(A)));
    // B says that C leads now: A leads no more, and C is asked at once.
    story.says(B, Some(C), 4);
    assert_eq!(story.leader(), None);
    let asked = story.run(7, |place| (place != A).then_some((Some(C), 4)));
    assert_eq!((asked[2], story.leader(), story.orders.home), (1, Some(C), Some(B)));
    let asked = story.run(1000, |place| (place != A).then_some((Some(C), 4)));
    assert_eq!(asked, [0, 0, 0], "A still owes an answer, the others are left in peace");
}

#[test]
fn the_new_leader_is_found_within_one_question_s_pause() {
    for home in [B, C] {
        let mut story = Story::at_rest(A, home, 3);
        story.slow(A);
        story.run(250, |place| (place != A).then_some((None, 3)));
        story.run(40, |place| (place != A).then_some((Some(C), 4)));
        assert_eq!(story.leader(), Some(C));
    }
}

#[test]
fn a_home_server_that_died_as_leader_is_left_together_with_it() {
    let mut story = Story::at_rest(A, A, 3);
    story.slow(A);
    story.says(C, Some(C), 4);
    assert_eq!((story.leader(), story.orders.home.is_some_and(|home| home != A)), (Some(C), true));
}

#[test]
fn a_home_server_that_was_deposed_and_lives_stays_home() {
    let mut story = Story::at_rest(A, A, 3);
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), None);
    story.run(7, |_| Some((Some(C), 4)));
    assert_eq!((story.leader(), story.orders.home), (Some(C), Some(A)));
}

#[test]
fn a_hint_is_followed_and_not_believed() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), None);
    // C is asked within 5 ms, and says that it does not lead; the hint was old.
    let asked = story.run(10, |place| Some(if place == B { (Some(B), 4) } else { (None, 3) }));
    assert!(asked[2] >= 1, "{asked:?}");
    story.run(40, |place| Some(if place == B { (Some(B), 4) } else { (None, 3) }));
    assert_eq!(story.leader(), Some(B));
    // A late refusal of the one that led before means nothing any more.
    story.refuses(A, Some("c:1"));
    assert_eq!(story.leader(), Some(B));
}

#[test]
fn two_servers_that_name_each_other_are_asked_at_a_pace() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("b:1"));
    let asked = story.run(1000, |place| match place {
        A => Some((Some(B), 3)),
        B => Some((Some(A), 3)),
        _ => None,
    });
    assert!(asked[0] <= 260 && asked[1] <= 260, "{asked:?}");
}

#[test]
fn a_server_that_says_it_leads_and_refuses_is_believed_again_later() {
    let mut story = Story::at_rest(A, B, 3);
    for _ in 0..3 {
        story.refuses(A, None);
        story.says(A, Some(A), 3);
        assert_eq!(story.leader(), None);
        story.run(60, |_| Some((Some(A), 3)));
        assert_eq!(story.leader(), Some(A));
    }
}

#[test]
fn a_follower_that_lags_moves_nobody() {
    let mut story = Story::at_rest(C, B, 4);
    story.says(B, Some(A), 3);
    assert_eq!((story.leader(), story.orders.home), (Some(C), Some(B)));
    story.says(A, Some(A), 3);
    assert_eq!(story.leader(), Some(C), "a deposed one that does not know it yet");
    // It does lead when there is nothing newer for long: the servers were set up anew.
    story.lost(C);
    story.says(A, Some(A), 3);
    assert_eq!(story.leader(), None);
    story.pass(2000);
    story.says(A, Some(A), 3);
    assert_eq!(story.leader(), Some(A));
}

#[test]
fn a_home_server_that_has_lost_the_others_is_left() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(B, None);
    assert_eq!((story.leader(), story.orders.home), (Some(A), Some(B)));
    story.run(1500, |place| Some(if place == B { (None, 3) } else { (Some(A), 3) }));
    assert_eq!(story.orders.home, Some(B), "elections are short");
    story.run(1500, |place| Some(if place == B { (None, 3) } else { (Some(A), 3) }));
    assert_ne!(story.orders.home, Some(B));
}

#[test]
fn a_silent_home_server_is_left_and_then_given_up() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(B);
    let others = |place| (place != B).then_some((Some(A), 3));
    story.run(290, others);
    assert_eq!((story.leader(), story.orders.home), (Some(A), Some(B)));
    story.run(20, others);
    assert!(story.orders.home.is_some_and(|home| home != B));
    let mut cut = Vec::new();
    while cut.is_empty() {
        story.now = story.orders.wake.unwrap();
        cut = story.step().cut.clone();
    }
    assert_eq!(cut, [B]);
    assert_eq!(story.step().cut, []);
}

#[test]
fn a_home_server_and_a_leader_that_are_both_dead_are_left() {
    let mut story = Story::at_rest(A, B, 3);
    story.slow(B);
    // Nobody has called A, but it owes an answer as long as B does.
    story.run(310, |place| (place == C).then_some((None, 3)));
    assert_eq!((story.orders.home, story.leader()), (Some(C), Some(A)));
}

#[test]
fn without_any_leader_the_pace_of_questions_falls() {
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
fn questions_of_different_agents_are_out_of_step() {
    let pauses: BTreeSet<Duration> = (0..50)
        .map(|chance| {
            let now = Instant::now();
            let mut compass = Compass::new("web-1", &["a:1".into()], chance, now);
            compass.connected(A);
            compass.orders(now);
            compass.heard(A, &status_of(1, None, 1, &["a:1"]), now);
            compass.orders(now).wake.unwrap() - now
        })
        .collect();
    assert!(pauses.len() > 40);
    assert!(pauses.first().unwrap() >= &Duration::from_millis(20));
    assert!(pauses.last().unwrap() <= &Duration::from_millis(40));
}

#[test]
fn a_server_under_two_addresses_is_connected_once() {
    let mut story = Story::with_seeds(&["name:1", "a:1"]);
    story.pass(60);
    let (name, a) = (Place(1), Place(2));
    story.up(name);
    story.compass.heard(name, &status_of(1, Some(1), 3, &["a:1"]), story.now);
    assert_eq!(story.step().leader, Some(name));
    story.up(a);
    story.compass.heard(a, &status_of(1, Some(1), 3, &["a:1"]), story.now);
    assert_eq!((story.step().leader, &story.orders.keep), (Some(name), &places(&[name])));
    story.lost(name);
    assert!(story.orders.keep.contains(&a), "now the other address will do");
}

#[test]
fn a_server_that_was_removed_is_forgotten() {
    let mut story = Story::with_seeds(&["a:1"]);
    story.up(A);
    story.compass.heard(A, &status_of(1, Some(1), 3, &["a:1", "b:1"]), story.now);
    assert_eq!(story.step().keep.len(), 2);
    let mut later = status_of(1, Some(1), 3, &["a:1"]);
    later.applied_index = LogIndex(9);
    story.compass.heard(A, &later, story.now);
    assert_eq!(story.step().keep, places(&[A]));
    assert_eq!(story.compass.address(B), None);
    // An older list, from one that lags, brings it not back.
    story.compass.heard(A, &status_of(1, Some(1), 3, &["a:1", "b:1"]), story.now);
    assert_eq!(story.step().keep, places(&[A]));
}

#[test]
fn servers_that_wait_for_each_other_are_not_one() {
    let mut story = Story::begin();
    for place in [A, B, C] {
        story.up(place);
        story.compass.heard(place, &Status::default(), story.now);
    }
    story.pass(200);
    assert_eq!((&story.orders.keep, story.leader()), (&places(&[A, B, C]), None));
    story.run(1000, |_| Some((Some(C), 1)));
    assert_eq!(story.leader(), Some(C));
}

/// What a follower says that has not heard of its leader for so long.
fn silent_status(place: Place, leader: Place, term: u64, seconds: u64) -> Status {
    Status { last_contact: Some(Duration::from_secs(seconds)), ..status(place, Some(leader), term) }
}

/// What a leader says after B was taken out of the quorum.
fn status_without_b(leader: Place, term: u64) -> Status {
    let mut status = Status { applied_index: LogIndex(9), ..status(leader, Some(leader), term) };
    status.servers.retain(|server| server.id != ServerId(2));
    status
}

#[test]
fn a_home_server_that_the_leader_does_not_have_any_more_is_left() {
    let mut story = Story::at_rest(A, B, 3);
    // It never campaigns, so it keeps its leader and its term; only that it hears nothing shows.
    story.compass.heard(B, &silent_status(B, A, 3, 4), story.now);
    let orders = story.step();
    assert!(
        orders.ask.contains(&A) && orders.home == Some(B),
        "the leader knows whether B is one of its servers"
    );
    story.compass.heard(A, &status_without_b(A, 3), story.now);
    assert_eq!((story.step().leader, story.orders.home), (Some(A), Some(C)));
    // What it goes on to say does not bring it back.
    story.compass.heard(B, &silent_status(B, A, 3, 5), story.now);
    assert_eq!(story.step().home, Some(C));
}

#[test]
fn a_home_server_that_a_new_leader_does_not_have_is_left() {
    let mut story = Story::at_rest(A, B, 3);
    story.refuses(A, Some("c:1"));
    story.up(C);
    story.compass.heard(C, &status_without_b(C, 4), story.now);
    assert_eq!((story.step().leader, story.orders.home), (Some(C), Some(C)));
}

#[test]
fn no_home_server_is_left_while_nobody_is_known_to_lead() {
    let mut story = Story::at_rest(A, B, 3);
    story.lost(A);
    story.up(C);
    let mut follower = status_without_b(C, 3);
    follower.leader = None;
    story.compass.heard(C, &follower, story.now);
    story.compass.heard(B, &silent_status(B, A, 3, 60), story.now);
    assert_eq!((story.step().leader, story.orders.home), (None, Some(B)));
    story.run(5000, |place| (place != A).then_some((None, 3)));
    assert_eq!(story.orders.home, Some(B));
}

#[test]
fn a_home_server_that_is_cut_off_from_a_leader_that_answers_is_left() {
    let mut story = Story::at_rest(A, B, 3);
    story.compass.heard(B, &silent_status(B, A, 3, 9), story.now);
    story.says(A, Some(A), 3);
    assert_eq!(story.orders.home, Some(B), "it may have been busy for a while");
    story.pass(1000);
    story.compass.heard(B, &silent_status(B, A, 3, 10), story.now);
    assert_eq!(story.step().home, Some(B), "the leader itself may be the one that is gone");
    story.says(A, Some(A), 3);
    assert_eq!((story.leader(), story.orders.home), (Some(A), Some(C)));
    // Whoever has heard of its leader again is as good as ever.
    let mut story = Story::at_rest(A, B, 3);
    story.compass.heard(B, &silent_status(B, A, 3, 4), story.now);
    story.compass.heard(B, &silent_status(B, A, 3, 0), story.now);
    let asked = story.run(60_000, |_| Some((Some(A), 3)));
    assert!(asked[0] <= 1 && story.orders.home == Some(B), "{asked:?}");
}

#[test]
fn a_server_that_says_it_was_removed_is_of_no_use() {
    let mut story = Story::at_rest(A, B, 3);
    story.compass.removed(B, story.now);
    assert_eq!((story.step().leader, story.orders.home), (Some(A), Some(C)));
    // Without a leader too, and without anybody in its place.
    let mut story = Story::at_rest(A, A, 3);
    story.compass.removed(A, story.now);
    assert_eq!(story.step().leader, None);
    assert_ne!(story.orders.home, Some(A));
    story.run(1000, |place| (place != A).then_some((None, 3)));
    assert_ne!(story.orders.home, Some(A));
    // It may join again as a new one, with a connection of its own.
    story.lost(A);
    story.up(A);
    story.says(A, Some(A), 4);
    assert_eq!(story.leader(), Some(A));
}

#[test]
fn a_quiet_home_server_is_asked_and_left_before_it_is_given_up() {
    let mut story = Story::at_rest(A, B, 3);
    story.compass.quiet(B, true);
    assert!(story.step().ask.contains(&B) && story.orders.home == Some(B), "it may have had nothing to say");
    let others = |place| (place != B).then_some((Some(A), 3));
    story.run(290, others);
    assert_eq!(story.orders.home, Some(B));
    let asked = story.run(20, others);
    assert_eq!((story.leader(), story.orders.home, asked[0]), (Some(A), Some(C), 0));
    // One that answers stays.
    let mut story = Story::at_rest(A, B, 3);
    story.compass.quiet(B, true);
    story.step();
    story.run(5000, |_| Some((Some(A), 3)));
    assert_eq!(story.orders.home, Some(B));
}
