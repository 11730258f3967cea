//! `lockmesh members`: hosts and servers with their status.

use super::context::Context;
use super::error::CliError;
use super::instant;
use super::node_lease::{deadline, last_heard, suspected_by};
use super::output::{OutputArgs, Table, host_port, warn};
use lockmesh_client::shape::agent::{Member, NodeLease};
use std::process::ExitCode;

/// Consul's number for a failed member.
const FAILED: u8 = 4;

/// The maximum time between renewals of a healthy member, which renews its lease every 1.7 s at
/// least.
const RENEWED_WITHIN_MS: u64 = 2_500;

const LAST_HEARD: &str = "Last heard";
const SUSPECTED_BY: &str = "Suspected by";

/// List hosts and servers with their status
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print all tags and the node leases
    #[arg(long)]
    detailed: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or the output has no reader. Nothing was changed; retry.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let mut members = context.client()?.agent().members_with_leases().await?;
    members.sort_by(|one, other| one.name.cmp(&other.name));
    args.output.print(&members[..], if args.detailed { detailed_table } else { table })?;
    if !args.output.json {
        if lacks_leader(&members) {
            warn("no lease details: there is no leader, or a new one; the status may be out of date");
        }
        members.iter().filter_map(advice).for_each(|advice| warn(&advice));
    }
    Ok(ExitCode::SUCCESS)
}

/// Advice for a member that failed, or whose renewals do not reach the servers.
fn advice(member: &Member) -> Option<String> {
    let name = &member.name;
    if member.status == FAILED {
        let removal = match is_server_alone(member) {
            true => "remove it: lockmesh operator raft remove",
            false => "make it leave: lockmesh force-leave",
        };
        return Some(format!("{name} failed. If it will not come back, {removal} {name}"));
    }
    if has_failed_probes(member) {
        return Some(format!(
            "{name} renews its lease, but other agents cannot probe it: check `advertise` of its agent, and firewalls \
             in front of its ports"
        ));
    }
    is_cut_off(member).then(|| {
        format!(
            "{name} answers challenges, but its renewals do not reach the servers: its sessions are kept, and its \
             guards give up their locks. Check its network to the servers (UDP, both ways)"
        )
    })
}

/// `true` if members of ours come without leases, which only the leader knows.
fn lacks_leader(members: &[Member]) -> bool {
    let mut ours = members.iter().filter(|member| !member.state.is_empty()).peekable();
    ours.peek().is_some() && ours.all(|member| member.node_lease.is_none())
}

/// `true` for a server without an agent on its machine.
pub(super) fn is_server_alone(member: &Member) -> bool {
    // Only agents of ours have a state; Consul's servers are removed by `force-leave`, too.
    member.state.is_empty() && member.tags.get("role").is_some_and(|role| role == "consul")
}

fn is_cut_off(member: &Member) -> bool {
    member.node_lease.as_ref().is_some_and(|lease| lease.servers_unreachable)
}

fn has_failed_probes(member: &Member) -> bool {
    member.node_lease.as_ref().is_some_and(|lease| lease.probes_fail)
}

fn table(members: &[Member]) -> Table {
    let heading = ["Node", "Address", "Status", "Since", "Type", "Build", "DC", LAST_HEARD, SUSPECTED_BY];
    let mut table = Table::new(heading);
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
        let (status, since) = (status(member), instant::utc(member.since_ms));
        let lease = member.node_lease.as_ref();
        let heard = lease.filter(|lease| is_noteworthy(member, lease)).map(last_heard);
        let suspected_by = lease.map(suspected_by).unwrap_or_default();
        let name = member.name.clone();
        let dc = tag("dc");
        let heard = heard.unwrap_or_default();
        table.row([name, address(member), status, since, kind, build, dc, heard, suspected_by]);
    }
    table.without_empty(&[LAST_HEARD, SUSPECTED_BY])
}

fn detailed_table(members: &[Member]) -> Table {
    let heading =
        ["Node", "Address", "Status", "Lease", "Window", "Deadline", LAST_HEARD, SUSPECTED_BY, "Tags"];
    let mut table = Table::new(heading);
    for member in members {
        let tags = member.tags.iter().map(|(name, value)| format!("{name}={value}"));
        let tags = tags.collect::<Vec<_>>().join(",");
        let (name, address, status) = (member.name.clone(), address(member), status(member));
        let NodeLease { id, health_window, .. } = member.node_lease.clone().unwrap_or_default();
        let of_lease = |tell: fn(&NodeLease) -> String| member.node_lease.as_ref().map(tell);
        let [deadline, heard, suspected_by] =
            [deadline, last_heard, suspected_by].map(|tell| of_lease(tell).unwrap_or_default());
        table.row([name, address, status, id, health_window, deadline, heard, suspected_by, tags]);
    }
    // Consul's agents know of no leases.
    table.without_empty(&["Lease", "Window", "Deadline", LAST_HEARD, SUSPECTED_BY])
}

/// `true` if the time of the last renewal is shown: only for members that are not healthy.
fn is_noteworthy(member: &Member, lease: &NodeLease) -> bool {
    let is_late = lease.last_heard_ago_ms.is_some_and(|ago| ago > RENEWED_WITHIN_MS);
    is_late || status(member) != "alive" || !lease.suspected_by.is_empty()
}

fn address(member: &Member) -> String {
    // The catalog, which alone knows addresses, has none of those that left.
    if member.addr.is_empty() {
        return String::new();
    }
    host_port(&member.addr, member.port)
}

