//! `/v1/session/events/<id>`: the state of a session for its guards; once, as a blocking query, or
//! as a stream.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::event_stream::{self, EventSender};
use super::super::shapes;
use super::session::named;
use crate::boot_clock::BootClock;
use crate::metrics::{BlockedWatcher, LIMITS};
use crate::session_watches::{FollowError, Followed};
use http::Response;
use lockmesh_agent_core::session_events::SessionState;
use lockmesh_client::shape::json::{Layout, render};
use lockmesh_protocol::id::SessionId;

/// Returns the current state; an invalid id is a session that never existed.
pub(super) async fn events(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let session = named(call)?;
    let clock = call.api.session_watches.clock();
    let mut followed = call.api.session_watches.follow(session).await?;
    if event_stream::is_wanted(&call.head.headers) {
        return Ok(event_stream::respond(|sender| stream(sender, followed, session, clock)));
    }
    if let Some(blocking) = options.blocking {
        let _blocked = BlockedWatcher::begin();
        // After the wait, the current state is the answer, changed or not.
        let _ = tokio::time::timeout(blocking.wait, followed.behind(blocking.index.0)).await;
    }
    let event = shapes::session_event(session, &followed.event(), clock.now());
    Ok(answer::with_index(answer::json(&event, call.layout()), event.index))
}

/// Sends the current state, and then each change, until the session is lost.
async fn stream(sender: EventSender, mut followed: Followed, session: SessionId, clock: BootClock) {
    loop {
        let event = followed.newest();
        let shape = shapes::session_event(session, &event, clock.now());
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
