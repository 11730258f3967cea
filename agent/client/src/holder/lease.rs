//! The schedule of renewals and the deadline of a session. Pure: the time is an argument.
//!
//! **Invariant:** the deadline is counted from when the acknowledged renewal was *sent*. The server
//! counts from when it arrived, which is later. So the server never ends a session for its TTL
//! before this deadline has passed here.

use super::Moment;
use crate::backoff::{Backoff, Jitter};
use std::time::Duration;

/// The minimum time between the deadline here and the server's, which allows for clocks of
/// different speed.
const MIN_MARGIN_TIME: Duration = Duration::from_millis(50);

/// The maximum delay before a failed renewal is retried.
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The time from sending one renewal to sending the next, in percent of the TTL: earliest and
/// latest.
const RENEWAL_PERCENT: (u32, u32) = (30, 37);

/// The divisor of the TTL for the margin before its end, at which a session is given up. The margin
/// is at least [`MIN_MARGIN_TIME`].
const MARGIN_PART: u32 = 20;

/// Returns the longest outage that never costs a guard its hold, even if it begins just before a
/// renewal.
pub(crate) const fn tolerated_outage(ttl: Duration) -> Duration {
    let latest_renewal = Duration::from_micros(ttl.as_micros() as u64 * RENEWAL_PERCENT.1 as u64 / 100);
    ttl.saturating_sub(margin(ttl)).saturating_sub(latest_renewal)
}

/// Returns the shortest TTL, in whole seconds, whose guard tolerates an outage.
pub(crate) const fn least_ttl(outage: Duration) -> Duration {
    let mut seconds = 1;
    while tolerated_outage(Duration::from_secs(seconds)).as_micros() < outage.as_micros() {
        seconds += 1;
    }
    Duration::from_secs(seconds)
}

/// Returns the time from the deadline to the end of the TTL.
const fn margin(ttl: Duration) -> Duration {
    let part = Duration::from_micros(ttl.as_micros() as u64 / MARGIN_PART as u64);
    if part.as_micros() > MIN_MARGIN_TIME.as_micros() { part } else { MIN_MARGIN_TIME }
}

/// The next action of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until this moment.
    Sleep(Moment),
    /// Renew now, with this timeout.
    Renew(Duration),
    /// Too late: the deadline has passed.
    Lost,
}

/// A session's lease from the holder's point of view.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    ttl: Duration,
    /// The time when the last acknowledged renewal was sent.
    acknowledged: Moment,
    deadline: Moment,
    jeopardy_at: Moment,
    renew_at: Moment,
    backoff: Backoff,
}

impl Lease {
    /// Creates a lease for an acknowledged creation that was sent at `sent`. `spread` in 0…1 adds
    /// jitter to the renewals.
    pub(crate) fn new(ttl: Duration, sent: Moment, spread: f64) -> Self {
        // Short for a short TTL, so that several tries fit before its deadline.
        let retry = (ttl / 100).clamp(Duration::from_millis(20), MAX_RETRY_DELAY);
        let backoff = Backoff::new(retry, MAX_RETRY_DELAY);
        let mut lease =
            Self { ttl, acknowledged: sent, deadline: sent, jeopardy_at: sent, renew_at: sent, backoff };
        lease.renewed(sent, spread);
        lease
    }

    /// Returns the time since the last acknowledged renewal was sent.
    pub(crate) fn unrenewed_for(&self, now: Moment) -> Duration {
        now.since(self.acknowledged)
    }

    /// Returns the moment from which the session is no longer guaranteed to be alive.
    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns the moment from which a renewal is overdue: it was due well before half of the TTL
    /// had passed.
    pub(crate) fn jeopardy_at(&self) -> Moment {
        self.jeopardy_at
    }

    /// Returns the next action. The deadline is checked first.
    pub(crate) fn step(&self, now: Moment) -> Step {
        if now >= self.deadline {
            return Step::Lost;
        }
        if now < self.renew_at {
            return Step::Sleep(self.renew_at.min(self.deadline));
        }
        // Several tries fit before the deadline, so a single lost request has no effect.
        let wait_limit = (self.ttl / 5).max(Duration::from_secs(1));
        Step::Renew(wait_limit.min(self.deadline.since(now)))
    }

