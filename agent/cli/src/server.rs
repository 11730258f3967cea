//! A server as its own process: the `server` role of the binary.

use crate::config::Sources;
use crate::data_folder::NewFolders;
use crate::error::RunError;
use crate::pid_file::PidFile;
use crate::reload::Reloadable;
use crate::signals::{Event, Signals};
use lockmesh_agent::node::{self, NodeError, NodeIdentity};
use lockmesh_agent::{COMMIT, VERSION};
use lockmesh_net::{Identity, owner, random};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_server::config::ServerConfig;
use lockmesh_server::{Server, ServerOptions};

/// Runs a server until a signal stops the process. Its configuration came from `sources`, which
/// SIGHUP reads again. With `until_stdin_ends` the end of standard input stops it, too.
///
/// # Errors
/// The server cannot start, or stopped after a fatal error. The error, or the log before it, names
/// the cause and what to do.
pub async fn run(config: ServerConfig, sources: Sources, until_stdin_ends: bool) -> Result<(), RunError> {
    let (mut signals, _) = Signals::new()?;
    if until_stdin_ends {
        signals.stop_with_stdin();
    }
    owner::allow_others(config.allow_other_owners);
    // Before a folder is made: a start that fails is to leave nothing behind.
    let identity = Identity::load(&config.tls.files())?;
    PidFile::check(&config.pid_file)?;
    let new_folders = NewFolders::of(&config.data_dir);
    let node = NodeIdentity::resolve(&config.node, &config.data_dir)?;
    let mut reloadable = Reloadable::new(sources, config.clone(), identity.clone());
    let pid_file = config.pid_file.clone();
    let server = start(config, &node, identity)?;
    new_folders.keep();
    // Not earlier: a start that is refused must not touch the file of a server that runs.
    let _pid_file = PidFile::write(pid_file);
    loop {
        let event = tokio::select! {
            event = signals.next() => event,
            () = server.ended() => {
                // The tasks around the driver still have to end in order.
                server.stop().await;
                return Err(RunError::Server("fatal error, stopped; the last lines of the log have the cause".into()));
            }
        };
        let Event::Reload(order) = event else { break };
        order.carried_out(reloadable.reload(|_, _| Ok(()), |identity| server.replace_identity(identity)));
    }
    server.stop().await;
    Ok(())
}

/// Starts a server with fresh random draws.
pub(crate) fn start(
    config: ServerConfig,
    node: &NodeIdentity,
    identity: Identity,
) -> Result<Server, RunError> {
    lockmesh_net::metrics::process::show_build(VERSION, COMMIT, "server");
    tracing::info!(
        node = %node.name,
        version = VERSION,
        commit = COMMIT,
        data_dir = %config.data_dir.display(),
        "starting a server"
    );
    let options = ServerOptions {
        config,
        node: node.name.to_string(),
        node_id: node.id.clone(),
        identity,
        instance_id: node::random_uuid()?,
        seed: random::seed(),
        lease_key: LeaseKey(random::bytes().map_err(NodeError::Random)?),
        socket: None,
    };
    Server::start(options).map_err(|error| RunError::Server(error.to_string()))
}
