//! Large objects, uploaded in parts: each is held alone, has a time limit of its own, and is repeated by
//! itself.

use http::Method;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{ByteRange, Key, PutMode, Storage};

use crate::{S3Storage, lock};

/// Bytes of a part but the last; stores take none below 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// Objects that are larger are uploaded in parts.
pub(crate) const WHOLE_BYTES_MAX: usize = 2 * PART_BYTES;

/// The body's bytes in parts, of which one is held at a time.
struct Parts<'a> {
    pieces: &'a [&'a [u8]],
    /// Where the next part begins: in which piece, and where in it.
    piece: usize,
    at: usize,
}

impl<'a> Parts<'a> {
    fn new(pieces: &'a [&'a [u8]]) -> Self {
        Self { pieces, piece: 0, at: 0 }
    }
}

impl Iterator for Parts<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut part = Vec::new();
        while let Some(piece) = self.pieces.get(self.piece) {
            let rest = &piece[self.at..];
            let taken = rest.len().min(PART_BYTES - part.len());
            part.extend_from_slice(&rest[..taken]);
            if taken < rest.len() {
                self.at += taken;
                break;
            }
            (self.piece, self.at) = (self.piece + 1, 0);
        }
        (!part.is_empty()).then_some(part)
    }
}

impl S3Storage {
    /// Creates a large object; all of it appears with the last request, unless one of its name is there.
    pub(crate) fn put_in_parts(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        let name = format!("{}{key}", self.prefix);
        let mut headers = lock::headers(self.lock.filter(|_| mode == PutMode::Create));
        headers
            .extend(self.storage_class(key).map(|class| ("x-amz-storage-class", class.to_owned())));
        self.counters.put(0);
        let begun = self.signed(&Method::POST, &name, &[("uploads", "")], &headers, &[])?;
        let upload = begun.tag("UploadId").ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{name}: no upload began"))
        })?;
        let done = self.upload_parts(&name, upload, body);
        let done = done.and_then(|parts| self.complete(key, &name, upload, &parts, body));
        if done.is_err() {
            self.counters.delete();
            let query = [("uploadId", upload)];
            // What is left of it is no object, and goes with the store's rule for such remains.
            let _ = self.signed(&Method::DELETE, &name, &query, &[], &[]);
        }
        done
    }

    /// The parts' tags, in their order.
    fn upload_parts(&self, name: &str, upload: &str, body: &[&[u8]]) -> Result<Vec<String>> {
        let mut tags = Vec::new();
        for (number, part) in (1_u32..).zip(Parts::new(body)) {
            let number = number.to_string();
            let query = [("partNumber", number.as_str()), ("uploadId", upload)];
            self.counters.put(part.len());
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
        body: &[&[u8]],
    ) -> Result<()> {
        let mut text = String::from("<CompleteMultipartUpload>");
        for (number, tag) in (1_u32..).zip(tags) {
            let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
            text.push_str(&part);
        }
        text.push_str("</CompleteMultipartUpload>");
        let headers = [("if-none-match", "*".to_owned())];
        self.counters.put(0);
        let query = [("uploadId", upload)];
        match self.signed(&Method::POST, name, &query, &headers, text.as_bytes()) {
            // Some stores begin their answer before they know whether it succeeds.
            Ok(answer) if answer.tag("Code").is_none() => Ok(()),
            // An earlier try may have come through although its answer did not; the upload is gone then.
            Err(error)
                if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) =>
            {
                Err(error)
            }
            _ if self.is_ours(key, body) => Ok(()),
            Ok(answer) => {
                let message = String::from_utf8_lossy(&answer.body).into_owned();
                Err(Error::new(ErrorKind::Unavailable, format!("{name}: {message}")))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let message = format!("object {key} already exists in {}", self.location);
                Err(Error::new(ErrorKind::AlreadyExists, message))
            }
            Err(error) => Err(Error::new(ErrorKind::Unavailable, error.to_string())),
        }
    }

    /// Whether the object holds just these bytes: then it was this storage that created it, and the
    /// answer was lost.
    pub(crate) fn is_ours(&self, key: &Key, body: &[&[u8]]) -> bool {
        let length = body.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if !self.head(key).is_ok_and(|found| found.size == length) {
            return false;
        }
        let (mut offset, mut there) = (0, Vec::new());
        Parts::new(body).all(|part| {
            let range = ByteRange::Bounded { offset, length: part.len() as u64 };
            offset += part.len() as u64;
            self.get(key, range, &mut there).is_ok() && there == part
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_body() {
        let (one, other) = (vec![1; PART_BYTES - 3], vec![2; 2 * PART_BYTES]);
        let body: [&[u8]; 4] = [&one, &[], &other, &[3]];
        let parts: Vec<Vec<u8>> = Parts::new(&body).collect();
        let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(lengths, [PART_BYTES, PART_BYTES, PART_BYTES - 2]);
        assert!(parts.concat() == body.concat());
        assert_eq!(Parts::new(&[&[]]).count(), 0);
    }
}
