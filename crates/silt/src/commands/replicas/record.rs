//! Records what a replica held after the last replication from this machine.
//!
//! A record only says how much there is to send. It protects nothing, and no replication reads it.
//! A record that is lost makes more snapshots seem to be missing at the replica, never fewer.

use std::collections::BTreeMap;
use std::io::{ErrorKind::NotFound, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use silt_format::replica::{KnownSnapshot, Origin};
use silt_format::{Error, ErrorKind, Id, RepositoryId};
use silt_replicate::{Outcome, ReplicateReport, SeriesKnown};
use silt_storage::durable;
use siltstone::Repository;

use super::settings::{ReplicaSettings, Target};
use crate::commands::{Failure, Session};
use crate::{noted, output};

/// Maximum size of a record in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What is known of a replica.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Record {
    pub to: String,
    pub prefix: String,
    /// Which snapshots the replica takes, if the profile does not say it.
    series: Vec<String>,
    tags: Vec<String>,
    newest: Option<u32>,
    /// The id of its repository.
    pub replica: Option<String>,
    pub last_attempt_ns: Option<i64>,
    /// The last time at which nothing was left to send.
    pub last_success_ns: Option<i64>,
    /// Why the last attempt did not send everything.
    pub error: Option<String>,
    /// What it holds of each series.
    known: BTreeMap<String, Vec<Known>>,
}

#[derive(Clone, Deserialize, Serialize)]
struct Known {
    repository: String,
    snapshot: String,
    time_ns: i64,
}

impl Known {
    fn new(known: &KnownSnapshot) -> Self {
        let Origin { repository, snapshot } = known.origin;
        let (repository, snapshot) = (repository.to_string(), snapshot.to_string());
        Self { repository, snapshot, time_ns: known.time_ns }
    }

    fn to_known(&self) -> Option<KnownSnapshot> {
        let repository = u128::from_str_radix(&self.repository, 16).ok()?;
        let repository = RepositoryId(repository.to_be_bytes());
        let origin = Origin { repository, snapshot: Id::from_hex(&self.snapshot)? };
        Some(KnownSnapshot { origin, time_ns: self.time_ns, is_deleted: false })
    }
}

impl Record {
    /// The record of a replica that was never replicated to.
    pub fn new(settings: &ReplicaSettings) -> Self {
        let (to, prefix) = (settings.to.clone(), settings.prefix.clone());
        Self { to, prefix, ..Self::default() }
    }

    /// Which snapshots the replica took at the last replication.
    pub fn settings(&self) -> ReplicaSettings {
        ReplicaSettings {
            to: self.to.clone(),
            prefix: self.prefix.clone(),
            series: self.series.clone(),
            tags: self.tags.clone(),
            newest: self.newest,
            ..ReplicaSettings::default()
        }
    }

    /// What the replica held. Entries that are not understood are left out.
    pub fn known(&self) -> Vec<SeriesKnown> {
        let known = self.known.iter();
        known
            .map(|(series, newest)| SeriesKnown {
                series: series.clone(),
                newest: newest.iter().filter_map(Known::to_known).collect(),
            })
            .collect()
    }

    fn note(&mut self, now_ns: i64, target: &Target, attempt: &Attempt<'_>) {
        self.last_attempt_ns = Some(now_ns);
        let settings = &target.settings;
        let had_all = self.replica.is_some() && self.series.is_empty();
        if settings.series.is_empty() || had_all {
            self.series.clear();
        } else {
            let new = settings.series.iter().filter(|name| !self.series.contains(name));
            let new: Vec<String> = new.cloned().collect();
            self.series.extend(new);
        }
        (self.tags, self.newest) = (settings.tags.clone(), settings.newest);
        let (replica, report) = match attempt {
            Attempt::Ended(replica, report) => (replica.to_string(), report),
            Attempt::Failed(why) => {
                self.error = Some(why.to_string());
                return;
            }
        };
        if self.replica.as_ref() != Some(&replica) {
            // Another repository is there now.
            self.known.clear();
            self.replica = Some(replica);
        }
        for SeriesKnown { series, newest } in &report.known {
            self.known.insert(series.clone(), newest.iter().map(Known::new).collect());
        }
        self.error = (!report.is_complete()).then(|| {
            let refused = report.refused.first().map(|(series, why)| format!("{series}: {why}"));
            let failed = report.snapshots.iter().find_map(|it| match &it.outcome {
                Outcome::Failed(_, why) => Some(format!("{} {}: {why}", it.series, it.snapshot)),
                _ => None,
            });
            refused.or(failed).unwrap_or_else(|| "some snapshots were not sent".to_owned())
        });
        if self.error.is_none() && !report.is_postponed() && !target.is_partial {
            self.last_success_ns = Some(now_ns);
        }
    }
}

