//! The error that every Siltstone library crate returns.

use std::error::Error as StdError;
use std::fmt;

use crate::advice::Advice;

/// The kind of an [`Error`], by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The named object, snapshot, series or file does not exist.
    NotFound,
    /// Create-if-absent found an existing object.
    AlreadyExists,
    /// Another process committed first; reading again and retrying may succeed.
    Conflict,
    /// Stored bytes are not the ones that were written: damage.
    Corrupt,
    /// An I/O error, a full disk, a lost connection; trying again may help.
    Unavailable,
    /// Permission is missing.
    Denied,
    /// The request is invalid; repeating it will not help.
    Invalid,
    /// Written by a newer program, or a feature this build does not have.
    Unsupported,
    /// Another backup of the same series is running.
    Busy,
    /// The password opens none of the repository's keys.
    WrongPassword,
    /// There is no repository at this place.
    NoRepository,
    /// The user asked to stop.
    Interrupted,
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: its kind, the operation, its object, and the cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    context: Vec<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    advice: Option<Advice>,
}

impl Error {
    /// Returns an error of `kind`; `message` describes the failure and names the object.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (context, source, advice) = (Vec::new(), None, None);
        Self(Box::new(Inner { kind, message: message.into(), context, source, advice }))
    }

    /// Stored bytes that are not the ones that were written.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// An invalid request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Returns an I/O error in `operation`, which names the object. Its kind is derived from
    /// `source`.
    pub fn io(operation: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
            Io::InvalidInput => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, operation).with_source(source)
    }

    /// Returns the error with another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Returns the error with advice for the user.
    #[must_use]
    pub fn with_advice(mut self, advice: Advice) -> Self {
        self.0.advice = Some(advice);
        self
    }

    /// Returns the error with `source` as its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns the error with the operation in which it occurred (outermost last).
    #[must_use]
    pub fn context(mut self, operation: impl Into<String>) -> Self {
        self.0.context.push(operation.into());
        self
    }

    /// The cause. `Display` shows it, so it is not also returned as `source`.
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }

    /// Advice for the user, if there is any; not part of the message.
    pub fn advice(&self) -> Option<&Advice> {
        self.0.advice.as_ref()
    }

    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in self.0.context.iter().rev() {
            write!(f, "{context}: ")?;
        }
        f.write_str(&self.0.message)?;
        let mut cause: Option<&(dyn StdError + 'static)> = match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        };
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {}

/// Adds the operation to a failed result.
pub trait ResultExt<T> {
    /// Adds the operation; the closure runs only on failure.
    fn context<S: Into<String>>(self, operation: impl FnOnce() -> S) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn context<S: Into<String>>(self, operation: impl FnOnce() -> S) -> Self {
        self.map_err(|error| error.context(operation()))
    }
}
