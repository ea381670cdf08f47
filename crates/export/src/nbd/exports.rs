//! The exports of a server, and the meaning of their names.

use std::sync::Arc;

use silt_format::{Error, ErrorKind, Result};
use siltstone::Warning;

use super::log_limit::{LogLimit, Verdict};
use crate::catalog::{Catalog, ListedSeries, OpenVolume, VolumeId};
use crate::snapshot_name::parse_with_volume;

/// Most exports that are listed to a client; every snapshot can be opened by its name.
const LISTED_MAX: usize = 1000;
/// Most contexts of the kind `silt:changed-since` that are listed; others can be selected.
pub const CHANGED_LISTED_MAX: usize = 100;

/// An export that a client has chosen.
pub struct Export {
    /// The name that the client used.
    pub name: String,
    /// The volume.
    pub volume: Arc<OpenVolume>,
    /// Whether the name means the same volume for every connection.
    pub is_fixed: bool,
}

/// The exports of a server: the volumes that it was given, or every volume of the repository.
pub struct Exports {
    catalog: Arc<Catalog>,
    /// The volumes that it was given by their names; none for all there are.
    given: Vec<(String, VolumeId)>,
    limit: LogLimit,
}

impl Exports {
    /// Every volume of every snapshot, by names that are looked up for each connection.
    pub fn all(catalog: Arc<Catalog>) -> Self {
        Self { catalog, given: Vec::new(), limit: LogLimit::default() }
    }

    /// The volumes that `names` mean now; a name without a volume means all volumes of the
    /// snapshot.
    pub fn of(catalog: Arc<Catalog>, names: &[String]) -> Result<Self> {
        let mut given: Vec<(String, VolumeId)> = Vec::new();
        for name in names {
            let (selector, volume) = parse_with_volume(name, catalog.zone())?;
            if volume.is_some() {
                given.push((name.clone(), catalog.resolve(name)?));
                continue;
            }
            let (series, entry) = catalog.snapshot(&selector)?;
            let volumes = catalog.volumes(series.id, &entry)?;
            for info in volumes.iter().filter(|volume| volume.is_disk()) {
                let volume = info.name.clone();
                let id = VolumeId { series: series.id, snapshot: entry.id, volume };
                given.push((format!("{name}:{}", info.name), id));
            }
        }
        if given.is_empty() && !names.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the snapshot has no volumes"));
        }
        Ok(Self { catalog, given, limit: LogLimit::default() })
    }

    /// The catalog.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Logs a warning that a client caused: each text once a minute, and not too many.
    pub fn warn(&self, warning: impl Into<Warning>) {
        let (repository, warning) = (self.catalog.repository(), warning.into());
        match self.limit.judge(repository.objects.context.env.now_ns(), &warning.to_string()) {
            Verdict::Log => repository.warn(warning),
            Verdict::LogAfter(count) => {
                let message = format!("warnings about clients that were not shown: {count}");
                repository.warn(Warning::new(ErrorKind::Unavailable, message));
                repository.warn(warning);
            }
            Verdict::LeaveOut => {}
        }
    }

    /// Opens the export of this name; the empty name means the only one there is.
    pub fn open(&self, name: &str) -> Result<Export> {
        let (id, is_fixed) = self.find(name)?;
        let volume = self.catalog.open(&id)?;
        Ok(Export { name: name.to_owned(), volume, is_fixed })
    }

    fn find(&self, name: &str) -> Result<(VolumeId, bool)> {
        if self.given.is_empty() {
            if name.is_empty() {
                let message = "there is no default export; name one, such as web1@latest:root";
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            let id = self.catalog.resolve(name)?;
            // The beginning of an id, or a time, may mean another snapshot later.
            let is_fixed = name.starts_with(&id.snapshot.to_string());
            return Ok((id, is_fixed));
        }
        let only = || self.given.first().filter(|_| self.given.len() == 1 && name.is_empty());
        let found = self.given.iter().find(|(given, _)| given == name).or_else(only);
        let found = found.ok_or_else(|| {
            let message = format!("there is no export '{name}'");
            Error::new(ErrorKind::NotFound, message)
        })?;
        Ok((found.1.clone(), true))
    }

    /// Returns the names of exports with descriptions: the configured exports, or the newest
    /// snapshot of each series, then as many others as the limit allows, the newest of each series
    /// first.
    pub fn list(&self) -> Result<Vec<(String, String)>> {
        if !self.given.is_empty() {
            let given = self.given.iter().take(LISTED_MAX);
            return Ok(given
                .map(|(name, id)| (name.clone(), format!("{}", id.snapshot)))
                .collect());
        }
        let mut listed = Vec::new();
        let all = self.catalog.series()?;
        for series in all.iter() {
            let name = format!("{}@latest", series.name);
            self.list_snapshot(series, series.snapshots.len().wrapping_sub(1), &name, &mut listed)?;
        }
        for series in all.iter() {
            for index in (0..series.snapshots.len()).rev() {
                if listed.len() >= LISTED_MAX {
                    break;
                }
                let name = series.snapshots[index].id.to_string();
                self.list_snapshot(series, index, &name, &mut listed)?;
            }
        }
        Ok(listed)
    }

    fn list_snapshot(
        &self,
        series: &ListedSeries,
        index: usize,
        name: &str,
        listed: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let Some(entry) = series.snapshots.get(index) else { return Ok(()) };
        let volumes = match self.catalog.volumes(series.id, entry) {
            Ok(volumes) => volumes,
            // It was deleted meanwhile, or is damaged, which is no reason to list no others.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                self.warn(&error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let time = time(entry.time_ns);
        let disks = volumes.iter().filter(|volume| volume.is_disk());
        for volume in disks.take(LISTED_MAX.saturating_sub(listed.len())) {
            let about = format!("{} of {time}, {} bytes", series.name, volume.bytes);
            listed.push((format!("{name}:{}", volume.name), about));
        }
        Ok(())
    }

    /// The other snapshots of an export's series, newest first, that `silt:changed-since` can name.
    pub fn others(&self, export: &Export) -> Result<Vec<String>> {
        let series = self.catalog.series_named(export.volume.series_name())?;
        let own = export.volume.id().snapshot;
        let others = series.snapshots.iter().rev().map(|entry| entry.id).filter(|id| *id != own);
        Ok(others.take(CHANGED_LISTED_MAX).map(|id| id.to_string()).collect())
    }

    /// Returns the volume of the same name as an export's in another snapshot of its series; `None`
    /// if there is none. `name` is an id or a prefix of one, or `latest`; it may include the
    /// series.
    pub fn other(&self, export: &Export, name: &str) -> Result<Option<Arc<OpenVolume>>> {
        let id = export.volume.id();
        let series_name = export.volume.series_name();
        let full = match name {
            "latest" => format!("{series_name}@latest:{}", id.volume),
            name => format!("{name}:{}", id.volume),
        };
        let found = match self.catalog.resolve(&full) {
            Ok(found) if found.series == id.series => found,
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.catalog.open(&found).map(Some)
    }
}

/// A time for people, in UTC.
pub fn time(time_ns: i64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(time_ns));
    stamp.map_or_else(|_| "?".to_owned(), |t| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}
