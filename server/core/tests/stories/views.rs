//! Answers that are read in parts, through the frontend of a quorum: each shows one moment, or is
//! ended with an error. While a server has the maximum number of views, further requests wait.

use crate::frontend::{Cluster, agent};
use lockmesh_core::frontend::{CallRef, Caller, Event};
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::{Command, KvCommand, NewEntry, Registration};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, Node};
use lockmesh_protocol::rpc::{AnswerPart, CallId, Request, Response, Unavailable, ViewId};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The connection of the stories' calls.
const ONLY_CALLER: Caller = Caller(1);

/// The size of a large value, in bytes.
const LARGE: usize = 400_000;

fn large(key: &str, flags: u64) -> Command {
    Command::Kv(KvCommand::Set(NewEntry { key: key.into(), value: vec![b'x'; LARGE].into(), flags }))
}

/// A cluster with ten large keys.
fn cluster() -> (Cluster, ServerId) {
    let mut cluster = Cluster::start(3);
    (0..10).for_each(|number| drop(cluster.command(large(&format!("k{number}"), 0))));
    let leader = cluster.leader();
    (cluster, leader)
}

fn all(consistency: Consistency) -> Request {
    Request::ReadParts { query: Query::Entries("".into()), consistency }
}

fn next(part: &AnswerPart) -> Request {
    let after = part.next.expect("it is not the last part");
    Request::ReadPart { view: part.view, after, consistency: Consistency::Default }
}

fn part(response: Response) -> AnswerPart {
    match response {
        Response::AnswerPart(part) => *part,
        other => panic!("{other:?} is no part"),
    }
}

/// Returns the index and the keys of an answer, read to its end with a write before each part.
fn read_on(cluster: &mut Cluster, server: ServerId, first: AnswerPart) -> (LogIndex, Vec<String>) {
    let (mut keys, mut last) = (Vec::new(), first);
    loop {
        let Rows::Entries(entries) = &last.answer.rows else { panic!("no entries") };
        keys.extend(entries.iter().map(|entry| entry.key.as_str().to_owned()));
        if last.next.is_none() {
            return (last.answer.index, keys);
        }
        cluster.put(&format!("later/{}", keys.len()));
        last = part(cluster.ask(server, &agent("a1"), next(&last)));
    }
}

fn is_overloaded(response: &Response, why: &str) -> bool {
    matches!(response, Response::Unavailable(Unavailable::Overloaded(text)) if text.contains(why))
}

#[test]
fn all_parts_show_the_same_moment() {
    let (mut cluster, leader) = cluster();
    let follower = cluster.follower();
    for (server, consistency) in
        [(leader, Consistency::Default), (follower, Consistency::Default), (follower, Consistency::Stale)]
    {
        cluster.command(Command::Kv(KvCommand::DeleteTree("later/".into())));
        cluster.run(SECOND);
        let first = part(cluster.ask(server, &agent("a1"), all(consistency)));
        let index = first.answer.index;
        let (last_index, keys) = read_on(&mut cluster, server, first);
        assert_eq!(last_index, index);
        assert_eq!(keys, (0..10).map(|number| format!("k{number}")).collect::<Vec<_>>());
    }
}

/// A server of a quorum whose lists several connections read.
struct Lists {
    cluster: Cluster,
    server: ServerId,
    /// Starts above the ids of the cluster's own calls.
    last_call: u64,
}

impl Lists {
    fn of_leader() -> Self {
        let (cluster, server) = cluster();
        Self { cluster, server, last_call: 1_000 }
    }

    fn of_follower() -> Self {
        let lists = Self::of_leader();
        Self { server: lists.cluster.follower(), ..lists }
    }

    fn call(&mut self, caller: u64, request: Request) -> CallRef {
        self.last_call += 1;
        let from = CallRef { caller: Caller(caller), call: CallId(self.last_call) };
        self.cluster.turn(self.server, Some(Event::Call { from, peer: agent("a1"), request }));
        self.cluster.deliver();
        from
    }

    /// Requests lists, each with a call of its own.
    fn begin(&mut self, count: usize, caller: u64, consistency: Consistency) -> Vec<CallRef> {
        (0..count).map(|_| self.call(caller, all(consistency))).collect()
    }

    fn begin_one(&mut self, caller: u64) -> CallRef {
        self.call(caller, all(Consistency::Default))
    }

    fn answer(&self, call: CallRef) -> Option<&Response> {
        self.cluster.answer(self.server, call)
    }

    fn waits(&self, call: CallRef) -> bool {
        self.answer(call).is_none()
    }

    /// Returns the first part of a list that does not wait.
    #[track_caller]
    fn first(&self, call: CallRef) -> AnswerPart {
        part(self.answer(call).expect("it does not wait").clone())
    }

