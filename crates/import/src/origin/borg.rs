//! Archives of Borg 1.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use serde::Deserialize;
use silt_format::{Error, Result};

use super::command::{CommandOutput, list, time_ns};
use super::{OriginFilter, OriginSnapshot};

/// What `borg list --json` prints.
#[derive(Deserialize)]
struct List {
    archives: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    archive: String,
    start: String,
    #[serde(default)]
    hostname: String,
}

fn borg() -> Command {
    let mut command = Command::new("borg");
    // It prints times without a zone.
    command.env("TZ", "UTC");
    command
}

pub(super) fn snapshots(
    repository: Option<&OsString>,
    filter: &OriginFilter,
) -> Result<Vec<OriginSnapshot>> {
    let mut command = borg();
    command.args(["list", "--json", "--format", "{hostname}{start}"]);
    if let Some(names) = &filter.names {
        command.arg("--glob-archives").arg(names);
    }
    if let Some(repository) = repository {
        command.arg(repository);
    }
    let mut found = parsed(&list(&mut command, "borg list --json")?)?;
    found.retain(|it| filter.hosts.is_empty() || filter.hosts.contains(&it.host));
    Ok(found)
}

fn parsed(bytes: &[u8]) -> Result<Vec<OriginSnapshot>> {
    let listed: List = serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid("what `borg list --json` prints is no list of archives").with_source(error)
    })?;
    let snapshot = |listed: Listed| {
        Ok(OriginSnapshot {
            time_ns: time_ns(&listed.start)?,
            id: listed.id,
            name: Some(listed.archive),
            host: listed.hostname,
            paths: Vec::new(),
            tags: Vec::new(),
        })
    };
    listed.archives.into_iter().map(snapshot).collect()
}

pub(super) fn archive(
    repository: Option<&OsString>,
    snapshot: &OriginSnapshot,
) -> Result<CommandOutput> {
    let mut place = repository.map_or_else(OsString::new, OsString::clone);
    place.push(OsStr::new("::"));
    place.push(snapshot.name.as_deref().unwrap_or_default());
    let mut command = borg();
    command.arg("export-tar").arg(place).arg("-");
    CommandOutput::start(&mut command, "borg export-tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_borg_prints_is_read() {
        let text = br#"{"archives": [{"archive": "monday", "barchive": "monday",
            "hostname": "web1", "id": "0011", "name": "monday",
            "start": "2026-11-20T08:00:00.250000", "time": "2026-11-20T08:00:00.250000"}],
            "encryption": {"mode": "none"}, "repository": {"id": "ff"}}"#;
        let found = parsed(text).unwrap();
        assert_eq!(found[0].name.as_deref(), Some("monday"));
        assert_eq!((found[0].time_ns % 1_000_000_000, &*found[0].host), (250_000_000, "web1"));
        assert!(parsed(b"[]").is_err());
    }
}
