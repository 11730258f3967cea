//! Hosts in the mesh, with their seals, and servers that send the roster and sign verdicts.

use crate::mesh::{MS, SECOND, agent};
use bytes::Bytes;
use lockmesh_agent_core::gossip::mesh::{Mesh, Output};
use lockmesh_protocol::given_up::{GivenUpSession, MAX_GIVEN_UP, NodeAnswer};
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::event::{EventFilters, LamportTime, UserEvent};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::packet::{Header, Message};
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest, RosterMember};
use lockmesh_protocol::gossip::seal::KeyRing;
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictSigner};
use lockmesh_protocol::id::{EventId, LogIndex, SessionId};
use lockmesh_protocol::lease::{Challenge, HealthWindow, LeaseId, LeaseKey};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const SECRET: LeaseKey = LeaseKey([7; 32]);

/// The servers' data.
pub(crate) struct Servers {
    roster: Roster,
    key: u32,
    verdicts: Vec<Verdict>,
    /// The events that they received, and the highest time of any.
    events: Vec<Bytes>,
    event_time: LamportTime,
    /// The number of cells of the hosts; each host only knows its own cell.
    cells: u32,
    /// The last log index that they have applied.
    as_of: LogIndex,
    pub(crate) is_away: bool,
}

/// Hosts, the network between them, and the servers.
pub(crate) struct Fleet {
    pub(crate) now: Time,
    pub(crate) hosts: BTreeMap<SocketAddr, Mesh>,
    /// The number of lost datagrams per thousand.
    pub(crate) loss: u64,
    pub(crate) servers: Servers,
    under_way: BTreeMap<(Time, u64), (SocketAddr, Vec<u8>)>,
    random: Random,
    count: u64,
    suspected: Vec<(MemberId, LeaseId)>,
    verdicts: Vec<(MemberId, Verdict)>,
    /// Challenges with their relaying and receiving members, and the replies with their receivers.
    challenges: Vec<(MemberId, (MemberId, Challenge))>,
    answers: Vec<(MemberId, NodeAnswer)>,
    /// Delivered events.
    pub(crate) events: Vec<(MemberId, UserEvent)>,
    /// The number of bytes sent.
    pub(crate) bytes: usize,
    /// The number of requests to the servers.
    syncs: u32,
}

pub(crate) fn address(number: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + number), 8302))
}

fn member(number: u32) -> RosterMember {
    let node = format!("n{number}").as_str().into();
    RosterMember { id: agent(number), node, address: address(number) }
}

fn lease(number: u32) -> LeaseId {
    agent(number).lease().expect("it is an agent")
}

/// A packet for a host with only these items.
pub(crate) fn gossip<'a>(to: u32, items: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut packet = Vec::new();
    Header { incarnation: 0, to: agent(to), message: Message::Gossip }.write(&mut packet);
    packet.extend([0, 0]);
    for item in items {
        packet.extend((item.len() as u16).to_be_bytes());
        packet.extend(item);
    }
    packet
}

impl Servers {
    fn news(&self, host: MemberId, digest: &RosterDigest, now: Time) -> MeshNews {
        let signer = VerdictSigner::derived(&SECRET);
        let cell = |member: MemberId| member.lease().expect("it is an agent").agent.0 % self.cells;
        let own = self.roster.members().filter(|member| cell(member.id) == cell(host));
        let verdicts = self.verdicts.iter().map(|verdict| signer.sign(verdict).into());
        MeshNews {
            as_of: self.as_of,
            seconds: 1_000 + now.since(Time(0)).as_secs() as u32,
            ring: KeyRing::derived(&SECRET, self.key),
            verdict_key: signer.key(),
            roster: Roster::of(own.cloned()).news(digest),
            items: verdicts.chain(self.events.iter().cloned()).collect(),
            event_time: self.event_time,
        }
    }
}

impl Fleet {
    /// Creates a fleet of hosts that know each other.
    pub(crate) fn of(count: u32) -> Self {
        Self::in_cells(count, 1)
    }

