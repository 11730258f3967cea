//! Request ids: one for each command through all its attempts. They make retries idempotent:
//! servers apply the command exactly once.
//!
//! ```text
//! enter ──> a sequence ──> request_id, before each attempt ──> leave
//!   └ 4,096 between oldest and next ──> queue ──> a sequence, in order of arrival
//! ```
//!
//! Servers keep an agent's replies from the lowest sequence that it still needs; a registration
//! restarts the sequences.
//!
//! **Invariant:** no sequence in use is [`MAX_SPAN`] or more above the lowest one in use, because
//! servers keep all replies in between.

use lockmesh_protocol::id::{AgentNumber, Generation, RequestId};
use lockmesh_protocol::lease::{LeaseId, LeaseSecret};
use std::collections::VecDeque;

/// The maximum distance between sequences in use.
pub const MAX_SPAN: usize = 4096;

/// The maximum number of commands that wait for a sequence.
pub const MAX_WAITING: usize = 16_384;

/// An agent's registration with the servers, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The agent's number in the cluster.
    pub number: AgentNumber,
    /// The number of its registrations so far.
    pub generation: Generation,
    /// Its node's lease.
    pub lease: LeaseId,
    /// The lease's secret.
    pub secret: LeaseSecret,
}

/// A sequence in use; release it with [`RequestIds::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The registration that it belongs to.
    pub registration: Registration,
    number: u64,
}

/// The result of requesting a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRequest {
    /// The command has a sequence.
    Entered(Sequence),
    /// The command has to wait: [`RequestIds::leave`] or [`RequestIds::register`] will return a
    /// sequence under its token.
    Waits,
    /// The agent must register first.
    NotRegistered,
    /// [`MAX_WAITING`] commands wait already.
    Full,
}

/// The token of a command that waited, and its sequence.
pub type Admitted = (u64, Sequence);

/// The request ids of this agent: the sequences in use, and the lowest still needed.
#[derive(Clone, Debug, Default)]
pub struct RequestIds {
    registration: Option<Registration>,
    /// The lowest sequence in use, or the next one to be assigned.
    lowest: u64,
    /// For each sequence from `lowest` on, `true` if it is in use.
    in_use: VecDeque<bool>,
    /// The tokens of waiting commands, in order of arrival.
    waiting: VecDeque<u64>,
}

impl RequestIds {
    /// Returns the agent's current registration, if any.
    pub fn registration(&self) -> Option<Registration> {
        self.registration
    }

    /// Applies a registration: sequences restart, and those of earlier registrations become void.
    /// Returns the waiting commands that have a sequence now.
    #[must_use]
    pub fn register(&mut self, registration: Registration) -> Vec<Admitted> {
        self.registration = Some(registration);
        self.lowest = 1;
        self.in_use.clear();
        self.admit()
    }

    /// Requests a sequence for the command with this token.
    pub fn enter(&mut self, token: u64) -> OpenRequest {
        let Some(registration) = self.registration else { return OpenRequest::NotRegistered };
        // A new command cannot overtake waiting ones, even if there is room.
        if self.waiting.is_empty() && self.in_use.len() < MAX_SPAN {
            return OpenRequest::Entered(self.next(registration));
        }
        if self.waiting.len() >= MAX_WAITING {
            return OpenRequest::Full;
        }
        self.waiting.push_back(token);
        OpenRequest::Waits
    }

    /// Removes a command that waits.
    pub fn stop_waiting(&mut self, token: u64) {
        self.waiting.retain(|waiting| *waiting != token);
    }

    /// Returns the request id for the command's next attempt; `None` if the agent has registered
    /// again since.
    pub fn request_id(&self, sequence: Sequence) -> Option<RequestId> {
        let Registration { number: agent, generation, .. } = sequence.registration;
        let id = RequestId { agent, generation, sequence: sequence.number, lowest: self.lowest };
        (self.registration == Some(sequence.registration)).then_some(id)
    }

    /// Releases the sequence of a completed command. Returns the waiting commands that have a
    /// sequence now.
    #[must_use]
    pub fn leave(&mut self, sequence: Sequence) -> Vec<Admitted> {
        if self.registration != Some(sequence.registration) {
            // Sequences have restarted since, and this number may belong to another command.
            return Vec::new();
        }
        let index = usize::try_from(sequence.number - self.lowest).expect("a span fits the memory");
        self.in_use[index] = false;
        // A sequence in the middle stays: servers receive one lowest sequence, and drop all replies
        // below it.
        while self.in_use.front() == Some(&false) {
            self.in_use.pop_front();
            self.lowest += 1;
        }
        self.admit()
    }

