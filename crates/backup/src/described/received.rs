//! Where the deltas of a snapshot that was received have their bases.

use silt_format::replica::DeltaBase;
use silt_format::{Head, Id, SeriesId};

/// Maximum number of ranges that are kept: of 4 KiB each, those of 4 GiB.
const RANGES_MAX: usize = 1 << 20;

/// What a replication knows about similar chunks, and a repository would have to search for: the
/// ranges of the parent that the deltas of a snapshot were made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedBases {
    /// The series of the snapshot.
    pub series: SeriesId,
    /// The name of the series, for messages.
    pub name: String,
    /// No container of this or a higher number existed before.
    pub first_container: u32,
    /// The snapshot that the ranges are of.
    pub parent: Option<Id>,
    /// Volumes of the parent by name, with ranges in the order in which they came.
    volumes: Vec<(String, Vec<DeltaBase>)>,
    ranges: usize,
}

impl ReceivedBases {
    /// Those of a session that goes on from this head, as yet none.
    pub(super) fn new(head: &Head, parent: Option<Id>) -> Self {
        Self {
            series: head.series,
            name: head.shown().to_owned(),
            first_container: head.next_container,
            parent,
            volumes: Vec::new(),
            ranges: 0,
        }
    }

    /// Adds the bases of a delta in a volume. Forgets them if there are too many already.
    pub fn add(&mut self, volume: &str, bases: &[DeltaBase]) {
        if self.volumes.last().is_none_or(|(last, _)| last != volume) {
            self.volumes.push((volume.to_owned(), Vec::new()));
        }
        let Some((_, ranges)) = self.volumes.last_mut() else { return };
        for base in bases.iter().take(RANGES_MAX.saturating_sub(self.ranges)) {
            ranges.push(*base);
            self.ranges += 1;
        }
    }

    /// The volumes and their ranges.
    pub fn volumes(&self) -> &[(String, Vec<DeltaBase>)] {
        &self.volumes
    }
}
