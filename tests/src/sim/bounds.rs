//! How soon an agent must find its way, also in the storm: whenever everything that it needs has
//! been well for so long.
//!
//! **An agent follows a leader** within [`FOLLOW_BOUND`] of the moment from which on that one
//! leads, runs, has a disk that takes writes, is reached both ways and nothing that the agent sends
//! or should hear is lost. In that time it may have to notice that a server does not answer a
//! question (3 s), to connect (2 s and a pause of 2 s before), and to ask (some tenths of a
//! second).
//!
//! **A watch is woken** within [`WATCH_BOUND`] of the moment from which on, besides, the agent
//! knows the leader, there is news, and every server that it reaches has it: where its home server
//! has just gone silent, that is noticed after 2.5 s, is looked for twice a second, and a question
//! that is open for 0.3 s more is enough to leave it; without that, only the end of the connection
//! after 6 s would tell.

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

/// How soon an agent must follow a leader.
const FOLLOW_BOUND: Duration = Duration::from_secs(8);

/// How soon whoever waits for news must hear it.
const WATCH_BOUND: Duration = Duration::from_millis(4_500);

/// What has been well for one agent, since when.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    looked: Time,
    /// Which of the agent's lives all of this is about.
    life: u64,
    /// A leader, in one of its lives and terms, that the agent can reach.
    leader: Option<((ServerId, u64, Term), Time)>,
    /// Since when the agent has known it.
    known: Option<Time>,
    /// Who waits although there is news everywhere.
    due: BTreeMap<CallToken, Time>,
}

impl World {
    /// Looks whether an agent is as far as it must be; it has just taken something in.
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
                        "agent {agent} takes {known:?} for the leader, and {id} leads and is reached"
                    );
                    self.judge.object("follows_the_leader", what);
                }
                false => bounds.known = None,
            }
            self.judge_watches(agent, id, &mut bounds);
        }
        self.bounds.insert(agent, bounds);
    }

    /// The leader, where it runs, its disk takes writes, and the agent reaches it and was told of
    /// it or of another one who can tell. Whose disk refuses sends agents to others.
    fn reachable_leader(&self, agent: usize) -> Option<(ServerId, u64, Term)> {
        let mut leaders = self.machines.values().filter(|machine| machine.serves());
        let leader = leaders.next().filter(|_| leaders.next().is_none())?;
        let hangs = leader.disk.hangs_since(self.stage.now).is_some();
        let is_well = |process: &&Process| !process.failing && !hangs && self.is_reached(agent, process);
        let process = leader.process.as_ref().filter(is_well)?;
        let members = process.core().membership().all();
        let can_tell = |id: ServerId| {
            members.contains(&id) && self.process(id).is_some_and(|process| self.is_reached(agent, process))
        };
        self.agents[agent]
            .was_told_of(&self.stage, can_tell)
            .then(|| (leader.id, process.life, process.core().log_status().term))
    }

    /// Whether anything was lost between an agent and a server that it reaches.
    fn was_disturbed(&self, agent: usize, since: Time) -> bool {
        let network = &self.stage.network;
        let is_disturbed = |process: &Process| {
            let lost = self.agents[agent].disturbed.get(&process.id).is_some_and(|at| *at >= since);
            lost || network.was_delayed(since, (Place::Agent(agent), Place::Server(process.id)))
        };
        let running = self.machines.values().filter_map(|machine| machine.process.as_ref());
        running.filter(|process| self.is_reached(agent, process)).any(is_disturbed)
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
                format!("agent {agent} lets somebody wait although there is news after {known}: {query:?}");
            self.judge.object("woken_in_time", what);
        }
        bounds.due = due;
    }

    /// Whether every server that the agent reaches, the leader among them, knows something newer.
    /// That a tombstone was forgotten moves an index, and is no news.
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
            let state = process.core().state();
            known.0 > 0 && state.index_of(query) > known && state.query(query).1 != last.rows
        })
    }
}
