//! Read index (ReadIndex of the Raft thesis, 6.4): one round of the quorum allows all waiting
//! reads.
//!
//! A round proves that its leader, this server or the one that it follows, led when the round
//! began. Whoever arrived before it may then look at the state, once everything that was committed
//! at that time is applied. A round that vanishes (a change of leader, a lost message) is begun
//! again, and whichever is confirmed first confirms both: where every answer takes long, none would
//! come in time. A follower that cannot catch up with its leader keeps nobody for long: whoever
//! asked may ask the leader.

use crate::input::{CallToken, LeaseCaller};
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::lease::Renewal;
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// After this long without a confirmation another round is begun for those who wait.
const ROUND_TIMEOUT: Duration = Duration::from_millis(200);

/// A follower that has had somebody wait for longer refuses him: it does not reach its leader, or
/// is far behind it.
const FOLLOWERS_READER_TIMEOUT: Duration = Duration::from_secs(1);

/// Somebody who waits for a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Wants to look at the state.
    Query(CallToken),
    /// Wants to know that the session lives, and that the leader who says so is one.
    Renewal(CallToken, SessionId),
    /// Wants to know the same of a lease.
    Lease(LeaseCaller, Renewal),
    /// Wanted a change that this leader need not make: answered as done.
    Unchanged(CallToken),
}

/// Since when somebody waits.
type Arrived = (Time, Reader);

#[derive(Debug)]
struct ReadIndexRound {
    number: u64,
    began: Time,
    readers: Vec<Arrived>,
}

/// Readers by how far they are.
#[derive(Debug, Default)]
pub(crate) struct ReadIndex {
    /// Those for whom no round has begun.
    arrived: Vec<Arrived>,
    /// Rounds that are under way, oldest first.
    rounds: VecDeque<ReadIndexRound>,
    /// Confirmed, but not everything that was committed is applied.
    confirmed: Vec<(LogIndex, Vec<Arrived>)>,
    last_number: u64,
    /// A round has waited for long, and may have been lost.
    is_late: bool,
}

impl ReadIndex {
    pub(crate) fn arrive(&mut self, now: Time, reader: Reader) {
        self.arrived.push((now, reader));
    }

    /// The number of the round that shall begin now; none if nobody waits for one.
    pub(crate) fn begin(&mut self, now: Time) -> Option<u64> {
        let another = std::mem::take(&mut self.is_late);
        if self.arrived.is_empty() && !another {
            return None;
        }
        self.last_number += 1;
        let readers = std::mem::take(&mut self.arrived);
        self.rounds.push_back(ReadIndexRound { number: self.last_number, began: now, readers });
        Some(self.last_number)
    }

    /// A round is confirmed at `index`; so are all that began before it.
    pub(crate) fn confirm(&mut self, number: u64, index: LogIndex) {
        // A later round proves leadership at a later time, which serves all who came before it too
        // (thesis, 6.4: one round for many reads).
        while self.rounds.front().is_some_and(|round| round.number <= number) {
            let round = self.rounds.pop_front().expect("the front was just seen");
            self.confirmed.push((index, round.readers));
        }
    }

    /// Those who may look at the state now.
    pub(crate) fn ready(&mut self, applied: LogIndex) -> Vec<Reader> {
        // Confirmed is not enough: the state must hold what was committed when the round began.
        let (ready, later) =
            std::mem::take(&mut self.confirmed).into_iter().partition(|(at, _)| *at <= applied);
        self.confirmed = later;
        let ready: Vec<(LogIndex, Vec<Arrived>)> = ready;
        ready.into_iter().flat_map(|(_, readers)| readers).map(|(_, reader)| reader).collect()
    }

    /// Those who have waited too long for a follower.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Reader> {
        // By arrival, whatever stage they are in: a follower that lags can be stuck in each of
        // them.
        let is_overdue = |(since, _): &mut Arrived| now.since(*since) >= FOLLOWERS_READER_TIMEOUT;
        let mut overdue: Vec<Arrived> = self.arrived.extract_if(.., is_overdue).collect();
        let rounds = self.rounds.iter_mut().map(|round| &mut round.readers);
        for readers in rounds.chain(self.confirmed.iter_mut().map(|(_, readers)| readers)) {
            overdue.extend(readers.extract_if(.., is_overdue));
        }
        self.confirmed.retain(|(_, readers)| !readers.is_empty());
        overdue.into_iter().map(|(_, reader)| reader).collect()
    }

    /// Lets another round begin where one may have been lost. The newest confirms all: as many are
    /// under way as begin in the time that one takes, and those before it that nobody waits for are
    /// forgotten.
    pub(crate) fn retry(&mut self, now: Time) {
        // A retry has no readers of its own and need not be kept: when it is confirmed, its number
        // confirms all that are before it.
        self.rounds.retain(|round| !round.readers.is_empty());
        let is_late = |round: &ReadIndexRound| now.since(round.began) >= ROUND_TIMEOUT;
        for round in self.rounds.iter_mut().filter(|round| is_late(round)) {
            round.began = now;
            self.is_late = true;
        }
    }

    /// Everybody who waits: this server no longer leads.
    pub(crate) fn drain(&mut self) -> Vec<Reader> {
        // A round of a leader that is none any more may still be confirmed: its number is then
        // found nowhere.
        let rounds = std::mem::take(&mut self.rounds).into_iter().flat_map(|round| round.readers);
        let confirmed = std::mem::take(&mut self.confirmed).into_iter().flat_map(|(_, readers)| readers);
        let mut all = std::mem::take(&mut self.arrived);
        all.extend(rounds.chain(confirmed));
        all.into_iter().map(|(_, reader)| reader).collect()
    }
}
