//! Sessions: the plain requests. One that keeps itself alive is a [`crate::SessionKeeper`].

use crate::client::{Answer, CALL_TIMEOUT, Client, Target, accept};
use crate::connection::Verb;
use crate::duration::format_duration;
use crate::error::Error;
use crate::holder::CreatedSession;
use crate::holder::EndReason;
use crate::read::Read;
use crate::session_options::HealthWindow;
use crate::shape::session::{Created, NewSession, Session, SessionEvent};
use bytes::Bytes;
use std::time::Duration;

/// Requests about sessions. See [`Client::sessions`].
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    client: &'a Client,
}

impl Client {
    /// Requests about sessions.
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { client: self }
    }
}

impl Sessions<'_> {
    /// Creates a session and answers its id.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], there may be a session whose id nobody was told. It
    /// ends with its TTL; one without a TTL stays until somebody finds it in [`Sessions::list`] and
    /// destroys it.
    pub async fn create(&self, session: &NewSession) -> Result<String, Error> {
        Ok(self.create_and_tell_window(session).await?.id)
    }

    /// The same, with the health window that the session has.
    pub(crate) async fn create_and_tell_window(&self, session: &NewSession) -> Result<CreatedSession, Error> {
        let body = serde_json::to_vec(session).map_err(|error| Error::Settings(error.to_string()))?;
        let reply = self.client.write(Verb::Put, Target::new("/v1/session/create"), body.into()).await?;
        let window = reply.header("x-lockmesh-health-window").and_then(HealthWindow::parse);
        Ok(CreatedSession { id: self.client.parse::<Created>(&reply)?.id, window })
    }

    /// Ends a session. Its keys are released or deleted and closed for its lock-delay; no error if
    /// there is none.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the session may have ended. To destroy it again is
    /// safe.
    pub async fn destroy(&self, id: &str) -> Result<(), Error> {
        let target = Target::new("/v1/session/destroy/").name(id);
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    /// Ends a session as a guard does: the agent retries that until it is done, also when this
    /// process is gone.
    ///
    /// # Errors
    /// As [`Self::destroy`].
    pub(crate) async fn end(&self, id: &str, reason: EndReason) -> Result<(), Error> {
        let target = Target::new("/v1/session/destroy/").name(id);
        let target = match reason {
            EndReason::Closed => target.flag("retry"),
            EndReason::GivenUp(None) => target.flag("given-up"),
            EndReason::GivenUp(Some(silent_for)) => target.with("given-up", &format_duration(silent_for)),
        };
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    /// Renews a session's TTL; `None` when there is no such session.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`], the TTL may have begun anew. Renew again while there
    /// is time: that is safe.
    pub async fn renew(&self, id: &str) -> Result<Option<Session>, Error> {
        self.renew_within(id, CALL_TIMEOUT).await
    }

    /// The same, but gives the request up after `limit`.
    pub(crate) async fn renew_within(&self, id: &str, limit: Duration) -> Result<Option<Session>, Error> {
        let target = Target::new("/v1/session/renew/").name(id).within(limit);
        let reply = self.client.send(Verb::Put, target, Bytes::new()).await?;
        if reply.status == 404 {
            return Ok(None);
        }
        Ok(self.client.parse::<Vec<Session>>(&accept(reply)?)?.into_iter().next())
    }

    /// One session; `None` when there is none of that id.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn info(&self, id: &str, read: &Read) -> Result<Answer<Option<Session>>, Error> {
        let target = Target::new("/v1/session/info/").name(id).read(read);
        let sessions: Answer<Vec<Session>> = self.client.read(target).await?;
        Ok(sessions.map(|sessions| sessions.into_iter().next()))
    }

    /// The same with the lease of its node, as far as the servers' leader knows it now.
    ///
    /// # Errors
    /// As [`Self::info`].
    pub async fn info_with_lease(&self, id: &str, read: &Read) -> Result<Answer<Option<Session>>, Error> {
        let target = Target::new("/v1/session/info/").name(id).flag("lease").read(read);
        let sessions: Answer<Vec<Session>> = self.client.read(target).await?;
        Ok(sessions.map(|sessions| sessions.into_iter().next()))
    }

    /// The same, but gives the request up after `limit`.
    pub(crate) async fn info_within(
        &self,
        id: &str,
        read: &Read,
        limit: Duration,
    ) -> Result<Answer<Option<Session>>, Error> {
        let target = Target::new("/v1/session/info/").name(id).read(read).within(limit);
        let sessions: Answer<Vec<Session>> = self.client.read(target).await?;
        Ok(sessions.map(|sessions| sessions.into_iter().next()))
    }

    /// How a session of this host's node stands; with an index, as soon as there is news. A keeper
    /// and a guard follow this by themselves.
    ///
    /// # Errors
    /// [`Error::Refused`] with 404 or 405 from an agent that keeps no node lease, such as Consul's;
    /// with 400 for a session of another node. Nothing was changed, whatever the error.
    pub async fn events(&self, id: &str, read: &Read) -> Result<Answer<SessionEvent>, Error> {
        self.client.read(Target::new("/v1/session/events/").name(id).read(read)).await
    }

    /// All sessions, ascending by id.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn list(&self, read: &Read) -> Result<Answer<Vec<Session>>, Error> {
        self.client.read(Target::new("/v1/session/list").read(read)).await
    }

    /// All sessions of a node.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn of_node(&self, node: &str, read: &Read) -> Result<Answer<Vec<Session>>, Error> {
        self.client.read(Target::new("/v1/session/node/").name(node).read(read)).await
    }
}
