//! How something is acquired.
//!
//! Turn by turn: look whether it is what it should be and may be had, then ask for it; for a lock,
//! wait in its queue. Where there is no queue, whoever has to wait looks again in a blocking query.
//! An attempt that is given up or dropped leaves nothing held: what it may have been granted
//! without hearing of it is given back.

use super::goal::{Goal, Look};
use super::input::{Response, WaitLimit, Wanted};
use super::moment::Moment;
use super::outbox::{Event, Grant};
use super::session::Usable;
use super::watch::Watch;
use super::{Hold, HoldId, HoldStage, Holder, SessionUse, WATCH_TIMEOUT};
use crate::backoff::Backoff;
use crate::entry::Acquired;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use std::time::Duration;

/// How far contenders are spread at the end of a lock-delay.
const DELAY_SPREAD: Duration = Duration::from_millis(200);

/// How far contenders are spread after one of them was faster.
pub(super) const OVERTAKEN_SPREAD: Duration = Duration::from_millis(50);

/// How often an acquisition that waits for an earlier hold to be given back looks whether that is
/// done.
const GIVE_BACK_POLL: Duration = Duration::from_millis(50);

/// How long to wait out a lock-delay that the agent does not put into numbers, or where there is no
/// index to wait behind.
const UNTOLD_DELAY: Duration = Duration::from_secs(1);

/// The longest pause after a failure. The agent holds each request until a leader is known or its
/// hold timeout is over, so such a pause is rare; a lock that becomes free in it waits for its end.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An acquisition under way.
#[derive(Debug)]
pub(super) struct Attempt {
    wait_limit: WaitLimit,
    step: AttemptStep,
    /// How to look in the next turn.
    read: Read,
    /// How long this turn may wait in a queue.
    wait: Duration,
    /// Whether there was a session once: from then on transient errors are ridden out.
    is_prepared: bool,
    /// Whether the agent lets us wait in the lock's queue, as far as we know.
    has_queues: bool,
    /// Whether it may have been granted to the present session without our hearing of it.
    perhaps_granted: bool,
    /// Whether the present session has the key of its own that it needs.
    has_own_key: bool,
    backoff: Backoff,
}

/// What an attempt waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptStep {
    Pausing,
    AwaitingSession,
    TakingOwnKey,
    Looking,
    /// Since then, and in the queue for so long, if there is one.
    Asking(Moment, Option<Duration>),
    LookingAgain,
}

/// What one turn gave.
enum AttemptTurn {
    /// It is ours, under this fence.
    Granted(Option<u64>),
    /// Others have it; news come behind this index.
    Taken(u64),
    /// It is free but closed, for about this long.
    Closed(Duration),
    /// The whole wait in the queue was in vain.
    Waited,
    /// Somebody else changed it at the same moment.
    Overtaken,
}

impl Attempt {
    fn new(wait_limit: WaitLimit) -> Self {
        Self {
            wait_limit,
            step: AttemptStep::Pausing,
            read: Read::default(),
            wait: Duration::ZERO,
            is_prepared: false,
            has_queues: true,
            perhaps_granted: false,
            has_own_key: false,
            backoff: Backoff::new(Duration::from_millis(100), LONGEST_PAUSE),
        }
    }

    /// Whether anything may be in the agent's hands that has to be given back.
    pub(super) fn leaves_something(&self) -> bool {
        self.perhaps_granted || self.has_own_key
    }

    /// Whether it ever had what it needs to begin.
    pub(super) fn is_prepared(&self) -> bool {
        self.is_prepared
    }

    fn queue_for(&self) -> Option<Duration> {
        (self.has_queues && !self.wait.is_zero()).then_some(self.wait)
    }
}

impl Hold {
    pub(super) fn awaits_session(&self) -> bool {
        matches!(&self.stage, HoldStage::Acquiring(attempt) if attempt.step == AttemptStep::AwaitingSession)
    }

    fn attempt(&mut self) -> &mut Attempt {
        match &mut self.stage {
            HoldStage::Acquiring(attempt) => attempt,
            other => unreachable!("only an acquisition takes turns: {other:?}"),
        }
    }
}

