//! Large objects, uploaded in parts: each is held alone, has a time limit of its own, and is
//! repeated by itself.

use bytes::Bytes;
use http::Method;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{Key, PutMode};

use super::{S3Storage, lock};
use crate::parts::{PART_BYTES, Parts};

/// Objects that are larger are uploaded in parts.
pub(crate) const WHOLE_BYTES_MAX: usize = 2 * PART_BYTES;

impl S3Storage {
    /// Creates a large object; all of it appears with the last request, unless one of its name is
    /// there.
    pub(crate) fn put_in_parts(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        let name = format!("{}{key}", self.folder.prefix);
        let mut headers = lock::headers(self.lock.filter(|_| mode == PutMode::Create));
        headers.extend(
            self.settings.storage_class(key).map(|class| ("x-amz-storage-class", class.to_owned())),
        );
        self.folder.counters.put(0);
        let begun = self.signed(&Method::POST, &name, &[("uploads", "")], &headers, &[])?;
        let upload = begun.tag("UploadId").ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{name}: no upload began"))
        })?;
        let done = self.upload_parts(&name, upload, body);
        let done = done.and_then(|parts| self.complete(key, &name, upload, &parts, body));
        if done.is_err() {
            self.folder.counters.delete();
            let query = [("uploadId", upload)];
            // What is left of it is no object, and goes with the store's rule for such remains.
            let _ = self.signed(&Method::DELETE, &name, &query, &[], &[]);
        }
        done
    }

    /// The parts' tags, in their order.
    fn upload_parts(&self, name: &str, upload: &str, body: &[Bytes]) -> Result<Vec<String>> {
        let mut tags = Vec::new();
        for (number, part) in (1_u32..).zip(Parts::new(body)) {
            let number = number.to_string();
            let query = [("partNumber", number.as_str()), ("uploadId", upload)];
            self.folder.counters.put(part.len());
            let answer = self.signed(&Method::PUT, name, &query, &[], &part)?;
            let tag = answer.headers.get("etag").and_then(|tag| tag.to_str().ok());
            let lacks = || Error::new(ErrorKind::Unavailable, format!("{name}: a part has no tag"));
            tags.push(tag.ok_or_else(lacks)?.to_owned());
        }
        Ok(tags)
    }

    fn complete(
        &self,
        key: &Key,
        name: &str,
        upload: &str,
        tags: &[String],
        body: &[Bytes],
    ) -> Result<()> {
        let mut text = String::from("<CompleteMultipartUpload>");
        for (number, tag) in (1_u32..).zip(tags) {
            let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
            text.push_str(&part);
        }
        text.push_str("</CompleteMultipartUpload>");
        let headers = [("if-none-match", "*".to_owned())];
        self.folder.counters.put(0);
        let query = [("uploadId", upload)];
        match self.signed(&Method::POST, name, &query, &headers, text.as_bytes()) {
            Ok(_) => Ok(()),
            // An earlier try may have come through although its answer did not; the upload is gone
            // then.
            Err(error)
                if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) =>
            {
                Err(error)
            }
            _ if self.folder.is_ours(key, body) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message = format!("object {key} already exists in {}", self.folder.location);
                Err(Error::new(ErrorKind::AlreadyExists, message))
            }
            Err(error) => Err(Error::new(ErrorKind::Unavailable, error.to_string())),
        }
    }
}
