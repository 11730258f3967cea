//! The calm after the storm: no new faults, and a bounded time until the cluster has recovered.

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

/// Interval between checks.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum time until everything is well: the catalog is reconciled with the roster as soon as
/// there is a leader, and again a minute later for writes that clients made just after that.
const BOUND: Duration = Duration::from_secs(80);
/// Additional time until the server with corrupt state is known: a comparison waits a minute for
/// servers that report no checksum, and the last one begins a while after the last write.
const COMPARISON_BOUND: Duration = Duration::from_secs(70);

/// Additional time until agents have removed what others registered for their nodes: an agent
/// compares its node with the catalog within two minutes.
const NODE_COMPARISON_BOUND: Duration = Duration::from_secs(60);

/// Additional time until the lock of a process that died alone on its host is free: its session has
/// a TTL of up to a minute, and ends after twice that time.
const ORPHAN_BOUND: Duration = Duration::from_secs(60);

impl World {
    /// Ends all faults.
    pub fn calm(&mut self) {
        self.stage.log(|| "the storm is over".into());
        self.stage.calm = true;
        self.held.fault_everywhere(self.stage.now);
        self.stage.network.calm();
        // Servers that want to join continue on their own.
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

    /// Gives addresses of present servers to each agent that knows only removed servers, as its
    /// operator would.
    fn find_lost_agents(&mut self) {
        let Some(leader) = self.machines.values().find(|machine| machine.serves()) else { return };
        let members = leader.process.as_ref().expect("it serves").core().replica().membership().all();
        let is_lost = |agent: &Agent| !agent.was_told_of(&self.stage, |id| members.contains(&id));
        let agents = self.agents.iter().enumerate();
        let lost: Vec<usize> = agents.filter(|(_, agent)| is_lost(agent)).map(|(number, _)| number).collect();
        for agent in lost {
            self.stage.log(|| format!("agent {agent} knows no present server"));
            self.restart_agent(agent);
        }
    }

    /// Returns the maximum time until everything is well.
    fn bound(&self) -> Duration {
        let plan = &self.stage.plan;
        let comparison = if plan.clients.has_checks { NODE_COMPARISON_BOUND } else { Duration::ZERO };
        let has_orphans = plan.reach.is_alone() && plan.guards.per_agent > 0;
        BOUND + comparison + if has_orphans { ORPHAN_BOUND } else { Duration::ZERO }
    }

    /// Checks that everything is well by now.
    pub fn look(&mut self) {
        self.waits_for_refusal();
        self.find_lost_agents();
        let wrong = self.wrong();
        if wrong.is_empty() {
            self.judge_end();
            self.done = true;
        } else if self.calm_for() > self.bound() && !self.is_still_comparing(&wrong) {
            if wrong == self.unseen() {
                self.judge_watchers();
            } else {
                self.judge.object("liveness", wrong.join("; "));
            }
        }
        self.stage.after(LOOK, Event::Look);
    }

    /// Returns `true` if the only problem is that the server with corrupt state is not known yet.
    fn is_still_comparing(&self, wrong: &[String]) -> bool {
        wrong == self.unfound() && self.calm_for() <= BOUND + COMPARISON_BOUND
    }

    /// Returns the time since the end of the storm.
    fn calm_for(&self) -> Duration {
        self.stage.now.since(Time(0)).saturating_sub(self.stage.plan.storm)
    }

    /// Returns the problems that remain.
    fn wrong(&self) -> Vec<String> {
        let leaders: Vec<&Machine> = self.machines.values().filter(|machine| machine.serves()).collect();
        let [leader] = leaders.as_slice() else {
            return vec![format!("{} servers lead", leaders.len())];
        };
        let mut wrong: Vec<String> = self.agents.iter().flat_map(|agent| agent.discontent()).collect();
        let guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        wrong.extend(guards.filter_map(|guard| guard.discontent(self.stage.now, &self.judge)));
        let process = leader.process.as_ref().expect("it serves");
        let members = process.core().replica().membership();
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
                    wrong.push(format!("server {id} has applied {applied:?}, the leader {there}"));
                }
            }
        }
        if process.applied() < self.judge.history.last() {
            wrong.push("the leader lags behind".into());
        }
        wrong.extend(unreconciled(process.core().replica().state()));
        wrong.extend(self.with_another_key(process.core().replica().state().gossip_key()));
        let state = process.core().replica().state();
        wrong.extend(self.agents.iter().flat_map(|agent| agent.unsynchronized(state)));
        wrong.extend(self.agents.iter().flat_map(|agent| agent.processes.left_behind(state)));
        wrong.extend(self.unfound());
        wrong.extend(self.unseen());
        wrong
    }

    /// Returns the agents that do not seal their datagrams with this gossip key.
    fn with_another_key(&self, number: u32) -> Vec<String> {
        let keys =
            self.agents.iter().filter_map(|agent| Some((agent.place, agent.member.mesh()?.key_number())));
        let others = keys.filter(|(_, key)| *key != Some(number));
        others.map(|(agent, key)| format!("agent {agent} seals with key {key:?}, not {number}")).collect()
    }

    /// Returns the watchers that have not seen the last change.
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
                format!("the watcher of {query:?} last saw {index:?}")
            })
            .collect()
    }

    /// Compares whole states at the end.
    fn judge_end(&mut self) {
        let leader = self.machines.values().find(|machine| machine.serves()).expect("there is a leader");
        let members: BTreeSet<ServerId> = leader
            .process
            .as_ref()
            .expect("it serves")
            .core()
            .replica()
            .membership()
            .all()
            .into_iter()
            .collect();
        for machine in self.machines.values().filter(|machine| members.contains(&machine.id)) {
            let Some(process) = &machine.process else { continue };
            let (index, state) = (process.applied(), process.core().replica().state());
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

/// Returns members that are not alive although there was no fault for long, and differences between
/// the catalog and the roster (I7 of the design).
fn unreconciled(state: &State) -> Vec<String> {
    let (members, strangers) = state.unreconciled(usize::MAX);
    let said = state.agents().filter(|agent| agent.status != MemberStatus::Alive);
    let said = said.map(|agent| format!("node {} is {:?}", agent.node, agent.status));
    let differing = members.into_iter().map(|number| format!("the catalog has another agent {number}"));
    let strange = strangers.into_iter().map(|node| format!("node {node} is healthy, and has no agent"));
    said.chain(differing).chain(strange).collect()
}
