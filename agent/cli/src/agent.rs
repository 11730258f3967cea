//! An agent as a process of its own: the `agent` role of the one binary.

use crate::config::Sources;
use crate::data_folder;
use crate::error::RunError;
use crate::pid_file::PidFile;
use crate::reload::Reloadable;
use crate::signals::{Ending, Signals};
use lockmesh_agent::agent::{Agent, AgentOptions};
use lockmesh_agent::config::AgentConfig;
use lockmesh_agent::node::NodeIdentity;
use lockmesh_net::Identity;

/// Runs an agent until the process is told to stop. What it was told came from `sources`, and is
/// read there again when it is asked to reload. With `until_stdin_ends` the end of standard input
/// tells it to stop too.
///
/// # Errors
/// The agent cannot start. Nothing of it runs; the error names the key, file or address and what to
/// do.
pub async fn run(config: AgentConfig, sources: Sources, until_stdin_ends: bool) -> Result<(), RunError> {
    // First: no signal kills a start half-way, it is looked at once the agent serves.
    let (mut signals, reload) = Signals::new()?;
    if until_stdin_ends {
        signals.stop_with_stdin();
    }
    // Where the node's UUID is configured, nothing is kept yet, and there need be no folder.
    if config.node.id.is_empty() || config.data_dir.exists() {
        data_folder::prepare_for_agent(&config.data_dir, config.http.socket_path())?;
    }
    let _held = data_folder::hold(&config.data_dir)?;
    let node = NodeIdentity::resolve(&config.node, &config.data_dir)?;
    let identity = Identity::load(&config.tls.files())?;
    let mut reloadable = Reloadable::new(sources, config.clone(), identity.clone());
    let pid_file = config.pid_file.clone();
    let leave_on_terminate = config.leave_on_terminate;
    let agent = Agent::start(AgentOptions { config, node, identity, server: None, reload })?;
    // Not earlier: a start that is refused must not touch the file of an agent that runs.
    let _pid_file = PidFile::write(pid_file);
    let replace = |identity: &Identity| agent.replace_identity(identity);
    let reload = || {
        let before = reloadable.config().upstream.cluster();
        let outcome = reloadable.reload(replace);
        let choice = reloadable.config().upstream.cluster();
        if choice != before {
            agent.choose_cluster(choice);
        }
        outcome
    };
    let leave = async || agent.leave().await;
    let ending = signals.serve(agent.ready(), || tracing::info!("ready"), reload, leave).await;
    if leave_on_terminate && ending == Ending::Terminated {
        // It is stopped all the same: the log says why it did not leave.
        let _ = agent.leave().await;
    }
    agent.stop().await;
    Ok(())
}
