//! Requests about prepared queries: stored descriptions of services to look up.

use crate::client::{Answer, Client, Target};
use crate::connection::Verb;
use crate::error::Error;
use crate::read::Read;
use crate::shape::prepared_query::{Executed, Explained, PreparedQuery};
use crate::shape::session::Created;
use bytes::Bytes;

/// Requests about prepared queries. See [`Client::prepared_queries`].
#[derive(Clone, Copy, Debug)]
pub struct PreparedQueries<'a> {
    client: &'a Client,
}

impl Client {
    /// Returns the requests about prepared queries.
    pub fn prepared_queries(&self) -> PreparedQueries<'_> {
        PreparedQueries { client: self }
    }
}

impl PreparedQueries<'_> {
    /// Creates a query from its JSON, and returns its id. A [`PreparedQuery`] is such JSON.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field. Unless [`Error::certainly_not_done`] is
    /// `true`, the query may exist: see [`PreparedQueries::list`].
    pub async fn create(&self, json: impl Into<Bytes>) -> Result<String, Error> {
        let reply = self.client.write(Verb::Post, Target::new("/v1/query"), json.into()).await?;
        Ok(self.client.parse::<Created>(&reply)?.id)
    }

    /// Replaces a query by what this JSON describes.
    ///
    /// # Errors
    /// As [`PreparedQueries::create`]. Updating it again is safe.
    pub async fn update(&self, id: &str, json: impl Into<Bytes>) -> Result<(), Error> {
        let target = Target::new("/v1/query/").name(id);
        self.client.write(Verb::Put, target, json.into()).await.map(|_| ())
    }

    /// Deletes a query.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not exist. Unless [`Error::certainly_not_done`] is `true`, it
    /// may have been deleted.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let target = Target::new("/v1/query/").name(id);
        self.client.write(Verb::Delete, target, Bytes::new()).await.map(|_| ())
    }

    /// Returns all queries, ordered by id.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn list(&self, read: &Read) -> Result<Answer<Vec<PreparedQuery>>, Error> {
        self.client.read(Target::new("/v1/query").read(read)).await
    }

    /// Returns the instances that the query with this id or name selects, at most `limit` unless
    /// it is 0. `near` is the node to sort by distance from; empty for the query's own.
    ///
    /// # Errors
    /// [`Error::Refused`] with status 404 if no query answers for the name. A read changes nothing.
    /// Retry if [`Error::is_transient`] returns `true`.
    pub async fn execute(&self, name: &str, limit: u64, near: &str, read: &Read) -> Result<Executed, Error> {
        let target = Target::new("/v1/query/").name(name).name("/execute").read(read);
        let target = if limit > 0 { target.number("limit", limit) } else { target };
        let target = if near.is_empty() { target } else { target.with("near", near) };
        Ok(self.client.read(target).await?.value)
    }

    /// Returns the query that answers for a name, with its template filled.
    ///
    /// # Errors
    /// As [`PreparedQueries::execute`].
    pub async fn explain(&self, name: &str, read: &Read) -> Result<Explained, Error> {
        Ok(self.client.read(Target::new("/v1/query/").name(name).name("/explain").read(read)).await?.value)
    }
}
