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
//!                 Release, Drop, GiveBack ──▶ give back ──▶ Event::Released
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
//! | `context.rs` | the state that all holds share |
//! | `session.rs` | the session: created, renewed, confirmed, lost |
//! | `session_change.rs` | the consequences of a change of the session for its holds |
//! | `endings.rs` | the ends of sessions, until they are acknowledged |
//! | `state.rs` | the state of a hold |
//! | `hold.rs` | a hold, and its stage |
//! | `attempt.rs` | acquiring |
//! | `grant_check.rs` | recognizing a grant whose reply was lost in silence |
//! | `watch.rs` | detecting a loss while the session is alive |
//! | `give_back.rs` | releasing holds, undelivered grants, and holds of dead processes |
//! | `moment.rs` | an instant of the clock that deadlines rest on |
//!
//! **Invariants.** No hold counts as held after the deadline of its session, which is counted from
//! the *sending* of the acknowledged renewal, nor after the deadline of its node's lease. Deadlines
//! are checked before any reply is processed. A suspended hold counts as held again only after a
//! read that began once the agent had confirmed the session again. A hold ends once, with the first
//! reason that is found. A possible grant is released before it is forgotten, or ends with its
//! session. Nothing here waits, and nothing here uses a clock, I/O, a random source or hash order.

mod attempt;
mod context;
mod endings;
mod give_back;
mod goal;
mod grant_check;
mod hold;
mod id;
mod input;
pub(crate) mod lease;
mod moment;
mod node_lease;
mod outbox;
mod session;
mod session_change;
mod slots;
mod state;
mod watch;

pub use goal::{Goal, LockGoal, SEMAPHORE_FLAGS, SlotGoal};
pub use grant_check::MAX_STALENESS;
pub use id::{HoldId, HolderRequest};
pub use input::{Acquisition, CreatedSession, Input, Response, WaitLimit};
pub use moment::Moment;
pub use node_lease::{NodeLease, NodeLeaseState, UnknownState};
pub use outbox::{EndReason, Event, Grant, KeysRead, Notice, Outbox, Request, Write};
pub use slots::Slots;
pub use state::GuardState;

use crate::error::Error;
use crate::loss::Loss;
use crate::session_options::SessionOptions;
use context::{Context, RequestPurpose};
use hold::{Hold, HoldStage};
use std::collections::BTreeMap;
use std::time::Duration;

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

/// A session with its holds, without clock and connection.
#[derive(Debug)]
pub struct Holder {
    cx: Context,
    holds: BTreeMap<HoldId, Hold>,
    is_abandoned: bool,
}

impl Holder {
    /// Creates a holder without holds or a session. `seed` randomizes jitter.
    pub fn new(options: SessionOptions, session_use: SessionUse, seed: u64) -> Self {
        let cx = Context::new(options, session_use, seed);
        Self { cx, holds: BTreeMap::new(), is_abandoned: false }
    }

    /// Returns the id of the current session, if there is one.
    pub fn session(&self) -> Option<&str> {
        self.cx.session.id()
    }

    /// Returns the time for which the session is guaranteed to be alive from `now` on, unless an
    /// operator or a health check ends it.
    pub fn session_remaining(&self, now: Moment) -> Duration {
        self.cx.session.remaining(now)
    }

    /// Returns the reason for the loss of the session, if it was lost.
    pub fn session_loss(&self) -> Option<&Loss> {
        self.cx.session.loss()
    }

    /// Returns the state of the session.
    pub fn session_state(&self, now: Moment) -> GuardState {
        self.cx.session.state(now)
    }

    /// Returns the state of a current or former hold.
    pub fn state(&self, id: HoldId, now: Moment) -> GuardState {
        match self.holds.get(&id) {
            Some(Hold { loss: Some(loss), .. }) => GuardState::Lost(loss.clone()),
            Some(Hold { stage: HoldStage::Held(watch), .. }) if watch.is_confirmed() => {
                self.cx.session.state(now)
            }
            Some(Hold { stage: HoldStage::Held(_), .. }) => GuardState::Suspended,
            _ => GuardState::Lost(Loss::Closed),
        }
    }

    /// Returns the state of a hold; `None` while a read that found it gone waits for the reason.
    pub fn explained_state(&self, id: HoldId, now: Moment) -> Option<GuardState> {
        let state = self.state(id, now);
        let is_unexplained = state == GuardState::Suspended && self.reason_to_stop(id, now).is_none();
        (!is_unexplained).then_some(state)
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
        if believed { self.cx.session.remaining(now) } else { Duration::ZERO }
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
        holds.chain(self.cx.endings.wakes_at()).chain(self.cx.session.wakes_at(self.cx.now)).min()
    }

    /// Returns `true` while something is being released or ended.
    pub fn is_tidying(&self) -> bool {
        let gives_back = |hold: &Hold| matches!(hold.stage, HoldStage::GivingBack(_));
        !self.cx.endings.is_empty() || self.holds.values().any(gives_back)
    }

    /// Returns `true` if the holder was abandoned and everything has ended.
    pub fn is_done(&self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.cx.endings.is_empty()
    }

