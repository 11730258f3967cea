//! An operator who hands over leadership, takes servers in and out, and asks again until it is
//! done.

use super::machine::Machine;
use super::marks::Mark;
use super::network::Place;
use super::process::newcomer;
use super::stage::{Ask, Event, Requester};
use super::world::World;
use lockmesh_core::raft::log::{Membership, SnapshotMeta};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// How long the operator waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(700);
/// How often the operator gives up nothing.
const ATTEMPTS: u32 = 20;
/// How long after the loss of a server no other one is taken out.
const GRIEF: Duration = Duration::from_secs(4);
/// The most servers that there may be at once.
const MOST: usize = 7;

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Another leader.
    Transfer(Option<ServerId>),
    /// A server goes.
    Remove(ServerId),
    /// A server comes: its node, and the number of its data folder.
    Admit(String, u64),
}

/// What is under way.
#[derive(Debug, Default)]
pub struct Operator {
    /// What is to be done next, first things first.
    pub orders: Vec<Order>,
    under_way: Option<(u64, Order, ServerId)>,
    attempts: u32,
    newest_node: u64,
    /// When a server was last lost for good. For a while nobody takes out another one: the leader
    /// cannot know yet.
    lost: Time,
}

impl World {
    /// Begins with the next order.
    pub fn operate(&mut self) {
        if self.operator.under_way.is_none() && !self.operator.orders.is_empty() {
            let order = self.operator.orders.remove(0);
            self.operator.attempts = 0;
            self.order(order);
        }
        self.stage.after(Duration::from_millis(100), Event::Operator);
    }

