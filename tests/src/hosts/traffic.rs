//! What loopback carries while something happens, by the second.

use super::network::{Carried, loopback};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a moment lasts, of which the worst is told.
const SECOND: Duration = Duration::from_secs(1);

/// Counts until it is told to end.
pub struct Meter {
    begun: Instant,
    before: Carried,
    /// Dropped to end the counting.
    end: mpsc::SyncSender<()>,
    counting: JoinHandle<f64>,
}

/// What went by, each packet once.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// For so long it was counted.
    pub seconds: f64,
    /// Packets a second; one of QUIC may be several that the kernel carries as one.
    pub packets: f64,
    /// Bytes a second, with the headers of Ethernet, IP and UDP.
    pub bytes: f64,
    /// In the worst second; where there was less than a second, in all of it.
    pub worst_bytes: f64,
}

impl Meter {
    /// Begins to count.
    pub fn start() -> Self {
        let ((end, ended), before) = (mpsc::sync_channel(0), loopback());
        let counting = thread::spawn(move || worst_second(before, &ended));
        Self { begun: Instant::now(), before, end, counting }
    }

    /// Ends it.
    pub fn stop(self) -> Traffic {
        let (seconds, now) = (self.begun.elapsed().as_secs_f64(), loopback());
        drop(self.end);
        let worst = self.counting.join().expect("counting does not panic");
        let bytes = (now.bytes - self.before.bytes) as f64 / seconds;
        Traffic {
            seconds,
            packets: (now.packets - self.before.packets) as f64 / seconds,
            bytes,
            worst_bytes: worst.max(bytes),
        }
    }
}

fn worst_second(mut before: Carried, ended: &mpsc::Receiver<()>) -> f64 {
    let (mut worst, mut since) = (0.0, Instant::now());
    while ended.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
        let now = loopback();
        let bytes = (now.bytes - before.bytes) as f64 / since.elapsed().as_secs_f64();
        (before, since, worst) = (now, Instant::now(), f64::max(worst, bytes));
    }
    worst
}
