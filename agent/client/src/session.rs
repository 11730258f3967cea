//! Plain requests about sessions. For a session that is kept alive, see [`crate::SessionKeeper`].

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
    /// Returns the requests about sessions.
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { client: self }
    }
}

impl Sessions<'_> {
    /// Creates a session and returns its id.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, there may be a session with an unknown id.
    /// It ends with its TTL. Without a TTL it stays until an operator finds it in
    /// [`Sessions::list`] and destroys it.
    pub async fn create(&self, session: &NewSession) -> Result<String, Error> {
        Ok(self.create_with_window(session).await?.id)
    }

    /// Creates a session and returns its id and its health window.
    pub(crate) async fn create_with_window(&self, session: &NewSession) -> Result<CreatedSession, Error> {
        let body = serde_json::to_vec(session).map_err(|error| Error::Settings(error.to_string()))?;
        let reply = self.client.write(Verb::Put, Target::new("/v1/session/create"), body.into()).await?;
        let window = reply.header("x-lockmesh-health-window").and_then(HealthWindow::parse);
        Ok(CreatedSession { id: self.client.parse::<Created>(&reply)?.id, window })
    }

    /// Ends a session. Its keys are released or deleted, and blocked for its lock-delay. A session
    /// that does not exist is not an error.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the session may have ended. Destroying it
    /// again is safe.
    pub async fn destroy(&self, id: &str) -> Result<(), Error> {
        let target = Target::new("/v1/session/destroy/").name(id);
        self.client.write(Verb::Put, target, Bytes::new()).await.map(|_| ())
    }

    /// Ends a session on behalf of a guard: the agent retries until it is done, even after this
    /// process has exited.
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

    /// Renews a session's TTL; `None` if there is no such session.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the TTL may have been renewed. Retry before
    /// it expires; renewing again is safe.
    pub async fn renew(&self, id: &str) -> Result<Option<Session>, Error> {
        self.renew_within(id, CALL_TIMEOUT).await
    }

    /// Renews a session's TTL, with the timeout `limit`.
    pub(crate) async fn renew_within(&self, id: &str, limit: Duration) -> Result<Option<Session>, Error> {
        let target = Target::new("/v1/session/renew/").name(id).within(limit);
        let reply = self.client.send(Verb::Put, target, Bytes::new()).await?;
        if reply.status == 404 {
            return Ok(None);
        }
        Ok(self.client.parse::<Vec<Session>>(&accept(reply)?)?.into_iter().next())
    }

    /// Returns a session; `None` if there is no session with that id.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn info(&self, id: &str, read: &Read) -> Result<Answer<Option<Session>>, Error> {
        let target = Target::new("/v1/session/info/").name(id).read(read);
        let sessions: Answer<Vec<Session>> = self.client.read(target).await?;
        Ok(sessions.map(|sessions| sessions.into_iter().next()))
    }

    /// Returns a session with the current lease of its node, as known to the servers' leader.
    ///
    /// # Errors
    /// As [`Self::info`].
    pub async fn info_with_lease(&self, id: &str, read: &Read) -> Result<Answer<Option<Session>>, Error> {
        let target = Target::new("/v1/session/info/").name(id).flag("lease").read(read);
        let sessions: Answer<Vec<Session>> = self.client.read(target).await?;
        Ok(sessions.map(|sessions| sessions.into_iter().next()))
    }

    /// Returns a session, with the timeout `limit`.
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

    /// Returns the state of a session of this host's node; with an index, blocks until the state
    /// changes. Keepers and guards use it automatically.
    ///
    /// # Errors
    /// A read changes nothing. [`Error::Refused`] with 404 or 405 from an agent without node
    /// leases, such as Consul's; with 400 for a session of another node.
    pub async fn events(&self, id: &str, read: &Read) -> Result<Answer<SessionEvent>, Error> {
        self.client.read(Target::new("/v1/session/events/").name(id).read(read)).await
    }

    /// Returns all sessions, in ascending order of their ids.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn list(&self, read: &Read) -> Result<Answer<Vec<Session>>, Error> {
        self.client.read(Target::new("/v1/session/list").read(read)).await
    }

    /// Returns all sessions of a node.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn of_node(&self, node: &str, read: &Read) -> Result<Answer<Vec<Session>>, Error> {
        self.client.read(Target::new("/v1/session/node/").name(node).read(read)).await
    }
}
