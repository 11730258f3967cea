//! The process of a server or an agent. It ends on request, and when this process has ended for any
//! reason.

use super::folder::MemberFolder;
use crate::error::RunError;
use lockmesh_net::config::LogFormat;
use lockmesh_net::{owner, private};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The time that a process gets to stop before it is killed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The number of log lines that are shown.
const LAST_LINES: usize = 5;

/// A server's or agent's process.
#[derive(Debug)]
pub(super) struct Child {
    /// Whose it is.
    pub(super) home: MemberFolder,
    /// Its process number.
    pub(super) number: u32,
    /// It stops when this is closed. The kernel closes it when this process is gone.
    life: Option<ChildStdin>,
    orders: mpsc::Sender<ChildOrder>,
    ended: watch::Receiver<Option<ExitStatus>>,
}

/// A request to a process. The task that waits for its end carries it out, because its process id
/// is valid only until then.
#[derive(Clone, Copy, Debug)]
enum ChildOrder {
    Reload,
    Kill,
}

impl Child {
    /// Starts it with additional settings; its end is sent to `ends`.
    pub(super) fn start(
        home: &MemberFolder,
        settings: Vec<String>,
        ends: mpsc::Sender<(MemberFolder, ExitStatus)>,
    ) -> Result<Self, RunError> {
        let role = home.role.as_str();
        let cannot = |error| RunError::system(format!("cannot start the {role} {}", home.name), error);
        // The process id of an earlier process may belong to another one by now.
        match fs::remove_file(home.pid_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            _ => {}
        }
        let log = owner::open(private::file_options().create(true).append(true), &home.log_file())
            .map_err(cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(arguments(home, settings));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        // A Ctrl-C is for this process alone, which stops them in its own order.
        let mut process = command.process_group(0).spawn().map_err(cannot)?;
        let number = process.id().ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
        let life = process.stdin.take();
        let (tell, ended) = watch::channel(None);
        let (orders, mut taken) = mpsc::channel(1);
        let own = home.clone();
        tokio::spawn(async move {
            let status = loop {
                tokio::select! {
                    status = process.wait() => break status.unwrap_or_default(),
                    Some(order) = taken.recv() => carry_out(order, &mut process),
                }
            };
            tell.send_replace(Some(status));
            // The receiver is gone when this process stops.
            let _ = ends.send((own, status)).await;
        });
        Ok(Self { home: home.clone(), number, life, orders, ended })
    }

    /// Lets it read its certificate and its log level again.
    pub(super) fn reload(&self) {
        // One that has ended has nothing to reload.
        let _ = self.orders.try_send(ChildOrder::Reload);
    }

    /// `true` if it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Ends it and waits for that.
    pub(super) async fn stop(mut self) {
        // The end of its standard input is what it takes for the order to stop.
        drop(self.life.take());
        let gone = self.ended.wait_for(Option::is_some);
        if timeout(TIMEOUT, gone).await.is_err() {
            tracing::error!("{} does not stop and is killed", self.home.name);
            // One that has ended meanwhile needs no killing.
            let _ = self.orders.send(ChildOrder::Kill).await;
            let _ = self.ended.wait_for(Option::is_some).await;
        }
    }
}

/// The log settings of the command line, which its configuration may not have.
pub(super) fn log_settings(log_format: LogFormat) -> Vec<String> {
    match log_format {
        LogFormat::Text => Vec::new(),
        LogFormat::Json => vec!["log.format=json".into()],
    }
}

fn arguments(home: &MemberFolder, settings: Vec<String>) -> Vec<OsString> {
    let mut arguments = [home.role.as_str(), "--until-stdin-ends"].map(OsString::from).to_vec();
    for setting in settings {
        arguments.extend(["--set".into(), setting.into()]);
    }
    arguments.extend(["--config".into(), home.config_file().into()]);
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
        tracing::error!("cannot signal a process: {error}");
    }
}

/// The end of what a process said.
pub(super) fn last_words(home: &MemberFolder) -> String {
    let text = fs::read(home.log_file()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};
    use lockmesh_net::Role;
    use lockmesh_net::config::LogConfig;
    use lockmesh_server::config::ServerConfig;

    /// The configuration of a server that is started with these arguments.
    fn log_of(log_format: LogFormat) -> LogConfig {
        let home = MemberFolder::numbered("/".as_ref(), Role::Server, 1);
        let arguments = arguments(&home, log_settings(log_format));
        let set = arguments.iter().skip_while(|argument| *argument != "--set").nth(1);
        let settings = set.map(|set| set.to_str().expect("it is text").to_owned()).into_iter().collect();
        let sources = Sources { settings, ..Sources::default() };
        let config: ServerConfig = load(&sources).expect("it can be set");
        config.log
    }

    #[test]
    fn server_logs_in_requested_format() {
        assert_eq!(log_of(LogFormat::Json).format, LogFormat::Json);
        assert_eq!(log_of(LogFormat::Text), LogConfig::default());
    }
}
