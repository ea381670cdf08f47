//! Why a command failed, and the exit status that says so.

use std::fmt;

use silt_format::{Error, ErrorKind};

/// Why a command failed.
pub enum Failure {
    /// The command line makes no sense.
    Usage(String),
    /// Something went wrong.
    Error(Error),
}

impl Failure {
    /// What the exit status says; `silt --help` lists them.
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            Self::Error(error) => error.fmt(f),
        }
    }
}
