//! The user events of this host: fired by its applications, received by gossip, listed for clients.
//! [`EventLog`] decides which events are kept and which hosts an event is for.
//!
//! An agent outside the mesh fires events for itself alone.

use crate::boot_clock::BootClock;
use crate::metrics::{BlockedWatcher, USER_EVENTS};
use lockmesh_agent_core::event_log::{EventLog, Received};
use lockmesh_agent_core::gossip::event_flow::{EventFlow, TooManyEvents};
use lockmesh_protocol::gossip::event::UserEvent;
use lockmesh_protocol::id::NodeName;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The maximum number of events queued for the mesh, which receives them at once.
const QUEUED: usize = 64;

/// The reason why an event was not fired. No host received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FireError {
    /// This host has fired too many.
    #[error(transparent)]
    TooMany(#[from] TooManyEvents),
    /// No other host would receive it yet.
    #[error("this agent is not in the mesh yet: no server has registered it since it started")]
    NotMember,
    /// The agent is stopping or overloaded.
    #[error("the agent is stopping or overloaded")]
    Busy,
}

/// An event on its way into the mesh.
#[derive(Debug)]
pub(crate) struct Fired {
    /// The event.
    pub(crate) event: UserEvent,
    /// The channel for its outcome.
    pub(crate) outcome: oneshot::Sender<Result<(), FireError>>,
}

/// The user events of this host, and the way to the other hosts.
#[derive(Debug)]
pub struct Events {
    pub(crate) node: NodeName,
    shown: watch::Sender<Shown>,
    way: Way,
}

#[derive(Debug, Default)]
struct Shown {
    log: EventLog,
    is_stopping: bool,
}

/// The destination of events fired here.
#[derive(Debug)]
enum Way {
    Mesh(mpsc::Sender<Fired>),
    Nowhere(Mutex<EventFlow>),
}

impl Events {
    /// Creates the events of a host outside the mesh.
    pub fn alone(node: NodeName) -> Arc<Self> {
        Self::new(node, Way::Nowhere(Mutex::new(EventFlow::new(BootClock::default().now()))))
    }

    /// Creates the events of a host in the mesh, and the receiver of the events to fire.
    pub(crate) fn in_mesh(node: NodeName) -> (Arc<Self>, mpsc::Receiver<Fired>) {
        let (sender, fired) = mpsc::channel(QUEUED);
        (Self::new(node, Way::Mesh(sender)), fired)
    }

    fn new(node: NodeName, way: Way) -> Arc<Self> {
        Arc::new(Self { node, shown: watch::Sender::default(), way })
    }

    /// Fires an event: it is listed here, and on its way to all hosts, when this returns.
    ///
    /// # Errors
    /// No host received it.
    pub async fn fire(&self, mut event: UserEvent) -> Result<(), FireError> {
        match &self.way {
            Way::Mesh(mesh) => {
                let (outcome, told) = oneshot::channel();
                mesh.try_send(Fired { event, outcome }).map_err(|_| FireError::Busy)?;
                told.await.unwrap_or(Err(FireError::Busy))
            }
            Way::Nowhere(flow) => {
                let mut flow = flow.lock().unwrap_or_else(PoisonError::into_inner);
                flow.fire(BootClock::default().now(), &mut event)?;
                self.receive(event);
                Ok(())
            }
        }
    }

    /// Handles an event that was received or fired here.
    pub(crate) fn receive(&self, event: UserEvent) {
        let mut outcome = Received::Known;
        self.shown.send_if_modified(|shown| {
            // Services are registered with the servers, and none with this agent itself.
            outcome = shown.log.record(event, self.node.as_str(), &[]);
            outcome == Received::Kept
        });
        let word = match outcome {
            Received::Kept => "kept",
            Received::ForOthers => "for_others",
            Received::Known => "known",
            Received::NotUnderstood => "not_understood",
        };
        USER_EVENTS.with_label_values(&[word]).inc();
    }

    /// Returns the events of this name, or all, and their index. Waits up to the given time while
    /// the index is the given one.
    pub async fn list(
        &self,
        name: Option<&str>,
        same_as: Option<(u64, Duration)>,
    ) -> (u64, Vec<Arc<UserEvent>>) {
        if let Some((index, wait)) = same_as {
            let _blocked = BlockedWatcher::begin();
            let mut shown = self.shown.subscribe();
            let is_other = |shown: &Shown| shown.is_stopping || shown.log.index(name) != index;
            // After the wait, the current events are the answer, changed or not.
            let _ = tokio::time::timeout(wait, shown.wait_for(is_other)).await;
        }
        let shown = self.shown.borrow();
        (shown.log.index(name), shown.log.list(name))
    }

    /// Answers all blocking queries with the current events.
    pub fn stop(&self) {
        self.shown.send_modify(|shown| shown.is_stopping = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lockmesh_protocol::gossip::event::EventFilters;
    use lockmesh_protocol::id::EventId;
    use std::task::Poll;

    fn event(number: u8) -> UserEvent {
        let id = EventId::from_random([number; 16]);
        UserEvent::new(id, "deploy".into(), Bytes::new(), EventFilters::default()).expect("it is short")
    }

    #[tokio::test]
    async fn fire_returns_mesh_outcome() {
        let (events, mut mesh) = Events::in_mesh("n1".into());
        let fire = async |answer: Result<(), FireError>, mesh: &mut mpsc::Receiver<Fired>| {
            let (told, ()) = tokio::join!(events.fire(event(1)), async {
                let fired = mesh.recv().await.expect("it was fired");
                events.receive(fired.event);
                fired.outcome.send(answer).expect("it is waited for");
            });
            told
        };
        for answer in [Ok(()), Err(FireError::NotMember), Err(FireError::TooMany(TooManyEvents))] {
            assert_eq!(fire(answer, &mut mesh).await, answer);
        }
        assert_eq!(events.list(None, None).await.1.len(), 1, "a repeated event is listed once");
        drop(mesh);
        assert_eq!(events.fire(event(2)).await, Err(FireError::Busy), "the agent stops");
    }

    #[tokio::test]
    async fn full_queue_rejects_fire() {
        let (events, _mesh) = Events::in_mesh("n1".into());
        let mut waiting = Vec::new();
        for number in 0..=QUEUED as u8 {
            let events = Arc::clone(&events);
            waiting.push(Box::pin(async move { events.fire(event(number)).await }));
        }
        let last = waiting.pop().expect("there are some");
        for fire in &mut waiting {
            let is_waiting =
                std::future::poll_fn(|context| Poll::Ready(fire.as_mut().poll(context).is_pending()));
            assert!(is_waiting.await);
        }
        assert_eq!(last.await, Err(FireError::Busy));
    }
}
