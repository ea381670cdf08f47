//! Versions of objects: finds the state at a given time, and restores it.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use silt_format::{Error, Result};
use silt_storage::Key;

use super::S3Storage;
use super::lock;
use super::request::KEPT_IN_PATHS;

/// One version of an object, or the marker of its deletion.
#[derive(Clone, Debug)]
pub struct Version {
    /// The object.
    pub key: Key,
    /// The store's name of the version.
    pub id: String,
    /// When it was made.
    pub modified: Timestamp,
    /// Identifies the content; `None` for a delete marker.
    pub content: Option<(String, u64)>,
}

/// The changes that restore a repository to its state at a given time.
#[derive(Clone, Debug, Default)]
pub struct Rollback {
    /// Versions that were deleted or overwritten since: they become the current ones again.
    pub restored: Vec<Version>,
    /// Newer objects that take precedence over older ones. They are deleted; their versions stay.
    pub hidden: Vec<Key>,
}

impl Rollback {
    /// Computes the changes. `versions` holds the versions of each object, newest first; `is_above`
    /// says which newer objects take precedence over older objects of other names.
    pub fn plan(versions: &[Version], at: Timestamp, is_above: impl Fn(&Key) -> bool) -> Self {
        let mut by_key: BTreeMap<&Key, Vec<&Version>> = BTreeMap::new();
        for version in versions {
            by_key.entry(&version.key).or_default().push(version);
        }
        let mut plan = Self::default();
        for (key, versions) in by_key {
            let now = versions.first().and_then(|version| version.content.as_ref());
            let then = versions.iter().find(|version| version.modified <= at);
            match then.filter(|version| version.content.is_some()) {
                Some(then) if then.content.as_ref() != now => plan.restored.push((*then).clone()),
                None if now.is_some() && is_above(key) => plan.hidden.push(key.clone()),
                _ => {}
            }
        }
        plan
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListVersions {
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_version_id_marker: Option<String>,
    #[serde(default, rename = "$value")]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
enum Entry {
    Version(Listed),
    DeleteMarker(Listed),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    version_id: String,
    last_modified: Timestamp,
    #[serde(rename = "ETag")]
    etag: Option<String>,
    size: Option<u64>,
}

impl S3Storage {
    /// Returns every version of every object; the versions of an object newest first.
    pub fn versions(&self) -> Result<Vec<Version>> {
        let mut found = Vec::new();
        self.each_version(|version| {
            found.push(version);
            Ok(())
        })?;
        Ok(found)
    }

    /// The same, one after the other.
    pub(super) fn each_version(&self, mut each: impl FnMut(Version) -> Result<()>) -> Result<()> {
        let (mut key, mut id) = (String::new(), String::new());
        loop {
            let mut query = vec![("prefix", self.folder.prefix.as_str()), ("versions", "")];
            if !key.is_empty() {
                query.extend([("key-marker", key.as_str()), ("version-id-marker", id.as_str())]);
            }
            query.sort_unstable();
            self.folder.counters.list();
            let answer = self.signed(&Method::GET, "", &query, &[], &[])?;
            let strange = |error: &dyn std::fmt::Display| {
                Error::corrupt(format!("the versions of {}: {error}", self.folder.location))
            };
            let text = std::str::from_utf8(&answer.body).map_err(|error| strange(&error))?;
            let page: ListVersions =
                quick_xml::de::from_str(text).map_err(|error| strange(&error))?;
            for entry in page.entries {
                let (listed, is_marker) = match entry {
                    Entry::Version(listed) => (listed, false),
                    Entry::DeleteMarker(listed) => (listed, true),
                    Entry::Other => continue,
                };
                let Listed { key, version_id, last_modified, etag, size } = listed;
                let name = key.strip_prefix(&self.folder.prefix);
                // What is no name of ours is not ours.
                let Some(Ok(key)) = name.map(Key::new) else { continue };
                let content = etag.zip(size).filter(|_| !is_marker);
                each(Version { key, id: version_id, modified: last_modified, content })?;
            }
            match (page.is_truncated, page.next_key_marker) {
                (true, Some(next)) => key = next,
                _ => break,
            }
            id = page.next_version_id_marker.unwrap_or_default();
        }
        Ok(())
    }

    /// Makes an older version the current one again.
    pub fn restore_version(&self, version: &Version) -> Result<()> {
        let name = format!("{}{}", self.folder.prefix, version.key);
        let path = format!("{}/{name}", self.bucket);
        let path = utf8_percent_encode(&path, &KEPT_IN_PATHS);
        let source = format!("{path}?versionId={}", version.id);
        let mut headers = lock::headers(self.lock);
        headers.push(("x-amz-copy-source", source));
        if let Some(class) = self.settings.storage_class(&version.key) {
            headers.push(("x-amz-storage-class", class.to_owned()));
        }
        self.folder.counters.put(0);
        self.signed(&Method::PUT, &name, &[], &headers, &[]).map(drop)
    }
}
