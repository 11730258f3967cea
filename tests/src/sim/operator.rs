//! An operator that transfers leadership and adds and removes servers, and retries until that is
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

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_millis(700);
/// Number of attempts before the operator gives up a request.
const ATTEMPTS: u32 = 20;
/// Time after the loss of a server during which no other server is removed.
const GRIEF: Duration = Duration::from_secs(4);
/// Maximum number of servers at once.
const MOST: usize = 7;

/// A task of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Transfers leadership.
    Transfer(Option<ServerId>),
    /// Removes a server.
    Remove(ServerId),
    /// Adds a server: its node, and the number of its data folder.
    Admit(String, u64),
}

/// The state of the operator.
#[derive(Debug, Default)]
pub struct Operator {
    /// The next tasks, in order.
    pub orders: Vec<Order>,
    under_way: Option<(u64, Order, ServerId)>,
    attempts: u32,
    newest_node: u64,
    /// The time at which a server was last lost permanently. For a while no other server is
    /// removed: the leader may not know of the loss yet.
    lost: Time,
}

impl World {
    /// Starts the next task.
    pub fn operate(&mut self) {
        if self.operator.under_way.is_none() && !self.operator.orders.is_empty() {
            let order = self.operator.orders.remove(0);
            self.operator.attempts = 0;
            self.order(order);
        }
        self.stage.after(Duration::from_millis(100), Event::Operator);
    }

    /// Asks the leader to transfer leadership to a server that is just being removed.
    pub fn urge(&mut self, server: ServerId) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else { return };
        let to = leader.id;
        let (call, request) = (self.stage.call(), Request::TransferLeader(Some(server)));
        let client = self.stage.client();
        let ask = Ask { by: Requester::Operator, call, client, request, bound: LogIndex(0) };
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
        let client = self.stage.client();
        let ask = Ask { by: Requester::Operator, call, client, request, bound: LogIndex(0) };
        self.stage.after(TIMEOUT, Event::Tired(Requester::Operator, call));
        self.stage.send(Place::Operator, Place::Server(to), Event::Ask(to, Box::new(ask)));
    }

    /// The request timed out.
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
            // A server that wants to join asks forever, and other tasks take turns.
            Order::Admit(..) => self.operator.orders.push(order),
            Order::Remove(_) => {}
        }
    }

    /// Receives the response.
    pub fn operator_heard(&mut self, call: u64, from: ServerId, response: Response) {
        let Some((_, order, _)) = self.operator.under_way.take_if(|(under_way, ..)| *under_way == call)
        else {
            return;
        };
        self.stage.log(|| format!("server {from} answers {order:?}: {response:?}"));
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

    /// Postpones a task, or drops it.
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

    /// Adds a new machine with an empty disk.
    fn plug_in(&mut self, id: ServerId, node: String, folder: u64) {
        if self.machines.contains_key(&id) {
            return;
        }
        let machine = Machine::new(&self.stage, id, node, folder, SnapshotMeta::default());
        self.machines.insert(id, machine);
        self.start(id);
    }

    /// Returns the running servers.
    pub fn running(&self) -> Vec<ServerId> {
        let runs = |machine: &&Machine| machine.process.is_some();
        self.machines.values().filter(runs).map(|machine| machine.id).collect()
    }

    /// Orders a new server, if there are not too many.
    pub fn order_arrival(&mut self) {
        let there = self.machines.values().filter(|machine| !machine.is_out()).count();
        if there < MOST && self.operator.orders.len() < 2 {
            self.operator.newest_node += 1;
            let node = format!("t{}", self.operator.newest_node);
            self.operator.orders.push(Order::Admit(node, 1));
        }
    }

    /// Orders the removal of a server; sometimes it is made leader during the removal.
    pub fn order_removal(&mut self) {
        let there: Vec<_> =
            self.machines.values().filter(|machine| !machine.is_out()).map(|machine| machine.id).collect();
        let leader = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id);
        let any = self.stage.draw.any(&there);
        if let Some(server) = leader.filter(|_| self.stage.draw.once_in(3)).or(any) {
            self.order_removal_of(server);
        }
    }

    /// Orders the removal of this server.
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

    /// Makes a server lose its disk, unless that could lose data that a majority holds. It comes
    /// back as a new server.
    pub fn wipe(&mut self) {
        let Some(members) = self.members_without_loss() else { return };
        let id = *self.stage.draw.pick(&members.voters);
        self.stage.hit(Mark::Wiped);
        self.stage.log(|| format!("server {id} loses its disk"));
        self.lose_disk(id);
    }

    /// Returns the membership as the leader sees it, if one voter's disk can be lost without losing
    /// data that a majority holds. A server with corrupt state holds nothing that others could
    /// continue with.
    pub(super) fn members_without_loss(&self) -> Option<Membership> {
        let cores = || self.machines.values().filter_map(|machine| Some(machine.process.as_ref()?.core()));
        let newest = cores().map(|core| core.replica().log_status().term).max()?;
        // A deposed leader that is paused does not know the present voters.
        let core =
            cores().find(|core| core.replica().is_serving() && core.replica().log_status().term == newest)?;
        let members = core.replica().membership().clone();
        let is_lost = |id: &ServerId| {
            self.machines.get(id).is_none_or(|machine| machine.gone) || self.judge.corrupted.contains(id)
        };
        let lost = members.voters.iter().filter(|id| is_lost(id)).count();
        let removes = |order: &Order| matches!(order, Order::Remove(_));
        let removing = self.operator.orders.iter().any(removes)
            || self.operator.under_way.as_ref().is_some_and(|(_, order, _)| removes(order));
        // A removal that the operator gave up may still be under way.
        let is_safe = core.autopilot(self.stage.now).may_change_membership()
            && members.voters.len() >= 3
            && lost == 0
            && !removing;
        is_safe.then_some(members)
    }

    /// Loses a server's disk permanently: with an empty folder it comes back as a new server.
    pub(super) fn lose_disk(&mut self, id: ServerId) {
        self.operator.lost = self.stage.now;
        self.crash(id);
        let machine = self.machines.get_mut(&id).expect("the machine exists");
        machine.gone = true;
        let order = Order::Admit(machine.node.clone(), machine.folder + 1);
        self.operator.orders.push(order);
    }
}
