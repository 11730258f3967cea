//! The user events of this host: fired by its applications, received by gossip, listed to whoever
//! asks. What is kept and for whom an event is, [`EventLog`] decides.
//!
//! Where this agent takes no part in the mesh, it fires for itself alone.

use crate::boot_clock::BootClock;
use crate::metrics::{BlockedWatcher, USER_EVENTS};
use lockmesh_agent_core::event_log::{EventLog, Received};
use lockmesh_protocol::gossip::event::UserEvent;
use lockmesh_protocol::gossip::event_flow::{EventFlow, TooManyEvents};
use lockmesh_protocol::id::NodeName;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// So many events wait for the mesh at a time; it takes them at once.
const QUEUED: usize = 64;

/// Why an event was not fired. Nobody has heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FireError {
    /// This host has fired too many.
    #[error(transparent)]
    TooMany(#[from] TooManyEvents),
    /// Nobody would hear of it yet.
    #[error("this agent is not in the mesh yet: no server has registered it since it started")]
    NotMember,
    /// The agent stops, or has very much to do.
    #[error("the agent is stopping or overloaded")]
    Busy,
}

/// An event on its way into the mesh.
#[derive(Debug)]
pub(crate) struct Fired {
    /// What was fired.
    pub(crate) event: UserEvent,
    /// What became of it.
    pub(crate) outcome: oneshot::Sender<Result<(), FireError>>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Events {
    node: NodeName,
    shown: watch::Sender<Shown>,
    way: Way,
}

#[derive(Debug, Default)]
struct Shown {
    log: EventLog,
    is_stopping: bool,
}

/// Where events go that are fired here.
#[derive(Debug)]
enum Way {
    Mesh(mpsc::Sender<Fired>),
    Nowhere(Mutex<EventFlow>),
}

impl Events {
    /// Those of a host that is in no mesh.
    pub fn alone(node: NodeName) -> Arc<Self> {
        Self::new(node, Way::Nowhere(Mutex::new(EventFlow::new(BootClock::default().now()))))
    }

    /// Those of a host in the mesh, and what the mesh is to fire.
    pub(crate) fn in_mesh(node: NodeName) -> (Arc<Self>, mpsc::Receiver<Fired>) {
        let (sender, fired) = mpsc::channel(QUEUED);
        (Self::new(node, Way::Mesh(sender)), fired)
    }

    fn new(node: NodeName, way: Way) -> Arc<Self> {
        Arc::new(Self { node, shown: watch::Sender::default(), way })
    }

    /// Fires an event: it is on its way to all hosts then.
    ///
    /// # Errors
    /// Nobody has heard of it.
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

    /// An event has come, or was fired here.
    pub(crate) fn receive(&self, event: UserEvent) {
        let mut outcome = Received::Known;
        self.shown.send_if_modified(|shown| {
            // Services are registered with the servers, and none with this agent itself.
            outcome = shown.log.take(event, self.node.as_str(), &[]);
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

    /// The events of this name, or all, and their index; waits so long while that is the given one.
    pub async fn list(
        &self,
        name: Option<&str>,
        same_as: Option<(u64, Duration)>,
    ) -> (u64, Vec<Arc<UserEvent>>) {
        if let Some((index, wait)) = same_as {
            let _blocked = BlockedWatcher::begin();
            let mut shown = self.shown.subscribe();
            let is_other = |shown: &Shown| shown.is_stopping || shown.log.index(name) != index;
            // Whatever is there when the wait is over is the answer, news or not.
            let _ = tokio::time::timeout(wait, shown.wait_for(is_other)).await;
        }
        let shown = self.shown.borrow();
        (shown.log.index(name), shown.log.list(name))
    }

    /// Whoever waits is answered with what there is.
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
    async fn whoever_fires_is_told_what_the_mesh_says() {
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
        assert_eq!(events.list(None, None).await.1.len(), 1, "the same one is listed once");
        drop(mesh);
        assert_eq!(events.fire(event(2)).await, Err(FireError::Busy), "the agent stops");
    }

    #[tokio::test]
    async fn no_more_wait_for_the_mesh_than_there_is_room_for() {
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
