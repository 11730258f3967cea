//! The program `lockmesh`: the command line, and the processes of agents and servers.
//!
//! **Invariant:** agent and server are libraries; they meet here and nowhere else.
//!
//! | module | contents |
//! |---|---|
//! | `main.rs` | the binary as a table of contents |
//! | `command/` | one module per command; commands use the API like any application |
//! | `command/dev/` | `dev`, and `dev kill` |
//! | `command/kv/` | `kv get`, `put`, `delete`, `list`, `export`, `import` |
//! | `command/lock/` | `lock`: a hold, and the command that runs meanwhile |
//! | `command/supervise/` | the supervisor of a command, and the process that becomes it |
//! | `command/operator/` | `operator raft`, `autopilot`, `gossip`, `snapshot`, `tls` |
//! | `command/acl/` | `acl token`, `policy`, `role`, `auth-method`, `binding-rule` |
//! | `command/services/` | `services register`, `deregister`, `list` |
//! | `command/bench/` | `bench`: load on an agent, and measurements |
//! | `agent.rs`, `server.rs`, `dev/` | start and stop of each role |
//! | `config/` | merges file, environment and flags; remedies for unknown keys |
//! | `data_folder.rs` | an agent's data folder, closed to other users |
//! | `pid_file.rs` | the file with the process id |
//! | `error.rs` | startup errors |
//! | `supervision/` | a command under a lock, as a pure state machine: the decisions of its guard and its supervisor |
//! | `signals.rs`, `reload.rs` | signals of a running process: end, leave, reload |
//! | `stdio.rs` | stdout and stderr, which no duty waits for |
//! | `telemetry.rs` | logs, as text or JSON |

pub mod agent;
pub mod command;
pub mod config;
mod data_folder;
pub mod dev;
pub mod error;
mod pid_file;
pub mod reload;
pub mod server;
pub mod signals;
pub mod stdio;
pub mod supervision;
pub mod telemetry;
