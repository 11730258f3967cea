//! `/v1/event/…`: user events, fired and listed by the agent alone. No server is asked, and no
//! leader is needed.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::shapes;
use crate::events::FireError;
use crate::metrics::LIMITS;
use http::Response;
use lockmesh_agent_core::event_filter::{EventFilter, FilterError};
use lockmesh_net::random;
use lockmesh_protocol::acl::{Access, Resource};
use lockmesh_protocol::gossip::event::{EventError, EventFilters, UserEvent};
use lockmesh_protocol::id::EventId;

/// Fires an event. The response does not wait for delivery and contains no delivery time.
pub(super) async fn fire(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    if call.tail.is_empty() {
        return Err(Failure::bad_request("Missing name"));
    }
    let filter = |name| call.params.non_empty(name).unwrap_or_default().to_owned();
    let filters = EventFilters { node: filter("node"), service: filter("service"), tag: filter("tag") };
    EventFilter::new(&filters)?;
    call.check_place()?;
    call.judgement().await?.check(Resource::Event, Access::Write, call.tail)?;
    let payload = call.small_body(body).await?;
    let id = random::bytes().map_err(|error| Failure::not_done(error.to_string()))?;
    let event = UserEvent::new(EventId::from_random(id), call.tail.to_owned(), payload, filters)?;
    let response = answer::json(&shapes::event(&event), call.layout());
    call.api.feeds.events.fire(event).await?;
    Ok(response)
}

/// Lists the newest events, oldest first. A blocking query ends when the index differs: it is
/// derived from the last event's id, and is not monotonic.
pub(super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    // As in Consul, the maximum wait is the default here.
    let (index, wait) = (call.index()?, call.wait(call.api.limits.max_query_time)?);
    let same_as = (index > 0).then_some((index, wait));
    // First: an unknown token is not to wait.
    call.judgement().await?;
    let (index, events) = call.api.feeds.events.list(call.params.non_empty("name"), same_as).await;
    let judgement = call.judgement().await?;
    let permitted =
        events.iter().filter(|event| judgement.permits(Resource::Event, Access::Read, &event.name));
    let shapes: Vec<_> = permitted.map(|event| shapes::event(event)).collect();
    let response = answer::with_index(answer::json(&shapes, call.layout()), index);
    Ok(answer::filtered_if(shapes.len() < events.len(), response))
}

impl From<FilterError> for Failure {
    fn from(error: FilterError) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<EventError> for Failure {
    fn from(error: EventError) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<FireError> for Failure {
    fn from(error: FireError) -> Self {
        if matches!(error, FireError::TooMany(_)) {
            LIMITS.with_label_values(&["events"]).inc();
        }
        Self::not_done(error.to_string())
    }
}
