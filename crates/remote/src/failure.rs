//! What the errors of clients mean.
//!
//! An error has a kind by the first of these that tells one: the rule of the store's own client,
//! the error code in the answer, the type that the client gives the error, the answer's status, and
//! the few texts of [`WORDS`].

use object_store::Error as Cause;
use silt_format::{Error, ErrorKind};

use crate::refusal::Refusal;
use crate::witness::Outcome;

/// Says what an error of one store's client means, if only that client has errors of its kind.
pub type KindOf = fn(&Cause) -> Option<ErrorKind>;

/// Most bytes of a message that are passed on.
const MESSAGE_BYTES_MAX: usize = 400;

/// What the client says of an answer of success without a type of its own for it: that the range it
/// asked for is not that of the object, where that ends before the range or is empty, and that an
/// object must not be deleted, which S3 says for each object in the body (`DeleteObjects`).
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

    /// The same as this program's own error: `what` was done in `location`.
    pub(crate) fn told(&self, location: &str, what: &str, kind_of: KindOf) -> Error {
        let refusal = self.outcome.refusal.as_deref();
        if self.outcome.lacks_credentials {
            let hint = credentials(location);
            let message = format!("{what} in {location}: there are no credentials; {hint}");
            return Error::new(ErrorKind::Denied, message);
        }
        if refusal.is_some_and(Refusal::has_no_locks) {
            let message = format!(
                "{what}: the bucket of {location} has no Object Lock; make one that has, or unset \
                 SILT_S3_LOCK"
            );
            return Error::new(ErrorKind::Unsupported, message);
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

/// How a store at a location is given credentials.
fn credentials(location: &str) -> &'static str {
    match location.split_once("://") {
        Some(("az", _)) => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Some(("gs", _)) => "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
        _ => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile",
    }
}

/// What an error says, once: the client's repeat themselves, and show whole answers of servers.
fn short(text: &str) -> &str {
    let line = text.lines().next().unwrap_or(text);
    let line = line.split(": Error performing").take(2).last().unwrap_or(line);
    &line[..line.floor_char_boundary(MESSAGE_BYTES_MAX)]
}
