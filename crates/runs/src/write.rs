//! Writing a run, partition by partition.

use std::sync::Arc;

use silt_format::number::to_u32;
use silt_format::{
    BlockWriter, ContentHash, Hashed, Header, Id, ObjectKind, RUN_BLOCK_RECORDS_MAX, Record,
    Result, RunBlock, RunDirectory, RunFilter, RunRef, RunUse, Sealer, SeriesId, encode_records,
    filter_geometry, names,
};

use silt_repository::directories::close_object;
use silt_repository::objects::{Address, Objects};

const METADATA_LEVEL: i32 = 1;

/// Proof that every partition of a run is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableRun {
    /// The run, as whatever refers to it names it.
    pub run: RunRef,
    /// Bytes of all its objects.
    pub stored_bytes: u64,
}

/// Writes a run whose records come in order.
pub struct RunWriter {
    objects: Arc<Objects>,
    store: SeriesId,
    run: RunRef,
    writer: BlockWriter,
    /// The partition that is being filled.
    partition: u32,
    open: Option<Open>,
    last: Option<Record>,
    block: Vec<Record>,
    raw: Vec<u8>,
    /// What the directories of the partitions before say.
    before: Vec<ContentHash>,
    stored_bytes: u64,
}

/// The object of a partition that is being filled.
struct Open {
    header: Header,
    sealer: Sealer,
    body: Vec<u8>,
    directory: RunDirectory,
    /// What the filter's bits are drawn from.
    drawn: Vec<u64>,
}

impl RunWriter {
    /// A writer of a run of at most `records_max` records.
    pub fn new(
        objects: &Arc<Objects>,
        store: SeriesId,
        use_: RunUse,
        records_max: u64,
    ) -> Result<Self> {
        let id = Id(objects.context.random_id());
        let partition_bits = RunRef::partition_bits_for(records_max);
        Ok(Self {
            objects: Arc::clone(objects),
            store,
            run: RunRef { id, use_, partition_bits, records: 0, hash: ContentHash([0; 16]) },
            writer: BlockWriter::new(METADATA_LEVEL)?,
            partition: 0,
            open: None,
            last: None,
            block: Vec::with_capacity(RUN_BLOCK_RECORDS_MAX),
            raw: Vec::new(),
            before: Vec::new(),
            stored_bytes: 0,
        })
    }

    /// Adds a record, greater than all before it.
    pub fn push(&mut self, record: Record) -> Result<()> {
        assert!(self.last.is_none_or(|last| last < record), "a run's records come in order");
        let partition = self.run.partition_of(&record.fingerprint);
        self.close_until(partition)?;
        self.last = Some(record);
        self.run.records += 1;
        self.block.push(record);
        if self.block.len() == RUN_BLOCK_RECORDS_MAX {
            self.end_block();
        }
        Ok(())
    }

    /// Writes the last partitions; returns the proof that the whole run is durable.
    pub fn finish(mut self) -> Result<DurableRun> {
        self.close_until(self.run.partitions())?;
        Ok(DurableRun { run: self.run, stored_bytes: self.stored_bytes })
    }

    /// Writes every partition before `partition`, also those that have no record.
    fn close_until(&mut self, partition: u32) -> Result<()> {
        while self.partition < partition {
            self.end_block();
            self.close()?;
            self.partition += 1;
        }
        Ok(())
    }

    fn address(&self) -> Address {
        let (kind, number) = (ObjectKind::Run, self.run.id.0);
        Address::of_part(kind, self.store, number, self.partition)
    }

    fn open(&mut self) -> &mut Open {
        let (address, objects) = (self.address(), &self.objects);
        self.open.get_or_insert_with(|| {
            let header = objects.new_header(address);
            let sealer = objects.sealer(&header);
            let body = header.encode().to_vec();
            let directory = RunDirectory::default();
            Open { header, sealer, body, directory, drawn: Vec::new() }
        })
    }

    fn end_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let mut raw = std::mem::take(&mut self.raw);
        encode_records(&self.block, &mut raw);
        let block = std::mem::take(&mut self.block);
        let open = self.open();
        let mut prints: Vec<u64> =
            block.iter().map(|record| RunFilter::draw(&record.fingerprint)).collect();
        prints.dedup();
        open.drawn.append(&mut prints);
        let offset = to_u32(open.body.len());
        let Some(Open { sealer, body, .. }) = &mut self.open else { return };
        let sealed_bytes = to_u32(self.writer.append(sealer, u64::from(offset), &raw, body));
        let first = block[0].fingerprint;
        let hash = self.objects.keys.content_hash(Hashed::RunBlock, &raw);
        if let Some(open) = &mut self.open {
            open.directory.blocks.push(RunBlock { offset, sealed_bytes, first, hash });
        }
        (self.raw, self.block) = (raw, block);
        self.block.clear();
    }

    /// Writes the partition that is being filled; durable on return.
    fn close(&mut self) -> Result<()> {
        self.open();
        let address = self.address();
        let Some(mut open) = self.open.take() else { return Ok(()) };
        if let Some(geometry) = filter_geometry(open.drawn.len()) {
            let mut filter = vec![0; geometry.partition_bytes as usize];
            open.drawn.iter().for_each(|drawn| geometry.insert(*drawn, &mut filter));
            let offset = to_u32(open.body.len());
            let position = u64::from(offset);
            let length = self.writer.append(&open.sealer, position, &filter, &mut open.body);
            let sealed_bytes = to_u32(length);
            let hash = self.objects.keys.content_hash(Hashed::RunFilter, &filter);
            open.directory.filter = Some(RunFilter { geometry, offset, sealed_bytes, hash });
        }
        if address.part + 1 == self.run.partitions() {
            open.directory.before = std::mem::take(&mut self.before);
        }
        let directory = open.directory.encode();
        let hash = self.objects.keys.content_hash(Hashed::RunDirectory, &directory);
        self.before.push(hash);
        self.run.hash = hash;
        let sealer = (&open.header, &open.sealer);
        let end = close_object(&mut self.writer, sealer, open.body.len(), &directory);
        let name = names::run(self.store, self.run.id, address.part);
        let pieces = [open.body.into(), end.into()];
        self.stored_bytes += self.objects.put_pieces(&name, ObjectKind::Run, &pieces)?;
        Ok(())
    }
}
