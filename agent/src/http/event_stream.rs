//! Server-sent events: a response that stays open, with one event after the other.

use super::body::Body;
use crate::metrics::BlockedWatcher;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Response};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;

/// The time without an event after which a comment is sent, as a keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");

/// Returns `true` if a client requests a stream.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream"))
}

/// Returns a response that sends the events of `feed` until it ends. Its sender reports when the
/// client is gone.
pub(super) fn respond<F>(feed: impl FnOnce(EventSender) -> F) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    // One at a time: a slow reader receives the current state, not outdated ones.
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(feed(EventSender { sender, _waits: BlockedWatcher::begin() }));
    let mut response = Response::new(Body::pieces(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_CACHE);
    response
}

/// The sender of events.
#[derive(Debug)]
pub(super) struct EventSender {
    sender: mpsc::Sender<Bytes>,
    _waits: BlockedWatcher,
}

impl EventSender {
    /// Sends an event, whose data has no line break; returns `false` if the client is gone.
    pub(super) async fn send(&self, name: &str, id: u64, data: &[u8]) -> bool {
        let mut text = format!("event: {name}\nid: {id}\ndata: ").into_bytes();
        text.extend_from_slice(data);
        text.extend_from_slice(b"\n\n");
        self.sender.send(text.into()).await.is_ok()
    }

    /// Waits for news, and sends comments meanwhile; returns `None` if the client is gone.
    pub(super) async fn await_news<T>(&self, news: impl Future<Output = T>) -> Option<T> {
        let mut news = pin!(news);
        loop {
            tokio::select! {
                news = &mut news => return Some(news),
                // Noticed at once, and not with the next event or comment.
                () = self.sender.closed() => return None,
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    self.sender.send(Bytes::from_static(b": nothing new\n\n")).await.ok()?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_explicit_accept_header() {
        let wants = |accept: &'static str| {
            is_wanted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert!(wants("text/event-stream") && wants("application/json, text/event-stream;q=0.9"));
        assert!(!wants("*/*") && !wants("application/json") && !is_wanted(&HeaderMap::new()));
    }
}
