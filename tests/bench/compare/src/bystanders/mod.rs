//! Lockmesh alone: the latencies of other clients while one lists or deletes a very large number of
//! keys.
//!
//! | module | is |
//! |---|---|
//! | [`fill`] | many keys, locks on some of them, readers that are parked on others |
//! | [`others`] | the clients that write and read meanwhile |
//! | [`abuse`] | the clients that list, on their own thread |
//! | [`findings`] | the latencies of the other clients |
//!
//! The other clients and those that list use different agents, so that they share only servers and
//! processors.

mod abuse;
mod fill;
mod findings;
mod others;

use crate::client::lockmesh::{Wire, session_request_with_ttl};
use crate::cluster::Cluster;
use crate::cluster::lockmesh::Lockmesh;
use crate::options::{BystandersArgs, Options};
use crate::progress::Progress;
use crate::wire::http1::request;
use abuse::Listers;
use findings::Findings;
use others::Others;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The pause before a measurement: checkpoints of the loaded keys are over.
const REST: Duration = Duration::from_secs(5);

/// The time for which the other clients run before a delete begins, and after its response.
const AROUND: Duration = Duration::from_secs(3);

/// The number of agents whose stale reads are measured. Each selects its own server, so that these
/// include followers.
const READERS: usize = 4;

/// The participants of the benchmark.
struct Stage<'a> {
    cluster: Lockmesh,
    /// The agent of the clients that list, delete and wait.
    abused: PathBuf,
    others: Others,
    args: &'a BystandersArgs,
    progress: &'a Progress,
    findings: Findings,
}

/// Runs all phases in turn.
pub(crate) async fn run(
    options: &Options,
    args: &BystandersArgs,
    folder: &Path,
    progress: &Progress,
) -> io::Result<Findings> {
    progress.print("starting Lockmesh");
    let tools = options.tools()?;
    let mut cluster = Lockmesh::start(&tools, &folder.join("Lockmesh"), options.servers(), "info").await?;
    let abused = cluster.add_agent(&tools, "a2")?;
    let names = (1..=READERS).map(|number| format!("reader-{number}"));
    let readers = names.map(|name| cluster.add_agent(&tools, &name)).collect::<io::Result<Vec<_>>>()?;
    cluster.settle().await?;
    for socket in readers.iter().chain([&abused]) {
        fill::wait_for(socket).await?;
    }
    let findings = Findings::new(folder, cluster.version(), args)?;
    let others = Others { writers: cluster.socket().into(), writer_count: args.clients, readers };
    let mut stage = Stage { cluster, abused, others, args, progress, findings };
    stage.lists().await?;
    stage.deletes().await?;
    progress.print("done");
    Ok(stage.findings)
}

impl Stage<'_> {
    /// Measures the effect of listings.
    async fn lists(&mut self) -> io::Result<()> {
        self.load(self.args.keys).await?;
        let length = Duration::from_secs(u64::from(self.args.seconds));
        self.progress.print("quiet");
        let quiet = self.others.work(tokio::time::sleep(length)).await?;
        self.findings.add_latencies("quiet", &quiet.1, String::new());
        for (name, words) in [
            ("others list ?recurse", "?recurse"),
            ("others list ?recurse&stale", "?recurse&stale"),
            ("others list ?keys", "?keys"),
        ] {
            self.progress.print(name);
            let target = format!("{}{words}", fill::PREFIX);
            let listers = Listers::start(&self.abused, self.args.listers, request("GET", &target, b""));
            let (_, seen) = self.others.work(tokio::time::sleep(length)).await?;
            self.findings.add_latencies(name, &seen, listers.stop()?);
            tokio::time::sleep(REST).await;
        }
        self.delete("delete of as many keys", self.args.keys).await
    }

    /// Measures the effect of deletes.
    async fn deletes(&mut self) -> io::Result<()> {
        if self.args.deleted == 0 {
            return Ok(());
        }
        self.load(self.args.deleted).await?;
        self.delete("delete", self.args.deleted).await?;
        self.load(self.args.deleted).await?;
        let (held, watched) = (self.args.held, self.args.watched);
        self.progress.print(&format!("{held} keys are locked and {watched} are watched"));
        fill::lock(&self.abused, self.args.deleted, held).await?;
        let watchers = fill::watch(&self.abused, self.args.deleted, watched).await?;
        tokio::time::sleep(REST).await;
        self.delete(&format!("delete, {held} of them locked, {watched} watched"), self.args.deleted).await?;
        let woken = watchers.woken().await?;
        self.findings.note(format!("{woken} of {watched} watchers were woken by the delete"));
        Ok(())
    }

    async fn load(&mut self, count: u32) -> io::Result<()> {
        self.progress.print(&format!("writing {count} keys of {} bytes", self.args.value));
        let begun = Instant::now();
        fill::fill(&self.abused, count, self.args.value, self.progress).await?;
        self.findings.note(format!("{count} keys were written in {:.1} s", begun.elapsed().as_secs_f64()));
        self.cluster.settle().await?;
        tokio::time::sleep(REST).await;
        self.findings.note_memory(&mut self.cluster, &format!("with {count} keys"));
        Ok(())
    }

    async fn delete(&mut self, name: &str, count: u32) -> io::Result<()> {
        self.progress.print(&format!("{name}: {count} keys"));
        let delete = async {
            tokio::time::sleep(AROUND).await;
            let begun = Instant::now();
            let delete = request("DELETE", &format!("{}?recurse", fill::PREFIX), b"");
            let outcome = Wire::connect(&self.abused).await?.succeed(&delete).await;
            let took = begun.elapsed();
            tokio::time::sleep(AROUND).await;
            outcome.map(|()| took)
        };
        let (took, seen) = self.others.work(delete).await?;
        let took = took?;
        let name = format!("{name}: {count} keys");
        self.findings.add_latencies(
            &name,
            &seen,
            format!("answered after {:.0} ms", took.as_secs_f64() * 1e3),
        );
        self.cluster.settle().await?;
        tokio::time::sleep(REST).await;
        self.findings.note_memory(&mut self.cluster, &format!("after the {name}"));
        Ok(())
    }
}

/// Returns the request that creates a session for locks.
fn session() -> Vec<u8> {
    session_request_with_ttl("24h", "")
}