    fn end(&mut self, call: CallRef) {
        let end = Request::EndView(self.first(call).view, Consistency::Default);
        let ended = self.call(call.caller.0, end);
        assert_eq!(self.answer(ended), Some(&Response::Done));
    }

    /// Returns the numbers of open views and of requests that wait for one.
    fn counts(&self) -> (usize, usize) {
        let figures = self.cluster.servers[&self.server].frontend.figures(self.cluster.now());
        (figures.views, figures.view_waiters)
    }
}

#[test]
fn the_ninth_list_waits_for_the_end_of_another_and_shows_the_state_of_that_time() {
    let mut lists = Lists::of_leader();
    let before = lists.begin(8, 1, Consistency::Default);
    let views: Vec<ViewId> = before.iter().map(|call| lists.first(*call).view).collect();
    let ninth = lists.begin_one(1);
    assert_eq!((lists.waits(ninth), lists.counts()), (true, (8, 1)));
    let written = lists.cluster.put("k00");
    lists.end(before[0]);
    let first = lists.first(ninth);
    assert_eq!((first.answer.index, lists.counts()), (written, (8, 0)));
    assert!(!views.contains(&first.view), "a number is not used again");
    let (server, mut cluster) = (lists.server, lists.cluster);
    assert_eq!(read_on(&mut cluster, server, first).1.len(), 11);
    cluster.turn(server, Some(Event::Disconnected(ONLY_CALLER)));
    let first = part(cluster.ask(server, &agent("a1"), all(Consistency::Default)));
    read_on(&mut cluster, server, first);
}

#[test]
fn a_list_that_waits_too_long_is_refused() {
    let mut lists = Lists::of_leader();
    lists.begin(8, 1, Consistency::Default);
    let early = lists.begin_one(2);
    lists.cluster.run(SECOND);
    let late = lists.begin_one(2);
    lists.cluster.run(9 * SECOND - TICK);
    assert!(lists.waits(early));
    lists.cluster.run(TICK);
    let refused = lists.answer(early).expect("its time is over");
    assert!(is_overloaded(refused, "this request waited 10 s for its turn: read fewer"), "{refused:?}");
    assert_eq!((lists.waits(late), lists.counts()), (true, (8, 1)));
    lists.cluster.run(SECOND);
    assert!(!lists.waits(late));
}

#[test]
fn a_limited_number_of_lists_waits_half_of_them_of_one_connection() {
    let mut lists = Lists::of_leader();
    // The first eight begin.
    let of_one = lists.begin(8 + 32, 1, Consistency::Default);
    assert_eq!((lists.waits(of_one[8]), lists.counts()), (true, (8, 32)));
    let refused = lists.begin_one(1);
    let refused = lists.answer(refused).expect("it does not wait");
    assert!(is_overloaded(refused, "32 requests of this agent wait"), "{refused:?}");
    lists.begin(32, 2, Consistency::Default);
    assert_eq!(lists.counts(), (8, 64));
    let refused = lists.begin_one(3);
    let refused = lists.answer(refused).expect("it does not wait");
    assert!(is_overloaded(refused, "64 requests wait"), "{refused:?}");
}

#[test]
fn lists_begin_in_order_but_none_of_a_connection_with_half_of_the_views_before_those_of_others() {
    let mut lists = Lists::of_leader();
    let open = lists.begin(8, 1, Consistency::Default);
    let waiting = [1, 2, 3, 2].map(|caller| lists.begin_one(caller));
    // The last one is alone in the queue: its connection gets a fifth view.
    for (end, begins) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        assert!(lists.waits(waiting[begins]));
        lists.end(open[end]);
        lists.first(waiting[begins]);
    }
    assert_eq!(lists.counts(), (8, 0));
}

#[test]
fn a_waiting_list_ends_with_its_call_and_with_its_connection() {
    for event in [Event::Cancel as fn(CallRef) -> Event, |call| Event::Disconnected(call.caller)] {
        let mut lists = Lists::of_leader();
        let open = lists.begin(8, 1, Consistency::Default);
        let [given_up, kept] = [2, 3].map(|caller| lists.begin_one(caller));
        lists.cluster.turn(lists.server, Some(event(given_up)));
        assert_eq!(lists.counts(), (8, 1));
        lists.end(open[0]);
        lists.first(kept);
        assert_eq!((lists.waits(given_up), lists.counts()), (true, (8, 0)));
    }
}

