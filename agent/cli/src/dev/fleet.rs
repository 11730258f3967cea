//! `lockmesh dev --servers 3`: several servers as processes, so that each can be killed; the agent
//! runs in this process.

use super::child::{Child, log_settings};
use super::children::{
    cluster_of_servers, how_to, reload, server_lines, start_command, stop, stop_servers, watch_ends,
};
use super::folder::absolute;
use super::member::{self, ServerFolder};
use super::options::DevOptions;
use super::ports::Ports;
use super::setup::{DevFolder, agent_config, announce, upstream};
use crate::error::RunError;
use crate::reload as own_reload;
use crate::signals::Signals;
use lockmesh_agent::agent::{Agent, AgentOptions};
use lockmesh_agent::node::NodeIdentity;
use lockmesh_agent::reload::Outcome;
use lockmesh_net::{Development, Identity, Role};
use std::cell::Cell;
use std::path::PathBuf;
use tokio::sync::mpsc;

/// Runs all of it until a signal stops the process.
pub(super) async fn run(options: DevOptions, count: u8) -> Result<(), RunError> {
    let (mut signals, asking) = Signals::new()?;
    let folder = DevFolder::open(&options)?;
    let _held = folder.hold()?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    // Named in the configurations, from which a server is started by hand in any folder.
    let certificates = Development::prepare(&absolute(&folder.path)?.join("tls"), &node.name)?;
    let mut ports = Ports::default();
    let servers = member::prepare(&folder.path, count, &options.node.datacenter, &certificates, &mut ports)?;
    let mut identity = certificates.identity(Role::Agent)?;

    let (tell_ends, mut ends) = mpsc::channel(usize::from(count));
    let mut children = Vec::new();
    let began = async {
        for server in &servers {
            children.push(Child::start(&server.home, log_settings(options.log_format), tell_ends.clone())?);
        }
        let known = cluster_of_servers(&servers, &children, &mut signals, &mut ends).await?;
        let Some(cluster_id) = known else { return Ok(None) };
        let addresses = servers.iter().map(|server| server.address.to_string()).collect();
        let config = agent_config(&options, &folder.path, upstream(addresses, &cluster_id));
        let identity = identity.clone();
        let agent = Agent::start(AgentOptions { config, node, identity, server: None, reload: asking })?;
        Ok(Some(agent))
    };
    // The started processes are stopped after any failure.
    let agent = match began.await {
        Ok(Some(agent)) => agent,
        other => {
            stop(children).await;
            return other.map(drop);
        }
    };
    let is_ready = Cell::new(false);
    let say_ready = || {
        is_ready.set(true);
        let guide = guide(&servers, &children, &folder);
        announce(agent.tcp_addresses(), agent.socket().map(PathBuf::as_path), &guide);
    };
    let files = certificates.files(Role::Agent);
    let reload = || reload_all(&mut identity, &files, &agent, &children);
    let ended = tokio::select! {
        failed = watch_ends(&mut ends, &is_ready) => Err(failed),
        _ = signals.serve(agent.ready(), say_ready, reload, async || agent.leave().await) => Ok(()),
    };
    // While the agent can still ask.
    let leader = agent.leader().await;
    agent.stop().await;
    stop_servers(children, &servers, leader).await;
    ended
}

fn reload_all(
    identity: &mut Identity,
    files: &lockmesh_net::IdentityFiles,
    agent: &Agent,
    children: &[Child],
) -> Outcome {
    let mut changes = Vec::new();
    if let Some(fresh) = own_reload::fresh_identity(identity, files)? {
        agent.replace_identity(&fresh);
        changes.push(own_reload::certificate_change(&fresh));
        *identity = fresh;
    }
    let mut changes = own_reload::or_nothing(changes);
    changes.extend(reload(children));
    Ok(changes)
}

/// Hints for trials.
fn guide(servers: &[ServerFolder], children: &[Child], folder: &DevFolder) -> String {
    let mut lines = server_lines(servers, children);
    if let Some(ServerFolder { home, .. }) = servers.first() {
        lines.push(how_to("see who leads", "lockmesh operator raft list-peers"));
        lines.push(how_to("kill one", &format!("kill -9 $(cat {})", home.pid_file().display())));
        lines.push(how_to("start it again", &start_command(home)));
    }
    let kept = folder.kept();
    lines.push(format!(
        "  A server that dies stays dead until you start it again. The data is kept {kept}.\n"
    ));
    lines.join("\n")
}
