//! Looks up references in the summary vectors of several snapshots at once.

use std::collections::HashSet;

use silt_format::number::to_u64;
use silt_format::{Reference, Result, SeriesId, Snapshot, SummaryGeometry, SummaryRef};
use silt_repository::objects::{Objects, Scratch};
use silt_repository::summary::StoredSummary;

/// Vectors of one series, those of one geometry together.
pub(crate) struct Vectors {
    groups: Vec<(SummaryGeometry, Vec<SummaryRef>)>,
}

/// How full the vectors were that were OR-ed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fill {
    /// The chance that a reference that is in no vector is taken for one that is.
    pub(crate) false_positive_rate: f64,
    /// How many different references the vectors hold, by the number of bits that are set.
    pub(crate) references: f64,
}

impl Vectors {
    pub(crate) fn of<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>) -> Self {
        let mut groups: Vec<(SummaryGeometry, Vec<SummaryRef>)> = Vec::new();
        let mut seen = HashSet::new();
        for summary in snapshots.into_iter().filter_map(|snapshot| snapshot.summary) {
            if !seen.insert(summary.id) {
                continue;
            }
            match groups.iter_mut().find(|(geometry, _)| *geometry == summary.geometry) {
                Some((_, group)) => group.push(summary),
                None => groups.push((summary.geometry, vec![summary])),
            }
        }
        Self { groups }
    }

    /// Removes the references that any vector may hold; none that one does hold stays.
    pub(crate) fn retain_absent(
        &self,
        objects: &Objects,
        series: SeriesId,
        references: &mut Vec<u64>,
    ) -> Result<Fill> {
        let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
        let mut all = Fill::default();
        for (geometry, group) in &self.groups {
            let partition_bytes = geometry.partition_bytes as usize;
            let mut bits_set = 0_u64;
            let stored = group.iter().map(|summary| StoredSummary::new(series, *summary));
            let mut stored: Vec<_> = stored.collect();
            for part in 0..geometry.parts() {
                let held = geometry.partitions_of(part);
                let mut vector = vec![0; held.len() * partition_bytes];
                for summary in &mut stored {
                    let mut at = 0;
                    summary.read_part(objects, part, (&mut scratch, &mut raw), &mut |p| {
                        let end = at + p.len();
                        vector[at..end].iter_mut().zip(p).for_each(|(all, one)| *all |= one);
                        at = end;
                    })?;
                }
                bits_set += vector.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
                references.retain(|bits| {
                    let (partition, drawn) = geometry.place(Reference::from_bits(*bits));
                    if !held.contains(&partition) {
                        return true;
                    }
                    let start = (partition - held.start) as usize * partition_bytes;
                    !geometry.contains(drawn, &vector[start..start + partition_bytes])
                });
            }
            stored.into_iter().try_for_each(|summary| summary.finish(objects))?;
            let fill = fill(*geometry, bits_set);
            let passes = (1.0 - all.false_positive_rate) * (1.0 - fill.false_positive_rate);
            all.false_positive_rate = 1.0 - passes;
            // Groups of other geometries hold mostly the same references.
            all.references = all.references.max(fill.references);
        }
        Ok(all)
    }
}

/// The standard estimates of a Bloom filter with k hashes of whose m bits so many are set: a false
/// positive by (set / m)^k, and -(m / k) ln(1 - set / m) references.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn fill(geometry: SummaryGeometry, bits_set: u64) -> Fill {
    let bits = (geometry.bytes() * 8) as f64;
    let share = to_u64(1).max(bits_set) as f64 / bits;
    let hashes = f64::from(geometry.hashes);
    Fill {
        false_positive_rate: share.min(1.0).powf(hashes),
        references: -bits / hashes * (1.0 - share).max(f64::MIN_POSITIVE).ln(),
    }
}
