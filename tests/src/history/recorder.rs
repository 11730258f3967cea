//! Records the requests and answers of clients in several threads, on one clock.
//!
//! It must never reorder: a request is recorded as begun before it is sent, and as ended after its
//! answer was read.

use super::History;
use super::operation::{Moment, Operation, Outcome, Request};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Records operations of any number of clients.
pub struct Recorder {
    origin: Instant,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    last_number: u64,
    ended: Vec<Operation>,
    /// Unanswered operations, recorded as if they were never answered.
    under_way: BTreeMap<u64, Operation>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { origin: Instant::now(), book: Mutex::default() }
    }
}

impl Recorder {
    /// Returns the time since the creation of this recorder.
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends a request and records its outcome.
    pub fn run(&self, client: u32, request: Request, ask: impl FnOnce(&Request) -> Outcome) -> Outcome {
        let number = self.begin(client, request.clone());
        let outcome = ask(&request);
        let ended = self.now();
        let mut book = self.book();
        let begun = book.under_way.remove(&number).expect("it was begun above");
        book.ended.push(Operation { ended, outcome: outcome.clone(), ..begun });
        outcome
    }

    /// Returns all operations so far; those in flight have an unknown outcome.
    pub fn history(&self) -> History {
        let now = self.now();
        let book = self.book();
        let under_way =
            book.under_way.values().cloned().map(|operation| Operation { ended: now, ..operation });
        History::new(book.ended.iter().cloned().chain(under_way).collect())
    }

    /// Returns the number of operations that have ended.
    pub fn count(&self) -> usize {
        self.book().ended.len()
    }

    fn begin(&self, client: u32, request: Request) -> u64 {
        let mut book = self.book();
        book.last_number += 1;
        let (number, begun) = (book.last_number, self.now());
        let outcome = Outcome::Unknown("it is still under way".into());
        let operation = Operation { number, client, begun, ended: begun, request, outcome };
        book.under_way.insert(number, operation);
        number
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
