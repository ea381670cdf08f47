//! Maps errors of clients to error kinds.
//!
//! The first of these rules that applies decides the kind: the rule of the store's own client, the
//! error code in the response, the client's error type, the status of the response, and the texts
//! of [`WORDS`].

use object_store::Error as Cause;
use silt_format::{Advice, Error, ErrorKind};

use crate::refusal::Refusal;
use crate::witness::Outcome;

/// Returns the kind of an error that only one store's client has; `None` for all other errors.
pub type KindOf = fn(&Cause) -> Option<ErrorKind>;

/// Maximum length in bytes of a message that is passed on.
const MESSAGE_BYTES_MAX: usize = 400;

/// Texts of client errors that have no type of their own: the range of the response differs from
/// the requested one (the object is shorter, or empty), and a deletion was denied, which S3 reports
/// for each object in the body of the response (`DeleteObjects`).
pub(crate) const WORDS: [(&str, ErrorKind); 3] = [
    ("Failed to parse value for CONTENT_RANGE header", ErrorKind::Invalid),
    ("Wanted range starting at", ErrorKind::Invalid),
    ("(code: AccessDenied)", ErrorKind::Denied),
];

/// An error of a client, and how the request ended that led to it.
#[derive(Debug)]
pub struct Failure {
    error: Cause,
    outcome: Outcome,
}

impl Failure {
    pub(crate) fn new(error: Cause, outcome: Outcome) -> Self {
        Self { error, outcome }
    }

    /// Converts the failure to an [`Error`]: `what` was tried in `location`.
    pub(crate) fn told(&self, location: &str, what: &str, kind_of: KindOf) -> Error {
        let refusal = self.outcome.refusal.as_deref();
        if self.outcome.lacks_credentials {
            let message = format!("{what} in {location}: there are no credentials");
            return Error::new(ErrorKind::Denied, message).with_advice(credentials(location));
        }
        if refusal.is_some_and(Refusal::has_no_locks) {
            let message = format!("{what}: the bucket of {location} has no Object Lock");
            return Error::new(ErrorKind::Unsupported, message)
                .with_advice(Advice::UseBucketWithLocks);
        }
        let kind = self.kind(kind_of);
        if kind == ErrorKind::NoRepository {
            return Error::new(kind, format!("{what}: there is no such bucket in {location}"));
        }
        let text = refusal.map_or_else(|| self.error.to_string(), Refusal::to_string);
        Error::new(kind, format!("{what} in {location}: {}", short(&text)))
    }

    fn kind(&self, kind_of: KindOf) -> ErrorKind {
        let refusal = self.outcome.refusal.as_deref();
        let kind = kind_of(&self.error)
            .or_else(|| refusal.and_then(Refusal::kind_of_code))
            .or_else(|| kind_of_type(&self.error))
            .or_else(|| refusal.and_then(Refusal::kind_of_status))
            .or_else(|| kind_of_words(&self.error.to_string()));
        // Whatever is not known may be otherwise at the next try.
        kind.unwrap_or(ErrorKind::Unavailable)
    }
}

fn kind_of_type(error: &Cause) -> Option<ErrorKind> {
    Some(match error {
        Cause::NotFound { .. } => ErrorKind::NotFound,
        Cause::AlreadyExists { .. } | Cause::Precondition { .. } => ErrorKind::AlreadyExists,
        Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. } => ErrorKind::Denied,
        Cause::NotSupported { .. } | Cause::NotImplemented { .. } => ErrorKind::Unsupported,
        Cause::InvalidPath { .. } => ErrorKind::Invalid,
        _ => return None,
    })
}

fn kind_of_words(text: &str) -> Option<ErrorKind> {
    let found = WORDS.iter().find(|(words, _)| text.contains(words));
    found.map(|(_, kind)| *kind)
}

/// Returns the advice to provide credentials for a location.
fn credentials(location: &str) -> Advice {
    match location.split_once("://") {
        Some(("az", _)) => Advice::GiveAzureCredentials,
        Some(("gs", _)) => Advice::GiveGoogleCredentials,
        _ => Advice::GiveS3Credentials,
    }
}

/// Returns the first line of an error's text, shortened: clients repeat themselves, and include
/// whole responses.
fn short(text: &str) -> &str {
    let line = text.lines().next().unwrap_or(text);
    let line = line.split(": Error performing").take(2).last().unwrap_or(line);
    &line[..line.floor_char_boundary(MESSAGE_BYTES_MAX)]
}
