//! Lists of any size, as a JSON array.
//!
//! A short list is one answer of the servers. A long one is read in parts of one view, and each
//! part is sent before the next one is requested: neither the agent nor a server ever holds it as a
//! whole, and a slow client only slows its own list. If the view ends early, so does the
//! connection, and no client mistakes the beginning for the whole.

use super::answer::{self, Failure, MetaKind};
use super::body::Body;
use super::call::{Call, ReadOptions};
use crate::upstream::Upstream;
use crate::upstream::calls::{AnswerPart, EndView, ReadPart, ReadParts, Rest};
use bytes::Bytes;
use http::{Response, StatusCode};
use lockmesh_client::shape::json::Layout;
use lockmesh_protocol::query::{Answer, Consistency, Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Renders rows as a JSON array.
pub(super) type Render = fn(&Rows, Layout) -> Result<Vec<u8>, Failure>;

/// The number of rows above which a list is rendered on another thread, because it would block the
/// shared thread too long.
const LONG_LIST: usize = 512;

/// The answer to a query for a list.
#[derive(Debug)]
pub(super) enum Listing {
    /// All rows.
    Whole(Arc<Answer>),
    /// The first rows of a long list.
    Long(LongListing),
}

/// A list that is read in parts.
#[derive(Debug)]
pub(super) struct LongListing {
    first: Answer,
    rest: Option<OpenView>,
}

/// The view with the rest of a list. Dropped, it is ended at the server too, which frees its place.
#[derive(Debug)]
struct OpenView {
    upstream: Upstream,
    consistency: Consistency,
    rest: Rest,
}

impl OpenView {
    /// Reads the next part.
    async fn next(&mut self, after: u64) -> Result<Answer, Unavailable> {
        let (view, consistency) = (self.rest.view, self.consistency);
        let AnswerPart { answer, rest } = self.upstream.call(ReadPart { view, after, consistency }).await?;
        self.rest.next = rest.and_then(|rest| rest.next);
        Ok(answer)
    }
}

impl Drop for OpenView {
    fn drop(&mut self) {
        let (upstream, consistency, view) = (self.upstream.clone(), self.consistency, self.rest.view);
        tokio::spawn(async move { upstream.call(EndView { view, consistency }).await });
    }
}

impl Call<'_> {
    /// Reads a list of any size. A failure carries the headers of `meta`, as in [`Call::read`].
    pub(super) async fn read_list(
        &self,
        query: Query,
        options: ReadOptions,
        meta: Option<MetaKind>,
    ) -> Result<Listing, Failure> {
        let answer = self.try_read(query.clone(), options).await;
        let unavailable = match answer {
            Ok(answer) => return Ok(Listing::Whole(answer)),
            Err(Unavailable::AnswerTooLong { .. }) => {
                let consistency = options.consistency;
                match self.api.upstream.call(ReadParts { query, consistency }).await {
                    Ok(AnswerPart { answer: first, rest }) => {
                        let upstream = self.api.upstream.clone();
                        let rest = rest.map(|rest| OpenView { upstream, consistency, rest });
                        return Ok(Listing::Long(LongListing { first, rest }));
                    }
                    Err(unavailable) => unavailable,
                }
            }
            Err(unavailable) => unavailable,
        };
        Err(Self::failure(unavailable, meta))
    }

    /// Responds with a list of any size.
    pub(super) async fn list(
        &self,
        query: Query,
        options: ReadOptions,
        render: Render,
    ) -> Result<Response<Body>, Failure> {
        self.read_list(query, options, Some(MetaKind::Plain)).await?.respond(self.layout(), render).await
    }
}

impl Listing {
    /// Returns the answer, if it has no rows.
    pub(super) fn empty(&self) -> Option<&Answer> {
        let (answer, is_complete) = match self {
            Self::Whole(answer) => (answer.as_ref(), true),
            Self::Long(LongListing { first, rest }) => {
                (first, rest.as_ref().is_none_or(|open| open.rest.next.is_none()))
            }
        };
        (is_complete && answer.rows.len() == 0).then_some(answer)
    }

    /// Responds with the list.
    pub(super) async fn respond(self, layout: Layout, render: Render) -> Result<Response<Body>, Failure> {
        match self {
            Self::Whole(answer) => {
                let json = rendered(Arc::clone(&answer), layout, render).await?;
                let response = answer::json_bytes(StatusCode::OK, json);
                Ok(answer::with_meta(response, &answer, MetaKind::Plain))
            }
            Self::Long(listing) => listing.respond(layout, render).await,
        }
    }
}

