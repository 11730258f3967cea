//! The servers' side of the mesh. Any server returns the roster and its news, and a suspicion
//! starts a check before a renewal is overdue. It ends nothing, however hostile.

use super::{Fleet, SECOND, agent, process, registration};
use crate::frontend::{Cluster, assert_denied};
use bytes::Bytes;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::event::{EventFilters, LamportTime, UserEvent};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest};
use lockmesh_protocol::gossip::seal::{KeyRing, NONCE_BYTES};
use lockmesh_protocol::id::{AgentNumber, EventId, LogIndex, ServerId};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseId, NodeQuestion};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;

impl Fleet {
    /// This many hosts, each with a session of this window.
    fn of(hosts: usize, window: HealthWindow) -> Self {
        let mut fleet = Self::start();
        fleet.hosts(hosts, Some(window));
        fleet
    }

    fn lease(&self, name: &str) -> LeaseId {
        self.hosts[name].lease
    }

    fn open_checks(&self) -> usize {
        self.cluster.figures(self.cluster.leader()).open_checks
    }

    fn sync(&mut self, id: ServerId, name: &str, has: RosterDigest) -> MeshNews {
        match self.cluster.ask(id, &agent(name), Request::SyncMesh(has)) {
            Response::Mesh(news) => *news,
            other => panic!("{name} gets no mesh news: {other:?}"),
        }
    }

    /// The full roster, as a server returns it.
    pub(super) fn roster(&mut self, id: ServerId, asks: &str) -> BTreeSet<String> {
        let news = self.sync(id, asks, RosterDigest(Vec::new()));
        let members = news.roster.0.into_iter().flat_map(|(_, members)| members);
        members.map(|member| member.node.to_string()).collect()
    }
}

#[test]
fn unchanged_roster_is_not_resent() {
    let mut fleet = Fleet::of(3, HealthWindow::Default);
    let mut roster = Roster::default();
    let follower = fleet.cluster.follower();
    assert!(roster.apply(fleet.sync(follower, "h1", roster.digest()).roster));
    assert_eq!(roster.len(), 3);
    assert_eq!(
        roster.get(MemberId::of_agent(fleet.lease("h2"))).map(|member| member.address.port()),
        Some(8301)
    );
    assert!(fleet.sync(follower, "h1", roster.digest()).roster.0.is_empty());
    // The same process registers again without changes.
    fleet.register("h2", process(1, 1));
    assert!(fleet.sync(follower, "h1", roster.digest()).roster.0.is_empty());
    fleet.host("h4");
    fleet.run(SECOND);
    let news = fleet.sync(follower, "h1", roster.digest());
    assert_eq!(news.roster.0.len(), 1);
    roster.apply(news.roster);
    assert_eq!(roster.len(), 4);
    assert_eq!(u64::from(news.seconds), fleet.cluster.now().0 / 1_000_000);
}

#[test]
fn taken_over_node_listed_once() {
    let mut fleet = Fleet::of(2, HealthWindow::Default);
    fleet.kill("h2");
    let former = MemberId::of_agent(fleet.lease("h2"));
    // The same name with another id, as after a reinstallation.
    let Request::Propose(id, Command::RegisterAgent(mut anew)) = registration("h2", process(2, 2)) else {
        unreachable!("that is what it makes")
    };
    anew.node.id = "5a0f2b6e-3c60-4d3f-9d5c-00000000ffff".into();
    let leader = fleet.cluster.leader();
    fleet.run(20 * SECOND);
    let response =
        fleet.cluster.ask(leader, &agent("h2"), Request::Propose(id, Command::RegisterAgent(anew)));
    assert!(matches!(response, Response::Applied(_)), "{response:?}");
    fleet.run(SECOND);
    for id in fleet.cluster.servers.keys().copied().collect::<Vec<_>>() {
        assert_eq!(fleet.roster(id, "h1"), ["h1", "h2"].map(String::from).into());
    }
    let mut roster = Roster::default();
    roster.apply(fleet.sync(leader, "h1", RosterDigest(Vec::new())).roster);
    assert!(roster.get(former).is_none());
}

#[test]
fn recent_verdicts_served_with_signature() {
    let mut fleet = Fleet::of(3, HealthWindow::Fast);
    fleet.kill("h2");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h2") == MemberStatus::Failed);
    fleet.run(SECOND);
    let servers: Vec<_> = fleet.cluster.servers.keys().copied().collect();
    let told: Vec<_> = servers.iter().map(|id| fleet.sync(*id, "h1", RosterDigest(Vec::new()))).collect();
    assert!(told.iter().all(|news| news.items == told[0].items), "the same bytes from every signer");
    let read = |bytes: &Bytes| told[0].verdict_key.read(bytes).expect("they signed it");
    let verdicts: Vec<_> = told[0].items.iter().map(read).collect();
    let of_h2: Vec<_> = verdicts.iter().filter(|verdict| verdict.lease == fleet.lease("h2")).collect();
    assert_eq!(of_h2.iter().map(|verdict| verdict.window).collect::<Vec<_>>(), HealthWindow::ALL[..2]);
    assert!(of_h2.iter().all(|verdict| verdict.index > verdict.lease.began));
    fleet.run(100 * SECOND);
    assert!(fleet.sync(servers[0], "h1", RosterDigest(Vec::new())).items.is_empty());
}

