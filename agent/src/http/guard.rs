//! Limits on the time that a connection without progress is kept: a deadline for the head of a
//! request, against slow clients ("slow loris"), and one for the idle time between requests.
//!
//! The clock of a head starts at its first byte and stops when it is complete. The clock of an idle
//! connection starts when a response has been sent; each byte of it that the client takes restarts
//! the clock. While a request is served, its response included, there is no deadline: blocking
//! queries and event streams are not idle.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

const RESTING: u8 = 0;
const HEAD_BEGUN: u8 = 1;
const SERVING: u8 = 2;

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    /// The timeout for a request's head.
    pub(super) head: Duration,
    /// The maximum idle time between requests, and before the first one; `None` for no limit.
    pub(super) idle: Option<Duration>,
}

/// The phase of a connection; shared by the socket and the service.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    /// Records a complete head; the phase ends when the result is dropped.
    pub(super) fn serve(self: Arc<Self>) -> Serving {
        self.0.store(SERVING, Ordering::Relaxed);
        Serving(self)
    }

    /// Returns `true` if a head begins with the data that arrived.
    fn begin_head(&self) -> bool {
        // Only from idle: data read while a request is served does not begin a head yet.
        self.0.compare_exchange(RESTING, HEAD_BEGUN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn now(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request that is being served, or whose response is being sent.
#[derive(Debug)]
pub(super) struct Serving(Arc<Phase>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.0.store(RESTING, Ordering::Relaxed);
    }
}

/// A socket whose reads and writes fail when a time limit is exceeded.
pub(super) struct Guarded<S> {
    socket: S,
    phase: Arc<Phase>,
    limits: TimeLimits,
    /// The phase that the clock measures, and its start.
    clock: Option<(u8, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    pub(super) fn new(socket: S, phase: Arc<Phase>, limits: TimeLimits) -> Self {
        Self { socket, phase, limits, clock: None, timer: None }
    }

    /// Returns an error if the current phase has exceeded its limit; otherwise wakes the task when
    /// it does. Called whenever the connection may wait.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let phase = self.phase.now();
        let (limit, name) = match phase {
            HEAD_BEGUN => (Some(self.limits.head), "header_read_timeout"),
            RESTING => (self.limits.idle, "idle_timeout"),
            _ => (None, ""),
        };
        let Some(limit) = limit else {
            self.clock = None;
            return Ok(());
        };
        let start = match self.clock {
            Some((measured, start)) if measured == phase => start,
            _ => Instant::now(),
        };
        self.clock = Some((phase, start));
        match self.poll_timer(start + limit, context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                crate::metrics::LIMITS.with_label_values(&[name]).inc();
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    /// Completes at the deadline. A timer that is set too early is moved only when it fires,
    /// because busy connections have a new deadline for each request.
    fn poll_timer(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    /// Checks the limits after a write or a flush, which may be the last call before the connection
    /// waits for the next request.
    fn after<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if let Err(error) = self.check(context) {
            return Poll::Ready(Err(error));
        }
        done
    }

    /// The same after a write, whose progress restarts the clock.
    fn after_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.after(written, context),
            Poll::Ready(_) => {
                self.clock = None;
                written
            }
        }
    }
}

impl<S: Read + Unpin> Read for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let read = Pin::new(&mut this.socket).poll_read(context, cursor);
        match read {
            Poll::Ready(Ok(())) => {
                if this.phase.begin_head() {
                    this.clock = None;
                }
                read
            }
            Poll::Ready(Err(_)) => read,
            Poll::Pending => this.after(Poll::Pending, context),
        }
    }
}

impl<S: Write + Unpin> Write for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.after_write(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.after(flushed, context)
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
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.after_write(written, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::TokioIo;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    const LIMIT: Duration = Duration::from_secs(300);

    fn guarded(phase: &Arc<Phase>) -> (Guarded<TokioIo<DuplexStream>>, DuplexStream) {
        let (ours, theirs) = duplex(4);
        let limits = TimeLimits { head: LIMIT / 30, idle: Some(LIMIT) };
        (Guarded::new(TokioIo::new(ours), phase.clone(), limits), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn write_times_out_without_progress() {
        let (mut socket, mut client) = guarded(&Arc::default());
        let mut write = async || poll_fn(|context| Pin::new(&mut socket).poll_write(context, b"data")).await;
        let begun = Instant::now();
        for round in 0..3 {
            assert_eq!(write().await.unwrap(), 4);
            assert_eq!(begun.elapsed(), LIMIT * round / 2);
            tokio::time::advance(LIMIT / 2).await;
            client.read_exact(&mut [0; 4]).await.unwrap();
        }
        write().await.unwrap();
        let rest = Instant::now();
        assert_eq!(write().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(rest.elapsed() >= LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_restarts_with_each_phase() {
        let phase = Arc::new(Phase::default());
        let (mut socket, _client) = guarded(&phase);
        let mut flush = async || poll_fn(|context| Pin::new(&mut socket).poll_flush(context)).await;
        flush().await.unwrap();
        tokio::time::advance(LIMIT / 2).await;
        let serving = Arc::clone(&phase).serve();
        flush().await.unwrap();
        tokio::time::advance(LIMIT * 2).await;
        flush().await.unwrap();
        drop(serving);
        flush().await.unwrap();
        tokio::time::advance(LIMIT / 2).await;
        flush().await.unwrap();
        assert!(phase.begin_head() && !phase.begin_head());
        flush().await.unwrap();
        tokio::time::advance(LIMIT / 20).await;
        assert_eq!(flush().await.unwrap_err().kind(), io::ErrorKind::TimedOut, "of the head");
    }
}
