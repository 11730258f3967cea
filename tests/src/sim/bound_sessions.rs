//! Sessions of an agent that end with a process: the real [`BoundSessions`], driven as the agent's
//! own task drives it, and the processes of its host.
//!
//! The processes outlive the agent's process, and die with their host. While the agent is down
//! nothing notices a death; its next process finds it in the servers' list.

use super::agent::Agent;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::bound_sessions::{BoundSessions, Input as Told, Orders};
use lockmesh_agent_core::quorum_client::{Answered, CallToken, EndReason, LocalCall};
use lockmesh_agent_core::session_watch::{READ_WAIT, ReadOrder};
use lockmesh_core::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::record::{ProcessBinding, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The longest time between two processes that bind a session, and the longest life of one.
const PERIOD: Duration = Duration::from_secs(4);

/// The time in which the kernel reports an exit.
const REPORT_DELAY: Duration = Duration::from_micros(300);

/// An event of an agent's bound sessions.
#[derive(Clone, Copy, Debug)]
pub enum BoundEvent {
    /// A process starts, and binds a session.
    Begins,
    /// The kernel reports the exit of a session's process.
    Exited(SessionId),
    /// The pause before the read with this number is over.
    Read(u64),
    /// The pause before the end of a session is over.
    End(SessionId),
}

/// The bound sessions of one agent, and the processes of its host.
#[derive(Debug, Default)]
pub(super) struct HostProcesses {
    /// The processes that live. No id is used twice.
    living: BTreeSet<u32>,
    last: u32,
    /// The sessions that were requested for processes, and may exist.
    made: BTreeMap<SessionId, u32>,
    /// The agent's own part, which is lost with its process.
    agent: Option<AgentPart>,
}

#[derive(Debug)]
struct AgentPart {
    bound: BoundSessions,
    /// The watched processes.
    watched: BTreeMap<SessionId, u32>,
    calls: BTreeMap<CallToken, BoundCall>,
    last_read: u64,
    read: Option<ReadOrder>,
}

#[derive(Debug)]
enum BoundCall {
    Create(SessionId, u32),
    Read,
    End(SessionId),
}

impl HostProcesses {
    /// Returns `true` if this process lives.
    pub(super) fn runs(&self, pid: u32) -> bool {
        self.living.contains(&pid)
    }

    /// The host dies with all its processes.
    pub(super) fn host_dies(&mut self) {
        self.living.clear();
    }

    /// Returns the sessions of dead processes that a state still has.
    pub(super) fn left_behind(&self, state: &State) -> Vec<String> {
        let is_left = |(session, pid): &(&SessionId, &u32)| {
            !self.living.contains(pid) && state.session(**session).is_some()
        };
        let words = |(session, pid)| format!("session {session} outlives its process {pid}");
        self.made.iter().filter(is_left).map(words).collect()
    }
}

impl World {
    /// Handles an event of the sessions that an agent follows, or of the processes of its host.
    pub(super) fn session_event(&mut self, event: Event) {
        match event {
            Event::SessionWatch(agent, life, session, timer) => {
                let agent = &mut self.agents[agent];
                agent.session_timer_fired(&mut self.stage, &mut self.judge, (life, session), timer);
            }
            Event::Bound(agent, life, event) => {
                self.agents[agent].bound_event(&mut self.stage, &mut self.judge, life, event);
            }
            Event::ProcessDies(agent, pid) => self.agents[agent].process_dies(&mut self.stage, pid),
            other => unreachable!("no event of a session: {other:?}"),
        }
    }
}

impl Agent {
    /// Begins to watch the processes of this host: the agent's process has started.
    pub(super) fn begin_bound_sessions(&mut self, stage: &mut Stage) {
        if !stage.plan.clients.binds_processes {
            return;
        }
        let (bound, orders) = BoundSessions::new(stage.draw.bits());
        let (watched, calls) = (BTreeMap::new(), BTreeMap::new());
        self.processes.agent = Some(AgentPart { bound, watched, calls, last_read: 0, read: None });
        self.carry_out_bound(stage, orders);
        self.bound_later(stage, PERIOD, BoundEvent::Begins);
    }

    fn bound_later(&self, stage: &mut Stage, longest: Duration, event: BoundEvent) {
        let wait = stage.draw.duration(Duration::ZERO, longest);
        stage.after(wait, Event::Bound(self.place, self.life, event));
    }

    /// A process of this host dies.
    pub(super) fn process_dies(&mut self, stage: &mut Stage, pid: u32) {
        self.processes.living.remove(&pid);
        let watched = self.processes.agent.iter().flat_map(|agent| &agent.watched);
        let exited: Vec<SessionId> =
            watched.filter(|(_, watched)| **watched == pid).map(|(session, _)| *session).collect();
        for session in exited {
            stage.after(REPORT_DELAY, Event::Bound(self.place, self.life, BoundEvent::Exited(session)));
        }
    }

    /// Handles an event of the agent's process with that life.
    pub(super) fn bound_event(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, event: BoundEvent) {
        if life != self.life {
            return;
        }
        match event {
            BoundEvent::Begins => {
                if !stage.calm {
                    self.bind_process(stage, judge);
                    self.bound_later(stage, PERIOD, BoundEvent::Begins);
                }
            }
            BoundEvent::Exited(session) => self.tell_bound(stage, Told::Exited(session)),
            BoundEvent::Read(number) => {
                let agent = self.processes.agent.as_ref().filter(|agent| agent.last_read == number);
                if let Some(order) = agent.and_then(|agent| agent.read) {
                    let blocking = order.behind.map(|index| Blocking { index, wait: READ_WAIT });
                    let (query, consistency) = (Query::Bindings(self.node_name()), Consistency::Stale);
                    let call = LocalCall::Read { query, consistency, blocking };
                    self.call_for_bound(stage, judge, BoundCall::Read, call);
                }
            }
            BoundEvent::End(session) => {
                let call = LocalCall::EndSession { session, reason: EndReason::ProcessExited };
                self.call_for_bound(stage, judge, BoundCall::End(session), call);
            }
        }
    }

    /// Starts a process, and creates a session that ends with it.
    fn bind_process(&mut self, stage: &mut Stage, judge: &mut Judge) {
        self.processes.last += 1;
        let pid = self.processes.last;
        self.processes.living.insert(pid);
        let life = stage.draw.duration(Duration::ZERO, PERIOD);
        stage.after(life, Event::ProcessDies(self.place, pid));
        let [first, second] = [stage.draw.bits(), stage.draw.bits()];
        let session = SessionId::from_random((u128::from(first) << 64 | u128::from(second)).to_le_bytes());
        self.processes.made.insert(session, pid);
        let spec = SessionSpec {
            lock_delay: stage.draw.duration(Duration::ZERO, stage.plan.clients.lock_delay),
            ..SessionSpec::of(session, self.node_name())
        };
        let binding = self.binding(pid, stage.draw.once_in(2));
        let call = LocalCall::Propose(Command::CreateBoundSession(spec, binding));
        self.call_for_bound(stage, judge, BoundCall::Create(session, pid), call);
    }

    fn binding(&self, pid: u32, keeps_lock_delay: bool) -> ProcessBinding {
        let boot_id = u128::from(self.boots).to_le_bytes();
        ProcessBinding { pid, started_at: pid.into(), boot_id, keeps_lock_delay }
    }

    fn node_name(&self) -> NodeName {
        format!("n{}", self.place).as_str().into()
    }

    fn call_for_bound(&mut self, stage: &mut Stage, judge: &mut Judge, by: BoundCall, call: LocalCall) {
        let token = self.next_token();
        if let Some(agent) = &mut self.processes.agent {
            agent.calls.insert(token, by);
        }
        self.call_locally(stage, judge, token, call);
    }

    /// Handles the reply to a call; returns `false` for any other call.
    pub(super) fn bound_heard(
        &mut self,
        stage: &mut Stage,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        let call = self.processes.agent.as_mut().and_then(|agent| agent.calls.remove(&token));
        match call {
            None => return false,
            Some(BoundCall::Create(session, pid)) => {
                if let Ok(Answered::Response(Response::Applied(Applied { index, reply }))) = answer
                    && *reply == Reply::Session(session)
                {
                    self.watch_process(stage, session, pid);
                    self.tell_bound(stage, Told::Created(session, *index));
                }
            }
            Some(BoundCall::Read) => self.tell_bound(stage, Told::Listed(list(answer))),
            Some(BoundCall::End(session)) => {
                if answer.is_ok() {
                    stage.hit(Mark::EndedWithProcess);
                }
                self.tell_bound(stage, Told::Ended(session, index_of(answer)));
            }
        }
        true
    }

    fn tell_bound(&mut self, stage: &mut Stage, input: Told) {
        if let Some(agent) = &mut self.processes.agent {
            let orders = agent.bound.handle(input);
            self.carry_out_bound(stage, orders);
        }
    }

    fn carry_out_bound(&mut self, stage: &mut Stage, orders: Orders) {
        let Orders { watch, end, forget, read } = orders;
        for (session, binding) in watch {
            stage.hit(Mark::ProcessTakenUp);
            let is_this_boot = binding.boot_id == self.binding(0, false).boot_id;
            // A process of an earlier boot is dead, whatever has its id now.
            let pid = if is_this_boot { binding.pid } else { 0 };
            self.watch_process(stage, session, pid);
        }
        for (session, pause) in end {
            stage.after(pause, Event::Bound(self.place, self.life, BoundEvent::End(session)));
        }
        let Some(agent) = &mut self.processes.agent else { return };
        agent.watched.retain(|session, _| !forget.contains(session));
        if let Some(order) = read {
            agent.last_read += 1;
            agent.read = Some(order);
            let event = BoundEvent::Read(agent.last_read);
            stage.after(order.pause, Event::Bound(self.place, self.life, event));
        }
    }

    /// Watches a process, which may have exited.
    fn watch_process(&mut self, stage: &mut Stage, session: SessionId, pid: u32) {
        let Some(agent) = &mut self.processes.agent else { return };
        agent.watched.insert(session, pid);
        if !self.processes.living.contains(&pid) {
            stage.after(REPORT_DELAY, Event::Bound(self.place, self.life, BoundEvent::Exited(session)));
        }
    }
}

/// Returns the index at which a session was ended.
fn index_of(answer: &Result<Answered, Unavailable>) -> Option<LogIndex> {
    match answer {
        Ok(Answered::Response(Response::Applied(applied))) => Some(applied.index),
        _ => None,
    }
}

type List = Option<(LogIndex, Vec<(SessionId, ProcessBinding)>)>;

fn list(answer: &Result<Answered, Unavailable>) -> List {
    let answer = match answer {
        Ok(Answered::Shared(answer)) => answer,
        Ok(Answered::Response(Response::Answer(answer))) => answer,
        _ => return None,
    };
    match &answer.rows {
        Rows::Bindings(list) => Some((answer.index, list.clone())),
        _ => None,
    }
}
