//! Lists of any size, as a JSON array or object.
//!
//! A list up to the size of a frame is one answer of the servers. A longer one is read in parts of
//! one view, and each part is selected, rendered and sent before the next one is requested: neither
//! the agent nor a server ever holds it as a whole, and a slow client only slows its own list. If
//! the view ends early, so does the connection, and no client mistakes the beginning for the whole.
//! The JSON of a whole answer is produced in parts too, because it has several times the size.

use super::answer::{self, Failure, MetaKind};
use super::body::Body;
use super::call::{Call, ReadOptions};
use crate::upstream::calls::Read;
use crate::upstream::parts::{OpenView, Part};
use bytes::Bytes;
use http::{Response, StatusCode};
use lockmesh_client::shape::json::{Layout, render, render_array};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The number of rows above which a list is rendered on another thread, because it would block the
/// shared thread too long.
const LONG_LIST: usize = 512;

/// The approximate size of the rows that are rendered as one part, in bytes of their encoded form.
const PART_BYTES: usize = 256 << 10;

/// The maximum number of parts of a list that is held as a whole, about 64 MiB.
const MAX_PARTS: usize = 256;

/// The maximum number of answers that are read again because another one is newer.
const MAX_REREADS: usize = 6;

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
        let read = self.upstream.read_any(Read { query, consistency, blocking }).await;
        read.map_err(|unavailable| Self::failure(unavailable, meta))
    }

    /// Reads several lists; a change of any ends a wait. The newest index of the answers is that of
    /// all: they have every change up to it.
    pub(super) async fn read_together(
        &self,
        queries: Vec<Query>,
        options: ReadOptions,
        meta: Option<MetaKind>,
    ) -> Result<Vec<Part>, Failure> {
        let ReadOptions { consistency, mut blocking } = options;
        if let [only] = &queries[..] {
            return Ok(vec![self.read_list(only.clone(), options, meta).await?]);
        }
        if blocking.as_ref().is_some_and(Blocking::waits) {
            let _blocked = crate::metrics::BlockedWatcher::begin();
            let mut reads = JoinSet::new();
            for query in queries.iter().cloned() {
                let (upstream, read) = (self.upstream.clone(), Read { query, consistency, blocking });
                reads.spawn(async move { upstream.call(read).await });
            }
            let first = reads.join_next().await.expect("there are several");
            match first.expect("a read neither panics nor is cancelled") {
                Ok(_) | Err(Unavailable::AnswerTooLong { .. }) => {}
                Err(unavailable) => return Err(Self::failure(unavailable, meta)),
            }
        }
        blocking = blocking.map(|blocking| Blocking { wait: Duration::ZERO, ..blocking });
        let options = ReadOptions { consistency, blocking };
        let mut parts = VecDeque::new();
        for (place, query) in queries.iter().enumerate() {
            parts.push_back((place, self.read_list(query.clone(), options, meta).await?));
        }
        // An answer may lack a change with a lower index than that of a later answer.
        let is_newest = |parts: &VecDeque<(usize, Part)>| {
            parts.iter().all(|(_, part)| part.answer.index <= parts[0].1.answer.index)
        };
        let mut rereads = 0;
        while !is_newest(&parts) && rereads < MAX_REREADS {
            let (place, _) = parts.pop_front().expect("there are several");
            parts.push_back((place, self.read_list(queries[place].clone(), options, meta).await?));
            rereads += 1;
        }
        if !is_newest(&parts) {
            // Up to the index of the first one, all have every change.
            let common = parts[0].1.answer.index.max(blocking.map_or(LogIndex(0), |blocking| blocking.index));
            for (_, part) in parts.iter_mut().filter(|(_, part)| part.answer.index > common) {
                Arc::make_mut(&mut part.answer).index = common;
            }
        }
        parts.make_contiguous().sort_by_key(|(place, _)| *place);
        Ok(parts.into_iter().map(|(_, part)| part).collect())
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
    /// Responds with the list, which has at least one answer. Of a long one, the parts up to the
    /// first row are rendered before the response begins, so that it may still fail as a whole.
    pub(super) async fn respond(self, form: Form, render: impl Render) -> Result<Response<Body>, Failure> {
        let is_filtered = self.0.iter().any(|part| part.answer.is_filtered);
        let newest = self.0.iter().map(|part| &part.answer).max_by_key(|answer| answer.index);
        let newest = Arc::clone(newest.expect("there is an answer"));
        let Form { layout, is_costly, meta } = form;
        let mut pieces = Pieces { parts: self.0, rest: None, render: Some(render), layout, is_costly };
        let first = pieces.next().await?.expect("there is an answer");
        let body = match pieces.are_few() {
            true => pieces.joined(first).await?,
            false => {
                let mut joint = Joint::new(layout, first.closing);
                let mut first = joint.add(first);
                while first.is_empty()
                    && let Some(piece) = pieces.next().await?
                {
                    first = joint.add(piece);
                }
                let (sender, parts) = mpsc::channel(1);
                tokio::spawn(send(sender, first, joint, pieces));
                Body::parts(parts)
            }
        };
        let response = answer::with_meta(answer::json_bytes(StatusCode::OK, body), &newest, meta);
        Ok(answer::filtered_if(is_filtered, response))
    }
}

