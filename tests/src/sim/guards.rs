//! The guards of an agent: delivery of their calls, and the check of their beliefs.
//!
//! **Invariant:** no guard believes by its own clock that it holds a lock that, in the furthest
//! state of any server, is not its session's. The exception is a lock that another client's act
//! took away (a destroyed session, a deleted key, a restored backup), until the guard has learned
//! of it. This is checked after every entry and after every event of a guard, even while its
//! process is paused.
//!
//! **Invariant:** after the storm, a running guard recognizes a grant whose reply was lost in
//! silence within 5 s.

use super::agent::Agent;
use super::clock::Clock;
use super::draw::Draw;
use super::guard::{Act, Guard, GuardEvent, holder_in, holder_of};
use super::history::Past;
use super::invariant::AgentEvent;
use super::judge::Judge;
use super::marks::{Mark, Marks};
use super::stage::{Event, Stage};
use super::supervised::CommandEvent;
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, EndReason, Input, LocalCall};
use lockmesh_client::holder::HolderRequest;
use lockmesh_client::shape::session::SessionEvent;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, KvCommand, NodeLeave};
use lockmesh_protocol::id::{Key, LogIndex, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::node_command::NodeCommand;
use lockmesh_protocol::record::LossCause;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum time until a guard recognizes a grant whose reply was lost, while agent and quorum
/// answer: 5 s, by the slowest of the guards' clocks.
pub(super) const RECOGNITION_BOUND: Duration = Duration::from_millis(5_250);

/// Latency of a local connection.
const LOCAL_DELAY: Duration = Duration::from_micros(200);

/// The origin of a request: the guard, the holder, the request.
type Caller = (usize, u64, HolderRequest);

/// The guards of one agent, with their pending calls.
#[derive(Debug)]
pub struct Guards {
    all: Vec<Guard>,
    /// `None` for a call whose caller no longer waits.
    calls: BTreeMap<CallToken, Option<Caller>>,
    /// A random source of its own: runs without lost grants are unchanged.
    silence: Draw,
}

impl Guards {
    /// Starts all guards.
    pub fn begin(stage: &mut Stage, agent: usize, clock: Clock) -> Self {
        let silence = Draw::new(stage.draw.clone().bits());
        Self { all: Guard::all(stage, agent, clock), calls: BTreeMap::new(), silence }
    }

    /// Returns the numbers of all guards.
    pub fn numbers(&self) -> std::ops::Range<usize> {
        0..self.all.len()
    }

    /// Changes the rate of the host's clock.
    pub fn set_clock(&mut self, stage: &mut Stage, clock: Clock) {
        self.all.iter_mut().for_each(|guard| guard.set_clock(stage, clock));
    }

    /// Notes that an overlap of a guard's command was counted.
    pub(super) fn count_overlap(&mut self, guard: usize, command: u64) {
        self.all[guard].count_overlap(command);
    }

    /// Notes that the agent ends a session for its guards.
    pub(super) fn note_end(&mut self, now: Time, session: &SessionId) {
        self.all.iter_mut().for_each(|guard| guard.note_end(now, session));
    }

    /// Iterates over all guards.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.all.iter()
    }

    /// Returns `true` if a call belongs to a guard.
    pub fn called(&self, token: CallToken) -> bool {
        self.calls.contains_key(&token)
    }

    /// Breaks all connections, because the agent died.
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
    /// Delivers an event to a guard.
    fn guard_happens(&mut self, stage: &mut Stage, judge: &mut Judge, guard: usize, event: GuardEvent) {
        for act in self.guards.all[guard].happens(stage, judge, event) {
            stage.after(LOCAL_DELAY, Event::GuardAct(self.place, guard, Box::new(act)));
        }
    }

    /// Performs a guard's action at its agent.
    pub(super) fn guard_acts(&mut self, stage: &mut Stage, judge: &mut Judge, guard: usize, act: Act) {
        match act {
            Act::Call(holder, request, call) => {
                if let LocalCall::EndSession { session, reason: EndReason::Closed } = &call {
                    self.guards.all[guard].closed(*session);
                }
                let token = self.next_token();
                self.guards.calls.insert(token, Some((guard, holder, request)));
                let caller = stage.client();
                self.call_as(stage, judge, token, caller, call);
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
                let caller = stage.client();
                self.call_as(stage, judge, token, caller, call);
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
        self.handle_input(stage, judge, Input::Cancel(token));
    }

    /// Delivers the reply to a guard's call. The connection may break while the reply is on its
    /// way, even after the storm: an undelivered grant must not stay.
    pub(super) fn guard_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: Result<Answered, Unavailable>,
    ) {
        let Some((guard, holder, request)) = self.guards.calls.remove(&token).flatten() else { return };
        let is_heard = self.is_heard(stage, guard);
        if !is_heard || answer.is_err() {
            self.guards.all[guard].request_failed(stage.now);
        }
        if matches!(&answer, Ok(Answered::Acquired(_, Applied { reply: Reply::Granted { .. }, .. }))) {
            let input = if is_heard { Input::Heard(token) } else { Input::Cancel(token) };
            self.handle_input(stage, judge, input);
            if is_heard && self.is_silent(stage, guard) {
                return self.lose_in_silence(stage, (guard, holder, request));
            }
        }
        let event = GuardEvent::Hears(holder, request, is_heard.then(|| Box::new(answer)));
        let wait = stage.around(LOCAL_DELAY);
        stage.after(wait, Event::Guard(self.place, guard, event));
    }

    /// Delivers the reply to a guard's poll.
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

    /// Drops the reply to a guard's wait, and keeps the connection.
    fn lose_in_silence(&mut self, stage: &mut Stage, (guard, holder, request): Caller) {
        stage.hit(Mark::GrantWentSilent);
        self.guards.all[guard].was_granted_in_silence(holder, request);
        if stage.calm {
            let event = GuardEvent::Recognizes(holder, request);
            stage.after(RECOGNITION_BOUND, Event::Guard(self.place, guard, event));
        }
    }

    fn is_silent(&mut self, stage: &Stage, guard: usize) -> bool {
        let is_content = stage.calm && self.guards.all[guard].is_served();
        !is_content && self.guards.silence.once_in(stage.plan.guards.silent_once_in)
    }

    fn is_heard(&self, stage: &mut Stage, guard: usize) -> bool {
        let is_content = stage.calm && self.guards.all[guard].is_served();
        is_content || !stage.draw.once_in(stage.plan.guards.unheard_once_in)
    }
}

/// Returns the marks of verdicts that took something from a guard that held it.
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
    /// Delivers an event to a guard.
    pub(super) fn guard(&mut self, agent: usize, guard: usize, event: GuardEvent) {
        let is_strike = matches!(event, GuardEvent::Command(_, CommandEvent::Strike(_)));
        let is_fault = matches!(event, GuardEvent::Stop | GuardEvent::Kill) || is_strike;
        let goes_on =
            matches!(event, GuardEvent::Resume) && self.agents[agent].guards.all[guard].stands_alone();
        if is_fault || goes_on {
            self.held.fault_at(agent, self.stage.now);
        }
        self.agents[agent].guard_happens(&mut self.stage, &mut self.judge, guard, event);
        if self.agents[agent].guards.all[guard].has_died() {
            self.bereave(agent);
        }
        self.judge_guards();
        self.judge_commands();
    }

    /// Notes an applied entry for guards: a guard that lost something by another client's act
    /// learns of it later. A release by a guard's own session is noted too.
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
            // Only of a node that had failed: the `force_leave` invariant covers that.
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
            Some(
                Command::DestroySession(session) | Command::Restricted(NodeCommand::DestroySession(session)),
            ) if self.stage.revoked.contains(session) => (Some(*session), None),
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

    /// Returns a description of a loss whose cause does not match what was done to the guard's
    /// host. Silence must not be reported as destruction, and nothing may be given up that its
    /// guard believes in.
    fn misnamed_loss(&self, changes: &[Change]) -> Option<String> {
        let guards: Vec<&Guard> = self.agents.iter().flat_map(|agent| agent.guards.iter()).collect();
        for change in changes {
            let Change::Loss(_, Some(loss)) = change else { continue };
            let session = &loss.session;
            // An end that was asked for before the silence keeps its reason, however late it comes.
            let was_closed = guards.iter().any(|guard| guard.was_closed(session));
            let was_silenced = !was_closed && guards.iter().any(|guard| guard.was_silenced(session));
            match &loss.cause {
                LossCause::Destroyed if was_silenced && !self.stage.revoked.contains(session) => {
                    return Some(format!("{session} ended as destroyed, but its guard received no renewal"));
                }
                LossCause::GivenUp { silent_for } if silent_for.is_zero() && loss.key_count > 0 => {
                    return Some(format!("{session} was given up without a silence"));
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

    /// Checks that no guard believes in a lock that belongs to another.
    pub(super) fn judge_guards(&mut self) {
        let guards = self.agents.iter().flat_map(|agent| agent.guards.iter());
        let beliefs = guards.filter_map(|guard| guard.belief(self.stage.now));
        let wrong = beliefs.filter(|belief| !belief.was_revoked).find_map(|belief| {
            let holder = holder_of(&self.judge, &belief.key).map(|(session, _)| session);
            (holder.as_ref() != Some(&belief.session)).then_some((belief, holder))
        });
        if let Some((belief, holder)) = wrong {
            let what =
                format!("{} believes that it holds {}, but {holder:?} holds it", belief.session, belief.key);
            self.judge.object("guards", what);
        }
    }
}

/// Returns `true` if this entry made a node leave that did not leave of its own accord.
fn is_forced_leave(past: &Past) -> bool {
    let command = past.proposal.as_ref().map(|proposal| &proposal.command);
    matches!(command, Some(Command::LeaveNode(NodeLeave { lease: None, .. })))
}

/// Returns the sessions that ended with these changes.
fn ended_sessions(changes: &[Change]) -> impl Iterator<Item = SessionId> {
    changes.iter().filter_map(|change| match change {
        Change::Loss(_, Some(loss)) if loss.cause != LossCause::KeyDeleted => Some(loss.session),
        _ => None,
    })
}
