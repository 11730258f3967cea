//! The end of a node with many locks, while other clients work: measures their longest request.

use super::fill;
use super::findings::Findings;
use crate::client::Client;
use crate::client::lockmesh::{Lockmesh as Worker, Wire};
use crate::cluster::lockmesh::Lockmesh;
use crate::cluster::{Cluster, Targets};
use crate::wire::http1::{self, request};
use crate::work::Work;
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The node that is destroyed.
pub(super) const NODE: &str = "doomed";

/// The time for which the other clients work before the node's end, and after it.
const AROUND: Duration = Duration::from_secs(5);

/// The longest allowed request of another client, in milliseconds.
const LONGEST_MS: f64 = 50.0;

/// The work of the other clients, one client each.
const OTHERS: [Work; 4] = [Work::Puts, Work::Reads, Work::Cycles, Work::Churn];

/// The longest request of one of them, before the node's end and since.
#[derive(Debug, Default)]
struct Longest {
    before: Cell<Duration>,
    since: Cell<Duration>,
}

/// The signals to the other clients.
#[derive(Debug, Default)]
struct Signals {
    destroying: Cell<bool>,
    over: Cell<bool>,
}

/// Destroys the node, and reports the duration and the other clients' longest requests.
pub(super) async fn destroy(cluster: &Lockmesh, locks: u32, findings: &mut Findings) -> io::Result<()> {
    let signals = Rc::new(Signals::default());
    let longest: Rc<[Longest; 4]> = Rc::default();
    let mut others = JoinSet::new();
    for (number, work) in OTHERS.into_iter().enumerate() {
        let site = cluster.site(Targets::All);
        let (signals, longest) = (Rc::clone(&signals), Rc::clone(&longest));
        others.spawn_local(async move {
            let mut client = Worker::connect(&site, number, work).await?;
            while !signals.over.get() {
                one(&mut client, work, &signals, &longest[number]).await?;
            }
            client.close().await
        });
    }
    tokio::time::sleep(AROUND).await;
    signals.destroying.set(true);
    let begun = Instant::now();
    let body = format!(r#"{{"Node":"{NODE}"}}"#);
    let end = request("PUT", "/v1/catalog/deregister", body.as_bytes());
    Wire::connect(cluster.socket()).await?.succeed(&end).await?;
    let answered = begun.elapsed();
    let held = held(cluster.socket(), locks).await?;
    tokio::time::sleep(AROUND).await;
    signals.over.set(true);
    while let Some(done) = others.join_next().await {
        done.map_err(io::Error::other)??;
    }
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    findings.add_finding(
        format!("a node with {locks} locks destroyed, until the answer"),
        ms(answered),
        "ms",
        None,
    );
    findings.add_finding("its locks that are still held then", f64::from(held), "", Some(0.0));
    for (work, longest) in OTHERS.iter().zip(longest.iter()) {
        let name = work.name();
        let (before, since) = (ms(longest.before.get()), ms(longest.since.get()));
        findings.add_finding(format!("longest request of another's {name} before"), before, "ms", None);
        findings.add_finding(
            format!("longest request of another's {name} since"),
            since,
            "ms",
            Some(LONGEST_MS),
        );
    }
    Ok(())
}

async fn one(client: &mut Worker, work: Work, signals: &Signals, longest: &Longest) -> io::Result<()> {
    match work {
        Work::Puts => client.put().await?,
        Work::Reads => client.read().await?,
        Work::Cycles => client.cycle().await?,
        _ => client.churn().await?,
    }
    // A request in flight when the end began counts as since.
    let cell = if signals.destroying.get() { &longest.since } else { &longest.before };
    cell.set(cell.get().max(client.take_longest()));
    Ok(())
}

/// Returns the number of held locks in a sample of the node's locks.
async fn held(socket: &Path, locks: u32) -> io::Result<u32> {
    const LOOKS: u32 = 100;
    let mut wire = Wire::connect(socket).await?;
    let mut held = 0;
    for number in (0..locks).step_by((locks / LOOKS).max(1) as usize) {
        let head = wire.exchange(&request("GET", &fill::lock(NODE, number), b"")).await?;
        held += u32::from(http1::holder(wire.body(head)).is_some());
    }
    Ok(held)
}
