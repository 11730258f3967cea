//! Blocking queries on one service, through the frontend of a quorum: they sleep through changes of
//! other services.

use crate::frontend::{Cluster, agent};
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{Node, Service};
use lockmesh_protocol::rpc::{Request, Response};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn register(node: &str, service: &str, address: &str) -> Command {
    let service = Service { port: 80, ..Service::of(node.into(), service.into(), service) };
    let node = Node::of(node.into(), String::new(), address);
    let (skip_node_update, service, checks) = (false, Some(service), Vec::new());
    Command::Register(Registration { node, skip_node_update, service, checks })
}

#[test]
fn watch_ignores_other_services() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let read = |known| Request::Read {
        query: Query::ServiceInstances("WEB".into()),
        consistency: Consistency::Default,
        blocking: Some(Blocking { index: known, wait: 10 * SECOND }),
    };
    cluster.command(register("n1", "web", "10.0.0.1"));
    let Response::Answer(known) = cluster.ask(leader, &agent("a1"), read(LogIndex(0))) else {
        panic!("no answer")
    };
    let call = cluster.call(leader, &agent("a1"), read(known.index));
    let before = cluster.put("k");
    cluster.command(register("n2", "other", "10.0.0.2"));
    cluster.command(register("n2", "other", "10.0.0.3"));
    assert_eq!(cluster.answer(leader, call), None, "no change was of its service");
    // Another server may have given it a higher index for the same instances.
    let call = cluster.call(leader, &agent("a2"), read(before.next()));
    cluster.run(11 * SECOND);
    let Some(Response::Answer(same)) = cluster.answer(leader, call) else { panic!("it waits forever") };
    assert_eq!((same.index, &same.rows), (before.next(), &known.rows));
    let call = cluster.call(leader, &agent("a1"), read(known.index));
    cluster.command(register("n1", "web", "10.0.0.9"));
    let Some(Response::Answer(moved)) = cluster.answer(leader, call) else { panic!("it was not woken") };
    let call = cluster.call(leader, &agent("a1"), read(moved.index));
    cluster.command(Command::Deregister(Deregistration { node: "n1".into(), service: None, check: None }));
    let Some(Response::Answer(gone)) = cluster.answer(leader, call) else { panic!("it was not woken") };
    assert_eq!(gone.rows, Rows::Instances(Vec::new()));
}
