//! Events that hosts fire: whom they reach, and what becomes of too many.

use crate::hosts::{Fleet, address, gossip};
use crate::mesh::{SECOND, agent};
use lockmesh_protocol::gossip::event::{EventFilters, LamportTime, UserEvent};
use lockmesh_protocol::gossip::event_flow::{EVENT_BYTES_AT_ONCE, EVENT_BYTES_PER_SECOND, TooManyEvents};
use lockmesh_protocol::gossip::mesh::Output;
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

    /// What a host has heard of, in the order in which it has.
    fn heard(&self, host: u32) -> Vec<(EventId, LamportTime)> {
        let own = self.events.iter().filter(|(to, _)| *to == agent(host));
        own.map(|(_, event)| (event.id, event.time)).collect()
    }

    /// Items reach a host that another one sends.
    fn receives(&mut self, host: u32, items: &[Vec<u8>]) {
        let now = self.now;
        // Two of the longest fit a packet.
        for items in items.chunks(2) {
            let packet = gossip(host, items);
            let datagram = self.host(1).seal(now, &packet, [7; 24]).expect("it has a key");
            self.act(address(host), |mesh, now, output| mesh.receive(now, &datagram, output));
        }
    }
}

#[test]
fn an_event_reaches_all_hosts_once_though_many_datagrams_are_lost() {
    let mut fleet = Fleet::of(32);
    fleet.loss = 100;
    for number in 0..4 {
        fleet.fire(number, event(number, 300)).expect("there is room");
    }
    fleet.pass(SECOND * 10);
    for host in 0..32 {
        let ids: BTreeSet<_> = fleet.heard(host).into_iter().map(|(id, _)| id).collect();
        assert_eq!((ids.len(), fleet.heard(host).len()), (4, 4), "{host}");
    }
    fleet.events.clear();
    fleet.pass(SECOND * 60);
    assert!(fleet.events.is_empty(), "nobody speaks of them any more");
}

#[test]
fn whoever_has_heard_of_an_event_fires_the_next_one_later() {
    let mut fleet = Fleet::of(5);
    for number in 0..5 {
        fleet.fire(number, event(number, 0)).expect("there is room");
        fleet.pass(SECOND * 3);
    }
    for host in 0..5 {
        let times: Vec<_> = fleet.heard(host).into_iter().map(|(_, LamportTime(time))| time).collect();
        assert_eq!(times, [1, 2, 3, 4, 5], "{host}");
    }
}

#[test]
fn an_event_that_is_sent_again_is_told_no_second_time() {
    let mut fleet = Fleet::of(5);
    fleet.fire(0, event(0, 0)).expect("there is room");
    fleet.pass(SECOND * 5);
    fleet.events.clear();
    // Sent again by somebody within the time in which datagrams are taken.
    let item = UserEvent { time: LamportTime(1), ..event(0, 0) }.to_item();
    fleet.receives(2, &[item]);
    fleet.pass(SECOND * 5);
    assert_eq!(fleet.events, []);
}

#[test]
fn a_host_that_fires_without_end_is_told_so_and_the_others_still_hear_each_other() {
    let mut fleet = Fleet::of(8);
    let fired = (0..1_000).filter(|number| fleet.fire(0, event(*number, 400)).is_ok()).count() as u64;
    let length = event(0, 400).to_item().len() as u64;
    assert_eq!(fired, EVENT_BYTES_AT_ONCE / length);
    fleet.pass(SECOND * 20);
    assert_eq!(fleet.heard(7).len() as u64, fired, "as many as it was allowed");
    fleet.fire(3, event(5_000, 0)).expect("it has fired none");
    fleet.pass(SECOND * 3);
    for host in 0..8 {
        assert!(fleet.heard(host).iter().any(|(id, _)| *id == event(5_000, 0).id), "{host}");
    }
}

#[test]
fn a_flood_of_a_hostile_member_is_bounded_and_counted() {
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
        assert!(fleet.heard(host).len() as u64 <= most, "{host}: {}", fleet.heard(host).len());
    }
    let (_, counts) = fleet.host(0).counts();
    assert!(counts.excess_events > 600, "{counts:?}");
    assert_eq!(counts.events, fleet.heard(0).len() as u64);
    // Gossip cannot be more than 30 packets a second, and probes go on.
    let most = 8 * 30 * (20 + 4 + 20) * 1_200;
    assert!(fleet.bytes < most, "{} bytes", fleet.bytes);
    fleet.fire(5, event(99_999, 0)).expect("it has fired none itself");
    fleet.pass(SECOND * 5);
    for host in 0..8 {
        let heard = fleet.heard(host);
        assert!(heard.iter().any(|(id, _)| *id == event(99_999, 0).id), "{host}: {}", heard.len());
    }
}

#[test]
fn what_is_no_event_is_counted_and_goes_no_further() {
    let mut fleet = Fleet::of(4);
    let mut garbage = event(1, 100).to_item();
    garbage.truncate(60);
    fleet.receives(0, &[garbage.clone(), vec![1], garbage]);
    let mut output = Output::default();
    let now = fleet.now;
    fleet.host(0).tick(now + SECOND, &mut output);
    assert_eq!(fleet.host(0).counts().1.malformed_events, 3);
    assert!(output.packets.iter().all(|(_, packet)| packet.len() < 60), "it is not passed on");
    assert_eq!(fleet.events, []);
}
