//! Events that hosts fire: their delivery, and their rate limits.

use crate::hosts::{Fleet, address, gossip};
use crate::mesh::{SECOND, agent};
use lockmesh_agent_core::gossip::event_flow::TooManyEvents;
use lockmesh_agent_core::gossip::mesh::Output;
use lockmesh_protocol::gossip::event::{
    EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND, EventFilters, LamportTime, UserEvent,
};
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::id::EventId;
use std::collections::BTreeSet;

fn event(number: u32, payload: usize) -> UserEvent {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    let (id, filters) = (EventId::from_random(id), EventFilters::default());
    UserEvent::new(id, "deploy".into(), vec![1; payload].into(), filters).expect("it is short")
}

impl Fleet {
    fn fire(&mut self, host: u32, event: UserEvent) -> Result<(), TooManyEvents> {
        let mut outcome = Ok(());
        self.act(address(host), |mesh, now, output| outcome = mesh.fire(now, event, output));
        outcome
    }

    /// Returns the events delivered to a host, in order.
    fn delivered_events(&self, host: u32) -> Vec<(EventId, LamportTime)> {
        let own = self.events.iter().filter(|(to, _)| *to == agent(host));
        own.map(|(_, event)| (event.id, event.time)).collect()
    }

    /// Delivers items from another host.
    fn receives(&mut self, host: u32, items: &[Vec<u8>]) {
        let now = self.now;
        // Two of the longest fit into a packet.
        for items in items.chunks(2) {
            let packet = gossip(host, items);
            let datagram = self.host(1).seal(now, &packet, [7; 24]).expect("it has a key");
            self.act(address(host), |mesh, now, output| mesh.receive(now, &datagram, output));
        }
    }
}

/// Asserts that each of the hosts received this number of events, each event once.
#[track_caller]
fn assert_heard(fleet: &Fleet, hosts: u32, count: usize) {
    for host in 0..hosts {
        let ids: BTreeSet<_> = fleet.delivered_events(host).into_iter().map(|(id, _)| id).collect();
        assert_eq!((ids.len(), fleet.delivered_events(host).len()), (count, count), "{host}");
    }
}

#[test]
fn gossip_alone_reaches_all_once() {
    let mut fleet = Fleet::of(32);
    fleet.servers.is_away = true;
    fleet.loss = 50;
    for number in 0..4 {
        fleet.fire(number, event(number, 300)).expect("there is room");
    }
    fleet.pass(SECOND * 5);
    assert_heard(&fleet, 32, 4);
    fleet.events.clear();
    fleet.pass(SECOND * 60);
    assert!(fleet.events.is_empty(), "gossip about them has ended");
}

#[test]
fn servers_deliver_missed_events() {
    let mut fleet = Fleet::of(16);
    fleet.loss = 700;
    for number in 0..4 {
        fleet.fire(number, event(number, 300)).expect("there is room");
    }
    fleet.pass(SECOND * 40);
    assert_heard(&fleet, 16, 4);
}

#[test]
fn events_cross_cells_through_servers() {
    let mut fleet = Fleet::in_cells(32, 2);
    assert!(fleet.hosts.values().all(|mesh| mesh.roster().len() == 16));
    fleet.fire(0, event(0, 300)).expect("there is room");
    // With 16 hosts, one of them requests mesh data every two seconds, and informs its cell.
    fleet.pass(SECOND * 10);
    assert_heard(&fleet, 32, 1);
}

#[test]
fn restarted_host_skips_earlier_events() {
    let mut fleet = Fleet::of(4);
    for number in 0..3 {
        fleet.fire(number, event(number, 0)).expect("there is room");
        fleet.pass(SECOND * 3);
    }
    fleet.events.clear();
    fleet.start(3);
    fleet.pass(SECOND * 40);
    assert_eq!(fleet.events, []);
    fleet.fire(3, event(3, 0)).expect("there is room");
    fleet.pass(SECOND * 3);
    assert_eq!(fleet.delivered_events(0), [(event(3, 0).id, LamportTime(4))]);
}

#[test]
fn reregistration_does_not_repeat_events() {
    let mut fleet = Fleet::of(4);
    fleet.fire(0, event(0, 0)).expect("there is room");
    fleet.pass(SECOND * 5);
    assert_heard(&fleet, 4, 1);
    fleet.events.clear();
    let next = MemberId { began: 5_000, ..agent(3) };
    fleet.act(address(3), |mesh, now, output| mesh.become_member(now, next, output));
    fleet.pass(SECOND * 40);
    assert_eq!(fleet.events, []);
}

