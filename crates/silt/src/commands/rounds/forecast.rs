//! Estimates how long rounds take.

use std::collections::BTreeMap;
use std::path::Path;

use silt_format::{Error, ErrorKind, Level, SeriesId, Snapshot, SnapshotEntry, Volume};
use silt_source::ExtentKind;
use siltstone::{CostModel, Picking, Repository, Schedule, ScheduledVm, StageSeconds};

use super::file::{Fleet, Series};
use crate::cli::RoundsChoice;
use crate::commands::trees::is_tree;
use crate::commands::volume_args::PathText;
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
    /// The sizes of each series' volumes, where they are known.
    pub sizes: Vec<Vec<Option<u64>>>,
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
    let (mut vms, mut sizes) = (Vec::new(), Vec::new());
    let read = |repository: &Repository, name: &String| {
        let id = repository.series_id(name);
        let newest = stored.newest.get(&id);
        newest.map(|newest| unless_damaged(repository.snapshot(id, newest)))
    };
    let mut series = fleet.series.values();
    repository.each_beside(fleet.series.keys().collect(), read, |newest| {
        let newest = newest.transpose()?.flatten();
        let Some(series) = series.next() else { return Ok(()) };
        let (scan_bytes, new_bytes) =
            newest.as_ref().map_or_else(|| of_volumes(series), of_snapshot);
        sizes.push(sizes_of(series, newest.as_ref()));
        vms.push(ScheduledVm { machine: 0, scan_bytes, requests: new_bytes / CHUNK_BYTES });
        Ok::<_, Error>(())
    })?;
    let index_entries = stored.chunks;
    let limited =
        limit.map(|limit| Schedule::within(&model, &vms, index_entries, limit, Picking::Envelope));
    let schedule = limited.unwrap_or_else(|| {
        Schedule::of(&model, &vms, index_entries, usize::from(choice.rounds), Picking::Envelope)
    });
    Ok(Plan { names: fleet.series.keys().cloned().collect(), vms, sizes, model, schedule })
}

impl Plan {
    /// The names of a round's series.
    pub fn members(&self, round: usize) -> Vec<&str> {
        self.schedule.rounds[round].iter().map(|vm| self.names[*vm].as_str()).collect()
    }

    /// The sizes of the volumes of rounds from this one on, round after round.
    pub fn sizes_from(&self, round: usize) -> Vec<Option<u64>> {
        let rounds = self.schedule.rounds.get(round..).unwrap_or_default();
        rounds.iter().flatten().flat_map(|vm| self.sizes[*vm].iter().copied()).collect()
    }

    /// Bytes that a round scans, and how many of them are expected to be new.
    pub fn bytes(&self, round: usize) -> (f64, f64) {
        let vms = self.schedule.rounds[round].iter().map(|vm| &self.vms[*vm]);
        vms.fold((0.0, 0.0), |(scan, new), vm| {
            (scan + vm.scan_bytes, new + vm.requests * CHUNK_BYTES)
        })
    }
}

/// An estimate as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, not negative"
)]
pub fn whole(estimate: f64) -> u64 {
    estimate as u64
}

/// Expected times of a round's stages: scan, compare, store.
pub fn visible_stages(stages: &StageSeconds) -> [f64; 3] {
    let compare = stages.compare + stages.collect + stages.send + stages.update + stages.answer;
    [stages.scan, compare, stages.store]
}

/// The sizes of a series' volumes: as in its newest snapshot, or else as they are now. Of a file
/// tree without a snapshot, it is not known.
fn sizes_of(series: &Series, newest: Option<&Snapshot>) -> Vec<Option<u64>> {
    let size = |(name, PathText(path)): (&String, &PathText)| {
        let before = newest.and_then(|it| it.volumes.iter().find(|volume| volume.name == *name));
        let now = || {
            if is_tree(path) { None } else { backup::open_any(path).ok()?.info().size }
        };
        before.map(Volume::logical_bytes).or_else(now)
    };
    series.volumes.iter().map(size).collect()
}

/// Bytes that the first backup of a series reads, and how many of them are new: all.
fn of_volumes(series: &Series) -> (f64, f64) {
    let bytes = series.volumes.values().map(|path| allocated(&path.0).unwrap_or(UNKNOWN_BYTES));
    let bytes = bytes.sum();
    (bytes, bytes)
}

/// The same for a series whose newest snapshot is known.
fn of_snapshot(snapshot: &Snapshot) -> (f64, f64) {
    let is_first = snapshot.parent.is_none();
    let volumes = snapshot.volumes.iter().map(|volume| of_volume(volume, is_first));
    volumes.fold((0.0, 0.0), |(scan, new), volume| (scan + volume.0, new + volume.1))
}

/// The same for a volume of a snapshot. Of a file tree, the files that change are read.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn of_volume(volume: &Volume, is_first: bool) -> (f64, f64) {
    let levels = &volume.levels;
    let data = (levels.total() - levels.get(Level::Zero)) as f64;
    let new = (levels.get(Level::New) + levels.get(Level::Shared)) as f64;
    match (is_first, volume.tree().is_some()) {
        (true, true) => (data * CHANGE_SHARE, data * CHANGE_SHARE),
        (true, false) => (data, data * CHANGE_SHARE),
        (false, _) => (data, new),
    }
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

/// `None` for damage, which the backup of that series reports.
fn unless_damaged<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => Ok(None),
        read => read.map(Some),
    }
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
    let read = |repository: &Repository, id| (id, unless_damaged(repository.head(id)));
    repository.each_beside(repository.series_ids()?, read, |(id, head)| {
        let Some(head) = head?.flatten() else { return Ok(()) };
        containers += head.containers.len();
        newest.extend(head.snapshots.last().map(|entry| (id, entry.clone())));
        Ok::<_, Error>(())
    })?;
    Ok(Stored { chunks: containers as f64 * CONTAINER_CHUNKS, newest })
}
