//! Faults of agents and their hosts, and of the servers that an agent currently relies on.

use super::agent::{Agent, registration};
use super::guard::Guard;
use super::invariant::AgentEvent;
use super::judge::Judge;
use super::marks::Mark;
use super::network::{Link, Place};
use super::process::DriverEvent;
use super::session_watches::HandoverFile;
use super::stage::{Ask, Event, Requester, Stage};
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input, LocalCall};
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

/// Maximum wait of a terminating agent for the servers to accept its announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum wait of a terminating agent for the callers that it has just answered.
const GRACE: Duration = Duration::from_secs(1);

impl World {
    fn some_agent(&mut self) -> usize {
        self.stage.draw.below(self.agents.len() as u64) as usize
    }

    /// Crashes an agent or asks it to end, unless its host is suspended: nothing starts there.
    pub(super) fn restart_some_agent(&mut self) {
        let agent = self.some_agent();
        let is_asked = self.stage.draw.once_in(2);
        if self.agents[agent].guards.iter().any(Guard::is_suspended) {
            return;
        }
        if is_asked {
            self.stage.log(|| format!("agent {agent} is asked to end"));
            return self.agents[agent].ask_to_end(&mut self.stage, &mut self.judge);
        }
        self.stage.log(|| format!("agent {agent} dies"));
        self.restart_agent(agent);
    }

    /// Crashes an agent, which is then restarted.
    pub(super) fn restart_agent(&mut self, agent: usize) {
        self.fault_at(agent);
        self.bereave(agent);
        self.agents[agent].restart(&mut self.stage, &mut self.judge);
        self.hang_up(agent);
    }

    /// Ends an agent that was asked to end.
    pub(super) fn end_agent(&mut self, agent: usize, life: u64) {
        // It may have died meanwhile: the connections of its next life continue.
        if self.agents[agent].life == life {
            self.fault_at(agent);
            self.bereave(agent);
            self.agents[agent].end(&mut self.stage, &mut self.judge);
            self.hang_up(agent);
        }
    }

    fn hang_up(&mut self, agent: usize) {
        for id in self.running() {
            self.post(id, DriverEvent::Disconnected(Requester::Agent(agent)));
        }
    }

    /// Pauses an agent, or suspends its host, for a while.
    pub(super) fn stop_some_agent(&mut self, is_suspended: bool) {
        let agent = self.some_agent();
        let longest = self.stage.plan.faults.stop_length;
        let length = self.stage.draw.duration(Duration::from_millis(20), longest);
        match is_suspended {
            true => self.suspend_host(agent, length),
            false => self.stop_agent(agent, length),
        }
    }

    fn stop_agent(&mut self, agent: usize, length: Duration) {
        self.fault_at(agent);
        self.stage.hit(Mark::AgentStopped);
        self.stage.log(|| format!("agent {agent} is paused for {length:?}"));
        self.agents[agent].stop(&mut self.stage, length);
    }

    fn suspend_host(&mut self, agent: usize, length: Duration) {
        self.fault_at(agent);
        self.stage.log(|| format!("agent {agent}'s host is suspended for {length:?}"));
        self.agents[agent].suspend_host(&mut self.stage, length);
    }

    fn kill_host(&mut self, agent: usize, downtime: Duration) {
        self.fault_at(agent);
        self.stage.log(|| format!("agent {agent}'s host dies, and comes back after {downtime:?}"));
        self.agents[agent].lose_host(&mut self.stage, &mut self.judge, downtime);
        self.hang_up(agent);
    }

    /// Causes a fault of one host or of all hosts that may make the servers fail them: the host
    /// dies, is suspended or cut off, or its agent is paused.
    pub(super) fn trouble_hosts(&mut self) {
        let holds = |agent: &usize| self.agents[*agent].guards.iter().any(Guard::is_holding);
        let holding: Vec<usize> = (0..self.agents.len()).filter(holds).collect();
        let hosts = match self.stage.draw.below(4) {
            0 => (0..self.agents.len()).collect(),
            1 => vec![self.some_agent()],
            _ => self.stage.draw.any(&holding).into_iter().collect::<Vec<_>>(),
        };
        let longest = self.stage.plan.guards.host_trouble_length;
        let what = self.stage.draw.below(6);
        for agent in hosts {
            let length = self.stage.draw.duration(Duration::from_secs(1), longest);
            match what {
                0 => self.kill_host(agent, length),
                1 => self.suspend_host(agent, length),
                2 => self.stop_agent(agent, length),
                _ => self.isolate_host(agent, length),
            }
        }
    }

    /// Cuts a host off from all others, in one direction or both.
    fn isolate_host(&mut self, agent: usize, length: Duration) {
        self.fault_at(agent);
        self.stage.hit(Mark::HostIsolated);
        let (is_deaf, is_mute) =
            *self.stage.draw.pick(&[(true, true), (true, true), (true, false), (false, true)]);
        let here = Place::Agent(agent);
        let servers = self.machines.keys().copied().map(Place::Server);
        let agents = (0..self.agents.len()).map(Place::Agent).filter(|other| *other != here);
        let others: Vec<Place> = servers.chain(agents).collect();
        let in_bound = others.iter().filter(|_| is_deaf).map(|other| (*other, here));
        let out_bound = others.iter().filter(|_| is_mute).map(|other| (here, *other));
        let links: Vec<Link> = in_bound.chain(out_bound).collect();
        self.stage.log(|| format!("agent {agent} is cut off for {length:?}: deaf {is_deaf}, mute {is_mute}"));
        self.cut_exactly(links, length);
    }

