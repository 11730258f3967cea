//! Lockmesh alone, with a very large number of sessions and locks: memory, checkpoints, starts,
//! catching up, elections, and the effect of a node's end with many locks on other clients.
//!
//! | module | is |
//! |---|---|
//! | [`fill`] | creates sessions, each of which holds a lock |
//! | [`recovery`] | servers that are killed, restarted, emptied |
//! | [`stall`] | the end of a node, while other clients work |
//! | [`findings`] | the findings |

mod fill;
mod findings;
mod recovery;
mod stall;

use crate::cluster::failover::kill_leader;
use crate::cluster::lockmesh::Lockmesh;
use crate::cluster::{Cluster, Targets};
use crate::latency::median;
use crate::options::{LargeArgs, Options};
use crate::progress::Progress;
use crate::work::{self, Work};
use findings::Findings;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The pause before a service is measured as idle.
const REST: Duration = Duration::from_secs(10);

/// The time for one kind of work before the next one's turn.
const SLICE: Duration = Duration::from_secs(10);

/// At this level the checkpoint's thread logs the duration of a checkpoint.
const LOG_LEVEL: &str = "info,lockmesh_server::store=debug";

/// The memory limits of an idle server, of one after work, and of an idle agent, in MiB.
const IDLE_SERVER_MIB: f64 = 20.0;
const BUSY_SERVER_MIB: f64 = 100.0;
const IDLE_AGENT_MIB: f64 = 12.0;

/// Runs all measurements in turn.
pub(crate) async fn run(
    options: &Options,
    args: &LargeArgs,
    folder: &Path,
    progress: &Progress,
) -> io::Result<Findings> {
    progress.print("starting Lockmesh");
    let mut cluster =
        Lockmesh::start(&options.tools()?, &folder.join("Lockmesh"), options.servers(), LOG_LEVEL).await?;
    let mut findings = Findings::new(folder, cluster.version())?;
    tokio::time::sleep(REST).await;
    findings.look(&mut cluster, "idle", [IDLE_SERVER_MIB, IDLE_AGENT_MIB]);
    if args.minutes > 0 {
        progress.print(&format!("64 clients work for {} minutes", args.minutes));
        let end = Instant::now() + Duration::from_secs(60 * u64::from(args.minutes));
        toil(&cluster, end).await?;
        let stage = format!("after {} minutes at 64 clients", args.minutes);
        findings.look(&mut cluster, &stage, [BUSY_SERVER_MIB, f64::INFINITY]);
    }
    fill(&mut cluster, args, &mut findings, progress).await?;
    if options.servers() > 1 {
        recover(&mut cluster, args, &mut findings, progress).await?;
    }
    progress.print(&format!("destroying a node with {} locks", args.doomed));
    stall::destroy(&cluster, args.doomed, &mut findings).await?;
    findings.look_freely(&mut cluster, "at the end");
    progress.print("done");
    Ok(findings)
}

/// Runs all kinds of work in turn, until the end time.
async fn toil(cluster: &Lockmesh, end: Instant) -> io::Result<()> {
    let site = cluster.site(Targets::All);
    for work in [Work::Cycles, Work::Puts, Work::Churn, Work::Reads].into_iter().cycle() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let length = SLICE.min(left).max(Duration::from_millis(100));
        work::run::<<Lockmesh as Cluster>::Client>(&site, work, 64, length, || ()).await?;
    }
    Ok(())
}

/// Creates sessions and locks, and measures their cost.
async fn fill(
    cluster: &mut Lockmesh,
    args: &LargeArgs,
    findings: &mut Findings,
    progress: &Progress,
) -> io::Result<()> {
    let marks = recovery::log_ends(cluster);
    let begun = Instant::now();
    fill::register(cluster.socket(), stall::NODE).await?;
    let quiet = args.locks.saturating_sub(args.doomed);
    fill::fill(cluster.socket(), "quiet", None, quiet, progress).await?;
    fill::fill(cluster.socket(), stall::NODE, Some(stall::NODE), args.doomed, progress).await?;
    let held = quiet + args.doomed;
    let seconds = begun.elapsed().as_secs_f64();
    findings.add_finding(
        format!("{held} sessions and {held} locks, made by 64 clients in"),
        seconds,
        "s",
        None,
    );
    cluster.settle().await?;
    tokio::time::sleep(REST).await;
    findings.look_freely(cluster, &format!("with {held} sessions and locks"));
    let checkpoints = recovery::checkpoints(cluster, &marks)?;
    findings.add_finding("checkpoints meanwhile, of all servers", checkpoints.len() as f64, "", None);
    let most = checkpoints.iter().map(|checkpoint| checkpoint.rows).fold(0.0, f64::max);
    findings.add_finding("rows of the largest", most, "", None);
    let times: Vec<f64> = checkpoints.iter().map(|checkpoint| checkpoint.took_ms).collect();
    findings.add_finding("a checkpoint's time in the middle", median(&times), "ms", None);
    findings.add_finding("the longest", times.iter().copied().fold(0.0, f64::max), "ms", None);
    Ok(())
}

/// Measures starts, catching up, and elections.
async fn recover(
    cluster: &mut Lockmesh,
    args: &LargeArgs,
    findings: &mut Findings,
    progress: &Progress,
) -> io::Result<()> {
    progress.print("restarting a follower");
    let restart = recovery::restart(cluster, recovery::Way::Terminate).await?;
    findings.add_finding("a follower that was stopped, until it listens again", restart.listens, "s", None);
    findings.add_finding("until it has caught up", restart.caught_up, "s", None);
    let restart = recovery::restart(cluster, recovery::Way::Kill).await?;
    findings.add_finding("a follower that was killed, until it listens again", restart.listens, "s", None);
    findings.add_finding("until it has caught up", restart.caught_up, "s", None);
    progress.print("emptying a follower");
    let restart = recovery::restart(cluster, recovery::Way::Empty).await?;
    findings.add_finding("a follower that was emptied, until it listens again", restart.listens, "s", None);
    findings.add_finding("until it votes again, caught up by a snapshot", restart.caught_up, "s", None);
    let begun = Instant::now();
    cluster.settle().await?;
    findings.add_finding(
        "and until its former life is out of the quorum",
        begun.elapsed().as_secs_f64(),
        "s",
        None,
    );
    let mut elections = Vec::new();
    for round in 1..=args.elections {
        progress.print(&format!("killing the leader, {round} of {}", args.elections));
        elections.push(kill_leader(cluster).await?.as_secs_f64() * 1e3);
    }
    if !elections.is_empty() {
        findings.add_finding(
            "leader killed, until a write succeeds, in the middle",
            median(&elections),
            "ms",
            None,
        );
        let most = elections.iter().copied().fold(0.0, f64::max);
        findings.add_finding("at worst", most, "ms", None);
    }
    Ok(())
}
