//! Copies of the process's log for clients of `GET /v1/agent/monitor`.
//!
//! The log belongs to the process, the monitors to an agent. Each monitor has a bounded queue: a
//! slow client loses lines, is sent their number, and delays no request. Without a monitor no line
//! is formatted and no further level is enabled. Lines of other crates are copied from `info` on:
//! below that they could contain what they send and receive, or be caused by a monitor.

use lockmesh_agent_core::registry::floor_char_boundary;
use serde_json::{Map, Value};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use time::OffsetDateTime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata};

/// The log of this process.
pub static LOG: Log = Log { level: AtomicUsize::new(0), readers: Mutex::new(Vec::new()) };

/// The maximum number of lines that wait for a client.
const QUEUE: usize = 512;

/// The maximum length of a line's message and of each of its values, in bytes.
const MAX_TEXT: usize = 1024;

/// The target of the lines of the audit log.
pub(crate) const AUDIT: &str = "audit";

/// Levels by number: 0 is off.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// A log, and its readers.
#[derive(Debug)]
pub struct Log {
    /// The index in [`LEVELS`] of the most verbose reader's level.
    level: AtomicUsize,
    readers: Mutex<Vec<Reader>>,
}

/// The log's end of a monitor.
#[derive(Debug)]
struct Reader {
    level: LevelFilter,
    lines: mpsc::Sender<Arc<Line>>,
    dropped: Arc<AtomicU64>,
}

impl Log {
    /// Returns the level of the most verbose monitor; off without a monitor.
    pub fn level(&self) -> LevelFilter {
        LEVELS[self.level.load(Ordering::Relaxed)]
    }

    /// Returns `true` if a monitor receives events with this metadata.
    pub fn admits(&self, metadata: &Metadata<'_>) -> bool {
        let level = match module(metadata.target()) {
            Some(_) => self.level(),
            None => self.level().min(LevelFilter::INFO),
        };
        *metadata.level() <= level
    }

