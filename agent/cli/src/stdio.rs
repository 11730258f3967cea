//! stdout and stderr of this process, each written by a thread of its own, so that no duty waits
//! for a reader that is stuck: a full pipe, or a terminal that is stopped with Ctrl-S.
//!
//! | on | is | if the reader is stuck |
//! |---|---|---|
//! | stderr | log lines and messages | a bounded queue; then messages are dropped and counted |
//! | stdout | data of long-running commands | never dropped: the caller waits, and may stop to wait |
//!
//! Commands that print and end write to stdout directly: see
//! [`output`](crate::command::output).
//!
//! **Invariants:** only the two threads write, and only [`finish`] waits for them, for a bounded
//! time. `O_NONBLOCK` is never set, because other processes share the open files. A message is one
//! write, so that processes with one pipe do not tear each other's lines.

use lockmesh_net::metrics::process;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write, stderr, stdout};
use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The maximum number of messages that wait for stderr: more than the most verbose log writes while
/// the thread waits for a busy processor.
const MAX_MESSAGES: usize = 8192;

/// The maximum size of the messages that wait for stderr, in bytes. A single one may be larger.
const MAX_BYTES: usize = 1 << 20;

/// The room for messages that is kept when none waits.
const KEPT_MESSAGES: usize = 64;

/// The most that the end of the process waits for its outputs, in case a reader is stuck.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The stack of a thread, of which it touches a page or two.
const STACK_BYTES: usize = 128 << 10;

static STDERR: OnceLock<Arc<Output>> = OnceLock::new();
static STDOUT: OnceLock<Arc<Output>> = OnceLock::new();

/// Renders the number of dropped messages in the form of the log.
static NOTICE: OnceLock<fn(u64) -> String> = OnceLock::new();

/// Prints a message on stderr, after the name of the program. Never waits.
pub fn report(text: impl Display) {
    message(format!("lockmesh: {text}\n").into());
}

/// Prints bytes on stderr as they are. Never waits.
pub fn message(bytes: Vec<u8>) {
    if !STDERR.get_or_init(|| Output::start("stderr", stderr())).offer(bytes) {
        process::count_dropped_message();
    }
}

/// Queues data for stdout; the future waits until it is written. Dropping the future does not drop
/// the data.
///
/// # Errors
/// The reader has gone, or a write failed. A part may have been printed.
pub fn print(bytes: Vec<u8>) -> impl Future<Output = io::Result<()>> {
    STDOUT.get_or_init(|| Output::start("stdout", stdout())).print(bytes)
}

/// Waits until everything is written, at the end of the process: at most [`FINISH_TIMEOUT`].
pub fn finish() {
    let deadline = Instant::now() + FINISH_TIMEOUT;
    for output in [&STDERR, &STDOUT].into_iter().filter_map(OnceLock::get) {
        output.drain(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Replaces the line that takes the place of dropped messages.
pub fn render_dropped(notice: fn(u64) -> String) {
    // Only set already where a test starts two processes' logs.
    let _ = NOTICE.set(notice);
}

/// The text about dropped messages.
pub fn dropped(count: u64) -> String {
    let messages = if count == 1 { "message was" } else { "messages were" };
    format!("{count} {messages} dropped: the reader of stderr was stuck")
}

/// Reports panics as messages: the default hook would wait for stderr.
pub fn report_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let backtrace = Backtrace::capture();
        let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
        if backtrace.status() == BacktraceStatus::Captured {
            text.push_str(&backtrace.to_string());
        }
        message(text.into());
        // The process may be aborted next.
        finish();
    }));
}

/// The log's way to stderr. Each write is one line of the log.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        message(bytes.into());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One output and its queue.
#[derive(Debug, Default)]
struct Output {
    queue: Mutex<Queue>,
    /// Something was queued for a thread without work.
    work: Condvar,
    /// Everything is written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Piece>,
    /// The size of all that wait.
    bytes: usize,
    /// The number of messages dropped behind those that wait.
    dropped: u64,
    /// `true` while the thread has work.
    is_writing: bool,
    /// Set if there is no thread, because the system refused to start it.
    is_closed: bool,
}

