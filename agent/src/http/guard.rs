//! Protection against slow clients ("slow loris"): a deadline for the head of a request. A client
//! that sends it byte by byte is disconnected, an idle one is not.
//!
//! The clock starts at the first byte after an idle time and stops when the head is complete.
//! Between requests a connection may idle without limit. While a request is served, reading only
//! detects the connection's end.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

const RESTING: u8 = 0;
const HEAD_BEGUN: u8 = 1;
const SERVING: u8 = 2;

/// The phase of a connection; shared by the socket and the service.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    /// Records a complete head; the phase ends when the result is dropped.
    pub(super) fn serve(self: Arc<Self>) -> Serving {
        self.0.store(SERVING, Ordering::Relaxed);
        Serving(self)
    }

    fn begin_head(&self) {
        // Only from idle: data read while a request is served does not begin a head yet.
        let _ = self.0.compare_exchange(RESTING, HEAD_BEGUN, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn head_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) == HEAD_BEGUN
    }
}

/// A request that is being served.
#[derive(Debug)]
pub(super) struct Serving(Arc<Phase>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.0.store(RESTING, Ordering::Relaxed);
    }
}

/// A socket whose reads fail when a head takes too long.
pub(super) struct Guarded<S> {
    socket: S,
    phase: Arc<Phase>,
    limit: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub(super) fn new(socket: S, phase: Arc<Phase>, limit: Duration) -> Self {
        Self { socket, phase, limit, deadline: None }
    }

    /// Returns `true` if a head has been incomplete for too long; called when no data is ready.
    fn overdue(&mut self, context: &mut Context<'_>) -> bool {
        if !self.phase.head_begun() {
            // The next head gets the whole time again.
            self.deadline = None;
            return false;
        }
        let limit = self.limit;
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        deadline.as_mut().poll(context).is_ready()
    }
}

impl<S: Read + Unpin> Read for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match Pin::new(&mut this.socket).poll_read(context, cursor) {
            Poll::Ready(Ok(())) => {
                this.phase.begin_head();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if this.overdue(context) => {
                crate::metrics::LIMITS.with_label_values(&["header_read_timeout"]).inc();
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: Write + Unpin> Write for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }
}
