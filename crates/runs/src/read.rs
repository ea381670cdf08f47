//! Reading a run from its beginning to its end.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    BlockReader, ContentHash, Error, Fingerprint, HEADER_BYTES, Hashed, ObjectKind, Record, Result,
    ResultExt, RunBlock, RunDirectory, RunRef, SeriesId, decode_records, names, partition_of,
};
use silt_storage::ByteRange;

use crate::merge::Records;
use silt_repository::objects::{Address, Objects, OpenObject, Scratch, is_damage, key};

/// How much of a partition is read at once, in bytes, unless the caller says less.
const READ_BYTES: u64 = 512 << 10;

/// The records of a run, in order.
pub struct RunReader {
    objects: Arc<Objects>,
    partitions: Partitions,
    next_partition: u32,
    /// The first four bytes of the fingerprints that are read, as numbers.
    keys: RangeInclusive<u32>,
    open: Option<OpenObject>,
    /// The blocks of the open partition that were not read yet.
    blocks: VecDeque<RunBlock>,
    /// The bytes of some of them, and where they begin in the object.
    read: (u64, Vec<u8>),
    reader: BlockReader,
    raw: Vec<u8>,
    read_bytes: u64,
    given: u64,
}

impl RunReader {
    /// A reader of all records of a run.
    pub fn new(objects: &Arc<Objects>, store: SeriesId, run: RunRef) -> Self {
        Self::between(objects, store, run, 0..=u32::MAX)
    }

    /// A reader of the records whose fingerprints begin with four bytes in this range, as numbers.
    /// It reads only blocks that can hold them.
    pub fn between(
        objects: &Arc<Objects>,
        store: SeriesId,
        run: RunRef,
        keys: RangeInclusive<u32>,
    ) -> Self {
        Self {
            objects: Arc::clone(objects),
            partitions: Partitions::new(store, run),
            next_partition: run.partition_of_key(*keys.start()),
            keys,
            open: None,
            blocks: VecDeque::new(),
            read: (0, Vec::new()),
            reader: BlockReader::default(),
            raw: Vec::new(),
            read_bytes: READ_BYTES,
            given: 0,
        }
    }

    /// The same, reading about `bytes` at once if that is less.
    #[must_use]
    pub fn reading(self, bytes: u64) -> Self {
        Self { read_bytes: bytes.min(READ_BYTES), ..self }
    }

    /// Opens every partition and reads its directory.
    pub fn open_all(mut self) -> Result<()> {
        let mut partitions = 0..self.partitions.run.partitions();
        partitions.try_for_each(|number| {
            let (partition, _) = self.partitions.open(&self.objects, number)?;
            self.objects.require_beginning(&partition)
        })
    }

    /// The next block of the run, or `None` at its end.
    fn next_block(&mut self) -> Result<Option<RunBlock>> {
        loop {
            if let Some(block) = self.blocks.pop_front() {
                return Ok(Some(block));
            }
            if self.next_partition > self.partitions.run.partition_of_key(*self.keys.end()) {
                return Ok(None);
            }
            let (object, directory) = self.partitions.open(&self.objects, self.next_partition)?;
            self.next_partition += 1;
            self.blocks = self.wanted(&directory.blocks).to_vec().into();
            self.open = Some(object);
            self.read.1.clear();
        }
    }