    /// Returns the distance between the lowest sequence in use and the next one.
    pub fn span(&self) -> usize {
        self.in_use.len()
    }

    fn admit(&mut self) -> Vec<Admitted> {
        let Some(registration) = self.registration else { return Vec::new() };
        let room = (MAX_SPAN - self.in_use.len()).min(self.waiting.len());
        let tokens: Vec<u64> = self.waiting.drain(..room).collect();
        tokens.into_iter().map(|token| (token, self.next(registration))).collect()
    }

    fn next(&mut self, registration: Registration) -> Sequence {
        let number = self.lowest + self.in_use.len() as u64;
        self.in_use.push_back(true);
        Sequence { registration, number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::LogIndex;
    use lockmesh_protocol::lease::LeaseKey;

    fn registration(generation: u32) -> Registration {
        let lease = LeaseId { agent: AgentNumber(7), began: LogIndex(1) };
        let secret = LeaseKey::default().secret(lease);
        Registration { number: AgentNumber(7), generation: Generation(generation), lease, secret }
    }

    fn registered() -> RequestIds {
        let mut ids = RequestIds::default();
        assert_eq!(ids.register(registration(1)), []);
        ids
    }

    fn enter(ids: &mut RequestIds) -> Sequence {
        match ids.enter(0) {
            OpenRequest::Entered(sequence) => sequence,
            other => panic!("no sequence: {other:?}"),
        }
    }

    fn numbers(ids: &RequestIds, sequence: Sequence) -> Option<(u64, u64)> {
        ids.request_id(sequence).map(|id| (id.sequence, id.lowest))
    }

    #[test]
    fn lowest_is_oldest_open_request() {
        assert_eq!(RequestIds::default().enter(1), OpenRequest::NotRegistered);
        let mut ids = registered();
        let [one, two, three] = [0; 3].map(|_| enter(&mut ids));
        assert_eq!([one, two, three].map(|id| numbers(&ids, id)), [(1, 1), (2, 1), (3, 1)].map(Some));
        assert_eq!(ids.leave(two), []);
        assert_eq!(numbers(&ids, three), Some((3, 1)));
        assert_eq!(ids.leave(one), []);
        assert_eq!(numbers(&ids, three), Some((3, 3)));
        assert_eq!(ids.leave(three), []);
        let four = enter(&mut ids);
        assert_eq!(numbers(&ids, four), Some((4, 4)));
    }

    #[test]
    fn stuck_request_blocks_new_ones() {
        let mut ids = registered();
        let stuck = enter(&mut ids);
        for _ in 1..MAX_SPAN {
            let next = enter(&mut ids);
            assert_eq!(ids.leave(next), []);
        }
        assert_eq!(ids.span(), MAX_SPAN);
        assert_eq!([ids.enter(11), ids.enter(12), ids.enter(13)], [OpenRequest::Waits; 3]);
        ids.stop_waiting(12);
        let admitted = ids.leave(stuck);
        let tokens: Vec<u64> = admitted.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [11, 13], "in order of arrival");
        let first = MAX_SPAN as u64 + 1;
        assert_eq!(numbers(&ids, admitted[0].1), Some((first, first)));
    }

    #[test]
    fn registration_restarts_numbering() {
        let mut ids = registered();
        let old = enter(&mut ids);
        assert_eq!(ids.register(registration(2)), []);
        assert_eq!(ids.request_id(old), None);
        let new = enter(&mut ids);
        assert_eq!((new.registration, numbers(&ids, new)), (registration(2), Some((1, 1))));
        assert_eq!(ids.leave(old), []);
        assert_eq!((ids.span(), numbers(&ids, new)), (1, Some((1, 1))));
    }

    #[test]
    fn registration_admits_waiting_requests() {
        let mut ids = registered();
        (0..MAX_SPAN).for_each(|_| _ = enter(&mut ids));
        assert_eq!(ids.enter(5), OpenRequest::Waits);
        let admitted = ids.register(registration(2));
        assert_eq!(admitted.len(), 1);
        assert_eq!((admitted[0].0, numbers(&ids, admitted[0].1)), (5, Some((1, 1))));
    }

    #[test]
    fn the_line_has_an_end() {
        let mut ids = registered();
        (0..MAX_SPAN).for_each(|_| _ = enter(&mut ids));
        assert!((0..MAX_WAITING as u64).all(|token| ids.enter(token) == OpenRequest::Waits));
        assert_eq!(ids.enter(0), OpenRequest::Full);
        ids.stop_waiting(9);
        assert_eq!(ids.enter(9), OpenRequest::Waits);
    }
}
