//! Runs a command with its own `lockmesh dev`: `with_dev [[DEV-ARGUMENT…] --] COMMAND…`.
//!
//! The command finds the server by `LOCKMESH_PORT`, `LOCKMESH_SOCKET` and `LOCKMESH_PID`. The
//! server ends with the command, whose exit code is returned.

use lockmesh_tests::dev::Dev;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (for_dev, command) = match arguments.iter().position(|argument| argument == "--") {
        Some(split) => (&arguments[..split], &arguments[split + 1..]),
        None => (&arguments[..0], &arguments[..]),
    };
    let Some((program, rest)) = command.split_first() else {
        eprintln!("usage: with_dev [[arguments for `lockmesh dev`] --] COMMAND…");
        return ExitCode::from(2);
    };
    let server = Dev::start(&for_dev.iter().map(String::as_str).collect::<Vec<_>>());
    let mut command = Command::new(program);
    command.args(rest).env("LOCKMESH_PORT", server.http.port().to_string());
    command.env("LOCKMESH_PID", server.process_number().to_string());
    if let Some(socket) = &server.socket {
        command.env("LOCKMESH_SOCKET", socket);
    }
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("with_dev: {program} failed ({status}); the server's log:\n{}", server.log());
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("with_dev: {program} cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
