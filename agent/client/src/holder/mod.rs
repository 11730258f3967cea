//! A session and what is held under it: the one pure value behind keepers and guards.
//!
//! ```text
//! Acquire ──▶ attempt: session ─▶ look ─▶ ask, wait in the queue ──▶ Event::Acquired
//!                 ▲                              │ refused, failed        │
//!                 └────────── pause ◀────────────┘                  watch: look again and again ──▶ Event::Lost
//! lease: renew ─▶ acknowledged ─▶ deadline, counted from the sending     │
//!    └ deadline passed, session gone ─▶ every hold is lost          Release, Drop ──▶ give back ──▶ Event::Released
//! node lease: the agent tells a deadline ─▶ passed: every hold is suspended ─▶ told anew ─▶ look ─▶ held again, or lost
//! ```
//!
//! It decides when a session is renewed and until when it is believed, how a lock or a slot is
//! acquired turn by turn, what a look at it means, what is tried again and when, and how it is
//! given back. The shell has the clock, the client and those who wait: it tells what happened,
//! carries out what comes back, and calls [`Holder::handle`] again when [`Holder::wakes_at`] says.
//! The simulator drives the same value.
//!
//! | file | is |
//! |---|---|
//! | `input.rs` | what it is told |
//! | `outbox.rs` | what it wants done |
//! | `mod.rs` | the turn: one input, and all that follows from it |
//! | `goal.rs`, `slots.rs` | what can be held, and all that differs between a lock and a slot; the list of a semaphore's holders |
//! | `lease.rs` | when to renew and when to stop believing |
//! | `node_lease.rs` | what the agent says of the node's lease, and until when that can be believed |
//! | `state.rs` | how something that is held stands |
//! | `session.rs` | the session: created, renewed, lost, destroyed |
//! | `attempt.rs` | how something is acquired |
//! | `watch.rs` | how a loss is found while the session lives |
//! | `give_back.rs` | how something is given back, and what may have been granted unheard |
//! | `moment.rs` | a point in time of the clock that deadlines rest on |
//!
//! **Invariants.** No hold is believed in after the deadline of its session, which is counted from
//! the *sending* of the renewal that was acknowledged, nor after the deadline of its node's lease;
//! deadlines are looked at before any answer is. What was suspended is believed in again only after
//! a look that began when the agent had vouched for the session anew. A hold ends once, with the
//! first reason that is found. What may have been granted is given back before it is forgotten, or
//! ends with its session. Nothing here waits, and nothing knows a clock, IO, a random source or
//! hash order.

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

