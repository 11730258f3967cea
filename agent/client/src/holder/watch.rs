//! Detecting a loss while the session is alive.
//!
//! A consistent blocking query on the key or the list of holders detects a deletion, a release and
//! another holder. After such a read the hold no longer counts as held, even while the holder
//! queries if the session's end was the reason.

use super::WATCH_TIMEOUT;
use super::context::Context;
use super::goal::Goal;
use super::hold::{Hold, HoldStage};
use super::input::Response;
use super::outbox::{Event, Request};
use crate::backoff::Backoff;
use crate::entry::Entry;
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use std::time::Duration;

/// The delay between retries if the caller counts them, and if there is no index for a blocking
/// query.
const COUNTED_RETRY: Duration = Duration::from_secs(1);

/// The maximum delay of the report of a loss, while a more precise reason is queried.
pub(super) const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The watch of a hold.
#[derive(Debug)]
pub(super) struct Watch {
    /// The index for the next blocking query.
    index: u64,
    /// The number of consecutive failed reads.
    failures: u32,
    backoff: Backoff,
    /// The result of a read, while the end of the session and its cause are queried.
    verdict: Option<Loss>,
    /// The lock index that the first read returned.
    lock_index: Option<u64>,
    /// Set if the session was suspended since the last read that showed the hold.
    is_suspended: bool,
}

impl Default for Watch {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        Self { index: 0, failures: 0, backoff, verdict: None, lock_index: None, is_suspended: false }
    }
}

impl Watch {
    pub(super) fn has_verdict(&self) -> bool {
        self.verdict.is_some()
    }

    /// Returns `true` if no read found it gone, and one showed it held since the last suspension.
    pub(super) fn is_confirmed(&self) -> bool {
        self.verdict.is_none() && !self.is_suspended
    }
}

impl Hold {
    fn watch(&mut self) -> &mut Watch {
        match &mut self.stage {
            HoldStage::Held(watch) => watch,
            other => unreachable!("only what is held is watched: {other:?}"),
        }
    }

    /// Detects another grant of the lock since the first read: the earlier hold is lost, even if
    /// the same session holds it.
    fn regranted(&mut self, entries: &[Entry]) -> Option<Loss> {
        let (Goal::Lock(_), Some(entry)) = (&self.goal, entries.first()) else { return None };
        let watch = self.watch();
        let first = *watch.lock_index.get_or_insert(entry.lock_index);
        (watch.is_suspended && first != entry.lock_index).then_some(Loss::Released)
    }

    /// Marks the hold as suspended, because its session is.
    pub(super) fn suspend(&mut self) {
        if let HoldStage::Held(watch) = &mut self.stage {
            watch.is_suspended = true;
        }
    }

    /// Returns `true` if it must be read before it counts as held again.
    pub(super) fn is_suspended(&self) -> bool {
        matches!(&self.stage, HoldStage::Held(watch) if watch.is_suspended && self.loss.is_none())
    }

    /// Reads again: a reply that was in flight during the suspension confirms nothing.
    pub(super) fn confirm(&mut self, cx: &mut Context) {
        let watch = self.watch();
        if watch.verdict.is_none() {
            watch.index = 0;
            self.cancel_request(cx);
            self.check(cx);
        }
    }

    pub(super) fn check(&mut self, cx: &mut Context) {
        if let Some(verdict) = self.watch().verdict.take() {
            // No more precise reason arrived in time.
            return self.lose(verdict, cx);
        }
        // Consistent, because a deposed leader could show a lock as held that another session holds
        // by now.
        let read = Read::consistent().newer_than(self.watch().index, WATCH_TIMEOUT);
        self.send(self.look_request(read), cx);
    }

    pub(super) fn watch_answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        if let Some(verdict) = self.watch().verdict.take() {
            // The end of a session first shows in its keys; report that reason if it applies.
            let is_gone = result.is_ok_and(|response| !response.found());
            if is_gone && cx.session.is_followed() && cx.session.id() == Some(&self.session) {
                // The agent is about to report the cause.
                self.watch().verdict = Some(Loss::SessionGone);
                self.wakes_at = Some(cx.now + CAUSE_TIMEOUT);
                return;
            }
            return self.lose(if is_gone { Loss::SessionGone } else { verdict }, cx);
        }
        let judged = result.map(Response::entries).and_then(|(entries, index)| {
            let verdict = self.goal.judge_hold(&self.session, &self.fences, &entries)?;
            Ok((verdict.or_else(|| self.regranted(&entries)), index))
        });
        match judged {
            Ok((Some(verdict), _)) => {
                self.watch().verdict = Some(verdict);
                let request = Request::FindSession(self.session.clone(), CAUSE_TIMEOUT);
                self.send(request, cx);
            }
            Ok((None, index)) => {
                let is_believed = cx.is_alive(&self.session);
                let watch = self.watch();
                (watch.index, watch.failures) = (index, 0);
                // A read that began before the session was resumed was cancelled then.
                watch.is_suspended &= !is_believed;
                watch.backoff.succeeded();
                let pause = if index == 0 { COUNTED_RETRY } else { Duration::ZERO };
                self.wakes_at = Some(cx.now + pause);
            }
            Err(error) => self.watch_failed(&error, cx),
        }
    }

    fn watch_failed(&mut self, error: &Error, cx: &mut Context) {
        let retries = self.watch_retries;
        let watch = self.watch();
        watch.failures += 1;
        // A refusal would repeat forever and leave the hold unwatched.
        if retries.is_some_and(|retries| watch.failures > retries) || !error.is_transient() {
            return self.lose(Loss::Unwatched(error.to_string()), cx);
        }
        self.log_retry(error, cx);
        let pause = match retries {
            Some(_) => COUNTED_RETRY,
            None => self.watch().backoff.failed(&mut cx.jitter),
        };
        self.wakes_at = Some(cx.now + pause);
    }

    /// Ends the hold and reports the reason to its caller.
    pub(super) fn lose(&mut self, loss: Loss, cx: &mut Context) {
        self.cancel_request(cx);
        self.wakes_at = None;
        if self.loss.is_none() {
            self.loss = Some(loss.clone());
            cx.report(Event::Lost(self.id, loss));
        }
    }
}
