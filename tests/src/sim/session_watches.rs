//! Session watches of an agent: the real [`SessionWatch`], driven as the agent's own tasks drive
//! it, and the polls of guards that wait for session events.
//!
//! A session's first follower starts the watch, all others share it, and it continues for a while
//! after the last follower. All of it lives and pauses with the agent's process.

use super::agent::Agent;
use super::invariant::AgentEvent;
use super::judge::Judge;
use super::marks::Mark;
use super::stage::{Event, Stage};
use lockmesh_agent_core::handover::{GuardPoll, Handover, Promises, Situation, Step};
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, EndReason, Input, LocalCall};
use lockmesh_agent_core::session_events::{SessionEvent, SessionEvents, SessionView};
use lockmesh_agent_core::session_watch::{
    Found, Input as Told, LINGER, Orders, READ_WAIT, ReadOrder, SessionWatch,
};
use lockmesh_protocol::id::{LogIndex, NodeName, SessionId};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A timer of a watch.
#[derive(Clone, Copy, Debug)]
pub enum WatchTimer {
    /// The delay before the read with this number is over.
    Read(u64),
    /// The delay before the session is ended is over.
    End,
    /// A timer that the watch requested.
    Tick,
    /// The watch may have been without followers for long.
    Linger,
    /// The wait of a poll is over.
    PollEnds(CallToken),
}

/// The sessions that one agent follows.
#[derive(Debug, Default)]
pub struct SessionWatches {
    watched: BTreeMap<SessionId, Watched>,
    calls: BTreeMap<CallToken, WatchCall>,
    polls: BTreeMap<CallToken, Poll>,
    last_read: u64,
    /// `true` if the agent is terminating: polls no longer wait.
    is_stopping: bool,
    /// The start of the process.
    began: Time,
    /// Which guards rely on the announced restart of an earlier process, or of this one.
    handover: Handover,
    /// The call that ends the restart of the earlier process.
    ending: Option<CallToken>,
    has_taken_over: bool,
}

/// The file that passes the guards of one process to the next, in the agent's folder.
#[derive(Clone, Debug, Default)]
pub enum HandoverFile {
    /// There is none, as in a new folder.
    #[default]
    Absent,
    /// A restart was announced, and the process did not end cleanly.
    Announced,
    /// The process ended cleanly and left these guards, or took the last one's over.
    Left(BTreeMap<SessionId, Promises>),
}

#[derive(Debug)]
struct Watched {
    watch: SessionWatch,
    /// The last ordered read, with its number.
    read: (u64, ReadOrder),
    wakes_at: Option<Time>,
    /// The time since which the watch has no followers; `None` if it has some.
    unfollowed: Option<Time>,
}

/// A guard's poll.
#[derive(Clone, Copy, Debug)]
struct Poll {
    session: SessionId,
    /// The event behind which it waits; 0 for the present state.
    poll: GuardPoll,
    wait: Duration,
}

/// A read of a session: for a session's first poll, or for a watch.
#[derive(Clone, Debug)]
struct Reading {
    session: SessionId,
    began: Time,
    by: ReadBy,
}

#[derive(Clone, Debug)]
enum ReadBy {
    /// A poll, with the state of the lease at its start.
    Poll(CallToken, LeaseState),
    /// A watch: the number of its read.
    Watch(u64),
}

/// A pending call of a watch or of a poll.
#[derive(Clone, Debug)]
enum WatchCall {
    Read(Reading),
    /// The cause of a loss, after a read at this index found the session gone.
    Losses(Reading, LogIndex),
    End(SessionId),
}

impl SessionWatches {
    /// Returns the watches of a new process in this folder.
    pub(super) fn begin(began: Time, file: &HandoverFile) -> Self {
        let handover = match file {
            HandoverFile::Absent | HandoverFile::Announced => Handover::default(),
            HandoverFile::Left(guards) => Handover::of(guards.clone()),
        };
        Self { began, handover, ..Self::default() }
    }

    /// Returns what a clean end leaves to the next process.
    pub(super) fn for_successor(&self) -> HandoverFile {
        self.handover.for_successor().map_or(HandoverFile::Announced, HandoverFile::Left)
    }
}

impl Agent {
    /// Handles a guard's poll for the state of a session behind an index, within a time.
    pub(super) fn poll(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        (session, behind, wait): (SessionId, u64, Duration),
    ) {
        let poll = self.watches.handover.polled(session, behind);
        self.watches.polls.insert(token, Poll { session, poll, wait });
        if self.watches.watched.contains_key(&session) {
            return self.followed(stage, token);
        }
        let by = ReadBy::Poll(token, self.lease().clone());
        self.read_session(stage, judge, session, by, None);
    }

