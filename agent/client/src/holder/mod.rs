//! A session and its holds: the pure state machine behind keepers and guards.
//!
//! ```text
//! Acquire ──▶ attempt: session ─▶ look ─▶ ask, wait in the queue ──▶ Event::Acquired
//!                 ▲                              │ refused, failed       │
//!                 └────────── pause ◀────────────┘          watch: look repeatedly ──▶ Event::Lost
//! lease: renew ─▶ acknowledged ─▶ deadline, counted from the sending     │
//!    └ deadline passed, session gone ─▶ all holds are lost               │
//! node lease: deadline from the agent ─▶ passed: holds are suspended     │
//!    └ new deadline ─▶ look ─▶ held again, or lost                       │
//!                           Release, Drop ──▶ give back ──▶ Event::Released
//! ```
//!
//! It decides when to renew a session, how long the session counts as alive, and how to acquire a
//! lock or a slot in turns. It also evaluates reads, schedules retries, and releases holds. The
//! driver has the clock, the client and the waiting callers. It passes inputs in, carries out the
//! outputs, and calls [`Holder::handle`] again at [`Holder::wakes_at`]. The simulator drives the
//! same state machine.
//!
//! | file | contents |
//! |---|---|
//! | `input.rs` | inputs |
//! | `outbox.rs` | outputs: requests, events, log notices |
//! | `mod.rs` | the turn: one input, and everything that follows from it |
//! | `goal.rs`, `slots.rs` | the differences between locks and slots; the list of slot holders |
//! | `lease.rs` | the schedule of renewals and the session's deadline |
//! | `node_lease.rs` | the deadline of the node's lease, as reported by the agent |
//! | `state.rs` | the state of a hold |
//! | `session.rs` | the session: created, renewed, lost, destroyed |
//! | `attempt.rs` | acquiring |
//! | `watch.rs` | detecting a loss while the session is alive |
//! | `give_back.rs` | releasing holds and undelivered grants |
//! | `moment.rs` | an instant of the clock that deadlines rest on |
//!
//! **Invariants.** No hold counts as held after the deadline of its session, which is counted from
//! the *sending* of the acknowledged renewal, nor after the deadline of its node's lease. Deadlines
//! are checked before any reply is processed. A suspended hold counts as held again only after a
//! read that began once the agent had confirmed the session again. A hold ends once, with the first
//! reason that is found. A possible grant is released before it is forgotten, or ends with its
//! session. Nothing here waits, and nothing here uses a clock, I/O, a random source or hash order.

mod attempt;
mod give_back;
mod goal;
mod id;
mod input;
pub(crate) mod lease;
mod moment;
mod node_lease;
mod outbox;
mod session;
mod slots;
mod state;
mod watch;

pub use goal::{Goal, LockGoal, SEMAPHORE_FLAGS, SlotGoal};
pub use id::{HoldId, HolderRequest};
pub use input::{CreatedSession, Input, Response, WaitLimit, Wanted};
pub use moment::Moment;
pub use node_lease::{NodeLease, NodeLeaseState};
pub use outbox::{EndReason, Event, Grant, Notice, Outbox, Request, Write};
pub use slots::Slots;
pub use state::GuardState;

use crate::backoff::Jitter;
use crate::error::Error;
use crate::loss::Loss;
use crate::session_options::{HealthWindow, SessionOptions};
use attempt::Attempt;
use give_back::GiveBack;
use session::{Ending, EndingId, Session};
use std::collections::BTreeMap;
use std::time::Duration;
use watch::Watch;

/// The wait of one request for a lock, or for a change of a watched key.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// The use of a holder's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionUse {
    /// One hold, with which the session ends. A session that ends before anything is held is
    /// replaced.
    OneHold,
    /// Any number of holds; the session outlives them.
    Shared,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Holder {
    options: SessionOptions,
    /// The window that the agent last assigned to a session without an explicit one.
    default_window: Option<HealthWindow>,
    session_use: SessionUse,
    now: Moment,
    outbox: Outbox,
    jitter: Jitter,
    session: Session,
    endings: BTreeMap<EndingId, Ending>,
    last_ending: u64,
    holds: BTreeMap<HoldId, Hold>,
    requests: BTreeMap<HolderRequest, RequestPurpose>,
    last_request: u64,
    is_abandoned: bool,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug)]
enum RequestPurpose {
    Creation { sent: Moment, ttl: Duration },
    Renewal { sent: Moment },
    NodeLease,
    Ending(EndingId),
    Hold(HoldId),
}

/// Something that is being acquired, held or released.
#[derive(Debug)]
struct Hold {
    id: HoldId,
    goal: Goal,
    watch_retries: Option<u32>,
    /// The session that acquires or holds it; empty before the first one.
    session: String,
    fence: Option<u64>,
    stage: HoldStage,
    /// The request in flight, at most one.
    request: Option<HolderRequest>,
    /// The time of the next action, if no request is in flight.
    wakes_at: Option<Moment>,
    loss: Option<Loss>,
    /// Set while a caller waits for the result of the current stage.
    is_awaited: bool,
}

