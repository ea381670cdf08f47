//! Failures of commands, and their exit statuses.

use std::fmt;

use silt_format::{Error, ErrorKind};

use crate::advice::with_advice;

/// Why a command failed.
pub enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// An operation failed.
    Error(Error),
}

impl Failure {
    /// The exit status; `silt --help` lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Error(error) => exit_code(error),
        }
    }
}

/// The exit status of a command that fails with `error`.
pub fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Corrupt => 5,
        ErrorKind::NoRepository => 10,
        ErrorKind::Busy => 11,
        ErrorKind::WrongPassword => 12,
        ErrorKind::Denied => 13,
        ErrorKind::Interrupted => 130,
        _ => 1,
    }
}

/// The name of an error's kind in messages of `--json`.
pub fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Denied => "denied",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Busy => "busy",
        ErrorKind::WrongPassword => "wrong_password",
        ErrorKind::NoRepository => "no_repository",
        ErrorKind::Interrupted => "interrupted",
        _ => "unavailable",
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            Self::Error(error) => f.write_str(&with_advice(&error.to_string(), error.advice())),
        }
    }
}
