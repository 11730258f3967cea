//! The bodies of requests and responses: bytes in memory, bytes that still arrive, pieces that are
//! produced one after the other, a file, or one of them compressed.

use super::compression::Gzip;
use super::file_body::FileBody;
use super::guard::Serving;
use bytes::Bytes;
use hyper::body::{Body as Stream, Frame, Incoming, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// The body of a request or a response.
#[derive(Debug)]
pub struct Body {
    kind: Kind,
    /// The request that this body answers: it ends when its response has been sent.
    _answers: Option<Serving>,
}

#[derive(Debug)]
enum Kind {
    Whole(Bytes),
    Arriving(Incoming),
    Pieces(mpsc::Receiver<Bytes>),
    Parts(mpsc::Receiver<io::Result<Bytes>>),
    File(Box<FileBody>),
    Gzip(Box<Gzip>),
}

impl Body {
    fn new(kind: Kind) -> Self {
        Self { kind, _answers: None }
    }

    /// Makes the request last until this body has been sent, or its client is gone.
    pub(super) fn answering(self, request: Serving) -> Self {
        Self { _answers: Some(request), ..self }
    }

    /// Creates an empty body.
    pub fn empty() -> Self {
        Self::new(Kind::Whole(Bytes::new()))
    }

    /// Wraps the body that a client is sending.
    pub(super) fn arriving(incoming: Incoming) -> Self {
        Self::new(Kind::Arriving(incoming))
    }

    /// Creates a body from pieces, until their sender is dropped.
    pub(super) fn pieces(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self::new(Kind::Pieces(pieces))
    }

    /// Creates a body from parts, the last of which is empty. Without that one the body is broken
    /// off, as with an error, so that nobody takes its beginning for the whole.
    pub(super) fn parts(parts: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self::new(Kind::Parts(parts))
    }

    /// Creates a body from the rest of a file.
    pub(super) fn file(file: FileBody) -> Self {
        Self::new(Kind::File(Box::new(file)))
    }

    /// Creates a body that is compressed while it is sent.
    pub(super) fn compressed(body: Gzip) -> Self {
        Self::new(Kind::Gzip(Box::new(body)))
    }

    /// Returns `true` if compression makes sense: the body has at least `min` bytes or is a list in
    /// parts.
    pub(super) fn is_compressible(&self, min: u64) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.len() as u64 >= min,
            Kind::Parts(_) => true,
            Kind::Arriving(_) | Kind::Pieces(_) | Kind::File(_) | Kind::Gzip(_) => false,
        }
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        Self::new(Kind::Whole(bytes.into()))
    }
}

impl Stream for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.kind {
            // Already sent, in one frame.
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Arriving(incoming) => Pin::new(incoming)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(io::Error::other))),
            Kind::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
            Kind::Parts(parts) => parts.poll_recv(context).map(|part| match part {
                Some(Ok(end)) if end.is_empty() => None,
                Some(part) => Some(part.map(Frame::data)),
                None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            }),
            Kind::File(file) => Pin::new(file.as_mut()).poll_frame(context),
            Kind::Gzip(gzip) => gzip.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Arriving(incoming) => incoming.is_end_stream(),
            Kind::Pieces(_) | Kind::Parts(_) => false,
            Kind::File(file) => file.is_end_stream(),
            Kind::Gzip(gzip) => gzip.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Arriving(incoming) => incoming.size_hint(),
            Kind::Pieces(_) | Kind::Parts(_) | Kind::Gzip(_) => SizeHint::default(),
            Kind::File(file) => file.size_hint(),
        }
    }
}