/// Reads all answers, of which there is at least one, to their ends, and appends their rows. The
/// result has the index of the newest.
pub(super) async fn joined(answers: Vec<Part>) -> Result<Answer, Failure> {
    let mut joined: Option<Answer> = None;
    let mut parts = 0;
    for first in answers {
        let mut next = Some(first);
        while let Some(Part { answer, rest }) = next {
            parts += 1;
            if parts > MAX_PARTS {
                return Err(too_long());
            }
            let answer = Arc::unwrap_or_clone(answer);
            joined = Some(match joined.take() {
                None => answer,
                Some(before) => appended(before, answer),
            });
            next = Part::behind(rest).await?;
        }
    }
    Ok(joined.expect("there is an answer"))
}

fn appended(before: Answer, mut answer: Answer) -> Answer {
    let mut rows = before.rows;
    match (&mut rows, &mut answer.rows) {
        (Rows::Nodes(rows), Rows::Nodes(more)) => rows.append(more),
        (Rows::Checks(rows), Rows::Checks(more)) => rows.append(more),
        (Rows::Instances(rows), Rows::Instances(more)) => rows.append(more),
        _ => {}
    }
    let is_filtered = before.is_filtered || answer.is_filtered;
    match answer.index > before.index {
        true => Answer { rows, is_filtered, ..answer },
        false => Answer { rows, is_filtered, ..before },
    }
}

fn too_long() -> Failure {
    let text = "this request needs more than 64 MiB as a whole: ask for one service, or leave out ?near= and ?node-meta=";
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

/// Returns `true` if rows are many, or more than one part.
fn is_long(rows: &Rows) -> bool {
    let count = match rows {
        Rows::Node(Some((_, services))) => services.len(),
        rows => rows.len(),
    };
    count > LONG_LIST || rows.part(0, PART_BYTES).1.is_some()
}

/// Works on so many rows, on another thread if they are many, so that no other request waits.
pub(super) async fn apart<T: Send + 'static>(
    rows: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    match rows <= LONG_LIST {
        true => Ok(work()),
        false => tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Failure::not_done("the agent is shutting down")),
    }
}

/// The pieces of a list, which are read and rendered one after the other.
struct Pieces<R> {
    /// The answers that are not begun.
    parts: VecDeque<Part>,
    /// The rest of the last one that was begun.
    rest: Option<Rest>,
    render: Option<R>,
    layout: Layout,
    is_costly: bool,
}

/// The rest of an answer.
enum Rest {
    /// The parts of a view behind the last one.
    View(OpenView),
    /// The rows of a whole answer behind this number of them.
    Rows(Arc<Answer>, usize),
}

impl<R: Render> Pieces<R> {
    /// Reads and renders the next part; `None` behind the last.
    async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        let part = match self.rest.take() {
            Some(Rest::Rows(answer, after)) => return self.rendered(answer, Some(after)).await.map(Some),
            Some(Rest::View(view)) => Part::behind(Some(view)).await?,
            None => None,
        };
        let is_behind = part.is_some();
        let Some(Part { answer, rest }) = part.or_else(|| self.parts.pop_front()) else { return Ok(None) };
        let is_whole = rest.is_none() && !is_behind;
        self.rest = rest.map(Rest::View);
        self.rendered(answer, is_whole.then_some(0)).await.map(Some)
    }

    /// Renders a part of a view; or of a whole answer the next rows, behind so many.
    async fn rendered(&mut self, answer: Arc<Answer>, after: Option<usize>) -> Result<Piece, Failure> {
        let mut render = self.render.take().expect("it is here between two parts");
        let layout = self.layout;
        // The parts of a view would block the shared thread one after the other.
        let is_long = self.is_costly || after != Some(0) || is_long(&answer.rows);
        // A filter that is too expensive for one row fails as a whole while it can.
        let after = after.filter(|_| is_long && !self.is_costly);
        let rows = if is_long { usize::MAX } else { 0 };
        let (piece, rest, render) = apart(rows, move || {
            let Some(after) = after else { return (render(&answer.rows, layout), None, render) };
            let (rows, next) = answer.rows.part(after, PART_BYTES);
            (render(&rows, layout), next.map(|next| Rest::Rows(answer, next)), render)
        })
        .await?;
        self.render = Some(render);
        self.rest = self.rest.take().or(rest);
        piece
    }

    /// Returns `true` if the rest needs little memory, or must be known as a whole.
    fn are_few(&self) -> bool {
        let is_few = |part: &Part| part.rest.is_none() && (self.is_costly || !is_long(&part.answer.rows));
        self.rest.is_none() && self.parts.iter().all(is_few)
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
        // The mark of the end, without which the body counts as broken off.
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
