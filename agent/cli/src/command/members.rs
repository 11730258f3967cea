//! `lockmesh members`: the machines that the agent knows.

use super::context::Context;
use super::error::CliError;
use super::output::{Table, print_json};
use lockmesh_client::shape::agent::Member;
use std::process::ExitCode;

/// List the members that the agent knows
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print every tag of each member
    #[arg(long)]
    detailed: bool,
    /// Print JSON as the agent's API has it
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The agent gave no answer, or the reader of the output is gone. Nothing was changed: run it
/// again.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let mut members = context.client()?.agent().members().await?;
    members.sort_by(|one, other| one.name.cmp(&other.name));
    match (args.json, args.detailed) {
        (true, _) => print_json(&members)?,
        (false, true) => detailed_table(&members).print()?,
        (false, false) => table(&members).print()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(members: &[Member]) -> Table {
    let mut table = Table::new(["Node", "Address", "Status", "Type", "Build", "DC"]);
    for member in members {
        let tag = |name: &str| member.tags.get(name).cloned().unwrap_or_default();
        let kind = match tag("role").as_str() {
            "consul" => "server".to_string(),
            // The word of `consul members`.
            "node" => "client".to_string(),
            other => other.to_string(),
        };
        // Builds are written `1.21.4:abcdef`; the revision is no news for people.
        let build = tag("build").split(':').next().unwrap_or_default().to_string();
        table.row([member.name.clone(), address(member), status(member), kind, build, tag("dc")]);
    }
    table
}

fn detailed_table(members: &[Member]) -> Table {
    let mut table = Table::new(["Node", "Address", "Status", "Tags"]);
    for member in members {
        let tags = member.tags.iter().map(|(name, value)| format!("{name}={value}"));
        let tags = tags.collect::<Vec<_>>().join(",");
        table.row([member.name.clone(), address(member), status(member), tags]);
    }
    table
}

fn address(member: &Member) -> String {
    match member.addr.contains(':') {
        // An IPv6 address: without brackets its port would look like a part of it.
        true => format!("[{}]:{}", member.addr, member.port),
        false => format!("{}:{}", member.addr, member.port),
    }
}

fn status(member: &Member) -> String {
    match member.status {
        1 => "alive".into(),
        2 => "leaving".into(),
        3 => "left".into(),
        4 => "failed".into(),
        other => format!("unknown ({other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_fits_a_row() {
        let tags = [("role", "consul"), ("build", "1.21.4:abc"), ("dc", "dc1")];
        let member = Member {
            name: "n1".into(),
            addr: "::1".into(),
            port: 8301,
            status: 1,
            tags: tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            ..Member::default()
        };
        let expected =
            "Node  Address     Status  Type    Build   DC\nn1    [::1]:8301  alive   server  1.21.4  dc1";
        assert_eq!(table(std::slice::from_ref(&member)).render(), expected);
        assert!(detailed_table(&[member]).render().ends_with("build=1.21.4:abc,dc=dc1,role=consul"));
    }
}