    /// Copies an event to the monitors of its level.
    pub fn publish(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let mut line = None;
        for reader in self.readers().iter().filter(|reader| level <= reader.level) {
            // Formatted once for all readers, and never if none has this level.
            let line = line.get_or_insert_with(|| Arc::new(Line::of(event)));
            if let Err(mpsc::error::TrySendError::Full(_)) = reader.lines.try_send(Arc::clone(line)) {
                reader.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader, removes those without a monitor, and enables the levels of the rest.
    fn update(&self, added: Option<Reader>) {
        let mut readers = self.readers();
        readers.retain(|reader| !reader.lines.is_closed());
        readers.extend(added);
        let level = readers.iter().map(|reader| reader.level).max().unwrap_or(LevelFilter::OFF);
        let number = LEVELS.iter().position(|known| *known == level).unwrap_or_default();
        let changed = self.level.swap(number, Ordering::Relaxed) != number;
        drop(readers);
        // A rebuild visits every place that logs, and only another level changes its result.
        if changed {
            tracing::callsite::rebuild_interest_cache();
        }
    }
}

/// The module of a line in Consul's words; `None` for another crate's.
fn module(target: &str) -> Option<&'static str> {
    let name = target.split("::").next().unwrap_or_default();
    match name {
        "lockmesh_server" | "lockmesh_core" => Some("agent.server"),
        AUDIT => Some("agent"),
        name => name.starts_with("lockmesh").then_some("agent"),
    }
}

/// A line of the log.
#[derive(Debug)]
struct Line {
    at: OffsetDateTime,
    level: Level,
    module: String,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Line {
    fn new(level: Level, target: &str) -> Self {
        let at = OffsetDateTime::now_utc();
        let module = module(target).unwrap_or(target).to_owned();
        Self { at, level, module, message: String::new(), fields: Vec::new() }
    }

    fn of(event: &Event<'_>) -> Self {
        let mut line = Self::new(*event.metadata().level(), event.metadata().target());
        event.record(&mut line);
        line
    }

    /// The line that reports dropped ones.
    fn dropped(count: u64) -> Self {
        let message = "this monitor reads too slowly: lines were dropped".into();
        let fields = vec![("dropped", count.into())];
        Self { message, fields, ..Self::new(Level::WARN, module_path!()) }
    }

    fn field(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.push((field.name(), value.into()));
    }

    /// Appends the line in the form of a monitor.
    fn write(&self, format: Format, text: &mut String) {
        // A string takes every byte.
        let _ = match format {
            Format::Text => self.write_text(text),
            Format::Json => self.write_json(text),
        };
    }

    /// `<time> [LEVEL] module: message: key=value`, where the brackets and the space after them
    /// have the width of `[DEBUG] `.
    fn write_text(&self, text: &mut String) -> fmt::Result {
        let format = time::macros::format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        );
        let (at, level) = (self.at.format(&format).unwrap_or_default(), format!("[{}]", self.level));
        write!(text, "{at} {level:<7} {}: ", self.module)?;
        push_escaped(text, &self.message);
        for (number, (name, value)) in self.fields.iter().enumerate() {
            write!(text, "{}{name}=", if number == 0 { ": " } else { " " })?;
            match value {
                Value::String(value) if is_plain(value) => text.push_str(value),
                Value::String(value) => write!(text, "{value:?}")?,
                other => write!(text, "{other}")?,
            }
        }
        text.push('\n');
        Ok(())
    }

    fn write_json(&self, text: &mut String) -> fmt::Result {
        let format = time::macros::format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z"
        );
        let mut fields: Map<String, Value> =
            self.fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        for (name, value) in [
            ("@level", self.level.as_str().to_ascii_lowercase()),
            ("@message", self.message.clone()),
            ("@module", self.module.clone()),
            ("@timestamp", self.at.format(&format).unwrap_or_default()),
        ] {
            fields.insert(name.into(), value.into());
        }
        writeln!(text, "{}", Value::Object(fields))
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = cut(format!("{value:?}"), MAX_TEXT);
        match field.name() {
            "message" => self.message = text,
            _ => self.field(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, value);
    }
}

/// `true` if a value needs no quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

/// Returns the text with control characters escaped.
pub fn printable(text: &str) -> String {
    let mut printed = String::new();
    push_escaped(&mut printed, text);
    printed
}

/// Appends a text without line breaks and control characters, which could command a terminal.
fn push_escaped(text: &mut String, message: &str) {
    for character in message.chars() {
        match character.is_control() {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
}

/// Returns at most `limit` bytes of a text, and a mark if it is longer.
pub(crate) fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(floor_char_boundary(&text, limit));
        text.push('…');
    }
    text
}

/// The form of a monitor's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The monitors of one agent.
#[derive(Debug)]
pub struct Monitors {
    limit: usize,
    places: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
}

/// The agent has the maximum number of monitors.
#[derive(Debug, thiserror::Error)]
#[error("this agent serves {0} monitors, its limit: end one, or raise `http.max_monitors`")]
pub(crate) struct TooMany(usize);

impl Monitors {
    /// Creates an empty set, for at most this many monitors at a time.
    pub(crate) fn new(limit: usize) -> Self {
        let places = Arc::new(Semaphore::new(limit));
        Self { limit, places, stopping: watch::Sender::new(false) }
    }

    /// Opens a monitor of a level.
    ///
    /// # Errors
    /// [`TooMany`]; nothing is opened.
    pub(crate) fn open(&self, level: LevelFilter) -> Result<Monitor, TooMany> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| TooMany(self.limit))?;
        let (sender, lines) = mpsc::channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        LOG.update(Some(Reader { level, lines: sender, dropped: Arc::clone(&dropped) }));
        Ok(Monitor { lines, dropped, stopping: self.stopping.subscribe(), _place: place })
    }

    /// Ends all monitors, now and from now on.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }
}

