//! Answers with a large number of rows: built and encoded in the background, one at a time for each
//! connection.
//!
//! Encoding 8 MiB takes tens of milliseconds. The driver's loop, and calls that share this
//! connection or this processor, must not stall for that long. The work is therefore done on its
//! own thread, and on few threads at once.

use lockmesh_core::state::{LongRead, too_long};
use lockmesh_net::frame::Encoded;
use lockmesh_protocol::rpc::{CallId, MAX_FRAME_BYTES, Response, Unavailable};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The maximum number waiting on one connection: each keeps the pages that it is built from.
const WAITING_MAX: usize = 64;

/// The approximate size of a part of an answer, in bytes. The JSON of the catalog has several times
/// as many, and an agent holds two parts for a client that reads slowly.
const PART_BYTES: usize = 256 << 10;

/// One builder per this many processors, so that some are left for other work.
const PROCESSORS_FOR_ONE: usize = 2;

/// Returns the permits for answers that a server builds at once.
pub(super) fn permits() -> Semaphore {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / PROCESSORS_FOR_ONE).max(1))
}

/// The long answers of one connection.
#[derive(Debug)]
pub(super) struct LongReads {
    permits: Arc<Semaphore>,
    waiting: VecDeque<(CallId, LongRead)>,
    building: Option<JoinHandle<Built>>,
}

/// An encoded answer, and `true` if it was too long.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) answer: Encoded,
    pub(super) is_too_long: bool,
}

impl LongReads {
    /// Creates an empty queue.
    pub(super) fn new(permits: Arc<Semaphore>) -> Self {
        Self { permits, waiting: VecDeque::new(), building: None }
    }

    /// Queues a long read; returns the error to answer with if too many wait.
    pub(super) fn queue(&mut self, call: CallId, read: LongRead) -> Option<Response> {
        if self.waiting.len() >= WAITING_MAX {
            let what = format!("too many queued long listings of this agent ({WAITING_MAX})");
            return Some(Response::Unavailable(Unavailable::Overloaded(what)));
        }
        // In order, one at a time: one agent's listings cannot occupy all threads.
        self.waiting.push_back((call, read));
        self.begin();
        None
    }

    /// Waits for the next answer that is built; pending if no answer is queued. Cancel safe.
    pub(super) async fn built(&mut self) -> Built {
        // Never ready: the loop around it waits for other answers meanwhile.
        let Some(building) = &mut self.building else { return std::future::pending().await };
        let built = building.await;
        self.building = None;
        self.begin();
        // It is canceled only when the whole server ends.
        let Ok(built) = built else { return std::future::pending().await };
        built
    }

    fn begin(&mut self) {
        if self.building.is_some() {
            return;
        }
        self.building = self.waiting.pop_front().map(|(call, read)| {
            let permits = Arc::clone(&self.permits);
            tokio::spawn(async move {
                // The semaphore is never closed.
                let permit = permits.acquire_owned().await;
                let built = tokio::task::spawn_blocking(move || build(call, read)).await;
                drop(permit);
                built.unwrap_or_else(|_| refusal(call))
            })
        });
    }
}

impl Drop for LongReads {
    fn drop(&mut self) {
        if let Some(building) = &self.building {
            building.abort();
        }
    }
}

fn build(call: CallId, read: LongRead) -> Built {
    let response = read.into_response(MAX_FRAME_BYTES, PART_BYTES);
    let is_too_long = matches!(response, Response::Unavailable(_));
    match Encoded::new(&(call, response)) {
        Ok(answer) => Built { answer, is_too_long },
        Err(_) => refusal(call),
    }
}

fn refusal(call: CallId) -> Built {
    let answer = Encoded::new(&(call, too_long(MAX_FRAME_BYTES))).expect("a refusal is short");
    Built { answer, is_too_long: true }
}