    /// Creates a fleet divided into cells.
    pub(crate) fn in_cells(count: u32, cells: u32) -> Self {
        let roster = Roster::of((0..count).map(member));
        let servers = Servers {
            roster,
            key: 1,
            verdicts: Vec::new(),
            events: Vec::new(),
            event_time: LamportTime(0),
            cells,
            as_of: LogIndex(0),
            is_away: false,
        };
        let mut fleet = Self {
            now: Time(0),
            hosts: BTreeMap::new(),
            loss: 0,
            servers,
            under_way: BTreeMap::new(),
            random: Random::new(7),
            count: 0,
            suspected: Vec::new(),
            verdicts: Vec::new(),
            challenges: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            bytes: 0,
            syncs: 0,
        };
        (0..count).for_each(|number| fleet.start(number));
        fleet.pass(SECOND * 20);
        fleet
    }

    pub(crate) fn start(&mut self, number: u32) {
        let mesh = Mesh::new(agent(number), self.random.number(), self.now);
        self.hosts.insert(address(number), mesh);
    }

    pub(crate) fn host(&mut self, number: u32) -> &mut Mesh {
        self.hosts.get_mut(&address(number)).expect("it lives")
    }

    fn kill(&mut self, number: u32) {
        self.hosts.remove(&address(number));
    }

    /// Fails a host by a verdict of the servers.
    fn fail(&mut self, number: u32) -> Verdict {
        self.servers.roster.remove(agent(number));
        let verdict = Verdict { lease: lease(number), window: HealthWindow::Default, index: LogIndex(99) };
        self.servers.verdicts.push(verdict);
        verdict
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + MS * 10;
            while let Some(((at, _), _)) = self.under_way.first_key_value()
                && *at <= self.now
            {
                let (_, (to, datagram)) = self.under_way.pop_first().expect("it is there");
                self.act(to, |mesh, now, output| mesh.receive(now, &datagram, output));
            }
            for host in self.hosts.keys().copied().collect::<Vec<_>>() {
                self.act(host, |mesh, now, output| mesh.tick(now, output));
                self.sync(host);
            }
        }
    }

    fn sync(&mut self, host: SocketAddr) {
        let Some(mesh) = self.hosts.get_mut(&host) else { return };
        let me = mesh.me();
        let Some(digest) = mesh.wants_sync(self.now) else { return };
        self.syncs += 1;
        let news = (!self.servers.is_away).then(|| self.servers.news(me, &digest, self.now));
        self.act(host, |mesh, now, output| mesh.synced(now, news, output));
    }

    pub(crate) fn act(&mut self, host: SocketAddr, act: impl FnOnce(&mut Mesh, Time, &mut Output)) {
        let mut output = Output::default();
        let Some(mesh) = self.hosts.get_mut(&host) else { return };
        act(mesh, self.now, &mut output);
        let me = mesh.me();
        for (to, packet) in output.packets {
            self.count += 1;
            let mut nonce = [0; 24];
            nonce[..8].copy_from_slice(&self.count.to_be_bytes());
            let datagram = mesh.seal(self.now, &packet, nonce).expect("a sender has a key");
            self.bytes += datagram.len();
            if self.random.number() % 1_000 < self.loss {
                continue;
            }
            self.under_way.insert((self.now + MS, self.count), (to, datagram));
        }
        self.suspected.extend(output.suspicions.into_iter().map(|lease| (me, lease)));
        self.verdicts.extend(output.verdicts.into_iter().map(|verdict| (me, verdict)));
        if !self.servers.is_away && !output.spread.is_empty() {
            let times = output.events.iter().map(|event| event.time);
            self.servers.event_time = times.fold(self.servers.event_time, LamportTime::max);
            self.servers.events.extend(output.spread);
        }
        self.events.extend(output.events.into_iter().map(|event| (me, event)));
        self.challenges.extend(output.challenges.into_iter().map(|asked| (me, asked)));
        self.answers.extend(output.answers.into_iter().map(|answer| (me, answer)));
    }
}

