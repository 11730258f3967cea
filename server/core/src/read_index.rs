//! Read index (ReadIndex of the Raft thesis, 6.4): one round of the quorum allows all waiting
//! reads.
//!
//! A round proves that its leader, this server or the one that it follows, led when the round
//! began. Whoever arrived before it may then look at the state, once everything that was committed
//! at that time is applied. A round that vanishes (a change of leader, a lost message) is begun
//! again, and whichever is confirmed first confirms both: where every answer takes long, none would
//! come in time. A follower that cannot catch up with its leader keeps nobody for long: whoever
//! asked may ask the leader.
//!
//! A renewal may wait here for seconds, behind a disk that takes no write. Until it is answered,
//! its session does not expire and its node is not failed.

use crate::input::{CallToken, LeaseCaller};
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// After this long without a confirmation another round is begun for those who wait.
const ROUND_TIMEOUT: Duration = Duration::from_millis(200);

/// A follower that has had somebody wait for longer refuses him: it does not reach its leader, or
/// is far behind it.
const FOLLOWERS_READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time that a leader keeps a request which waits, for a round or for its disk. It is
/// shorter than the hold timeout of an agent (7 s), so that the reason arrives before the agent
/// gives the request up.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

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

impl Reader {
    /// The subject of a renewal; none for a reader of another kind.
    fn renews(&self) -> Option<Renewed> {
        match self {
            Self::Renewal(_, session) => Some(Renewed::Session(*session)),
            Self::Lease(_, renewal) => Some(Renewed::Lease(renewal.lease)),
            Self::Query(_) | Self::Unchanged(_) => None,
        }
    }
}

/// The subject of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Renewed {
    Session(SessionId),
    Lease(LeaseId),
}

/// The renewals of one subject that wait: their number, and the arrival of the last one.
#[derive(Clone, Copy, Debug)]
struct WaitingRenewals {
    count: usize,
    newest: Time,
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
    /// The renewals among all of these.
    renewals: BTreeMap<Renewed, WaitingRenewals>,
    last_number: u64,
    /// A round has waited for long, and may have been lost.
    is_late: bool,
}

impl ReadIndex {
    pub(crate) fn arrive(&mut self, now: Time, reader: Reader) {
        if let Some(subject) = reader.renews() {
            let waiting = self.renewals.entry(subject).or_insert(WaitingRenewals { count: 0, newest: now });
            *waiting = WaitingRenewals { count: waiting.count + 1, newest: now };
        }
        self.arrived.push((now, reader));
    }

    /// The time until which a renewal of this session may wait here; none if no renewal waits.
    pub(crate) fn renewal_waits_until(&self, session: SessionId) -> Option<Time> {
        let waiting = self.renewals.get(&Renewed::Session(session))?;
        Some(waiting.newest + REQUEST_TIMEOUT)
    }

    /// `true` while a renewal of this lease waits here.
    pub(crate) fn is_lease_renewal_waiting(&self, lease: LeaseId) -> bool {
        self.renewals.contains_key(&Renewed::Lease(lease))
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
        self.dismiss(ready.into_iter().flat_map(|(_, readers)| readers).collect())
    }

    /// Those who have waited too long for a follower.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Reader> {
        self.older_than(now, FOLLOWERS_READER_TIMEOUT)
    }

    /// Those who have waited for this long.
    pub(crate) fn older_than(&mut self, now: Time, timeout: Duration) -> Vec<Reader> {
        // By arrival, whatever stage they are in: a follower that lags, and a leader whose disk
        // takes nothing, can be stuck in each of them.
        let is_overdue = |(since, _): &mut Arrived| now.since(*since) >= timeout;
        let mut overdue: Vec<Arrived> = self.arrived.extract_if(.., is_overdue).collect();
        let rounds = self.rounds.iter_mut().map(|round| &mut round.readers);
        for readers in rounds.chain(self.confirmed.iter_mut().map(|(_, readers)| readers)) {
            overdue.extend(readers.extract_if(.., is_overdue));
        }
        self.confirmed.retain(|(_, readers)| !readers.is_empty());
        self.dismiss(overdue)
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
        self.dismiss(all)
    }

    /// Readers that wait no more.
    fn dismiss(&mut self, readers: Vec<Arrived>) -> Vec<Reader> {
        for subject in readers.iter().filter_map(|(_, reader)| reader.renews()) {
            if let Some(waiting) = self.renewals.get_mut(&subject) {
                waiting.count -= 1;
                if waiting.count == 0 {
                    self.renewals.remove(&subject);
                }
            }
        }
        readers.into_iter().map(|(_, reader)| reader).collect()
    }
}
