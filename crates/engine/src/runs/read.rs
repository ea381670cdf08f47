//! Reading a run from its beginning to its end.

use std::collections::VecDeque;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    BlockReader, Error, HEADER_BYTES, ObjectKind, Record, Result, ResultExt, RunBlock,
    RunDirectory, RunRef, SeriesId, decode_records, names,
};
use silt_storage::ByteRange;

use super::merge::Records;
use crate::objects::{Address, Objects, OpenObject, Scratch, is_damage, key};

/// How much of a partition is read at once, in bytes.
const READ_BYTES: u64 = 512 << 10;

/// All records of a run, in order.
pub(crate) struct RunReader {
    objects: Arc<Objects>,
    store: SeriesId,
    run: RunRef,
    next_partition: u32,
    open: Option<OpenObject>,
    /// The blocks of the open partition that were not read yet.
    blocks: VecDeque<RunBlock>,
    /// The bytes of some of them, and where they begin in the object.
    read: (u64, Vec<u8>),
    reader: BlockReader,
    raw: Vec<u8>,
    given: u64,
}

impl RunReader {
    pub(crate) fn new(objects: &Arc<Objects>, store: SeriesId, run: RunRef) -> Self {
        Self {
            objects: Arc::clone(objects),
            store,
            run,
            next_partition: 0,
            open: None,
            blocks: VecDeque::new(),
            read: (0, Vec::new()),
            reader: BlockReader::default(),
            raw: Vec::new(),
            given: 0,
        }
    }

    /// The next block of the run, or `None` at its end.
    fn next_block(&mut self) -> Result<Option<RunBlock>> {
        loop {
            if let Some(block) = self.blocks.pop_front() {
                return Ok(Some(block));
            }
            if self.next_partition == self.run.partitions() {
                return Ok(None);
            }
            let (object, directory) =
                open_partition(&self.objects, self.store, self.run, self.next_partition)?;
            self.next_partition += 1;
            self.blocks = directory.blocks.into();
            self.open = Some(object);
            self.read.1.clear();
        }
    }

    /// Reads `block` and as many behind it as fit in one read.
    fn fill(&mut self, block: RunBlock) -> Result<()> {
        let Some(object) = &self.open else { return Ok(()) };
        let end_of = |block: &RunBlock| u64::from(block.offset) + u64::from(block.sealed_bytes);
        let start = u64::from(block.offset);
        let ends = self.blocks.iter().map(end_of);
        let end = ends.take_while(|end| end - start <= READ_BYTES).last();
        let end = end.unwrap_or(0).max(end_of(&block));
        self.read.0 = start;
        let range = ByteRange::Bounded { offset: start, length: end - start };
        let what = || format!("read run {}", object.name);
        self.objects.storage.get(&key(&object.name)?, range, &mut self.read.1).context(what)
    }
}

impl Records for RunReader {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        let Some(block) = self.next_block()? else {
            if self.given == self.run.records {
                return Ok(());
            }
            return Err(Error::corrupt(format!(
                "run {} has {} records, its head says {}",
                self.run.id, self.given, self.run.records
            )));
        };
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
        decode_block(&self.raw, &block, batch).context(what)?;
        self.given += to_u64(batch.len());
        Ok(())
    }
}

/// Replaces `records` by those of a block, which must begin as its directory says.
pub(super) fn decode_block(raw: &[u8], block: &RunBlock, records: &mut Vec<Record>) -> Result<()> {
    records.clear();
    decode_records(raw, records)?;
    if records.first().is_some_and(|record| record.fingerprint == block.first) {
        return Ok(());
    }
    Err(Error::corrupt("it does not begin with the record that the directory says"))
}

/// Opens a partition of a run and reads its directory.
pub(super) fn open_partition(
    objects: &Objects,
    store: SeriesId,
    run: RunRef,
    partition: u32,
) -> Result<(OpenObject, RunDirectory)> {
    let name = names::run(store, run.id, partition);
    let (kind, number) = (ObjectKind::Run, run.id.0);
    let object = objects.open(&name, Address::of_part(kind, store, number, partition))?;
    let directory = objects.read_directory(&object, |raw| {
        let directory = RunDirectory::decode(raw)?;
        let end = directory.end().unwrap_or(to_u64(HEADER_BYTES));
        Ok((directory, end))
    })?;
    Ok((object, directory))
}
