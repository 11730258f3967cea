//! Loopback traffic during a measurement, sampled every second.

use super::network::{Carried, loopback};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The sampling interval, for the worst second.
const SECOND: Duration = Duration::from_secs(1);

/// A running count.
pub struct Meter {
    begun: Instant,
    before: Carried,
    /// Dropped to end the sampling.
    end: mpsc::SyncSender<()>,
    counting: JoinHandle<f64>,
}

/// The traffic, each packet counted once.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// The duration of the count.
    pub seconds: f64,
    /// Packets per second; the kernel may carry several QUIC packets as one.
    pub packets: f64,
    /// Bytes per second, with Ethernet, IP and UDP headers.
    pub bytes: f64,
    /// Bytes per second in the worst second, or over the whole count if it was shorter than a
    /// second.
    pub worst_bytes: f64,
}

impl Meter {
    /// Starts counting.
    pub fn start() -> Self {
        let ((end, ended), before) = (mpsc::sync_channel(0), loopback());
        let counting = thread::spawn(move || worst_second(before, &ended));
        Self { begun: Instant::now(), before, end, counting }
    }

    /// Stops counting.
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
