//! The `lockmesh` binary, as a table of contents: arguments, logs, one runtime, one command.
//!
//! Nothing is decided here; every command is a module of [`lockmesh_cli::command`].

use lockmesh_cli::command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let invocation = match command::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(answered) => return answered,
    };
    match command::execute(invocation) {
        Ok(code) => code,
        Err(error) => command::report(&error),
    }
}
