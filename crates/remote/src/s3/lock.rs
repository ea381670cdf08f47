//! S3 Object Lock: objects that nobody can delete or overwrite before a date.

use base64::prelude::{BASE64_STANDARD, Engine};
use http::Method;
use jiff::Timestamp;
use silt_format::{Error, ErrorKind, Result, ResultExt};
use silt_storage::Key;
use tokio::task::JoinSet;

use super::S3Storage;
use super::request::Signed;
use super::versions::Version;
use crate::object_lock::{Lock, after_days, now};

/// Names the request headers that lock what is put.
const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";

/// The result of extending locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Number of objects examined.
    pub objects: u64,
    /// Versions whose lock ends later now.
    pub extended: u64,
    /// Objects that somebody has written again: nothing of a repository does but healing.
    pub overwritten: u64,
}

/// The versions of an object that are kept: the newest and the oldest, which is what was stored
/// first. What somebody has put over it may be a forgery, and what was there first may be damaged
/// and healed since.
struct Kept {
    newest: Version,
    oldest: Option<Version>,
}

/// How many objects are looked at side by side.
const SIDE_BY_SIDE: usize = 16;

impl S3Storage {
    /// How new objects are locked, if they are.
    pub fn lock(&self) -> Option<Lock> {
        self.lock
    }

    /// Extends the locks of all objects that `wanted` selects, to the date of new locks. A lock
    /// that has lost less than a quarter of its time is not changed. Reports each examined object
    /// to `progress`.
    pub fn extend_locks(
        &self,
        wanted: impl Fn(&Key) -> bool,
        progress: impl FnMut(u64) -> Result<()>,
    ) -> Result<Extended> {
        let Some(lock) = self.lock else { return Ok(Extended::default()) };
        let enough = after_days(now(), lock.days - lock.days / 4);
        let (report, running) = (Extended::default(), JoinSet::new());
        let mut extending = Extending { storage: self, lock, enough, running, report, progress };
        let mut open: Option<Kept> = None;
        self.each_version(|version| {
            match &mut open {
                Some(kept) if kept.newest.key == version.key => kept.oldest = Some(version),
                _ => {
                    let next = Kept { newest: version, oldest: None };
                    if let Some(kept) = open.replace(next).filter(|kept| wanted(&kept.newest.key)) {
                        extending.object(kept)?;
                    }
                }
            }
            Ok(())
        })?;
        if let Some(kept) = open.filter(|kept| wanted(&kept.newest.key)) {
            extending.object(kept)?;
        }
        while !extending.running.is_empty() {
            extending.end_one()?;
        }
        Ok(extending.report)
    }
}

/// Locks that are being extended side by side.
struct Extending<'s, P> {
    storage: &'s S3Storage,
    lock: Lock,
    enough: Timestamp,
    running: JoinSet<Result<bool>>,
    report: Extended,
    progress: P,
}

impl<P: FnMut(u64) -> Result<()>> Extending<'_, P> {
    fn object(&mut self, kept: Kept) -> Result<()> {
        if kept.newest.content.is_none() {
            // It was deleted: by a reclaim, or a check says that it is missing.
            return Ok(());
        }
        self.report.objects += 1;
        let oldest = kept.oldest.filter(|oldest| oldest.content.is_some());
        self.report.overwritten += u64::from(oldest.is_some());
        for version in std::iter::once(kept.newest).chain(oldest) {
            while self.running.len() >= SIDE_BY_SIDE {
                self.end_one()?;
            }
            let folder = &self.storage.folder;
            folder.counters.head();
            let name = format!("{}{}", folder.prefix, version.key);
            let task = Task { signer: self.storage.signer()?.clone(), name, version: version.id };
            let (lock, enough, tries) = (self.lock, self.enough, folder.tries);
            self.running.spawn_on(extend(task, lock, enough, tries), folder.runtime().handle());
        }
        (self.progress)(self.report.objects)
    }

    fn end_one(&mut self) -> Result<()> {
        let folder = &self.storage.folder;
        let Some(ended) = folder.runtime().block_on(self.running.join_next()) else {
            return Ok(());
        };
        if ended.map_err(|error| Error::invalid(format!("a lock: {error}")))?? {
            folder.counters.put(0);
            self.report.extended += 1;
        }
        Ok(())
    }
}

/// One version of one object.
struct Task {
    signer: Signed,
    name: String,
    version: String,
}

/// Whether the version's lock had to be extended.
async fn extend(task: Task, lock: Lock, enough: Timestamp, tries: u32) -> Result<bool> {
    let mut failed = 0;
    loop {
        match extend_once(&task, lock, enough).await {
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Unavailable && failed + 1 < tries => {
                failed += 1;
                tokio::time::sleep(crate::object_folder::FIRST_WAIT * failed).await;
            }
            other => return other.context(|| format!("extend the lock of {}", task.name)),
        }
    }
}

async fn extend_once(task: &Task, lock: Lock, enough: Timestamp) -> Result<bool> {
    let Task { signer, name, version } = task;
    let of_version = [("versionId", version.as_str())];
    let found = signer.send(Method::HEAD, name, &of_version, &[], Vec::new()).await?;
    if locked_until(&found.headers).is_some_and(|until| until >= enough) {
        return Ok(false);
    }
    let body = format!(
        "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{}</Mode>\
         <RetainUntilDate>{}</RetainUntilDate></Retention>",
        lock.mode.name(),
        lock.until()
    );
    let digest = ring::digest::digest(&ring::digest::SHA256, body.as_bytes());
    let headers = [("x-amz-checksum-sha256", BASE64_STANDARD.encode(digest))];
    let query = [("retention", ""), of_version[0]];
    signer.send(Method::PUT, name, &query, &headers, body.into_bytes()).await?;
    Ok(true)
}

/// The headers that lock an object.
pub(crate) fn headers(lock: Option<Lock>) -> Vec<(&'static str, String)> {
    lock.map_or_else(Vec::new, |lock| {
        vec![(MODE, lock.mode.name().to_owned()), (UNTIL, lock.until().to_string())]
    })
}

/// The date until which an object is locked, from the headers of a look at it.
pub(crate) fn locked_until(headers: &http::HeaderMap) -> Option<Timestamp> {
    headers.get(UNTIL)?.to_str().ok()?.parse().ok()
}
