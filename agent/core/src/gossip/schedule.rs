//! The schedule of a host's requests for mesh data from the servers (anti-entropy). It sends about
//! two requests per minute, and more after reports of an unknown process or after a suspicion.
//! While no server replies, it backs off.

use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::random::Random;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The approximate interval between requests to the servers.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// The delay of a request after packets or reports of processes outside the roster: the shortest,
/// and the longest after repeated futile requests. All members learn of a new host at once, so each
/// waits up to twice as long.
const STRANGER_SYNC: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// The delay while further hosts join: per known member, and the maximum. All members of a roster
/// together send about 700 requests per second.
const ARRIVALS_SYNC: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// The delay of the first request for the outcome of a suspicion; it doubles each time.
const OUTCOME_INTERVAL: Duration = Duration::from_secs(1);

/// The delays while no server replies.
const SYNC_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The time of the next sync with the servers, and the one under way.
#[derive(Debug)]
pub(super) struct Schedule {
    due: Time,
    is_under_way: bool,
    /// The time of a server's last reply.
    last: Option<Time>,
    /// Set if the request was brought forward since then.
    is_hastened: bool,
    /// The delay of the next such request.
    stranger_pause: Duration,
    /// Set if the last request had no reply.
    is_failing: bool,
    /// The next delay while the outcome of a suspicion is unknown.
    outcome_pause: Duration,
    backoff: Backoff,
    random: Random,
}

