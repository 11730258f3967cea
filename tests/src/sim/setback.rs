//! Disks that are set back. A machine's disk is replaced by an older copy of itself, as when a
//! virtual machine is restored, and its server has forgotten later votes and acknowledgements.
//!
//! That happens only if another server can detect it, and the server must contact that one first:
//! consensus cannot tolerate the loss of facts that only the server itself and a dead server knew.
//! It must then be refused with a reason before it has done any harm, and no server may be refused
//! whose disk was not set back. The operator empties its folder, and it joins as a new server.

use super::marks::Mark;
use super::network::{Link, Place};
use super::stage::Event;
use super::world::World;
use lockmesh_core::durability::setback::SetBack;
use lockmesh_core::raft::log::{LogPosition, Membership};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Maximum time until a server whose disk was set back is refused.
const BOUND: Duration = Duration::from_secs(8);
/// Maximum time that a refused server keeps running before the operator empties its folder.
const LEAVE_RUNNING: Duration = Duration::from_millis(300);

/// A disk that was set back, until its folder is emptied.
#[derive(Debug)]
pub(super) struct Planned {
    server: ServerId,
    since: Time,
    /// `true` if it was refused.
    is_found: bool,
    /// Links that are shut to separate it from servers that cannot detect it.
    shut: Vec<Link>,
}

impl World {
    /// Copies a disk, or sets one back.
    pub(super) fn copy_or_set_back(&mut self) {
        if self.stage.draw.once_in(2) || !self.set_back_some() {
            self.copy_some_disk();
        }
    }

    fn copy_some_disk(&mut self) {
        let running = self.running();
        let Some(id) = self.stage.draw.any(&running) else { return };
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        let copy = machine.disk.copy(&mut self.stage);
        machine.copy = Some(Box::new(copy));
        self.stage.log(|| format!("the disk of server {id} is copied"));
    }

    /// Sets back a server if another server can detect it; returns `false` if there is none.
    fn set_back_some(&mut self) -> bool {
        let Some(members) = self.members_without_loss() else { return false };
        let could: Vec<(ServerId, ServerId)> = self.traitors(&members);
        let Some((server, by)) = self.stage.draw.any(&could) else { return false };
        self.stage.hit(Mark::SetBack);
        let is = |role: Option<ServerId>| role == Some(server);
        if self.agents.iter().any(|agent| is(agent.home)) {
            self.stage.hit(Mark::HomeSetBack);
        }
        if self.agents.iter().any(|agent| is(agent.leader)) {
            self.stage.hit(Mark::LeaderSetBack);
        }
        self.stage.log(|| format!("the disk of server {server} is set back; server {by} can detect it"));
        self.crash(server);
        let machine = self.machines.get_mut(&server).expect("the machine exists");
        machine.disk = *machine.copy.take().expect("just checked");
        machine.set_back = true;
        let others: Vec<_> =
            self.machines.keys().filter(|id| **id != server && **id != by).copied().collect();
        let (here, there) = (Place::Server(server), Place::Server);
        let shut: Vec<Link> =
            others.into_iter().flat_map(|id| [(here, there(id)), (there(id), here)]).collect();
        shut.iter().for_each(|link| self.stage.network.shut(*link));
        self.planned = Some(Planned { server, since: self.stage.now, is_found: false, shut });
        self.remember_over_a_restart(server, by);
        self.start(server);
        true
    }

    /// The peer's memory is on its disk too, unless its last checkpoint is too old.
    fn remember_over_a_restart(&mut self, server: ServerId, by: ServerId) {
        let holds = self.machines[&server].disk.durable.position();
        let durable = self.machines[&by].disk.durable.own.peers.of(server);
        if SetBack::find(server, holds, by, durable).is_some() && self.stage.draw.once_in(2) {
            self.stage.hit(Mark::SetBackRemembered);
            self.crash(by);
            self.start(by);
        }
    }

    /// Returns pairs of a server with an old copy of its disk and another server that remembers
    /// more and reaches it.
    fn traitors(&self, members: &Membership) -> Vec<(ServerId, ServerId)> {
        let mut pairs = Vec::new();
        for server in &members.voters {
            let Some(copy) = self.machines.get(server).and_then(|machine| machine.copy.as_ref()) else {
                continue;
            };
            // A server that was the only voter then leads alone again before any other server can
            // send a message.
            if copy.durable.may_be_alone(*server) {
                continue;
            }
            let knowing = members.all().into_iter().filter(|by| by != server);
            pairs.extend(
                knowing
                    .filter(|by| self.knows(*by, *server, copy.durable.position()))
                    .map(|by| (*server, by)),
            );
        }
        pairs
    }

    fn knows(&self, by: ServerId, server: ServerId, holds: LogPosition) -> bool {
        let Some(process) = self.process(by).filter(|process| process.stands_until.is_none()) else {
            return false;
        };
        let (one, other) = (Place::Server(by), Place::Server(server));
        let network = &self.stage.network;
        let remembered = process.core().replica().peer_memory().of(server);
        // A process without state knows no server to greet.
        process.core().replica().state().server(server).is_some()
            && network.carries((one, other))
            && network.carries((other, one))
            && SetBack::find(server, holds, by, remembered).is_some()
    }

    /// Checks whether a server was refused since its disk was set back.
    pub(super) fn judge_set_back(&mut self, id: ServerId) {
        let Some(process) = self.process(id) else { return };
        let Some(set_back) = process.core().replica().set_back().copied() else { return };
        if !self.machines[&id].set_back {
            return self.judge.object("set_back", format!("no disk was set back, but: {set_back}"));
        }
        let Some(planned) = self.planned.as_mut().filter(|planned| !planned.is_found) else { return };
        planned.is_found = true;
        planned.shut.drain(..).for_each(|link| self.stage.network.open(link));
        self.stage.hit(Mark::SetBackFound);
        self.stage.log(|| set_back.to_string());
        let wait = self.stage.draw.duration(Duration::ZERO, LEAVE_RUNNING);
        self.stage.after(wait, Event::EmptyFolder(id));
    }

    /// Follows the refusal's instruction as the operator.
    pub(super) fn empty_folder(&mut self, id: ServerId) {
        self.planned = None;
        self.lose_disk(id);
    }

    /// Returns `true` if a disk was set back and its folder is not emptied yet: until then no other
    /// fault occurs.
    pub(super) fn waits_for_refusal(&mut self) -> bool {
        let Some(planned) = &self.planned else { return false };
        if !planned.is_found && self.stage.now.since(planned.since) > BOUND {
            let what = format!("the disk of server {} was set back, but not refused", planned.server);
            self.judge.object("set_back", what);
        }
        true
    }

    /// A server that was removed needs no other refusal.
    pub(super) fn expect_no_refusal(&mut self, id: ServerId) {
        if let Some(planned) = self.planned.take_if(|planned| planned.server == id && !planned.is_found) {
            planned.shut.into_iter().for_each(|link| self.stage.network.open(link));
        }
    }
}
