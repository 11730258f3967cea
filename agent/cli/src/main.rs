//! The `lockmesh` binary, as a table of contents: arguments, then one command.
//!
//! Nothing is decided here; every command is a module of [`lockmesh_cli::command`].

use lockmesh_cli::command;
use std::process::ExitCode;

fn main() -> ExitCode {
    match command::parse(std::env::args_os()) {
        Ok(invocation) => command::execute(invocation),
        Err(code) => code,
    }
}
