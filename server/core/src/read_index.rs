//! Read index (ReadIndex of the Raft thesis, 6.4): one quorum round makes all waiting reads
//! linearizable.
//!
//! A round proves that its leader, this server or the one that it follows, led when the round
//! began. Readers that arrived earlier may read the state once everything that was committed at
//! that time is applied. A lost round (a change of leader, a lost message) is repeated, and the
//! first confirmation confirms both: with slow replies neither would otherwise arrive in time. A
//! follower that cannot catch up with its leader rejects readers soon, so that they can ask the
//! leader.
//!
//! A renewal may wait here for seconds behind a stalled disk. Until it is answered, its session
//! does not expire and its node is not failed.

use crate::input::{CallToken, LeaseCaller};
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::lease::{LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time without a confirmation after which another round begins for the waiting readers.
const ROUND_TIMEOUT: Duration = Duration::from_millis(200);

/// The time after which a follower rejects a waiting reader: it does not reach its leader, or is
/// far behind it.
const FOLLOWERS_READER_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum time for which a leader keeps a waiting request, for a round or for its disk. It is
/// shorter than the hold timeout of an agent (7 s), so that the reason arrives before the agent
/// gives up.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// A reader that waits for a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Reads the state.
    Query(CallToken),
    /// Waits for proof that the session is alive and that this server leads.
    Renewal(CallToken, SessionId),
    /// Waits for the same proof about a lease.
    Lease(LeaseCaller, Renewal),
    /// Requested a change that this leader need not make: reported as done.
    Unchanged(CallToken),
}

impl Reader {
    /// Returns the subject of a renewal; `None` for other readers.
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

/// The waiting renewals of one subject: their number, and the arrival of the last one.
#[derive(Clone, Copy, Debug)]
struct WaitingRenewals {
    count: usize,
    newest: Time,
}

/// A reader and its arrival time.
type Arrived = (Time, Reader);

#[derive(Debug)]
struct ReadIndexRound {
    number: u64,
    began: Time,
    readers: Vec<Arrived>,
}

/// Readers by stage.
#[derive(Debug, Default)]
pub(crate) struct ReadIndex {
    /// Readers without a round.
    arrived: Vec<Arrived>,
    /// Rounds in progress, oldest first.
    rounds: VecDeque<ReadIndexRound>,
    /// Confirmed readers whose index is not applied yet.
    confirmed: Vec<(LogIndex, Vec<Arrived>)>,
    /// The renewals among all of these.
    renewals: BTreeMap<Renewed, WaitingRenewals>,
    last_number: u64,
    /// Set when a round is late and may have been lost.
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

    /// Returns the time until which a renewal of this session may wait here; `None` if no renewal
    /// waits.
    pub(crate) fn renewal_waits_until(&self, session: SessionId) -> Option<Time> {
        let waiting = self.renewals.get(&Renewed::Session(session))?;
        Some(waiting.newest + REQUEST_TIMEOUT)
    }

    /// Returns `true` while a renewal of this lease waits here.
    pub(crate) fn is_lease_renewal_waiting(&self, lease: LeaseId) -> bool {
        self.renewals.contains_key(&Renewed::Lease(lease))
    }

    /// Returns the number of the round to begin now; `None` if no reader needs one.
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

    /// Confirms a round at `index`, and all rounds that began before it.
    pub(crate) fn confirm(&mut self, number: u64, index: LogIndex) {
        // A later round proves leadership at a later time, which serves all earlier readers too
        // (thesis, 6.4: one round for many reads).
        while self.rounds.front().is_some_and(|round| round.number <= number) {
            let round = self.rounds.pop_front().expect("the front was just seen");
            self.confirmed.push((index, round.readers));
        }
    }

    /// Returns the readers that may read the state now.
    pub(crate) fn ready(&mut self, applied: LogIndex) -> Vec<Reader> {
        // Confirmation is not enough: the state must hold everything that was committed when the
        // round began.
        let (ready, later) =
            std::mem::take(&mut self.confirmed).into_iter().partition(|(at, _)| *at <= applied);
        self.confirmed = later;
        let ready: Vec<(LogIndex, Vec<Arrived>)> = ready;
        self.dismiss(ready.into_iter().flat_map(|(_, readers)| readers).collect())
    }

    /// Returns the readers that have waited too long for a follower.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Reader> {
        self.older_than(now, FOLLOWERS_READER_TIMEOUT)
    }

    /// Returns the readers that have waited this long.
    pub(crate) fn older_than(&mut self, now: Time, timeout: Duration) -> Vec<Reader> {
        // By arrival, in every stage: a lagging follower and a leader with a stalled disk can be
        // stuck in each.
        let is_overdue = |(since, _): &mut Arrived| now.since(*since) >= timeout;
        let mut overdue: Vec<Arrived> = self.arrived.extract_if(.., is_overdue).collect();
        let rounds = self.rounds.iter_mut().map(|round| &mut round.readers);
        for readers in rounds.chain(self.confirmed.iter_mut().map(|(_, readers)| readers)) {
            overdue.extend(readers.extract_if(.., is_overdue));
        }
        self.confirmed.retain(|(_, readers)| !readers.is_empty());
        self.dismiss(overdue)
    }

    /// Starts another round if one may have been lost. The newest round confirms all: as many are
    /// in progress as begin within one round trip, and earlier ones without readers are dropped.
    pub(crate) fn retry(&mut self, now: Time) {
        // A retry has no readers of its own and need not be kept: its confirmation covers all lower
        // numbers.
        self.rounds.retain(|round| !round.readers.is_empty());
        let is_late = |round: &ReadIndexRound| now.since(round.began) >= ROUND_TIMEOUT;
        for round in self.rounds.iter_mut().filter(|round| is_late(round)) {
            round.began = now;
            self.is_late = true;
        }
    }

    /// Returns all waiting readers, when this server stops leading.
    pub(crate) fn drain(&mut self) -> Vec<Reader> {
        // A round of a former leader may still be confirmed: its number is then unknown.
        let rounds = std::mem::take(&mut self.rounds).into_iter().flat_map(|round| round.readers);
        let confirmed = std::mem::take(&mut self.confirmed).into_iter().flat_map(|(_, readers)| readers);
        let mut all = std::mem::take(&mut self.arrived);
        all.extend(rounds.chain(confirmed));
        self.dismiss(all)
    }

    /// Removes these readers from the waiting renewals.
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
