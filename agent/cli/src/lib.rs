//! The program: the command line, and what runs an agent, a server or both in one process.
//!
//! | module | is |
//! |---|---|
//! | [`command`] | one module a command; commands are applications like any other |
//! | [`agent`], [`server`], [`dev`] | what each role starts, and in which order it stops |
//! | [`config`] | how file, environment and flags are put together |
//! | [`signals`], [`reload`] | what a running process is asked: to end, or to read certificate and log level again |
//! | [`telemetry`] | logs, as text or JSON |
//! | `data_folder` | what an agent keeps on disk, closed to other users |
//! | `pid_file` | the file with the number of a process that runs |
//! | [`error`] | why a role cannot start |
//!
//! **Invariant:** agent and server are libraries; they meet here and nowhere else.

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
pub mod telemetry;