    /// Asks whoever leads to let a server lead that is just being taken out.
    pub fn urge(&mut self, server: ServerId) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else { return };
        let to = leader.id;
        let (call, request) = (self.stage.call(), Request::TransferLeader(Some(server)));
        let ask = Ask { by: Requester::Operator, call, request, bound: LogIndex(0) };
        self.stage.send(Place::Operator, Place::Server(to), Event::Ask(to, Box::new(ask)));
    }

    fn order(&mut self, order: Order) {
        if let Order::Remove(server) = order {
            for longest in [30, 200] {
                let wait = self.stage.draw.duration(Duration::ZERO, Duration::from_millis(longest));
                self.stage.after(wait, Event::Fault(super::chaos::Kind::Urge(server)));
            }
        }
        let request = match &order {
            Order::Transfer(to) => Request::TransferLeader(*to),
            Order::Remove(server) => Request::RemoveServer(*server),
            Order::Admit(node, folder) => Request::AddServer(newcomer(node, *folder)),
        };
        let running = self.running();
        let serving = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id);
        let Some(to) = serving.or_else(|| self.stage.draw.any(&running)) else {
            self.operator.orders.insert(0, order);
            return;
        };
        let call = self.stage.call();
        self.operator.attempts += 1;
        self.operator.under_way = Some((call, order, to));
        let ask = Ask { by: Requester::Operator, call, request, bound: LogIndex(0) };
        self.stage.after(TIMEOUT, Event::Tired(Requester::Operator, call));
        self.stage.send(Place::Operator, Place::Server(to), Event::Ask(to, Box::new(ask)));
    }

    /// No answer came.
    pub fn operator_tired(&mut self, call: u64) {
        if self.operator.under_way.as_ref().is_some_and(|(under_way, ..)| *under_way == call) {
            self.ask_again();
        }
    }

    fn ask_again(&mut self) {
        let Some((_, order, _)) = self.operator.under_way.take() else { return };
        match order {
            Order::Transfer(_) => {}
            order if self.operator.attempts < ATTEMPTS => self.order(order),
            // A server that wants to join asks for ever, and others get their turn.
            Order::Admit(..) => self.operator.orders.push(order),
            Order::Remove(_) => {}
        }
    }

    /// An answer came.
    pub fn operator_heard(&mut self, call: u64, from: ServerId, response: Response) {
        let Some((_, order, _)) = self.operator.under_way.take_if(|(under_way, ..)| *under_way == call)
        else {
            return;
        };
        self.stage.say(|| format!("server {from} answers {order:?}: {response:?}"));
        match (order, response) {
            (Order::Admit(node, folder), Response::Joined(joined)) => {
                self.stage.hit(Mark::Admitted);
                self.plug_in(joined.server, node, folder);
            }
            (Order::Transfer(_), Response::Done) => self.transferred(from),
            (Order::Transfer(_), _) => self.stage.hit(Mark::TransferFailed),
            (Order::Remove(_), Response::Done) => self.stage.hit(Mark::Removed),
            (_, Response::Done) => {}
            (order @ Order::Admit(..), Response::Unavailable(Unavailable::Denied(_))) => {
                self.operator.orders.push(order);
            }
            (order, Response::Unavailable(Unavailable::Denied(_))) if !self.stage.calm => self.put_off(order),
            (order, Response::Unavailable(_)) => {
                self.operator.under_way = Some((0, order, from));
                self.ask_again();
            }
            _ => {}
        }
    }

    /// Not now: perhaps later.
    fn put_off(&mut self, order: Order) {
        if self.stage.draw.once_in(2) {
            self.operator.orders.push(order);
        }
    }

    fn transferred(&mut self, from: ServerId) {
        if !self.machines[&from].serves() {
            self.stage.hit(Mark::Transfer);
            if self.agents.iter().any(|agent| agent.is_writing()) {
                self.stage.hit(Mark::TransferUnderLoad);
            }
            if self.machines.values().any(|machine| machine.fetch.is_some()) {
                self.stage.hit(Mark::TransferWithSnapshot);
            }
        }
    }

    /// A new machine that has nothing on its disk.
    fn plug_in(&mut self, id: ServerId, node: String, folder: u64) {
        if self.machines.contains_key(&id) {
            return;
        }
        let machine = Machine::new(&self.stage, id, node, folder, SnapshotMeta::default());
        self.machines.insert(id, machine);
        self.start(id);
    }

    /// Servers that run.
    pub fn running(&self) -> Vec<ServerId> {
        let runs = |machine: &&Machine| machine.process.is_some();
        self.machines.values().filter(runs).map(|machine| machine.id).collect()
    }

    /// A server shall come, if there are not too many.
    pub fn order_arrival(&mut self) {
        let there = self.machines.values().filter(|machine| !machine.is_out()).count();
        if there < MOST && self.operator.orders.len() < 2 {
            self.operator.newest_node += 1;
            let node = format!("t{}", self.operator.newest_node);
            self.operator.orders.push(Order::Admit(node, 1));
        }
    }

    /// A server shall go; sometimes it is made the leader while it goes.
    pub fn order_removal(&mut self) {
        let there: Vec<_> =
            self.machines.values().filter(|machine| !machine.is_out()).map(|machine| machine.id).collect();
        let leader = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id);
        let any = self.stage.draw.any(&there);
        if let Some(server) = leader.filter(|_| self.stage.draw.once_in(3)).or(any) {
            self.order_removal_of(server);
        }
    }

    /// The same of this server.
    pub(super) fn order_removal_of(&mut self, server: ServerId) {
        let there = self.machines.values().filter(|machine| !machine.is_out()).count();
        let is_safe = self.stage.now.since(self.operator.lost) > GRIEF;
        if there > 2 && self.operator.orders.len() < 2 && is_safe {
            if self.stage.draw.once_in(2) {
                self.operator.orders.push(Order::Transfer(None));
            }
            self.operator.orders.push(Order::Remove(server));
        }
    }

    /// A server loses its disk, unless that could lose what a majority holds, and comes back as
    /// another one.
    pub fn wipe(&mut self) {
        let Some(members) = self.members_without_loss() else { return };
        let id = *self.stage.draw.pick(&members.voters);
        self.stage.hit(Mark::Wiped);
        self.stage.say(|| format!("server {id} loses its disk"));
        self.lose_disk(id);
    }

    /// The membership as the leader sees it, where one voter's disk can be lost without losing what
    /// a majority holds. A server whose state is corrupt holds nothing that others could go on
    /// with.
    pub(super) fn members_without_loss(&self) -> Option<Membership> {
        let cores = || self.machines.values().filter_map(|machine| Some(machine.process.as_ref()?.core()));
        let newest = cores().map(|core| core.log_status().term).max()?;
        // A leader that was deposed and stands still does not know who votes now.
        let core = cores().find(|core| core.is_serving() && core.log_status().term == newest)?;
        let members = core.membership().clone();
        let is_lost = |id: &ServerId| {
            self.machines.get(id).is_none_or(|machine| machine.gone) || self.judge.corrupted.contains(id)
        };
        let lost = members.voters.iter().filter(|id| is_lost(id)).count();
        let removes = |order: &Order| matches!(order, Order::Remove(_));
        let removing = self.operator.orders.iter().any(removes)
            || self.operator.under_way.as_ref().is_some_and(|(_, order, _)| removes(order));
        // A removal that its operator gave up may be under way still.
        let is_safe = core.may_change_membership() && members.voters.len() >= 3 && lost == 0 && !removing;
        is_safe.then_some(members)
    }

    /// What a server's disk held is gone for good: with an empty folder it comes back as another
    /// one.
    pub(super) fn lose_disk(&mut self, id: ServerId) {
        self.operator.lost = self.stage.now;
        self.crash(id);
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        machine.gone = true;
        let order = Order::Admit(machine.node.clone(), machine.folder + 1);
        self.operator.orders.push(order);
    }
}
