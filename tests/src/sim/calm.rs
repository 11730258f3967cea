//! After the storm: nothing goes wrong any more, and within a bounded time everything must be well.

use super::agent::Agent;
use super::invariant::Fact;
use super::machine::Machine;
use super::operator::Order;
use super::process::Process;
use super::stage::Event;
use super::world::World;
use lockmesh_core::State;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often somebody looks.
const LOOK: Duration = Duration::from_millis(200);
/// How long it may take until all is well: the catalog is compared with the roster as soon as
/// somebody leads, and a minute later with what clients wrote just after that.
const BOUND: Duration = Duration::from_secs(80);
/// How much longer it may take until it is known whose state is corrupt: a comparison waits a
/// minute for servers that tell no checksum, and the last one begins a while after the last write.
const COMPARISON_BOUND: Duration = Duration::from_secs(70);

impl World {
    /// Faults end for good.
    pub fn calm(&mut self) {
        self.stage.say(|| "the storm is over".into());
        self.stage.calm = true;
        self.held.fault_everywhere(self.stage.now);
        self.stage.network.calm();
        // Servers that want to join go on by themselves.
        self.operator.orders.retain(|order| matches!(order, Order::Admit(..)));
        let ids: Vec<ServerId> = self.machines.keys().copied().collect();
        for id in ids {
            let machine = self.machines.get_mut(&id).expect("the machine exists");
            machine.disk.stall(self.stage.now);
            machine.disk.refuse(self.stage.now);
            machine.disk.end_hang(self.stage.now);
            if let Some(process) = &mut machine.process {
                process.go_on_now(&mut self.stage);
            }
            self.start(id);
        }
        self.stage.after(LOOK, Event::Look);
    }

    /// An agent that was away while all the servers were taken out of which it knew is told of
    /// others by whoever runs it.
    fn find_lost_agents(&mut self) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else { return };
        let members = leader.process.as_ref().expect("it serves").core().membership().all();
        let is_lost = |agent: &Agent| !agent.was_told_of(&self.stage, |id| members.contains(&id));
        let agents = self.agents.iter().enumerate();
        let lost: Vec<usize> = agents.filter(|(_, agent)| is_lost(agent)).map(|(number, _)| number).collect();
        for agent in lost {
            self.stage.say(|| format!("agent {agent} knows nobody who is still there"));
            self.restart_agent(agent);
        }
    }

    /// Whether all is well by now.
    pub fn look(&mut self) {
        self.waits_for_refusal();
        self.find_lost_agents();
        let wrong = self.wrong();
        if wrong.is_empty() {
            self.judge_end();
            self.done = true;
        } else if self.calm_for() > BOUND && !self.is_still_comparing(&wrong) {
            if wrong == self.unseen() {
                self.judge_watchers();
            } else {
                self.judge.object("liveness", wrong.join("; "));
            }
        }
        self.stage.after(LOOK, Event::Look);
    }

    /// Whether nothing else is wrong but that it is not known yet whose state is.
    fn is_still_comparing(&self, wrong: &[String]) -> bool {
        wrong == self.unfound() && self.calm_for() <= BOUND + COMPARISON_BOUND
    }

    /// For how long nothing has gone wrong any more.
    fn calm_for(&self) -> Duration {
        self.stage.now.since(Time(0)).saturating_sub(self.stage.plan.storm)
    }

    /// What is not well yet.
    fn wrong(&self) -> Vec<String> {
        let leaders: Vec<&Machine> = self.machines.values().filter(|machine| machine.serves()).collect();
        let [leader] = leaders.as_slice() else {
            return vec![format!("{} servers lead", leaders.len())];
        };
        let mut wrong: Vec<String> = self.agents.iter().flat_map(|agent| agent.discontent()).collect();
        let guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        wrong.extend(guards.filter_map(|guard| guard.discontent(self.stage.now, &self.judge)));
        let process = leader.process.as_ref().expect("it serves");
        let members = process.core().membership();
        if members.is_joint() || !members.learners.is_empty() {
            wrong.push(format!("the membership is {members:?}"));
        }
        for id in members.all() {
            let machine = self.machines.get(&id);
            match machine.and_then(|machine| machine.process.as_ref()).map(Process::applied) {
                Some(applied) if applied == process.applied() => {}
                None if machine.is_some_and(|machine| machine.gone) => {}
                applied => {
                    let there = process.applied();
                    wrong.push(format!("server {id} is at {applied:?}, the leader at {there}"));
                }
            }
        }
        if process.applied() < self.judge.history.last() {
            wrong.push("the leader is behind".into());
        }
        wrong.extend(unreconciled(process.core().state()));
        wrong.extend(self.unfound());
        wrong.extend(self.unseen());
        wrong
    }

    /// Watchers that have not seen the last change.
    fn unseen(&self) -> Vec<String> {
        let state = self.judge.history.state();
        let watchers = self.agents.iter().flat_map(|agent| agent.clients()).filter_map(|c| c.last_seen());
        let behind = watchers.filter(|(query, answer)| {
            let (_, rows) = state.query(query);
            answer.is_none_or(|answer| answer.rows != rows)
        });
        behind
            .map(|(query, answer)| {
                let index = answer.map(|answer| answer.index);
                format!("the watcher of {query:?} saw {index:?} last")
            })
            .collect()
    }

    /// All is quiet: whole states are compared.
    fn judge_end(&mut self) {
        let leader = self.machines.values().find(|machine| machine.serves()).expect("somebody leads");
        let members: BTreeSet<ServerId> =
            leader.process.as_ref().expect("it serves").core().membership().all().into_iter().collect();
        for machine in self.machines.values().filter(|machine| members.contains(&machine.id)) {
            let Some(process) = &machine.process else { continue };
            let (index, state) = (process.applied(), process.core().state());
            self.judge.see(&self.stage, &Fact::Opened { server: machine.id, index, state });
        }
        self.judge_watchers();
    }

    fn judge_watchers(&mut self) {
        let clients = self.agents.iter().flat_map(|agent| agent.clients());
        for (query, answer) in clients.filter_map(|client| client.last_seen()) {
            self.judge.see(&self.stage, &Fact::LastSeen { query, answer });
        }
    }
}

/// Members that do not live, although nothing has gone wrong for long, and where the catalog says
/// something else than the roster (I7 of the design).
fn unreconciled(state: &State) -> Vec<String> {
    let (members, strangers) = state.unreconciled(usize::MAX);
    let said = state.agents().filter(|agent| agent.status != MemberStatus::Alive);
    let said = said.map(|agent| format!("node {} is {:?}", agent.node, agent.status));
    let differing = members.into_iter().map(|number| format!("the catalog has another agent {number}"));
    let strange = strangers.into_iter().map(|node| format!("node {node} is healthy, and has no agent"));
    said.chain(differing).chain(strange).collect()
}