fn status(member: &Member) -> String {
    // Consul's agents have no word of their own.
    if !member.state.is_empty() {
        let trouble = match (is_cut_off(member), has_failed_probes(member)) {
            (true, _) => " (servers unreachable)",
            (false, true) => " (probes fail)",
            (false, false) => "",
        };
        return format!("{}{trouble}", member.state);
    }
    match member.status {
        1 => "alive".into(),
        2 => "leaving".into(),
        3 => "left".into(),
        FAILED => "failed".into(),
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
        let expected = "Node  Address     Status  Since  Type    Build   DC\n\
                        n1    [::1]:8301  alive   -      server  1.21.4  dc1";
        assert_eq!(table(std::slice::from_ref(&member)).render(), expected);
        assert!(detailed_table(&[member]).render().ends_with("build=1.21.4:abc,dc=dc1,role=consul"));
    }

    #[test]
    fn last_contact_shown_only_when_notable() {
        let lease = |ago, suspected_by: &[&str]| NodeLease {
            id: "3-17".into(),
            health_window: "fast".into(),
            deadline_in_ms: Some(300),
            last_heard_ago_ms: Some(ago),
            servers_unreachable: false,
            probes_fail: false,
            suspected_by: suspected_by.iter().map(ToString::to_string).collect(),
        };
        let member = |name: &str, state: &str, node_lease| Member {
            name: name.into(),
            status: 1,
            state: state.into(),
            node_lease,
            ..Member::default()
        };
        let well = member("n1", "alive", Some(lease(800, &[])));
        let shown = table(std::slice::from_ref(&well)).render();
        assert!(!shown.contains("Last heard") && !shown.contains("Suspected by"), "{shown}");
        let silent = member("n2", "alive", Some(lease(3_210, &["n1", "n3"])));
        let suspected = member("n4", "alive", Some(lease(900, &["n1"])));
        let shown = table(&[well, silent.clone(), member("n3", "failed", None), suspected]).render();
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[4].ends_with("-   0.9s ago    n1"), "{shown}");
        assert!(lines[0].ends_with("DC  Last heard  Suspected by"), "{shown}");
        assert!(lines[1].ends_with("-   -           -"), "{shown}");
        assert!(lines[2].ends_with("-   3.2s ago    n1, n3"), "{shown}");
        assert!(lines[3].ends_with("-   -           -"), "{shown}");
        let expected = "Node  Address  Status  Lease  Window  Deadline  Last heard  Suspected by  Tags\n\
                        n2    -        alive   3-17   fast    in 0.3s   3.2s ago    n1, n3        -";
        assert_eq!(detailed_table(&[silent]).render(), expected);
    }

    #[test]
    fn status_falls_back_to_consul_code() {
        let known = |status: u8, state: &str| Member {
            name: "n1".into(),
            status,
            state: state.into(),
            since_ms: 1_795_250_472_999,
            ..Member::default()
        };
        for (member, word) in [
            (known(1, "restarting"), "restarting"),
            (known(4, "failed"), "failed"),
            (known(3, ""), "left"),
            (known(9, ""), "unknown (9)"),
        ] {
            assert_eq!(status(&member), word);
        }
        let shown = table(&[known(4, "failed")]).render();
        assert!(shown.ends_with("n1    -        failed  2026-11-21 08:41:12Z  -     -      -"), "{shown}");
        let advised = advice(&known(4, "failed")).unwrap_or_default();
        assert!(advised.ends_with("lockmesh force-leave n1"), "{advised}");
        assert_eq!(advice(&known(1, "alive")), None);
        let mut server = known(4, "");
        server.tags.insert("role".into(), "consul".into());
        let advised = advice(&server).unwrap_or_default();
        assert!(advised.ends_with("remove it: lockmesh operator raft remove n1"), "{advised}");
    }

    #[test]
    fn missing_leases_distinguished_from_consul_agent() {
        let member =
            |state: &str, node_lease| Member { state: state.into(), node_lease, ..Member::default() };
        let leased = member("alive", Some(NodeLease::default()));
        assert!(lacks_leader(&[member("alive", None), member("failed", None)]));
        assert!(!lacks_leader(&[member("alive", None), leased]));
        assert!(!lacks_leader(&[member("", None)]), "Consul's agents know of no leases");
        assert!(!lacks_leader(&[]));
    }

    #[test]
    fn failing_probes_shown_with_hint() {
        let node_lease = Some(NodeLease { probes_fail: true, ..NodeLease::default() });
        let member = Member { name: "n1".into(), state: "alive".into(), node_lease, ..Member::default() };
        let shown = detailed_table(std::slice::from_ref(&member)).render();
        assert!(shown.contains("  alive (probes fail)"), "{shown}");
        assert!(advice(&member).is_some_and(|advice| advice.contains("check `advertise`")));
    }

    #[test]
    fn unreachable_servers_shown_with_hint() {
        let node_lease =
            NodeLease { servers_unreachable: true, last_heard_ago_ms: Some(200), ..NodeLease::default() };
        let member = Member {
            name: "n1".into(),
            status: 1,
            state: "alive".into(),
            node_lease: Some(node_lease),
            ..Member::default()
        };
        for shown in [table(std::slice::from_ref(&member)), detailed_table(std::slice::from_ref(&member))] {
            assert!(shown.render().contains("  alive (servers unreachable)  "), "{}", shown.render());
        }
        let advised = advice(&member).unwrap_or_default();
        assert!(advised.starts_with("n1 answers challenges, but"), "{advised}");
    }
}