impl Schedule {
    /// Creates a schedule whose first request is due at once.
    pub(super) fn new(now: Time, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            due: now,
            is_under_way: false,
            last: None,
            is_hastened: false,
            stranger_pause: STRANGER_SYNC.0,
            is_failing: false,
            outcome_pause: OUTCOME_INTERVAL,
            backoff: Backoff::new(SYNC_BACKOFF, random.number()),
            random,
        }
    }

    /// Returns the time of the next request; `None` while one is in flight.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.is_under_way).then_some(self.due)
    }

    /// Returns `true` if a request is due now, which then counts as sent.
    pub(super) fn begins(&mut self, now: Time) -> bool {
        let begins = !self.is_under_way && self.due <= now;
        self.is_under_way |= begins;
        begins
    }

    /// Returns `true` if no server has replied yet.
    pub(super) fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// Records that no server replied.
    pub(super) fn failed(&mut self, now: Time) {
        (self.is_under_way, self.is_failing) = (false, true);
        self.due = now + self.backoff.next_pause();
    }

    /// Records a reply: `is_news` if it contained other members, the number of members, and
    /// `is_outcome_awaited` if the outcome of a suspicion is still unknown.
    pub(super) fn answered(&mut self, now: Time, is_news: bool, members: usize, is_outcome_awaited: bool) {
        (self.is_under_way, self.is_failing, self.last) = (false, false, Some(now));
        self.backoff.reset();
        let (first, for_nothing) = STRANGER_SYNC;
        let longest = match is_news {
            true => ARRIVALS_SYNC.0.saturating_mul(members as u32).clamp(first, ARRIVALS_SYNC.1),
            false => for_nothing,
        };
        self.stranger_pause = match std::mem::take(&mut self.is_hastened) {
            true => (self.stranger_pause * 2).min(longest),
            false => first,
        };
        let pause = if is_outcome_awaited { self.outcome_pause } else { SYNC_INTERVAL };
        let next = if is_outcome_awaited { (pause * 2).min(SYNC_INTERVAL) } else { OUTCOME_INTERVAL };
        self.outcome_pause = next;
        self.due = now + pause.mul_f64(0.9 + self.random.fraction() / 5.0);
    }

    /// Restarts the schedule after a new registration, to which the servers have just replied: the
    /// next request is due at once, regardless of earlier failures.
    pub(super) fn restart(&mut self, now: Time) {
        self.is_failing = false;
        self.backoff.reset();
        self.due = now;
    }

    /// Records a process that is not in the roster. It may be a new host or an older process, so
    /// the roster is requested, with jitter among the members.
    pub(super) fn hear_of_stranger(&mut self, now: Time) {
        // While no server replies, its backoff applies.
        if self.is_failing || std::mem::replace(&mut self.is_hastened, true) {
            return;
        }
        let (pause, last) = (self.stranger_pause, self.last.unwrap_or(now));
        let due = now.max(last + pause) + pause.mul_f64(self.random.fraction());
        self.due = self.due.min(due);
    }

    /// Records a suspicion, whose outcome is to be requested.
    pub(super) fn await_outcome(&mut self, now: Time) {
        if !self.is_failing {
            self.due = self.due.min(now + self.outcome_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MEMBERS: usize = 2_000;

    /// Sends a request when it is due, answers it at once, and returns the time waited.
    fn asked(schedule: &mut Schedule, now: &mut Time, is_news: bool, is_outcome_awaited: bool) -> Duration {
        let due = schedule.due().expect("no answer is awaited").max(*now);
        let waited = due.since(*now);
        *now = due;
        assert!(schedule.begins(due) && !schedule.begins(due) && schedule.due().is_none());
        schedule.answered(due, is_news, MEMBERS, is_outcome_awaited);
        waited
    }

    fn begin() -> (Schedule, Time) {
        let (mut schedule, mut now) = (Schedule::new(Time(0), 7), Time(0));
        assert!(schedule.is_first());
        assert_eq!(asked(&mut schedule, &mut now, true, false), Duration::ZERO);
        assert!(!schedule.is_first());
        (schedule, now)
    }

    /// Returns the delays of the next requests, while an unknown process is reported continuously.
    fn by_strangers(schedule: &mut Schedule, now: &mut Time, is_news: bool) -> Vec<Duration> {
        let mut ask = || {
            (0..10).for_each(|_| schedule.hear_of_stranger(*now));
            asked(schedule, now, is_news, false)
        };
        (0..8).map(|_| ask()).collect()
    }

    #[test]
    fn default_interval_30_s() {
        let (mut schedule, mut now) = begin();
        for _ in 0..20 {
            let waited = asked(&mut schedule, &mut now, false, false);
            assert!((27 * SECOND..=33 * SECOND).contains(&waited), "{waited:?}");
        }
    }

    #[test]
    fn stranger_syncs_back_off_without_news() {
        let (mut schedule, mut now) = begin();
        let news = by_strangers(&mut schedule, &mut now, true);
        assert!(news[0] <= SECOND / 2 && news.iter().all(|waited| *waited <= 2 * SECOND), "{news:?}");
        let nothing = by_strangers(&mut schedule, &mut now, false);
        assert!(nothing[4..].iter().all(|waited| *waited >= 8 * SECOND), "{nothing:?}");
        asked(&mut schedule, &mut now, false, false);
        assert!(by_strangers(&mut schedule, &mut now, true)[0] <= SECOND / 2, "after a while as ever");
    }

    #[test]
    fn outcome_queries_back_off() {
        let (mut schedule, mut now) = begin();
        schedule.await_outcome(now);
        let waited: Vec<_> = (0..4).map(|_| asked(&mut schedule, &mut now, false, true)).collect();
        let about = |seconds: u32| seconds * SECOND * 9 / 10..=seconds * SECOND * 11 / 10;
        for (waited, seconds) in waited.iter().zip([1, 1, 2, 4]) {
            assert!(about(seconds).contains(waited), "{waited:?} is not about {seconds} s");
        }
    }

    #[test]
    fn failure_backoff_ignores_new_triggers() {
        let (mut schedule, _) = begin();
        let mut now = schedule.due().expect("no answer is awaited");
        for _ in 0..20 {
            assert!(schedule.begins(now));
            schedule.failed(now);
            let due = schedule.due();
            schedule.hear_of_stranger(now);
            schedule.await_outcome(now);
            assert_eq!(schedule.due(), due);
            now = due.expect("no answer is awaited");
        }
        let longest = now + 10 * SECOND;
        assert!(schedule.begins(now));
        schedule.failed(now);
        assert!(schedule.due().is_some_and(|due| due <= longest));
    }

    #[test]
    fn registration_resets_failure_backoff() {
        let (mut schedule, _) = begin();
        let mut now = schedule.due().expect("no answer is awaited");
        for _ in 0..20 {
            assert!(schedule.begins(now));
            schedule.failed(now);
            now = schedule.due().expect("no answer is awaited");
        }
        schedule.restart(now);
        assert_eq!(schedule.due(), Some(now));
        // The server may not know yet that it leads, or which server does.
        for _ in 0..2 {
            assert!(schedule.begins(now));
            schedule.failed(now);
            let next = schedule.due().expect("no answer is awaited");
            assert!(next <= now + SECOND * 3 / 2, "{:?}", next.since(now));
            now = next;
        }
    }

    #[test]
    fn large_mesh_syncs_strangers_slower() {
        let asks = |members: usize| {
            let (mut schedule, mut now) = begin();
            let began = now;
            for _ in 0..20 {
                schedule.hear_of_stranger(now);
                now = schedule.due().expect("no answer is awaited").max(now);
                assert!(schedule.begins(now));
                schedule.answered(now, true, members, false);
            }
            now.since(began)
        };
        let (few, many) = (asks(100), asks(1_000));
        assert!(few <= 20 * SECOND / 2 && many >= 18 * SECOND, "{few:?} {many:?}");
    }
}
