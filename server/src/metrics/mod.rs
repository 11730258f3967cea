//! What a server counts and measures, in the process's one registry, as Prometheus has it.
//!
//! Every part of the server may name these figures; they name no part of it. What is read anew each
//! time is [`crate::readings`]'. The registry, its text and its units are
//! [`lockmesh_net::metrics`]'.
//!
//! **Invariant:** every series is there from the start, at zero, but for those of other servers,
//! which a leader alone has. `deploy/metrics.md` explains each to operators, and a test holds that
//! page equal to what is served.

mod server;

pub(crate) use server::{MEMBER_STATUSES, SERVER, show_flag};
