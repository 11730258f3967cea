//! Packets of a hostile member, or of a stranger with a stolen key: they can neither fail, stop nor
//! overload a member.

use crate::mesh::{Mesh, SECOND, agent};
use bytes::BufMut;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::packet::{Header, Message};
use lockmesh_protocol::random::Random;

/// A packet with a report about a member: 0 alive, 1 suspect, 2 dead.
fn rumour(to: MemberId, of: MemberId, incarnation: u16, standing: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { incarnation: 0, to, message: Message::Gossip }.write(&mut bytes);
    bytes.put_u16(1);
    of.write(&mut bytes);
    bytes.put_u16(incarnation);
    bytes.put_u8(standing);
    bytes
}

#[test]
fn claimed_deaths_are_ignored() {
    let mut mesh = Mesh::of(8, 1);
    for to in (1..8).map(agent) {
        for of in (1..8).map(agent) {
            mesh.send(agent(0), to, rumour(to, of, 0, 2));
        }
    }
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.suspicions, []);
    assert_eq!(mesh.counts(agent(3)).claimed_deaths, 7);
}

#[test]
fn false_suspicions_are_refuted() {
    let mut mesh = Mesh::of(8, 2);
    for _ in 0..100 {
        for to in (1..8).map(agent) {
            mesh.send(agent(0), to, rumour(to, agent(5), 0, 1));
        }
        mesh.pass(SECOND / 10);
    }
    mesh.pass(SECOND * 20);
    assert_eq!(mesh.suspicions, []);
    let refuted = mesh.counts(agent(5)).refutations;
    assert!((1..10).contains(&refuted), "the same rumour is refuted once: {refuted}");
}

#[test]
fn suspicion_flood_costs_few_packets() {
    let mut mesh = Mesh::of(8, 7);
    let suspect = |incarnations: &[u16]| {
        let mut bytes = Vec::new();
        Header { incarnation: 0, to: agent(5), message: Message::Gossip }.write(&mut bytes);
        bytes.put_u16(incarnations.len() as u16);
        for incarnation in incarnations {
            agent(5).write(&mut bytes);
            bytes.put_u16(*incarnation);
            bytes.put_u8(1);
        }
        bytes
    };
    let sent = |mesh: &Mesh| mesh.counts(agent(5)).sent;
    // The same suspicion many times, and all plausible ones.
    let all: Vec<u16> = (0..64).map(|number| number % 16).collect();
    let before = sent(&mesh);
    mesh.send(agent(0), agent(5), suspect(&[0; 64]));
    mesh.send(agent(0), agent(5), suspect(&all));
    mesh.pass(SECOND / 100);
    assert!(sent(&mesh) - before <= 8, "{} packets", sent(&mesh) - before);
    // Increasing incarnations without end.
    let before = sent(&mesh);
    for number in 0..2_000 {
        mesh.send(agent(0), agent(5), suspect(&[number]));
        mesh.pass(SECOND / 1_000);
    }
    // A packet goes to each of the others ten times a second while there is news, plus the same
    // number for each refutation.
    assert!(sent(&mesh) - before <= 2 * 40 + 12 * 4, "{} packets", sent(&mesh) - before);
    assert!(mesh.counts(agent(5)).excess_suspicions > 0, "{:?}", mesh.counts(agent(5)));
    mesh.pass(SECOND * 20);
    assert_eq!(mesh.suspicions, []);
}

#[test]
fn impossible_incarnations_are_rejected() {
    let mut mesh = Mesh::of(8, 3);
    for incarnation in [17, 1_000, 60_001, u16::MAX] {
        for to in (1..8).map(agent) {
            mesh.send(agent(0), to, rumour(to, agent(5), incarnation, 1));
        }
    }
    mesh.pass(SECOND * 60);
    assert_eq!(mesh.suspicions, [], "it is alive and replies");
    assert!(mesh.counts(agent(5)).impossible_incarnations >= 4);
    // It can still be found dead.
    mesh.kill(agent(5));
    mesh.pass(SECOND * 10);
    assert!(mesh.suspicions.iter().all(|(_, _, suspect)| *suspect == agent(5)));
    assert!(!mesh.suspicions.is_empty());
}

#[test]
fn strangers_and_former_processes_ignored() {
    let mut mesh = Mesh::of(4, 4);
    let before = mesh.counts(agent(1));
    let stranger = agent(77);
    mesh.send(stranger, agent(1), rumour(agent(1), agent(2), 0, 1));
    let former = MemberId { began: agent(2).began - 1, ..agent(2) };
    mesh.send(former, agent(1), rumour(agent(1), agent(3), 0, 1));
    // For an earlier process of the receiver.
    let earlier = MemberId { began: 1, ..agent(1) };
    mesh.send(agent(2), agent(1), rumour(earlier, agent(3), 0, 1));
    mesh.send(agent(2), agent(1), rumour(agent(1), stranger, 0, 0));
    mesh.pass(SECOND);
    let after = mesh.counts(agent(1));
    assert_eq!((after.strangers - before.strangers, after.unknown_members - before.unknown_members), (3, 1));
}

#[test]
fn indirect_probes_of_self_rejected() {
    let mut mesh = Mesh::of(4, 6);
    let before = mesh.counts(agent(1));
    let own = [agent(1), MemberId { began: 1, ..agent(1) }];
    for about in own {
        for message in [
            Message::PingReq(about, 1),
            Message::IndirectPing(about, 1),
            Message::IndirectAck(about, 1),
            Message::ForwardedAck(about, 1),
        ] {
            let mut bytes = Vec::new();
            Header { incarnation: 0, to: agent(1), message }.write(&mut bytes);
            mesh.send(agent(2), agent(1), bytes);
        }
    }
    mesh.pass(SECOND / 100);
    let after = mesh.counts(agent(1));
    assert_eq!(after.strangers - before.strangers, 8);
    mesh.pass(SECOND * 10);
    assert_eq!(mesh.suspicions, []);
}

#[test]
fn overstated_lengths_are_malformed() {
    let mut mesh = Mesh::of(4, 8);
    let mut header = Vec::new();
    Header { incarnation: 0, to: agent(1), message: Message::Gossip }.write(&mut header);
    // More updates than present, a truncated item, an item of length zero, and half a length.
    let rests: [&[u8]; 4] =
        [&[0, 2, 1, 2, 3], &[0, 0, 0, 9, b'i', b't', b'e', b'm'], &[0, 0, 0, 0], &[0, 0, 0]];
    for rest in rests {
        mesh.send(agent(0), agent(1), [&header, rest].concat());
    }
    mesh.pass(SECOND);
    assert_eq!(mesh.counts(agent(1)).malformed, 4);
    assert_eq!(mesh.items, []);
}

#[test]
fn garbage_is_counted_and_ignored() {
    let mut mesh = Mesh::of(4, 5);
    let mut random = Random::new(7);
    for length in 0..1_200 {
        let mut bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        if length >= 14 {
            // A valid header, followed by garbage.
            let mut header = Vec::new();
            Header { incarnation: 0, to: agent(1), message: Message::Gossip }.write(&mut header);
            bytes[..header.len().min(length)].copy_from_slice(&header[..header.len().min(length)]);
        }
        mesh.send(agent(0), agent(1), bytes);
    }
    mesh.pass(SECOND * 30);
    assert_eq!(mesh.suspicions, []);
    assert!(mesh.counts(agent(1)).malformed > 1_000, "{:?}", mesh.counts(agent(1)));
}
