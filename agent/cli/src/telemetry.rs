//! Logs: text for people or JSON for machines, to stderr, filtered by level and module; and for the
//! monitors of an agent's clients, each with its own level.
//!
//! The one file that names tracing-subscriber. Set up once a process; libraries only ever call
//! `tracing`'s macros. The level may be replaced later, the rest stays for the process's life.

use crate::stdio;
use lockmesh_agent::monitor::LOG;
use lockmesh_net::config::{LogConfig, LogFormat};
use std::fmt;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

/// The variable that wins over the configured level.
pub const LEVEL_VARIABLE: &str = "LOCKMESH_LOG";

/// The filter in use, once there is one.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// The error of an invalid log level.
#[derive(Debug, thiserror::Error)]
#[error(
    "{origin} is {text:?}, but must be a level such as `info`, or levels by module as `info,lockmesh_agent=debug`"
)]
pub struct TelemetryError {
    /// The key or variable with the level.
    origin: &'static str,
    /// The invalid level.
    text: String,
}

/// Sends logs to stderr from now on. A second call in one process changes nothing.
///
/// # Errors
/// The level is invalid; the error names the key or variable. Nothing is changed.
pub fn start(config: &LogConfig) -> Result<(), TelemetryError> {
    let (filter, handle) = reload::Layer::new(filter(variable(), &config.level)?);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(|| stdio::Log);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match config.format {
        LogFormat::Text if is_journal() => {
            stdio::render_dropped(|count| format!("<4>{}", stdio::dropped(count)));
            lines.with_ansi(false).event_format(JournalFormat::default()).with_filter(filter).boxed()
        }
        LogFormat::Text => lines.with_ansi(colours).with_filter(filter).boxed(),
        LogFormat::Json => {
            stdio::render_dropped(dropped_as_json);
            lines.json().flatten_event(true).with_filter(filter).boxed()
        }
    };
    // Only fails where there is a subscriber already, as in a test that starts two servers.
    if tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer).with(monitored()))
        .is_ok()
    {
        FILTER.get_or_init(|| handle);
    }
    Ok(())
}

/// The line about dropped ones, as an event of this log.
fn dropped_as_json(count: u64) -> String {
    let mut timestamp = String::new();
    // A string takes every byte.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let (message, target) = (stdio::dropped(count), module_path!());
    serde_json::json!({ "timestamp": timestamp, "level": "WARN", "message": message, "target": target })
        .to_string()
}

/// The layer of the monitors, which enables nothing without a monitor.
fn monitored<S: Subscriber + for<'span> LookupSpan<'span>>() -> impl Layer<S> {
    ForMonitors.with_filter(ForMonitors)
}

/// The monitors as a layer, and as its filter.
struct ForMonitors;

impl<S: Subscriber> Layer<S> for ForMonitors {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        LOG.publish(event);
    }
}

impl<S> Filter<S> for ForMonitors {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        LOG.admits(metadata)
    }

    // The log has this evaluated again when its level changes.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if LOG.admits(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LOG.level())
    }
}

/// `true` if stderr is the journal of systemd, whose device and inode are in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    // A child inherits the variable, and may have its stderr elsewhere.
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
}

/// Text for the journal: each line begins with its priority (`<4>` is a warning, as in syslog), so
/// that `journalctl -p warning` finds it. The journal adds the time.
struct JournalFormat(Format<Full, ()>);

impl Default for JournalFormat {
    fn default() -> Self {
        Self(Format::default().without_time())
    }
}

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        // The journal takes each line for an event of its own.
        for line in text.lines() {
            writeln!(writer, "<{}>{line}", priority(*event.metadata().level()))?;
        }
        Ok(())
    }
}

/// The priority of a level, as syslog counts.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Checks the configured level alone.
///
/// # Errors
/// There is no such level.
pub fn check_level(config: &LogConfig) -> Result<(), TelemetryError> {
    filter(None, &config.level).map(|_| ())
}

/// The level that counts, for [`replace_level`].
///
/// # Errors
/// It is invalid.
pub fn level(config: &LogConfig) -> Result<Targets, TelemetryError> {
    filter(variable(), &config.level)
}

/// Replaces the log level.
pub fn replace_level(level: Targets) {
    if let Some(handle) = FILTER.get() {
        // Only fails where the subscriber is gone, and then there are no logs.
        let _ = handle.reload(level);
    }
}

/// The level that counts: the variable's, or else the configured one.
pub fn effective_level(config: &LogConfig) -> String {
    variable().unwrap_or_else(|| config.level.clone())
}

fn variable() -> Option<String> {
    std::env::var(LEVEL_VARIABLE).ok().filter(|text| !text.is_empty())
}

/// The level of a command that talks to an agent: quiet unless asked.
pub fn for_commands() -> LogConfig {
    LogConfig { level: "warn".into(), format: LogFormat::Text }
}

fn filter(variable: Option<String>, configured: &str) -> Result<Targets, TelemetryError> {
    let (origin, text) = match variable {
        Some(text) => (LEVEL_VARIABLE, text),
        None => ("`log.level`", configured.to_string()),
    };
    // A bare word is a level and nothing else: taken for a module, a misspelt level would silence
    // everything.
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let is_good = |part: &str| match part.split_once('=') {
        Some((module, level)) => !module.is_empty() && is_level(level),
        None => is_level(part),
    };
    if !text.split(',').map(str::trim).all(is_good) {
        return Err(TelemetryError { origin, text });
    }
    text.parse().map_err(|_| TelemetryError { origin, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    /// The output in the form of the journal.
    #[derive(Clone, Default)]
    struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no test panics with it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn journal_line_starts_with_priority() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(lines.event_format(JournalFormat::default()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(term = 8, "lost the leader");
            tracing::error!("stopped\nfor good");
        });
        let text =
            String::from_utf8(written.0.lock().expect("nobody writes any more").clone()).expect("text");
        let starts: Vec<&str> =
            text.lines().map(|line| line.split_whitespace().next().expect("words")).collect();
        assert_eq!(starts, ["<4>", "<3>ERROR", "<3>for"], "{text}");
        assert!(text.contains("lost the leader term=8"), "{text}");
    }

    #[test]
    fn no_level_enabled_without_monitor() {
        let (info, _) = reload::Layer::new(filter(None, "info").expect("it is good"));
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(info);
        let subscriber = tracing_subscriber::registry().with(lines).with(monitored());
        assert_eq!(subscriber.max_level_hint(), Some(LevelFilter::INFO));
        let alone = tracing_subscriber::registry().with(monitored());
        assert_eq!(alone.max_level_hint(), Some(LevelFilter::OFF));
    }

    #[test]
    fn variable_overrides_configured_level() {
        let filter = filter(Some("warn,lockmesh_server=debug".into()), "trace").expect("it is good");
        assert!(filter.would_enable("lockmesh_server::driver", &Level::DEBUG));
        assert!(!filter.would_enable("lockmesh_agent", &Level::INFO));
    }

    #[test]
    fn configured_level_applies_without_variable() {
        let filter = filter(None, "off").expect("it is good");
        assert!(!filter.would_enable("lockmesh_agent", &Level::ERROR));
    }

    #[test]
    fn invalid_level_error_names_origin() {
        for wrong in ["loud", "lockmesh_server=loud", "info,=debug", "info,,warn"] {
            let error = filter(Some(wrong.into()), "info").expect_err("no such level").to_string();
            assert!(error.starts_with(&format!("LOCKMESH_LOG is {wrong:?}")), "{error}");
        }
        let error = filter(None, "loud").expect_err("no such level").to_string();
        assert!(error.starts_with("`log.level` is"), "{error}");
    }
}
