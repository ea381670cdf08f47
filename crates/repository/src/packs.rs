//! Packing recipes and map pages into recipe packs.

use std::sync::Arc;

use silt_format::number::{to_u32, to_u64};
use silt_format::{
    BlockEntry, BlockKind, BlockReader, BlockRef, BlockWriter, Error, HEADER_BYTES, Header,
    ObjectKind, ObjectTag, Result, ResultExt, Sealer, SeriesId, encode_blocks, names,
};

use crate::directories::close_object;
use crate::map::MapReader;
use crate::objects::{Address, Objects};

/// Sealed bytes at which a pack is written.
const PACK_BYTES: usize = 2 << 20;
const METADATA_LEVEL: i32 = 1;

/// Writes the recipe packs of one session.
pub struct PackWriter {
    objects: Arc<Objects>,
    series: SeriesId,
    reader: Arc<MapReader>,
    writer: BlockWriter,
    tag: ObjectTag,
    next_number: u32,
    open: Option<OpenPack>,
    /// Bytes of packs so far.
    pub stored_bytes: u64,
    durable: Vec<(u32, ObjectTag)>,
}

struct OpenPack {
    number: u32,
    header: Header,
    sealer: Sealer,
    body: Vec<u8>,
    entries: Vec<BlockEntry>,
}

/// The numbers and tags of durable packs: proof for a commit.
pub struct DurablePacks(Vec<(u32, ObjectTag)>);

impl DurablePacks {
    /// The numbers and tags.
    pub fn into_numbers(self) -> Vec<(u32, ObjectTag)> {
        self.0
    }
}

impl PackWriter {
    /// A writer; `reader` learns of every pack that was written.
    pub fn new(
        objects: &Arc<Objects>,
        series: SeriesId,
        reader: &Arc<MapReader>,
        next_number: u32,
        tag: ObjectTag,
    ) -> Result<Self> {
        Ok(Self {
            objects: Arc::clone(objects),
            series,
            reader: Arc::clone(reader),
            writer: BlockWriter::new(METADATA_LEVEL)?,
            tag,
            next_number,
            open: None,
            stored_bytes: 0,
            durable: Vec::new(),
        })
    }

    /// The number that the next pack gets.
    pub fn next_number(&self) -> u32 {
        self.next_number
    }

    /// Bytes of the pack that is still being filled.
    pub fn pending_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| to_u64(open.body.len()))
    }

    /// Starts numbering after packs that an interrupted backup has left.
    pub fn start_at(&mut self, number: u32) {
        self.next_number = self.next_number.max(number);
    }

    /// Adds a block; returns a reference to it.
    pub fn append(&mut self, kind: BlockKind, raw: &[u8]) -> Result<BlockRef> {
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let number = self.next_number;
                self.next_number = number.checked_add(1).ok_or_else(|| {
                    Error::invalid("the series has used all 2^32 recipe pack numbers")
                })?;
                none.insert(OpenPack::new(&self.objects, self.series, number, self.tag))
            }
        };
        let offset = to_u32(open.body.len());
        let position = u64::from(offset);
        let length = to_u32(self.writer.append(&open.sealer, position, raw, &mut open.body));
        open.entries.push(BlockEntry { kind, offset, sealed_bytes: length });
        let hash = self.objects.keys.content_hash(kind.into(), raw);
        let block = BlockRef { pack: open.number, offset, length, hash };
        if open.body.len() >= PACK_BYTES {
            self.close()?;
        }
        Ok(block)
    }

    /// A block of the pack that is still being filled.
    pub fn pending(&self, block: BlockRef) -> Result<Option<Vec<u8>>> {
        let Some(open) = self.open.as_ref().filter(|open| open.number == block.pack) else {
            return Ok(None);
        };
        let start = block.offset as usize;
        let mut sealed = open.body[start..start + block.length as usize].to_vec();
        let mut raw = Vec::new();
        let position = u64::from(block.offset);
        BlockReader::default().read(&open.sealer, position, &mut sealed, &mut raw)?;
        Ok(Some(raw))
    }

    /// Writes the pack that is being filled, if there is one; durable on return.
    pub fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let directory = encode_blocks(&open.entries);
        let sealer = (&open.header, &open.sealer);
        let end = close_object(&mut self.writer, sealer, open.body.len(), &directory);
        let name = names::pack(self.series, open.number, self.tag);
        self.stored_bytes += self
            .objects
            .put_pieces(&name, ObjectKind::Recipes, &[open.body.into(), end.into()])
            .context(|| "store recipes")?;
        self.reader.add_pack(open.number, self.tag);
        self.durable.push((open.number, self.tag));
        Ok(())
    }

    /// Writes the last pack; returns the proof that every pack is durable.
    pub fn finish(&mut self) -> Result<DurablePacks> {
        self.close()?;
        Ok(DurablePacks(std::mem::take(&mut self.durable)))
    }
}

impl OpenPack {
    fn new(objects: &Objects, series: SeriesId, number: u32, tag: ObjectTag) -> Self {
        let address = Address::tagged(ObjectKind::Recipes, series, number, tag);
        let header = objects.new_header(address);
        let mut body = Vec::with_capacity(HEADER_BYTES);
        body.extend_from_slice(&header.encode());
        Self { number, header, sealer: objects.sealer(&header), body, entries: Vec::new() }
    }
}
