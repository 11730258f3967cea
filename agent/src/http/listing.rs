//! Lists of any size, as a JSON array or object.
//!
//! A short list is one answer of the servers. A long one is read in parts of one view, and each
//! part is selected, rendered and sent before the next one is requested: neither the agent nor a
//! server ever holds it as a whole, and a slow client only slows its own list. If the view ends
//! early, so does the connection, and no client mistakes the beginning for the whole.

use super::answer::{self, Failure, MetaKind};
use super::body::Body;
use super::call::{Call, ReadOptions};
use crate::upstream::calls::Read;
use crate::upstream::parts::{OpenView, Part};
use bytes::Bytes;
use http::{Response, StatusCode};
use lockmesh_client::shape::json::{Layout, render, render_array};
use lockmesh_protocol::query::{Answer, Query, Rows};
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The number of rows above which a list is rendered on another thread, because it would block the
/// shared thread too long.
const LONG_LIST: usize = 512;

/// Rows as one JSON value, whose innermost brackets hold the items.
#[derive(Debug)]
pub(super) struct Piece {
    json: Vec<u8>,
    /// The position behind the bracket before the first item.
    open: usize,
    /// The brackets behind the last item, from the inside out.
    closing: &'static [u8],
}

impl Piece {
    /// Renders an array.
    pub(super) fn array<T: Serialize>(
        items: impl Iterator<Item = Result<T, Failure>>,
        layout: Layout,
    ) -> Result<Self, Failure> {
        Ok(Self { json: render_array(items, layout)?, open: 1, closing: b"]" })
    }

    /// Renders an object, of which the items are the members.
    pub(super) fn object<T: Serialize>(members: &T, layout: Layout) -> Self {
        Self { json: render(members, layout), open: 1, closing: b"}" }
    }

    /// Renders an object whose last member holds the items; `empty` is the same object without any.
    pub(super) fn nested<T: Serialize>(
        (value, empty): (&T, &T),
        closing: &'static [u8],
        layout: Layout,
    ) -> Self {
        let open = without_closing(&render(empty, layout), closing);
        Self { json: render(value, layout), open, closing }
    }

    /// Renders a value without items: the whole answer.
    pub(super) fn whole<T: Serialize>(value: &T, layout: Layout) -> Self {
        let json = render(value, layout);
        Self { open: json.len(), json, closing: b"" }
    }
}

/// Returns the length of a JSON value up to the last item in it.
fn without_closing(json: &[u8], closing: &[u8]) -> usize {
    let mut json = json.trim_ascii_end();
    for bracket in closing.iter().rev() {
        json = json.strip_suffix(&[*bracket]).unwrap_or(json).trim_ascii_end();
    }
    json.len()
}

/// Renders rows.
pub(super) trait Render: FnMut(&Rows, Layout) -> Result<Piece, Failure> + Send + 'static {}

impl<F: FnMut(&Rows, Layout) -> Result<Piece, Failure> + Send + 'static> Render for F {}

/// A list: one answer after the other, each at its beginning.
#[derive(Debug)]
pub(super) struct Listing(VecDeque<Part>);

/// The form of a response with a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The layout.
    pub(super) layout: Layout,
    /// The headers.
    pub(super) meta: MetaKind,
    /// Set if each row may need much work, so that even few are rendered on another thread.
    pub(super) is_costly: bool,
}

impl Form {
    /// Returns the form of the lists of catalog and health, which may be filtered.
    pub(super) fn of(call: &Call<'_>, options: ReadOptions) -> Self {
        let meta = MetaKind::Effective(options.consistency);
        Self { layout: call.layout(), meta, is_costly: call.params.non_empty("filter").is_some() }
    }
}

impl Call<'_> {
    /// Reads a list of any size. A failure carries the headers of `meta`, as in [`Call::read`].
    pub(super) async fn read_list(
        &self,
        query: Query,
        options: ReadOptions,
        meta: Option<MetaKind>,
    ) -> Result<Part, Failure> {
        let _blocked = options.blocking.map(|_| crate::metrics::BlockedWatcher::begin());
        let ReadOptions { consistency, blocking } = options;
        let read = self.api.upstream.read_any(Read { query, consistency, blocking }).await;
        read.map_err(|unavailable| Self::failure(unavailable, meta))
    }

    /// Responds with a list of sessions, locks or losses of any size.
    pub(super) async fn list(
        &self,
        query: Query,
        options: ReadOptions,
        render: impl Render,
    ) -> Result<Response<Body>, Failure> {
        let meta = MetaKind::Plain;
        let form = Form { layout: self.layout(), meta, is_costly: false };
        Listing::from(self.read_list(query, options, Some(meta)).await?).respond(form, render).await
    }
}

impl From<Part> for Listing {
    fn from(first: Part) -> Self {
        Self([first].into())
    }
}

impl FromIterator<Part> for Listing {
    fn from_iter<I: IntoIterator<Item = Part>>(answers: I) -> Self {
        Self(answers.into_iter().collect())
    }
}

