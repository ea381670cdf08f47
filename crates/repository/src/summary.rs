//! Builds a snapshot's summary vector part by part, so that memory stays bounded.

use std::ops::Range;

use silt_format::number::to_u32;
use silt_format::{
    BlockEntry, BlockKind, BlockWriter, Error, HEADER_BYTES, Hashed, Id, MapRoot, ObjectKind,
    PRIVATE_STORE, Reference, Result, SeriesId, SummaryGeometry, SummaryRef, encode_blocks, names,
};

use crate::directories::close_object;
use crate::hashes::PartHashes;
use crate::map::MapReader;
use crate::objects::{Address, Objects, OpenObject, Scratch};

const METADATA_LEVEL: i32 = 1;

/// Proof that every part of a summary vector is durable.
pub struct DurableSummary {
    /// The vector, as its snapshot names it.
    pub summary: SummaryRef,
    /// Bytes that it takes in storage.
    pub stored_bytes: u64,
}

/// Writes the vector of all private references below `roots`.
pub fn write_summary(
    objects: &Objects,
    series: SeriesId,
    reader: &MapReader,
    roots: &[MapRoot],
    geometry: SummaryGeometry,
) -> Result<DurableSummary> {
    let id = Id(objects.context.random_id());
    let mut writer = BlockWriter::new(METADATA_LEVEL)?;
    let (mut references, mut stored_bytes, mut hashes) = (0, 0, PartHashes::default());
    let partition_bytes = geometry.partition_bytes as usize;
    for part in 0..geometry.parts() {
        let held = geometry.partitions_of(part);
        let mut vector = vec![0; held.len() * partition_bytes];
        references = fill(reader, roots, geometry, &held, &mut vector)?;
        let address = Address::of_part(ObjectKind::Summary, series, id.0, part);
        let header = objects.new_header(address);
        let sealer = objects.sealer(&header);
        let mut body = Vec::with_capacity(HEADER_BYTES);
        body.extend_from_slice(&header.encode());
        let mut entries = Vec::new();
        for partition in vector.chunks_exact(partition_bytes) {
            let offset = to_u32(body.len());
            hashes.add(objects, Hashed::SummaryPartition, partition);
            let length = writer.append(&sealer, u64::from(offset), partition, &mut body);
            let kind = BlockKind::Partition;
            entries.push(BlockEntry { kind, offset, sealed_bytes: to_u32(length) });
        }
        let directory = encode_blocks(&entries);
        let end = close_object(&mut writer, (&header, &sealer), body.len(), &directory);
        let name = names::summary(series, id, part);
        stored_bytes +=
            objects.put_pieces(&name, ObjectKind::Summary, &[body.into(), end.into()])?;
    }
    let hash = hashes.whole(objects, Hashed::Summary);
    Ok(DurableSummary { summary: SummaryRef { id, geometry, references, hash }, stored_bytes })
}

/// Sets the bits of the references whose partition is in `held`; the answer counts all references.
fn fill(
    reader: &MapReader,
    roots: &[MapRoot],
    geometry: SummaryGeometry,
    held: &Range<u32>,
    vector: &mut [u8],
) -> Result<u64> {
    let mut references = 0_u64;
    let partition_bytes = geometry.partition_bytes as usize;
    each_reference(reader, roots, &mut |reference| {
        references += 1;
        let (partition, drawn) = geometry.place(reference);
        if held.contains(&partition) {
            let start = (partition - held.start) as usize * partition_bytes;
            geometry.insert(drawn, &mut vector[start..start + partition_bytes]);
        }
        Ok(())
    })?;
    Ok(references)
}

/// Calls `visit` with every private reference below `roots`.
fn each_reference(
    reader: &MapReader,
    roots: &[MapRoot],
    visit: &mut dyn FnMut(Reference) -> Result<()>,
) -> Result<()> {
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    for root in roots {
        reader.walk(*root, &mut |_, entry| {
            let recipe = reader.recipe(entry.recipe, &mut scratch, &mut raw)?;
            let references = recipe.chunks.iter().map(|chunk| chunk.reference);
            references
                .filter(|reference| !reference.is_zero() && reference.store() == PRIVATE_STORE)
                .try_for_each(&mut *visit)
        })?;
    }
    Ok(())
}

