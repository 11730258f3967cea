//! The server's metrics, in the process's one Prometheus registry.
//!
//! Every part of the server may use these metrics; they refer to no part of it. Metrics that are
//! read at scrape time are in [`crate::readings`]. The registry, its text and its units are in
//! [`lockmesh_net::metrics`].
//!
//! **Invariant:** every series exists from the start, at zero, except per-peer series, which only a
//! leader exports. `deploy/metrics.md` explains each to operators, and a test keeps that page equal
//! to the exported metrics.

mod server;

pub(crate) use server::{MEMBER_STATUSES, SERVER, show_flag};
