//! `lockmesh dev --servers 3`: several servers as processes of their own, the agent in this one; so
//! that somebody can kill a server and watch.
//!
//! A server that dies is not started again: whoever killed it wants to see what that does.

use super::child::{Child, last_words};
use super::member::{self, ServerFolder};
use super::options::DevOptions;
use super::setup::{DevFolder, agent_config, announce};
use crate::error::RunError;
use crate::reload;
use crate::signals::Signals;
use lockmesh_agent::agent::{Agent, AgentOptions};
use lockmesh_agent::node::NodeIdentity;
use lockmesh_agent::reload::Outcome;
use lockmesh_net::{Development, Identity, Role};
use std::cell::Cell;
use std::fmt::Write;
use std::process::ExitStatus;
use tokio::sync::mpsc;

/// Runs all of it until the process is told to stop.
pub(super) async fn run(options: DevOptions, count: u8) -> Result<(), RunError> {
    let (signals, asking) = Signals::new()?;
    let folder = DevFolder::open(&options)?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    let certificates = Development::prepare(&folder.path.join("tls"), &node.name)?;
    let members = member::prepare(&folder.path, count, &options.node.datacenter, &certificates)?;
    let mut identity = certificates.identity(Role::Agent)?;

    let (tell_ends, mut ends) = mpsc::channel(usize::from(count));
    let mut children = Vec::new();
    let mut started = members.iter().try_for_each(|member| {
        children.push(Child::start(member, options.log_format, tell_ends.clone())?);
        Ok(())
    });
    // Whichever of the two fails, what was started until then is stopped below.
    let agent = started.and_then(|()| {
        let servers = members.iter().map(|member| member.address.to_string()).collect();
        let config = agent_config(&options, &folder.path, servers);
        let identity = identity.clone();
        Ok(Agent::start(AgentOptions { config, node, identity, server: None, reload: asking })?)
    });
    let agent = match agent {
        Ok(agent) => agent,
        Err(error) => {
            stop(children, None).await;
            return Err(error);
        }
    };
    let is_ready = Cell::new(false);
    let say_ready = || {
        is_ready.set(true);
        announce(&agent, &guide(&children, &folder));
    };
    let files = certificates.files(Role::Agent);
    let reload = || reload_all(&mut identity, &files, &agent, &children);
    started = tokio::select! {
        failed = watch_ends(&mut ends, &is_ready) => Err(failed),
        _ = signals.serve(agent.ready(), say_ready, reload, async || agent.leave().await) => Ok(()),
    };
    // While the agent can still ask.
    let leader = agent.leader().await;
    agent.stop().await;
    stop(children, leader).await;
    started
}

/// Says which server ends and how; fails when one cannot even begin.
async fn watch_ends(
    ends: &mut mpsc::Receiver<(ServerFolder, ExitStatus)>,
    is_ready: &Cell<bool>,
) -> RunError {
    loop {
        let Some((member, status)) = ends.recv().await else { return std::future::pending().await };
        let (name, config) = (&member.name, member.config_file());
        // One that a signal killed could have begun: somebody tries out what that does.
        if !is_ready.get() && status.code().is_some() {
            let words = last_words(&member);
            return RunError::Server(format!(
                "the server {name} ended before it served ({status}):\n{words}"
            ));
        }
        tracing::warn!(
            "the server {name} is gone ({status}) and is not started again; to do that: lockmesh server --config {}",
            config.display()
        );
    }
}

/// The followers first, so that no leader is elected for nothing; all that are left at once.
async fn stop(mut children: Vec<Child>, leader: Option<String>) {
    let is_leader = |child: &mut Child| Some(child.member.address.to_string()) == leader;
    let last: Vec<Child> = children.extract_if(.., is_leader).collect();
    for group in [children, last] {
        let stopping: Vec<_> = group.into_iter().map(|child| tokio::spawn(child.stop())).collect();
        for stopped in stopping {
            if let Err(error) = stopped.await {
                tracing::error!("a server was not waited for: {error}");
            }
        }
    }
}

fn reload_all(
    identity: &mut Identity,
    files: &lockmesh_net::IdentityFiles,
    agent: &Agent,
    children: &[Child],
) -> Outcome {
    let mut changes = Vec::new();
    if let Some(fresh) = reload::fresh_identity(identity, files)? {
        agent.replace_identity(&fresh);
        changes.push(reload::told(&fresh));
        *identity = fresh;
    }
    let mut changes = reload::or_nothing(changes);
    for child in children {
        child.reload();
        changes
            .push(format!("{} is told to reload too, and says in its log what changed", child.member.name));
    }
    Ok(changes)
}

/// What somebody needs to know who wants to play.
fn guide(children: &[Child], folder: &DevFolder) -> String {
    let mut text = String::new();
    for Child { member, number, .. } in children {
        let (name, address, place) = (&member.name, member.address, member.folder.display());
        let line = format!("  {name}  pid {number:<8} {address:<16}  {place}/{{server.toml,log,data}}");
        writeln!(text, "{line}").expect("a string takes everything");
        if let Some(http) = member.http {
            let line =
                format!("      figures and health: http://{http}/metrics, /health/live, /health/ready");
            writeln!(text, "{line}").expect("a string takes everything");
        }
    }
    let Some(Child { member, .. }) = children.first() else { return text };
    let (pid, config) = (member.pid_file(), member.config_file());
    let lines = [
        ("see who leads", "lockmesh operator raft list-peers".to_string()),
        ("kill one", format!("kill -9 $(cat {})", pid.display())),
        ("start it again", format!("lockmesh server --config {}", config.display())),
    ];
    for (what, command) in lines {
        writeln!(text, "  {:<16}{command}", format!("{what}:")).expect("a string takes everything");
    }
    let kept = folder.kept();
    text + &format!("  A server that dies stays dead until you start it again. The data is kept {kept}.\n")
}
