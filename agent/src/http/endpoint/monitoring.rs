//! `/metrics`, `/health/live`, `/health/ready`: for monitoring, at the same paths as on a server.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use crate::metrics;
use crate::upstream::calls::StatusOf;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use std::time::Duration;

/// The timeout for the nearest server to report whether it knows a leader.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns all metrics of the process.
pub(super) fn metrics(call: &Call<'_>) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics::prometheus_text(&call.api.upstream)));
    let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// An agent that answers is alive.
pub(super) fn live() -> Response<Body> {
    answer::text(StatusCode::OK, "live\n")
}

/// Returns 200 if requests can be served, else 503 with the reasons, one per line.
pub(super) async fn ready(call: &Call<'_>) -> Response<Body> {
    let known = call.api.upstream.not_ready();
    let mut reasons: Vec<String> = known.iter().map(ToString::to_string).collect();
    // Without a connection or a leader, the request would only delay the reply.
    if reasons.is_empty() {
        reasons.extend(seen_by_server(call).await);
    }
    reasons.extend(call.api.own.socket.problem());
    match reasons.is_empty() {
        true => answer::text(StatusCode::OK, "ready\n"),
        false => Failure::new(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response(),
    }
}

/// Asks the nearest server: an idle agent would not notice that its leader has lost its majority.
async fn seen_by_server(call: &Call<'_>) -> Option<String> {
    match tokio::time::timeout(STATUS_TIMEOUT, call.api.upstream.call(StatusOf::Nearest)).await {
        Ok(Ok(status)) => status.leader.is_none().then(|| "the nearest server knows no leader".into()),
        Ok(Err(why)) => Some(format!("no server answers: {why}")),
        Err(_) => Some(format!("the nearest server has not answered for {} s", STATUS_TIMEOUT.as_secs())),
    }
}
