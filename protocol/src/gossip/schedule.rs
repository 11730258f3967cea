//! When a host asks the servers what it lacks of the mesh: about twice a minute; sooner where
//! somebody was heard of who is not in the roster, or was accused; and after longer and longer
//! pauses where no server answers.

use crate::backoff::Backoff;
use crate::random::Random;
use crate::time::Time;
use std::time::Duration;

/// How often the servers are asked what is lacking, about.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// How soon they are asked again when somebody was heard, or heard of, who is not in the roster;
/// and where that was for nothing again and again. A host that comes is heard of by all at once,
/// so each waits up to twice as long.
const STRANGER_SYNC: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// While more and more hosts come, each waits so long for each member that it knows, and at most so
/// long: all members of one roster together ask about 700 times a second.
const ARRIVALS_SYNC: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// How soon they are asked what became of a member that was accused, after pauses that double.
const OUTCOME_INTERVAL: Duration = Duration::from_secs(1);

/// The pauses while no server answers.
const SYNC_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Schedule {
    due: Time,
    is_under_way: bool,
    /// When a server answered last.
    last: Option<Time>,
    /// It was brought forward since then.
    is_hastened: bool,
    /// The pause when that happens next.
    stranger_pause: Duration,
    /// The last question had no answer.
    is_failing: bool,
    /// The next pause while it is not known what became of somebody.
    outcome_pause: Duration,
    backoff: Backoff,
    random: Random,
}

impl Schedule {
    /// That of a host that asks at once.
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

    /// When to ask; none while an answer is awaited.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.is_under_way).then_some(self.due)
    }

    /// Whether to ask now: then it is done.
    pub(super) fn begins(&mut self, now: Time) -> bool {
        let begins = !self.is_under_way && self.due <= now;
        self.is_under_way |= begins;
        begins
    }

    /// Whether no server has answered yet.
    pub(super) fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// No server answered.
    pub(super) fn failed(&mut self, now: Time) {
        (self.is_under_way, self.is_failing) = (false, true);
        self.due = now + self.backoff.next_pause();
    }

    /// A server answered: whether that told of other members, how many there are, and whether it is
    /// awaited what became of somebody.
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

    /// This process is another one to the servers, who have just answered it: what they say is
    /// wanted at once, however long they were silent before.
    pub(super) fn begin_anew(&mut self, now: Time) {
        self.is_failing = false;
        self.backoff.reset();
        self.due = now;
    }

    /// Somebody was heard of who is not in the roster: that may be another host or an older
    /// process, so the roster is asked for, but not by everybody at once.
    pub(super) fn hear_of_stranger(&mut self, now: Time) {
        // While no server answers, its own pauses count.
        if self.is_failing || std::mem::replace(&mut self.is_hastened, true) {
            return;
        }
        let (pause, last) = (self.stranger_pause, self.last.unwrap_or(now));
        let due = now.max(last + pause) + pause.mul_f64(self.random.fraction());
        self.due = self.due.min(due);
    }

    /// Somebody was accused: what became of them is of interest.
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

    /// Asks when that is due, and is answered at once; how long it waited for it.
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

    /// How long it waits for each of the next questions, where a stranger is heard of all the time.
    fn by_strangers(schedule: &mut Schedule, now: &mut Time, is_news: bool) -> Vec<Duration> {
        let mut ask = || {
            (0..10).for_each(|_| schedule.hear_of_stranger(*now));
            asked(schedule, now, is_news, false)
        };
        (0..8).map(|_| ask()).collect()
    }

    #[test]
    fn without_anything_special_it_asks_twice_a_minute() {
        let (mut schedule, mut now) = begin();
        for _ in 0..20 {
            let waited = asked(&mut schedule, &mut now, false, false);
            assert!((27 * SECOND..=33 * SECOND).contains(&waited), "{waited:?}");
        }
    }

    #[test]
    fn strangers_who_are_news_are_asked_for_soon_and_for_nothing_more_and_more_seldom() {
        let (mut schedule, mut now) = begin();
        let news = by_strangers(&mut schedule, &mut now, true);
        assert!(news[0] <= SECOND / 2 && news.iter().all(|waited| *waited <= 2 * SECOND), "{news:?}");
        let nothing = by_strangers(&mut schedule, &mut now, false);
        assert!(nothing[4..].iter().all(|waited| *waited >= 8 * SECOND), "{nothing:?}");
        asked(&mut schedule, &mut now, false, false);
        assert!(by_strangers(&mut schedule, &mut now, true)[0] <= SECOND / 2, "after a while as ever");
    }

    #[test]
    fn what_became_of_somebody_is_asked_after_pauses_that_double() {
        let (mut schedule, mut now) = begin();
        schedule.await_outcome(now);
        let waited: Vec<_> = (0..4).map(|_| asked(&mut schedule, &mut now, false, true)).collect();
        let about = |seconds: u32| seconds * SECOND * 9 / 10..=seconds * SECOND * 11 / 10;
        for (waited, seconds) in waited.iter().zip([1, 1, 2, 4]) {
            assert!(about(seconds).contains(waited), "{waited:?} is not about {seconds} s");
        }
    }

    #[test]
    fn where_no_server_answers_its_own_pauses_count_whoever_speaks() {
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
    fn a_host_that_registers_anew_asks_soon_however_long_nobody_answered() {
        let (mut schedule, _) = begin();
        let mut now = schedule.due().expect("no answer is awaited");
        for _ in 0..20 {
            assert!(schedule.begins(now));
            schedule.failed(now);
            now = schedule.due().expect("no answer is awaited");
        }
        schedule.begin_anew(now);
        assert_eq!(schedule.due(), Some(now));
        // The server that it asks may not know yet that it leads, or who does.
        for _ in 0..2 {
            assert!(schedule.begins(now));
            schedule.failed(now);
            let next = schedule.due().expect("no answer is awaited");
            assert!(next <= now + SECOND * 3 / 2, "{:?}", next.since(now));
            now = next;
        }
    }

    #[test]
    fn few_members_ask_sooner_for_those_who_come_than_very_many() {
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