    /// Starts a copy of an agent's machine, with the same node ID, for a moment. If the agent is
    /// silent then, the servers take the copy for the agent and forget the agent's registration.
    pub(super) fn copy_some_agent(&mut self) {
        let agent = self.some_agent();
        let Some(to) = self.machines.values().find(|machine| machine.serves()).map(|machine| machine.id)
        else {
            return;
        };
        self.stage.hit(Mark::AgentCopied);
        self.fault_at(agent);
        self.stage.log(|| format!("a copy of agent {agent} registers"));
        // The servers refuse the copy as long as the agent answers them.
        if self.stage.draw.once_in(2) {
            let (least, most) = (Duration::from_secs(1), Duration::from_secs(4));
            let length = self.stage.draw.duration(least, most);
            self.agents[agent].stop(&mut self.stage, length);
        }
        let copy = registration(agent, self.agents[agent].folders_lost);
        let request = Request::Propose(None, Command::RegisterAgent(copy));
        let (call, client) = (self.stage.call(), Caller::Agent);
        let ask = Ask { by: Requester::Operator, call, client, request, bound: LogIndex(0) };
        self.stage.send(Place::Operator, Place::Server(to), Event::Ask(to, Box::new(ask)));
    }

    /// Pauses, crashes, cuts off or removes the server that an agent follows as leader, or its home
    /// server.
    pub(super) fn trouble_server_of_agent(&mut self) {
        let agent = self.some_agent();
        let is_home = self.stage.draw.once_in(2);
        let server = if is_home { self.agents[agent].home } else { self.agents[agent].leader };
        let Some(id) = server.filter(|id| self.running().contains(id)) else { return };
        let longest = self.stage.plan.faults.server_trouble;
        match self.stage.draw.below(7) {
            0..=2 => {
                self.stage.hit(if is_home { Mark::HomeStopped } else { Mark::LeaderStopped });
                let length = self.stage.draw.duration(Duration::from_millis(50), longest);
                self.stand_still(id, length);
            }
            3 | 4 => self.cut_off(agent, id, is_home),
            5 => self.crash_and_restart(id),
            _ => self.order_removal_of(id),
        }
    }

    fn cut_off(&mut self, agent: usize, id: ServerId, is_home: bool) {
        self.stage.hit(if is_home { Mark::HomeCutOff } else { Mark::LeaderCutOff });
        let (here, there) = (Place::Agent(agent), Place::Server(id));
        let link = if self.stage.draw.once_in(2) { (here, there) } else { (there, here) };
        self.stage.log(|| format!("nothing gets through from {:?} to {:?}", link.0, link.1));
        let longest = self.stage.plan.faults.server_trouble;
        self.cut_for(vec![link], longest);
    }
}

impl Agent {
    /// Starts a clean shutdown with a restart: announces it to the servers first, as the agent's
    /// program does.
    fn ask_to_end(&mut self, stage: &mut Stage, judge: &mut Judge) {
        if self.farewell.is_some() {
            return;
        }
        let token = self.next_token();
        self.farewell = Some(token);
        let Some(lease) = self.upstream.registered_lease() else {
            return self.begin_to_end(stage, judge);
        };
        self.handover_file = HandoverFile::Announced;
        let call = LocalCall::Propose(Command::AnnounceRestart(lease));
        stage.after(ANNOUNCE_TIMEOUT, Event::GoAway(self.place, self.life, token));
        let bound = judge.bound;
        self.see(stage, judge, AgentEvent::Called { token, call: &call, bound });
        self.handle_input(stage, judge, Input::Call(token, Caller::Agent, call));
    }

    /// The servers answered the announcement. Its effect on guards is visible in the lease.
    pub(super) fn announced(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        answer: &Result<Answered, Unavailable>,
    ) {
        if let Ok(Answered::Response(Response::Applied(Applied { reply: Reply::Succeeded(true), .. }))) =
            answer
        {
            stage.hit(Mark::RestartAnnounced);
        }
        self.begin_to_end(stage, judge);
    }

    /// The servers did not answer the announcement in time.
    pub(super) fn not_announced(&mut self, stage: &mut Stage, judge: &mut Judge, token: CallToken) {
        self.see(stage, judge, AgentEvent::Left { token });
        self.handle_input(stage, judge, Input::Cancel(token));
        self.begin_to_end(stage, judge);
    }

    /// Answers all waiting callers, and ends a little later.
    fn begin_to_end(&mut self, stage: &mut Stage, judge: &mut Judge) {
        // Not used any more, but prevents a second request to end.
        self.farewell = Some(CallToken(0));
        self.handle_input(stage, judge, Input::Hurry);
        self.stop_watches(stage);
        let wait = stage.draw.duration(Duration::ZERO, GRACE);
        stage.after(wait, Event::EndAgent(self.place, self.life));
    }
}
