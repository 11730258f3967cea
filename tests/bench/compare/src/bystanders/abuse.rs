//! Clients that list repeatedly, on their own thread: their responses must not delay the other
//! clients' measurements.

use crate::client::lockmesh::Wire;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};

/// The pause after a broken connection.
const FAILURE_BACKOFF: Duration = Duration::from_millis(100);

/// The number of responses by status; 0 is for a missing response.
type Statuses = BTreeMap<u16, u64>;

/// Clients in closed loops.
pub(super) struct Listers {
    over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Statuses>>,
}

impl Listers {
    /// Starts `count` clients that send the same request until they are stopped.
    pub(super) fn start(socket: &Path, count: u32, request: Vec<u8>) -> Self {
        let (over, socket) = (Arc::new(AtomicBool::new(false)), socket.to_owned());
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            LocalSet::new().block_on(&runtime, list(socket, count, request.into(), told))
        });
        Self { over, thread }
    }

    /// Stops them; returns their responses as text.
    pub(super) fn stop(self) -> io::Result<String> {
        self.over.store(true, Ordering::Relaxed);
        let statuses = self.thread.join().map_err(|_| io::Error::other("the listers' thread panicked"))??;
        let told: Vec<String> = statuses
            .iter()
            .map(|(status, count)| match status {
                0 => format!("{count} without an answer"),
                status => format!("{count} times {status}"),
            })
            .collect();
        Ok(told.join(", "))
    }
}

async fn list(
    socket: PathBuf,
    count: u32,
    request: Arc<[u8]>,
    over: Arc<AtomicBool>,
) -> io::Result<Statuses> {
    let mut clients = JoinSet::new();
    for _ in 0..count {
        let (socket, request, over) = (socket.clone(), Arc::clone(&request), Arc::clone(&over));
        clients.spawn_local(async move {
            let mut statuses = Statuses::new();
            let mut wire = Wire::connect(&socket).await?;
            while !over.load(Ordering::Relaxed) {
                let status = wire.ask(&request).await.map_or(0, |head| head.status);
                *statuses.entry(status).or_default() += 1;
                if status == 0 {
                    tokio::time::sleep(FAILURE_BACKOFF).await;
                    wire = Wire::connect(&socket).await?;
                }
            }
            io::Result::Ok(statuses)
        });
    }
    let mut all = Statuses::new();
    while let Some(done) = clients.join_next().await {
        for (status, count) in done.map_err(io::Error::other)?? {
            *all.entry(status).or_default() += count;
        }
    }
    Ok(all)
}
