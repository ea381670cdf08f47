//! Heads: the state of a series. The head with the highest generation counts.

use crate::codec::{Decoder, Encoder, REQUIRED};
use crate::dead::DEAD_LIST_PARTS_MAX;
use crate::envelope::{Id, SeriesId};
use crate::policy::RetentionPolicy;
use crate::reference::{ObjectSet, PRIVATE_STORE, SHARED_STORE};
use crate::run::RunRef;
use crate::summary::SummaryGeometry;
use crate::tree::FileChunking;
use crate::{ContentHash, Error, Result};

const CORE: u16 = 1;
const STORES: u16 = 2;
const CONTAINERS: u16 = 3;
const PACKS: u16 = 4;
const SNAPSHOTS: u16 = 5;
const SUMMARY: u16 = 6;
const DELETED: u16 = 16;
const DEAD: u16 = 17;
const LEAK: u16 = 18;
const POLICY: u16 = 19;
const RUNS: u16 = 21;
const CONDEMNED: u16 = 22;
const DELTA_BASES: u16 = 24;
const ALIAS: u16 = 25;
const USERS: u16 = 26;
const FILE_CHUNKING: u16 = 27;
const WRITERS_OF_STORE: u16 = 28;
const APPLICATIONS: u16 = 29;

/// How far ahead of the clock a time may be and still count, in nanoseconds: ten minutes. The clock
/// of the host that wrote a later one was wrong, so nothing is known about when it was.
pub const AHEAD_NS_MAX: i64 = 10 * 60 * 1_000_000_000;

/// An entry of a head's store table, which resolves the store numbers in references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The number that references carry.
    pub number: u16,
    /// 0: the series' private store; 1: its domain's shared store; 2: a storage node; others are of
    /// later versions.
    pub kind: u8,
    /// The store's id: the series' own for a private store.
    pub id: SeriesId,
    /// The generation of the store's head known to the newest commit; 0 for the private store.
    pub seen: u64,
    /// The location of the store; none if the repository's list of places has it.
    pub places: Vec<String>,
}

impl StoreEntry {
    /// The kind of the store with this number.
    pub fn kind_of(number: u16) -> u8 {
        match number {
            PRIVATE_STORE => 0,
            SHARED_STORE => 1,
            _ => 2,
        }
    }

    /// A store whose location is in the repository's list of places, not yet known to any commit.
    pub fn new(number: u16, kind: u8, id: SeriesId) -> Self {
        Self { number, kind, id, seen: 0, places: Vec::new() }
    }

    fn encode(&self, to: &mut Encoder) {
        to.u16(self.number);
        to.u8(self.kind);
        to.u8(0);
        to.raw(&self.id.0);
        to.u64(self.seen);
        to.strings(&self.places);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (number, kind, _) = (from.u16()?, from.u8()?, from.u8()?);
        let (id, seen) = (SeriesId(from.array()?), from.u64()?);
        Ok(Self { number, kind, id, seen, places: from.strings()? })
    }
}

/// A backup that writes to a storage node: the container numbers that it has reserved.
///
/// Only with this entry in the node's newest head can it register what it has written. A sweep
/// takes the entry away once the backup has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreWriter {
    /// The backup's session, which also its lease names.
    pub session: [u8; 16],
    /// The series that is backed up.
    pub series: SeriesId,
    /// The first reserved number.
    pub first: u32,
    /// Behind the last reserved number.
    pub end: u32,
}

impl StoreWriter {
    fn encode(&self, to: &mut Encoder) {
        to.raw(&self.session);
        to.raw(&self.series.0);
        to.u32(self.first);
        to.u32(self.end);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (session, series) = (from.array()?, SeriesId(from.array()?));
        Ok(Self { session, series, first: from.u32()?, end: from.u32()? })
    }
}

/// A living snapshot, as listed in the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The snapshot's id.
    pub id: Id,
    /// When its backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    /// [`PROTECTED`](Self::PROTECTED) or zero.
    pub flags: u32,
    /// The hash of the snapshot's plain bytes.
    pub hash: ContentHash,
    /// The user's labels.
    pub labels: Vec<String>,
}