    /// Records the acknowledgement of a renewal that was sent at `sent`.
    pub(crate) fn renewed(&mut self, sent: Moment, spread: f64) {
        let margin = margin(self.ttl);
        self.acknowledged = self.acknowledged.max(sent);
        // A late acknowledgement of an earlier renewal never shortens the deadline.
        self.deadline = self.deadline.max(sent + self.ttl.saturating_sub(margin));
        self.jeopardy_at = self.jeopardy_at.max(sent + (self.ttl / 2).saturating_sub(margin));
        let (earliest, latest) = RENEWAL_PERCENT;
        let share = f64::from(earliest) / 100.0 + f64::from(latest - earliest) / 100.0 * spread;
        self.renew_at = sent + self.ttl.mul_f64(share);
        self.backoff.succeeded();
    }

    /// Records a failed renewal that proves nothing about the session.
    pub(crate) fn failed(&mut self, now: Moment, jitter: &mut Jitter) {
        self.renew_at = now + self.backoff.failed(jitter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    #[test]
    fn renews_before_half_of_ttl() {
        for spread in [0.0, 1.0] {
            let lease = Lease::new(TTL, at(0), spread);
            let Step::Sleep(until) = lease.step(at(0)) else { panic!("{:?}", lease.step(at(0))) };
            assert!(until >= at(2_900) && until <= at(3_800), "{until:?}");
            assert_eq!(lease.step(until), Step::Renew(Duration::from_secs(2)));
        }
    }

    #[test]
    fn deadline_counts_from_send_time() {
        let mut lease = Lease::new(TTL, at(0), 0.0);
        assert_eq!(lease.deadline(), at(9_500));
        // Sent at 3 s, acknowledged at any time.
        lease.renewed(at(3_000), 0.0);
        assert_eq!(lease.deadline(), at(12_500));
        assert_eq!(lease.step(at(12_499)), Step::Renew(Duration::from_millis(1)));
        assert_eq!(lease.step(at(12_500)), Step::Lost);
    }

    #[test]
    fn stale_acknowledgement_keeps_deadline() {
        let mut lease = Lease::new(TTL, at(5_000), 0.0);
        lease.renewed(at(3_000), 0.0);
        assert_eq!(lease.deadline(), at(14_500));
    }

    #[test]
    fn failed_renewals_retried_until_deadline() {
        let mut lease = Lease::new(TTL, at(0), 0.0);
        let (mut now, mut tries, mut jitter) = (at(3_100), 0, Jitter::new(1));
        loop {
            match lease.step(now) {
                Step::Renew(wait_limit) => {
                    assert!(now + wait_limit <= lease.deadline());
                    lease.failed(now, &mut jitter);
                    tries += 1;
                }
                Step::Sleep(until) => now = until,
                Step::Lost => break,
            }
        }
        assert_eq!(now, lease.deadline());
        assert!(tries >= 6, "{tries}");
    }

    #[test]
    fn outage_before_renewal_tolerated() {
        for ttl in [10, 15, 26, 30].map(Duration::from_secs) {
            let lease = Lease::new(ttl, at(0), 1.0);
            let Step::Sleep(renewal) = lease.step(at(0)) else { panic!("{ttl:?}") };
            assert_eq!(renewal + tolerated_outage(ttl), lease.deadline(), "{ttl:?}");
        }
        assert_eq!(tolerated_outage(Duration::from_secs(15)), Duration::from_millis(8_700));
        assert_eq!(least_ttl(Duration::from_secs(15)), Duration::from_secs(26));
    }

    #[test]
    fn short_ttl_keeps_margin() {
        let lease = Lease::new(Duration::from_millis(500), at(0), 0.0);
        assert_eq!(lease.deadline(), at(450));
        assert!(matches!(lease.step(at(0)), Step::Sleep(until) if until <= at(200)));
    }
}
