//! Guards among all others: how their calls come to their agent, and whether they may believe what
//! they believe.
//!
//! **Invariant:** no guard would say that it holds a lock, were it asked now by its own clock,
//! which the furthest state of any server says is not its session's; except where somebody took it
//! away by an act (destroyed the session, deleted the key, restored a backup), until the guard has
//! heard of that. It is looked at after every entry and after every event of a guard, also while
//! its process stands still.

use super::agent::Agent;
use super::clock::Clock;
use super::guard::{Act, Guard, GuardEvent, holder_in, holder_of};
use super::history::Past;
use super::invariant::AgentEvent;
use super::judge::Judge;
use super::marks::{Mark, Marks};
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input};
use lockmesh_client::holder::HolderRequest;
use lockmesh_client::shape::session::SessionEvent;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, NodeLeave};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::LossCause;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use std::collections::BTreeMap;
use std::time::Duration;

/// A local connection carries what is sent within this time.
const LOCAL_DELAY: Duration = Duration::from_micros(200);

/// A request of a guard's holder: the guard, the holder, the request.
type Caller = (usize, u64, HolderRequest);

/// The guards of one agent, and their calls under way.
#[derive(Debug)]
pub struct Guards {
    all: Vec<Guard>,
    /// Nobody hears the answers of some.
    calls: BTreeMap<CallToken, Option<Caller>>,
}

impl Guards {
    /// All of them begin to think.
    pub fn begin(stage: &mut Stage, agent: usize, clock: Clock) -> Self {
        Self { all: Guard::all(stage, agent, clock), calls: BTreeMap::new() }
    }

    /// The numbers of all.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        0..self.all.len()
    }

    /// Their host's clock goes on at another rate.
    pub fn set_clock(&mut self, clock: Clock) {
        self.all.iter_mut().for_each(|guard| guard.set_clock(clock));
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.all.iter()
    }

    /// Whether this call is one of theirs.
    pub fn called(&self, token: CallToken) -> bool {
        self.calls.contains_key(&token)
    }

    /// Their agent died: all their connections break.
    pub fn disconnect(&mut self, stage: &mut Stage, agent: usize) {
        for (guard, holder, request) in std::mem::take(&mut self.calls).into_values().flatten() {
            let event = GuardEvent::Hears(holder, request, None);
            stage.after(LOCAL_DELAY, Event::Guard(agent, guard, event));
        }
    }

    fn token_of(&self, caller: Caller) -> Option<CallToken> {
        self.calls.iter().find(|(_, other)| **other == Some(caller)).map(|(token, _)| *token)
    }
}

impl Agent {
    /// Something happens to a guard.
    fn guard_happens(&mut self, stage: &mut Stage, judge: &mut Judge, guard: usize, event: GuardEvent) {
        for act in self.guards.all[guard].happens(stage, judge, event) {
            stage.after(LOCAL_DELAY, Event::GuardAct(self.place, guard, Box::new(act)));
        }
    }

    /// What a guard wants has come to its agent.
    pub(super) fn guard_acts(&mut self, stage: &mut Stage, judge: &mut Judge, guard: usize, act: Act) {
        match act {
            Act::Call(holder, request, call) => {
                let token = self.next_token();
                self.guards.calls.insert(token, Some((guard, holder, request)));
                self.call_locally(stage, judge, token, call);
            }
            Act::Follow(holder, request, session, read) => {
                let token = self.next_token();
                self.guards.calls.insert(token, Some((guard, holder, request)));
                let wait = read.wait.unwrap_or_default();
                self.poll(stage, judge, token, (session, read.index, wait));
            }
            Act::Forget(call) => {
                let token = self.next_token();
                self.guards.calls.insert(token, None);
                self.call_locally(stage, judge, token, call);
            }
            Act::Cancel(holder, request) => {
                if let Some(token) = self.guards.token_of((guard, holder, request)) {
                    self.cancel_call(stage, judge, token);
                }
            }
            Act::CancelAll(last) => {
                let calls = self.guards.calls.iter();
                let own = calls.filter(|(_, caller)| {
                    caller.is_some_and(|(of, holder, _)| of == guard && holder <= last)
                });
                let own: Vec<CallToken> = own.map(|(token, _)| *token).collect();
                own.into_iter().for_each(|token| self.cancel_call(stage, judge, token));
            }
        }
    }

