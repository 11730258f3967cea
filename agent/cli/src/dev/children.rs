//! All processes of one command: ends, reloads, orderly stop, and messages about them.
//!
//! A killed process is not restarted automatically, so that its failure can be observed.

use super::child::{Child, last_words, log_settings};
use super::folder::MemberFolder;
use super::member::{self, ServerFolder};
use crate::error::RunError;
use crate::signals::{Event, Signals};
use lockmesh_net::config::LogFormat;
use lockmesh_protocol::rpc::Unavailable;
use std::cell::Cell;
use std::process::ExitStatus;
use tokio::sync::mpsc;

/// A process that has ended.
pub(super) type ProcessEnd = (MemberFolder, ExitStatus);

/// Reports the end of a process; fails if a process could not start.
pub(super) async fn watch_ends(ends: &mut mpsc::Receiver<ProcessEnd>, is_ready: &Cell<bool>) -> RunError {
    loop {
        let Some((home, status)) = ends.recv().await else { return std::future::pending().await };
        let (role, name) = (home.role.as_str(), &home.name);
        // A process that was killed by a signal had started.
        if !is_ready.get() && status.code().is_some() {
            let words = last_words(&home);
            return RunError::Dev(format!("the {role} {name} ended before it served ({status}):\n{words}"));
        }
        tracing::warn!(
            "the {role} {name} is gone ({status}) and is not started again; to do that: {}",
            start_command(&home)
        );
    }
}

/// The processes of one command.
pub(super) struct Processes {
    pub(super) servers: Vec<ServerFolder>,
    /// Those of the servers first.
    pub(super) children: Vec<Child>,
    log_format: LogFormat,
    tell_ends: mpsc::Sender<ProcessEnd>,
}

impl Processes {
    /// Begins without any process. The receiver gets the end of each.
    pub(super) fn of(
        servers: Vec<ServerFolder>,
        agents: u8,
        log_format: LogFormat,
    ) -> (Self, mpsc::Receiver<ProcessEnd>) {
        let (tell_ends, ends) = mpsc::channel(servers.len() + usize::from(agents));
        (Self { servers, children: Vec::new(), log_format, tell_ends }, ends)
    }

    /// Starts the servers, and waits for the id of their cluster; `None` if a signal stops this
    /// process before.
    ///
    /// # Errors
    /// A server cannot start.
    pub(super) async fn start_servers(
        &mut self,
        signals: &mut Signals,
        ends: &mut mpsc::Receiver<ProcessEnd>,
    ) -> Result<Option<String>, RunError> {
        for server in self.servers.clone() {
            self.start(&server.home, Vec::new())?;
        }
        let is_ready = Cell::new(false);
        let stopped = async {
            loop {
                match signals.next().await {
                    Event::Stop(_) => return,
                    Event::Reload(order) => order.carried_out(Ok(self.reload())),
                    // No agent runs yet.
                    Event::Leave(order) => {
                        order.carried_out(Err(Unavailable::Denied("it has not started".into())));
                    }
                }
            }
        };
        tokio::select! {
            cluster_id = member::cluster_id(&self.servers) => Ok(Some(cluster_id)),
            failed = watch_ends(ends, &is_ready) => Err(failed),
            () = stopped => Ok(None),
        }
    }

    /// Stops all processes if the command could not begin, or a signal has stopped it.
    pub(super) async fn unless_failed<T>(
        self,
        began: Result<Option<T>, RunError>,
    ) -> Result<Option<(Self, T)>, RunError> {
        match began {
            Ok(Some(began)) => Ok(Some((self, began))),
            other => {
                stop(self.children).await;
                other.map(|_| None)
            }
        }
    }

    pub(super) fn start(&mut self, home: &MemberFolder, mut settings: Vec<String>) -> Result<(), RunError> {
        settings.extend(log_settings(self.log_format));
        self.children.push(Child::start(home, settings, self.tell_ends.clone())?);
        Ok(())
    }

    pub(super) fn server_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address.to_string()).collect()
    }

    /// Lets all of them read again what they may; what is to be said of each.
    pub(super) fn reload(&self) -> Vec<String> {
        let told = |child: &Child| {
            child.reload();
            format!("{}: reload requested; its log has the changes", child.home.name)
        };
        self.children.iter().map(told).collect()
    }

    /// Stops the agents, then the followers, so that no leader is elected for nothing, and the
    /// leader last.
    pub(super) async fn stop(mut self, leader: Option<String>) {
        // Requests under way still need the servers.
        stop(self.children.split_off(self.servers.len())).await;
        let leads = |server: &&ServerFolder| Some(server.address.to_string()) == leader;
        let leader = self.servers.iter().find(leads).map(|server| &server.home);
        let last: Vec<Child> = self.children.extract_if(.., |child| Some(&child.home) == leader).collect();
        stop(self.children).await;
        stop(last).await;
    }
}

/// Stops all of them at once.
async fn stop(children: Vec<Child>) {
    let stopping: Vec<_> = children.into_iter().map(|child| tokio::spawn(child.stop())).collect();
    for stopped in stopping {
        if let Err(error) = stopped.await {
            tracing::error!("a process was not waited for: {error}");
        }
    }
}

/// The addresses of the servers.
pub(super) fn server_lines(servers: &[ServerFolder], children: &[Child]) -> Vec<String> {
    let mut lines = Vec::new();
    for (ServerFolder { home, address, http }, child) in servers.iter().zip(children) {
        lines.push(process_line(
            child,
            &format!("{address:<16}  {}/{{server.toml,log,data}}", home.path.display()),
        ));
        lines.extend(http.map(|http| {
            format!("      metrics and health: http://{http}/metrics, /health/live, /health/ready")
        }));
    }
    lines
}

/// A line about a process.
pub(super) fn process_line(child: &Child, rest: &str) -> String {
    format!("  {:<3} pid {:<8} {rest}", child.home.name, child.number)
}

/// A hint with a command.
pub(super) fn how_to(what: &str, command: &str) -> String {
    format!("  {:<16}{command}", format!("{what}:"))
}

/// The command that starts a process again.
pub(super) fn start_command(home: &MemberFolder) -> String {
    format!("lockmesh {} --config {}", home.role.as_str(), home.config_file().display())
}