#[test]
fn dead_host_suspected_then_removed() {
    let mut fleet = Fleet::of(12);
    assert!(fleet.suspected.is_empty() && fleet.hosts.values().all(|mesh| mesh.roster().len() == 12));
    fleet.kill(3);
    fleet.pass(SECOND * 3);
    assert!(
        !fleet.suspected.is_empty() && fleet.suspected.iter().all(|(_, suspected)| *suspected == lease(3))
    );
    let verdict = fleet.fail(3);
    // Only the hosts that suspected it soon request its outcome, and inform all others.
    fleet.pass(SECOND * 3);
    assert_eq!(fleet.verdicts.len(), 11, "{:?}", fleet.verdicts);
    assert!(fleet.verdicts.iter().all(|(_, told)| *told == verdict));
    assert!(fleet.hosts.values().all(|mesh| mesh.roster().get(agent(3)).is_none()));
    fleet.suspected.clear();
    let in_vain = |fleet: &Fleet| fleet.hosts.values().map(|mesh| mesh.counts().0.excused).sum::<u64>();
    let before = in_vain(&fleet);
    fleet.pass(SECOND * 60);
    assert_eq!((fleet.suspected.len(), fleet.verdicts.len()), (0, 11), "gossip about it has ended");
    assert_eq!(in_vain(&fleet), before, "and it is not probed any more");
}

#[test]
fn single_join_known_within_seconds() {
    let mut fleet = Fleet::of(12);
    fleet.servers.roster.apply(Roster::of((0..13).map(member)).news(&fleet.servers.roster.digest()));
    fleet.start(12);
    fleet.pass(SECOND * 15);
    assert!(fleet.hosts.values().all(|mesh| mesh.roster().len() == 13));
    assert!(fleet.suspected.is_empty(), "{:?}", fleet.suspected);
}

#[test]
fn failed_first_sync_retried_soon() {
    let mut fleet = Fleet::of(3);
    fleet.servers.roster.apply(Roster::of((0..4).map(member)).news(&fleet.servers.roster.digest()));
    fleet.servers.is_away = true;
    fleet.start(3);
    fleet.pass(MS * 100);
    fleet.servers.is_away = false;
    fleet.pass(SECOND);
    assert_eq!(fleet.host(3).roster().len(), 4);
    fleet.pass(SECOND * 3);
    assert!(fleet.host(3).counts().0.received > 0 && fleet.suspected.is_empty());
}

#[test]
fn key_rotation_causes_no_suspicion() {
    let mut fleet = Fleet::of(6);
    for key in 2..6 {
        fleet.servers.key = key;
        fleet.pass(SECOND * 40);
    }
    assert!(fleet.suspected.is_empty(), "{:?}", fleet.suspected);
    for mesh in fleet.hosts.values() {
        assert_eq!(mesh.counts().1.unknown_keys, 0);
    }
}

#[test]
fn mesh_detects_failures_without_servers() {
    let mut fleet = Fleet::of(6);
    fleet.servers.is_away = true;
    fleet.pass(SECOND * 120);
    assert!(fleet.suspected.is_empty());
    fleet.kill(2);
    fleet.pass(SECOND * 3);
    assert!(
        fleet.suspected.iter().all(|(_, suspected)| *suspected == lease(2)) && !fleet.suspected.is_empty()
    );
}

#[test]
fn reregistered_process_is_new_member() {
    let mut fleet = Fleet::of(6);
    let next = LeaseId { began: LogIndex(5_000), ..lease(2) };
    let (before, after) = (agent(2), MemberId::of_agent(next));
    let members = (0..6).filter(|number| *number != 2).map(member);
    let roster = Roster::of(members.chain([RosterMember { id: after, ..member(2) }]));
    fleet.servers.roster.apply(roster.news(&fleet.servers.roster.digest()));
    fleet.act(address(2), |mesh, now, output| mesh.become_member(now, after, output));
    fleet.pass(SECOND * 40);
    let knows = |mesh: &Mesh, member| mesh.roster().get(member).is_some();
    assert!(fleet.hosts.values().all(|mesh| knows(mesh, after) && !knows(mesh, before)));
    // Members that do not know the new process yet find the old one gone, which is correct.
    assert!(fleet.suspected.iter().all(|(_, suspected)| *suspected == lease(2)), "{:?}", fleet.suspected);
    fleet.suspected.clear();
    fleet.pass(SECOND * 60);
    assert!(fleet.suspected.is_empty(), "{:?}", fleet.suspected);
    // It is probed like any other.
    fleet.kill(2);
    fleet.pass(SECOND * 10);
    let reporters: BTreeSet<_> = fleet.suspected.iter().map(|(reporter, _)| *reporter).collect();
    assert_eq!(reporters.len(), 5, "{:?}", fleet.suspected);
    assert!(fleet.suspected.iter().all(|(_, suspected)| *suspected == next), "{:?}", fleet.suspected);
}

