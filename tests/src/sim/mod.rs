//! The whole quorum in one thread and in virtual time, from one seed: servers that are the real
//! core around simulated disks, agents that are the real quorum client around scripted clients, and
//! a network; what goes wrong, goes wrong in every combination.
//!
//! A run is a storm, in which faults happen and nothing that was promised may be broken, and then a
//! calm, in which everything must be well within a bounded time. Same seed, same run: there is no
//! clock, no thread and no hash order.
//!
//! | module | is |
//! |---|---|
//! | `run` | one run from its seed to its outcome |
//! | `plan`, `draw` | what a seed stands for; chance |
//! | `stage` | the time, the event queue, what everybody shares |
//! | `world` | the loop: one event after the other |
//! | `machine`, `process`, `clock` | a server: the core, what the driver does around it, its clock |
//! | `disk`, `durable`, `medium` | its disk: what is on its way, what is there, and what it is written to |
//! | `snapshots`, `readers` | how servers fetch snapshots of each other, and who reads a checkpoint |
//! | `greetings` | how servers meet, and what they compare |
//! | `network` | links that lose, delay, repeat, reorder, and are cut |
//! | `agent`, `connections` | an agent: the quorum client, what its driver does around it, its connections |
//! | `another_cluster` | a server that agents list by mistake |
//! | `client`, `locker`, `writer`, `cataloguer`, `archivist`, `administrator` | who asks, for what, and how often |
//! | `guard`, `guard_calls`, `guards` | programs that hold locks by the client library, their calls, and what they may believe |
//! | `guard_promises` | what else the library promises them |
//! | `session_watches` | what their agent tells them of their sessions |
//! | `member`, `liar` | an agent in the mesh: its socket, and what it asks servers; hosts that lie |
//! | `operator`, `chaos`, `agent_faults`, `setback` | changes of the membership; faults and their rhythm; disks that are set back |
//! | `history`, `judge`, `invariant` | the one order of all writes; what must never happen |
//! | `reach` | ports that are closed, and servers that are away |
//! | `held` | whether each lock that is held is held for someone |
//! | `lease_turn` | what a server's turn had to do with leases |
//! | `corruption` | a server whose state comes apart from the others, and who finds it |
//! | `calm`, `bounds`, `handover` | what must be well in the end, and what as soon as it can be |
//! | `notice`, `chronicle`, `marks` | what people read, what two runs are compared by, which rare branches were reached |
//! | `fault_injection` | what is broken on purpose |
//! | `fleet/` | no storm but very many hosts: how soon a dead one is known, and that no healthy one is failed |

pub mod administrator;
pub mod agent;
mod agent_faults;
mod another_cluster;
pub mod archivist;
mod bounds;
pub mod calm;
pub mod cataloguer;
mod challenges;
pub mod chaos;
pub mod chronicle;
pub mod client;
pub mod clock;
pub mod connections;
pub mod corruption;
pub mod disk;
pub mod draw;
pub mod durable;
pub mod fault_injection;
pub mod fleet;
pub mod greetings;
pub mod guard;
pub mod guard_calls;
pub mod guard_promises;
pub mod guards;
mod handover;
mod held;
pub mod history;
pub mod invariant;
pub mod judge;
pub mod lease_turn;
mod liar;
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
pub mod reach;
pub mod readers;
pub mod run;
pub mod session_watches;
mod setback;
pub mod snapshots;
pub mod stage;
pub mod world;
pub mod writer;

pub use chronicle::Detail;
pub use fault_injection::FaultInjection;
pub use judge::Violation;
pub use marks::{Mark, Marks};
pub use plan::Focus;
pub use run::{Outcome, hunt, run, run_focused, trace};
