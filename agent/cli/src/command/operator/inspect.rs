//! `lockmesh operator raft inspect`: what a stopped server's data folder holds of the consensus.

use super::super::error::CliError;
use super::super::output::{print_json, print_line};
use super::folder::DataFolder;
use lockmesh_server::inspect::{Inspection, inspect};
use serde::Serialize;

/// Show term, vote, last log entry and members in a stopped server's data folder
///
/// The folder is not changed. If a majority is permanently lost, run it on each surviving server.
/// The one with the highest last log term, and then the highest last log index, has the most data.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    folder: DataFolder,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Shape<'a> {
    server: u64,
    #[serde(rename = "ClusterID")]
    cluster_id: &'a str,
    term: u64,
    /// 0 for no vote.
    voted_for: u64,
    last_log_term: u64,
    last_log_index: u64,
    commit_index: u64,
    checkpoint_index: u64,
    checkpoint_term: u64,
    voters: Vec<u64>,
    learners: Vec<u64>,
    /// The voters of the old configuration during a membership change.
    voters_outgoing: Vec<u64>,
    /// Acknowledged commits that are gone from the end of the log.
    lost_commits: u64,
    /// `true` if the state differs from that of a majority.
    corrupt: bool,
    formats: FormatsShape,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct FormatsShape {
    log: u32,
    state: u32,
    record: u32,
}

/// Runs the command. It needs no agent.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let found = inspect(&args.folder.path()?).map_err(CliError::failed)?;
    match args.json {
        true => print_json(&shape(&found)),
        false => print_line(&text(&found)),
    }
}

fn shape(found: &Inspection) -> Shape<'_> {
    let Inspection { hard_state, last, checkpoint, membership, formats, .. } = found;
    let numbers = |ids: &[lockmesh_protocol::id::ServerId]| ids.iter().map(|id| id.0).collect();
    Shape {
        server: found.server.0,
        cluster_id: &found.cluster_id,
        term: hard_state.term.0,
        voted_for: hard_state.vote.0,
        last_log_term: last.0.0,
        last_log_index: last.1.0,
        commit_index: hard_state.commit.0,
        checkpoint_index: checkpoint.0.0,
        checkpoint_term: checkpoint.1.0,
        voters: numbers(&membership.voters),
        learners: numbers(&membership.learners),
        voters_outgoing: numbers(&membership.voters_outgoing),
        lost_commits: found.lost_commits,
        corrupt: found.corrupt,
        formats: FormatsShape { log: formats.log, state: formats.state, record: found.record_format },
    }
}

fn text(found: &Inspection) -> String {
    let shape = shape(found);
    let named = |id: &u64| {
        let server = found.servers.iter().find(|server| server.id.0 == *id);
        server.map_or_else(|| id.to_string(), |server| format!("{id} ({}, {})", server.node, server.address))
    };
    let list = |ids: &[u64]| match ids {
        [] => "none".to_owned(),
        ids => ids.iter().map(named).collect::<Vec<_>>().join(", "),
    };
    let vote = if shape.voted_for == 0 { "nobody".to_owned() } else { named(&shape.voted_for) };
    let mut rows = vec![
        ("Server", named(&shape.server)),
        ("Cluster", shape.cluster_id.to_owned()),
        ("Last log term", shape.last_log_term.to_string()),
        ("Last log index", shape.last_log_index.to_string()),
        ("Commit index", shape.commit_index.to_string()),
        ("Checkpoint", format!("index {}, term {}", shape.checkpoint_index, shape.checkpoint_term)),
        ("Term", shape.term.to_string()),
        ("Voted for", vote),
        ("Voters", list(&shape.voters)),
        ("Learners", list(&shape.learners)),
    ];
    if !shape.voters_outgoing.is_empty() {
        rows.push(("Voters that go", list(&shape.voters_outgoing)));
    }
    if shape.lost_commits > 0 {
        rows.push(("Lost", format!("the newest {} commits, which were acknowledged", shape.lost_commits)));
    }
    if shape.corrupt {
        rows.push(("State", "corrupt: it differs from that of a majority of the servers".to_owned()));
    }
    let FormatsShape { log, state, record } = shape.formats;
    rows.push(("Formats", format!("log {log}, state {state}, record {record}")));
    let lines: Vec<String> = rows.into_iter().map(|(name, value)| format!("{name:<15} {value}")).collect();
    lines.join("\n")
}
