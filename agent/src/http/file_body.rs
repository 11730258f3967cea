//! A response body that is read from a file while it is sent.

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

const PIECE: usize = 64 * 1024;

/// The next `left` bytes of a file.
#[derive(Debug)]
pub(super) struct FileBody {
    file: File,
    left: u64,
    buffer: Box<[u8]>,
}

impl FileBody {
    /// Creates a body of exactly `length` bytes.
    pub(super) fn new(file: File, length: u64) -> Self {
        Self { file, left: length, buffer: vec![0; PIECE].into() }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let this = &mut *self;
        let wanted = usize::try_from(this.left).unwrap_or(PIECE).min(PIECE);
        let mut space = ReadBuf::new(&mut this.buffer[..wanted]);
        ready!(Pin::new(&mut this.file).poll_read(context, &mut space))?;
        let piece = space.filled();
        // The file is shorter than announced: a normal end could pass as a complete backup.
        if piece.is_empty() {
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        }
        this.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(BytesMut::from(piece).freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
