//! Error responses of stores, and the error kinds that they mean.

use http::StatusCode;
use serde::Deserialize;
use silt_format::ErrorKind;

/// Error codes that say more than the status they come with, in the documentation of S3 ("Error
/// responses"), which Google's XML interface shares, and of Azure ("Blob service error codes").
const CODES: [(&str, ErrorKind); 16] = [
    ("NoSuchBucket", ErrorKind::NoRepository),
    ("ContainerNotFound", ErrorKind::NoRepository),
    ("NoSuchKey", ErrorKind::NotFound),
    ("NoSuchUpload", ErrorKind::NotFound),
    ("PreconditionFailed", ErrorKind::AlreadyExists),
    ("AccessDenied", ErrorKind::Denied),
    // These two with status 400.
    ("ExpiredToken", ErrorKind::Denied),
    ("InvalidToken", ErrorKind::Denied),
    ("ObjectLockConfigurationNotFoundError", ErrorKind::Unsupported),
    ("InvalidRange", ErrorKind::Invalid),
    // With status 400, where a body came too slowly or broken: it is sent again.
    ("RequestTimeout", ErrorKind::Unavailable),
    ("IncompleteBody", ErrorKind::Unavailable),
    ("BadDigest", ErrorKind::Unavailable),
    // With status 409, where another request for the name is under way: who comes again finds out
    // how that ended.
    ("ConditionalRequestConflict", ErrorKind::Unavailable),
    ("OperationAborted", ErrorKind::Unavailable),
    ("ContainerBeingDeleted", ErrorKind::Unavailable),
];

/// Texts in messages about a bucket without Object Lock, of Amazon and of MinIO; their code,
/// `InvalidRequest`, also stands for other errors.
const NO_LOCKS: [&str; 2] = ["Object Lock Configuration", "ObjectLockConfiguration"];

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The store's code of the error; empty if there is none.
    pub(crate) code: String,
    pub(crate) message: String,
}

