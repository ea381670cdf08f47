//! Looks up single fingerprints in runs: a filter excludes most runs; otherwise one block is read.

use std::hash::Hash;
use std::sync::Arc;

use silt_format::{
    Fingerprint, Hashed, Record, Result, RunBlock, RunDirectory, RunFilter, RunRef, SeriesId,
};

use crate::read::{Partitions, decode_block};
use silt_repository::cache::WeightedCache;
use silt_repository::objects::{Objects, OpenObject, Scratch};

/// Of the memory, what blocks may take; the rest is for filters and directories.
const BLOCKS_SHARE: usize = 4;

/// Answers look-ups from a few runs, within a budget of memory.
pub struct RunLookup {
    objects: Arc<Objects>,
    runs: Vec<Partitions>,
    partitions: WeightedCache<(usize, u32), Arc<Partition>>,
    blocks: WeightedCache<(usize, u32, usize), Arc<Vec<Record>>>,
    scratch: Scratch,
    raw: Vec<u8>,
    /// Buffers of a partition and of a block that were dropped. They are of few sizes; given back
    /// to the allocator, they leave gaps that other buffers do not fit in.
    spare: (Vec<u8>, Vec<Record>),
}

struct Partition {
    object: OpenObject,
    directory: RunDirectory,
    filter: Vec<u8>,
}

impl Partition {
    fn may_hold(&self, fingerprint: &Fingerprint) -> bool {
        let Some(filter) = self.directory.filter else { return true };
        filter.geometry.contains(RunFilter::draw(fingerprint), &self.filter)
    }
}

impl RunLookup {
    /// Look-ups in `runs`, with at most `memory_bytes` of filters and blocks.
    pub fn new(
        objects: &Arc<Objects>,
        store: SeriesId,
        runs: Vec<RunRef>,
        memory_bytes: usize,
    ) -> Self {
        Self {
            objects: Arc::clone(objects),
            runs: runs.into_iter().map(|run| Partitions::new(store, run)).collect(),
            partitions: WeightedCache::new(memory_bytes - memory_bytes / BLOCKS_SHARE),
            blocks: WeightedCache::new(memory_bytes / BLOCKS_SHARE),
            scratch: Scratch::default(),
            raw: Vec::new(),
            spare: (Vec::new(), Vec::new()),
        }
    }

    /// Takes over what another one holds of the runs that both look in.
    pub fn take_over(&mut self, other: &mut Self) {
        let place_of = |run: RunRef| self.runs.iter().position(|own| own.run == run);
        let places: Vec<_> = other.runs.iter().map(|of| place_of(of.run)).collect();
        for (of, place) in other.runs.iter().zip(&places) {
            place.inspect(|place| self.runs[*place].take_over(of));
        }
        let (partitions, blocks) = (emptied(&mut other.partitions), emptied(&mut other.blocks));
        self.partitions.take_over(partitions, |(run, number)| Some((places[run]?, number)));
        self.blocks.take_over(blocks, |(run, number, block)| Some((places[run]?, number, block)));
        self.spare = std::mem::take(&mut other.spare);
    }

    /// The first record of a fingerprint that `is_wanted`.
    pub fn find(
        &mut self,
        fingerprint: &Fingerprint,
        is_wanted: &dyn Fn(&Record) -> bool,
    ) -> Result<Option<Record>> {
        for number in 0..self.runs.len() {
            let partition =
                self.partition(number, self.runs[number].run.partition_of(fingerprint))?;
            if !partition.may_hold(fingerprint) {
                continue;
            }
            for block in partition.directory.blocks_of(fingerprint) {
                let records = self.block(number, &partition, fingerprint, block)?;
                let at = records.partition_point(|record| record.fingerprint < *fingerprint);
                let mut same =
                    records[at..].iter().take_while(|found| found.fingerprint == *fingerprint);
                if let Some(found) = same.find(|found| is_wanted(found)) {
                    return Ok(Some(*found));
                }
            }
        }
        Ok(None)
    }

    fn partition(&mut self, run: usize, number: u32) -> Result<Arc<Partition>> {
        if let Some(partition) = self.partitions.get(&(run, number)) {
            return Ok(partition);
        }
        let (object, directory) = self.runs[run].open(&self.objects, number)?;
        let mut filter = std::mem::take(&mut self.spare.0);
        filter.clear();
        if let Some(stored) = directory.filter {
            let range = (stored.offset, stored.sealed_bytes);
            let position = u64::from(stored.offset);
            self.objects.read_block(&object, range, position, &mut self.scratch, &mut filter)?;
            let what = || format!("the filter of run {}", object.name);
            self.objects.require_hash(Hashed::RunFilter, &filter, stored.hash, what)?;
            if filter.len() != stored.geometry.partition_bytes as usize {
                let message = format!("run {}: its filter is too short", object.name);
                return Err(silt_format::Error::corrupt(message));
            }
        }
        let weight = 256 + filter.capacity() + directory.blocks.len() * size_of::<RunBlock>();
        let partition = Arc::new(Partition { object, directory, filter });
        let dropped = self.partitions.insert((run, number), Arc::clone(&partition), weight);
        self.spare.0 = dropped.and_then(Arc::into_inner).map_or_else(Vec::new, |it| it.filter);
        Ok(partition)
    }

    fn block(
        &mut self,
        run: usize,
        partition: &Partition,
        fingerprint: &Fingerprint,
        number: usize,
    ) -> Result<Arc<Vec<Record>>> {
        let place = (run, self.runs[run].run.partition_of(fingerprint), number);
        if let Some(records) = self.blocks.get(&place) {
            return Ok(records);
        }
        let block = partition.directory.blocks[number];
        let range = (block.offset, block.sealed_bytes);
        let position = u64::from(block.offset);
        let scratch = &mut self.scratch;
        self.objects.read_block(&partition.object, range, position, scratch, &mut self.raw)?;
        let mut records = std::mem::take(&mut self.spare.1);
        decode_block(&self.objects, &self.raw, &block, &mut records)?;
        let records = Arc::new(records);
        let weight = records.capacity() * size_of::<Record>();
        let dropped = self.blocks.insert(place, Arc::clone(&records), weight);
        self.spare.1 = dropped.and_then(Arc::into_inner).unwrap_or_default();
        Ok(records)
    }
}

/// What a cache holds; it is empty then.
fn emptied<K: Hash + Eq + Copy, V: Clone>(cache: &mut WeightedCache<K, V>) -> WeightedCache<K, V> {
    let empty = WeightedCache::new(cache.bytes_max);
    std::mem::replace(cache, empty)
}