/// The stage of a hold.
#[derive(Debug)]
enum HoldStage {
    Acquiring(Attempt),
    Held(Watch),
    GivingBack(GiveBack),
    Over,
}

impl Holder {
    /// Creates a holder without holds or a session. `seed` randomizes jitter.
    pub fn new(options: SessionOptions, session_use: SessionUse, seed: u64) -> Self {
        Self {
            options,
            default_window: None,
            session_use,
            now: Moment::default(),
            outbox: Outbox::default(),
            jitter: Jitter::new(seed),
            session: Session::default(),
            endings: BTreeMap::new(),
            last_ending: 0,
            holds: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            is_abandoned: false,
        }
    }

    /// Returns the id of the current session, if there is one.
    pub fn session(&self) -> Option<&str> {
        self.session.id()
    }

    /// Returns the time for which the session is guaranteed to be alive from `now` on, unless an
    /// operator or a health check ends it.
    pub fn session_remaining(&self, now: Moment) -> Duration {
        self.session.remaining(now)
    }

    /// Returns the reason for the loss of the session, if it was lost.
    pub fn session_loss(&self) -> Option<&Loss> {
        self.session.loss()
    }

    /// Returns the state of the session.
    pub fn session_state(&self, now: Moment) -> GuardState {
        self.session.state(now)
    }

    /// Returns the state of a current or former hold.
    pub fn state(&self, id: HoldId, now: Moment) -> GuardState {
        match self.holds.get(&id) {
            Some(Hold { loss: Some(loss), .. }) => GuardState::Lost(loss.clone()),
            Some(Hold { stage: HoldStage::Held(watch), .. }) if watch.is_confirmed() => {
                self.session.state(now)
            }
            Some(Hold { stage: HoldStage::Held(_), .. }) => GuardState::Suspended,
            _ => GuardState::Lost(Loss::Closed),
        }
    }

    /// Returns the reason to stop for a caller that does not wait out a suspension.
    pub fn reason_to_stop(&self, id: HoldId, now: Moment) -> Option<Loss> {
        match &self.holds.get(&id)?.stage {
            // The reason for the loss is still being queried.
            HoldStage::Held(watch) if watch.has_verdict() => self.loss(id).cloned(),
            HoldStage::Held(_) => self.state(id, now).reason_to_stop(),
            _ => self.loss(id).cloned(),
        }
    }

    /// Returns the time for which the hold is guaranteed from `now` on, unless an operator or a
    /// health check ends it.
    pub fn remaining(&self, id: HoldId, now: Moment) -> Duration {
        let believed = self.holds.get(&id).is_some_and(|hold| match &hold.stage {
            // A read that found it gone counts at once, although its reason is still being queried.
            HoldStage::Held(watch) => hold.loss.is_none() && watch.is_confirmed(),
            _ => false,
        });
        if believed { self.session.remaining(now) } else { Duration::ZERO }
    }

    /// Returns `true` if the hold is guaranteed.
    pub fn is_held(&self, id: HoldId, now: Moment) -> bool {
        !self.remaining(id, now).is_zero()
    }

    /// Returns the reason for the loss of a hold, if it was lost and has not been released since.
    pub fn loss(&self, id: HoldId) -> Option<&Loss> {
        self.holds.get(&id)?.loss.as_ref()
    }

    /// Returns the time when [`Input::Tick`] is due, unless another input comes first.
    pub fn wakes_at(&self) -> Option<Moment> {
        let holds = self.holds.values().filter_map(|hold| hold.wakes_at);
        let endings = self.endings.values().filter_map(|ending| ending.wakes_at);
        holds.chain(endings).chain(self.session.wakes_at(self.now)).min()
    }

    /// Returns `true` while something is being released or ended.
    pub fn is_tidying(&self) -> bool {
        let gives_back = |hold: &Hold| matches!(hold.stage, HoldStage::GivingBack(_));
        !self.endings.is_empty() || self.holds.values().any(gives_back)
    }

    /// Returns `true` if the holder was abandoned and everything has ended.
    pub fn is_done(&self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.endings.is_empty()
    }

