//! The file that passes the guards of this agent on to its next process, and the task that ends an
//! announced restart once they have been taken over.
//!
//! `agent/core` decides which sessions are in it. **Invariant:** from before the announcement of a
//! restart until the clean end of the process, the file has no list: without one, the servers keep
//! the node for the whole restart window. A process that has taken over leaves an empty list, so
//! that a successor can tell that nothing was announced, unless an older build ran.

use crate::node::write_durably;
use crate::session_watches::SessionWatches;
use crate::upstream::Upstream;
use lockmesh_agent_core::handover::{Handover, Promises, Situation, Step};
use lockmesh_net::owner;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::rpc::Unavailable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The file in the data directory.
const FILE: &str = "handover.json";

/// The pause between attempts to end the restart, and between looks at the registration.
const END_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The time for a change of the file: a disk that hangs must not delay the end of the process.
const DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// The contents of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// `None` from the announcement of a restart to the end of the process.
    sessions: Option<BTreeMap<String, Promises>>,
}

impl Kept {
    fn handover(self) -> Result<Handover, io::Error> {
        let Some(sessions) = self.sessions else { return Ok(Handover::default()) };
        let parsed = sessions.into_iter().map(|(text, promises)| Some((SessionId::parse(&text)?, promises)));
        let guards: Option<Vec<_>> = parsed.collect();
        guards.map(Handover::of).ok_or_else(|| io::Error::other("it holds something else than sessions"))
    }
}

/// The file with the reports on which guards rely over a restart of the agent.
#[derive(Clone, Debug)]
pub(crate) struct HandoverFile {
    path: PathBuf,
    /// Held during a change, so that a late one does not replace a newer one.
    turn: Arc<Mutex<()>>,
}

impl HandoverFile {
    /// Reads what the last process left. A list that is missing or cannot be read is unknown: the
    /// node is kept longer than necessary then.
    pub(crate) fn open(folder: &Path) -> (Self, Handover) {
        let path = folder.join(FILE);
        let handover = match owner::read(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(io::Error::from).and_then(Kept::handover),
            // A process of an older build may have announced a restart.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Handover::default()),
            Err(error) => Err(error),
        };
        let handover = handover.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot read which guards the last process left");
            Handover::default()
        });
        (Self { path, turn: Arc::default() }, handover)
    }

    /// Records that a restart is about to be announced.
    ///
    /// # Errors
    /// It must not be announced: the next process could end the announced restart too early.
    pub(crate) async fn announced(&self) -> io::Result<()> {
        self.write(None).await
    }

    /// Leaves the guards to the next process, after the last report to them.
    pub(crate) async fn leave(&self, handover: &Handover) {
        if let Err(error) = self.write(handover.for_successor()).await {
            tracing::warn!(path = %self.path.display(), %error, "cannot write which guards are left");
        }
    }

    /// Waits for the disk, within limits. Without a data directory nothing is kept.
    async fn write(&self, guards: Option<BTreeMap<SessionId, Promises>>) -> io::Result<()> {
        let sessions = guards
            .map(|guards| guards.into_iter().map(|(id, promises)| (id.to_string(), promises)).collect());
        let text = serde_json::to_string(&Kept { sessions }).expect("strings become JSON");
        let path = self.path.clone();
        let written = async {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            let write = move || {
                // Held until the write ends, even if its caller stopped waiting.
                let _turn = turn;
                if path.parent().is_some_and(Path::exists) { write_durably(&path, &text) } else { Ok(()) }
            };
            tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(io::Error::other(error)))
        };
        let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the disk did not answer in time"));
        tokio::time::timeout(DISK_TIMEOUT, written).await.unwrap_or_else(late)
    }
}

/// Begins with what the last process left, and to take its guards over.
pub(crate) fn begin(
    data_dir: &Path,
    watches: &Arc<SessionWatches>,
    upstream: &Upstream,
) -> (HandoverFile, JoinHandle<()>) {
    let (file, predecessor) = HandoverFile::open(data_dir);
    watches.change_handover(|handover| *handover = predecessor);
    let taking_over = take_over(file.clone(), Arc::clone(watches), upstream.clone());
    (file, tokio::spawn(taking_over))
}

/// Ends the announced restart of an earlier process once its guards rely on this one, or lets it
/// expire.
async fn take_over(file: HandoverFile, watches: Arc<SessionWatches>, upstream: Upstream) {
    let begun = Instant::now();
    let mut is_denied = false;
    loop {
        let (ran, lease) = (begun.elapsed(), upstream.registered_lease());
        let situation = Situation { ran, is_new_agent: upstream.is_new_agent(), lease };
        match watches.change_handover(|handover| handover.next_step(&situation)) {
            Step::Done => break,
            Step::End(command) if !is_denied => match upstream.call(command).await {
                Ok(_) => break,
                // A server of an older build: the restart expires.
                Err(reason) => is_denied = matches!(reason, Unavailable::Denied(_)),
            },
            Step::End(_) | Step::Wait => {}
        }
        tokio::time::sleep(END_RETRY_PAUSE).await;
    }
    file.leave(&Handover::of([])).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_file_is_unknown() {
        let data = tempfile::tempdir().expect("a folder");
        let (file, predecessor) = HandoverFile::open(data.path());
        assert_eq!(predecessor, Handover::default());
        file.leave(&Handover::of([])).await;
        assert_eq!(HandoverFile::open(data.path()).1, Handover::of([]));
        file.announced().await.expect("there is room");
        assert_eq!(HandoverFile::open(data.path()).1, Handover::default());
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_disk_delays_no_end() {
        let data = tempfile::tempdir().expect("a folder");
        let (file, _) = HandoverFile::open(data.path());
        let hangs = Arc::clone(&file.turn).lock_owned().await;
        let begun = Instant::now();
        let late = file.announced().await.expect_err("the disk hangs");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        file.leave(&Handover::of([])).await;
        assert_eq!(begun.elapsed().as_secs(), 2 * DISK_TIMEOUT.as_secs());
        drop(hangs);
        assert_eq!(HandoverFile::open(data.path()).1, Handover::default(), "there is no list");
    }
}
