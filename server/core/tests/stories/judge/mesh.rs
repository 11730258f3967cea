//! The servers' side of the mesh. Any server returns the roster and its news, and a suspicion
//! starts a check before a renewal is overdue. It ends nothing, however hostile.

use super::{Fleet, SECOND, agent, assert_within, process, registration};
use crate::frontend::assert_denied;
use bytes::Bytes;
use lockmesh_core::observed::{ACCUSATION_OUTCOMES, Accusation, Observed};
use lockmesh_core::raft::TICK;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::event::{EventFilters, LamportTime, UserEvent};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest};
use lockmesh_protocol::gossip::seal::{KeyRing, NONCE_BYTES};
use lockmesh_protocol::id::{EventId, LogIndex, ServerId};
use lockmesh_protocol::lease::{HealthWindow, LeaseId};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;

impl Fleet {
    /// This many hosts, each with a session of this window.
    pub(super) fn of(hosts: usize, window: HealthWindow) -> Self {
        let mut fleet = Self::start();
        for name in (1..=hosts).map(|number| format!("h{number}")) {
            fleet.host(&name);
            fleet.session(&name, &name, window);
        }
        fleet.run(SECOND);
        fleet.observed();
        fleet
    }

    fn lease(&self, name: &str) -> LeaseId {
        self.hosts[name].lease
    }

    fn accuse_at(&mut self, to: ServerId, accuser: &str, accused: &[LeaseId]) -> Response {
        self.cluster.ask(to, &agent(accuser), Request::Accuse(accused.to_vec()))
    }

    /// Reports suspicions of a host at the leader.
    fn accuse(&mut self, accuser: &str, accused: &[&str]) {
        let accused: Vec<_> = accused.iter().map(|name| self.lease(name)).collect();
        let leader = self.cluster.leader();
        assert_eq!(self.accuse_at(leader, accuser, &accused), Response::Done);
    }

    /// The leader's measurements since the last call.
    fn observed(&mut self) -> Observed {
        let leader = self.cluster.leader();
        self.observed_by(leader)
    }

    fn observed_by(&mut self, id: ServerId) -> Observed {
        self.cluster.servers.get_mut(&id).expect("it runs").frontend.take_observed()
    }

    /// Asserts the outcomes of suspicions since the last call.
    #[track_caller]
    fn assert_outcomes(&mut self, expected: &[(Accusation, u64)]) {
        let mut outcomes = [0; ACCUSATION_OUTCOMES.len()];
        expected.iter().for_each(|(outcome, count)| outcomes[*outcome as usize] = *count);
        assert_eq!(self.observed().judge.accusations, outcomes, "{ACCUSATION_OUTCOMES:?}");
    }

    fn open_checks(&self) -> usize {
        self.cluster.servers[&self.cluster.leader()].frontend.figures(self.cluster.now()).open_checks
    }

    fn sync(&mut self, id: ServerId, name: &str, has: RosterDigest) -> MeshNews {
        match self.cluster.ask(id, &agent(name), Request::SyncMesh(has)) {
            Response::Mesh(news) => *news,
            other => panic!("{name} gets no mesh news: {other:?}"),
        }
    }

    /// The full roster, as a server returns it.
    fn roster(&mut self, id: ServerId, asks: &str) -> BTreeSet<String> {
        let news = self.sync(id, asks, RosterDigest(Vec::new()));
        let members = news.roster.0.into_iter().flat_map(|(_, members)| members);
        members.map(|member| member.node.to_string()).collect()
    }

    #[track_caller]
    fn assert_roster(&mut self, asks: &str, expected: &[&str]) {
        for id in self.cluster.servers.keys().copied().collect::<Vec<_>>() {
            let roster = self.roster(id, asks);
            assert!(roster.iter().eq(expected), "server {id}: {roster:?}");
        }
    }
}

// Suspicions.