    /// Cancels a poll; returns `false` if the call was not a poll.
    pub(super) fn poll_cancelled(&mut self, stage: &mut Stage, token: CallToken) -> bool {
        let Some(poll) = self.watches.polls.remove(&token) else { return false };
        self.begin_linger(stage, poll.session);
        true
    }

    /// The agent is terminating: replies to all polls with the present state.
    pub(super) fn stop_watches(&mut self, stage: &mut Stage) {
        self.watches.is_stopping = true;
        let waiting: Vec<CallToken> = self.watches.polls.keys().copied().collect();
        waiting.into_iter().for_each(|token| self.answer_poll(stage, token));
    }

    /// Takes the guards of an earlier process over, as the agent's own task does it: ends its
    /// announced restart once they rely on this process, or lets it expire.
    pub(super) fn take_over(&mut self, stage: &mut Stage, judge: &mut Judge) {
        if self.watches.is_stopping || self.watches.has_taken_over || self.watches.ending.is_some() {
            return;
        }
        let situation = Situation {
            ran: stage.now.since(self.watches.began),
            is_new_agent: self.upstream.is_new_agent(),
            lease: self.upstream.registered_lease(),
        };
        match self.watches.handover.next_step(&situation) {
            Step::Done => self.leave_no_guards(),
            Step::End(command) => {
                let token = self.next_token();
                self.watches.ending = Some(token);
                self.call_locally(stage, judge, token, LocalCall::Propose(command));
            }
            Step::Wait => {}
        }
    }

    fn leave_no_guards(&mut self) {
        self.watches.has_taken_over = true;
        // The task is aborted before an announcement.
        if self.farewell.is_none() {
            self.handover_file = HandoverFile::Left(BTreeMap::new());
        }
    }

    /// Handles the reply to the end of a restart; returns `false` for any other call.
    pub(super) fn taken_over(
        &mut self,
        stage: &mut Stage,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        if self.watches.ending != Some(token) {
            return false;
        }
        self.watches.ending = None;
        if answer.is_ok() {
            stage.hit(Mark::RestartTakenOver);
            self.leave_no_guards();
        }
        true
    }

    /// The watch of a poll exists: the poll is answered, or waits.
    fn followed(&mut self, stage: &mut Stage, token: CallToken) {
        let Some(Poll { session, poll, wait }) = self.watches.polls.get(&token).copied() else { return };
        let is_stopping = self.watches.is_stopping;
        let Some(watched) = self.watches.watched.get_mut(&session) else { return };
        watched.unfollowed = None;
        if poll.behind == 0 || poll.behind != watched.watch.event().index || is_stopping {
            return self.answer_poll(stage, token);
        }
        self.session_timer(stage, wait, session, WatchTimer::PollEnds(token));
    }

    fn answer_poll(&mut self, stage: &mut Stage, token: CallToken) {
        let Some(poll) = self.watches.polls.get(&token) else { return };
        let session = poll.session;
        // A session whose first read is pending waits for that read.
        let Some(watched) = self.watches.watched.get(&session) else { return };
        let event = watched.watch.event().clone();
        self.tell_poll(stage, token, session, &event);
        self.begin_linger(stage, session);
    }

    fn tell_poll(&mut self, stage: &mut Stage, token: CallToken, session: SessionId, event: &SessionEvent) {
        let poll = self.watches.polls.remove(&token).map(|poll| poll.poll);
        let is_announced = self.lease().announced.is_some();
        let index = self.watches.handover.reported(session, event, is_announced, poll);
        let event = SessionEvent { index, ..event.clone() };
        let shape = lockmesh_agent::http::session_event(session, &event, self.boot_time(stage));
        self.guard_told(stage, token, Ok(shape));
    }

    fn session_timer(&self, stage: &mut Stage, wait: Duration, session: SessionId, timer: WatchTimer) {
        stage.after(wait, Event::SessionWatch(self.place, self.life, session, timer));
    }

    /// Lets a watch linger without a follower.
    fn begin_linger(&mut self, stage: &mut Stage, session: SessionId) {
        let is_followed = self.watches.polls.values().any(|poll| poll.session == session);
        if let Some(watched) = self.watches.watched.get_mut(&session).filter(|_| !is_followed) {
            watched.unfollowed = Some(stage.now);
            self.session_timer(stage, LINGER, session, WatchTimer::Linger);
        }
    }