#[test]
fn gossip_spreads_verdict_to_all() {
    let mut fleet = Fleet::of(16);
    fleet.kill(3);
    let verdict = fleet.fail(3);
    fleet.servers.is_away = true;
    let signed = Bytes::from(VerdictSigner::derived(&SECRET).sign(&verdict));
    fleet.act(address(0), |mesh, now, output| mesh.receive_items(now, vec![signed], output));
    fleet.pass(SECOND);
    assert_eq!(fleet.verdicts.len(), 15, "{:?}", fleet.verdicts);
    assert!(fleet.hosts.values().all(|mesh| mesh.roster().len() == 15));
}

#[test]
fn items_before_first_sync_ignored() {
    let mut fleet = Fleet::of(2);
    let forged = Bytes::from(VerdictSigner::new([9; 32]).sign(&fleet.fail(1)));
    let event =
        UserEvent::new(EventId::from_random([1; 16]), "deploy".into(), Bytes::new(), EventFilters::default());
    let items = vec![forged, event.expect("it is short").to_item().into()];
    fleet.servers.is_away = true;
    fleet.start(0);
    fleet.act(address(0), |mesh, now, output| mesh.receive_items(now, items.clone(), output));
    assert_eq!((fleet.events.len(), fleet.verdicts.len()), (0, 0));
    // Later the event is accepted; the unsigned verdict never is.
    fleet.act(address(1), |mesh, now, output| mesh.receive_items(now, items, output));
    assert_eq!((fleet.events.len(), fleet.verdicts.len()), (1, 0));
    assert_eq!(fleet.host(1).counts().1.unsigned, 1);
}

#[test]
fn fast_window_verdict_keeps_member() {
    let mut fleet = Fleet::of(4);
    let verdict = |window| Verdict { lease: lease(3), window, index: LogIndex(99) };
    let hear = |fleet: &mut Fleet, window| {
        let signed = VerdictSigner::derived(&SECRET).sign(&verdict(window));
        let now = fleet.now;
        let datagram = fleet.host(1).seal(now, &gossip(0, [&signed]), [9; 24]).expect("it has a key");
        fleet.act(address(0), |mesh, now, output| mesh.receive(now, &datagram, output));
        fleet.host(0).roster().len()
    };
    assert_eq!(hear(&mut fleet, HealthWindow::Fast), 4);
    assert_eq!(hear(&mut fleet, HealthWindow::Default), 3);
    assert_eq!(fleet.verdicts.iter().filter(|(host, _)| *host == agent(0)).count(), 2);
}

#[test]
fn foreign_datagrams_counted_and_ignored() {
    let mut fleet = Fleet::of(4);
    let other = KeyRing::derived(&LeaseKey([8; 32]), 1);
    let ring = KeyRing::derived(&SECRET, 1);
    let seconds = 1_000 + fleet.now.since(Time(0)).as_secs() as u32;
    let forged = VerdictSigner::new([9; 32]).sign(&Verdict {
        lease: lease(1),
        window: HealthWindow::Default,
        index: LogIndex(9),
    });
    let packet = gossip(0, [&forged]);
    for datagram in [
        b"garbage".to_vec(),
        other.seal(agent(1), seconds, [1; 24], &packet),
        KeyRing::derived(&SECRET, 9).seal(agent(1), seconds, [2; 24], &packet),
        ring.seal(agent(1), seconds - 60, [3; 24], &packet),
        ring.seal(agent(1), seconds, [4; 24], &packet),
    ] {
        let now = fleet.now;
        fleet.host(0).receive(now, &datagram, &mut Output::default());
    }
    let (gossip, seals) = fleet.host(0).counts();
    assert_eq!(
        (seals.malformed, seals.broken, seals.unknown_keys, seals.stale, seals.unsigned),
        (1, 1, 1, 1, 1)
    );
    assert_eq!((gossip.malformed, fleet.verdicts.len(), fleet.host(0).roster().len()), (0, 0, 4));
}

