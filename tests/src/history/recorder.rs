//! Records what clients in several threads ask and are told, on one clock.
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
    /// What was not answered yet, as if it never were.
    under_way: BTreeMap<u64, Operation>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { origin: Instant::now(), book: Mutex::default() }
    }
}

impl Recorder {
    /// The time that has passed since this recorder was made.
    pub fn now(&self) -> Moment {
        Moment(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Asks and writes down what became of it.
    pub fn run(&self, client: u32, request: Request, ask: impl FnOnce(&Request) -> Outcome) -> Outcome {
        let number = self.begin(client, request.clone());
        let outcome = ask(&request);
        let ended = self.now();
        let mut book = self.book();
        let begun = book.under_way.remove(&number).expect("it was begun above");
        book.ended.push(Operation { ended, outcome: outcome.clone(), ..begun });
        outcome
    }

    /// Everything so far; what is still under way is unknown.
    pub fn history(&self) -> History {
        let now = self.now();
        let book = self.book();
        let under_way =
            book.under_way.values().cloned().map(|operation| Operation { ended: now, ..operation });
        History::new(book.ended.iter().cloned().chain(under_way).collect())
    }

    /// How many operations have ended so far.
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
