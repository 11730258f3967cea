//! `/v1/session/events/<id>`: the state of a session for its guards; once, as a blocking query, or
//! as a stream.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::event_stream::{self, EventSender};
use super::super::shapes;
use super::session::named;
use crate::metrics::{BlockedWatcher, LIMITS};
use crate::session_watches::{FollowError, Followed, SessionWatches};
use http::Response;
use lockmesh_agent_core::session_events::SessionState;
use lockmesh_client::shape::json::{Layout, render};
use lockmesh_protocol::id::SessionId;
use std::sync::Arc;

/// Returns the current state; an invalid id is a session that never existed.
pub(super) async fn events(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let session = named(call)?;
    let clock = call.api.feeds.session_watches.clock();
    let watches = &call.api.feeds.session_watches;
    let polled = |index| watches.change_handover(|handover| handover.polled(session, index));
    let poll = options.blocking.as_ref().map(|blocking| polled(blocking.index.0));
    let mut followed = watches.follow(session).await?;
    if event_stream::is_wanted(&call.head.headers) {
        let watches = Arc::clone(watches);
        return Ok(event_stream::respond(|sender| stream(sender, followed, session, watches)));
    }
    if let (Some(blocking), Some(poll)) = (options.blocking, poll) {
        let _blocked = BlockedWatcher::begin();
        // After the wait, the current state is the answer, changed or not.
        let _ = tokio::time::timeout(blocking.wait, followed.behind(poll.behind)).await;
    }
    let event = watches.reported(session, followed.event(), poll);
    let event = shapes::session_event(session, &event, clock.now());
    Ok(answer::with_index(answer::json(&event, call.layout()), event.index))
}

/// Sends the current state, and then each change, until the session is lost.
async fn stream(
    sender: EventSender,
    mut followed: Followed,
    session: SessionId,
    watches: Arc<SessionWatches>,
) {
    loop {
        let event = watches.reported(session, followed.newest(), None);
        let shape = shapes::session_event(session, &event, watches.clock().now());
        let data = render(&shape, Layout { indented: false, newline: false });
        if !sender.send(&shape.state, shape.index, &data).await || event.state == SessionState::Lost {
            return;
        }
        if sender.await_news(followed.changed()).await != Some(true) {
            return;
        }
    }
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Unavailable(unavailable) => unavailable.into(),
            FollowError::OtherNode(_) => Self::bad_request(error.to_string()),
            FollowError::Full(_) => {
                LIMITS.with_label_values(&["watched_sessions"]).inc();
                Self::not_done(error.to_string())
            }
        }
    }
}