#[test]
fn a_host_that_is_accused_is_asked_before_its_renewal_is_overdue_and_fails_no_sooner() {
    let mut fleet = Fleet::of(3, HealthWindow::Safe);
    fleet.kill("h1");
    fleet.run(SECOND / 2);
    assert_eq!(fleet.open_checks(), 0, "no renewal is overdue yet");
    fleet.accuse("h2", &["h1"]);
    assert_eq!(fleet.open_checks(), 1);
    fleet.accuse("h3", &["h1"]);
    fleet.assert_outcomes(&[(Accusation::Opened, 1), (Accusation::Known, 1)]);
    assert_eq!(fleet.leases_of("h1")[0].suspected_by, ["h2".into(), "h3".into()]);
    let took = fleet.time_of_death("h1", "h1");
    assert_within(took, HealthWindow::Safe.validity());
    assert_eq!(fleet.status("h1"), MemberStatus::Failed);
}

#[test]
fn an_accusation_reaches_the_leader_through_any_server() {
    let mut fleet = Fleet::of(2, HealthWindow::Default);
    fleet.kill("h1");
    let (follower, accused) = (fleet.cluster.follower(), fleet.lease("h1"));
    assert_eq!(fleet.accuse_at(follower, "h2", &[accused]), Response::Done);
    fleet.assert_outcomes(&[(Accusation::Opened, 1)]);
    assert_eq!(fleet.observed_by(follower).judge.accusations[Accusation::Relayed as usize], 1);
    // Without a leader no check opens.
    let leader = fleet.cluster.leader();
    fleet.cluster.leave_alone(follower);
    fleet.run(10 * SECOND);
    let answer = fleet.accuse_at(follower, "h2", &[accused]);
    assert!(matches!(answer, Response::Unavailable(Unavailable::NotLeader { .. })), "{answer:?}");
    assert_ne!(leader, follower);
}

#[test]
fn one_that_accuses_everybody_ends_nothing_and_is_soon_not_heard_any_more() {
    let mut fleet = Fleet::of(6, HealthWindow::Fast);
    let leases: Vec<_> = (1..=6).map(|number| fleet.lease(&format!("h{number}"))).collect();
    let mut opened = 0;
    for _ in 0..60 {
        for id in fleet.cluster.servers.keys().copied().collect::<Vec<_>>() {
            assert_eq!(fleet.accuse_at(id, "h6", &leases), Response::Done);
        }
        fleet.run(SECOND);
        let observed = fleet.observed();
        opened += observed.judge.accusations[Accusation::Opened as usize];
        assert_eq!(observed.judge.verdicts, [0; 3]);
    }
    assert!(opened <= 5 + 2 * 4, "{opened} checks were opened");
    for name in (1..=6).map(|number| format!("h{number}")) {
        assert!(fleet.lives(&name) && fleet.status(&name) == MemberStatus::Alive, "{name}");
    }
    // Another accuser of the same host counts, and so does it beside that one.
    fleet.accuse("h6", &["h1"]);
    fleet.assert_outcomes(&[(Accusation::IgnoredAccuser, 1)]);
    fleet.accuse("h5", &["h2"]);
    fleet.run(SECOND);
    fleet.accuse("h6", &["h2"]);
    fleet.assert_outcomes(&[(Accusation::Opened, 2)]);
}