/// Reads a summary vector and, if `roots` are given, checks that it holds every reference below
/// them: a vector that misses one would let deletion drop a chunk in use.
pub fn verify_summary(
    objects: &Objects,
    series: SeriesId,
    summary: SummaryRef,
    references_of: Option<(&MapReader, &[MapRoot])>,
) -> Result<()> {
    let geometry = summary.geometry;
    let partition_bytes = geometry.partition_bytes as usize;
    let (mut scratch, mut raw, mut vector) = (Scratch::default(), Vec::new(), Vec::new());
    let mut stored = StoredSummary::new(series, summary);
    for part in 0..geometry.parts() {
        let held = geometry.partitions_of(part);
        let name = names::summary(series, summary.id, part);
        let wrong = |what: &str| Error::corrupt(format!("summary vector {name}: {what}"));
        vector.clear();
        let each = &mut |partition: &[u8]| vector.extend_from_slice(partition);
        let object = stored.read_part(objects, part, (&mut scratch, &mut raw), each)?;
        objects.require_beginning(&object)?;
        let Some((reader, roots)) = references_of else { continue };
        each_reference(reader, roots, &mut |reference| {
            let (partition, drawn) = geometry.place(reference);
            let start = partition.wrapping_sub(held.start) as usize * partition_bytes;
            let missing = held.contains(&partition)
                && !geometry.contains(drawn, &vector[start..start + partition_bytes]);
            if missing {
                return Err(wrong(&format!("it misses reference {reference:?}")));
            }
            Ok(())
        })?;
    }
    stored.finish(objects)
}

/// A summary vector that is read part by part. Results are valid only if [`finish`](Self::finish)
/// succeeds, which checks that it is the vector that the snapshot refers to.
pub struct StoredSummary {
    series: SeriesId,
    summary: SummaryRef,
    hashes: PartHashes,
}

impl StoredSummary {
    /// The vector that a snapshot of the series names.
    pub fn new(series: SeriesId, summary: SummaryRef) -> Self {
        Self { series, summary, hashes: PartHashes::default() }
    }

    /// Calls `each` with every partition of the next part, in order; returns the part.
    pub fn read_part(
        &mut self,
        objects: &Objects,
        part: u32,
        (scratch, raw): (&mut Scratch, &mut Vec<u8>),
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<OpenObject> {
        let geometry = self.summary.geometry;
        let name = names::summary(self.series, self.summary.id, part);
        let (kind, number) = (ObjectKind::Summary, self.summary.id.0);
        let address = Address::of_part(kind, self.series, number, part);
        let (object, entries) = objects.read_blocks(&name, address)?;
        let wrong = |what: &str| Error::corrupt(format!("summary vector {name}: {what}"));
        if entries.len() != geometry.partitions_of(part).len() {
            return Err(wrong("it has a wrong number of partitions"));
        }
        for entry in entries {
            let range = (entry.offset, entry.sealed_bytes);
            objects.read_block(&object, range, u64::from(entry.offset), scratch, raw)?;
            if raw.len() != geometry.partition_bytes as usize {
                return Err(wrong("a partition has a wrong size"));
            }
            self.hashes.add(objects, Hashed::SummaryPartition, raw);
            each(raw);
        }
        Ok(object)
    }

    /// Fails with `Corrupt` unless the vector that was read has the content hash in the snapshot.
    pub fn finish(self, objects: &Objects) -> Result<()> {
        let what = || format!("summary vector {}", names::summary(self.series, self.summary.id, 0));
        self.hashes.require(objects, Hashed::Summary, self.summary.hash, what)
    }
}

/// An upper bound of how many private references a snapshot has: its parent's and the new ones.
pub fn reference_bound(parent: Option<SummaryRef>, added: u64) -> u64 {
    parent.map_or(0, |summary| summary.references) + added
}
