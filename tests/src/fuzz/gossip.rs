//! Gossip: any input from the network, before and after decryption.

use lockmesh_agent_core::event_log::{EventLog, Received};
use lockmesh_agent_core::gossip::{Gossip, Outbox};
use lockmesh_protocol::gossip::event::{EventFilters, LamportTime, UserEvent};
use lockmesh_protocol::gossip::member::{MemberId, Standing};
use lockmesh_protocol::gossip::packet::{ChallengeAnswer, Header, Message, Packet};
use lockmesh_protocol::gossip::seal::{GossipKey, KeyRing};
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictSigner};
use lockmesh_protocol::id::{AgentNumber, EventId, LogIndex, ServerId};
use lockmesh_protocol::lease::{AuthenticationCode, HealthWindow, LeaseId};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// A datagram, and a possible verdict: neither may be accepted without the key.
pub fn gossip_seal(data: &[u8]) {
    if let Ok((sender, packet)) = ring().open(data, 1_000) {
        // Any other input that is accepted would break the cipher: only the seeds are genuine.
        assert!(gossip_seal_seeds().iter().any(|seed| seed == data), "{sender} sent {packet:?}");
    }
    if VerdictSigner::new([7; 32]).key().read(data).is_ok() {
        assert!(gossip_seal_seeds().iter().any(|seed| seed == data), "a forged verdict");
    }
}

/// Packets of members, each preceded by its length, received by a process as time passes.
pub fn gossip_packets(mut data: &[u8]) {
    let mut outbox = Outbox::default();
    let mut now = Time(0);
    let mut gossip = Gossip::new(member(0), 7, now);
    gossip.set_members(now, (1..5).map(member), &mut outbox);
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let [sender, length] = *length;
        let (packet, rest) = rest.split_at(rest.len().min(usize::from(length)));
        if let Ok(read) = Packet::read(packet) {
            let mut header = Vec::new();
            read.header.write(&mut header);
            assert!(packet.starts_with(&header), "{:?} is written as {header:?}", read.header);
        }
        gossip.receive(now, member(u32::from(sender % 6)), packet, &mut outbox);
        now = now + Duration::from_millis(u64::from(sender));
        gossip.tick(now, &mut outbox);
        data = rest;
    }
    for (to, packet) in &outbox.packets {
        assert_ne!(to.host, member(0).host, "a packet to itself");
        let sent = Packet::read(packet).expect("what a process sends is a packet");
        assert_eq!(sent.deaths, 0, "no member declares another one dead");
        let foreign = sent.updates.iter().filter(|update| update.standing == Standing::Suspect);
        assert!(foreign.clone().all(|update| update.member != member(0)), "a member suspects itself");
    }
}

/// A possible event as received by a host: decoded, checked against its filters, listed.
pub fn gossip_event(data: &[u8]) {
    let Ok(event) = UserEvent::read(data) else { return };
    assert_eq!(event.to_item(), data, "one event is one item");
    let mut log = EventLog::default();
    let before = log.index(None);
    let received = log.record(event, "web-1", &[]);
    assert_eq!(received == Received::Kept, log.list(None).len() == 1, "{received:?}");
    assert!(log.index(None) > 0 && before == 1);
}

fn ring() -> KeyRing {
    KeyRing::of(GossipKey { number: 1, bytes: [1; 32] })
}

fn member(number: u32) -> MemberId {
    MemberId::of_agent(LeaseId { agent: AgentNumber(number), began: LogIndex(10) })
}

/// Returns datagrams and verdicts that are accepted.
pub fn gossip_seal_seeds() -> Vec<Vec<u8>> {
    let lease = LeaseId { agent: AgentNumber(7), began: LogIndex(3) };
    let verdict = Verdict { lease, window: HealthWindow::Fast, index: LogIndex(9) };
    let server = MemberId::of_server(ServerId(3), 2);
    vec![
        ring().seal(member(1), 1_000, [9; 24], b"hello"),
        ring().seal(server, 990, [8; 24], &[]),
        VerdictSigner::new([7; 32]).sign(&verdict),
    ]
}

/// Returns valid events.
pub fn gossip_event_seeds() -> Vec<Vec<u8>> {
    let event = |name: &str, payload: &'static [u8], filters| {
        let id = EventId::from_random([0xfe; 16]);
        let event = UserEvent::new(id, name.into(), payload.into(), filters).expect("it is short");
        UserEvent { time: LamportTime(300), ..event }.to_item()
    };
    let filters = EventFilters { node: "^web-[0-9]+$".into(), service: "a|b".into(), tag: r"(?i)v\d".into() };
    vec![
        event("deploy", b"", EventFilters::default()),
        event("deploy", &[7; 300], EventFilters::default()),
        event("x", b"payload", filters),
        event("x", b"", EventFilters { node: "[".into(), ..EventFilters::default() }),
    ]
}

/// Returns valid packets.
pub fn gossip_packet_seeds() -> Vec<Vec<u8>> {
    let say = |sender: u8, message, behind: &[u8]| {
        let mut packet = Vec::new();
        Header { incarnation: 1, to: member(0), message }.write(&mut packet);
        packet.extend(behind);
        [&[sender, packet.len() as u8][..], &packet].concat()
    };
    // One update: member 2 is suspected with incarnation 3; then an item of two bytes.
    let mut news = vec![0, 1];
    member(2).write(&mut news);
    news.extend([0, 3, 1, 0, 2, b'h', b'i']);
    let renewal = ChallengeAnswer { sequence: 3, nonce: 5, code: AuthenticationCode([4; 16]) };
    let packets = [
        say(1, Message::Ping(7), &[]),
        say(2, Message::Ack(7), &[]),
        say(3, Message::PingReq(member(4), 2), &[]),
        say(4, Message::IndirectPing(member(1), 2), &[]),
        say(1, Message::IndirectAck(member(2), 2), &[]),
        say(2, Message::ForwardedAck(member(3), 2), &[]),
        say(3, Message::Gossip, &news),
        say(1, Message::Challenge(5), &[]),
        say(2, Message::Renewal(renewal), &news),
    ];
    let all = packets.concat();
    packets.into_iter().chain([all]).collect()
}