/// An open monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    lines: mpsc::Receiver<Arc<Line>>,
    dropped: Arc<AtomicU64>,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Monitor {
    /// Waits for lines, and returns all that are there; `None` if the agent stops.
    pub(crate) async fn next(&mut self, format: Format) -> Option<String> {
        let mut lines = Vec::new();
        tokio::select! {
            biased;
            // First: lines from before the stop are still sent.
            _ = self.lines.recv_many(&mut lines, QUEUE) => {}
            _ = self.stopping.wait_for(|stopping| *stopping) => return None,
        }
        // They were dropped when the queue was full, behind the lines that have been taken now.
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        lines.extend((dropped > 0).then(|| Arc::new(Line::dropped(dropped))));
        let mut text = String::new();
        lines.iter().for_each(|line| line.write(format, &mut text));
        Some(text)
    }

    /// Waits until the agent stops.
    pub(crate) async fn stopped(&mut self) {
        // An error: the agent is gone.
        let _ = self.stopping.wait_for(|stopping| *stopping).await;
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.lines.close();
        LOG.update(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    fn line(message: &str, fields: Vec<(&'static str, Value)>) -> Line {
        let at = datetime!(2026-01-02 03:04:05.678_912 UTC);
        let message = message.into();
        Line { at, message, fields, ..Line::new(Level::INFO, "lockmesh_agent::registry") }
    }

    fn written(line: &Line, format: Format) -> String {
        let mut text = String::new();
        line.write(format, &mut text);
        text
    }

    #[test]
    fn line_format_matches_consul() {
        let fields = vec![("service", "web".into()), ("port", 80.into()), ("text", "a b\n".into())];
        let line = line("registered\u{1b}[1m", fields);
        assert_eq!(
            written(&line, Format::Text),
            "2026-01-02T03:04:05.678Z [INFO]  agent: registered\\u{1b}[1m: service=web port=80 text=\"a b\\n\"\n"
        );
        let json: Value = serde_json::from_str(&written(&line, Format::Json)).expect("an object");
        assert_eq!(
            json,
            serde_json::json!({
                "@level": "info", "@message": "registered\u{1b}[1m", "@module": "agent",
                "@timestamp": "2026-01-02T03:04:05.678912Z", "service": "web", "port": 80, "text": "a b\n",
            })
        );
    }

    #[test]
    fn module_names_match_consul() {
        assert_eq!(module("lockmesh_server::driver"), Some("agent.server"));
        assert_eq!(module("lockmesh_cli::agent"), Some("agent"));
        assert_eq!(module(AUDIT), Some("agent"));
        assert_eq!(module("quinn::connection"), None);
    }

    #[test]
    fn truncation_respects_character_boundary() {
        let long = "ä".repeat(MAX_TEXT);
        assert_eq!(cut(long.clone(), MAX_TEXT), format!("{}…", "ä".repeat(MAX_TEXT / 2)));
        assert_eq!(cut(long.clone(), long.len()), long);
    }

    #[tokio::test]
    async fn slow_monitor_reports_dropped_lines() {
        let monitors = Monitors::new(1);
        let mut monitor = monitors.open(LevelFilter::ERROR).expect("a place");
        let reads = |reader: &&Reader| Arc::ptr_eq(&reader.dropped, &monitor.dropped);
        let mine = LOG.readers().iter().find(reads).expect("it reads").lines.clone();
        for number in 0..QUEUE {
            mine.try_send(Arc::new(line(&number.to_string(), Vec::new()))).expect("room");
        }
        monitor.dropped.store(3, Ordering::Relaxed);
        let text = monitor.next(Format::Text).await.expect("lines");
        assert_eq!(text.lines().count(), QUEUE + 1);
        assert!(text.ends_with("agent: this monitor reads too slowly: lines were dropped: dropped=3\n"));
        // What is queued is sent before the end.
        mine.try_send(Arc::new(line("last", Vec::new()))).expect("room");
        monitors.stop();
        assert!(monitor.next(Format::Json).await.is_some_and(|text| text.contains("\"last\"")));
        assert_eq!(monitor.next(Format::Text).await, None);
    }
}