    /// Processes one input, and appends all resulting actions to the outbox.
    pub fn handle(&mut self, now: Moment, input: Input, outbox: &mut Outbox) {
        std::mem::swap(&mut self.cx.outbox, outbox);
        // The caller may pass an older time; past timers stay due.
        self.cx.now = self.cx.now.max(now);
        // A reply after the deadline is too late: the lock may have been granted to others already.
        self.check_deadline();
        self.handle_input(input);
        while self.advance() {}
        std::mem::swap(&mut self.cx.outbox, outbox);
    }

    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Keep => self.cx.create_session(),
            Input::Acquire(id, wanted) => {
                self.holds.insert(id, Hold::new(id, wanted));
                self.begin_turn(id);
            }
            Input::Written(id, value) => match self.holds.get_mut(&id).map(|hold| &mut hold.goal) {
                Some(Goal::Lock(lock)) => lock.value = value,
                Some(Goal::Locks(locks)) => {
                    locks.iter_mut().for_each(|lock| lock.value = value.clone());
                }
                Some(Goal::Slot(_)) | None => {}
            },
            Input::Release(id) => self.with_hold(id, Hold::release),
            Input::GiveBack(id, goal, session) => {
                self.holds.insert(id, Hold::left_behind(id, goal, session, &mut self.cx));
            }
            Input::Drop(id) => self.with_hold(id, Hold::abandon),
            Input::GiveUp(id) => self.with_hold(id, |hold, cx| {
                hold.is_given_up = hold.loss.is_none();
                hold.abandon(cx);
            }),
            Input::Close => self.close(),
            Input::Abandon => self.abandon(),
            Input::Answered(number, result) => self.answered(number, result),
            Input::Tick => {}
        }
    }

    fn answered(&mut self, number: HolderRequest, result: Result<Response, Error>) {
        let change = match self.cx.complete(number) {
            // Cancelled.
            None => None,
            Some(RequestPurpose::Creation { sent, ttl }) => {
                return self.session_created((sent, ttl), result.map(Response::created));
            }
            Some(RequestPurpose::Renewal { sent }) => self.cx.renewed(sent, result.map(Response::found)),
            Some(RequestPurpose::NodeLease) => self.cx.node_lease_reported(result.map(Response::node_lease)),
            Some(RequestPurpose::Ending(ending)) => {
                if let Some((id, result)) = self.cx.ending_answered(ending, result.map(|_| ())) {
                    self.with_hold(id, |hold, cx| hold.given_back(Some(result), cx));
                }
                None
            }
            Some(RequestPurpose::GrantCheck(id)) => {
                self.with_hold(id, |hold, cx| hold.grant_check_answered(result, cx));
                None
            }
            Some(RequestPurpose::Hold(id)) => {
                self.with_hold(id, |hold, cx| hold.answered(result, cx));
                None
            }
        };
        if let Some(change) = change {
            self.session_changed(change);
        }
    }

    /// Performs one due action; returns `true` if there was one.
    fn advance(&mut self) -> bool {
        let now = self.cx.now;
        // One at a time: each may change the other due actions.
        let due = self.holds.values().find(|hold| hold.wakes_at.is_some_and(|at| at <= now));
        if let Some(id) = due.map(|hold| hold.id) {
            self.wake(id);
            return true;
        }
        self.cx.end_again_if_due()
            || self.check_deadline()
            || self.cx.renew_if_due()
            || self.cx.query_node_lease_if_due()
            || self.end_if_abandoned()
    }

    /// Performs the due action of a hold.
    fn wake(&mut self, id: HoldId) {
        let Some(hold) = self.holds.get_mut(&id) else { return };
        hold.wakes_at = None;
        match hold.stage {
            _ if hold.request.is_some() => self.with_hold(id, Hold::overdue),
            HoldStage::Acquiring(_) => self.begin_turn(id),
            HoldStage::Held(_) => self.with_hold(id, Hold::check),
            HoldStage::GivingBack(_) => self.with_hold(id, Hold::give_back_again),
            HoldStage::Over => {}
        }
    }

    /// Begins a turn of an acquisition.
    fn begin_turn(&mut self, id: HoldId) {
        let Some(hold) = self.holds.get(&id) else { return };
        let is_same = |other: &Hold| other.goal.overlaps(&hold.goal);
        let gives_back = |other: &Hold| matches!(other.stage, HoldStage::GivingBack(_));
        let is_being_given_back = self.holds.values().any(|other| gives_back(other) && is_same(other));
        self.with_hold(id, |hold, cx| hold.begin_turn(is_being_given_back, cx));
    }

    /// Runs `act` on a hold, and forgets the hold once it is over.
    fn with_hold(&mut self, id: HoldId, act: impl FnOnce(&mut Hold, &mut Context)) {
        let Some(hold) = self.holds.get_mut(&id) else { return };
        act(hold, &mut self.cx);
        if matches!(hold.stage, HoldStage::Over) {
            self.holds.remove(&id);
        }
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
        let ids: Vec<HoldId> = self.holds.keys().copied().collect();
        ids.into_iter().for_each(|id| self.with_hold(id, Hold::abandon));
    }
}