#[test]
fn a_deposed_leader_sends_waiting_readers_away_and_keeps_those_of_old_news() {
    let mut lists = Lists::of_leader();
    let open = lists.begin(8, 1, Consistency::Default);
    let consistencies = [Consistency::Default, Consistency::Consistent, Consistency::Stale];
    let [default, consistent, stale] = consistencies.map(|consistency| lists.call(2, all(consistency)));
    lists.cluster.leave_alone(lists.server);
    lists.cluster.run(5 * SECOND);
    assert!(!lists.cluster.servers[&lists.server].frontend.core().is_serving());
    for call in [default, consistent] {
        let answer = lists.answer(call).expect("it is sent to the next leader");
        assert!(matches!(answer, Response::Unavailable(Unavailable::NotLeader { .. })), "{answer:?}");
    }
    assert!(lists.waits(stale), "stale lists are still served here");
    lists.end(open[0]);
    lists.first(stale);
}

#[test]
fn a_restore_ends_all_views_and_begins_those_that_wait() {
    let mut lists = Lists::of_leader();
    lists.begin(8, 1, Consistency::Default);
    let rows = lists.cluster.backup();
    let written = lists.cluster.put("lost");
    let waiting = lists.begin_one(1);
    lists.cluster.restore(rows);
    let first = lists.first(waiting);
    assert!(first.answer.index > written && lists.counts() == (1, 0));
    assert_eq!(read_on(&mut lists.cluster, lists.server, first).1.len(), 10);
}

#[test]
fn a_removed_server_refuses_the_lists_that_wait() {
    let mut lists = Lists::of_follower();
    lists.begin(8, 1, Consistency::Stale);
    let waiting = lists.begin(2, 1, Consistency::Stale);
    lists.cluster.turn(lists.server, Some(Event::Removed));
    for call in waiting {
        assert_eq!(lists.answer(call), Some(&Response::Unavailable(Unavailable::Removed)));
    }
}

#[test]
fn a_view_ends_with_the_call_that_began_it_and_with_a_restore() {
    let (mut cluster, leader) = cluster();
    let gone = |cluster: &mut Cluster, first: &AnswerPart| {
        let answer = cluster.ask(leader, &agent("a1"), next(first));
        assert!(is_overloaded(&answer, "the answer is incomplete"));
    };
    let call = cluster.call(leader, &agent("a1"), all(Consistency::Default));
    let Some(Response::AnswerPart(first)) = cluster.answer(leader, call).cloned() else { panic!("no part") };
    cluster.turn(leader, Some(Event::Cancel(call)));
    gone(&mut cluster, &first);
    let first = part(cluster.ask(leader, &agent("a1"), all(Consistency::Default)));
    let rows = cluster.backup();
    cluster.restore(rows);
    gone(&mut cluster, &first);
}

#[test]
fn a_view_belongs_to_its_connection() {
    let (mut cluster, leader) = cluster();
    let first = part(cluster.ask(leader, &agent("a1"), all(Consistency::Default)));
    let mut other = |call, request| {
        let from = CallRef { caller: Caller(2), call: CallId(call) };
        let peer = agent("a1");
        cluster.turn(leader, Some(Event::Call { from, peer, request }));
        cluster.answer(leader, from).expect("it is answered at once").clone()
    };
    let stolen = other(1, next(&first));
    assert!(is_overloaded(&stolen, "the answer is incomplete"), "{stolen:?}");
    other(2, Request::EndView(first.view, Consistency::Default));
    read_on(&mut cluster, leader, first);
}

#[test]
fn a_view_that_is_not_read_in_time_ends() {
    let (mut cluster, leader) = cluster();
    let first = part(cluster.ask(leader, &agent("a1"), all(Consistency::Default)));
    cluster.run(59 * SECOND);
    let second = part(cluster.ask(leader, &agent("a1"), next(&first)));
    cluster.run(2 * SECOND);
    let late = cluster.ask(leader, &agent("a1"), next(&second));
    assert!(is_overloaded(&late, "the answer is incomplete"));
}

/// A command that replaces the output of a check with a large one.
fn reported(number: u64) -> Command {
    let check = Check::of("n1".into(), "up".into(), CheckStatus::Passing);
    let output = format!("{number}{}", "x".repeat(LARGE));
    let node = Node::of("n1".into(), String::new(), "10.0.0.1");
    let checks = vec![Check { output, ..check }];
    Command::Register(Registration { node, skip_node_update: true, service: None, checks })
}

#[test]
fn a_view_of_much_replaced_data_ends() {
    let changes = [|number: u64| large(&format!("k{}", number % 10), number), |number: u64| reported(number)];
    for change in changes {
        let (mut cluster, leader) = cluster();
        let first = part(cluster.ask(leader, &agent("a1"), all(Consistency::Default)));
        // One more, because the first check replaces none.
        let writes = (64 << 20) / LARGE as u64 + 2;
        for number in 1..=writes {
            let written = cluster.command(change(number));
            assert!(matches!(written, Response::Applied(_)), "{written:?}");
        }
        let late = cluster.ask(leader, &agent("a1"), next(&first));
        assert!(is_overloaded(&late, "the answer is incomplete"));
    }
}
