//! The clock of all that this agent decides about the servers: monotonic, and it goes on while the
//! host is suspended.
//!
//! Never the wall clock, which people turn, and never tokio's, which stands still in a suspended
//! host: the servers' windows go on meanwhile, so an agent that slept through its lease must find
//! it over on waking up.

use lockmesh_protocol::time::Time;
use rustix::time::{ClockId, clock_gettime};

/// The time now: the kernel's `CLOCK_BOOTTIME`, which is the same for every process of this host.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let microseconds = u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000;
    Time(seconds.saturating_mul(1_000_000).saturating_add(microseconds))
}
