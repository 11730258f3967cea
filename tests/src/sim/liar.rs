//! A lying host in the mesh, if the seed has one: a real member with the cluster's key, so that its
//! packets are accepted.

use super::agent::Agent;
use super::challenges::place_of;
use super::judge::Judge;
use super::marks::Mark;
use super::member::nonce;
use super::stage::Stage;
use lockmesh_protocol::gossip::MAX_DATAGRAM_BYTES;
use lockmesh_protocol::gossip::packet::{Header, Message};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::lease::{AuthenticationCode, Challenge, LeaseId, Renewal};
use std::rc::Rc;

/// Maximum number of datagrams that a liar keeps for replay.
const KEPT: usize = 32;

/// Number of suspicions that fit into a packet.
const SLANDERS: u16 = 70;

/// The tag of a suspicion in a packet.
const SUSPECT: u8 = 1;

impl Agent {
    pub(super) fn is_liar(&self, stage: &Stage) -> bool {
        self.place < stage.plan.mesh.liars && !stage.calm
    }

    pub(super) fn keep(&mut self, arrived: Vec<Rc<[u8]>>) {
        self.member.kept.extend(arrived);
        let too_many = self.member.kept.len().saturating_sub(KEPT);
        self.member.kept.drain(..too_many);
    }

    /// Sends suspicions, replayed datagrams, malformed data and slander.
    pub(super) fn lie(&mut self, stage: &mut Stage, judge: &mut Judge) {
        let others = stage.plan.clients.agents as u64;
        let to = stage.draw.below(others) as usize;
        match stage.draw.below(16) {
            0 => {
                stage.hit(Mark::Lied);
                let members = self.member.mesh().into_iter().flat_map(|mesh| mesh.roster().members());
                let mut leases: Vec<LeaseId> = members.filter_map(|member| member.id.lease()).collect();
                let invented = leases.first().map(|lease| LeaseId { began: LogIndex(u64::MAX), ..*lease });
                leases.extend(invented);
                self.suspect(stage, judge, leases);
            }
            1 | 2 => {
                if let Some(datagram) = self.member.kept.front().cloned() {
                    self.send_datagram(stage, to, datagram);
                }
            }
            3 => {
                let length = stage.draw.below(MAX_DATAGRAM_BYTES as u64 + 1) as usize;
                let garbage: Vec<u8> = (0..length).map(|_| stage.draw.bits() as u8).collect();
                self.send_datagram(stage, to, garbage.into());
            }
            4 => self.slander(stage, to),
            _ => {}
        }
    }

    /// Floods another host with suspicions of that host, with arbitrary incarnations.
    fn slander(&mut self, stage: &mut Stage, to: usize) {
        let (now, nonce) = (self.boot_time(stage), nonce(stage));
        let Some(mesh) = self.member.mesh() else { return };
        let mut members = mesh.roster().members().map(|member| (member.id, member.address.port()));
        let Some((target, _)) = members.find(|(_, port)| place_of(*port) == Some(to)) else { return };
        let mut packet = Vec::new();
        Header { incarnation: 0, to: target, message: Message::Gossip }.write(&mut packet);
        packet.extend(SLANDERS.to_be_bytes());
        for _ in 0..SLANDERS {
            target.write(&mut packet);
            packet.extend((stage.draw.below(24) as u16).to_be_bytes());
            packet.push(SUSPECT);
        }
        if let Some(sealed) = mesh.seal(now, &packet, nonce) {
            self.send_datagram(stage, to, sealed.into());
        }
    }
}

/// Corrupts a packet.
pub(super) fn distort(stage: &mut Stage, packet: &mut [u8]) {
    for _ in 0..stage.draw.within(1, 4) {
        let place = stage.draw.below(packet.len() as u64) as usize;
        packet[place] = match stage.draw.below(3) {
            0 => 0,
            1 => packet[place].wrapping_add(1),
            _ => stage.draw.bits() as u8,
        };
    }
}

/// Returns a forged answer of a node: a liar does not have the secret of the node's lease.
pub(super) fn forge(stage: &mut Stage, challenge: Challenge) -> Renewal {
    let Challenge { lease, nonce } = challenge;
    let mut code = [0; 16];
    code.iter_mut().for_each(|byte| *byte = stage.draw.bits() as u8);
    Renewal { lease, sequence: stage.draw.bits(), nonce, code: AuthenticationCode(code) }
}
