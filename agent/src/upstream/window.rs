//! The sequences of an agent's commands: one for each command through all its retries.
//!
//! **Invariant:** no sequence given out is [`WINDOW`] or more above the lowest one that is still in use, because
//! servers keep the replies of all that lie between.

use lockmesh_protocol::id::{AgentNumber, Generation, RequestId};
use lockmesh_protocol::rpc::Unavailable;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// How far sequences in use may lie apart.
pub(super) const WINDOW: usize = 4096;

/// How many commands may wait for a sequence.
const LINE: usize = 16_384;

/// Which agent, in which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) number: AgentNumber,
    pub(super) generation: Generation,
}

#[derive(Debug)]
pub(super) struct Window {
    state: Mutex<State>,
    places: Semaphore,
    in_line: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    life: Option<Life>,
    /// The lowest sequence in use, or the next one to be given out.
    lowest: u64,
    /// For each sequence from `lowest` on whether it is in use.
    used: VecDeque<bool>,
}

/// A sequence in use; given back when dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    window: &'a Window,
    life: Life,
    sequence: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { state: Mutex::default(), places: Semaphore::new(WINDOW), in_line: AtomicUsize::new(0) }
    }
}

impl Window {
    /// The agent's present life, once it registered.
    pub(super) fn life(&self) -> Option<Life> {
        self.lock().life
    }

    /// Begins a new life: sequences start anew, those of earlier lives mean nothing any more.
    pub(super) fn begin_life(&self, life: Life) {
        let mut state = self.lock();
        let free = state.used.len();
        *state = State { life: Some(life), lowest: 1, used: VecDeque::new() };
        drop(state);
        self.places.add_permits(free);
    }

    /// The next sequence, in order of asking; `None` before the first registration.
    pub(super) async fn enter(&self) -> Result<Option<Slot<'_>>, Unavailable> {
        let place = match self.places.try_acquire() {
            Ok(place) => place,
            Err(_) => {
                let _line = Line::join(&self.in_line)?;
                self.places.acquire().await.expect("the window is never closed")
            }
        };
        let mut state = self.lock();
        let Some(life) = state.life else { return Ok(None) };
        place.forget();
        let sequence = state.lowest + state.used.len() as u64;
        state.used.push_back(true);
        drop(state);
        Ok(Some(Slot { window: self, life, sequence }))
    }

    /// How many sequences lie between the lowest in use and the next one.
    pub(super) fn span(&self) -> usize {
        self.lock().used.len()
    }

    fn leave(&self, life: Life, sequence: u64) {
        let mut state = self.lock();
        if state.life != Some(life) {
            return;
        }
        let place = usize::try_from(sequence - state.lowest).expect("a window fits the memory");
        state.used[place] = false;
        let mut free = 0;
        while state.used.front() == Some(&false) {
            state.used.pop_front();
            state.lowest += 1;
            free += 1;
        }
        drop(state);
        self.places.add_permits(free);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a panic elsewhere left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot<'_> {
    /// What goes out with the command now; `None` when the agent's life is another one by now.
    pub(super) fn request_id(&self) -> Option<RequestId> {
        let state = self.window.lock();
        let Life { number: agent, generation } = self.life;
        (state.life == Some(self.life)).then_some(RequestId {
            agent,
            generation,
            sequence: self.sequence,
            lowest: state.lowest,
        })
    }

    /// The life that it belongs to.
    pub(super) fn life(&self) -> Life {
        self.life
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.window.leave(self.life, self.sequence);
    }
}

/// A place in the bounded line of those who wait.
struct Line<'a>(&'a AtomicUsize);

impl<'a> Line<'a> {
    fn join(count: &'a AtomicUsize) -> Result<Self, Unavailable> {
        if count.fetch_add(1, Ordering::Relaxed) < LINE {
            return Ok(Self(count));
        }
        count.fetch_sub(1, Ordering::Relaxed);
        let reason = format!("{WINDOW} commands of this agent are under way and {LINE} wait for them");
        Err(Unavailable::Overloaded(reason))
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE, Life, Slot, WINDOW, Window};
    use lockmesh_protocol::id::{AgentNumber, Generation};
    use lockmesh_protocol::rpc::Unavailable;
    use std::sync::atomic::Ordering;

    fn life(generation: u32) -> Life {
        Life { number: AgentNumber(7), generation: Generation(generation) }
    }

    async fn enter(window: &Window) -> Slot<'_> {
        window.enter().await.unwrap().unwrap()
    }

    fn numbers(slot: &Slot<'_>) -> (u64, u64) {
        let id = slot.request_id().unwrap();
        (id.sequence, id.lowest)
    }

    #[tokio::test]
    async fn the_lowest_is_the_oldest_in_use() {
        let window = Window::default();
        assert!(window.enter().await.unwrap().is_none());
        window.begin_life(life(1));
        let (one, two, three) = (enter(&window).await, enter(&window).await, enter(&window).await);
        assert_eq!([numbers(&one), numbers(&two), numbers(&three)], [(1, 1), (2, 1), (3, 1)]);
        drop(two);
        assert_eq!(numbers(&three), (3, 1));
        drop(one);
        assert_eq!(numbers(&three), (3, 3));
        drop(three);
        assert_eq!(numbers(&enter(&window).await), (4, 4));
    }

    #[tokio::test]
    async fn one_that_is_stuck_holds_the_others_up_instead_of_being_forgotten() {
        let window = Window::default();
        window.begin_life(life(1));
        let stuck = enter(&window).await;
        for _ in 1..WINDOW {
            drop(enter(&window).await);
        }
        assert_eq!(window.span(), WINDOW);
        let mut next = tokio_test_pending(window.enter());
        assert!(next.as_mut().now_or_pending().await.is_none());
        drop(stuck);
        assert_eq!(numbers(&next.await.unwrap().unwrap()), (WINDOW as u64 + 1, WINDOW as u64 + 1));
    }

    #[tokio::test]
    async fn a_new_life_starts_anew() {
        let window = Window::default();
        window.begin_life(life(1));
        let old = enter(&window).await;
        window.begin_life(life(2));
        assert_eq!(old.request_id(), None);
        let new = enter(&window).await;
        assert_eq!((new.life(), numbers(&new)), (life(2), (1, 1)));
        drop(old);
        assert_eq!(numbers(&new), (1, 1));
        drop(new);
        assert_eq!(window.places.available_permits(), WINDOW);
    }

    #[tokio::test]
    async fn the_line_has_an_end() {
        let window = Window::default();
        window.begin_life(life(1));
        let _all = window.places.acquire_many(WINDOW as u32).await.unwrap();
        window.in_line.store(LINE, Ordering::Relaxed);
        assert!(matches!(window.enter().await, Err(Unavailable::Overloaded(_))));
        assert_eq!(window.in_line.load(Ordering::Relaxed), LINE);
    }

    fn tokio_test_pending<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        Box::pin(future)
    }

    trait NowOrPending: Future + Sized {
        /// The output if it is there at once.
        async fn now_or_pending(self) -> Option<Self::Output> {
            let mut this = std::pin::pin!(self);
            std::future::poll_fn(|context| {
                std::task::Poll::Ready(match this.as_mut().poll(context) {
                    std::task::Poll::Ready(output) => Some(output),
                    std::task::Poll::Pending => None,
                })
            })
            .await
        }
    }

    impl<F: Future> NowOrPending for F {}
}
