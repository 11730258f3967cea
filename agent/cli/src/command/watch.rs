//! `lockmesh watch`: prints a view of the data once, or runs a handler whenever it changes.
//! The handler gets the view as JSON on stdin and its index as `CONSUL_INDEX` and `LOCKMESH_INDEX`.
//! Handlers run one after the other; what changed meanwhile is seen by the next one, once.
//! A handler runs under a supervisor, in a process group of its own. SIGTERM, SIGINT, SIGQUIT and
//! SIGHUP are passed on to the group and end the watch; SIGKILL follows after 5 s.

use super::context::{ConsistencyArgs, Context};
use super::error::CliError;
use super::kv::entry::shape_of;
use super::lock::child::{Child, CommandInput, Program, Signals, Standby, stop_ourselves};
use super::output::{print_json, warn};
use crate::supervision::{End, Input};
use lockmesh_client::shape::catalog::Service;
use lockmesh_client::shape::health::ServiceInstance;
use lockmesh_client::{Answer, Client, Error, Read};
use lockmesh_net::random;
use lockmesh_protocol::backoff::Backoff;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::time::timeout;

/// The maximum time of one blocking query.
const QUERY_WAIT_TIME: Duration = Duration::from_secs(300);

/// The pause after an error that may pass: at first, and at most.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Print a view of the data, or run a command for each change
///
/// A single COMMAND argument is run by a shell; several are a program and its arguments. It gets
/// the view as JSON on stdin, and its index in LOCKMESH_INDEX. If it fails, the watch ends.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// WatchView: key, keyprefix, nodes, services, service, checks or event
    #[arg(long = "type", value_name = "KIND")]
    kind: String,
    /// Key, for `key`
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Key prefix, for `keyprefix`
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Service name, for `service` and `checks`
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Check state, for `checks`: any, passing, warning or critical
    #[arg(long, value_name = "STATE", conflicts_with = "service")]
    state: Option<String>,
    /// Event name, for `event` [default: all events]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Tag of the instances, for `service`; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Only instances with passing checks, for `service`
    #[arg(long)]
    passingonly: bool,
    /// Run COMMAND through $SHELL [default: if it is one argument]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide_possible_values = true)]
    shell: Option<bool>,
    #[command(flatten)]
    consistency: ConsistencyArgs,
    /// Command to run at the start and for each change
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    child: Vec<OsString>,
}

/// The watched view.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WatchView {
    Key(String),
    KeyPrefix(String),
    Nodes,
    Services,
    Service { name: String, tags: Vec<String>, passing_only: bool },
    ChecksOfService(String),
    ChecksInState(String),
    Events(String),
}

/// Runs the command.
/// # Errors
/// The view makes no sense, cannot be watched, or the handler could not be run. Nothing was changed
/// by watching.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let view = WatchView::of(&args)?;
    let client = context.client()?;
    let read = args.consistency.read();
    if args.child.is_empty() {
        print_json(&view.look(&client, &read).await?.value)?;
        return Ok(ExitCode::SUCCESS);
    }
    // From here on a signal ends the handler first.
    let mut signals = Signals::intercept()?;
    let signal = follow(&view, &client, read, &Handler::of(&args), &mut signals).await?;
    Ok(ExitCode::from(End::Killed(signal.as_raw()).shell_code()))
}