    fn cancel_call(&mut self, stage: &mut Stage, judge: &mut Judge, token: CallToken) {
        self.guards.calls.remove(&token);
        if self.poll_cancelled(stage, token) {
            return;
        }
        self.see(stage, judge, AgentEvent::Left { token });
        self.tell(stage, judge, Input::Cancel(token));
    }

    /// A guard's call was answered. Its connection may break while the answer is on its way, also
    /// when the storm is over: what it was granted unheard must not stay.
    pub(super) fn guard_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: Result<Answered, Unavailable>,
    ) {
        let Some((guard, holder, request)) = self.guards.calls.remove(&token).flatten() else { return };
        let is_heard = self.is_heard(stage, guard);
        if matches!(&answer, Ok(Answered::Acquired(_, Applied { reply: Reply::Granted { .. }, .. }))) {
            let input = if is_heard { Input::Heard(token) } else { Input::Cancel(token) };
            self.tell(stage, judge, input);
        }
        let event = GuardEvent::Hears(holder, request, is_heard.then(|| Box::new(answer)));
        let wait = stage.around(LOCAL_DELAY);
        stage.after(wait, Event::Guard(self.place, guard, event));
    }

    /// A guard's poll was answered.
    pub(super) fn guard_told(
        &mut self,
        stage: &mut Stage,
        token: CallToken,
        told: Result<SessionEvent, Unavailable>,
    ) {
        let Some((guard, holder, request)) = self.guards.calls.remove(&token).flatten() else { return };
        let event = match self.is_heard(stage, guard) {
            true => GuardEvent::IsTold(holder, request, Box::new(told)),
            false => GuardEvent::Hears(holder, request, None),
        };
        let wait = stage.around(LOCAL_DELAY);
        stage.after(wait, Event::Guard(self.place, guard, event));
    }

    fn is_heard(&self, stage: &mut Stage, guard: usize) -> bool {
        let is_content = stage.calm && self.guards.all[guard].is_served();
        is_content || !stage.draw.once_in(stage.plan.guards.unheard_once_in)
    }
}

/// Verdicts that took something from a guard that held it.
fn failed_guards(changes: &[Change], agents: &[Agent]) -> Marks {
    let mut marks = Marks::default();
    for change in changes {
        let Change::Loss(_, Some(loss)) = change else { continue };
        if let LossCause::GivenUp { .. } = &loss.cause {
            marks.hit(Mark::LossGivenUp);
        }
        let LossCause::NodeFailed { window, .. } = &loss.cause else { continue };
        if agents.iter().flat_map(|agent| agent.guards.iter()).any(|guard| guard.held_by(&loss.session)) {
            marks.hit(if *window == HealthWindow::Fast { Mark::GuardFailedFast } else { Mark::GuardFailed });
        }
    }
    marks
}

impl World {
    /// Something happens to a guard.
    pub(super) fn guard(&mut self, agent: usize, guard: usize, event: GuardEvent) {
        let is_fault = matches!(event, GuardEvent::Stop | GuardEvent::Kill);
        let dies = matches!(event, GuardEvent::Kill) && !self.stage.calm;
        let goes_on =
            matches!(event, GuardEvent::Resume) && self.agents[agent].guards.all[guard].stands_alone();
        if is_fault || goes_on {
            self.held.fault_at(agent, self.stage.now);
        }
        self.agents[agent].guard_happens(&mut self.stage, &mut self.judge, guard, event);
        if dies {
            self.bereave(agent);
        }
        self.judge_guards();
    }