    /// Processes one input, and appends all resulting actions to the outbox.
    pub fn handle(&mut self, now: Moment, input: Input, outbox: &mut Outbox) {
        std::mem::swap(&mut self.outbox, outbox);
        // The caller may pass an older time; past timers stay due.
        self.now = self.now.max(now);
        // A reply after the deadline is too late: the lock may have been granted to others already.
        self.check_deadline();
        self.take(input);
        while self.advance() {}
        std::mem::swap(&mut self.outbox, outbox);
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Keep => self.create_session(),
            Input::Acquire(id, wanted) => self.acquire(id, wanted),
            Input::Written(id, value) => {
                if let Some(Goal::Lock(lock)) = self.holds.get_mut(&id).map(|hold| &mut hold.goal) {
                    lock.value = value;
                }
            }
            Input::Release(id) => self.with_hold(id, |holder, hold| holder.release(hold)),
            Input::Drop(id) => self.with_hold(id, Self::drop_hold),
            Input::Close => self.close(),
            Input::Abandon => self.abandon(),
            Input::Answered(number, result) => self.answered(number, result),
            Input::Tick => {}
        }
    }

    fn answered(&mut self, number: HolderRequest, result: Result<Response, Error>) {
        match self.requests.remove(&number) {
            // Cancelled.
            None => {}
            Some(RequestPurpose::Creation { sent, ttl }) => {
                self.session_created((sent, ttl), result.map(Response::created));
            }
            Some(RequestPurpose::Renewal { sent }) => self.renewed(sent, result.map(Response::found)),
            Some(RequestPurpose::NodeLease) => self.node_lease_told(result.map(Response::node_lease)),
            Some(RequestPurpose::Ending(ending)) => self.ending_answered(ending, result.map(|_| ())),
            Some(RequestPurpose::Hold(id)) => self.with_hold(id, |holder, hold| {
                hold.request = None;
                match hold.stage {
                    HoldStage::Acquiring(_) => holder.attempt_answered(hold, result),
                    HoldStage::Held(_) => holder.watch_answered(hold, result),
                    HoldStage::GivingBack(_) => holder.give_back_answered(hold, result),
                    HoldStage::Over => {}
                }
            }),
        }
    }

    /// Performs one due action; returns `true` if there was one.
    fn advance(&mut self) -> bool {
        let now = self.now;
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        // One at a time: each may change the other due actions.
        if let Some(id) = self.holds.values().find(|hold| is_due(hold.wakes_at)).map(|hold| hold.id) {
            self.with_hold(id, |holder, hold| {
                hold.wakes_at = None;
                match hold.stage {
                    HoldStage::Acquiring(_) => holder.begin_turn(hold),
                    HoldStage::Held(_) => holder.check_hold(hold),
                    HoldStage::GivingBack(_) => holder.give_back_again(hold),
                    HoldStage::Over => {}
                }
            });
            return true;
        }
        let ending = self.endings.iter().find(|(_, ending)| is_due(ending.wakes_at)).map(|(id, _)| *id);
        if let Some(ending) = ending {
            self.destroy_again(ending);
            return true;
        }
        self.check_deadline() || self.renew_if_due() || self.ask_for_node_lease() || self.end_if_abandoned()
    }

    /// Runs `act` on a hold, and forgets the hold once it is over.
    fn with_hold(&mut self, id: HoldId, act: impl FnOnce(&mut Self, &mut Hold)) {
        // Removed meanwhile: iterations over the holds must not find the one in use.
        let Some(mut hold) = self.holds.remove(&id) else { return };
        act(self, &mut hold);
        if !matches!(hold.stage, HoldStage::Over) {
            self.holds.insert(id, hold);
        }
    }

    fn drop_hold(&mut self, hold: &mut Hold) {
        hold.is_awaited = false;
        match hold.stage {
            HoldStage::Acquiring(_) => self.drop_attempt(hold),
            HoldStage::Held(_) => self.give_back(hold),
            HoldStage::GivingBack(_) | HoldStage::Over => {}
        }
    }

    fn release(&mut self, hold: &mut Hold) {
        // A lost hold is in this stage too; its release reports the loss.
        if let HoldStage::Held(_) = hold.stage {
            hold.is_awaited = true;
            self.give_back(hold);
        }
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        let ids: Vec<HoldId> = self.holds.keys().copied().collect();
        ids.into_iter().for_each(|id| self.with_hold(id, Self::drop_hold));
    }

    fn send(&mut self, purpose: RequestPurpose, request: Request) -> HolderRequest {
        self.last_request += 1;
        let number = HolderRequest(self.last_request);
        self.requests.insert(number, purpose);
        self.outbox.requests.push((number, request));
        number
    }

    /// Sends a hold's request; at most one is in flight.
    fn ask(&mut self, hold: &mut Hold, request: Request) {
        hold.wakes_at = None;
        hold.request = Some(self.send(RequestPurpose::Hold(hold.id), request));
    }

    /// Cancels a request whose reply is no longer needed.
    fn cancel(&mut self, number: Option<HolderRequest>) {
        if let Some(number) = number
            && self.requests.remove(&number).is_some()
        {
            self.outbox.cancelled.push(number);
        }
    }

    fn trying_again(&mut self, hold: &Hold, error: &Error) {
        self.outbox.notices.push(Notice::TryingAgain(hold.goal.name().to_owned(), error.to_string()));
    }
}
