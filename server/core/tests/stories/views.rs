//! Answers that are read in parts, through the frontend of a quorum: each shows one moment, or is
//! ended with an error.

use crate::frontend::{Cluster, agent};
use lockmesh_core::frontend::{CallRef, Caller, Event};
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

#[test]
fn the_ninth_view_waits_for_the_end_of_another() {
    let (mut cluster, leader) = cluster();
    let whole = || all(Consistency::Default);
    let views: Vec<ViewId> = (0..8).map(|_| part(cluster.ask(leader, &agent("a1"), whole())).view).collect();
    let refused = cluster.ask(leader, &agent("a1"), whole());
    assert!(is_overloaded(&refused, "8 long answers"), "{refused:?}");
    let end = Request::EndView(views[0], Consistency::Default);
    assert_eq!(cluster.ask(leader, &agent("a1"), end), Response::Done);
    let ninth = part(cluster.ask(leader, &agent("a1"), whole()));
    assert!(!views.contains(&ninth.view), "a number is not used again");
    cluster.turn(leader, Some(Event::Disconnected(ONLY_CALLER)));
    let first = part(cluster.ask(leader, &agent("a1"), whole()));
    read_on(&mut cluster, leader, first);
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
