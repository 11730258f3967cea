//! Why a command failed, and with which exit code the process says so.
//!
//! A text says what to do next. Nothing here prints; that is done once, in [`super::report`].

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The request cannot be understood; nothing was tried. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// It was tried and did not work, or was refused. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The same, in the words that Consul's users and scripts know; said without our name. Exit
    /// code 1.
    #[error("{0}")]
    InConsulsWords(String),
    /// Whoever read our output went away; there is nobody to tell. Exit code 141, as for any
    /// program in a pipe.
    #[error("the reader of the output went away")]
    ClosedPipe,
}

impl CliError {
    /// A request that cannot be understood.
    pub fn usage(text: impl Display) -> Self {
        Self::Usage(text.to_string())
    }

    /// Something that did not work, in words for the person at the keyboard.
    pub fn failed(text: impl Display) -> Self {
        Self::Failed(text.to_string())
    }

    /// Something that did not work, in the words of `consul`.
    pub fn in_consuls_words<T: Into<String>>(text: T) -> Self {
        Self::InConsulsWords(text.into())
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::InConsulsWords(_) => ExitCode::from(1),
            Self::ClosedPipe => ExitCode::from(141),
        }
    }
}

impl From<io::Error> for CliError {
    /// For reading and writing our own standard streams; a file's error is told with the file's
    /// name instead.
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
            other => Self::Failed(other.to_string()),
        }
    }
}
