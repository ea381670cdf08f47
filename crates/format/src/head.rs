//! Heads: what a series is made of. The head of the highest generation counts.

use crate::codec::{Decoder, Encoder, REQUIRED};
use crate::envelope::{Id, SeriesId};
use crate::reference::ObjectSet;
use crate::summary::SummaryGeometry;
use crate::{Error, Result};

const CORE: u16 = 1;
const STORES: u16 = 2;
const CONTAINERS: u16 = 3;
const PACKS: u16 = 4;
const SNAPSHOTS: u16 = 5;
const SUMMARY: u16 = 6;

/// One entry of a head's store table: what a store number in a reference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The number that references carry.
    pub number: u16,
    /// 0: the series' private store; 1: its domain's shared store; others are of later versions.
    pub kind: u8,
    /// The store's id: the series' own for a private store.
    pub id: SeriesId,
}

/// One living snapshot as its head lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The snapshot's id.
    pub id: Id,
    /// When its backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Reserved, zero.
    pub flags: u32,
}

/// What a series is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Counts commits, from 1.
    pub generation: u64,
    /// The series.
    pub series: SeriesId,
    /// The domain whose fingerprints the series shares.
    pub domain: u32,
    /// The series' name.
    pub name: String,
    /// The session that wrote this head: 16 random bytes.
    pub writer: [u8; 16],
    /// The number that the next container gets.
    pub next_container: u32,
    /// The number that the next recipe pack gets.
    pub next_pack: u32,
    /// What store numbers mean.
    pub stores: Vec<StoreEntry>,
    /// The private containers.
    pub containers: ObjectSet,
    /// The recipe packs.
    pub packs: ObjectSet,
    /// The living snapshots, oldest first.
    pub snapshots: Vec<SnapshotEntry>,
    /// The size and hash functions that new summary vectors get.
    pub summary: Option<SummaryGeometry>,
}

impl Head {
    /// The head of a series before its first commit.
    pub fn empty(series: SeriesId, domain: u32, name: &str) -> Self {
        Self {
            generation: 0,
            series,
            domain,
            name: name.to_owned(),
            writer: [0; 16],
            next_container: 0,
            next_pack: 0,
            stores: vec![StoreEntry { number: 0, kind: 0, id: series }],
            containers: ObjectSet::default(),
            packs: ObjectSet::default(),
            snapshots: Vec::new(),
            summary: None,
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.u64(self.generation);
            to.raw(&self.series.0);
            to.u32(self.domain);
            to.string(&self.name);
            to.raw(&self.writer);
            to.u32(self.next_container);
            to.u32(self.next_pack);
        });
        to.section(STORES, REQUIRED, |to| {
            to.count(self.stores.len());
            for store in &self.stores {
                to.u16(store.number);
                to.u8(store.kind);
                to.u8(0);
                to.raw(&store.id.0);
            }
        });
        to.section(CONTAINERS, REQUIRED, |to| self.containers.encode(to));
        to.section(PACKS, REQUIRED, |to| self.packs.encode(to));
        to.section(SNAPSHOTS, REQUIRED, |to| {
            to.count(self.snapshots.len());
            for snapshot in &self.snapshots {
                to.u64(snapshot.id.0);
                to.i64(snapshot.time_ns);
                to.u32(snapshot.flags);
            }
        });
        if let Some(geometry) = self.summary {
            to.section(SUMMARY, 0, |to| geometry.encode(to));
        }
        to.bytes
    }

    /// Reads a head.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut core = None;
        let mut found = Self::empty(SeriesId::NONE, 0, "");
        let mut sections = 0;
        Decoder::new(bytes, "head").sections(|tag, body| {
            match tag {
                CORE => core = Some(decode_core(body)?),
                STORES => found.stores = body.list(16, decode_store)?,
                CONTAINERS => found.containers = ObjectSet::decode(body)?,
                PACKS => found.packs = ObjectSet::decode(body)?,
                SNAPSHOTS => {
                    found.snapshots = body.list(20, |item| {
                        let (id, time_ns) = (Id(item.u64()?), item.i64()?);
                        Ok(SnapshotEntry { id, time_ns, flags: item.u32()? })
                    })?;
                }
                SUMMARY => found.summary = Some(SummaryGeometry::decode(body)?),
                _ => return Ok(false),
            }
            sections |= 1 << tag;
            Ok(true)
        })?;
        let all = 1 << CORE | 1 << STORES | 1 << CONTAINERS | 1 << PACKS | 1 << SNAPSHOTS;
        match core {
            Some(core) if sections & all == all => Ok(Self {
                stores: found.stores,
                containers: found.containers,
                packs: found.packs,
                snapshots: found.snapshots,
                summary: found.summary,
                ..core
            }),
            _ => Err(Error::corrupt("head: a section is missing")),
        }
    }
}

fn decode_core(body: &mut Decoder<'_>) -> Result<Head> {
    let (generation, series, domain) = (body.u64()?, SeriesId(body.array()?), body.u32()?);
    let mut head = Head::empty(series, domain, &body.string()?);
    head.generation = generation;
    head.writer = body.array()?;
    head.next_container = body.u32()?;
    head.next_pack = body.u32()?;
    Ok(head)
}

fn decode_store(item: &mut Decoder<'_>) -> Result<StoreEntry> {
    let (number, kind, _) = (item.u16()?, item.u8()?, item.u8()?);
    Ok(StoreEntry { number, kind, id: SeriesId(item.array()?) })
}