#[test]
fn lagging_roster_is_ignored() {
    let mut fleet = Fleet::of(3);
    let now = fleet.now;
    let mut late = fleet.servers.news(agent(0), &RosterDigest(Vec::new()), now);
    fleet.servers.as_of = LogIndex(7);
    fleet.servers.roster.insert(member(3));
    fleet.start(3);
    fleet.pass(SECOND * 40);
    assert!(fleet.hosts.values().all(|mesh| mesh.roster().len() == 4));
    // All of its buckets, as sent to a member with an unrelated roster.
    late.roster = Roster::of((0..3).map(member)).news(&RosterDigest(Vec::new()));
    fleet.act(address(0), |mesh, now, output| mesh.synced(now, Some(late), output));
    assert_eq!(fleet.hosts[&address(0)].roster().len(), 4);
}

#[test]
fn rebuilt_servers_accepted_after_registration() {
    let mut fleet = Fleet::of(3);
    fleet.servers.as_of = LogIndex(1_000_000);
    fleet.pass(SECOND * 40);
    // Their log is short, so the leases that they grant start at low indexes.
    fleet.servers.as_of = LogIndex(9);
    fleet.servers.key = 50;
    let process = |number: u32| {
        let lease = LeaseId { began: LogIndex(u64::from(number) + 2), ..lease(number) };
        RosterMember { id: MemberId::of_agent(lease), ..member(number) }
    };
    fleet.servers.roster = Roster::of((0..3).map(process));
    for number in 0..3 {
        fleet.act(address(number), |mesh, now, output| mesh.become_member(now, process(number).id, output));
    }
    fleet.pass(SECOND * 5);
    for (number, mesh) in (0..).zip(fleet.hosts.values()) {
        assert!(mesh.roster().members().eq((0..3).map(process).collect::<Vec<_>>().iter()), "{number}");
        assert_eq!(mesh.others(), 2);
    }
    let received = |fleet: &mut Fleet| fleet.host(0).counts().0.received;
    let before = received(&mut fleet);
    fleet.pass(SECOND * 5);
    assert!(received(&mut fleet) > before, "they receive each other's packets");
}

#[test]
fn datagram_flood_dropped_before_decryption() {
    let mut fleet = Fleet::of(3);
    let flood = vec![0xa5; 1_100];
    fleet.act(address(0), |mesh, now, output| {
        (0..10_000).for_each(|_| mesh.receive(now, &flood, output));
    });
    let (_, seal) = fleet.hosts[&address(0)].counts();
    assert!(seal.excess_datagrams > 8_000, "{seal:?}");
    fleet.pass(SECOND * 5);
    let (before, _) = fleet.hosts[&address(0)].counts();
    fleet.pass(SECOND * 5);
    let (after, _) = fleet.hosts[&address(0)].counts();
    assert!(after.received > before.received && fleet.suspected.is_empty());
}

#[test]
fn verdict_checks_limited_and_members_only() {
    let mut fleet = Fleet::of(3);
    let forged = |index: u64, number: u32| {
        let verdict = Verdict { lease: lease(number), window: HealthWindow::Default, index: LogIndex(index) };
        VerdictSigner::new([9; 32]).sign(&verdict)
    };
    let on_members: Vec<Vec<u8>> = (0..500).map(|index| forged(index, 2)).collect();
    let on_strangers: Vec<Vec<u8>> = (0..50).map(|index| forged(index, 70)).collect();
    let before = fleet.hosts[&address(0)].counts().1;
    for items in on_members.chunks(8).chain(on_strangers.chunks(8)) {
        let now = fleet.now;
        let sealed = fleet.hosts[&address(1)].seal(now, &gossip(0, items), [3; 24]).expect("it has a key");
        fleet.act(address(0), |mesh, now, output| mesh.receive(now, &sealed, output));
    }
    let after = fleet.hosts[&address(0)].counts().1;
    let checked = after.unsigned - before.unsigned;
    assert!((50..150).contains(&checked), "{checked}");
    assert_eq!(after.excess_verdicts + checked, 500);
    assert_eq!(after.strange_verdicts, 50);
    assert_eq!(fleet.hosts[&address(0)].roster().len(), 3);
}

#[test]
fn repeated_suspicion_queries_back_off() {
    let mut fleet = Fleet::of(8);
    // It is cut off, but no verdict fails it.
    fleet.kill(7);
    let asked = |fleet: &mut Fleet, seconds: u32| {
        let before = fleet.syncs;
        fleet.pass(SECOND * seconds);
        fleet.syncs - before
    };
    asked(&mut fleet, 5);
    let in_a_minute = asked(&mut fleet, 60);
    assert!(in_a_minute < 7 * 20, "{in_a_minute} by seven hosts");
}

