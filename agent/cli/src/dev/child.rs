//! One server's process. It ends when it is told to, and by itself when this process is gone,
//! however that came.

use super::member::ServerFolder;
use crate::error::RunError;
use lockmesh_net::config::LogFormat;
use lockmesh_net::private;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// How long a server may take to stop before it is killed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How much of a log is shown.
const LAST_LINES: usize = 5;

/// A server's process.
#[derive(Debug)]
pub(super) struct Child {
    /// Whose it is.
    pub(super) member: ServerFolder,
    /// Its process number.
    pub(super) number: u32,
    /// The server stops when this is closed. The kernel closes it when this process is gone.
    life: Option<ChildStdin>,
    orders: mpsc::Sender<ChildOrder>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

/// What is done to a process, by the task that also waits for its end: its number is its own as
/// long as that lasts.
#[derive(Clone, Copy, Debug)]
enum ChildOrder {
    Reload,
    Kill,
}

impl Child {
    /// Starts a server; its end is told to `ends` too.
    pub(super) fn start(
        member: &ServerFolder,
        log_format: LogFormat,
        ends: mpsc::Sender<(ServerFolder, ExitStatus)>,
    ) -> Result<Self, RunError> {
        let cannot = |error| RunError::system(format!("cannot start the server {}", member.name), error);
        // The number of an earlier process is nobody's to kill.
        match fs::remove_file(member.pid_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let log =
            private::file_options().create(true).append(true).open(member.log_file()).map_err(cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(arguments(member, log_format));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        // A Ctrl-C is for this process alone, which stops the servers in its own order.
        let mut process = command.process_group(0).spawn().map_err(cannot)?;
        let number = process.id().ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
        let life = process.stdin.take();
        let (tell, ended) = watch::channel(None);
        let (orders, mut taken) = mpsc::channel(1);
        let own = member.clone();
        tokio::spawn(async move {
            let status = loop {
                tokio::select! {
                    status = process.wait() => break status.unwrap_or_default(),
                    Some(order) = taken.recv() => carry_out(order, &mut process),
                }
            };
            tell.send_replace(Some(status));
            // Nobody listens any more when this process stops.
            let _ = ends.send((own, status)).await;
        });
        Ok(Self { member: member.clone(), number, life, orders, ended })
    }

    /// Lets it read its certificate and its log level again.
    pub(super) fn reload(&self) {
        // One that has ended has nothing to reload.
        let _ = self.orders.try_send(ChildOrder::Reload);
    }

    /// Ends it and waits for that.
    pub(super) async fn stop(mut self) {
        // The end of its standard input is what it takes for the order to stop.
        drop(self.life.take());
        let gone = self.ended.wait_for(Option::is_some);
        if timeout(TIMEOUT, gone).await.is_err() {
            tracing::error!("{} does not stop and is killed", self.member.name);
            // One that has ended meanwhile needs no killing.
            let _ = self.orders.send(ChildOrder::Kill).await;
            let _ = self.ended.wait_for(Option::is_some).await;
        }
    }
}

/// What the server is told beside its configuration, which may have been made for another log
/// format.
fn arguments(member: &ServerFolder, log_format: LogFormat) -> Vec<OsString> {
    let mut arguments = ["server", "--until-stdin-ends"].map(OsString::from).to_vec();
    if log_format == LogFormat::Json {
        arguments.extend(["--set", "log.format=json"].map(OsString::from));
    }
    arguments.extend(["--config".into(), member.config_file().into()]);
    arguments
}

fn carry_out(order: ChildOrder, process: &mut tokio::process::Child) {
    let done = match order {
        ChildOrder::Kill => process.start_kill(),
        ChildOrder::Reload => {
            let number = process.id().and_then(|number| Pid::from_raw(number.cast_signed()));
            number.map_or(Ok(()), |number| kill_process(number, Signal::HUP).map_err(io::Error::from))
        }
    };
    if let Err(error) = done {
        tracing::error!("cannot signal a server: {error}");
    }
}

/// The end of what a server said.
pub(super) fn last_words(member: &ServerFolder) -> String {
    let text = fs::read(member.log_file()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};
    use lockmesh_net::config::LogConfig;
    use lockmesh_server::config::ServerConfig;

    /// What a server that is started so makes of it.
    fn log_of(log_format: LogFormat) -> LogConfig {
        let member = ServerFolder {
            name: "s1".into(),
            folder: "/s1".into(),
            address: ([127, 0, 0, 1], 1).into(),
            http: None,
        };
        let arguments = arguments(&member, log_format);
        let set = arguments.iter().skip_while(|argument| *argument != "--set").nth(1);
        let settings = set.map(|set| set.to_str().expect("it is text").to_owned()).into_iter().collect();
        let sources = Sources { settings, ..Sources::default() };
        let config: ServerConfig = load(&sources).expect("it can be set");
        config.log
    }

    #[test]
    fn servers_say_what_they_say_in_the_format_that_was_asked_for() {
        assert_eq!(log_of(LogFormat::Json).format, LogFormat::Json);
        assert_eq!(log_of(LogFormat::Text), LogConfig::default());
    }
}
