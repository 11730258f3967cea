//! Something that is being acquired, held or released.

use super::attempt::Attempt;
use super::context::{Context, RequestPurpose};
use super::give_back::GiveBack;
use super::goal::Goal;
use super::id::{HoldId, HolderRequest};
use super::input::{Acquisition, Response};
use super::moment::Moment;
use super::outbox::{Notice, Request};
use super::watch::Watch;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;

/// A lock or a slot of this session: its goal, its stage, and the request in flight.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) id: HoldId,
    pub(super) goal: Goal,
    pub(super) watch_retries: Option<u32>,
    /// The session that acquires or holds it; empty before the first one.
    pub(super) session: String,
    /// The fencing token of each lock.
    pub(super) fences: Vec<u64>,
    pub(super) stage: HoldStage,
    /// The request in flight, at most one.
    pub(super) request: Option<HolderRequest>,
    /// The read beside an acquire in flight, or its confirmation.
    pub(super) check: Option<HolderRequest>,
    /// The time of the next action.
    pub(super) wakes_at: Option<Moment>,
    pub(super) loss: Option<Loss>,
    /// Set while a caller waits for the result of the current stage.
    pub(super) is_awaited: bool,
    /// Set if its caller gave it up, or dropped it while a renewal was overdue: shortly before its
    /// deadline, say.
    pub(super) is_given_up: bool,
}

/// The stage of a hold.
#[derive(Debug)]
pub(super) enum HoldStage {
    Acquiring(Attempt),
    Held(Watch),
    GivingBack(GiveBack),
    Over,
}

impl Hold {
    pub(super) fn new(id: HoldId, wanted: Acquisition) -> Self {
        let stage = HoldStage::Acquiring(Attempt::new(wanted.wait_limit));
        Self { watch_retries: wanted.watch_retries, ..Self::with_stage(id, wanted.goal, stage) }
    }

    pub(super) fn with_stage(id: HoldId, goal: Goal, stage: HoldStage) -> Self {
        Self {
            id,
            goal,
            watch_retries: None,
            session: String::new(),
            fences: Vec::new(),
            stage,
            request: None,
            check: None,
            wakes_at: None,
            loss: None,
            is_awaited: true,
            is_given_up: false,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.stage, HoldStage::Held(_))
    }

    /// Processes the reply to its request.
    pub(super) fn answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        self.request = None;
        cx.cancel(self.check.take());
        match self.stage {
            HoldStage::Acquiring(_) => self.attempt_answered(result, cx),
            HoldStage::Held(_) => self.watch_answered(result, cx),
            HoldStage::GivingBack(_) => self.give_back_answered(result, cx),
            HoldStage::Over => {}
        }
    }

    /// Handles a caller that is gone.
    pub(super) fn abandon(&mut self, cx: &mut Context) {
        self.is_awaited = false;
        self.is_given_up |= cx.is_late();
        match self.stage {
            HoldStage::Acquiring(_) => self.drop_attempt(cx),
            HoldStage::Held(_) => self.give_back(cx),
            HoldStage::GivingBack(_) | HoldStage::Over => {}
        }
    }

    pub(super) fn release(&mut self, cx: &mut Context) {
        // A lost hold is in this stage too; its release reports the loss.
        if self.is_held() {
            self.is_awaited = true;
            self.give_back(cx);
        }
    }

    /// Sends its request; at most one is in flight.
    pub(super) fn send(&mut self, request: Request, cx: &mut Context) {
        self.request = Some(cx.send(RequestPurpose::Hold(self.id), request));
        self.wakes_at = self.overdue_at();
    }

    pub(super) fn cancel_request(&mut self, cx: &mut Context) {
        cx.cancel(self.request.take());
        cx.cancel(self.check.take());
    }

    /// Returns the time of the next action while a request is in flight.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        match &self.stage {
            HoldStage::Acquiring(attempt) => attempt.overdue_at(),
            HoldStage::GivingBack(giving_back) => giving_back.overdue_at(),
            HoldStage::Held(_) | HoldStage::Over => None,
        }
    }

    /// Performs the action that is due although a request is in flight.
    pub(super) fn overdue(&mut self, cx: &mut Context) {
        match &self.stage {
            HoldStage::Acquiring(attempt) if attempt.is_overdue(cx.now) => self.drop_attempt(cx),
            HoldStage::Acquiring(_) => self.check_grant(cx),
            HoldStage::GivingBack(_) => self.end_overdue(cx),
            HoldStage::Held(_) | HoldStage::Over => {}
        }
    }

    /// Returns the request that reads the current holders.
    pub(super) fn look_request(&self, read: Read) -> Request {
        self.goal.look(&self.session, &self.fences, read)
    }

    pub(super) fn log_retry(&self, error: &Error, cx: &mut Context) {
        cx.log(Notice::TryingAgain(self.goal.name(), error.to_string()));
    }
}
