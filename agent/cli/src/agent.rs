//! An agent as a process of its own: the `agent` role of the one binary.

use crate::config::Sources;
use crate::data_folder::{self, NewFolders};
use crate::error::RunError;
use crate::pid_file::PidFile;
use crate::reload::Reloadable;
use crate::signals::{Ending, Signals};
use lockmesh_agent::agent::{Agent, AgentOptions};
use lockmesh_agent::config::AgentConfig;
use lockmesh_agent::http::Rules;
use lockmesh_agent::node::NodeIdentity;
use lockmesh_agent::reload::ReloadError;
use lockmesh_net::{Identity, owner};

/// Runs an agent until a signal stops the process. Its configuration came from `sources`, which a
/// reload reads again. With `until_stdin_ends` the end of standard input stops it, too.
///
/// # Errors
/// The agent cannot start. The error names the key, file or address, and what to do.
pub async fn run(config: AgentConfig, sources: Sources, until_stdin_ends: bool) -> Result<(), RunError> {
    // First, so that no signal kills a partial start; signals are handled once the agent serves.
    let (mut signals, reload) = Signals::new()?;
    if until_stdin_ends {
        signals.stop_with_stdin();
    }
    owner::allow_others(config.allow_other_owners);
    // Before a folder is made: a start that fails is to leave nothing behind.
    let identity = Identity::load(&config.tls.files())?;
    PidFile::check(&config.pid_file)?;
    let new_folders = NewFolders::of(&config.data_dir);
    // With a configured UUID nothing is stored yet, and the folder need not exist.
    if config.node.id.is_empty() || config.data_dir.exists() {
        data_folder::prepare_for_agent(&config.data_dir, config.http.socket_path())?;
    }
    let _held = data_folder::hold(&config.data_dir)?;
    let node = NodeIdentity::resolve(&config.node, &config.data_dir)?;
    let mut reloadable = Reloadable::new(sources, config.clone(), identity.clone());
    let pid_file = config.pid_file.clone();
    let leave_on_terminate = config.leave_on_terminate;
    let agent = Agent::start(AgentOptions { config, node, identity, server: None, reload })?;
    new_folders.keep();
    // Not earlier: a start that is refused must not touch the file of an agent that runs.
    let _pid_file = PidFile::write(pid_file);
    let replace = |identity: &Identity| agent.replace_identity(identity);
    let reload = || reloadable.reload(|before, config| take_over(&agent, before, config), replace);
    let leave = async || agent.leave().await;
    let ending = signals.serve(agent.ready(), || tracing::info!("ready"), reload, leave).await;
    if leave_on_terminate && ending == Ending::Terminated {
        // It stops even if it cannot leave; the log has the reason.
        let _ = agent.leave().await;
    }
    agent.stop().await;
    Ok(())
}

/// Gives a running agent what differs in its new configuration.
fn take_over(agent: &Agent, before: &AgentConfig, config: &AgentConfig) -> Result<(), ReloadError> {
    // Also without a change: members of groups are read again, and lines may have moved.
    let rules = Rules::new(&config.access).map_err(ReloadError::invalid)?;
    if (&config.services, &config.checks) != (&before.services, &before.checks) {
        agent.configure(config).map_err(ReloadError::invalid)?;
    }
    agent.set_rules(rules);
    if config.node_meta != before.node_meta {
        agent.set_node_meta(&config.node_meta);
    }
    if config.upstream.cluster() != before.upstream.cluster() {
        agent.choose_cluster(config.upstream.cluster());
    }
    Ok(())
}
