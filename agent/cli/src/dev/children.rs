//! All processes of one command: ends, reloads, orderly stop, and messages about them.
//!
//! A killed process is not restarted automatically, so that its failure can be observed.

use super::child::{Child, last_words};
use super::folder::MemberFolder;
use super::member::{self, ServerFolder};
use crate::error::RunError;
use crate::signals::{Event, Signals};
use lockmesh_protocol::rpc::Unavailable;
use std::cell::Cell;
use std::process::ExitStatus;
use tokio::sync::mpsc;

/// Reports the end of a process; fails if a process could not start.
pub(super) async fn watch_ends(
    ends: &mut mpsc::Receiver<(MemberFolder, ExitStatus)>,
    is_ready: &Cell<bool>,
) -> RunError {
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

/// Waits for the id of the servers' cluster; `None` if a signal stops the process before.
///
/// # Errors
/// A server cannot start.
pub(super) async fn cluster_of_servers(
    servers: &[ServerFolder],
    children: &[Child],
    signals: &mut Signals,
    ends: &mut mpsc::Receiver<(MemberFolder, ExitStatus)>,
) -> Result<Option<String>, RunError> {
    let is_ready = Cell::new(false);
    let stopped = async {
        loop {
            match signals.next().await {
                Event::Stop(_) => return,
                Event::Reload(order) => order.carried_out(Ok(reload(children))),
                // No agent runs yet.
                Event::Leave(order) => {
                    order.carried_out(Err(Unavailable::Denied("it has not started".into())));
                }
            }
        }
    };
    tokio::select! {
        cluster_id = member::cluster_id(servers) => Ok(Some(cluster_id)),
        failed = watch_ends(ends, &is_ready) => Err(failed),
        () = stopped => Ok(None),
    }
}

/// Lets all of them read again what they may; what is to be said of each.
pub(super) fn reload(children: &[Child]) -> Vec<String> {
    let told = |child: &Child| {
        child.reload();
        format!("{}: reload requested; its log has the changes", child.home.name)
    };
    children.iter().map(told).collect()
}

/// The followers first, so that no leader is elected for nothing; all that are left at once.
pub(super) async fn stop_servers(mut children: Vec<Child>, servers: &[ServerFolder], leader: Option<String>) {
    let leads = |server: &&ServerFolder| Some(server.address.to_string()) == leader;
    let leader = servers.iter().find(leads).map(|server| &server.home);
    let last: Vec<Child> = children.extract_if(.., |child| Some(&child.home) == leader).collect();
    stop(children).await;
    stop(last).await;
}

/// Stops all of them at once.
pub(super) async fn stop(children: Vec<Child>) {
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
            format!("      figures and health: http://{http}/metrics, /health/live, /health/ready")
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