#[test]
fn leader_pushes_verdict_to_three_members() {
    let mut fleet = Fleet::of(8, HealthWindow::Fast);
    let servers: Vec<_> = fleet.cluster.servers.keys().copied().collect();
    servers.iter().for_each(|id| drop(fleet.cluster.take_mesh_items(*id)));
    fleet.kill("h2");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h2") == MemberStatus::Failed);
    fleet.run(TICK * 2);
    let leader = fleet.cluster.leader();
    let news = fleet.sync(leader, "h1", RosterDigest(Vec::new()));
    let verdict = |item: &Bytes| news.verdict_key.read(item).expect("they signed it");
    for id in servers {
        let told = fleet.cluster.take_mesh_items(id);
        if id != leader {
            assert_eq!(told, [], "one of them is enough");
            continue;
        }
        let items: Vec<_> = told.iter().flat_map(|wanted| &wanted.items).map(verdict).collect();
        assert!(items.iter().all(|verdict| verdict.lease == fleet.lease("h2")), "{items:?}");
        for window in &HealthWindow::ALL[..2] {
            assert_eq!(items.iter().filter(|verdict| verdict.window == *window).count(), 3, "{items:?}");
        }
        let agents: BTreeSet<_> = told.iter().map(|wanted| wanted.agent.to_string()).collect();
        assert!(!agents.contains("h2") && told.iter().all(|wanted| wanted.agent_address == "10.0.0.1:8301"));
    }
    fleet.run(10 * SECOND);
    assert_eq!(fleet.cluster.take_mesh_items(leader), [], "once");
}

#[test]
fn verdict_not_pushed_to_checked_node() {
    let mut fleet = Fleet::of(6, HealthWindow::Default);
    // Two of six die, the second one while the first is being checked.
    fleet.kill("h2");
    fleet.run(2 * SECOND);
    fleet.kill("h3");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h2") == MemberStatus::Failed);
    assert!(fleet.open_checks() > 0, "of h3");
    fleet.run(TICK * 2);
    let told = fleet.cluster.take_mesh_items(fleet.cluster.leader());
    assert!(!told.is_empty() && told.iter().all(|wanted| wanted.agent.as_str() != "h3"), "{told:?}");
}

#[test]
fn all_servers_report_leader_time() {
    let mut fleet = Fleet::of(1, HealthWindow::Default);
    let servers: Vec<_> = fleet.cluster.servers.keys().copied().collect();
    let assert_alike = |fleet: &mut Fleet, when: &str| {
        let elapsed = fleet.cluster.now().since(Time(0)).as_secs();
        for id in &servers {
            let news = fleet.sync(*id, "h1", RosterDigest(Vec::new()));
            assert!(elapsed.abs_diff(news.seconds.into()) <= 1, "{when}, {id}: {} s", news.seconds);
        }
    };
    // An hour ahead, two, and three.
    for (one, hours) in fleet.cluster.servers.values_mut().zip(1..) {
        one.wall_ahead = hours * 3_600_000;
    }
    fleet.run(5 * SECOND);
    assert_alike(&mut fleet, "clocks were set");
    let deposed = fleet.cluster.leader();
    fleet.cluster.cut_off.insert(deposed);
    fleet.run(5 * SECOND);
    fleet.cluster.cut_off.clear();
    fleet.run(5 * SECOND);
    assert_ne!(fleet.cluster.leader(), deposed);
    assert_alike(&mut fleet, "another server leads");
    let follower = fleet.cluster.follower();
    fleet.cluster.restart(follower);
    let nothing = Request::SyncMesh(RosterDigest(Vec::new()));
    let answer = fleet.cluster.ask(follower, &agent("h1"), nothing);
    assert_denied(&answer, "has not heard the cluster's time");
    fleet.run(2 * SECOND);
    assert_alike(&mut fleet, "a server was restarted");
}

#[test]
fn event_served_by_all_servers_temporarily() {
    let mut fleet = Fleet::of(2, HealthWindow::Default);
    let servers: Vec<_> = fleet.cluster.servers.keys().copied().collect();
    let id = EventId::from_random([7; 16]);
    let event = UserEvent::new(id, "deploy".into(), Bytes::new(), EventFilters::default());
    let event = UserEvent { time: LamportTime(9), ..event.expect("it is short") };
    let item = Bytes::from(event.to_item());
    let follower = fleet.cluster.follower();
    for _ in 0..2 {
        let answer = fleet.cluster.ask(follower, &agent("h1"), Request::Spread(item.clone()));
        assert_eq!(answer, Response::Done);
    }
    fleet.run(TICK * 2);
    let assert_told = |fleet: &mut Fleet, expected: &[Bytes]| {
        for server in &servers {
            let mut news = fleet.sync(*server, "h2", RosterDigest(Vec::new()));
            news.items.retain(|item| UserEvent::is_one(item));
            assert_eq!((news.items.as_slice(), news.event_time), (expected, LamportTime(9)));
        }
    };
    assert_told(&mut fleet, std::slice::from_ref(&item));
    let garbage = || Request::Spread(Bytes::from_static(b"garbage"));
    assert_denied(&fleet.cluster.ask(follower, &agent("h1"), garbage()), "no user event");
    assert_denied(&fleet.cluster.ask(follower, &agent("stranger"), garbage()), "register first");
    assert_eq!(fleet.observed_by(follower).mesh.events, [1, 1, 1, 0]);
    fleet.run(100 * SECOND);
    assert_told(&mut fleet, &[]);
}

