//! What the errors of stores and of their clients mean.

use silt_format::{Error, ErrorKind};

/// In what words servers, and the client for them, say that a range lies outside of an object.
const OUTSIDE: [&str; 4] = ["status code: 416", "InvalidRange", "CONTENT_RANGE", "Wanted range"];

/// In what words servers say, with status 400, that a body came too slowly or broken: it is sent
/// again.
pub(crate) const AGAIN: [&str; 3] = ["RequestTimeout<", "IncompleteBody", "BadDigest"];

/// In what words servers say that there is no such bucket.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// Where the client asks for credentials when nobody has given it any.
const NO_CREDENTIALS: [&str; 3] =
    ["169.254.169.254", "metadata.google.internal", "metadata/identity/oauth2"];

/// In what words servers refuse, where the client does not parse it.
const REFUSED: [&str; 3] = ["status code: 401", "status code: 403", "AccessDenied"];

/// Says what an error of one store's client means, if only that client has errors of its kind.
pub type KindOf = fn(&object_store::Error) -> Option<ErrorKind>;

/// A client's error as this program's own: `what` was done in `location`.
pub(crate) fn failed(
    location: &str,
    what: &str,
    error: &object_store::Error,
    kind_of: KindOf,
) -> Error {
    if let Some(kind) = kind_of(error) {
        return Error::new(kind, format!("{what} in {location}: {}", short(&error.to_string())));
    }
    use object_store::Error as Cause;

    let text = error.to_string();
    if NO_BUCKET.iter().any(|words| text.contains(words)) {
        let message = format!("{what}: there is no such bucket in {}", location);
        return Error::new(ErrorKind::NoRepository, message);
    }
    // Where the client asks for credentials that nobody has given it.
    if NO_CREDENTIALS.iter().any(|words| text.contains(words)) {
        let message =
            format!("{what} in {}: there are no credentials; {}", location, credentials(location));
        return Error::new(ErrorKind::Denied, message);
    }
    if text.contains("ObjectLockConfiguration") {
        let message = format!(
            "{what}: the bucket of {} has no Object Lock; make one that has, or unset \
                 SILT_S3_LOCK",
            location
        );
        return Error::new(ErrorKind::Unsupported, message);
    }
    let kind = match error {
        Cause::NotFound { .. } => ErrorKind::NotFound,
        Cause::AlreadyExists { .. } | Cause::Precondition { .. } => ErrorKind::AlreadyExists,
        Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. } => ErrorKind::Denied,
        Cause::NotSupported { .. } | Cause::NotImplemented { .. } => ErrorKind::Unsupported,
        Cause::InvalidPath { .. } => ErrorKind::Invalid,
        // Not every request of the client's parses these.
        _ if REFUSED.iter().any(|words| text.contains(words)) => ErrorKind::Denied,
        _ if AGAIN.iter().any(|words| text.contains(words)) => ErrorKind::Unavailable,
        _ if text.contains("status code: 400") => ErrorKind::Unsupported,
        // A range outside of the object.
        _ if OUTSIDE.iter().any(|words| text.contains(words)) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{what} in {}: {}", location, short(&text)))
}

/// How a store at a location is given credentials.
fn credentials(location: &str) -> &'static str {
    match location.split_once("://") {
        Some(("az", _)) => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Some(("gs", _)) => "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
        _ => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile",
    }
}

/// What a client's error says, once: it repeats itself, and shows whole answers of servers.
fn short(text: &str) -> &str {
    let line = text.lines().next().unwrap_or(text);
    let line = line.split(": Error performing").take(2).last().unwrap_or(line);
    &line[..line.floor_char_boundary(400)]
}