#[test]
fn simultaneous_joins_known_within_seconds() {
    let mut fleet = Fleet::of(40);
    for number in 40..60 {
        fleet.servers.roster.insert(member(number));
        fleet.start(number);
        fleet.pass(MS * 100);
    }
    fleet.pass(SECOND * 8);
    let known: Vec<usize> = fleet.hosts.values().map(|mesh| mesh.roster().len()).collect();
    assert_eq!(known, vec![60; 60]);
    assert!(fleet.suspected.is_empty(), "{:?}", fleet.suspected);
}

#[test]
fn forwarded_challenge_returns_renewal() {
    let mut fleet = Fleet::of(4);
    let challenge = Challenge { lease: lease(2), nonce: 77 };
    fleet.act(address(1), |mesh, now, output| mesh.challenge(now, challenge, output));
    fleet.pass(MS * 20);
    assert_eq!(fleet.challenges, [(agent(2), (agent(1), challenge))]);
    let renewal = SECRET.secret(lease(2)).renewal(lease(2), 5, challenge.nonce);
    fleet.act(address(2), |mesh, now, output| mesh.answer(now, agent(1), &renewal.into(), output));
    fleet.pass(MS * 20);
    assert_eq!(fleet.answers, [(agent(1), renewal.into())]);
}

/// In a separate datagram, which a member of an earlier build drops: a repeated challenge is also
/// answered with a plain renewal.
#[test]
fn answer_lists_given_up_sessions() {
    let mut fleet = Fleet::of(4);
    let session = |number: u8| GivenUpSession {
        session: SessionId::from_random([number; 16]),
        silent_for: (number > 0).then_some(Duration::from_micros(3_000_001)),
    };
    let sessions: Vec<_> = (0..MAX_GIVEN_UP as u8).map(session).collect();
    let secret = SECRET.secret(lease(2));
    let given_up = secret.give_up(lease(2), sessions.try_into().expect("they fit"));
    let renewal = secret.renewal(lease(2), 5, 77);
    let answer = NodeAnswer { renewal, given_up: Some(given_up) };
    for expected in [vec![answer], vec![answer], vec![answer, renewal.into()]] {
        fleet.answers.clear();
        fleet.act(address(2), |mesh, now, output| mesh.answer(now, agent(1), &answer, output));
        fleet.pass(MS * 250);
        assert_eq!(fleet.answers, expected.into_iter().map(|answer| (agent(1), answer)).collect::<Vec<_>>());
    }
    let (_, heard) = fleet.answers[0];
    assert!(heard.given_up.is_some_and(|given_up| secret.made_list(&given_up)));
}

#[test]
fn challenge_for_unknown_lease_dropped() {
    let mut fleet = Fleet::of(4);
    for lease in [lease(9), LeaseId { began: LogIndex(1), ..lease(2) }] {
        let challenge = Challenge { lease, nonce: 77 };
        fleet.act(address(1), |mesh, now, output| mesh.challenge(now, challenge, output));
        let renewal = SECRET.secret(lease).renewal(lease, 5, challenge.nonce);
        fleet.act(address(2), |mesh, now, output| mesh.answer(now, agent(1), &renewal.into(), output));
    }
    fleet.pass(MS * 20);
    assert!(fleet.challenges.is_empty() && fleet.answers.is_empty());
}

#[test]
fn challenges_rate_limited_per_member() {
    let mut fleet = Fleet::of(4);
    for nonce in 1..=1_000 {
        let challenge = Challenge { lease: lease(2), nonce };
        fleet.act(address(1), |mesh, now, output| mesh.challenge(now, challenge, output));
    }
    fleet.pass(MS * 20);
    assert_eq!(fleet.challenges.len(), 64);
    assert_eq!(fleet.host(2).counts().1.excess_challenges, 1_000 - 64);
    fleet.pass(SECOND * 3);
    let challenge = Challenge { lease: lease(2), nonce: 5_000 };
    fleet.act(address(3), |mesh, now, output| mesh.challenge(now, challenge, output));
    fleet.pass(MS * 20);
    assert_eq!(
        fleet.challenges.last(),
        Some(&(agent(2), (agent(3), challenge))),
        "others receive a reply again"
    );
}