    /// A timer fired.
    pub(super) fn session_timer_fired(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        (life, session): (u64, SessionId),
        timer: WatchTimer,
    ) {
        if life != self.life {
            return;
        }
        match timer {
            WatchTimer::PollEnds(token) => self.answer_poll(stage, token),
            WatchTimer::Tick => {
                if let Some(watched) = self.watches.watched.get_mut(&session) {
                    watched.wakes_at = None;
                }
                self.tell_watch(stage, judge, session, Told::Tick);
            }
            WatchTimer::Read(number) => {
                let read = self.watches.watched.get(&session).map(|watched| watched.read);
                if let Some((_, order)) = read.filter(|(newest, _)| *newest == number) {
                    let by = ReadBy::Watch(number);
                    self.read_session(stage, judge, session, by, order.behind);
                }
            }
            WatchTimer::End => {
                if self.watches.watched.contains_key(&session) {
                    stage.hit(Mark::SessionGivenUp);
                    // The agent ends it for its guards, which do not any more.
                    self.guards.note_end(stage.now, &session);
                    let call = LocalCall::EndSession { session, reason: EndReason::GivenUp(None) };
                    self.call_for_watch(stage, judge, WatchCall::End(session), call);
                }
            }
            WatchTimer::Linger => {
                let Some(watched) = self.watches.watched.get(&session) else { return };
                if watched.unfollowed.is_none_or(|since| stage.now.since(since) < LINGER) {
                    return;
                }
                match watched.watch.may_stop() {
                    true => self.forget_watch(stage, judge, session),
                    false => self.begin_linger(stage, session),
                }
            }
        }
    }

    fn forget_watch(&mut self, stage: &mut Stage, judge: &mut Judge, session: SessionId) {
        self.cancel_read(stage, judge, session);
        self.watches.watched.remove(&session);
    }

    /// Passes a new state of the node's lease to all watches.
    pub(super) fn tell_watches(&mut self, stage: &mut Stage, judge: &mut Judge) {
        let watched: Vec<SessionId> = self.watches.watched.keys().copied().collect();
        for session in watched {
            let lease = self.lease().clone();
            self.tell_watch(stage, judge, session, Told::Lease(lease));
        }
    }

    /// Passes an input to a watch, and carries out its orders.
    fn tell_watch(&mut self, stage: &mut Stage, judge: &mut Judge, session: SessionId, told: Told) {
        let now = self.boot_time(stage);
        let Some(watched) = self.watches.watched.get_mut(&session) else { return };
        let orders = watched.watch.handle(now, told);
        let (event, is_over) = (watched.watch.event().clone(), watched.watch.is_over());
        let news = self.watches.polls.iter().filter(|(_, poll)| poll.session == session);
        let news: Vec<CallToken> =
            news.filter(|(_, poll)| poll.poll.behind != event.index).map(|(token, _)| *token).collect();
        for token in news {
            self.tell_poll(stage, token, session, &event);
        }
        self.begin_linger(stage, session);
        if is_over {
            return self.forget_watch(stage, judge, session);
        }
        self.carry_out_orders(stage, judge, session, &orders);
        self.wake_watch_later(stage, session);
    }

    fn carry_out_orders(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        session: SessionId,
        orders: &Orders,
    ) {
        if let Some(order) = orders.read {
            self.cancel_read(stage, judge, session);
            self.watches.last_read += 1;
            let number = self.watches.last_read;
            if let Some(watched) = self.watches.watched.get_mut(&session) {
                watched.read = (number, order);
            }
            self.session_timer(stage, order.pause, session, WatchTimer::Read(number));
        }
        if let Some(pause) = orders.end {
            self.session_timer(stage, pause, session, WatchTimer::End);
        }
    }

    fn wake_watch_later(&mut self, stage: &mut Stage, session: SessionId) {
        let Some(watched) = self.watches.watched.get(&session) else { return };
        let Some(shown) = watched.watch.wakes_at() else { return };
        let at = self.when(stage, shown);
        let Some(watched) = self.watches.watched.get_mut(&session) else { return };
        if watched.wakes_at.is_none_or(|known| at < known) {
            watched.wakes_at = Some(at);
            self.session_timer(stage, at.since(stage.now), session, WatchTimer::Tick);
        }
    }

    /// Cancels the pending read of a watch.
    fn cancel_read(&mut self, stage: &mut Stage, judge: &mut Judge, session: SessionId) {
        let Some(watched) = self.watches.watched.get(&session) else { return };
        let (number, _) = watched.read;
        let is_it = |(_, call): &(&CallToken, &WatchCall)| call.is_read(number);
        let under_way = self.watches.calls.iter().find(is_it).map(|(token, _)| *token);
        if let Some(token) = under_way {
            self.watches.calls.remove(&token);
            self.see(stage, judge, AgentEvent::Left { token });
            self.handle_input(stage, judge, Input::Cancel(token));
        }
    }