impl LongListing {
    /// The first part is rendered before the response begins, so that it may still fail as a whole.
    async fn respond(self, layout: Layout, render: Render) -> Result<Response<Body>, Failure> {
        let answer = Arc::new(self.first);
        let first = rendered(Arc::clone(&answer), layout, render).await?;
        // One at a time: the next part is read when the client has taken this one.
        let (sender, parts) = mpsc::channel(1);
        let array = ArrayWriter { sender, layout, has_items: false };
        tokio::spawn(send(array, first, self.rest, render));
        let response = answer::json_bytes(StatusCode::OK, Body::parts(parts));
        Ok(answer::with_meta(response, &answer, MetaKind::Plain))
    }
}

/// Sends all parts, until the client is gone or a part fails.
async fn send(mut array: ArrayWriter, first: Vec<u8>, rest: Option<OpenView>, render: Render) {
    let mut rest = rest.filter(|open| open.rest.next.is_some());
    let mut is_open = array.items(&first).await;
    while is_open && let Some(mut open) = rest.take() {
        match part(&mut open, array.layout, render).await {
            Ok(json) => {
                // The view ends with its last part, and not when the client has received that.
                rest = Some(open).filter(|open| open.rest.next.is_some());
                is_open = array.items(&json).await;
            }
            Err(why) => {
                tracing::warn!(%why, "a long list could not be read to its end: its connection is closed");
                return array.fail(why).await;
            }
        }
    }
    if is_open {
        array.end().await;
    }
}

/// Reads and renders the next part.
async fn part(open: &mut OpenView, layout: Layout, render: Render) -> Result<Vec<u8>, String> {
    let after = open.rest.next.expect("there is a next part");
    let answer = open.next(after).await.map_err(|unavailable| unavailable.to_string())?;
    let json = rendered(Arc::new(answer), layout, render).await;
    json.map_err(|_| "the agent is shutting down".into())
}

/// Renders the rows of an answer; many on another thread, so that no other request waits meanwhile.
async fn rendered(answer: Arc<Answer>, layout: Layout, render: Render) -> Result<Vec<u8>, Failure> {
    if answer.rows.len() <= LONG_LIST {
        return render(&answer.rows, layout);
    }
    let rendering = tokio::task::spawn_blocking(move || render(&answer.rows, layout)).await;
    rendering.map_err(|_| Failure::not_done("the agent is shutting down"))?
}

/// Joins rendered arrays to one.
#[derive(Debug)]
struct ArrayWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    layout: Layout,
    has_items: bool,
}

impl ArrayWriter {
    /// Sends the items of a rendered array; returns `false` if the client is gone.
    async fn items(&mut self, array: &[u8]) -> bool {
        let items = items_of(array);
        if items.is_empty() {
            return !self.sender.is_closed();
        }
        let separator: &[u8] = if self.has_items { b"," } else { b"[" };
        self.has_items = true;
        self.send([separator, items].concat()).await
    }

    /// Closes the array.
    async fn end(&mut self) {
        let end: &[u8] = match (self.has_items, self.layout.indented, self.layout.newline) {
            (false, _, false) => b"[]",
            (false, _, true) => b"[]\n",
            (true, false, false) => b"]",
            (true, false, true) => b"]\n",
            (true, true, false) => b"\n]",
            (true, true, true) => b"\n]\n",
        };
        if self.send(end.to_vec()).await {
            self.send(Vec::new()).await;
        }
    }

    /// Breaks the response off.
    async fn fail(&mut self, why: String) {
        let _ = self.sender.send(Err(io::Error::other(why))).await;
    }

    async fn send(&mut self, bytes: Vec<u8>) -> bool {
        self.sender.send(Ok(bytes.into())).await.is_ok()
    }
}

/// Returns the text between the brackets of a rendered array, with the line break before the first
/// item.
fn items_of(array: &[u8]) -> &[u8] {
    let array = array.trim_ascii();
    let items = array.strip_prefix(b"[").and_then(|array| array.strip_suffix(b"]"));
    items.unwrap_or_default().trim_ascii_end()
}