impl Holder {
    pub(super) fn acquire(&mut self, id: HoldId, wanted: Wanted) {
        let Wanted { goal, wait_limit, watch_retries } = wanted;
        let mut hold = Hold {
            id,
            goal,
            watch_retries,
            session: String::new(),
            fence: None,
            stage: HoldStage::Acquiring(Attempt::new(wait_limit)),
            request: None,
            wakes_at: None,
            loss: None,
            is_awaited: true,
        };
        self.begin_turn(&mut hold);
        if !matches!(hold.stage, HoldStage::Over) {
            self.holds.insert(id, hold);
        }
    }

    /// One turn, which may take as long as the wait limit lasts, and then a pause.
    pub(super) fn begin_turn(&mut self, hold: &mut Hold) {
        let now = self.now;
        let attempt = hold.attempt();
        attempt.wait = attempt.wait_limit.left(now).min(WATCH_TIMEOUT);
        if self.is_being_given_back(&hold.goal) {
            // A release names the session only: one that arrives late would end the hold that is
            // acquired now.
            return self.pause(hold, GIVE_BACK_POLL, true);
        }
        match self.usable_session() {
            Usable::Alive(session) => self.go_on_with(hold, session),
            Usable::Coming => hold.attempt().step = AttemptStep::AwaitingSession,
            Usable::Suspended if hold.attempt().wait_limit == WaitLimit::Once => {
                self.turn_failed(hold, Error::SessionLost(Loss::NodeDeadline));
            }
            Usable::Suspended => self.await_resumption(hold),
            Usable::Lost(loss) => self.turn_failed(hold, Error::SessionLost(loss)),
        }
    }

    /// Goes on when the session can be believed in again, unless the wait limit is over before.
    fn await_resumption(&mut self, hold: &mut Hold) {
        let attempt = hold.attempt();
        attempt.step = AttemptStep::AwaitingSession;
        match attempt.wait_limit {
            WaitLimit::Until(limit) if limit <= self.now => self.give_up(hold, Ok(())),
            WaitLimit::Until(limit) => hold.wakes_at = Some(limit),
            WaitLimit::Endless | WaitLimit::Once => {}
        }
    }

    fn is_being_given_back(&self, goal: &Goal) -> bool {
        let gives_back =
            |hold: &Hold| matches!(hold.stage, HoldStage::GivingBack(_)) && hold.goal.name() == goal.name();
        self.holds.values().any(gives_back)
    }

    /// The session that it waits for could not be created, or was lost before it could be used.
    pub(super) fn session_failed(&mut self, hold: &mut Hold, error: Error) {
        hold.wakes_at = None;
        self.turn_failed(hold, error);
    }

    fn go_on_with(&mut self, hold: &mut Hold, session: String) {
        if hold.session != session {
            let attempt = hold.attempt();
            // What an earlier session may have been granted ended with it.
            (attempt.has_own_key, attempt.perhaps_granted) = (false, false);
            hold.session = session;
        }
        match hold.goal.own_key(&hold.session) {
            Some(request) if !hold.attempt().has_own_key => {
                hold.attempt().step = AttemptStep::TakingOwnKey;
                self.ask(hold, request);
            }
            _ => self.look(hold),
        }
    }

    fn look(&mut self, hold: &mut Hold) {
        let attempt = hold.attempt();
        attempt.is_prepared = true;
        attempt.step = AttemptStep::Looking;
        // An index is waited behind once: whatever comes after that asks for the present state.
        let read = std::mem::take(&mut attempt.read);
        let request = hold.goal.look(read);
        self.ask(hold, request);
    }

