//! Fleet files: which series a round has, and their volumes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use silt_format::{Error, ErrorKind};
use siltstone::Repository;

use crate::commands::Failure;
use crate::output;

/// Most bytes of a fleet file.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Labels of all snapshots.
    #[serde(default)]
    pub tags: Vec<String>,
    pub series: BTreeMap<String, Series>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Paths by the volumes' names.
    pub volumes: BTreeMap<String, String>,
    /// A command that makes the volumes readable.
    pub before: Option<String>,
    /// A command to run once they are not needed any more.
    pub after: Option<String>,
}

pub fn read(file: &Path) -> Result<Fleet, Failure> {
    let failed = |error| Error::io(format!("read the fleet file {}", file.display()), error);
    if std::fs::metadata(file).map_err(failed)?.len() > FILE_BYTES_MAX {
        let message = format!("{} is no fleet file: it is too large", file.display());
        return Err(Failure::Usage(message));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let fleet: Fleet = toml::from_str(&text).map_err(|error| {
        Failure::Usage(format!("the fleet file {} is wrong: {error}", file.display()))
    })?;
    let empty = fleet.series.iter().find(|(_, series)| series.volumes.is_empty());
    match empty {
        Some((name, _)) => Err(Failure::Usage(format!("series '{name}' has no volumes"))),
        None if fleet.series.is_empty() => {
            Err(Failure::Usage(format!("{} lists no series", file.display())))
        }
        None => Ok(fleet),
    }
}

/// All series of a repository, with the paths that their newest snapshots were made from.
pub fn of_repository(repository: &Repository) -> Result<Fleet, Failure> {
    let mut fleet = Fleet { tags: Vec::new(), series: BTreeMap::new() };
    for (id, name) in repository.series()? {
        let newest = repository.head(id)?.and_then(|head| head.snapshots.last().cloned());
        let Some(newest) = newest else { continue };
        let snapshot = repository.snapshot(id, &newest)?;
        // What came from standard input can't be had again.
        let from_paths =
            snapshot.volumes.iter().all(|volume| Path::new(&volume.source).is_absolute());
        if !from_paths {
            output::note(&format!(
                "silt: warning: series '{name}' was not made from files; it is left out"
            ));
            continue;
        }
        let volumes = snapshot.volumes.into_iter().map(|volume| (volume.name, volume.source));
        let series = Series { volumes: volumes.collect(), before: None, after: None };
        fleet.series.insert(name, series);
    }
    if fleet.series.is_empty() {
        let message = "no series was made from files; name one and its volumes".to_owned();
        return Err(Failure::Usage(message));
    }
    Ok(fleet)
}

/// Runs a command of a fleet file with the shell; `SILT_SERIES` names the series.
pub fn run_hook(series: &str, which: &str, command: &str) -> Result<(), Error> {
    let failed = |why: String| {
        let message = format!("series '{series}': the command `{which}` failed: {why}");
        Error::new(ErrorKind::Unavailable, message)
    };
    let mut shell = std::process::Command::new("/bin/sh");
    let status = shell.arg("-c").arg(command).env("SILT_SERIES", series).status();
    let status = status.map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}
