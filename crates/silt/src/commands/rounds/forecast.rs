//! Estimates how long rounds take.

use std::collections::BTreeMap;
use std::path::Path;

use silt_format::{Error, Level, SeriesId, Snapshot, SnapshotEntry};
use silt_source::ExtentKind;
use siltstone::{CostModel, Picking, Repository, Schedule, ScheduledVm, StageSeconds};

use super::file::{Fleet, Series};
use crate::cli::RoundsChoice;
use crate::commands::{Failure, backup};
use crate::snapshot_name;

/// Size of a chunk in bytes.
const CHUNK_BYTES: f64 = 4096.0;
/// The share of a volume's data assumed to be new in each backup, while nothing is known.
const CHANGE_SHARE: f64 = 0.03;
/// Assumed size of an unknown volume, in bytes.
const UNKNOWN_BYTES: f64 = 4e9;
/// Approximate size of a container in bytes.
const CONTAINER_CHUNKS: f64 = 2048.0;

/// The rounds of a fleet.
pub struct Plan {
    /// The names of the series.
    pub names: Vec<String>,
    pub vms: Vec<ScheduledVm>,
    pub model: CostModel,
    pub schedule: Schedule,
}

/// Schedules the series of a fleet by the data and the new data of their newest snapshots.
pub fn plan(
    repository: &Repository,
    fleet: &Fleet,
    choice: &RoundsChoice,
) -> Result<Plan, Failure> {
    let limit = choice.time_limit.as_deref().map(snapshot_name::parse_time_limit).transpose()?;
    let rate = |mib: u32| f64::from(mib) * f64::from(1 << 20);
    let model = CostModel::local(rate(choice.scan_rate), rate(choice.store_rate), choice.spool);
    let stored = stored(repository)?;
    let mut vms = Vec::new();
    for (name, series) in &fleet.series {
        let id = repository.series_id(name);
        let (scan_bytes, new_bytes) = expected(repository, id, stored.newest.get(&id), series)?;
        vms.push(ScheduledVm { machine: 0, scan_bytes, requests: new_bytes / CHUNK_BYTES });
    }
    let index_entries = stored.chunks;
    let limited =
        limit.map(|limit| Schedule::within(&model, &vms, index_entries, limit, Picking::Envelope));
    let schedule = limited.unwrap_or_else(|| {
        Schedule::of(&model, &vms, index_entries, usize::from(choice.rounds), Picking::Envelope)
    });
    Ok(Plan { names: fleet.series.keys().cloned().collect(), vms, model, schedule })
}

impl Plan {
    /// The names of a round's series.
    pub fn members(&self, round: usize) -> Vec<&str> {
        self.schedule.rounds[round].iter().map(|vm| self.names[*vm].as_str()).collect()
    }

    /// Bytes that a round scans, and how many of them are expected to be new.
    pub fn bytes(&self, round: usize) -> (f64, f64) {
        let vms = self.schedule.rounds[round].iter().map(|vm| &self.vms[*vm]);
        vms.fold((0.0, 0.0), |(scan, new), vm| {
            (scan + vm.scan_bytes, new + vm.requests * CHUNK_BYTES)
        })
    }
}

/// Expected times of a round's stages: scan, compare, store.
pub fn visible_stages(stages: &StageSeconds) -> [f64; 3] {
    let compare = stages.compare + stages.collect + stages.send + stages.update + stages.answer;
    [stages.scan, compare, stages.store]
}

/// Bytes that a backup of a series reads, and how many of them are new.
fn expected(
    repository: &Repository,
    id: SeriesId,
    newest: Option<&SnapshotEntry>,
    series: &Series,
) -> Result<(f64, f64), Failure> {
    let snapshot = newest.map(|newest| repository.snapshot(id, newest)).transpose()?;
    Ok(snapshot.as_ref().map_or_else(|| of_volumes(series), of_snapshot))
}

/// The same for a series that was never backed up: all bytes are new.
fn of_volumes(series: &Series) -> (f64, f64) {
    let bytes = series.volumes.values().map(|path| allocated(&path.0).unwrap_or(UNKNOWN_BYTES));
    let bytes = bytes.sum();
    (bytes, bytes)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn of_snapshot(snapshot: &Snapshot) -> (f64, f64) {
    let levels = snapshot.levels();
    let data = (levels.total() - levels.get(Level::Zero)) as f64;
    let new = (levels.get(Level::New) + levels.get(Level::Shared)) as f64;
    (data, if snapshot.parent.is_some() { new } else { data * CHANGE_SHARE })
}

/// Bytes of a volume without its holes, if it can be opened now.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn allocated(path: &Path) -> Option<f64> {
    let source = backup::open_any(path).ok()?;
    let (size, mut offset, mut data) = (source.info().size?, 0, 0);
    while offset < size {
        let extent = source.extent_at(offset).ok()?;
        let end = (extent.offset + extent.length).min(size);
        data += if extent.kind == ExtentKind::Data { end - offset } else { 0 };
        offset = end.max(offset + 1);
    }
    Some(data as f64)
}

/// The state before the first round.
struct Stored {
    /// Approximate number of chunks in the repository.
    chunks: f64,
    /// The newest snapshot of each series that has one.
    newest: BTreeMap<SeriesId, SnapshotEntry>,
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn stored(repository: &Repository) -> Result<Stored, Error> {
    let (mut containers, mut newest) = (0_u64, BTreeMap::new());
    for id in repository.series_ids()? {
        let Some(head) = repository.head(id)? else { continue };
        containers += head.containers.len();
        newest.extend(head.snapshots.last().map(|entry| (id, entry.clone())));
    }
    Ok(Stored { chunks: containers as f64 * CONTAINER_CHUNKS, newest })
}