    /// Reads a session from the leader; behind an index, when it changes.
    fn read_session(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        session: SessionId,
        by: ReadBy,
        behind: Option<LogIndex>,
    ) {
        let reading = Reading { session, began: self.boot_time(stage), by };
        let blocking = behind.map(|index| Blocking { index, wait: READ_WAIT });
        let query = Query::Session(session);
        let call = LocalCall::Read { query, consistency: Consistency::Default, blocking };
        self.call_for_watch(stage, judge, WatchCall::Read(reading), call);
    }

    fn call_for_watch(&mut self, stage: &mut Stage, judge: &mut Judge, why: WatchCall, call: LocalCall) {
        let token = self.next_token();
        self.watches.calls.insert(token, why);
        self.call_locally(stage, judge, token, call);
    }

    /// Handles the reply to a call of a watch; returns `false` for any other call.
    pub(super) fn watch_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        let Some(call) = self.watches.calls.remove(&token) else { return false };
        match call {
            WatchCall::End(session) => self.tell_watch(stage, judge, session, Told::Ended(answer.is_ok())),
            WatchCall::Losses(reading, index) => {
                let gone = SessionView::Gone("session not found".into());
                self.read_ended(stage, judge, reading, Ok((gone, index)));
            }
            WatchCall::Read(reading) => match rows(answer) {
                Ok(answer) => self.found(stage, judge, reading, &answer),
                Err(reason) => self.read_ended(stage, judge, reading, Err(reason)),
            },
        }
        true
    }

    fn found(&mut self, stage: &mut Stage, judge: &mut Judge, reading: Reading, answer: &Answer) {
        let node: NodeName = format!("n{}", self.place).as_str().into();
        match Found::of(answer, &node, self.upstream.lease().keeps_from) {
            Found::Here(view) => self.read_ended(stage, judge, reading, Ok((view, answer.index))),
            Found::OtherNode(node) => {
                judge.object("guards", format!("a session of agent {} belongs to {node}", self.place));
            }
            Found::Gone => {
                let (query, consistency) = (Query::Losses, Consistency::Default);
                let call = LocalCall::Read { query, consistency, blocking: None };
                self.call_for_watch(stage, judge, WatchCall::Losses(reading, answer.index), call);
            }
        }
    }

    /// Handles the outcome of a session read.
    fn read_ended(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        reading: Reading,
        found: Result<(SessionView, LogIndex), Unavailable>,
    ) {
        let Reading { session, began, by } = reading;
        match (by, found) {
            (ReadBy::Watch(_), found) => {
                self.tell_watch(stage, judge, session, Told::Read { began, found: found.ok() });
            }
            (ReadBy::Poll(token, _), Err(reason)) => {
                if self.watches.polls.remove(&token).is_some() {
                    self.guard_told(stage, token, Err(reason));
                }
            }
            (ReadBy::Poll(token, lease), Ok((view, index))) => {
                let events = SessionEvents::new(began, lease, self.boot_time(stage), view);
                if events.is_over() {
                    return self.tell_poll(stage, token, session, events.event());
                }
                self.begin_watch(stage, judge, session, (events, index));
                self.followed(stage, token);
            }
        }
    }

    /// Starts a watch, unless another poll has done so.
    fn begin_watch(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        session: SessionId,
        (events, index): (SessionEvents, LogIndex),
    ) {
        if self.watches.watched.contains_key(&session) {
            return;
        }
        let (watch, orders) = SessionWatch::new(events, index, stage.draw.bits());
        let read = (0, ReadOrder { pause: Duration::ZERO, behind: None });
        self.watches.watched.insert(session, Watched { watch, read, wakes_at: None, unfollowed: None });
        self.carry_out_orders(stage, judge, session, &orders);
        // The lease may have changed since the first read began.
        let lease = self.lease().clone();
        self.tell_watch(stage, judge, session, Told::Lease(lease));
    }
}

impl WatchCall {
    fn is_read(&self, number: u64) -> bool {
        matches!(self, Self::Read(Reading { by: ReadBy::Watch(read), .. })
            | Self::Losses(Reading { by: ReadBy::Watch(read), .. }, _) if *read == number)
    }
}

fn rows(answer: &Result<Answered, Unavailable>) -> Result<Answer, Unavailable> {
    match answer {
        Ok(Answered::Response(Response::Answer(answer))) => Ok(answer.clone()),
        Ok(Answered::Shared(answer)) => Ok((**answer).clone()),
        Ok(Answered::Response(Response::Unavailable(reason))) | Err(reason) => Err(reason.clone()),
        Ok(other) => unreachable!("not a reply to a read: {other:?}"),
    }
}
