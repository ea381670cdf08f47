//! How well a series is protected: its newest good snapshot, its checks, known damage.

use silt_format::{
    CheckRecord, DamagedSlots, Error, Head, Id, Result, Snapshot, SnapshotEntry, Volume,
};

use crate::beside::each_beside;
use crate::find::AllHeads;
use crate::objects::is_damage;
use crate::repository::Repository;

/// How far ahead of this machine's clock a snapshot may be dated and still count, in nanoseconds.
const AHEAD_NS: i64 = 15 * 60 * 1_000_000_000;

/// A snapshot that can be restored in full, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoodSnapshot {
    /// Its id.
    pub id: Id,
    /// When it was made, in nanoseconds since 1970.
    pub time_ns: i64,
}

/// How well a series is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesStatus {
    /// The series' name.
    pub series: String,
    /// How many snapshots it has.
    pub snapshots: u64,
    /// The newest snapshot that can be read, whose source was read completely, and that is not
    /// dated in the future.
    pub newest_good: Option<GoodSnapshot>,
    /// Newer snapshots that are not good: unreadable, of a source that could not be read in full,
    /// or dated in the future.
    pub newer_bad: u64,
    /// Volumes that the newest snapshot lacks and the one before it has.
    pub missing_volumes: Vec<String>,
    /// Bytes of the newest snapshot's disks that could not be read from their sources.
    pub unreadable_bytes: u64,
    /// Files and directories of the newest snapshot that could not be read as a whole.
    pub unreadable_entries: u64,
    /// When the container was verified that was verified longest ago, in seconds since 1970;
    /// `None` while some container was never verified, or there are none.
    pub verified_since_s: Option<u64>,
    /// If changed-blocks maps were trusted: the time since which every segment of the newest good
    /// snapshot's volumes has been read or compared, in nanoseconds since 1970; otherwise `None`.
    pub proven_since_ns: Option<i64>,
    /// Containers and recipes that are known to be damaged, without containers whose damaged
    /// chunks no living snapshot needs.
    pub damaged_objects: u64,
    /// Whether all its snapshots were deleted.
    pub is_removed: bool,
    /// Why the newest head can't be read; the rest is then of the head before it.
    pub damage: Option<String>,
}

impl SeriesStatus {
    /// Notes what the newest snapshot lacks of its sources, and of the volumes of the one before.
    fn note_gaps(&mut self, newest: &Snapshot, before: Option<&Snapshot>) {
        let is_missing = |name: &String| newest.volumes.iter().all(|volume| volume.name != *name);
        let before = before.into_iter().flat_map(|before| &before.volumes);
        self.missing_volumes =
            before.map(|volume| volume.name.clone()).filter(is_missing).collect();
        let unreadable = newest.volumes.iter().flat_map(|volume| &volume.unreadable);
        self.unreadable_bytes = unreadable.map(|span| span.length).sum();
        let trees = newest.volumes.iter().filter_map(Volume::tree);
        self.unreadable_entries = trees.map(|tree| tree.counts.unreadable).sum();
    }
}

impl Repository {
    /// How well the named series are protected, or all of them, in the order of their names.
    ///
    /// Reads the newest head and check record of each series, and snapshots from the newest on
    /// until one is good, at least two. Series whose first backup did not end are listed without
    /// snapshots.
    /// Fails with `NotFound` if a named series does not exist.
    pub fn status(&self, names: &[String]) -> Result<Vec<SeriesStatus>> {
        let AllHeads { heads, damaged, unfinished } = self.all_heads(names)?;
        let mut all = Vec::new();
        each_beside(
            self,
            heads,
            |repository, head| repository.status_of(&head),
            |status| {
                all.push(status?);
                Ok::<_, Error>(())
            },
        )?;
        for damaged in damaged {
            let before = damaged.before.as_ref().map(|head| self.status_of(head)).transpose()?;
            let mut status = before.unwrap_or_default();
            status.series = damaged.series;
            status.damage = Some(damaged.error.to_string());
            all.push(status);
        }
        all.extend(
            unfinished.into_iter().map(|series| SeriesStatus { series, ..SeriesStatus::default() }),
        );
        all.sort_by(|a, b| a.series.cmp(&b.series));
        Ok(all)
    }

    fn status_of(&self, head: &Head) -> Result<SeriesStatus> {
        let mut status = SeriesStatus {
            series: head.shown().to_owned(),
            snapshots: silt_format::number::to_u64(head.snapshots.len()),
            is_removed: head.snapshots.is_empty()
                && (!head.deleted.is_empty() || head.leak.deletions > 0),
            ..SeriesStatus::default()
        };
        let latest_ns = self.objects.context.env.now_ns().saturating_add(AHEAD_NS);
        let mut entries: Vec<&SnapshotEntry> = head.snapshots.iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.time_ns));
        let read = |entry: &&SnapshotEntry| match self.snapshot(head.series, entry) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        };
        let mut newest = entries.first().map(read).transpose()?.flatten();
        if let Some(newest) = &newest {
            let before = entries.get(1).map(read).transpose()?.flatten();
            status.note_gaps(newest, before.as_ref());
        }
        for (place, entry) in entries.iter().enumerate() {
            let snapshot = if place == 0 { newest.take() } else { read(entry)? };
            match snapshot.filter(|snapshot| is_good(snapshot, latest_ns)) {
                Some(snapshot) => {
                    let (id, time_ns) = (snapshot.id, snapshot.time_ns);
                    status.newest_good = Some(GoodSnapshot { id, time_ns });
                    let proofs = snapshot.volumes.iter().filter_map(|v| v.map_proof.as_ref());
                    status.proven_since_ns = proofs.map(silt_format::MapProof::since_ns).min();
                    break;
                }
                None => status.newer_bad += 1,
            }
        }
        let (_, record) = self.objects.check_record(head.series)?;
        status.verified_since_s = verified_since_s(head, &record);
        status.damaged_objects = damaged_objects(head, &record);
        Ok(status)
    }
}

fn is_good(snapshot: &Snapshot, latest_ns: i64) -> bool {
    snapshot.time_ns <= latest_ns && snapshot.volumes.iter().all(|v| v.unreadable.is_empty())
}

fn verified_since_s(head: &Head, record: &CheckRecord) -> Option<u64> {
    let time_s = |(number, tag)| {
        let ranges = record.verified.iter().filter(|range| {
            range.tag == tag
                && (range.first..range.first.saturating_add(range.count)).contains(&number)
        });
        ranges.map(|range| range.time_s).max()
    };
    // `None` is less than any time: one container that was never verified decides.
    head.containers.iter().map(time_s).min().flatten()
}

fn damaged_objects(head: &Head, record: &CheckRecord) -> u64 {
    let is_needed = |slots: &&DamagedSlots| {
        head.containers.tag(slots.container) == Some(slots.tag)
            && !record.unneeded.contains(&(slots.container, slots.tag))
    };
    let damaged = record.damaged.iter().filter(is_needed);
    let mut containers: Vec<u32> = damaged.map(|slots| slots.container).collect();
    containers.sort_unstable();
    containers.dedup();
    silt_format::number::to_u64(containers.len() + record.damaged_blocks.len())
}