/// The body of an error response, in S3, Azure and Google's XML interface.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Body {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, body: &str) -> Self {
        // Azure begins its answers with a byte order mark.
        let parsed = quick_xml::de::from_str(body.trim_start_matches('\u{feff}'));
        let Body { code, message } = parsed.unwrap_or_default();
        Self { status, code, message }
    }

    /// Returns the error in a response whose status is success. S3 sends the status of some
    /// requests before it knows their result: to complete an upload and to copy an object (API
    /// Reference, `CompleteMultipartUpload`).
    pub(crate) fn hidden(status: StatusCode, body: &str) -> Option<Self> {
        let refusal = body.contains("<Error>").then(|| Self::new(status, body))?;
        (!refusal.code.is_empty()).then_some(refusal)
    }

    /// Whether the request asked for a lock, but the bucket has no Object Lock.
    pub(crate) fn has_no_locks(&self) -> bool {
        self.code == "ObjectLockConfigurationNotFoundError"
            || NO_LOCKS.iter().any(|words| self.message.contains(words))
    }

    /// The kind that the error code means, if it says more than the status.
    pub(crate) fn kind_of_code(&self) -> Option<ErrorKind> {
        let known = CODES.iter().find(|(code, _)| *code == self.code);
        known.map(|(_, kind)| *kind)
    }

    /// The kind that the status means; `None` if it says only that the request failed.
    pub(crate) fn kind_of_status(&self) -> Option<ErrorKind> {
        Some(match self.status.as_u16() {
            404 => ErrorKind::NotFound,
            401 | 403 => ErrorKind::Denied,
            409 | 412 => ErrorKind::AlreadyExists,
            416 => ErrorKind::Invalid,
            400 | 405 | 501 => ErrorKind::Unsupported,
            _ => return None,
        })
    }

    /// The kind of the error; `Unavailable` if code and status are unknown, because a retry may
    /// succeed.
    pub(crate) fn kind(&self) -> ErrorKind {
        let kind = self.kind_of_code().or_else(|| self.kind_of_status());
        kind.unwrap_or(ErrorKind::Unavailable)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = [self.code.as_str(), self.message.as_str()];
        write!(to, "{}", self.status)?;
        words.iter().filter(|words| !words.is_empty()).try_for_each(|words| write!(to, " {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> Refusal {
        Refusal::new(StatusCode::from_u16(status).unwrap(), body)
    }

    #[test]
    fn bodies_of_each_store_are_understood() {
        let s3 = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchBucket</Code>\
            <Message>a &amp; b</Message><BucketName>x</BucketName><RequestId>1</RequestId></Error>";
        let found = refusal(404, s3);
        assert_eq!((found.code.as_str(), found.message.as_str()), ("NoSuchBucket", "a & b"));
        assert_eq!(found.kind(), ErrorKind::NoRepository);
        assert_eq!(found.to_string(), "404 Not Found NoSuchBucket a & b");
        let azure = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error>\
            <Code>ContainerNotFound</Code><Message>none\nRequestId:1</Message></Error>";
        assert_eq!(refusal(404, azure).kind(), ErrorKind::NoRepository);
        // Others say what their status says.
        for body in ["", "{\"error\": \"x\"}", "<html>NoSuchBucket</html>", "<Error>", "\0"] {
            let found = refusal(404, body);
            assert_eq!((found.code.as_str(), found.kind()), ("", ErrorKind::NotFound), "{body}");
            assert_eq!(found.to_string(), "404 Not Found");
        }
    }

    #[test]
    fn codes_count_before_statuses_and_only_as_a_whole() {
        let of = |status, code: &str| {
            refusal(status, &format!("<Error><Code>{code}</Code></Error>")).kind()
        };
        assert_eq!(of(400, "RequestTimeout"), ErrorKind::Unavailable);
        assert_eq!(of(400, "RequestTimeTooSkewed"), ErrorKind::Unsupported);
        assert_eq!(of(400, "ExpiredToken"), ErrorKind::Denied);
        assert_eq!(of(403, "SignatureDoesNotMatch"), ErrorKind::Denied);
        assert_eq!(of(409, "BlobAlreadyExists"), ErrorKind::AlreadyExists);
        assert_eq!(of(409, "ConditionalRequestConflict"), ErrorKind::Unavailable);
        assert_eq!(of(416, "InvalidRange"), ErrorKind::Invalid);
        assert_eq!(of(501, "NotImplemented"), ErrorKind::Unsupported);
        assert_eq!(of(503, "SlowDown"), ErrorKind::Unavailable);
        assert_eq!(of(301, "PermanentRedirect"), ErrorKind::Unavailable);
    }

    #[test]
    fn a_failure_in_an_answer_of_success_is_found() {
        let hidden = |body: &str| Refusal::hidden(StatusCode::OK, body).map(|found| found.kind());
        let error = |code| format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code></Error>");
        assert_eq!(hidden(&error("InternalError")), Some(ErrorKind::Unavailable));
        assert_eq!(hidden(&error("NoSuchUpload")), Some(ErrorKind::NotFound));
        assert_eq!(hidden(&error("PreconditionFailed")), Some(ErrorKind::AlreadyExists));
        assert_eq!(hidden("<CompleteMultipartUploadResult/>"), None);
        assert_eq!(hidden(""), None);
    }

    #[test]
    fn a_bucket_without_locks_is_told_from_other_wrong_requests() {
        let of = |message: &str| {
            let message = format!("<Message>{message}</Message>");
            let body = format!("<Error><Code>InvalidRequest</Code>{message}</Error>");
            refusal(400, &body).has_no_locks()
        };
        assert!(of("Bucket is missing Object Lock Configuration"));
        assert!(of("Bucket is missing ObjectLockConfiguration"));
        assert!(!of("Missing required header for this request"));
    }
}
