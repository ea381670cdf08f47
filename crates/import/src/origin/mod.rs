//! Repositories of other programs, read through these programs.

mod borg;
mod command;
mod restic;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

use silt_format::Result;

pub use command::CommandOutput;

/// Maximum length of a label in bytes, as of Siltstone.
const LABEL_BYTES_MAX: usize = 255;
/// Maximum number of labels that are taken over, so that some are left for users.
const LABELS_MAX: usize = 200;
/// Digits of an origin's id in the label that remembers it: 64 bits.
const ID_DIGITS: usize = 16;

/// A repository of another program. Its location and its password come from the options here or
/// from the variables that the program itself reads.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A repository of restic.
    Restic {
        /// Its location; by default what `RESTIC_REPOSITORY` says.
        repository: Option<OsString>,
        /// The file with its password; by default what `RESTIC_PASSWORD_FILE` and others say.
        password_file: Option<PathBuf>,
    },
    /// A repository of Borg 1.
    Borg {
        /// Its location; by default what `BORG_REPO` says.
        repository: Option<OsString>,
    },
}

/// Which snapshots are imported; without conditions all of them.
#[derive(Clone, Debug, Default)]
pub struct OriginFilter {
    /// Those of any of these hosts.
    pub hosts: Vec<String>,
    /// Those that contain all of these paths; only restic knows paths.
    pub paths: Vec<String>,
    /// Those with any of these tags, or lists of tags with commas; only restic has tags.
    pub tags: Vec<String>,
    /// Archives whose name matches this pattern of the shell; only Borg has names.
    pub names: Option<String>,
}

/// A snapshot of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginSnapshot {
    /// Its id: hexadecimal digits.
    pub id: String,
    /// Its name, if it has one besides the id.
    pub name: Option<String>,
    /// When it was made, in nanoseconds since 1970.
    pub time_ns: i64,
    /// The host that made it; empty if that is not known.
    pub host: String,
    /// The paths that were backed up, if that is known.
    pub paths: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
}

impl Origin {
    /// The name of the program.
    pub fn program(&self) -> &'static str {
        match self {
            Self::Restic { .. } => "restic",
            Self::Borg { .. } => "borg",
        }
    }

    /// The snapshots that pass a filter, the oldest first.
    ///
    /// Fails with `NotFound` if the program is missing, and with `Invalid` if it fails; it prints
    /// itself what went wrong.
    pub fn snapshots(&self, filter: &OriginFilter) -> Result<Vec<OriginSnapshot>> {
        let mut found = match self {
            Self::Restic { repository, password_file } => {
                restic::snapshots(repository.as_ref(), password_file.as_ref(), filter)?
            }
            Self::Borg { repository } => borg::snapshots(repository.as_ref(), filter)?,
        };
        found.sort_by(|a, b| (a.time_ns, &a.id).cmp(&(b.time_ns, &b.id)));
        Ok(found)
    }

    /// A snapshot as a tar archive. Reading its end fails if the program failed.
    pub fn archive(&self, snapshot: &OriginSnapshot) -> Result<CommandOutput> {
        match self {
            Self::Restic { repository, password_file } => {
                restic::archive(repository.as_ref(), password_file.as_ref(), snapshot)
            }
            Self::Borg { repository } => borg::archive(repository.as_ref(), snapshot),
        }
    }
}

impl OriginSnapshot {
    /// The label by which a later import knows that this snapshot was imported: the program and the
    /// first 64 bits of the id.
    pub fn mark(&self, origin: &Origin) -> String {
        let digits = self.id.get(..ID_DIGITS).unwrap_or(&self.id);
        format!("{}:{digits}", origin.program())
    }

    /// The labels of the imported snapshot: its tags, its name and the mark. Labels that are too
    /// long are left out.
    pub fn labels(&self, origin: &Origin) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for label in self.tags.iter().chain(&self.name) {
            let is_label = (1..=LABEL_BYTES_MAX).contains(&label.len());
            if is_label && labels.len() < LABELS_MAX && !labels.contains(label) {
                labels.push(label.clone());
            }
        }
        labels.push(self.mark(origin));
        labels
    }
}

/// The hosts with snapshots of several sets of paths, which should not be in one series.
pub fn mixed_hosts(snapshots: &[OriginSnapshot]) -> BTreeSet<&str> {
    let (mut first, mut mixed) = (BTreeMap::new(), BTreeSet::new());
    for it in snapshots {
        if *first.entry(it.host.as_str()).or_insert(&it.paths) != &it.paths {
            mixed.insert(it.host.as_str());
        }
    }
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_tags_and_the_mark() {
        let origin = Origin::Borg { repository: None };
        let snapshot = OriginSnapshot {
            id: "0123456789abcdef0123".to_owned(),
            name: Some("monday".to_owned()),
            time_ns: 0,
            host: String::new(),
            paths: Vec::new(),
            tags: vec!["a".to_owned(), "a".to_owned(), "x".repeat(256)],
        };
        assert_eq!(snapshot.labels(&origin), ["a", "monday", "borg:0123456789abcdef"]);
    }
}
