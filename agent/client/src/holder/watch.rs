//! Detecting a loss while the session is alive.
//!
//! A consistent blocking query on the key or the list of holders detects a deletion, a release and
//! another holder. After such a read the hold no longer counts as held, even while the holder
//! queries if the session's end was the reason.

use super::goal::Goal;
use super::input::Response;
use super::outbox::{Event, Request};
use super::{Hold, HoldStage, Holder, WATCH_TIMEOUT};
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
}

impl Holder {
    /// Reads again: a reply that was in flight during the suspension confirms nothing.
    pub(super) fn confirm_hold(&mut self, hold: &mut Hold) {
        let watch = hold.watch();
        if watch.verdict.is_none() {
            watch.index = 0;
            self.cancel(hold.request.take());
            self.check_hold(hold);
        }
    }

    pub(super) fn check_hold(&mut self, hold: &mut Hold) {
        if let Some(verdict) = hold.watch().verdict.take() {
            // No more precise reason arrived in time.
            return self.lose_hold(hold, verdict);
        }
        // Consistent, because a deposed leader could show a lock as held that another session holds
        // by now.
        let read = Read::consistent().newer_than(hold.watch().index, WATCH_TIMEOUT);
        let request = hold.goal.look(read);
        self.ask(hold, request);
    }

    pub(super) fn watch_answered(&mut self, hold: &mut Hold, result: Result<Response, Error>) {
        if let Some(verdict) = hold.watch().verdict.take() {
            // The end of a session first shows in its keys; report that reason if it applies.
            let is_gone = result.is_ok_and(|response| !response.found());
            if is_gone && self.session.is_followed() && self.session.id() == Some(&hold.session) {
                // The agent is about to report the cause.
                hold.watch().verdict = Some(Loss::SessionGone);
                hold.wakes_at = Some(self.now + CAUSE_TIMEOUT);
                return;
            }
            return self.lose_hold(hold, if is_gone { Loss::SessionGone } else { verdict });
        }
        let judged = result.map(Response::entries).and_then(|(entries, index)| {
            let verdict = hold.goal.judge_hold(&hold.session, &entries)?;
            Ok((verdict.or_else(|| hold.regranted(&entries)), index))
        });
        match judged {
            Ok((Some(verdict), _)) => {
                hold.watch().verdict = Some(verdict);
                let request = Request::FindSession(hold.session.clone(), CAUSE_TIMEOUT);
                self.ask(hold, request);
            }
            Ok((None, index)) => {
                let is_believed = self.is_alive(&hold.session);
                let watch = hold.watch();
                (watch.index, watch.failures) = (index, 0);
                // A read that began before the session was resumed was cancelled then.
                watch.is_suspended &= !is_believed;
                watch.backoff.succeeded();
                let pause = if index == 0 { COUNTED_RETRY } else { Duration::ZERO };
                hold.wakes_at = Some(self.now + pause);
            }
            Err(error) => self.watch_failed(hold, &error),
        }
    }

    fn watch_failed(&mut self, hold: &mut Hold, error: &Error) {
        let retries = hold.watch_retries;
        let watch = hold.watch();
        watch.failures += 1;
        // A refusal would repeat forever and leave the hold unwatched.
        if retries.is_some_and(|retries| watch.failures > retries) || !error.is_transient() {
            return self.lose_hold(hold, Loss::Unwatched(error.to_string()));
        }
        self.trying_again(hold, error);
        let pause = match retries {
            Some(_) => COUNTED_RETRY,
            None => hold.watch().backoff.failed(&mut self.jitter),
        };
        hold.wakes_at = Some(self.now + pause);
    }

    /// Ends the hold and reports the reason to its caller.
    pub(super) fn lose_hold(&mut self, hold: &mut Hold, loss: Loss) {
        self.cancel(hold.request.take());
        hold.wakes_at = None;
        if hold.loss.is_none() {
            hold.loss = Some(loss.clone());
            self.outbox.events.push(Event::Lost(hold.id, loss));
        }
    }
}