#[test]
fn a_node_that_renews_and_that_agents_cannot_probe_is_reported_until_they_can() {
    let mut fleet = Fleet::of(4, HealthWindow::Fast);
    let reported = |fleet: &Fleet| {
        let leader = &fleet.cluster.servers[&fleet.cluster.leader()].frontend;
        leader.figures(fleet.cluster.now()).nodes_with_failed_probes
    };
    for second in 0..70 {
        // One that accuses everybody makes no report of its own.
        fleet.accuse("h4", &["h1", "h2"]);
        fleet.accuse("h3", &["h1"]);
        fleet.run(SECOND);
        assert!(second >= 60 || reported(&fleet) == 0, "after {second} s");
    }
    assert_eq!(reported(&fleet), 1);
    let lease = fleet.leases_of("h1").remove(0);
    assert!(lease.has_failed_probes() && !lease.lacks_renewals(), "{lease:?}");
    assert!(lease.suspecting_nodes().all(|node| ["h3", "h4"].contains(&node.as_str())), "{lease:?}");
    assert!(!fleet.leases_of("h2")[0].has_failed_probes());
    fleet.run(50 * SECOND);
    assert_eq!(reported(&fleet), 0, "it is probed again");
    assert!(fleet.lives("h1") && fleet.status("h1") == MemberStatus::Alive);
}

#[test]
fn whoever_is_silent_itself_or_is_nobody_accuses_in_vain() {
    let mut fleet = Fleet::of(3, HealthWindow::Default);
    fleet.kill("h1");
    fleet.run_until(5 * SECOND, |fleet| fleet.open_checks() == 1);
    fleet.observed();
    // A node that does not reach the servers may not reach others.
    fleet.accuse("h1", &["h2"]);
    fleet.accuse("h2", &["h2"]);
    fleet.assert_outcomes(&[(Accusation::IgnoredAccuser, 2)]);
    let leader = fleet.cluster.leader();
    let gone = LeaseId { began: LogIndex(1), ..fleet.lease("h3") };
    fleet.accuse_at(leader, "h2", &[gone]);
    fleet.assert_outcomes(&[(Accusation::NoMember, 1)]);
    fleet.run(10 * SECOND);
    let accused = fleet.lease("h3");
    assert_denied(&fleet.accuse_at(leader, "h1", &[accused]), "register first");
    assert_denied(&fleet.accuse_at(leader, "stranger", &[accused]), "register first");
    assert_denied(&fleet.accuse_at(leader, "h2", &[accused; 65]), "the limit is 64");
    assert_eq!(fleet.open_checks(), 0);
}

#[test]
fn a_host_that_announced_its_restart_is_not_asked_sooner() {
    let mut fleet = Fleet::of(2, HealthWindow::Default);
    assert!(fleet.announce(1, 1));
    fleet.kill("h1");
    fleet.accuse("h2", &["h1"]);
    fleet.assert_outcomes(&[(Accusation::Known, 1)]);
    assert_eq!(fleet.open_checks(), 0);
}

#[test]
fn checks_that_accusations_open_leave_room_for_those_that_are_overdue() {
    let mut fleet = Fleet::of(68, HealthWindow::Safe);
    let names: Vec<_> = (1..=66).map(|number| format!("h{number}")).collect();
    names.iter().for_each(|name| fleet.kill(name));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    fleet.accuse("h67", &names[..60]);
    fleet.accuse("h68", &names[60..]);
    fleet.assert_outcomes(&[(Accusation::Opened, 64), (Accusation::TooMany, 2)]);
    fleet.run_until(10 * SECOND, |fleet| fleet.open_checks() > 64);
    assert_eq!(fleet.open_checks(), 66);
}

#[test]
fn a_verdict_makes_up_for_an_accusation_that_was_wrong() {
    let mut fleet = Fleet::of(3, HealthWindow::Default);
    for _ in 0..4 {
        fleet.accuse("h3", &["h2"]);
        fleet.run(SECOND);
    }
    fleet.kill("h1");
    fleet.accuse("h3", &["h1"]);
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h1") == MemberStatus::Failed);
    for _ in 0..3 {
        fleet.accuse("h3", &["h2"]);
        fleet.run(SECOND);
    }
    // Four and one, of which one is credited and a half expires; then two more.
    fleet.assert_outcomes(&[(Accusation::Opened, 7), (Accusation::IgnoredAccuser, 1)]);
}

// Mesh news.

