//! When a host asks the servers what it lacks of the mesh: about twice a minute; sooner where
//! somebody was heard of who is not in the roster, or was accused; and after longer and longer
//! pauses where no server answers.

use crate::backoff::Backoff;
use crate::random::Random;
use crate::time::Time;
use std::time::Duration;

/// How often the servers are asked what is lacking, about.
const SYNC_INTERVAL: Duration = Duration::from_secs(30);

/// How soon they are asked again when somebody was heard, or heard of, who is not in the roster: at
/// first, where more and more hosts come, and where that was for nothing again and again. A host
/// that comes is heard of by all at once, so each waits up to twice as long.
const STRANGER_SYNC: [Duration; 3] =
    [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(8)];

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
            stranger_pause: STRANGER_SYNC[0],
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

    /// A server answered: whether that told of other members, and whether it is awaited what became
    /// of somebody.
    pub(super) fn answered(&mut self, now: Time, is_news: bool, is_outcome_awaited: bool) {
        (self.is_under_way, self.is_failing, self.last) = (false, false, Some(now));
        self.backoff.reset();
        let [first, while_more_come, for_nothing] = STRANGER_SYNC;
        let longest = if is_news { while_more_come } else { for_nothing };
        self.stranger_pause = match std::mem::take(&mut self.is_hastened) {
            true => (self.stranger_pause * 2).min(longest),
            false => first,
        };
        let pause = if is_outcome_awaited { self.outcome_pause } else { SYNC_INTERVAL };
        let next = if is_outcome_awaited { (pause * 2).min(SYNC_INTERVAL) } else { OUTCOME_INTERVAL };
        self.outcome_pause = next;
        self.due = now + pause.mul_f64(0.9 + self.random.fraction() / 5.0);
    }

    /// This process is another one to the servers: what they say of it is wanted at once.
    pub(super) fn begin_anew(&mut self, now: Time) {
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