    pub(super) fn attempt_answered(&mut self, hold: &mut Hold, result: Result<Response, Error>) {
        let turn = match hold.attempt().step {
            AttemptStep::TakingOwnKey => return self.own_key_answered(hold, result),
            AttemptStep::Looking => match self.looked(hold, result) {
                Ok(Some(turn)) => Ok(turn),
                Ok(None) => return,
                Err(error) => Err(error),
            },
            AttemptStep::Asking(since, queue_for) => match self.asked(hold, result, since, queue_for) {
                Ok(Some(turn)) => Ok(turn),
                Ok(None) => return,
                Err(error) => Err(error),
            },
            AttemptStep::LookingAgain => result.map(Response::entries).map(|(entries, index)| {
                let is_taken = entries.first().is_some_and(|entry| entry.session.is_some());
                if is_taken { AttemptTurn::Taken(index) } else { AttemptTurn::Closed(UNTOLD_DELAY) }
            }),
            AttemptStep::Pausing | AttemptStep::AwaitingSession => unreachable!("nothing was asked"),
        };
        match turn {
            Ok(turn) => self.turn_gave(hold, turn),
            Err(error) => self.turn_failed(hold, error),
        }
    }

    fn own_key_answered(&mut self, hold: &mut Hold, result: Result<Response, Error>) {
        match result.map(Response::acquired) {
            Ok(Acquired::Granted { fence }) => {
                hold.attempt().has_own_key = true;
                hold.fence = fence;
                self.look(hold);
            }
            Ok(Acquired::Refused { .. }) => {
                let reason = "another session holds the contender's own key".into();
                self.turn_failed(hold, Error::Conflict { key: hold.goal.name().to_owned(), reason });
            }
            Err(error) => self.turn_failed(hold, error),
        }
    }

    /// Asks for it, where the look says that it may be had.
    fn looked(
        &mut self,
        hold: &mut Hold,
        result: Result<Response, Error>,
    ) -> Result<Option<AttemptTurn>, Error> {
        let (entries, index) = result?.entries();
        let queue_for = hold.attempt().queue_for();
        match hold.goal.judge_look(&hold.session, &entries, queue_for)? {
            Look::Mine => Ok(Some(AttemptTurn::Granted(hold.fence))),
            Look::Taken => Ok(Some(AttemptTurn::Taken(index))),
            Look::Free(request) => {
                let now = self.now;
                hold.attempt().step = AttemptStep::Asking(now, queue_for);
                self.ask(hold, request);
                Ok(None)
            }
        }
    }

    fn asked(
        &mut self,
        hold: &mut Hold,
        result: Result<Response, Error>,
        since: Moment,
        queue_for: Option<Duration>,
    ) -> Result<Option<AttemptTurn>, Error> {
        let (now, own_fence) = (self.now, hold.fence);
        let attempt = hold.attempt();
        // That this attempt did nothing says nothing of one before it.
        attempt.perhaps_granted = match &result {
            Ok(_) => false,
            Err(error) => attempt.perhaps_granted || !error.certainly_not_done(),
        };
        let turn = match (result?, queue_for) {
            (Response::Verdict(true), _) => AttemptTurn::Granted(own_fence),
            (Response::Verdict(false), _) => AttemptTurn::Overtaken,
            (response, queue_for) => match (response.acquired(), queue_for) {
                (Acquired::Granted { fence }, _) => AttemptTurn::Granted(fence),
                // Nearly the whole wait: the agent's clock and this one need not be in step.
                (Acquired::Refused { .. }, Some(wait)) if now.since(since) >= wait.mul_f64(0.9) => {
                    AttemptTurn::Waited
                }
                (Acquired::Refused { delay }, Some(_)) => {
                    // Refused long before the wait was over: an agent without queues answers at
                    // once.
                    attempt.has_queues = false;
                    AttemptTurn::Closed(delay.unwrap_or_default())
                }
                (Acquired::Refused { delay: Some(delay) }, None) => AttemptTurn::Closed(delay),
                (Acquired::Refused { delay: None }, None) => {
                    // Somebody was faster, or there is a delay that this agent does not tell: a
                    // look tells which.
                    attempt.step = AttemptStep::LookingAgain;
                    let request = hold.goal.look(Read::default());
                    self.ask(hold, request);
                    return Ok(None);
                }
            },
        };
        Ok(Some(turn))
    }