#[test]
fn any_server_tells_who_is_in_the_mesh_and_nobody_who_has_failed_or_left() {
    let mut fleet = Fleet::of(4, HealthWindow::Default);
    fleet.assert_roster("h1", &["h1", "h2", "h3", "h4"]);
    fleet.kill("h2");
    let answer = fleet.leave("h3");
    assert!(matches!(answer, Response::Applied(_)), "{answer:?}");
    assert!(fleet.announce(1, 1), "h1 returns, and is challenged like any other meanwhile");
    fleet.run_until(10 * SECOND, |fleet| fleet.status("h2") == MemberStatus::Failed);
    fleet.run(SECOND);
    fleet.assert_roster("h1", &["h1", "h4"]);
    fleet.host("h2");
    fleet.run(SECOND);
    fleet.assert_roster("h1", &["h1", "h2", "h4"]);
    // A restarted server has the same roster.
    let follower = fleet.cluster.follower();
    fleet.cluster.restart(follower);
    fleet.run(SECOND);
    fleet.assert_roster("h1", &["h1", "h2", "h4"]);
}

#[test]
fn a_follower_that_lags_behind_a_registration_tells_the_agent_to_ask_again() {
    let mut fleet = Fleet::of(1, HealthWindow::Default);
    let follower = fleet.cluster.follower();
    fleet.cluster.cut_off.insert(follower);
    fleet.host("h2");
    let nothing = || Request::SyncMesh(RosterDigest(Vec::new()));
    assert_denied(&fleet.cluster.ask(follower, &agent("h2"), nothing()), "ask again soon");
    fleet.cluster.cut_off.clear();
    fleet.run(SECOND);
    assert_eq!(fleet.roster(follower, "h2"), ["h1", "h2"].map(String::from).into());
}

#[test]
fn what_has_not_changed_is_not_told_again() {
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
fn a_node_that_another_agent_took_over_is_in_the_mesh_once() {
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
    fleet.assert_roster("h1", &["h1", "h2"]);
    let mut roster = Roster::default();
    roster.apply(fleet.sync(leader, "h1", RosterDigest(Vec::new())).roster);
    assert!(roster.get(former).is_none());
}

#[test]
fn verdicts_of_late_are_told_with_the_servers_signature() {
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
fn the_leader_tells_a_verdict_at_once_to_three_members_who_live() {
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
fn whoever_is_under_check_is_not_told_of_a_verdict() {
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
fn all_servers_tell_the_leader_s_time_however_their_own_clocks_are_set() {
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
fn an_event_that_an_agent_fires_is_told_by_all_servers_for_a_while() {
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
fn the_keys_are_for_living_agents_and_go_on_by_one_at_a_time() {
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
fn the_key_is_not_changed_again_before_every_agent_has_asked_for_it() {
    let mut fleet = Fleet::of(1, HealthWindow::Default);
    assert_key(&rotate(&mut fleet, 0), 1);
    assert_denied(&rotate(&mut fleet, 1), "changed 0 s ago");
    // Nor with both commands sent at once.
    assert_denied(&rotate(&mut fleet, 2), "key 2 is not in use: key 1 is");
    fleet.run(50 * SECOND);
    assert_denied(&rotate(&mut fleet, 1), "for 10 s more");
    // Another leader has seen it too; one that has restarted since counts from its start.
    fleet.depose();
    assert_denied(&rotate(&mut fleet, 1), "changed 5");
    fleet.run(15 * SECOND);
    assert_key(&rotate(&mut fleet, 1), 2);
    for id in fleet.cluster.servers.keys().copied().collect::<Vec<_>>() {
        fleet.cluster.restart(id);
    }
    fleet.cluster.cut_off.clear();
    fleet.run(30 * SECOND);
    assert_denied(&rotate(&mut fleet, 2), "for 3");
    fleet.run(35 * SECOND);
    assert_key(&rotate(&mut fleet, 2), 3);
}

#[test]
fn agents_get_the_new_key_from_every_server_as_soon_as_it_is_changed() {
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