    /// Whoever holds what this entry took away by an act hears of that later; what one gave back is
    /// noted.
    pub(super) fn note_for_guards(&mut self, index: LogIndex) {
        let Some(past) = self.judge.history.at(index).filter(|_| self.stage.plan.guards.per_agent > 0) else {
            return;
        };
        self.stage.marks.add(&failed_guards(&past.changes, &self.agents));
        if let Some(what) = self.misnamed_loss(&past.changes) {
            return self.judge.object("loss_reasons", what);
        }
        if is_forced_leave(past) {
            let ended: Vec<SessionId> = ended_sessions(&past.changes).collect();
            let index = past.index;
            // Only of a node that had failed: `force_leave` looks at that.
            for guard in self.agents.iter_mut().flat_map(|agent| &mut agent.guards.all) {
                ended.iter().for_each(|session| guard.revoked(&mut self.stage, index, (Some(session), None)));
            }
            return;
        }
        let victim = match past.proposal.as_ref().map(|proposal| &proposal.command) {
            _ if past.changes.contains(&Change::Cleared) => (None, None),
            Some(Command::Kv(KvCommand::DeleteCas(key, _))) => match self.holder_before(index, key) {
                Some(session) => (Some(session), Some(key.clone())),
                None => return,
            },
            Some(Command::DestroySession(session)) if self.stage.revoked.contains(session) => {
                (Some(*session), None)
            }
            Some(Command::Kv(KvCommand::Release(new, session))) => {
                let applied = past.reply.as_ref().map(|applied| &applied.reply);
                let takes_effect = matches!(applied, Some(Reply::Succeeded(true)));
                let guards = self.agents.iter_mut().flat_map(|agent| &mut agent.guards.all);
                guards.filter(|_| takes_effect).for_each(|guard| guard.gave_back(&new.key, session));
                return;
            }
            _ => return,
        };
        for guard in self.agents.iter_mut().flat_map(|agent| &mut agent.guards.all) {
            guard.revoked(&mut self.stage, past.index, (victim.0.as_ref(), victim.1.as_ref()));
        }
    }

    /// A loss whose reason is not what was done to the host of its guard: a silence is no
    /// destruction, and nothing is given up in which its guard believes.
    fn misnamed_loss(&self, changes: &[Change]) -> Option<String> {
        let guards: Vec<&Guard> = self.agents.iter().flat_map(|agent| agent.guards.iter()).collect();
        for change in changes {
            let Change::Loss(_, Some(loss)) = change else { continue };
            let session = &loss.session;
            let was_silenced = guards.iter().any(|guard| guard.was_silenced(session));
            match &loss.cause {
                LossCause::Destroyed if was_silenced && !self.stage.revoked.contains(session) => {
                    return Some(format!("{session} ended as destroyed, and its guard heard no renewal"));
                }
                LossCause::GivenUp { silent_for } if silent_for.is_zero() && loss.key_count > 0 => {
                    return Some(format!("{session} was given up after no silence"));
                }
                _ => {}
            }
        }
        None
    }

    fn holder_before(&self, index: LogIndex, key: &Key) -> Option<SessionId> {
        let before = self.judge.history.state_at(LogIndex(index.0 - 1))?;
        holder_in(&before, key).map(|(session, _)| session)
    }

    /// No guard believes in what is another's.
    pub(super) fn judge_guards(&mut self) {
        let guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        let beliefs = guards.filter_map(|guard| guard.belief(self.stage.now));
        let wrong = beliefs.filter(|belief| !belief.was_revoked).find_map(|belief| {
            let holder = holder_of(&self.judge, &belief.key).map(|(session, _)| session);
            (holder.as_ref() != Some(&belief.session)).then_some((belief, holder))
        });
        if let Some((belief, holder)) = wrong {
            let what =
                format!("{} believes that it holds {}, which {holder:?} does", belief.session, belief.key);
            self.judge.object("guards", what);
        }
    }
}

/// Whether this entry made a node leave that did not leave by itself.
fn is_forced_leave(past: &Past) -> bool {
    let command = past.proposal.as_ref().map(|proposal| &proposal.command);
    matches!(command, Some(Command::LeaveNode(NodeLeave { lease: None, .. })))
}

/// The sessions that ended by this.
fn ended_sessions(changes: &[Change]) -> impl Iterator<Item = SessionId> {
    changes.iter().filter_map(|change| match change {
        Change::Loss(_, Some(loss)) if loss.cause != LossCause::KeyDeleted => Some(loss.session),
        _ => None,
    })
}
