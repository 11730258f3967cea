//! `lockmesh force-leave`: a failed node that will not come back leaves the cluster.

use super::context::Context;
use super::error::CliError;
use super::members::is_server_alone;
use super::output::print_line;
use lockmesh_client::Error;
use lockmesh_client::shape::agent::Member;
use std::process::ExitCode;

/// Consul's number for a member that is alive.
const ALIVE: u8 = 1;

/// Remove a failed node from the cluster
///
/// The node is deregistered and all its sessions end, even those without checks. The command fails
/// if the node is alive or restarting: run `lockmesh leave` on that node.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Node name
    node: String,
    /// Forget the member at once instead of listing it as left
    #[arg(long)]
    prune: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no such member, it is alive, or the agent cannot reach the servers: nothing was
/// changed. Without an answer the outcome is unknown: check with `lockmesh members`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let Args { node, prune } = args;
    let client = context.client()?;
    let left = client.agent().force_leave(&node, prune).await;
    // As in Consul, the answer is the same for a node that refutes it.
    let members = match &left {
        Ok(()) | Err(Error::Refused { .. }) => client.agent().members().await?,
        Err(_) => Vec::new(),
    };
    // As in the catalog, nodes are not distinguished by letter case.
    let member = members.iter().find(|member| member.name.eq_ignore_ascii_case(&node));
    if let Some(why) = member.and_then(no_effect) {
        return Err(CliError::failed(why));
    }
    left?;
    print_line(&match prune {
        true => format!("{node} left the cluster and is forgotten"),
        false => format!("{node} left the cluster"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The reason why a force-leave of this member had no effect; `None` if it left.
fn no_effect(member: &Member) -> Option<String> {
    let name = &member.name;
    match member.state.as_str() {
        _ if is_server_alone(member) => Some(format!(
            "{name} is a server without an agent: remove it with `lockmesh operator raft remove {name}`"
        )),
        "restarting" => Some(format!(
            "{name} is restarting: force-leave has no effect before it is back or has failed; its agent has 30 s"
        )),
        _ if member.status == ALIVE => Some(format!(
            "{name} is alive: force-leave has no effect; run `lockmesh leave` on it, or retry once `lockmesh members` \
             shows it as failed"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alive_member_reported_as_unaffected() {
        let member = |status: u8, state: &str| Member {
            name: "n1".into(),
            status,
            state: state.into(),
            ..Member::default()
        };
        // Consul's agents have no word of their own.
        for (status, state) in [(1, "alive"), (1, "")] {
            let why = no_effect(&member(status, state)).unwrap_or_default();
            assert!(why.starts_with("n1 is alive: force-leave has no effect; run `lockmesh leave`"), "{why}");
        }
        let why = no_effect(&member(1, "restarting")).unwrap_or_default();
        assert!(why.starts_with("n1 is restarting"), "{why}");
        let mut server = member(4, "");
        server.tags.insert("role".into(), "consul".into());
        let why = no_effect(&server).unwrap_or_default();
        assert!(why.ends_with("`lockmesh operator raft remove n1`"), "{why}");
        assert_eq!(no_effect(&member(3, "left")).or(no_effect(&member(4, "failed"))), None);
    }
}
