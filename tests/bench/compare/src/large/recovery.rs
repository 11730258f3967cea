//! Servers that are killed, restarted, emptied, and the time until they are useful again.

use crate::cluster::lockmesh::Lockmesh;
use crate::cluster::{Cluster, TIMEOUT};
use crate::process::wait_until;
use std::fs;
use std::io;
use std::time::Instant;

/// The way in which a follower is stopped before its restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// With `SIGTERM`.
    Terminate,
    /// With `kill -9`.
    Kill,
    /// With `kill -9`, and all its data is deleted.
    Empty,
}

/// The duration of a start, in seconds from the start of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    /// Until it logged that it listens.
    pub(super) listens: f64,
    /// Until the leader knows that it has the write made while it was down.
    pub(super) caught_up: f64,
}

/// A checkpoint, as logged by a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Checkpoint {
    pub(super) rows: f64,
    pub(super) took_ms: f64,
}

/// Stops a follower, writes a key, restarts the follower.
pub(super) async fn restart(cluster: &mut Lockmesh, way: Way) -> io::Result<Restart> {
    cluster.settle().await?;
    let leader = cluster.leader().await?;
    let follower = (leader + 1) % cluster.servers();
    match way {
        Way::Terminate => cluster.programs()[follower].terminate()?,
        Way::Kill | Way::Empty => cluster.programs()[follower].kill()?,
    }
    if way == Way::Empty {
        fs::remove_dir_all(cluster.data(follower))?;
    }
    let target = cluster.write_something().await?;
    let log = cluster.programs()[follower].log().to_owned();
    let before = fs::read_to_string(&log)?.len();
    let begun = Instant::now();
    cluster.programs()[follower].start()?;
    let mut listens = None;
    let mut programs = cluster.take_programs();
    let caught_up = wait_until("catching up", TIMEOUT, &mut programs, async || {
        if listens.is_none() && fs::read_to_string(&log).is_ok_and(|text| says_listens(&text[before..])) {
            listens = Some(begun.elapsed().as_secs_f64());
        }
        cluster.has(follower, target).await.unwrap_or(false)
    });
    let caught_up = caught_up.await;
    cluster.give_programs(programs);
    caught_up?;
    let caught_up = begun.elapsed().as_secs_f64();
    Ok(Restart { listens: listens.unwrap_or(caught_up), caught_up })
}

fn says_listens(log: &str) -> bool {
    log.contains("the server listens")
}

/// Returns the current lengths of the servers' logs.
pub(super) fn log_ends(cluster: &mut Lockmesh) -> Vec<usize> {
    let servers = cluster.servers();
    let length = |log| fs::metadata(log).map_or(0, |metadata| metadata.len() as usize);
    cluster.programs()[..servers].iter().map(|program| length(program.log())).collect()
}

/// Returns the checkpoints in the servers' logs behind these marks.
pub(super) fn checkpoints(cluster: &mut Lockmesh, marks: &[usize]) -> io::Result<Vec<Checkpoint>> {
    let mut found = Vec::new();
    for (program, mark) in cluster.programs().iter().zip(marks) {
        let text = fs::read(program.log())?;
        let text = String::from_utf8_lossy(text.get(*mark..).unwrap_or_default()).into_owned();
        found.extend(text.lines().filter_map(checkpoint));
    }
    Ok(found)
}

fn checkpoint(line: &str) -> Option<Checkpoint> {
    let number = |name: &str| -> Option<f64> {
        let (_, rest) = line.split_once(name)?;
        rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
    };
    line.contains("the checkpoint is durable")
        .then(|| Some(Checkpoint { rows: number("rows=")?, took_ms: number("took_ms=")? }))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read() {
        assert!(says_listens("INFO lockmesh_server::server: the server listens address=127.0.0.1:1"));
        let line =
            "DEBUG lockmesh_server::store::threads: the checkpoint is durable index=7 rows=10000 took_ms=41";
        assert_eq!(checkpoint(line), Some(Checkpoint { rows: 10_000.0, took_ms: 41.0 }));
        assert_eq!(checkpoint("INFO opened the store rows=1 took_ms=2"), None);
        assert_eq!(checkpoint("the checkpoint is durable"), None);
    }
}
