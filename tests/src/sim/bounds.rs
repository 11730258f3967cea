//! Time bounds for agents, even in the storm: they count from the moment at which everything that
//! the agent needs works.
//!
//! **An agent follows a leader** within [`FOLLOW_BOUND`]. The time counts while that server leads,
//! runs, has a disk that accepts writes, is reachable in both directions, and nothing between it
//! and the agent is lost. In that time the agent may have to notice that a server does not reply (3
//! s), to connect (2 s after a backoff of 2 s), and to ask (some tenths of a second).
//!
//! **A watch is woken** within [`WATCH_BOUND`]. In addition, the agent must know the leader, there
//! must be a change, and every server that the agent reaches must have it. If its home server has
//! just gone silent, that is noticed after 2.5 s with two checks a second, and a request that is
//! pending for 0.3 s more makes the agent switch. Otherwise only the end of the connection after 6
//! s would show it.

use super::agent::LISTEN_INTERVAL;
use super::network::Place;
use super::process::Process;
use super::world::World;
use lockmesh_agent_core::quorum_client::CallToken;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::query::{Answer, Query};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum time until an agent follows a leader.
const FOLLOW_BOUND: Duration = Duration::from_secs(8);

/// Maximum time until a watcher receives a change.
const WATCH_BOUND: Duration = Duration::from_millis(4_500);

/// The time since which an agent follows a leader that can commit, undisturbed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undisturbed(pub(super) Time);

/// The conditions of one agent, each with its start.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    looked: Time,
    /// The life of the agent that this describes.
    life: u64,
    /// A reachable leader, with its life and term.
    leader: Option<((ServerId, u64, Term), Time)>,
    /// The time since which the agent has followed it.
    known: Option<Time>,
    /// The time since which that leader can commit.
    commits: Option<Time>,
    /// Watchers that still wait although every server has the change.
    due: BTreeMap<CallToken, Time>,
}

impl World {
    /// Checks the bounds of an agent that has just processed input.
    pub(super) fn judge_bounds(&mut self, agent: usize) {
        let now = self.stage.now;
        let mut bounds = self.bounds.remove(&agent).unwrap_or_default();
        let life = self.agents[agent].life;
        let was_away =
            life != bounds.life || now.since(bounds.looked) > LISTEN_INTERVAL + Duration::from_millis(100);
        let was_disturbed = self.was_disturbed(agent, bounds.looked);
        (bounds.looked, bounds.life) = (now, life);
        let leader = self.reachable_leader(agent).filter(|_| !was_away && !was_disturbed);
        if leader != bounds.leader.map(|(leader, _)| leader) {
            let leader = leader.map(|leader| (leader, now));
            bounds = Bounds { looked: now, life, leader, ..Bounds::default() };
        }
        if let Some(((id, ..), since)) = bounds.leader {
            match self.agents[agent].leader == Some(id) {
                true => _ = bounds.known.get_or_insert(now),
                false if now.since(since) > FOLLOW_BOUND => {
                    let known = self.agents[agent].leader;
                    let what = format!(
                        "agent {agent} follows {known:?} as leader, but the reachable server {id} leads"
                    );
                    self.judge.object("follows_the_leader", what);
                }
                false => bounds.known = None,
            }
            self.judge_watches(agent, id, &mut bounds);
        }
        bounds.commits = bounds.known.filter(|_| self.can_commit()).map(|_| bounds.commits.unwrap_or(now));
        self.judge_check_sessions(agent, was_away, bounds.commits.map(Undisturbed));
        self.bounds.insert(agent, bounds);
    }

    /// Returns the leader if it runs, its disk accepts writes, the agent reaches it, and the agent
    /// knows it or another server that does. A server whose disk refuses writes sends agents to
    /// others.
    fn reachable_leader(&self, agent: usize) -> Option<(ServerId, u64, Term)> {
        let mut leaders = self.machines.values().filter(|machine| machine.serves());
        let leader = leaders.next().filter(|_| leaders.next().is_none())?;
        let hangs = leader.disk.hangs_since(self.stage.now).is_some();
        let is_well = |process: &&Process| !process.failing && !hangs && self.is_reached(agent, process);
        let process = leader.process.as_ref().filter(is_well)?;
        let members = process.core().replica().membership().all();
        let can_tell = |id: ServerId| {
            members.contains(&id) && self.process(id).is_some_and(|process| self.is_reached(agent, process))
        };
        self.agents[agent]
            .was_told_of(&self.stage, can_tell)
            .then(|| (leader.id, process.life, process.core().replica().log_status().term))
    }

    /// Returns `true` if anything was lost between an agent and a server that it reaches.
    pub(super) fn was_disturbed(&self, agent: usize, since: Time) -> bool {
        let network = &self.stage.network;
        let is_disturbed = |process: &Process| {
            let lost = self.agents[agent].disturbed.get(&process.id).is_some_and(|at| *at >= since);
            lost || network.was_delayed(since, (Place::Agent(agent), Place::Server(process.id)))
        };
        let running = self.machines.values().filter_map(|machine| machine.process.as_ref());
        running.filter(|process| self.is_reached(agent, process)).any(is_disturbed)
    }

    /// Returns `true` if an agent has a connection to a running server, or could have one.
    pub(super) fn reaches_a_server(&self, agent: usize) -> bool {
        let mut running = self.machines.values().filter_map(|machine| machine.process.as_ref());
        running.any(|process| self.is_reached(agent, process))
    }

    fn is_reached(&self, agent: usize, process: &Process) -> bool {
        let (here, there) = (Place::Agent(agent), Place::Server(process.id));
        let network = &self.stage.network;
        process.stands_until.is_none()
            && network.carries_calls((here, there))
            && network.carries_calls((there, here))
    }

    fn judge_watches(&mut self, agent: usize, leader: ServerId, bounds: &mut Bounds) {
        let now = self.stage.now;
        if bounds.known.is_none() {
            return bounds.due.clear();
        }
        let waiting = self.agents[agent].watches();
        let due = waiting
            .filter(|(_, query, known, last)| self.is_news_everywhere((agent, leader), query, *known, last));
        let due: BTreeMap<CallToken, Time> =
            due.map(|(token, ..)| (token, bounds.due.get(&token).copied().unwrap_or(now))).collect();
        let is_late = |token: &CallToken| due.get(token).is_some_and(|since| now.since(*since) > WATCH_BOUND);
        let late = self.agents[agent].watches().find(|(token, ..)| is_late(token));
        if let Some((_, query, known, _)) = late {
            let what =
                format!("agent {agent} has not woken a watcher after a change behind {known}: {query:?}");
            self.judge.object("woken_in_time", what);
        }
        bounds.due = due;
    }

    /// Returns `true` if every server that the agent reaches, including the leader, has something
    /// newer. A forgotten tombstone moves an index, but is not a change.
    fn is_news_everywhere(
        &self,
        (agent, leader): (usize, ServerId),
        query: &Query,
        known: LogIndex,
        last: &Answer,
    ) -> bool {
        let running = self.machines.values().filter_map(|machine| machine.process.as_ref());
        let mut reached = running.filter(|process| process.id == leader || self.is_reached(agent, process));
        reached.all(|process| {
            let state = process.core().replica().state();
            known.0 > 0 && state.index_of(query) > known && state.query(query).1 != last.rows
        })
    }
}
