//! Lockmesh, etcd, ZooKeeper and Consul under the same work, on one machine, in one run.
//!
//! Ratios are valid only within one run: all services run all the time, each is measured for a
//! moment, and then it is the next one's turn. One thread generates the load of all, because it
//! shares the machine with them; the report includes its CPU time.
//!
//! **Invariants:** all writes are durable; each service is used as it recommends; the program ends
//! only processes that it started.
//!
//! | module | contents |
//! |---|---|
//! | `options.rs` | the command line, and the resulting plan |
//! | `work.rs` | what clients do in closed loops, and what counts |
//! | `client/` | one client per protocol, with its way to acquire a lock |
//! | `cluster.rs` | three nodes of each service: start, agree, kill, restart |
//! | `process.rs` | processes and their resource usage |
//! | `report.rs` | medians, ratios, tables and JSON |

mod client;
mod cluster;
mod options;
mod process;
mod report;
mod work;

use clap::Parser;
use client::{etcd::Etcd, http::Http, zookeeper::ZooKeeper};
use cluster::{Cluster, Service};
use options::Options;
use process::Usage;
use report::{Report, Round, Step};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;
use work::Work;

/// Errors are printed and end a measurement; no caller distinguishes them.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lockmesh-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints; returns `false` if something failed on the way.
fn run(options: &Options) -> Result<bool> {
    process::raise_open_files_limit();
    let folder = options.folder()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            report = measure_all(options, folder.path()) => report,
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        }
    })?;
    report.conclude();
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.render()),
    }
    Ok(report.failures.is_empty())
}

/// Starts all selected services, measures everything, and stops them.
async fn measure_all(options: &Options, folder: &Path) -> Result<Report> {
    let begun = Instant::now();
    let progress = |text: &str| eprintln!("[{:4}] {text}", begun.elapsed().as_secs());
    progress(&format!("all data and logs are in {}", folder.display()));
    let plan = options.plan();
    let mut report = Report { machine: process::machine(folder)?, ..Report::default() };
    let mut clusters = Vec::new();
    for service in options.services() {
        progress(&format!("starting {service:?}"));
        let cluster = Cluster::start(service, options, folder).await?;
        report.versions.push(cluster.version.clone());
        clusters.push(cluster);
    }
    for cluster in &mut clusters {
        // Java compiles hot code, and all create their files.
        for work in [Work::Puts, Work::Cycles] {
            measure(cluster, Step { work, clients: 64 }, plan.length, folder).await?;
        }
    }
    for (step, rounds) in plan.steps {
        progress(&format!("{:?} with {} clients", step.work, step.clients));
        for _ in 0..rounds {
            for cluster in &mut clusters {
                match measure(cluster, step, plan.length, folder).await {
                    Ok(round) => report.rounds.entry((step, cluster.service)).or_default().push(round),
                    Err(error) => {
                        let failure = format!("{:?}, {:?}: {error}", cluster.service, step.work);
                        progress(&format!("FAILED: {failure}"));
                        report.failures.push(failure);
                    }
                }
            }
        }
        // A node that is killed loses its figures.
        if step.work != Work::LeaderKilled {
            report.usage = clusters.iter().map(|cluster| (cluster.service, cluster.usage())).collect();
        }
    }
    Ok(report)
}

/// Measures one window of one service.
async fn measure(cluster: &mut Cluster, step: Step, length: Duration, folder: &Path) -> Result<Round> {
    if step.work == Work::LeaderKilled {
        let took = work::kill_leader(cluster).await?;
        return Ok(Round { latencies_ms: vec![took.as_secs_f64() * 1e3], ..Round::default() });
    }
    let site = cluster.site(vec![cluster.leader().await?]);
    let mut marks = Vec::new();
    let mark = || marks.push((Usage::own(), cluster.usage(), process::written_bytes(folder)));
    let latencies = match cluster.service {
        Service::Lockmesh | Service::Consul => work::run::<Http>(&site, step, length, mark).await?,
        Service::Etcd => work::run::<Etcd>(&site, step, length, mark).await?,
        Service::ZooKeeper => work::run::<ZooKeeper>(&site, step, length, mark).await?,
    };
    let mut marks = marks.into_iter();
    let (Some((own_before, before, bytes_before)), Some((own_after, after, bytes_after))) =
        (marks.next(), marks.next())
    else {
        return Err("no window".into());
    };
    let seconds = length.as_secs_f64();
    let operations = latencies.len() as f64;
    Ok(Round {
        per_second: operations / seconds,
        generator_cpus: (own_after.cpu_seconds - own_before.cpu_seconds) / seconds,
        service_cpus: (after.cpu_seconds - before.cpu_seconds) / seconds,
        written_bytes: (bytes_after? - bytes_before?) / operations.max(1.0),
        latencies_ms: latencies.iter().map(|latency| latency.as_secs_f64() * 1e3).collect(),
    })
}