impl SnapshotEntry {
    /// The flag of a snapshot that no policy deletes.
    pub const PROTECTED: u32 = 1;

    /// Whether the snapshot is protected from deletion.
    pub fn is_protected(&self) -> bool {
        self.flags & Self::PROTECTED != 0
    }

    fn encode(&self, to: &mut Encoder) {
        to.u64(self.id.0);
        to.i64(self.time_ns);
        to.u32(self.flags);
        to.raw(&self.hash.0);
        to.strings(&self.labels);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (id, time_ns, flags) = (Id(from.u64()?), from.i64()?, from.u32()?);
        Ok(Self { id, time_ns, flags, hash: ContentHash(from.array()?), labels: from.strings()? })
    }
}

/// A deleted snapshot whose data may still exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedEntry {
    /// The snapshot's former entry.
    pub entry: SnapshotEntry,
    /// When it was deleted, in nanoseconds since 1970.
    pub deleted_ns: i64,
}

/// A dead list that a head names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadListRef {
    /// The list's id.
    pub id: Id,
    /// Number of its objects, at least one.
    pub parts: u32,
    /// Number of its slots; a whole container counts as the maximum number of slots.
    pub slots: u64,
    /// Its content hash.
    pub hash: ContentHash,
}

/// The expected leaks of approximate deletions since the last exact sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeakForecast {
    /// Number of deleted snapshots.
    pub deletions: u32,
    /// Dead chunks that are not known to be dead, in thousandths of a chunk.
    pub leaked_millichunks: u64,
    /// Estimated number of chunks that the series stored at the last deletion.
    pub stored_chunks: u64,
}

/// The state of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The generation, counted from 1.
    pub generation: u64,
    /// The series.
    pub series: SeriesId,
    /// The domain whose fingerprints the series shares.
    pub domain: u32,
    /// The series' name.
    pub name: String,
    /// The session that wrote this head: 16 random bytes.
    pub writer: [u8; 16],
    /// The number of the list of writers known to this head's writer.
    pub writers: u64,
    /// The number of the next container.
    pub next_container: u32,
    /// The number of the next recipe pack.
    pub next_pack: u32,
    /// The stores by number.
    pub stores: Vec<StoreEntry>,
    /// The private containers.
    pub containers: ObjectSet,
    /// The recipe packs.
    pub packs: ObjectSet,
    /// The living snapshots, oldest first.
    pub snapshots: Vec<SnapshotEntry>,
    /// The size and hash functions of new summary vectors.
    pub summary: Option<SummaryGeometry>,
    /// Deleted snapshots that may be brought back, in the order of deletion.
    pub deleted: Vec<DeletedEntry>,
    /// The slots that no living snapshot refers to.
    pub dead: Vec<DeadListRef>,
    /// The expected leaks of deletions.
    pub leak: LeakForecast,
    /// The retention policy, if the series has its own.
    pub policy: Option<RetentionPolicy>,
    /// Of a shared store: its index.
    pub runs: Vec<RunRef>,
    /// Of a shared store: slots that new backups may not refer to. Once all earlier backups have
    /// ended, those without references are dead.
    pub condemned: Vec<DeadListRef>,
    /// Of a shared store: the generation of the head that condemned them.
    pub condemned_in: u64,
    /// Slots that are bases of deltas: they stay, whether a snapshot refers to them or not.
    pub delta_bases: Vec<DeadListRef>,
    /// The name shown instead of the one that ids are derived from.
    pub alias: Option<String>,
    /// Of a shared store: the series that may use it, as of its last build or sweep.
    pub users: Vec<SeriesId>,
    /// How files of trees are cut into chunks, if not by default.
    pub file_chunking: Option<FileChunking>,
    /// Of a storage node: the backups that write to it.
    pub store_writers: Vec<StoreWriter>,
    /// Of a storage node: the applications whose chunks it has, a hint for routing.
    pub applications: Vec<u16>,
}

impl Head {
    /// Returns the name to show: the alias, or else the series' own name.
    pub fn shown(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }

    /// The head of a series before its first commit.
    pub fn empty(series: SeriesId, domain: u32, name: &str) -> Self {
        Self {
            generation: 0,
            series,
            domain,
            name: name.to_owned(),
            writer: [0; 16],
            writers: 0,
            next_container: 0,
            next_pack: 0,
            stores: vec![StoreEntry::new(0, 0, series)],
            containers: ObjectSet::default(),
            packs: ObjectSet::default(),
            snapshots: Vec::new(),
            summary: None,
            deleted: Vec::new(),
            dead: Vec::new(),
            leak: LeakForecast::default(),
            policy: None,
            runs: Vec::new(),
            condemned: Vec::new(),
            condemned_in: 0,
            delta_bases: Vec::new(),
            alias: None,
            users: Vec::new(),
            file_chunking: None,
            store_writers: Vec::new(),
            applications: Vec::new(),
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
            to.u64(self.writers);
            to.u32(self.next_container);
            to.u32(self.next_pack);
        });
        to.section(STORES, REQUIRED, |to| {
            to.count(self.stores.len());
            self.stores.iter().for_each(|store| store.encode(to));
        });
        to.section(CONTAINERS, REQUIRED, |to| self.containers.encode(to));
        to.section(PACKS, REQUIRED, |to| self.packs.encode(to));
        to.section(SNAPSHOTS, REQUIRED, |to| {
            to.count(self.snapshots.len());
            self.snapshots.iter().for_each(|entry| entry.encode(to));
        });
        if let Some(geometry) = self.summary {
            to.section(SUMMARY, 0, |to| geometry.encode(to));
        }
        self.encode_deletions(&mut to);
        if let Some(policy) = &self.policy {
            to.section(POLICY, 0, |to| policy.encode(to));
        }
        self.encode_sharing(&mut to);
        if let Some(chunking) = &self.file_chunking {
            to.section(FILE_CHUNKING, REQUIRED, |to| chunking.encode(to));
        }
        if !self.store_writers.is_empty() {
            to.section(WRITERS_OF_STORE, REQUIRED, |to| {
                to.count(self.store_writers.len());
                self.store_writers.iter().for_each(|writer| writer.encode(to));
            });
        }
        if !self.applications.is_empty() {
            to.section(APPLICATIONS, 0, |to| {
                to.count(self.applications.len());
                self.applications.iter().for_each(|application| to.u16(*application));
            });
        }
        to.bytes
    }

    /// The generation of a store's head known to the newest commit; 0 if none.
    pub fn seen(&self, number: u16) -> u64 {
        self.stores.iter().find(|store| store.number == number).map_or(0, |store| store.seen)
    }

    /// Whether the table has a store with this number: chunks may be referred to that are there.
    pub fn names(&self, number: u16) -> bool {
        self.stores.iter().any(|store| store.number == number)
    }

    /// The sections about deletions, omitted while there were none.
    fn encode_deletions(&self, to: &mut Encoder) {
        if !self.deleted.is_empty() {
            to.section(DELETED, REQUIRED, |to| {
                to.count(self.deleted.len());
                for deleted in &self.deleted {
                    deleted.entry.encode(to);
                    to.i64(deleted.deleted_ns);
                }
            });
        }
        if !self.dead.is_empty() {
            to.section(DEAD, REQUIRED, |to| encode_lists(&self.dead, to));
        }
        if self.leak != LeakForecast::default() {
            to.section(LEAK, 0, |to| {
                to.u32(self.leak.deletions);
                to.u64(self.leak.leaked_millichunks);
                to.u64(self.leak.stored_chunks);
            });
        }
    }

    /// The sections about the shared store, omitted while there is none.
    fn encode_sharing(&self, to: &mut Encoder) {
        if !self.runs.is_empty() {
            to.section(RUNS, REQUIRED, |to| {
                to.count(self.runs.len());
                self.runs.iter().for_each(|run| run.encode(to));
            });
        }
        if !self.condemned.is_empty() {
            to.section(CONDEMNED, REQUIRED, |to| {
                to.u64(self.condemned_in);
                encode_lists(&self.condemned, to);
            });
        }
        if !self.delta_bases.is_empty() {
            to.section(DELTA_BASES, REQUIRED, |to| encode_lists(&self.delta_bases, to));
        }
        if let Some(alias) = &self.alias {
            to.section(ALIAS, 0, |to| to.string(alias));
        }
        if !self.users.is_empty() {
            to.section(USERS, REQUIRED, |to| {
                to.count(self.users.len());
                self.users.iter().for_each(|series| to.raw(&series.0));
            });
        }
    }

    /// Reads a head.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut core = None;
        let mut found = Self::empty(SeriesId::NONE, 0, "");
        let mut sections = 0;
        Decoder::new(bytes, "head").sections(|tag, body| {
            match tag {
                CORE => core = Some(decode_core(body)?),
                STORES => found.stores = body.list(28, StoreEntry::decode)?,
                CONTAINERS => found.containers = ObjectSet::decode(body)?,
                PACKS => found.packs = ObjectSet::decode(body)?,
                SNAPSHOTS => {
                    found.snapshots = body.list(40, SnapshotEntry::decode)?;
                }
                SUMMARY => found.summary = Some(SummaryGeometry::decode(body)?),
                DELETED => found.deleted = body.list(48, decode_deleted)?,
                DEAD => found.dead = body.list(36, decode_dead)?,
                LEAK => {
                    let (deletions, leaked_millichunks) = (body.u32()?, body.u64()?);
                    let stored_chunks = body.u64()?;
                    found.leak = LeakForecast { deletions, leaked_millichunks, stored_chunks };
                }
                POLICY => found.policy = Some(RetentionPolicy::decode(body)?),
                RUNS => found.runs = body.list(34, RunRef::decode)?,
                CONDEMNED => {
                    found.condemned_in = body.u64()?;
                    found.condemned = body.list(36, decode_dead)?;
                    if found.condemned.is_empty() {
                        return Err(body.corrupt("a head that condemns nothing says when it did"));
                    }
                }
                DELTA_BASES => found.delta_bases = body.list(36, decode_dead)?,
                ALIAS => found.alias = Some(body.string()?),
                USERS => found.users = body.list(12, |item| Ok(SeriesId(item.array()?)))?,
                FILE_CHUNKING => found.file_chunking = Some(FileChunking::decode(body)?),
                WRITERS_OF_STORE => found.store_writers = body.list(36, StoreWriter::decode)?,
                APPLICATIONS => found.applications = body.list(2, Decoder::u16)?,
                _ => return Ok(false),
            }
            sections |= 1_u32 << tag;
            Ok(true)
        })?;
        let all = 1 << CORE | 1 << STORES | 1 << CONTAINERS | 1 << PACKS | 1 << SNAPSHOTS;
        match core {
            Some(core) if sections & all == all => Ok(Self {
                generation: core.generation,
                series: core.series,
                domain: core.domain,
                name: core.name,
                writer: core.writer,
                writers: core.writers,
                next_container: core.next_container,
                next_pack: core.next_pack,
                ..found
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
    head.writers = body.u64()?;
    head.next_container = body.u32()?;
    head.next_pack = body.u32()?;
    Ok(head)
}

fn encode_lists(lists: &[DeadListRef], to: &mut Encoder) {
    to.count(lists.len());
    for list in lists {
        to.u64(list.id.0);
        to.u32(list.parts);
        to.u64(list.slots);
        to.raw(&list.hash.0);
    }
}

fn decode_deleted(item: &mut Decoder<'_>) -> Result<DeletedEntry> {
    Ok(DeletedEntry { entry: SnapshotEntry::decode(item)?, deleted_ns: item.i64()? })
}

fn decode_dead(item: &mut Decoder<'_>) -> Result<DeadListRef> {
    let (id, parts, slots) = (Id(item.u64()?), item.u32()?, item.u64()?);
    let list = DeadListRef { id, parts, slots, hash: ContentHash(item.array()?) };
    if list.parts == 0 || list.parts > DEAD_LIST_PARTS_MAX {
        return Err(item.corrupt(format!("a dead list has {} parts", list.parts)));
    }
    Ok(list)
}
