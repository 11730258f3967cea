//! Requests that fire and read user events.

use crate::client::{Answer, Client, Target};
use crate::connection::Verb;
use crate::error::Error;
use crate::read::Read;
use crate::shape::event::Event;
use bytes::Bytes;

/// Requests about user events. See [`Client::events`].
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    client: &'a Client,
}

/// A user event to be fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// The event's name.
    pub name: String,
    /// The payload; about 400 bytes at most.
    pub payload: Bytes,
    /// A regular expression for the names of the target hosts, like the next two. Empty for all
    /// hosts.
    pub node: String,
    /// A regular expression for the id of a service on the target hosts.
    pub service: String,
    /// A regular expression for a tag of that service.
    pub tag: String,
}

impl Client {
    /// Returns the requests about user events.
    pub fn events(&self) -> Events<'_> {
        Events { client: self }
    }
}

impl Events<'_> {
    /// Fires an event. It is sent to all hosts; each receives it at most once.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field. Unless [`Error::certainly_not_done`] is
    /// `true`, the event may have been sent; firing again creates another event.
    pub async fn fire(&self, event: &NewEvent) -> Result<Event, Error> {
        let filters = [("node", &event.node), ("service", &event.service), ("tag", &event.tag)];
        let given = filters.into_iter().filter(|(_, filter)| !filter.is_empty());
        let target = Target::new("/v1/event/fire/").name(&event.name);
        let target = given.fold(target, |target, (name, filter)| target.with(name, filter));
        let reply = self.client.write(Verb::Put, target, event.payload.clone()).await?;
        self.client.parse(&reply)
    }

    /// Returns the newest events that the agent received for its host, oldest first; events of all
    /// names if `name` is empty. The index is not monotonic: a blocking read ends when the index
    /// differs.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn list(&self, name: &str, read: &Read) -> Result<Answer<Vec<Event>>, Error> {
        let target = Target::new("/v1/event/list").read(read);
        self.client.read(if name.is_empty() { target } else { target.with("name", name) }).await
    }
}
