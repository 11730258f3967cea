//! Answers that are read in parts, through the frontend of a quorum: each shows one moment, or is
//! ended with an error. While a server has the maximum number of views, further requests wait.

use crate::frontend::{Cluster, agent};
use lockmesh_core::frontend::{CallRef, Caller, Event};
use lockmesh_core::raft::TICK;
use lockmesh_protocol::acl;
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
fn parts_share_one_index() {
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

    /// Sends a request on a connection: 1, 101 and 201 are connections of the node `a1`.
    fn call(&mut self, caller: u64, request: Request) -> CallRef {
        self.last_call += 1;
        let from = CallRef { caller: Caller(caller), call: CallId(self.last_call) };
        let peer = agent(&format!("a{}", caller % 100));
        self.cluster.turn(self.server, Some(Event::Call { from, peer, client: acl::Caller::Agent, request }));
        self.cluster.deliver();
        from
    }

    /// Requests lists, each with a call of its own.
    fn begin(&mut self, count: usize, caller: u64, consistency: Consistency) -> Vec<CallRef> {
        (0..count).map(|_| self.call(caller, all(consistency))).collect()
    }

    /// Begins as many lists as a server has views: three of the first node, then of others.
    fn fill(&mut self, consistency: Consistency) -> Vec<CallRef> {
        let counts = [(3, 1), (4, 9), (1, 8)];
        counts.map(|(count, caller)| self.begin(count, caller, consistency)).concat()
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

    /// Requests the second part of a list.
    fn read_on(&mut self, call: CallRef) -> Response {
        let read = self.call(call.caller.0, next(&self.first(call)));
        self.answer(read).expect("it does not wait").clone()
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
fn waiting_list_reads_current_state() {
    let mut lists = Lists::of_leader();
    let before = lists.fill(Consistency::Default);
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
fn waiting_list_times_out() {
    let mut lists = Lists::of_leader();
    let open = lists.fill(Consistency::Default);
    let early = lists.begin_one(2);
    lists.cluster.run(SECOND);
    let late = lists.begin_one(2);
    // A list that is read keeps its place.
    open.iter().for_each(|call| drop(part(lists.read_on(*call))));
    lists.cluster.run(9 * SECOND - TICK);
    assert!(lists.waits(early));
    lists.cluster.run(TICK);
    let refused = lists.answer(early).expect("its time is over");
    assert!(is_overloaded(refused, "this request waited 10 s for its turn: read fewer"), "{refused:?}");
    assert_eq!((lists.waits(late), lists.counts()), (true, (8, 1)));
    lists.cluster.run(SECOND);
    lists.first(late);
}

#[test]
fn waiting_lists_limited_half_per_node() {
    let mut lists = Lists::of_leader();
    // The first four begin.
    let of_one = lists.begin(4 + 31, 1, Consistency::Default);
    assert_eq!((lists.waits(of_one[4]), lists.counts()), (true, (4, 31)));
    lists.begin_one(101);
    let refused = lists.begin_one(201);
    let refused = lists.answer(refused).expect("it does not wait");
    assert!(is_overloaded(refused, "32 requests of this agent wait"), "{refused:?}");
    lists.begin(4 + 32, 2, Consistency::Default);
    assert_eq!(lists.counts(), (8, 64));
    let refused = lists.begin_one(3);
    let refused = lists.answer(refused).expect("it does not wait");
    assert!(is_overloaded(refused, "64 requests wait"), "{refused:?}");
}

#[test]
fn node_limited_to_half() {
    let mut lists = Lists::of_leader();
    lists.begin(3, 1, Consistency::Default);
    lists.begin(3, 101, Consistency::Default);
    assert_eq!(lists.counts(), (4, 2));
    let of_other = lists.begin_one(2);
    lists.first(of_other);
}

#[test]
fn fifo_order_skips_full_node() {
    let mut lists = Lists::of_leader();
    let open = lists.fill(Consistency::Default);
    let waiting = [9, 2, 3].map(|caller| lists.begin_one(caller));
    for (end, begins) in [(0, 1), (1, 2), (3, 0)] {
        assert!(lists.waits(waiting[begins]));
        lists.end(open[end]);
        lists.first(waiting[begins]);
    }
    assert_eq!(lists.counts(), (8, 0));
}

#[test]
fn unread_view_yields_to_waiter() {
    let mut lists = Lists::of_leader();
    let open = lists.fill(Consistency::Default);
    lists.cluster.run(10 * SECOND - TICK);
    let [early, late] = [2, 3].map(|caller| lists.begin_one(caller));
    assert!(lists.waits(early));
    // This one is read on.
    part(lists.read_on(open[0]));
    lists.cluster.run(TICK);
    [early, late].into_iter().for_each(|call| drop(lists.first(call)));
    assert_eq!(lists.counts(), (8, 0));
    part(lists.read_on(open[0]));
    let ended = lists.read_on(open[1]);
    assert!(is_overloaded(&ended, "it was not read for 10 s while others waited"), "{ended:?}");
}

#[test]
fn repeated_part_keeps_no_view() {
    let mut lists = Lists::of_leader();
    let open = lists.begin(4, 1, Consistency::Default);
    part(lists.read_on(open[0]));
    lists.cluster.run(9 * SECOND);
    part(lists.read_on(open[0]));
    part(lists.read_on(open[1]));
    lists.cluster.run(SECOND);
    lists.begin(4, 101, Consistency::Default);
    assert_eq!(lists.counts(), (4, 1), "three were not read");
    part(lists.read_on(open[1]));
}

#[test]
fn full_node_evicts_only_own() {
    let mut lists = Lists::of_leader();
    lists.begin(4, 9, Consistency::Default);
    let own = lists.begin(4, 1, Consistency::Default);
    lists.cluster.run(9 * SECOND);
    own.iter().for_each(|call| drop(part(lists.read_on(*call))));
    lists.cluster.run(SECOND);
    let [of_full, of_other] = [1, 2].map(|caller| lists.begin_one(caller));
    assert!(lists.waits(of_full));
    lists.first(of_other);
}

#[test]
fn cancel_or_disconnect_removes_waiter() {
    for event in [Event::Cancel as fn(CallRef) -> Event, |call| Event::Disconnected(call.caller)] {
        let mut lists = Lists::of_leader();
        let open = lists.fill(Consistency::Default);
        let [given_up, kept] = [2, 3].map(|caller| lists.begin_one(caller));
        lists.cluster.turn(lists.server, Some(event(given_up)));
        assert_eq!(lists.counts(), (8, 1));
        lists.end(open[0]);
        lists.first(kept);
        assert_eq!((lists.waits(given_up), lists.counts()), (true, (8, 0)));
    }
}

#[test]
fn deposed_leader_keeps_only_stale_waiters() {
    let mut lists = Lists::of_leader();
    let open = lists.fill(Consistency::Default);
    let consistencies = [Consistency::Default, Consistency::Consistent, Consistency::Stale];
    let [default, consistent, stale] = consistencies.map(|consistency| lists.call(2, all(consistency)));
    lists.cluster.leave_alone(lists.server);
    lists.cluster.run(5 * SECOND);
    assert!(!lists.cluster.servers[&lists.server].frontend.core().replica().is_serving());
    for call in [default, consistent] {
        let answer = lists.answer(call).expect("it is sent to the next leader");
        assert!(matches!(answer, Response::Unavailable(Unavailable::NotLeader { .. })), "{answer:?}");
    }
    assert!(lists.waits(stale), "stale lists are still served here");
    lists.end(open[0]);
    lists.first(stale);
}

#[test]
fn restore_ends_views_starts_waiters() {
    let mut lists = Lists::of_leader();
    lists.fill(Consistency::Default);
    let rows = lists.cluster.backup();
    let written = lists.cluster.put("lost");
    let waiting = lists.begin_one(1);
    lists.cluster.restore(rows);
    let first = lists.first(waiting);
    assert!(first.answer.index > written && lists.counts() == (1, 0));
    assert_eq!(read_on(&mut lists.cluster, lists.server, first).1.len(), 10);
}

#[test]
fn removed_server_rejects_waiting_lists() {
    let mut lists = Lists::of_follower();
    lists.fill(Consistency::Stale);
    let waiting = lists.begin(2, 1, Consistency::Stale);
    lists.cluster.turn(lists.server, Some(Event::Removed));
    for call in waiting {
        assert_eq!(lists.answer(call), Some(&Response::Unavailable(Unavailable::Removed)));
    }
}

#[test]
fn cancel_or_restore_ends_view() {
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
fn view_is_bound_to_connection() {
    let (mut cluster, leader) = cluster();
    let first = part(cluster.ask(leader, &agent("a1"), all(Consistency::Default)));
    let mut other = |call, request| {
        let from = CallRef { caller: Caller(2), call: CallId(call) };
        let peer = agent("a1");
        cluster.turn(leader, Some(Event::Call { from, peer, client: acl::Caller::Agent, request }));
        cluster.answer(leader, from).expect("it is answered at once").clone()
    };
    let stolen = other(1, next(&first));
    assert!(is_overloaded(&stolen, "the answer is incomplete"), "{stolen:?}");
    other(2, Request::EndView(first.view, Consistency::Default));
    read_on(&mut cluster, leader, first);
}

#[test]
fn unread_view_times_out() {
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
fn much_replaced_data_ends_view() {
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
