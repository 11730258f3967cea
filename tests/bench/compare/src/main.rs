//! Lockmesh, etcd and ZooKeeper under the same work, on one machine, in one run.
//!
//! Ratios are valid only within one run: all services run all the time, each is measured for a
//! moment, and then it is the next one's turn. One thread generates the load of all three, because
//! it shares the machine with them; the report includes its CPU time.
//!
//! **Invariants:** all writes are durable; each service is used through its own protocol; the
//! program ends only processes that it started.
//!
//! | module | contents |
//! |---|---|
//! | `options.rs` | the command line, and the resulting plan |
//! | `contest.rs` | the services in turn, round after round |
//! | `work.rs` | what clients do in closed loops, and what counts |
//! | `client/` | one client per service, with its way to acquire a lock |
//! | `wire/` | the bytes of HTTP/1.1, gRPC and ZooKeeper's protocol |
//! | `cluster/` | three nodes of each service: start, kill, restart |
//! | `large/` | Lockmesh with 100,000 sessions and locks |
//! | `bystanders/` | latency of other clients during very large listings and deletes |
//! | `process.rs`, `machine.rs` | what runs, and on what |
//! | `latency.rs`, `report.rs`, `targets.rs`, `progress.rs` | results and targets |

mod bystanders;
mod client;
mod cluster;
mod contest;
mod large;
mod latency;
mod machine;
mod options;
mod process;
mod progress;
mod report;
mod targets;
mod wire;
mod work;

use clap::Parser;
use options::{Command, Options};
use progress::Progress;
use std::io;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

fn main() -> ExitCode {
    let options = Options::parse();
    match measure(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lockmesh-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints; returns `false` if something failed on the way.
fn measure(options: &Options) -> io::Result<bool> {
    process::raise_open_files_limit();
    let folder = options.folder()?;
    let progress = Progress::new();
    progress.print(&format!("all data and logs are in {}", folder.path().display()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = async {
        match &options.command {
            Some(Command::Large(args)) => {
                let findings = large::run(options, args, folder.path(), &progress).await?;
                print(options.json, &findings, findings.render())?;
                Ok(findings.failures.is_empty())
            }
            Some(Command::Bystanders(args)) => {
                let findings = bystanders::run(options, args, folder.path(), &progress).await?;
                print(options.json, &findings, findings.render())?;
                Ok(true)
            }
            None => {
                let mut report = contest::run(options, folder.path(), &progress).await?;
                report.judge();
                print(options.json, &report, report.render())?;
                Ok(report.failures.is_empty())
            }
        }
    };
    let interrupted = async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupt = tokio::signal::ctrl_c() => interrupt?,
            _ = terminate.recv() => {}
        }
        Err(io::Error::other("interrupted"))
    };
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            done = work => done,
            stopped = interrupted => stopped,
        }
    })
}

fn print(json: bool, report: &impl serde::Serialize, text: String) -> io::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(report).map_err(io::Error::other)?),
        false => print!("{text}"),
    }
    Ok(())
}