/// How long one request waits for a lock, or for news of what is wanted or held.
const WATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// What a holder's session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionUse {
    /// One hold: it ends with that one, and another takes its place where it ends before anything
    /// is held.
    OneHold,
    /// Any number of holds, which it outlives.
    Shared,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Holder {
    options: SessionOptions,
    /// The window that the agent last gave to a session for which none was named.
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

/// What a request is for.
#[derive(Clone, Copy, Debug)]
enum RequestPurpose {
    Creation { sent: Moment, ttl: Duration },
    Renewal { sent: Moment },
    NodeLease,
    Ending(EndingId),
    Hold(HoldId),
}

/// Something that is acquired, held or given back.
#[derive(Debug)]
struct Hold {
    id: HoldId,
    goal: Goal,
    watch_retries: Option<u32>,
    /// The session that asks for it or holds it; empty before the first one.
    session: String,
    fence: Option<u64>,
    stage: HoldStage,
    /// The one request under way.
    request: Option<HolderRequest>,
    /// When it goes on, where no request is under way.
    wakes_at: Option<Moment>,
    loss: Option<Loss>,
    /// Whether somebody waits to be told what comes of the present stage.
    is_awaited: bool,
}

/// How far a hold has come.
#[derive(Debug)]
enum HoldStage {
    Acquiring(Attempt),
    Held(Watch),
    GivingBack(GiveBack),
    Over,
}

impl Holder {
    /// Holds nothing, and has no session yet. `seed` puts it out of step with others.
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

    /// The present session's id, once there is one.
    pub fn session(&self) -> Option<&str> {
        self.session.id()
    }

    /// How long the session is surely alive from `now` on, unless somebody ends it on purpose or a
    /// health check does.
    pub fn session_remaining(&self, now: Moment) -> Duration {
        self.session.remaining(now)
    }

    /// Why the session was lost, if it was.
    pub fn session_loss(&self) -> Option<&Loss> {
        self.session.loss()
    }

    /// How the session stands now.
    pub fn session_state(&self, now: Moment) -> GuardState {
        self.session.state(now)
    }

    /// How something that is or was held stands now.
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

    /// Why whoever has acquired something, and does not wait for better news, has to stop.
    pub fn reason_to_stop(&self, id: HoldId, now: Moment) -> Option<Loss> {
        match &self.holds.get(&id)?.stage {
            // Why it is gone is asked for.
            HoldStage::Held(watch) if watch.has_verdict() => self.loss(id).cloned(),
            HoldStage::Held(_) => self.state(id, now).reason_to_stop(),
            _ => self.loss(id).cloned(),
        }
    }

    /// How long something is surely held from `now` on, unless somebody ends it on purpose or a
    /// health check does.
    pub fn remaining(&self, id: HoldId, now: Moment) -> Duration {
        let believed = self.holds.get(&id).is_some_and(|hold| match &hold.stage {
            // A look that found it gone counts at once, though its reason is still asked for.
            HoldStage::Held(watch) => hold.loss.is_none() && watch.is_confirmed(),
            _ => false,
        });
        if believed { self.session.remaining(now) } else { Duration::ZERO }
    }

    /// Whether something is surely held.
    pub fn is_held(&self, id: HoldId, now: Moment) -> bool {
        !self.remaining(id, now).is_zero()
    }

    /// Why a hold was lost, if it was and was not given back since.
    pub fn loss(&self, id: HoldId) -> Option<&Loss> {
        self.holds.get(&id)?.loss.as_ref()
    }

    /// When [`Input::Tick`] must be told, if nothing else happens before.
    pub fn wakes_at(&self) -> Option<Moment> {
        let holds = self.holds.values().filter_map(|hold| hold.wakes_at);
        let endings = self.endings.values().filter_map(|ending| ending.wakes_at);
        holds.chain(endings).chain(self.session.wakes_at(self.now)).min()
    }

    /// Whether something is being given back or ended at present.
    pub fn is_tidying(&self) -> bool {
        let gives_back = |hold: &Hold| matches!(hold.stage, HoldStage::GivingBack(_));
        !self.endings.is_empty() || self.holds.values().any(gives_back)
    }

    /// Whether it was abandoned and everything has ended.
    pub fn is_done(&self) -> bool {
        self.is_abandoned && self.holds.is_empty() && self.endings.is_empty()
    }

    /// Takes one input, and puts all that follows from it into the outbox.
    pub fn handle(&mut self, now: Moment, input: Input, outbox: &mut Outbox) {
        std::mem::swap(&mut self.outbox, outbox);
        // Whoever calls may hand in an older time; what was due stays due.
        self.now = self.now.max(now);
        // An answer that comes after the deadline is too late: others may have been told already.
        self.look_at_deadline();
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
            // It was cancelled.
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

    /// Does one thing that is due; whether there was any.
    fn advance(&mut self) -> bool {
        let now = self.now;
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        // One at a time: each may change what else is due.
        if let Some(id) = self.holds.values().find(|hold| is_due(hold.wakes_at)).map(|hold| hold.id) {
            self.with_hold(id, |holder, hold| {
                hold.wakes_at = None;
                match hold.stage {
                    HoldStage::Acquiring(_) => holder.begin_turn(hold),
                    HoldStage::Held(_) => holder.look_at_hold(hold),
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
        self.look_at_deadline() || self.renew_if_due() || self.ask_for_node_lease() || self.end_if_abandoned()
    }

    /// Lets something happen to a hold, which is forgotten once it is over.
    fn with_hold(&mut self, id: HoldId, act: impl FnOnce(&mut Self, &mut Hold)) {
        // Taken out meanwhile: whoever goes through the holds must not find the one that is acted
        // on.
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
        // What was lost is in this stage too; its release says so.
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

    /// Sends the one request that a hold has under way.
    fn ask(&mut self, hold: &mut Hold, request: Request) {
        hold.wakes_at = None;
        hold.request = Some(self.send(RequestPurpose::Hold(hold.id), request));
    }

    /// Nobody waits for this answer any more.
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
