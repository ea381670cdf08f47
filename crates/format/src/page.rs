//! Map pages: the tree that leads from a volume to its segments' recipes.
//!
//! A leaf page covers 1,024 segments (2 GiB), a page above it 1,024 pages, and so on. Absent
//! entries mean zeros. A snapshot shares every unchanged page with its parent.

use crate::codec::{Decoder, Encoder, unsupported};
use crate::number::to_u16;
use crate::{
    BlockRef, ContentHash, Error, Result, SEGMENT_BYTES, SIGNATURES, SegmentDigest, Signatures,
};

/// Number of entries in a page.
pub const PAGE_ENTRIES: usize = 1024;
/// Maximum number of levels of a map: enough for every 64-bit volume size.
pub const PAGE_LEVELS_MAX: u8 = 5;
const LAYOUT: u8 = 1;
const BITMAP_BYTES: usize = PAGE_ENTRIES / 8;

/// A leaf page's entry for a segment that is not all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// The location of its recipe.
    pub recipe: BlockRef,
    /// The digest of its bytes.
    pub digest: SegmentDigest,
    /// Its signatures, used to find similar segments.
    pub signatures: Signatures,
}

/// A page of a volume's map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    /// Level 0: 1,024 entries, one per segment; `None` for zeros.
    Leaf(Vec<Option<SegmentEntry>>),
    /// Level 1 and up: 1,024 child pages; `None` for zeros.
    Branch(u8, Vec<Option<BlockRef>>),
}

/// The root of a volume's map: the top page and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRoot {
    /// The level of the top page.
    pub level: u8,
    /// The top page; `None` if the whole volume is zeros.
    pub page: Option<BlockRef>,
}

/// Returns the number of segments of a volume of `volume_bytes` bytes.
pub fn segment_count(volume_bytes: u64) -> u64 {
    volume_bytes.div_ceil(SEGMENT_BYTES as u64)
}

/// Returns the level of the top page of a volume with `segments` segments.
pub fn root_level(segments: u64) -> u8 {
    let (mut level, mut covered) = (0, PAGE_ENTRIES as u64);
    while covered < segments {
        covered = covered.saturating_mul(PAGE_ENTRIES as u64);
        level += 1;
    }
    level
}

impl Page {
    /// Returns whether only zeros are below it.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Leaf(entries) => entries.iter().all(Option::is_none),
            Self::Branch(_, entries) => entries.iter().all(Option::is_none),
        }
    }

    /// The stored form: layout, level, a bitmap of the present entries, then these entries.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.u8(LAYOUT);
        match self {
            Self::Leaf(entries) => {
                to.u8(0);
                encode_entries(entries, &mut to, |entry, to| {
                    entry.recipe.encode(to);
                    to.u8(entry.digest.kind);
                    to.raw(&entry.digest.bytes);
                    entry.signatures.0.iter().for_each(|signature| to.u32(*signature));
                });
            }
            Self::Branch(level, entries) => {
                to.u8(*level);
                encode_entries(entries, &mut to, |entry, to| entry.encode(to));
            }
        }
        to.bytes
    }

    /// Decodes a page that must have level `level`.
    pub fn decode(bytes: &[u8], level: u8) -> Result<Self> {
        let mut from = Decoder::new(bytes, "map page");
        let (layout, found) = (from.u8()?, from.u8()?);
        if layout != LAYOUT {
            return Err(unsupported("map page", &format!("layout {layout}")));
        }
        if found != level {
            return Err(from.corrupt(format!("its level is {found}, not {level}")));
        }
        let page = if level == 0 {
            Self::Leaf(decode_entries(&mut from, |from| {
                let recipe = BlockRef::decode(from)?;
                let digest = SegmentDigest { kind: from.u8()?, bytes: from.array()? };
                let mut signatures = [0; SIGNATURES];
                for signature in &mut signatures {
                    *signature = from.u32()?;
                }
                Ok(SegmentEntry { recipe, digest, signatures: Signatures(signatures) })
            })?)
        } else {
            Self::Branch(level, decode_entries(&mut from, BlockRef::decode)?)
        };
        from.end()?;
        Ok(page)
    }
}

fn encode_entries<T>(
    entries: &[Option<T>],
    to: &mut Encoder,
    mut encode: impl FnMut(&T, &mut Encoder),
) {
    assert!(entries.len() <= PAGE_ENTRIES, "a page has at most {PAGE_ENTRIES} entries");
    let mut bitmap = [0_u8; BITMAP_BYTES];
    for (i, _) in entries.iter().enumerate().filter(|(_, entry)| entry.is_some()) {
        bitmap[i / 8] |= 1 << (i % 8);
    }
    to.u16(to_u16(entries.len()));
    to.raw(&bitmap);
    entries.iter().flatten().for_each(|entry| encode(entry, to));
}

fn decode_entries<T>(
    from: &mut Decoder<'_>,
    mut decode: impl FnMut(&mut Decoder<'_>) -> Result<T>,
) -> Result<Vec<Option<T>>> {
    let count = usize::from(from.u16()?);
    if count > PAGE_ENTRIES {
        return Err(from.corrupt(format!("{count} entries in a page")));
    }
    let bitmap = from.array::<BITMAP_BYTES>()?;
    let present = |i: usize| bitmap[i / 8] & 1 << (i % 8) != 0;
    if (count..PAGE_ENTRIES).any(present) {
        return Err(from.corrupt("its bitmap goes past its entries"));
    }
    let mut entries = Vec::with_capacity(count);
    for i in 0..count {
        entries.push(if present(i) { Some(decode(from)?) } else { None });
    }
    Ok(entries)
}

impl MapRoot {
    pub(crate) fn encode(self, to: &mut Encoder) {
        to.u8(self.level);
        to.u8(u8::from(self.page.is_some()));
        let hash = ContentHash([0; 16]);
        self.page.unwrap_or(BlockRef { pack: 0, offset: 0, length: 0, hash }).encode(to);
    }
    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (level, present) = (from.u8()?, from.u8()?);
        let page = BlockRef::decode(from)?;
        Ok(Self { level, page: (present != 0).then_some(page) })
    }
    /// Fails with `Corrupt` unless the map has as many levels as a volume of this size needs.
    pub(crate) fn check(self, volume_bytes: u64) -> Result<Self> {
        if self.level > PAGE_LEVELS_MAX || self.level != root_level(segment_count(volume_bytes)) {
            return Err(Error::corrupt("a volume's map does not fit its size"));
        }
        Ok(self)
    }
}