/// Rotates the gossip key; returns the reply.
fn rotate(fleet: &mut Fleet, from: u32) -> Response {
    fleet.cluster.command(Command::RotateGossipKey { from })
}

#[track_caller]
fn assert_key(answer: &Response, number: u32) {
    let is_it = |reply: &Reply| *reply == Reply::GossipKey(number);
    assert!(matches!(answer, Response::Applied(Applied { reply, .. }) if is_it(reply)), "{answer:?}");
}

#[test]
fn keys_rotate_singly_for_live_agents() {
    let mut fleet = Fleet::of(2, HealthWindow::Default);
    let (leader, digest) = (fleet.cluster.leader(), || RosterDigest(Vec::new()));
    let before = fleet.sync(leader, "h1", digest()).ring;
    assert_eq!((before.previous.clone(), before.current.number), (None, 0));
    assert_key(&rotate(&mut fleet, 0), 1);
    assert_key(&rotate(&mut fleet, 0), 1);
    // A member with the ring of one rotation before is understood.
    let me = MemberId::of_agent(fleet.lease("h1"));
    let seal = |ring: KeyRing| ring.seal(me, 9, [7; NONCE_BYTES], b"packet");
    let ring = fleet.sync(leader, "h1", digest()).ring;
    assert!(before.open(&seal(ring.clone()), 9).is_ok() && ring.open(&seal(before.clone()), 9).is_ok());
    fleet.run(61 * SECOND);
    assert_key(&rotate(&mut fleet, 1), 2);
    fleet.run(TICK);
    let follower = fleet.cluster.follower();
    let ring = fleet.sync(follower, "h2", digest()).ring;
    assert_eq!((ring.previous.clone().map(|key| key.number), ring.current.number), (Some(1), 2));
    assert!(before.open(&seal(ring), 9).is_err(), "two rotations are too many");
    let figures = fleet.cluster.servers[&follower].frontend.figures(fleet.cluster.now());
    assert_eq!((figures.gossip_key, figures.mesh_members, figures.mesh_cells), (2, 2, 1));
    for name in ["a1", "stranger"] {
        assert_denied(
            &fleet.cluster.ask(leader, &agent(name), Request::SyncMesh(digest())),
            "register first",
        );
    }
}

#[test]
fn rotated_key_served_by_all_servers() {
    let mut fleet = Fleet::of(1, HealthWindow::Default);
    let servers: Vec<_> = fleet.cluster.servers.keys().copied().collect();
    let rings = |fleet: &mut Fleet| -> Vec<_> {
        servers.iter().map(|id| fleet.sync(*id, "h1", RosterDigest(Vec::new())).ring).collect()
    };
    let before = rings(&mut fleet);
    assert_key(&rotate(&mut fleet, 0), 1);
    fleet.run(SECOND);
    let after = rings(&mut fleet);
    assert!(
        before.iter().zip(&after).all(|(before, after)| before != after),
        "a key that was sent before stays"
    );
    assert!(after.iter().all(|ring| *ring == after[0]));
}

#[test]
fn agent_only_requests_denied() {
    let mut cluster = Cluster::start(1);
    let (leader, peer) = (cluster.leader(), agent("a1"));
    let challenge = Challenge { lease: LeaseId { agent: AgentNumber(1), began: LogIndex(1) }, nonce: 1 };
    let question = NodeQuestion { challenge, node: "a2".into(), address: "10.0.0.2:8301".into() };
    for request in [Request::Challenge(challenge), Request::AskNode(question), Request::TellMesh(Vec::new())]
    {
        assert_denied(&cluster.ask(leader, &peer, request), "only agents answer");
    }
    let invitation = Request::Invite(vec!["10.0.0.3:8300".into()]);
    assert_denied(&cluster.ask(leader, &peer, invitation), "belongs to a cluster already");
}

crate::script::stories! { Fleet, "mesh.txt",
    suspicion_advances_check_not_failure follower_relays_suspicion_to_leader
    indiscriminate_suspicions_are_soon_ignored unprobeable_renewing_node_is_reported
    silent_or_unknown_reporter_ignored suspicion_spares_announced_restart
    suspicion_checks_leave_room_for_overdue correct_suspicion_offsets_false_one
    roster_excludes_failed_and_left_members lagging_follower_requests_sync_retry
    key_rotation_requires_minimum_interval
}
