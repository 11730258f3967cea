//! Request ids for tasks: each waits until it has a sequence, and gives it back when it is over. Which, and when,
//! [`RequestIds`] decides.

use lockmesh_agent_core::request_ids::{
    Admitted, Entry, MAX_SPAN, MAX_WAITING, Registration, RequestIds, Sequence,
};
use lockmesh_protocol::id::RequestId;
use lockmesh_protocol::rpc::Unavailable;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

#[derive(Debug, Default)]
pub(super) struct Sequences(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    ids: RequestIds,
    /// Those who wait, by their tokens.
    waiting: HashMap<u64, oneshot::Sender<Sequence>>,
    last_token: u64,
}

/// A sequence in use; given back when dropped.
#[derive(Debug)]
pub(super) struct InUse<'a> {
    sequences: &'a Sequences,
    sequence: Sequence,
}

impl Sequences {
    /// The agent's present registration, once it has one.
    pub(super) fn registration(&self) -> Option<Registration> {
        self.lock().ids.registration()
    }

    /// The servers registered this agent: sequences begin anew.
    pub(super) fn register(&self, registration: Registration) {
        let mut state = self.lock();
        let admitted = state.ids.register(registration);
        self.tell(state, admitted);
    }

    /// The next sequence, in order of asking; `None` before the first registration.
    pub(super) async fn enter(&self) -> Result<Option<InUse<'_>>, Unavailable> {
        let mut waiting = {
            let mut state = self.lock();
            state.last_token += 1;
            let token = state.last_token;
            match state.ids.enter(token) {
                Entry::Entered(sequence) => return Ok(Some(self.in_use(sequence))),
                Entry::NotRegistered => return Ok(None),
                Entry::Full => return Err(full()),
                Entry::Waits => {
                    let (sender, admission) = oneshot::channel();
                    state.waiting.insert(token, sender);
                    Waiting { sequences: self, token, admission }
                }
            }
        };
        let admission = &mut waiting.admission;
        let sequence = admission.await.expect("who waits is admitted or stops waiting");
        Ok(Some(self.in_use(sequence)))
    }

    /// How many sequences lie between the lowest in use and the next one.
    pub(super) fn span(&self) -> usize {
        self.lock().ids.span()
    }

    fn in_use(&self, sequence: Sequence) -> InUse<'_> {
        InUse { sequences: self, sequence }
    }

    fn leave(&self, sequence: Sequence) {
        let mut state = self.lock();
        let admitted = state.ids.leave(sequence);
        self.tell(state, admitted);
    }

    /// Gives those who waited their sequences. One who has just gone gives it back, and so admits the next.
    fn tell(&self, mut state: MutexGuard<'_, State>, mut admitted: Vec<Admitted>) {
        while let Some((token, sequence)) = admitted.pop() {
            let told = state.waiting.remove(&token).is_some_and(|sender| sender.send(sequence).is_ok());
            if !told {
                admitted.extend(state.ids.leave(sequence));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one step, so a panic elsewhere left nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse<'_> {
    /// What goes out with the command now; `None` when the agent has registered anew since.
    pub(super) fn request_id(&self) -> Option<RequestId> {
        self.sequences.lock().ids.request_id(self.sequence)
    }

    /// The registration that it belongs to.
    pub(super) fn registration(&self) -> Registration {
        self.sequence.registration
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.sequences.leave(self.sequence);
    }
}

/// One who waits for a sequence, until it goes.
struct Waiting<'a> {
    sequences: &'a Sequences,
    token: u64,
    admission: oneshot::Receiver<Sequence>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.sequences.lock();
        if state.waiting.remove(&self.token).is_some() {
            return state.ids.stop_waiting(self.token);
        }
        drop(state);
        // It was admitted, and did not live to hear of it.
        if let Ok(sequence) = self.admission.try_recv() {
            self.sequences.leave(sequence);
        }
    }
}

fn full() -> Unavailable {
    Unavailable::Overloaded(format!(
        "{MAX_SPAN} commands of this agent are under way and {MAX_WAITING} wait for them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::id::{AgentNumber, Generation};
    use std::future::poll_fn;
    use std::task::Poll;

    async fn enter(sequences: &Sequences) -> InUse<'_> {
        sequences.enter().await.expect("there is room").expect("it is registered")
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_one_is_over_and_who_has_gone_holds_nobody_up() {
        let sequences = Sequences::default();
        assert!(sequences.enter().await.expect("there is room").is_none());
        sequences.register(Registration { number: AgentNumber(7), generation: Generation(1) });
        let stuck = enter(&sequences).await;
        for _ in 1..MAX_SPAN {
            drop(enter(&sequences).await);
        }
        let [mut gone, mut deaf, mut next] = [(); 3].map(|()| Box::pin(enter(&sequences)));
        for waiting in [&mut gone, &mut deaf, &mut next] {
            assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        }
        drop(gone);
        drop(stuck);
        // It was admitted, and goes before it hears of it.
        drop(deaf);
        let id = next.await.request_id().expect("the registration is the same");
        let first = MAX_SPAN as u64 + 1;
        assert_eq!((id.sequence, id.lowest), (first + 1, first + 1));
        assert_eq!(sequences.span(), 0, "all were given back");
    }
}
