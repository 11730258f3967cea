//! The `lockmesh` binary, as a table of contents: arguments, logs, one runtime, one command.
//!
//! Nothing is decided here; every command is a module of [`lockmesh_agent::cli`].

use lockmesh_agent::cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(answered) => return answered,
    };
    match cli::execute(invocation) {
        Ok(code) => code,
        Err(error) => cli::report(&error),
    }
}