/// How a replication ended.
pub enum Attempt<'a> {
    /// It reached the replica, whose repository has this id.
    Ended(RepositoryId, &'a ReplicateReport),
    /// It did not, or failed on the way.
    Failed(&'a Failure),
}

/// The records of a repository's replicas.
pub struct Records<'r> {
    repository: &'r Repository,
    folder: Option<PathBuf>,
}

impl<'r> Records<'r> {
    pub fn new(session: &Session<'_>, repository: &'r Repository) -> Self {
        let state = noted::folder(session.global);
        let folder = state.map(|state| state.join(repository.id().to_string()).join("replicas"));
        Self { repository, folder }
    }

    fn file(&self, to: &str, prefix: &str) -> Option<PathBuf> {
        // A keyed hash of the text, which can be long and can hold any letter.
        let name = self.repository.series_id(&format!("{to}\n{prefix}"));
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    /// The record of a replica. One that cannot be read counts as absent.
    pub fn of(&self, settings: &ReplicaSettings) -> Option<Record> {
        read(&self.file(&settings.to, &settings.prefix)?).ok()
    }

    /// All records, sorted by location.
    pub fn all(&self) -> Vec<Record> {
        let entries = self.folder.iter().flat_map(std::fs::read_dir).flatten();
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let file = entry.path();
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&file) {
                Ok(record) => found.push(record),
                Err(error) => output::note(&format!("silt: warning: {error}; remove it")),
            }
        }
        found.sort_by(|a, b| (&a.to, &a.prefix).cmp(&(&b.to, &b.prefix)));
        found
    }

    /// Records an attempt. A failure to do so gives a warning.
    pub fn note(&self, session: &Session<'_>, target: &Target, attempt: &Attempt<'_>) {
        if let Attempt::Failed(Failure::Error(error)) = attempt {
            // A series of this name is missing here: that says nothing about the replica.
            let is_misspelt = target.is_partial && error.kind() == ErrorKind::NotFound;
            if is_misspelt || error.kind() == ErrorKind::Interrupted {
                return;
            }
        }
        let Some(file) = self.file(&target.settings.to, &target.settings.prefix) else { return };
        let mut record = read(&file).unwrap_or_else(|_| Record::new(&target.settings));
        // A location that was mistyped is no replica, and must not be missed by every status.
        let was_reached = record.replica.is_some() || matches!(attempt, Attempt::Ended(..));
        if target.name.is_none() && !was_reached {
            return;
        }
        record.note(session.context.env.now_ns(), target, attempt);
        if let Err(error) = write(&file, &record) {
            output::note(&format!(
                "silt: warning: {} was not updated, so `silt status` shows more to send than there \
                 is: {error}",
                file.display()
            ));
        }
    }

    /// Removes the record of a replica; returns whether there was one.
    pub fn forget(&self, settings: &ReplicaSettings) -> Result<bool, Error> {
        let Some(file) = self.file(&settings.to, &settings.prefix) else { return Ok(false) };
        match std::fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == NotFound => Ok(false),
            Err(error) => Err(Error::io(format!("remove {}", file.display()), error)),
        }
    }
}

fn read(file: &Path) -> Result<Record, Error> {
    let failed = |error| Error::io(format!("read {}", file.display()), error);
    if std::fs::metadata(file).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(Error::invalid(format!("{} is too large", file.display())));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let parsed = serde_json::from_str(&text);
    parsed.map_err(|error| Error::invalid(format!("{}: {error}", file.display())))
}

fn write(file: &Path, record: &Record) -> Result<(), Error> {
    let failed = |error| Error::io("record the replication", error);
    let text = serde_json::to_string(record).map_err(|error| failed(error.into()))?;
    std::fs::create_dir_all(file.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    // Readers see the old file or the new one. A command that reaches a replica may hold a secret.
    let new = file.with_extension(std::process::id().to_string());
    let mut options = std::fs::OpenOptions::new();
    let mut to =
        options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
    to.write_all(text.as_bytes()).map_err(failed)?;
    drop(to);
    durable::publish_replacing(&new, file)
}
