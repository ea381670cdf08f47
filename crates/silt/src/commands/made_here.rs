//! Records which series this machine has backed up, and from which files. `silt backup --all` uses
//! this record and not the paths in snapshots, because other hosts of the repository could write
//! any path there and this machine would open it.

use std::collections::BTreeMap;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use silt_cluster::round::HostRates;
use silt_format::{Error, SeriesId};
use silt_source::nbd::Uri;
use silt_storage::durable;
use siltstone::Repository;

use super::rounds::Series;
use super::volume_args::{PathText, is_stdin};
use super::{Failure, Session};
use crate::cli::TreeArgs;
use crate::{noted, output};

/// The file of what was measured in rounds.
const RATES: &str = "rates.json";

/// The record of a series, in a file of its own.
#[derive(Deserialize, Serialize)]
struct Note {
    name: String,
    series: Series,
}

/// The folder of the records for one repository.
pub struct MadeHere(Option<PathBuf>);

impl MadeHere {
    pub fn new(session: &Session<'_>, repository: &Repository) -> Self {
        let state = noted::folder(session.global);
        Self(state.map(|state| state.join(repository.id().to_string()).join("series")))
    }

    /// Records the sources of a series; removes the record if a volume or a list came from standard
    /// input. A failure gives a warning and does not fail the backup.
    pub fn note(&self, id: SeriesId, name: &str, series: &Series) {
        let Some(folder) = &self.0 else { return };
        let file = folder.join(format!("{id}.json"));
        let noted = match absolute(series) {
            Some(series) => write(folder, &file, &Note { name: name.to_owned(), series }),
            None => match std::fs::remove_file(&file) {
                Err(error) if error.kind() != NotFound => Err(Error::io("remove it", error)),
                _ => Ok(()),
            },
        };
        if let Err(error) = noted {
            output::note(&format!(
                "silt: warning: {} was not updated, so `silt backup --all` does not know this \
                 backup: {error}",
                file.display()
            ));
        }
    }

    /// The own name of the series called `name`. A series that this machine has backed up under
    /// its own name is not looked for.
    pub fn own_name(&self, repository: &Repository, name: &str) -> Result<String, Error> {
        let id = repository.series_id(name);
        let is_noted = self.0.as_ref().is_some_and(|it| it.join(format!("{id}.json")).exists());
        if is_noted { Ok(name.to_owned()) } else { repository.own_name(name) }
    }

    /// All recorded series.
    pub fn all(&self) -> Result<BTreeMap<String, Series>, Failure> {
        let mut found = BTreeMap::new();
        let Some(folder) = &self.0 else { return Ok(found) };
        let failed = |error| Error::io(format!("read {}", folder.display()), error);
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == NotFound => return Ok(found),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&file).map_err(failed)?;
            let note: Note = serde_json::from_str(&text).map_err(|error| {
                Failure::Usage(format!("{}: {error}; remove it", file.display()))
            })?;
            found.insert(note.name, note.series);
        }
        Ok(found)
    }
}

/// The series with absolute paths, or `None` if a volume or a list comes from standard input.
fn absolute(series: &Series) -> Option<Series> {
    let volumes = series.volumes.iter().map(|(name, PathText(path))| {
        let path = Some(path).filter(|path| !is_stdin(path))?;
        let path = if Uri::is_uri(path.as_os_str()) {
            PathBuf::from(Uri::parse(path.as_os_str()).ok()?.absolute().ok()?)
        } else {
            std::path::absolute(path).ok()?
        };
        Some((name.clone(), PathText(path)))
    });
    let volumes = volumes.collect::<Option<_>>()?;
    let mut series = Series { volumes, ..series.clone() };
    if series.tree.iter().flat_map(TreeArgs::lists).any(|list| is_stdin(list)) {
        return None;
    }
    for file in series.tree.iter_mut().flat_map(TreeArgs::files_mut) {
        *file = std::path::absolute(&*file).ok()?;
    }
    Some(series)
}

/// Remembers how fast this machine was in rounds of one repository.
pub struct MeasuredHere(Option<PathBuf>);

impl MeasuredHere {
    pub fn new(session: &Session<'_>, repository: &Repository) -> Self {
        Self(noted::folder(session.global).map(|state| state.join(repository.id().to_string())))
    }

    /// What was measured last; nothing if that cannot be read.
    pub fn rates(&self) -> HostRates {
        let file = self.0.as_ref().map(|folder| folder.join(RATES));
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Remembers what was measured now. A failure gives a warning: only expectations rest on it.
    pub fn note(&self, rates: HostRates) {
        let Some(folder) = &self.0 else { return };
        if let Err(error) = write(folder, &folder.join(RATES), &rates.or(self.rates())) {
            output::note(&format!("silt: warning: {RATES} was not updated: {error}"));
        }
    }
}

fn write(folder: &Path, file: &Path, note: &impl Serialize) -> Result<(), Error> {
    let failed = |error| Error::io("record the backup", error);
    let text = serde_json::to_string_pretty(note).map_err(|error| failed(error.into()))?;
    if std::fs::read_to_string(file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    // Readers see the old file or the new one.
    let new = file.with_extension(std::process::id().to_string());
    std::fs::write(&new, text).map_err(failed)?;
    durable::publish_replacing(&new, file)
}
