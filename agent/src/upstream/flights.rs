//! Blocking reads that share: all local waiters for the same news cost one upstream call.
//!
//! A flight is one upstream call with its waiters. Each waiter keeps its own time; the flight lives as long as it
//! has one. **Invariant:** a waiter is never told of a state older than the moment at which it asked, even if it
//! joined a flight whose answer was already on its way.

use super::quorum::Quorum;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::wire;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// How long a flight's call waits at the server before it is begun anew.
pub(super) const FLIGHT_TIME: Duration = Duration::from_secs(600);

type News = Result<Arc<Answer>, Unavailable>;

#[derive(Debug, Default)]
pub(super) struct Flights {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_waiter: u64,
    flights: HashMap<Arc<[u8]>, Flight>,
}

/// The waiters in order of joining; the flight's own number is its first waiter's.
#[derive(Debug)]
struct Flight {
    number: u64,
    task: Option<AbortHandle>,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    news: oneshot::Sender<News>,
}

/// What a flight waits for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) query: Query,
    pub(super) consistency: Consistency,
    pub(super) index: LogIndex,
}

impl Wanted {
    fn key(&self) -> Arc<[u8]> {
        let mut key = Vec::with_capacity(64);
        wire::encode_into(&(&self.query, self.consistency, self.index), &mut key);
        key.into()
    }

    fn request(&self, wait: Option<Duration>) -> Request {
        let blocking = wait.map(|wait| Blocking { index: self.index, wait });
        Request::Read { query: self.query.clone(), consistency: self.consistency, blocking }
    }
}

impl Flights {
    /// Waits for an answer newer than what is wanted; `None` when `wait` is over before there is one.
    pub(super) async fn wait(&self, quorum: &Arc<Quorum>, wanted: &Wanted, wait: Duration) -> Option<News> {
        let (seat, news) = self.join(quorum, wanted);
        let answer = tokio::time::timeout(wait, news).await.ok();
        drop(seat);
        // A flight that ends without a word was ended by the runtime's own end.
        answer.map(|news| {
            news.unwrap_or_else(|_| Err(Unavailable::Unknown("the agent is shutting down".into())))
        })
    }

    /// How many upstream calls and how many waiters there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.flights.len(), state.flights.values().map(|flight| flight.waiters.len()).sum())
    }

    fn join(&self, quorum: &Arc<Quorum>, wanted: &Wanted) -> (Seat<'_>, oneshot::Receiver<News>) {
        let (news, receiver) = oneshot::channel();
        let key = wanted.key();
        let mut state = self.lock();
        state.last_waiter += 1;
        let number = state.last_waiter;
        let flight = state.flights.entry(key.clone()).or_insert_with(|| {
            let task = tokio::spawn(fly(quorum.clone(), key.clone(), number, wanted.clone()));
            Flight { number, task: Some(task.abort_handle()), waiters: Vec::with_capacity(1) }
        });
        flight.waiters.push(Waiter { number, news });
        (Seat { flights: self, key, number }, receiver)
    }

    /// Takes the waiters of a flight that landed; another one may begin.
    fn land(&self, key: &Arc<[u8]>, number: u64) -> Vec<Waiter> {
        let mut state = self.lock();
        match state.flights.get(key) {
            Some(flight) if flight.number == number => {
                state.flights.remove(key).map(|flight| flight.waiters).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    fn leave(&self, key: &Arc<[u8]>, number: u64) {
        let mut state = self.lock();
        let Some(flight) = state.flights.get_mut(key) else { return };
        let Ok(place) = flight.waiters.binary_search_by_key(&number, |waiter| waiter.number) else { return };
        flight.waiters.remove(place);
        if flight.waiters.is_empty()
            && let Some(flight) = state.flights.remove(key)
            && let Some(task) = flight.task
        {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a panic elsewhere left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter's place in a flight; the last one who leaves ends the flight.
struct Seat<'a> {
    flights: &'a Flights,
    key: Arc<[u8]>,
    number: u64,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.flights.leave(&self.key, self.number);
    }
}

async fn fly(quorum: Arc<Quorum>, key: Arc<[u8]>, number: u64, wanted: Wanted) {
    let news = news(&quorum, &wanted).await;
    let mut waiters = quorum.flights.land(&key, number).into_iter();
    // The first waiter's asking began the flight. Whoever joined later may have done so when the answer had left
    // the server already, so its answer is asked for once more, for all of them together.
    let is_first_here = waiters.as_slice().first().is_some_and(|waiter| waiter.number == number);
    if is_first_here && let Some(first) = waiters.next() {
        let _ = first.news.send(news.clone());
    }
    if waiters.as_slice().is_empty() {
        return;
    }
    let news = match wanted.consistency {
        Consistency::Default | Consistency::Consistent if news.is_ok() => {
            let deadline = quorum.deadline();
            answer(quorum.ask(&wanted.request(None), Some(deadline)).await)
        }
        _ => news,
    };
    for waiter in waiters {
        // A waiter that has just left wants no news.
        let _ = waiter.news.send(news.clone());
    }
}

/// Asks until there is something new, through any number of connections.
async fn news(quorum: &Quorum, wanted: &Wanted) -> News {
    let request = wanted.request(Some(FLIGHT_TIME));
    loop {
        let begun = Instant::now();
        match answer(quorum.ask(&request, None).await) {
            Ok(answer) if answer.index <= wanted.index && begun.elapsed() >= FLIGHT_TIME => {}
            news => return news,
        }
    }
}

fn answer(response: Result<Response, Unavailable>) -> News {
    match response? {
        Response::Answer(answer) => Ok(Arc::new(answer)),
        other => Err(super::unexpected(&other)),
    }
}
