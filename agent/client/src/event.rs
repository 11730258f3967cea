//! Firing and reading user events.

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

/// An event that is to be fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// What it is about.
    pub name: String,
    /// Any bytes; some 400 fit.
    pub payload: Bytes,
    /// For hosts with such a name: a regular expression, as the next two. Empty for all hosts.
    pub node: String,
    /// For hosts with such a service, by its id.
    pub service: String,
    /// For hosts on which such a service has such a tag.
    pub tag: String,
}

impl Client {
    /// Requests about user events.
    pub fn events(&self) -> Events<'_> {
        Events { client: self }
    }
}

impl Events<'_> {
    /// Fires an event: it goes to all hosts, each of which hears of it at most once.
    ///
    /// # Errors
    /// [`Error::Refused`] says what is wrong with it. Unless [`Error::certainly_not_done`], it may
    /// be on its way; to fire it again is another event.
    pub async fn fire(&self, event: &NewEvent) -> Result<Event, Error> {
        let filters = [("node", &event.node), ("service", &event.service), ("tag", &event.tag)];
        let given = filters.into_iter().filter(|(_, filter)| !filter.is_empty());
        let target = Target::new("/v1/event/fire/").name(&event.name);
        let target = given.fold(target, |target, (name, filter)| target.with(name, filter));
        let reply = self.client.write(Verb::Put, target, event.payload.clone()).await?;
        self.client.parse(&reply)
    }

    /// The newest events that the agent has received and that were for its host, the oldest first;
    /// all of them where the name is empty. The index does not grow: a blocking read ends when it
    /// is another one.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn list(&self, name: &str, read: &Read) -> Result<Answer<Vec<Event>>, Error> {
        let target = Target::new("/v1/event/list").read(read);
        self.client.read(if name.is_empty() { target } else { target.with("name", name) }).await
    }
}
