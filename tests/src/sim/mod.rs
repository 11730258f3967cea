//! Simulation of the whole quorum in one thread and in virtual time, from one seed. Servers are the
//! real core around simulated disks. Agents are the real quorum client around scripted clients. A
//! simulated network connects them. Faults occur in every combination.
//!
//! A run starts with a storm, in which faults happen and no guarantee may be broken. A calm
//! follows, in which the cluster must recover within a bounded time. The same seed gives the same
//! run: there is no clock, no thread and no hash order.
//!
//! | module | contents |
//! |---|---|
//! | `run` | one run from its seed to its outcome |
//! | `plan`, `draw` | the parameters of a seed; the random source |
//! | `stage` | time, the event queue, shared state |
//! | `world` | the loop: one event after the other |
//! | `machine`, `process`, `clock` | a server: the core, its driver, its clock |
//! | `disk`, `durable`, `medium` | a server's disk: pending writes, durable state, the medium |
//! | `snapshots`, `readers` | snapshot transfer between servers, and readers of a checkpoint |
//! | `greetings` | handshakes between servers |
//! | `network` | links that lose, delay, repeat, reorder, and are cut |
//! | `agent`, `connections` | an agent: the quorum client, its driver, its connections |
//! | `another_cluster` | a server of another cluster that agents list by mistake |
//! | `client`, `locker`, `writer`, `cataloguer`, `archivist`, `administrator` | scripted clients |
//! | `intruder` | a client that tries what it has no right to, in clusters with access control lists |
//! | `querier` | a scripted client of prepared queries |
//! | `lists` | lists that readers read in parts |
//! | `guard`, `guard_calls`, `guards` | programs that hold locks by the client library |
//! | `guard_promises` | other guarantees of the client library |
//! | `guard_command`, `supervised` | commands under the holds of guards; their guard and supervisor |
//! | `command`, `command_promises` | the processes of a command; its guarantees (I10, I11) |
//! | `bound_sessions` | sessions that end with processes of an agent's host |
//! | `session_watches` | session events that an agent reports to guards |
//! | `checks`, `applications` | services and checks of an agent; the applications that report to it |
//! | `findings` | the status that each check must have |
//! | `check_sessions` | sessions that depend on an agent's checks: they end in time |
//! | `member`, `liar` | an agent in the mesh and its questions to servers; lying hosts |
//! | `operator`, `chaos`, `agent_faults`, `setback` | membership changes; faults; disk rollbacks |
//! | `history`, `judge`, `invariant` | the total order of writes; the invariants |
//! | `reach` | closed ports and unavailable servers |
//! | `held` | the check that each held lock has a live holder |
//! | `lease_turn` | the lease events of a server's turn |
//! | `corruption` | a server whose state diverges, and its detection |
//! | `calm`, `bounds`, `handover` | liveness at the end of a run, and time bounds during it |
//! | `notice`, `chronicle`, `marks` | the log, the trace for comparisons, and rare branches |
//! | `fault_injection` | deliberate bugs |
//! | `fleet/` | very many hosts without a storm: time to detect a dead host, no false failures |

pub mod administrator;
pub mod agent;
mod agent_faults;
mod another_cluster;
mod applications;
pub mod archivist;
pub mod bound_sessions;
mod bounds;
pub mod calm;
pub mod cataloguer;
mod challenges;
pub mod chaos;
mod check_sessions;
mod checks;
pub mod chronicle;
pub mod client;
pub mod clock;
pub mod command;
mod command_promises;
pub mod connections;
pub mod corruption;
pub mod disk;
pub mod draw;
pub mod durable;
pub mod fault_injection;
mod findings;
pub mod fleet;
pub mod greetings;
pub mod guard;
pub mod guard_calls;
mod guard_command;
pub mod guard_promises;
pub mod guards;
mod handover;
mod held;
pub mod history;
pub mod intruder;
pub mod invariant;
pub mod judge;
pub mod lease_turn;
mod liar;
pub mod lists;
pub mod locker;
pub mod machine;
pub mod marks;
pub mod medium;
pub mod member;
pub mod network;
pub mod notice;
pub mod operator;
pub mod plan;
pub mod process;
pub mod querier;
pub mod reach;
pub mod readers;
pub mod run;
pub mod session_watches;
mod setback;
pub mod snapshots;
pub mod stage;
pub mod supervised;
pub mod world;
pub mod writer;

pub use chronicle::Detail;
pub use fault_injection::FaultInjection;
pub use judge::Violation;
pub use marks::{Mark, Marks};
pub use plan::Focus;
pub use run::{Outcome, hunt, run, run_focused, trace};