    /// The blocks of a partition that can hold what is read.
    fn wanted<'b>(&self, blocks: &'b [RunBlock]) -> &'b [RunBlock] {
        let key = |block: &RunBlock| key_of(&block.first);
        // A block before the first that begins in the range can reach into it.
        let start = blocks.partition_point(|block| key(block) < *self.keys.start());
        let end = blocks.partition_point(|block| key(block) <= *self.keys.end());
        &blocks[start.saturating_sub(1).min(end)..end]
    }

    /// Whether all records are read.
    fn is_whole(&self) -> bool {
        self.keys == (0..=u32::MAX)
    }

    /// Reads the next block into `batch`; leaves that empty at the end.
    fn read_batch(&mut self, batch: &mut Vec<Record>) -> Result<bool> {
        batch.clear();
        let Some(block) = self.next_block()? else {
            let run = &self.partitions.run;
            if self.given == run.records || !self.is_whole() {
                return Ok(false);
            }
            return Err(Error::corrupt(format!(
                "run {} has {} records, its head says {}",
                run.id, self.given, run.records
            )));
        };
        self.read_block(block, batch)?;
        self.given += to_u64(batch.len());
        Ok(true)
    }

    /// Reads the records of a block.
    fn read_block(&mut self, block: RunBlock, batch: &mut Vec<Record>) -> Result<()> {
        let offset = u64::from(block.offset);
        if offset >= self.read.0 + to_u64(self.read.1.len()) || self.read.1.is_empty() {
            self.fill(block)?;
        }
        let Some(object) = &self.open else { return Ok(()) };
        let start = to_usize(offset - self.read.0);
        let sealed = &mut self.read.1[start..start + block.sealed_bytes as usize];
        let what = || format!("read run {}, block at {offset}", object.name);
        match self.reader.read(&object.sealer, offset, sealed, &mut self.raw) {
            // By itself a block is read from every copy there is.
            Err(error) if is_damage(&error) => {
                let range = (block.offset, block.sealed_bytes);
                let scratch = &mut Scratch::default();
                self.objects.read_block(object, range, offset, scratch, &mut self.raw)?;
            }
            other => other.context(what)?,
        }
        decode_block(&self.objects, &self.raw, &block, batch).context(what)
    }

    /// Reads `block` and as many behind it as fit in one read.
    fn fill(&mut self, block: RunBlock) -> Result<()> {
        let Some(object) = &self.open else { return Ok(()) };
        let end_of = |block: &RunBlock| u64::from(block.offset) + u64::from(block.sealed_bytes);
        let start = u64::from(block.offset);
        let ends = self.blocks.iter().map(end_of);
        let end = ends.take_while(|end| end - start <= self.read_bytes).last();
        let end = end.unwrap_or(0).max(end_of(&block));
        self.read.0 = start;
        let range = ByteRange::Bounded { offset: start, length: end - start };
        let what = || format!("read run {}", object.name);
        self.objects.storage.get(&key(&object.name)?, range, &mut self.read.1).context(what)
    }
}

impl Records for RunReader {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        while self.read_batch(batch)? {
            if !self.is_whole() {
                batch.retain(|record| self.keys.contains(&key_of(&record.fingerprint)));
            }
            if !batch.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The first four bytes of a fingerprint as a number.
fn key_of(fingerprint: &Fingerprint) -> u32 {
    partition_of(32, fingerprint)
}

/// Replaces `records` by those of a block, which must be the one that its directory means.
pub(super) fn decode_block(
    objects: &Objects,
    raw: &[u8],
    block: &RunBlock,
    records: &mut Vec<Record>,
) -> Result<()> {
    records.clear();
    objects.require_hash(Hashed::RunBlock, raw, block.hash, || "the block".to_owned())?;
    decode_records(raw, records)?;
    if records.first().is_some_and(|record| record.fingerprint == block.first) {
        return Ok(());
    }
    Err(Error::corrupt("it does not begin with the record that the directory says"))
}

/// The partitions of a run, each opened as the one that the run's head means.
pub(super) struct Partitions {
    store: SeriesId,
    pub(super) run: RunRef,
    /// What the directories of all partitions but the last say, once that was read.
    before: Vec<ContentHash>,
}

impl Partitions {
    pub(super) fn new(store: SeriesId, run: RunRef) -> Self {
        Self { store, run, before: Vec::new() }
    }

    /// Takes over what another one has read of the same run.
    pub(super) fn take_over(&mut self, other: &Self) {
        if self.before.is_empty() {
            self.before.clone_from(&other.before);
        }
    }

    /// Opens a partition and reads its directory.
    pub(super) fn open(
        &mut self,
        objects: &Objects,
        partition: u32,
    ) -> Result<(OpenObject, RunDirectory)> {
        let last = self.run.partitions() - 1;
        if partition == last {
            return self.read(objects, last, self.run.hash);
        }
        if self.before.is_empty() {
            let (object, directory) = self.read(objects, last, self.run.hash)?;
            if directory.before.len() != last as usize {
                let message =
                    format!("{} does not say what all partitions before it are", object.name);
                return Err(Error::corrupt(message));
            }
            self.before = directory.before;
        }
        self.read(objects, partition, self.before[partition as usize])
    }

    fn read(
        &self,
        objects: &Objects,
        partition: u32,
        hash: ContentHash,
    ) -> Result<(OpenObject, RunDirectory)> {
        let name = names::run(self.store, self.run.id, partition);
        let (kind, number) = (ObjectKind::Run, self.run.id.0);
        let address = Address::of_part(kind, self.store, number, partition);
        objects.read_directory(&name, address, |raw| {
            objects.require_hash(Hashed::RunDirectory, raw, hash, || "it".to_owned())?;
            let directory = RunDirectory::decode(raw)?;
            let end = directory.end().unwrap_or(to_u64(HEADER_BYTES));
            Ok((directory, end))
        })
    }
}