/// The content of one write.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// For data: receives the outcome.
    written: Option<oneshot::Sender<io::Result<()>>>,
}

impl Output {
    /// Starts the thread that writes. It ends with the process.
    fn start(name: &str, to: impl Write + Send + 'static) -> Arc<Self> {
        let this = Arc::new(Self::default());
        let own = Arc::clone(&this);
        let thread = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        this.queue().is_closed = thread.spawn(move || own.write_to(to)).is_err();
        this
    }

    /// Queues a message; `false` if it is dropped.
    fn offer(&self, bytes: Vec<u8>) -> bool {
        let mut queue = self.queue();
        if queue.is_full(bytes.len()) {
            queue.dropped += 1;
            return false;
        }
        queue.count_dropped();
        self.push(&mut queue, Piece { bytes, written: None });
        true
    }

    fn print(&self, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>> {
        let (sender, written) = oneshot::channel();
        let mut queue = self.queue();
        if !queue.is_closed {
            self.push(&mut queue, Piece { bytes, written: Some(sender) });
        }
        drop(queue);
        async { written.await.unwrap_or_else(|_| Err(io::Error::other("cannot start a thread"))) }
    }

    fn push(&self, queue: &mut Queue, piece: Piece) {
        queue.push(piece);
        // A thread that writes looks at the queue again when it is done.
        if !queue.is_writing {
            self.work.notify_one();
        }
    }

    /// Waits until everything is written, or the limit.
    fn drain(&self, limit: Duration) {
        // Either way the process ends.
        let _ = self.idle.wait_timeout_while(self.queue(), limit, |queue| !queue.is_idle());
    }

    fn write_to(&self, mut to: impl Write) {
        loop {
            let piece = self.next();
            let written = to.write_all(&piece.bytes).and_then(|()| to.flush());
            // Without stderr there is no place to report an error.
            let _ = piece.written.map(|sender| sender.send(written));
        }
    }

    fn next(&self) -> Piece {
        let mut queue = self.queue();
        loop {
            if let Some(piece) = queue.pop() {
                queue.is_writing = true;
                return piece;
            }
            queue.is_writing = false;
            self.idle.notify_all();
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// `true` if a message of this size is dropped. After a drop, until half of the queue is
    /// written: each gap costs a line.
    fn is_full(&self, bytes: usize) -> bool {
        let share = if self.dropped > 0 { 2 } else { 1 };
        let is_large = self.bytes + bytes > MAX_BYTES / share && !self.waiting.is_empty();
        self.is_closed || is_large || self.waiting.len() >= MAX_MESSAGES / share
    }

    fn is_idle(&self) -> bool {
        self.is_closed || !self.is_writing && self.waiting.is_empty() && self.dropped == 0
    }

    /// Queues the number of dropped messages in their place.
    fn count_dropped(&mut self) {
        if self.dropped > 0 {
            let count = std::mem::take(&mut self.dropped);
            let line =
                NOTICE.get().map_or_else(|| format!("lockmesh: {}", dropped(count)), |line| line(count));
            self.push(Piece { bytes: format!("{line}\n").into(), written: None });
        }
    }

    fn push(&mut self, piece: Piece) {
        self.bytes += piece.bytes.len();
        self.waiting.push_back(piece);
    }

    fn pop(&mut self) -> Option<Piece> {
        if self.waiting.is_empty() {
            // The memory of a burst is not kept for the life of the process.
            self.waiting.shrink_to(KEPT_MESSAGES);
            self.count_dropped();
        }
        let piece = self.waiting.pop_front()?;
        self.bytes -= piece.bytes.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, PipeReader, pipe};
    use tokio::time::timeout;

    /// An output whose thread waits for a reader, with more than a pipe takes.
    fn stuck() -> (Arc<Output>, BufReader<PipeReader>) {
        let (reader, writer) = pipe().expect("a pipe");
        let (output, mut reader) = (Output::start("test", writer), BufReader::new(reader));
        assert!(output.offer([vec![b'x'; MAX_BYTES], vec![b'\n']].concat()), "a single one may be larger");
        assert!(!reader.fill_buf().expect("it is written").is_empty());
        (output, reader)
    }

    /// Reads the lines up to this one, without it.
    fn lines_before(reader: &mut BufReader<PipeReader>, last: &str) -> Vec<String> {
        let lines = reader.lines().map(|line| line.expect("it is written"));
        lines.take_while(|line| line != last).collect()
    }

    #[test]
    fn dropped_messages_to_stuck_reader_counted() {
        let (output, mut reader) = stuck();
        for number in 0..MAX_MESSAGES {
            assert!(output.offer(format!("{number}\n").into()), "there is room");
        }
        (0..17).for_each(|_| assert!(!output.offer(b"dropped\n".into()), "there is no room"));
        let lines =
            lines_before(&mut reader, "lockmesh: 17 messages were dropped: the reader of stderr was stuck");
        let expected: Vec<String> = (0..MAX_MESSAGES).map(|number| number.to_string()).collect();
        assert_eq!(lines[1..], expected, "in their order, behind the first one");
        assert!(output.offer(b"next\n".into()) && output.offer(b"end\n".into()));
        assert_eq!(lines_before(&mut reader, "end"), ["next"]);
    }

    #[test]
    fn drop_count_replaces_dropped_messages() {
        let (output, mut reader) = stuck();
        let line = [vec![b'a'; MAX_BYTES / 4 - 1], vec![b'\n']].concat();
        (0..4).for_each(|_| assert!(output.offer(line.clone()), "there is room"));
        assert!(!output.offer(b"dropped\n".into()), "the bytes are the limit");
        // The first line and three of the four.
        for _ in 0..4 {
            reader.read_until(b'\n', &mut Vec::new()).expect("it is written");
        }
        assert!(output.offer(b"end\n".into()), "half of the queue is free");
        let lines = lines_before(&mut reader, "end");
        assert_eq!(
            lines.last().expect("it was dropped"),
            "lockmesh: 1 message was dropped: the reader of stderr was stuck"
        );
    }

    #[test]
    fn drain_waits_unless_reader_stuck() {
        let (output, mut reader) = stuck();
        output.offer(b"end\n".into());
        output.drain(Duration::from_millis(1));
        assert!(!output.queue().is_idle(), "no reader reads");
        let reading = thread::spawn(move || lines_before(&mut reader, "end").len());
        output.drain(Duration::from_secs(120));
        assert!(output.queue().is_idle(), "everything is written");
        assert_eq!(reading.join().expect("it reads"), 1);
    }

    #[tokio::test]
    async fn data_waits_for_stuck_reader() {
        let (reader, writer) = pipe().expect("a pipe");
        let (output, mut reader) = (Output::start("test", writer), BufReader::new(reader));
        let data = vec![b'x'; MAX_BYTES * 2];
        let mut first = std::pin::pin!(output.print(data.clone()));
        assert!(timeout(Duration::ZERO, &mut first).await.is_err(), "no reader reads");
        // Nothing waits for it any more, and it is written all the same.
        drop(output.print(b"second".into()));
        let reading = thread::spawn(move || {
            let mut line = Vec::new();
            reader.read_until(b'\n', &mut line).map(|_| line)
        });
        first.await.expect("it is written");
        output.print(b"\n".into()).await.expect("it is written");
        let line = reading.join().expect("it reads").expect("all arrives");
        assert!(line.starts_with(&data) && line.ends_with(b"second\n"));
        let error = output.print(b"third\n".into()).await.expect_err("the reader has gone");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
