//! S3 Object Lock: objects that nobody can delete or overwrite before a date.

use base64::prelude::{BASE64_STANDARD, Engine};
use http::Method;
use jiff::{SignedDuration, Timestamp, Unit};
use silt_format::{Error, ErrorKind, Result, ResultExt};
use silt_storage::Key;
use tokio::task::JoinSet;

use super::S3Storage;
use super::request::Signed;

/// Names the request headers that lock what is put.
const MODE: &str = "x-amz-object-lock-mode";
const UNTIL: &str = "x-amz-object-lock-retain-until-date";

/// Who may lift a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMode {
    /// Whoever has the right `s3:BypassGovernanceRetention`.
    #[default]
    Governance,
    /// Nobody, not even the owner of the account.
    Compliance,
}

impl LockMode {
    /// As the store calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Governance => "GOVERNANCE",
            Self::Compliance => "COMPLIANCE",
        }
    }
}

/// How new objects are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who may lift it.
    pub mode: LockMode,
    /// For how long.
    pub days: u32,
}

impl Lock {
    /// The date until which what is locked now stays, in seconds.
    pub(crate) fn until(self) -> Timestamp {
        after_days(now(), self.days)
    }
}

/// The wall clock: dates of locks are the store's, and it compares them with its own.
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn after_days(time: Timestamp, days: u32) -> Timestamp {
    let later = time.saturating_add(SignedDuration::from_hours(24 * i64::from(days)));
    let later = later.unwrap_or(Timestamp::MAX);
    later.round(Unit::Second).unwrap_or(later)
}

/// What extending locks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Objects looked at.
    pub objects: u64,
    /// Those whose lock ends later now.
    pub extended: u64,
}

/// How many objects are looked at side by side.
const SIDE_BY_SIDE: usize = 16;

impl S3Storage {
    /// How new objects are locked, if they are.
    pub fn lock(&self) -> Option<Lock> {
        self.lock
    }

    /// Lets the locks of all objects that `wanted` chooses end no sooner than those of new ones; a lock
    /// that has lost less than a quarter of its time is left as it is. `progress` hears what was looked at.
    pub fn extend_locks(
        &self,
        wanted: impl Fn(&Key) -> bool,
        mut progress: impl FnMut(u64) -> Result<()>,
    ) -> Result<Extended> {
        let Some(lock) = self.lock else { return Ok(Extended::default()) };
        let (signer, runtime) = (self.signer()?, &self.base.runtime);
        let enough = after_days(now(), lock.days - lock.days / 4);
        let mut report = Extended::default();
        let mut names = silt_storage::list_all(self, "", None);
        let mut running = JoinSet::new();
        loop {
            while running.len() < SIDE_BY_SIDE {
                let Some(item) = names.next() else { break };
                let (key, _) = item?;
                if wanted(&key) {
                    let name = format!("{}{key}", self.base.prefix);
                    self.base.counters.head();
                    let (signer, tries) = (signer.clone(), self.base.tries);
                    running.spawn_on(extend(signer, name, lock, enough, tries), runtime.handle());
                }
            }
            let Some(ended) = runtime.block_on(running.join_next()) else { return Ok(report) };
            let extended = ended.map_err(|error| Error::invalid(format!("a lock: {error}")))??;
            report.objects += 1;
            if extended {
                self.base.counters.put(0);
                report.extended += 1;
            }
            progress(report.objects)?;
        }
    }
}

/// Whether the object's lock had to be extended.
async fn extend(
    signer: Signed,
    name: String,
    lock: Lock,
    enough: Timestamp,
    tries: u32,
) -> Result<bool> {
    let mut failed = 0;
    loop {
        match extend_once(&signer, &name, lock, enough).await {
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Unavailable && failed + 1 < tries => {
                failed += 1;
                tokio::time::sleep(crate::base::FIRST_WAIT * failed).await;
            }
            other => return other.context(|| format!("extend the lock of {name}")),
        }
    }
}

async fn extend_once(signer: &Signed, name: &str, lock: Lock, enough: Timestamp) -> Result<bool> {
    let found = signer.send(Method::HEAD, name, &[], &[], Vec::new()).await?;
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
    signer.send(Method::PUT, name, &[("retention", "")], &headers, body.into_bytes()).await?;
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