/// Runs the handler for every change, until a signal ends the watch.
async fn follow(
    view: &WatchView,
    client: &Client,
    read: Read,
    handler: &Handler,
    signals: &mut Signals,
) -> Result<Signal, CliError> {
    let mut progress = WatchProgress::default();
    let mut backoff = Backoff::new(RETRY_BACKOFF, random::seed());
    loop {
        let newer = read.newer_than(progress.index, QUERY_WAIT_TIME);
        let looked = tokio::select! {
            looked = view.look(client, &newer) => looked,
            signal = end_of(signals) => return Ok(signal),
        };
        match looked {
            Ok(answer) => {
                backoff.reset();
                if let Some(signal) = progress.handle(view, answer, handler, signals).await? {
                    return Ok(signal);
                }
            }
            Err(error) if error.is_transient() => {
                let pause = backoff.next_pause();
                warn(&format!("{error}; trying again in {:.1} s", pause.as_secs_f64()));
                if let Ok(signal) = timeout(pause, end_of(signals)).await {
                    return Ok(signal);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The part of a view that the handler has received.
#[derive(Default)]
struct WatchProgress {
    index: u64,
    seen: Option<Value>,
}

impl WatchProgress {
    /// Runs the handler if there is news; returns the signal that ended it, if one did.
    async fn handle(
        &mut self,
        view: &WatchView,
        answer: Answer<Value>,
        handler: &Handler,
        signals: &mut Signals,
    ) -> Result<Option<Signal>, CliError> {
        let next = view.next_index(self.index, answer.index);
        // The index moves for changes elsewhere too: only another view is news.
        if next != self.index
            && let Some(news) = view.news(self.seen.as_ref(), &answer.value)
        {
            if let Some(signal) = handler.handle(&news, answer.index, signals).await? {
                return Ok(Some(signal));
            }
            self.seen = Some(answer.value);
        }
        self.index = next;
        match answer.index {
            // Without an index no query would block, and the watch would never pause.
            0 => Err(CliError::failed("the agent gives no index for this view: it cannot be watched")),
            _ => Ok(None),
        }
    }
}

/// The next signal that ends the watch while no handler runs.
async fn end_of(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::TSTP => stop_ourselves(),
            Signal::USR1 | Signal::USR2 => {}
            signal => return signal,
        }
    }
}

impl WatchView {
    fn of(args: &Args) -> Result<Self, CliError> {
        let named = |value: &Option<String>, flag: &str| {
            let value = value.clone().filter(|value| !value.is_empty());
            value.ok_or_else(|| CliError::usage(format!("--type {} needs {flag}", args.kind)))
        };
        match args.kind.as_str() {
            "key" => Ok(Self::Key(named(&args.key, "--key")?)),
            "keyprefix" => Ok(Self::KeyPrefix(named(&args.prefix, "--prefix")?)),
            "nodes" => Ok(Self::Nodes),
            "services" => Ok(Self::Services),
            "service" => Ok(Self::Service {
                name: named(&args.service, "--service")?,
                tags: args.tags.clone(),
                passing_only: args.passingonly,
            }),
            "checks" => Ok(match &args.service {
                Some(service) => Self::ChecksOfService(service.clone()),
                None => Self::ChecksInState(args.state.clone().unwrap_or_else(|| "any".into())),
            }),
            "event" => Ok(Self::Events(args.name.clone().unwrap_or_default())),
            other => Err(CliError::usage(format!(
                "--type is {other:?}, but must be key, keyprefix, nodes, services, service, checks or event"
            ))),
        }
    }

    /// The index for the next look. An index that went back starts a new count: the agent
    /// restarted, or a backup was restored. The index of events goes up and down.
    fn next_index(&self, last: u64, found: u64) -> u64 {
        let went_back = found < last && !matches!(self, Self::Events(_));
        if went_back { 0 } else { found }
    }

    /// The input for a handler whose last input was `seen`: the new events, or the current view.
    /// `None` if nothing has changed.
    fn news(&self, seen: Option<&Value>, found: &Value) -> Option<Value> {
        let Self::Events(_) = self else { return (seen != Some(found)).then(|| found.clone()) };
        let found = found.as_array().map(Vec::as_slice).unwrap_or_default();
        let last = seen.and_then(Value::as_array).and_then(|seen| seen.last());
        let known = found.iter().rposition(|event| Some(event) == last).map_or(0, |last| last + 1);
        let news = &found[known..];
        (!news.is_empty()).then(|| news.into())
    }

    async fn look(&self, client: &Client, read: &Read) -> Result<Answer<Value>, Error> {
        let (kv, catalog) = (client.kv(), client.catalog());
        Ok(match self {
            Self::Key(key) => kv.get(key, read).await?.map(|entry| json(&entry.as_ref().map(shape_of))),
            Self::KeyPrefix(prefix) => kv.list(prefix, read).await?.map(|entries| match entries.is_empty() {
                true => Value::Null,
                false => json(&entries.iter().map(shape_of).collect::<Vec<_>>()),
            }),
            Self::Nodes => catalog.nodes(read).await?.map(|nodes| json(&nodes)),
            Self::Services => catalog.services(read).await?.map(|services| json(&services)),
            Self::Service { name, tags, passing_only } => {
                let chosen = |instances: Vec<ServiceInstance>| {
                    let is_wanted = |instance: &ServiceInstance| is_wanted(instance, tags, *passing_only);
                    instances.into_iter().filter(is_wanted).collect::<Vec<_>>()
                };
                catalog.instances(name, read).await?.map(|instances| json(&chosen(instances)))
            }
            Self::ChecksOfService(name) => {
                catalog.service_checks(name, read).await?.map(|checks| json(&checks))
            }
            Self::Events(name) => client.events().list(name, read).await?.map(|events| json(&events)),
            Self::ChecksInState(state) => {
                catalog.checks_in_state(state, read).await?.map(|checks| json(&checks))
            }
        })
    }
}

fn is_wanted(instance: &ServiceInstance, tags: &[String], passing_only: bool) -> bool {
    let Service { tags: own, .. } = &instance.service;
    tags.iter().all(|tag| own.as_ref().is_some_and(|own| own.contains(tag)))
        && (!passing_only || instance.checks.iter().all(|check| check.status == "passing"))
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("the API's own shapes are JSON")
}

/// The command for a change.
struct Handler {
    child: Vec<OsString>,
    shell: bool,
}

impl Handler {
    fn of(args: &Args) -> Self {
        Self { child: args.child.clone(), shell: args.shell.unwrap_or(args.child.len() == 1) }
    }

    /// Runs the handler and waits for its end. One that fails ends the watch; so does a signal,
    /// which is returned when the handler has ended.
    async fn handle(
        &self,
        value: &Value,
        index: u64,
        signals: &mut Signals,
    ) -> Result<Option<Signal>, CliError> {
        let cannot =
            |error| CliError::failed(format!("cannot run {:?}: {error}", self.child[0].to_string_lossy()));
        let (mut child, writer) = self.start(index).map_err(cannot)?;
        // A handler need not read its input, so that is not waited for.
        let text = format!("{value}\n");
        let writing = tokio::spawn(async move {
            let mut writer = writer;
            let _ = writer.write_all(text.as_bytes()).await;
        });
        let mut asked = None;
        let outcome = loop {
            tokio::select! {
                outcome = child.ended() => break outcome,
                signal = signals.next() => child.handle(match signal {
                    Signal::TSTP => Input::Suspend,
                    Signal::USR1 | Signal::USR2 => Input::Forward(signal.as_raw()),
                    signal => {
                        asked = Some(signal);
                        Input::Stop(signal.as_raw())
                    }
                }),
            }
        };
        writing.abort();
        child.reaped().await;
        match (asked, outcome.end) {
            (_, Err(error)) => Err(cannot(std::io::Error::from_raw_os_error(error))),
            (Some(signal), _) => Ok(Some(signal)),
            (None, Ok(End::Code(0))) => Ok(None),
            (None, Ok(end)) => {
                Err(CliError::failed(format!("the handler ended with {end}, and with it the watch")))
            }
        }
    }

    /// Starts the handler, and gives what its standard input is written to.
    fn start(&self, index: u64) -> std::io::Result<(Child, Sender)> {
        let (reader, writer) = std::io::pipe()?;
        let words = if self.shell { Program::in_shell(&self.child) } else { self.child.clone() };
        let program = Program {
            stdin: CommandInput::Other(reader.into()),
            environment: ["CONSUL_INDEX", "LOCKMESH_INDEX"]
                .map(|name| (name.into(), index.to_string()))
                .into(),
            hold: None,
        };
        Ok((Standby::new(words)?.start(&program)?, Sender::from_owned_fd(writer.into())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};
    use lockmesh_client::shape::health::Check;
    use serde_json::json;

    fn parsed(line: &[&str]) -> Args {
        let command = Args::augment_args(clap::Command::new("watch").no_binary_name(true));
        let matches = command.try_get_matches_from(line).expect("the line is good");
        Args::from_arg_matches(&matches).expect("the line is good")
    }

    fn view(line: &[&str]) -> Result<WatchView, String> {
        WatchView::of(&parsed(line)).map_err(|error| error.to_string())
    }

    #[test]
    fn view_selected_by_type() {
        assert_eq!(view(&["--type", "key", "--key", "a/b"]), Ok(WatchView::Key("a/b".into())));
        assert_eq!(view(&["--type", "checks"]), Ok(WatchView::ChecksInState("any".into())));
        assert_eq!(
            view(&["--type", "checks", "--service", "web"]),
            Ok(WatchView::ChecksOfService("web".into()))
        );
        assert_eq!(view(&["--type", "key"]), Err("--type key needs --key".into()));
        assert_eq!(view(&["--type", "event", "--name", "deploy"]), Ok(WatchView::Events("deploy".into())));
        assert!(view(&["--type", "nodez"]).expect_err("no such kind").contains("nodes"));
    }

    #[test]
    fn handler_receives_each_event_once() {
        let events = WatchView::Events(String::new());
        let list = |ids: &[u64]| json!(ids.iter().map(|id| json!({ "ID": id })).collect::<Vec<_>>());
        assert_eq!(events.news(None, &list(&[])), None);
        assert_eq!(events.news(None, &list(&[1, 2])), Some(list(&[1, 2])));
        assert_eq!(events.news(Some(&list(&[1, 2])), &list(&[2, 3, 4])), Some(list(&[3, 4])));
        assert_eq!(events.news(Some(&list(&[1, 2])), &list(&[1, 2])), None);
        assert_eq!(events.news(Some(&list(&[])), &list(&[5])), Some(list(&[5])));
        let (before, after) = (json!({ "Key": "a" }), json!({ "Key": "b" }));
        assert_eq!(WatchView::Nodes.news(Some(&before), &before), None);
        assert_eq!(WatchView::Nodes.news(Some(&before), &after), Some(after));
    }

    #[test]
    fn single_word_runs_in_shell() {
        let is_shell = |line: &[&str]| Handler::of(&parsed(line)).shell;
        assert!(is_shell(&["--type", "nodes", "cat | jq ."]));
        assert!(!is_shell(&["--type", "nodes", "jq", "-c", "."]));
        assert!(is_shell(&["--type", "nodes", "--shell", "jq", "-c"]));
        assert!(!is_shell(&["--type", "nodes", "--shell=false", "handler"]));
    }

    #[test]
    fn instances_filtered_by_tag_and_health() {
        let instance = ServiceInstance {
            service: Service { tags: Some(vec!["a".into()]), ..Service::default() },
            checks: vec![Check { status: "warning".into(), ..Check::default() }],
            ..ServiceInstance::default()
        };
        assert!(is_wanted(&instance, &["a".into()], false));
        assert!(!is_wanted(&instance, &["b".into()], false));
        assert!(!is_wanted(&instance, &[], true));
    }
}