    fn turn_gave(&mut self, hold: &mut Hold, turn: AttemptTurn) {
        let now = self.now;
        let left = hold.attempt().wait_limit.left(now);
        let is_overtaken = matches!(turn, AttemptTurn::Overtaken);
        let pause = match turn {
            AttemptTurn::Granted(fence) if self.is_alive(&hold.session) => return self.granted(hold, fence),
            AttemptTurn::Granted(_) => {
                // A grant to a session that nobody believes in any more is none.
                hold.attempt().perhaps_granted = true;
                Duration::ZERO
            }
            AttemptTurn::Taken(index) => {
                let attempt = hold.attempt();
                attempt.backoff.succeeded();
                attempt.read = Read::default().newer_than(index, left.min(WATCH_TIMEOUT));
                // Without an index the next look does not block, and would be followed by another
                // at once.
                if index == 0 { UNTOLD_DELAY } else { Duration::ZERO }
            }
            AttemptTurn::Waited => {
                hold.attempt().backoff.succeeded();
                Duration::ZERO
            }
            AttemptTurn::Closed(delay) => delay + self.jitter.share(DELAY_SPREAD),
            AttemptTurn::Overtaken => self.jitter.share(OVERTAKEN_SPREAD),
        };
        self.pause(hold, pause, is_overtaken);
    }

    /// Goes on after a pause, unless the wait limit is over.
    fn pause(&mut self, hold: &mut Hold, pause: Duration, is_overtaken: bool) {
        let now = self.now;
        let attempt = hold.attempt();
        let left = attempt.wait_limit.left(now);
        let is_over = match attempt.wait_limit {
            // Somebody else's change is no reason to give up a single try: it may be free still.
            WaitLimit::Once => !is_overtaken,
            WaitLimit::Endless | WaitLimit::Until(_) => left.is_zero(),
        };
        if is_over {
            return self.give_up(hold, Ok(()));
        }
        attempt.step = AttemptStep::Pausing;
        // A single try has no time left from the start; its pause only gets it out of step.
        let pause = if attempt.wait_limit == WaitLimit::Once { pause } else { pause.min(left) };
        hold.wakes_at = Some(now + pause);
    }

    fn turn_failed(&mut self, hold: &mut Hold, error: Error) {
        let attempt = hold.attempt();
        // Before there was a session nothing has ever worked: that is told, and not waited out in
        // silence.
        let is_hopeless = !attempt.is_prepared || attempt.wait_limit == WaitLimit::Once;
        // A shared session is its keeper's, and others may hold under it.
        let is_replaced = (error.is_invalid_session() || matches!(error, Error::SessionLost(_)))
            && self.session_use == SessionUse::OneHold;
        if is_hopeless || !(is_replaced || error.is_transient()) {
            return self.give_up(hold, Err(error));
        }
        self.trying_again(hold, &error);
        if is_replaced {
            self.replace_session();
            let attempt = hold.attempt();
            (attempt.has_own_key, attempt.perhaps_granted) = (false, false);
        }
        let pause = hold.attempt().backoff.failed(&mut self.jitter);
        self.pause(hold, pause, false);
    }

    fn granted(&mut self, hold: &mut Hold, fence: Option<u64>) {
        hold.fence = fence;
        hold.stage = HoldStage::Held(Watch::default());
        // The watch begins at once: by now the lock may be gone again.
        hold.wakes_at = Some(self.now);
        let grant = Grant { session: hold.session.clone(), fence };
        self.outbox.events.push(Event::Acquired(hold.id, Ok(Some(grant))));
    }

    /// Nobody waits for it any more.
    pub(super) fn drop_attempt(&mut self, hold: &mut Hold) {
        self.cancel(hold.request.take());
        let attempt = hold.attempt();
        // What is under way may be done all the same.
        attempt.perhaps_granted |= matches!(attempt.step, AttemptStep::Asking(..));
        attempt.has_own_key |= attempt.step == AttemptStep::TakingOwnKey;
        self.give_up(hold, Ok(()));
    }
}