#[test]
fn lamport_times_increase_across_hosts() {
    let mut fleet = Fleet::of(5);
    for number in 0..5 {
        fleet.fire(number, event(number, 0)).expect("there is room");
        fleet.pass(SECOND * 3);
    }
    for host in 0..5 {
        let times: Vec<_> =
            fleet.delivered_events(host).into_iter().map(|(_, LamportTime(time))| time).collect();
        assert_eq!(times, [1, 2, 3, 4, 5], "{host}");
    }
}

#[test]
fn replayed_event_is_ignored() {
    let mut fleet = Fleet::of(5);
    fleet.fire(0, event(0, 0)).expect("there is room");
    fleet.pass(SECOND * 5);
    fleet.events.clear();
    // A replay within the time in which datagrams are accepted.
    let item = UserEvent { time: LamportTime(1), ..event(0, 0) }.to_item();
    fleet.receives(2, &[item]);
    fleet.pass(SECOND * 5);
    assert_eq!(fleet.events, []);
}

#[test]
fn excessive_firing_rejected_per_host() {
    let mut fleet = Fleet::of(8);
    let fired = (0..1_000).filter(|number| fleet.fire(0, event(*number, 400)).is_ok()).count() as u64;
    let length = event(0, 400).to_item().len() as u64;
    assert_eq!(fired, EVENT_BYTES_AT_ONCE / length);
    fleet.pass(SECOND * 20);
    assert_eq!(fleet.delivered_events(7).len() as u64, fired, "as many as its limit permits");
    fleet.fire(3, event(5_000, 0)).expect("it has fired no event");
    fleet.pass(SECOND * 3);
    for host in 0..8 {
        assert!(fleet.delivered_events(host).iter().any(|(id, _)| *id == event(5_000, 0).id), "{host}");
    }
}

#[test]
fn hostile_flood_bounded_and_counted() {
    let mut fleet = Fleet::of(8);
    let (seconds, each) = (4, 200);
    let mut number = 0;
    for _ in 0..seconds {
        let flood = (0..each).map(|_| {
            number += 1;
            UserEvent { time: LamportTime(u64::MAX), ..event(number, 400) }.to_item()
        });
        let flood: Vec<_> = flood.collect();
        fleet.receives(0, &flood);
        fleet.receives(2, &flood[..each / 2]);
        fleet.pass(SECOND);
    }
    fleet.pass(SECOND * 20);
    let length = event(0, 400).to_item().len() as u64;
    let most = (EVENT_BYTES_AT_ONCE + 25 * EVENT_BYTES_PER_SECOND) / length;
    for host in 0..8 {
        assert!(
            fleet.delivered_events(host).len() as u64 <= most,
            "{host}: {}",
            fleet.delivered_events(host).len()
        );
    }
    let (_, counts) = fleet.host(0).counts();
    assert!(counts.excess_events > 600, "{counts:?}");
    assert_eq!(counts.events, fleet.delivered_events(0).len() as u64);
    // Gossip is limited to 30 packets a second, and probes continue.
    let most = 8 * 30 * (20 + 4 + 20) * 1_200;
    assert!(fleet.bytes < most, "{} bytes", fleet.bytes);
    fleet.fire(5, event(99_999, 0)).expect("it has fired no event");
    fleet.pass(SECOND * 5);
    for host in 0..8 {
        let heard = fleet.delivered_events(host);
        assert!(heard.iter().any(|(id, _)| *id == event(99_999, 0).id), "{host}: {}", heard.len());
    }
}

#[test]
fn server_events_survive_member_flood() {
    let mut fleet = Fleet::of(4);
    let mut number = 0;
    let mut flood = |fleet: &mut Fleet, seconds: u32| {
        for _ in 0..seconds * 4 {
            let items = (0..20).map(|_| {
                number += 1;
                event(number, 100).to_item()
            });
            let items: Vec<_> = items.collect();
            for host in (0..4).filter(|host| *host != 1) {
                fleet.receives(host, &items);
            }
            fleet.pass(SECOND / 4);
        }
    };
    flood(&mut fleet, 20);
    fleet.fire(2, event(99_999, 300)).expect("it has fired no event");
    flood(&mut fleet, 40);
    for host in 0..4 {
        assert!(fleet.delivered_events(host).iter().any(|(id, _)| *id == event(99_999, 0).id), "{host}");
    }
}

#[test]
fn malformed_events_counted_not_forwarded() {
    let mut fleet = Fleet::of(4);
    let mut garbage = event(1, 100).to_item();
    garbage.truncate(60);
    fleet.receives(0, &[garbage.clone(), vec![1], garbage]);
    let mut output = Output::default();
    let now = fleet.now;
    fleet.host(0).tick(now + SECOND, &mut output);
    assert_eq!(fleet.host(0).counts().1.malformed_events, 3);
    assert!(output.packets.iter().all(|(_, packet)| packet.len() < 60), "it is not forwarded");
    assert_eq!(fleet.events, []);
}
