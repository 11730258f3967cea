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
    upstream: Upstream,
    consistency: Consistency,
    first: AnswerPart,
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
                    Ok(first) => {
                        let upstream = self.api.upstream.clone();
                        return Ok(Listing::Long(LongListing { upstream, consistency, first }));
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
        let Self { upstream, consistency, first: AnswerPart { answer, rest } } = self;
        let answer = Arc::new(answer);
        let first = rendered(Arc::clone(&answer), layout, render).await?;
        // One at a time: the next part is read when the client has taken this one.
        let (sender, parts) = mpsc::channel(1);
        let array = ArrayWriter { sender, layout, has_items: false };
        tokio::spawn(send(upstream, consistency, array, (first, rest), render));
        let response = answer::json_bytes(StatusCode::OK, Body::pieces(parts));
        Ok(answer::with_meta(response, &answer, MetaKind::Plain))
    }
}

/// Sends all parts, and ends the view if the client is gone or a part fails.
async fn send(
    upstream: Upstream,
    consistency: Consistency,
    mut array: ArrayWriter,
    (first, mut rest): (Vec<u8>, Option<Rest>),
    render: Render,
) {
    let view = rest.map(|rest| rest.view);
    let mut is_open = array.items(&first).await;
    while let (true, Some(next)) = (is_open, rest.filter(|rest| rest.next.is_some())) {
        match part(&upstream, consistency, next, array.layout, render).await {
            Ok((json, following)) => {
                is_open = array.items(&json).await;
                rest = following;
            }
            Err(why) => {
                tracing::warn!(%why, "a long list could not be read to its end: its connection is closed");
                is_open = false;
                array.fail(why).await;
            }
        }
    }
    if is_open {
        array.end().await;
    }
    // The server would end it after a minute; this frees its place at once.
    if let Some(view) = view {
        let _ = upstream.call(EndView { view, consistency }).await;
    }
}

/// Reads and renders the next part.
async fn part(
    upstream: &Upstream,
    consistency: Consistency,
    rest: Rest,
    layout: Layout,
    render: Render,
) -> Result<(Vec<u8>, Option<Rest>), String> {
    let after = rest.next.expect("there is a next part");
    let part = upstream.call(ReadPart { view: rest.view, after, consistency }).await;
    let AnswerPart { answer, rest } = part.map_err(|unavailable| unavailable.to_string())?;
    let json = rendered(Arc::new(answer), layout, render).await;
    Ok((json.map_err(|_| "the agent is shutting down")?, rest))
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
        self.send(end.to_vec()).await;
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
