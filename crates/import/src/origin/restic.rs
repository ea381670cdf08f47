//! Snapshots of restic.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;
use silt_format::{Error, Result};

use super::command::{CommandOutput, list, time_ns};
use super::{OriginFilter, OriginSnapshot};

/// What `restic snapshots --json` prints of a snapshot.
#[derive(Deserialize)]
struct Listed {
    id: String,
    time: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

fn restic(repository: Option<&OsString>, password_file: Option<&PathBuf>) -> Command {
    let mut command = Command::new("restic");
    if let Some(repository) = repository {
        command.arg("--repo").arg(repository);
    }
    if let Some(file) = password_file {
        command.arg("--password-file").arg(file);
    }
    command
}

pub(super) fn snapshots(
    repository: Option<&OsString>,
    password_file: Option<&PathBuf>,
    filter: &OriginFilter,
) -> Result<Vec<OriginSnapshot>> {
    let mut command = restic(repository, password_file);
    command.args(["snapshots", "--json"]);
    for (option, values) in
        [("--host", &filter.hosts), ("--path", &filter.paths), ("--tag", &filter.tags)]
    {
        for value in values {
            command.arg(option).arg(value);
        }
    }
    parsed(&list(&mut command, "restic snapshots --json")?)
}

fn parsed(bytes: &[u8]) -> Result<Vec<OriginSnapshot>> {
    let listed: Option<Vec<Listed>> = serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid("what `restic snapshots --json` prints is no list of snapshots")
            .with_source(error)
    })?;
    let snapshot = |listed: Listed| {
        Ok(OriginSnapshot {
            time_ns: time_ns(&listed.time)?,
            id: listed.id,
            name: None,
            host: listed.hostname,
            paths: listed.paths,
            tags: listed.tags.unwrap_or_default(),
        })
    };
    listed.unwrap_or_default().into_iter().map(snapshot).collect()
}

pub(super) fn archive(
    repository: Option<&OsString>,
    password_file: Option<&PathBuf>,
    snapshot: &OriginSnapshot,
) -> Result<CommandOutput> {
    let mut command = restic(repository, password_file);
    command.args(["dump", "--archive", "tar", &snapshot.id, "/"]);
    CommandOutput::start(&mut command, "restic dump")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_restic_prints_is_read() {
        let text = br#"[{"time":"2026-11-20T08:00:00.123456789+01:00","tree":"ab",
            "paths":["/srv/home"],"hostname":"web1","username":"root","tags":["nightly"],
            "id":"0011","short_id":"00"},
            {"time":"2026-11-21T08:00:00Z","paths":["/"],"hostname":"web2","id":"22"}]"#;
        let found = parsed(text).unwrap();
        assert_eq!((found[0].time_ns % 1_000_000_000, &*found[0].host), (123_456_789, "web1"));
        assert_eq!(
            (&found[0].tags, &found[0].paths),
            (&vec!["nightly".to_owned()], &vec!["/srv/home".to_owned()])
        );
        assert_eq!((&*found[1].id, found[1].tags.len()), ("22", 0));
        assert!(parsed(b"null").unwrap().is_empty(), "of an empty repository");
        assert!(parsed(b"Fatal: no repository").is_err());
    }
}
