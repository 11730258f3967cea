//! `lockmesh dev --servers 3`: several servers as processes, so that each can be killed; the agent
//! runs in this process.

use super::children::{Processes, how_to, server_lines, start_command, watch_ends};
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

/// Runs all of it until a signal stops the process.
pub(super) async fn run(options: DevOptions, count: u8) -> Result<(), RunError> {
    let (mut signals, asking) = Signals::new()?;
    let folder = DevFolder::open(&options)?;
    let _held = folder.hold()?;
    let node = NodeIdentity::resolve(&options.node, &folder.path)?;
    // Named in the configurations, from which a server is started by hand in any folder.
    let certificates = Development::prepare(&absolute(&folder.path)?.join("tls"), &node.name)?;
    let mut ports = Ports::default();
    let cluster = (options.node.datacenter.as_str(), &options.acl);
    let servers = member::prepare(&folder.path, count, cluster, &certificates, &mut ports)?;
    let mut identity = certificates.identity(Role::Agent)?;

    let (mut all, mut ends) = Processes::of(servers, 0, options.log_format);
    let began = async {
        let known = all.start_servers(&mut signals, &mut ends).await?;
        let Some(cluster_id) = known else { return Ok(None) };
        let config = agent_config(&options, &folder.path, upstream(all.server_addresses(), &cluster_id));
        let identity = identity.clone();
        let agent = Agent::start(AgentOptions { config, node, identity, server: None, reload: asking })?;
        Ok(Some(agent))
    };
    let began = began.await;
    let Some((all, agent)) = all.unless_failed(began).await? else { return Ok(()) };
    let is_ready = Cell::new(false);
    let say_ready = || {
        is_ready.set(true);
        announce(agent.tcp_addresses(), agent.socket().map(PathBuf::as_path), &guide(&all, &folder));
    };
    let reload = || reload_all(&mut identity, &certificates.files(Role::Agent), &agent, &all);
    let ended = tokio::select! {
        failed = watch_ends(&mut ends, &is_ready) => Err(failed),
        _ = signals.serve(agent.ready(), say_ready, reload, async || agent.leave().await) => Ok(()),
    };
    // While the agent can still ask.
    let leader = agent.leader().await;
    agent.stop().await;
    all.stop(leader).await;
    ended
}

fn reload_all(
    identity: &mut Identity,
    files: &lockmesh_net::IdentityFiles,
    agent: &Agent,
    all: &Processes,
) -> Outcome {
    let mut changes = Vec::new();
    if let Some(fresh) = own_reload::fresh_identity(identity, files)? {
        agent.replace_identity(&fresh);
        changes.push(own_reload::certificate_change(&fresh));
        *identity = fresh;
    }
    let mut changes = own_reload::or_nothing(changes);
    changes.extend(all.reload());
    Ok(changes)
}

/// Hints for trials.
fn guide(all: &Processes, folder: &DevFolder) -> String {
    let mut lines = server_lines(&all.servers, &all.children);
    if let Some(ServerFolder { home, .. }) = all.servers.first() {
        lines.push(how_to("see who leads", "lockmesh operator raft list-peers"));
        lines.push(how_to("kill one", &format!("kill -9 $(cat {})", home.pid_file().display())));
        lines.push(how_to("start it again", &start_command(home)));
    }
    let kept = folder.kept();
    lines.push(format!("  Killed processes are not restarted. The data is kept {kept}.\n"));
    lines.join("\n")
}
