//! Errors of commands, and the exit codes of the process.
//!
//! A text names what failed, the cause, and what to do. Errors are printed in [`super::report`]
//! only.

use lockmesh_migrate::MigrateError;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// The exit codes of the commands that run a program while they hold something, for their help.
/// They end with the code of their program, so their own errors have codes that programs rarely
/// use.
pub const HOLDER_EXIT_CODES: &str = "\
Exit codes:
  COMMAND's own, 128+N if signal N killed it; or, if COMMAND did not run to its end:
  120  not acquired within --timeout, or held with --once
  121  lost while COMMAND ran; COMMAND was ended
  122  interrupted while waiting; COMMAND was not started
  123  the agent or the servers cannot be reached; COMMAND was not started
  124  any other error, such as a rejected request; COMMAND was not started
  125  invalid arguments
  126  COMMAND cannot be executed
  127  COMMAND not found";

/// The same of `elect`, which waits again after it lost the leadership.
pub const ELECT_EXIT_CODES: &str = "\
Exit codes:
  COMMAND's own, 128+N if signal N killed it; or, if COMMAND did not run to its end:
  120  not acquired within --timeout
  122  interrupted while waiting; COMMAND ended or was not started
  123  the agent or the servers cannot be reached; COMMAND ended or was not started
  124  any other error, such as a rejected request; COMMAND ended or was not started
  125  invalid arguments
  126  COMMAND cannot be executed
  127  COMMAND not found
  141  the reader of the output has gone; COMMAND ended or was not started";

/// The exit codes of all other commands, for the program's help.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    failed or rejected
  2    invalid arguments or configuration
  141  the reader of the output has gone
  lock, semaphore and elect exit with their command's code, or 120 to 127: see their help";

/// The exit code for a program that was found but not started.
const CANNOT_EXECUTE: u8 = 126;

/// The exit code for a program that does not exist.
const NOT_FOUND: u8 = 127;

/// The failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments are invalid; nothing was tried.
    #[error("{0}")]
    Usage(String),
    /// The command failed, or the request was rejected.
    #[error("{0}")]
    Failed(String),
    /// The same, in the words that Consul's users and scripts know, without our name before them.
    #[error("{0}")]
    InConsulsWords(String),
    /// The agent or the servers cannot be reached at present; the command may be tried again.
    #[error("{0}")]
    Unreachable(String),
    /// A lock or a slot was not granted in time.
    #[error("{0}")]
    NotAcquired(String),
    /// A signal ended the command while it waited.
    #[error("{0}")]
    Interrupted(String),
    /// A program cannot be started.
    #[error("cannot start {name}: {error}")]
    NotStarted {
        /// The name of the program.
        name: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The reader of our output has gone. Exit code 141, as for any program in a pipe.
    #[error("the reader of the output has gone")]
    ClosedPipe,
}

/// The mapping from errors to exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCodes {
    /// 1, and 2 for invalid arguments: see [`EXIT_CODES`].
    Plain,
    /// 120 to 127, apart from the codes of a program: see [`HOLDER_EXIT_CODES`].
    Holder,
    /// 1, as of `consul lock -child-exit-code`, where 2 means that the program failed.
    Consul,
}

impl CliError {
    /// Invalid arguments.
    pub fn usage(text: impl Display) -> Self {
        Self::Usage(text.to_string())
    }

    /// A failure, in words for the operator.
    pub fn failed(text: impl Display) -> Self {
        Self::Failed(text.to_string())
    }

    /// A failure, in the words of `consul`.
    pub fn in_consuls_words<T: Into<String>>(text: T) -> Self {
        Self::InConsulsWords(text.into())
    }

    /// The exit code of the process.
    pub fn exit_code(&self, codes: ExitCodes) -> ExitCode {
        ExitCode::from(self.code(codes))
    }

    fn code(&self, codes: ExitCodes) -> u8 {
        match self {
            Self::ClosedPipe => 141,
            Self::Usage(_) => codes.usage(),
            _ if codes != ExitCodes::Holder => 1,
            Self::NotAcquired(_) => 120,
            Self::Interrupted(_) => 122,
            Self::Unreachable(_) => 123,
            Self::Failed(_) | Self::InConsulsWords(_) => 124,
            Self::NotStarted { error, .. } if error.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::NotStarted { .. } => CANNOT_EXECUTE,
        }
    }
}

impl ExitCodes {
    /// The exit code for invalid arguments.
    pub fn usage(self) -> u8 {
        match self {
            Self::Plain => 2,
            Self::Holder => 125,
            Self::Consul => 1,
        }
    }

    /// The exit code if what was held is lost.
    pub fn lost(self) -> u8 {
        match self {
            Self::Holder => 121,
            Self::Plain | Self::Consul => 1,
        }
    }
}

impl From<io::Error> for CliError {
    /// For our own standard streams. The error of a file is reported with the name of the file.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<lockmesh_client::Error> for CliError {
    fn from(error: lockmesh_client::Error) -> Self {
        match error {
            // Found before anything was sent.
            lockmesh_client::Error::Settings(text) => Self::Usage(text),
            // The name that the commands take.
            lockmesh_client::Error::Conflict { key, reason } => {
                let key = key.strip_suffix("/.lock").map(str::to_owned).unwrap_or(key);
                Self::Failed(lockmesh_client::Error::Conflict { key, reason }.to_string())
            }
            lockmesh_client::Error::Refused { status: 401, text } if text == "ACL support disabled" => {
                Self::failed(
                    "access control is off (401: ACL support disabled); turn it on with `lockmesh operator acl --mode log`",
                )
            }
            lockmesh_client::Error::Refused { status: 403, text } if text == "ACL not found" => Self::failed(
                "no token has this secret, or it has ended (403: ACL not found); send another one",
            ),
            other if other.is_transient() => Self::Unreachable(other.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<MigrateError> for CliError {
    fn from(error: MigrateError) -> Self {
        let text = error.to_string();
        match error {
            MigrateError::Usage(_) => Self::Usage(text),
            MigrateError::Failed(_) => Self::Failed(text),
            MigrateError::Unreachable(_) => Self::Unreachable(text),
            MigrateError::Interrupted => Self::Interrupted(text),
            MigrateError::Client(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_errors_have_distinct_codes() {
        let not_started = |kind| CliError::NotStarted { name: "x".into(), error: io::Error::from(kind) };
        let text = String::new;
        for (error, plain, holder) in [
            (CliError::NotAcquired(text()), 1, 120),
            (CliError::Interrupted(text()), 1, 122),
            (CliError::Unreachable(text()), 1, 123),
            (CliError::Failed(text()), 1, 124),
            (CliError::InConsulsWords(text()), 1, 124),
            (CliError::Usage(text()), 2, 125),
            (not_started(io::ErrorKind::PermissionDenied), 1, 126),
            (not_started(io::ErrorKind::NotFound), 1, 127),
            (CliError::ClosedPipe, 141, 141),
        ] {
            assert_eq!((error.code(ExitCodes::Plain), error.code(ExitCodes::Holder)), (plain, holder));
            assert_eq!(error.code(ExitCodes::Consul), if holder == 141 { 141 } else { 1 });
            let line = format!("  {holder}  ");
            assert!(holder == 141 || HOLDER_EXIT_CODES.contains(&line), "{holder} is in the help");
            assert!(ELECT_EXIT_CODES.contains(&line), "{holder} is in the help of elect");
        }
    }
}
