//! Recognizing a grant whose reply was lost in silence.
//!
//! A request that waits in a lock's queue may be dropped by a proxy or a middlebox, without an
//! error: the session is granted the lock, and the reply never arrives. A waiter therefore also
//! reads the key at an interval. The reads are stale, so that any server can answer them, and they
//! write nothing: they are only hints. If the server that answers is behind, the leader is asked.
//! If a read shows the waiter's own session as the holder, a plain acquire confirms that, because a
//! holder that acquires again is granted its hold, with the same fence. The grant counts as
//! delivered from then on: the agent does not take it back when the first request is cancelled.
//!
//! A waiter is no longer in the queue if the grant that it did not learn of has ended since. A lock
//! that stays free may thus be one for which nobody asks: a plain acquire finds out. After a
//! lock-delay it is granted; during one it is refused.
//!
//! Asking again in the queue would need no such read, but it costs a log entry each time.

use super::attempt::{Attempt, AttemptTurn};
use super::context::{Context, RequestPurpose};
use super::goal::{Goal, Look};
use super::hold::{Hold, HoldStage};
use super::input::Response;
use super::moment::Moment;
use super::outbox::Request;
use crate::entry::{Acquired, Entry};
use crate::error::Error;
use crate::loss::Loss;
use crate::read::Read;
use std::time::Duration;

/// The greatest age of a server's state for its answer to a stale read to count. With the interval
/// it makes up the 5 s within which a waiter recognizes its grant.
pub const MAX_STALENESS: Duration = Duration::from_secs(1);

/// The interval of the reads, and the timeout of one. 10,000 waiters cost 2,500 reads per second,
/// of all servers together.
const INTERVAL: Duration = Duration::from_secs(4);

/// The number of reads in sequence that show the lock free, after which it is asked for. Usual
/// lock-delays are shorter.
const FREE_READS: u32 = 4;

/// The time until the next read after one failed, or its confirmation did.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Hold {
    /// Returns the time of the first read after an acquire that is sent now; `None` for a slot,
    /// whose list of holders is read in any case.
    pub(super) fn first_grant_check(&self, now: Moment) -> Option<Moment> {
        (!matches!(self.goal, Goal::Slot(_))).then(|| now + INTERVAL)
    }

    /// Reads the key beside the acquire in flight; replaces a read that was not answered in time.
    /// An acquire whose session is lost is given up: the reply that says so may be lost too.
    pub(super) fn check_grant(&mut self, cx: &mut Context) {
        if !cx.is_kept(&self.session) {
            self.cancel_request(cx);
            self.attempt().checks_at = None;
            let loss = cx.session.loss().cloned().unwrap_or(Loss::SessionGone);
            return self.turn_failed(Error::SessionLost(loss), cx);
        }
        self.send_check(self.look_request(Read::stale()), cx);
    }

    fn send_check(&mut self, request: Request, cx: &mut Context) {
        cx.cancel(self.check.take());
        self.check = Some(cx.send(RequestPurpose::GrantCheck(self.id), request));
        self.check_again_in(INTERVAL, cx);
    }

    /// Processes the reply to a read, or to the acquire that confirms it.
    pub(super) fn grant_check_answered(&mut self, result: Result<Response, Error>, cx: &mut Context) {
        self.check = None;
        match result {
            Ok(Response::Entries(entries, _)) => {
                let asks = self.goal.is_holder_in(&self.session, &entries)
                    || self.attempt().is_free_for_long(&entries);
                // A key of another kind is no lock.
                if let (true, Ok(Look::Free(request))) =
                    (asks, self.goal.judge_look(&self.session, &entries, None))
                {
                    self.send_check(request, cx);
                }
            }
            Ok(Response::Acquired(Acquired::Granted { fence })) => {
                self.cancel_request(cx);
                self.turn_gave(AttemptTurn::Granted(fence.into_iter().collect()), cx);
            }
            Ok(Response::AcquiredAll(fences)) => {
                self.cancel_request(cx);
                self.turn_gave(AttemptTurn::Granted(fences), cx);
            }
            Ok(Response::Outdated) => {
                self.send_check(self.look_request(Read::default()), cx);
            }
            Err(_) => self.check_again_in(RETRY_INTERVAL, cx),
            // Not granted: the acquire in flight goes on, and so do the reads.
            _ => {}
        }
    }

    fn check_again_in(&mut self, pause: Duration, cx: &mut Context) {
        if let HoldStage::Acquiring(attempt) = &mut self.stage {
            attempt.checks_at = Some(cx.now + pause);
        }
        self.wakes_at = self.overdue_at();
    }
}

impl Attempt {
    /// Counts a read; returns `true` if the lock was free in each of the last ones.
    fn is_free_for_long(&mut self, entries: &[Entry]) -> bool {
        let is_free = entries.iter().all(|entry| entry.session.is_none());
        self.free_reads = if is_free { self.free_reads + 1 } else { 0 };
        is_free && self.free_reads.is_multiple_of(FREE_READS)
    }
}