impl Listing {
    /// Responds with the list, which has at least one answer. The first part of a long one is
    /// rendered before the response begins, so that it may still fail as a whole.
    pub(super) async fn respond(self, form: Form, render: impl Render) -> Result<Response<Body>, Failure> {
        let newest = self.0.iter().map(|part| &part.answer).max_by_key(|answer| answer.index);
        let newest = Arc::clone(newest.expect("there is an answer"));
        let is_short = self.0.iter().all(|part| part.rest.is_none());
        let Form { layout, is_costly, meta } = form;
        let mut pieces = Pieces { parts: self.0, open: None, render: Some(render), layout, is_costly };
        let first = pieces.next().await?.expect("there is an answer");
        let body = match is_short {
            true => pieces.joined(first).await?,
            false => {
                let mut joint = Joint::new(layout, first.closing);
                let first = joint.add(first);
                let (sender, parts) = mpsc::channel(1);
                tokio::spawn(send(sender, first, joint, pieces));
                Body::parts(parts)
            }
        };
        Ok(answer::with_meta(answer::json_bytes(StatusCode::OK, body), &newest, meta))
    }
}

/// The pieces of a list, which are read and rendered one after the other.
struct Pieces<R> {
    /// The answers that are not begun.
    parts: VecDeque<Part>,
    /// The rest of the last one that was begun.
    open: Option<OpenView>,
    render: Option<R>,
    layout: Layout,
    is_costly: bool,
}

impl<R: Render> Pieces<R> {
    /// Reads and renders the next part; `None` behind the last.
    async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        let next = Part::behind(self.open.take()).await?.or_else(|| self.parts.pop_front());
        let Some(Part { answer, rest }) = next else { return Ok(None) };
        self.open = rest;
        self.rendered(answer).await.map(Some)
    }

    /// Renders an answer; a long one on another thread, so that no other request waits meanwhile.
    async fn rendered(&mut self, answer: Arc<Answer>) -> Result<Piece, Failure> {
        let mut render = self.render.take().expect("it is here between two parts");
        let layout = self.layout;
        if !self.is_costly && answer.rows.len() <= LONG_LIST {
            let piece = render(&answer.rows, layout);
            self.render = Some(render);
            return piece;
        }
        let rendering = tokio::task::spawn_blocking(move || (render(&answer.rows, layout), render)).await;
        let (piece, render) = rendering.map_err(|_| Failure::not_done("the agent is shutting down"))?;
        self.render = Some(render);
        piece
    }

    /// Returns all pieces as the body of a response.
    async fn joined(mut self, first: Piece) -> Result<Body, Failure> {
        let Some(second) = self.next().await? else { return Ok(first.json.into()) };
        let mut joint = Joint::new(self.layout, first.closing);
        let mut whole = joint.add(first).to_vec();
        let mut next = Some(second);
        while let Some(piece) = next {
            whole.extend_from_slice(&joint.add(piece));
            next = self.next().await?;
        }
        whole.extend_from_slice(&joint.end());
        Ok(whole.into())
    }
}

/// Sends all parts, until the client is gone or a part fails.
async fn send<R: Render>(
    sender: mpsc::Sender<io::Result<Bytes>>,
    first: Bytes,
    mut joint: Joint,
    mut pieces: Pieces<R>,
) {
    let mut next = first;
    loop {
        if !next.is_empty() && sender.send(Ok(next)).await.is_err() {
            return;
        }
        // The next part is read when the client has taken all before it: at most one waits here.
        if sender.reserve().await.is_err() {
            return;
        }
        next = match pieces.next().await {
            Ok(Some(piece)) => joint.add(piece),
            Ok(None) => break,
            Err(failure) => {
                let why = failure.reason().to_owned();
                tracing::warn!(%why, "a long list could not be read to its end: its connection is closed");
                let _ = sender.send(Err(io::Error::other(why))).await;
                return;
            }
        };
    }
    if sender.send(Ok(joint.end())).await.is_ok() {
        let _ = sender.send(Ok(Bytes::new())).await;
    }
}

/// Joins pieces to one JSON value.
#[derive(Debug)]
struct Joint {
    layout: Layout,
    closing: &'static [u8],
    has_items: bool,
    /// The last piece, if none had items.
    empty: Bytes,
}

impl Joint {
    fn new(layout: Layout, closing: &'static [u8]) -> Self {
        Self { layout, closing, has_items: false, empty: Bytes::new() }
    }

    /// Returns the text that continues the value; empty for a piece without items.
    fn add(&mut self, piece: Piece) -> Bytes {
        let Piece { mut json, open, closing } = piece;
        let end = without_closing(&json, closing);
        if end <= open {
            self.empty = json.into();
            return Bytes::new();
        }
        let begin = match std::mem::replace(&mut self.has_items, true) {
            false => 0,
            true => {
                // In place of the bracket before the first item.
                json[open - 1] = b',';
                open - 1
            }
        };
        Bytes::from(json).slice(begin..end)
    }

    /// Returns the end of the value.
    fn end(self) -> Bytes {
        if !self.has_items {
            return self.empty;
        }
        let mut end = Vec::new();
        for (level, bracket) in (0..self.closing.len()).rev().zip(self.closing) {
            if self.layout.indented {
                end.push(b'\n');
                end.extend(b"    ".repeat(level));
            }
            end.push(*bracket);
        }
        if self.layout.newline {
            end.push(b'\n');
        }
        end.into()
    }
}
