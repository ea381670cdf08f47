//! A small world: clock, entropy, processes, disks in memory, and cheap repositories.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::{ByteSpan, Chunking, Config, Error, ErrorKind, Lease, Result, SEGMENT_BYTES};
use silt_format::{RepositoryId, SeriesId};
use silt_source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource, VolumeTarget};
use silt_storage::{
    ByteRange, Counted, CrashStorage, CrashingOperation, Guarantees, Key, ListPage, MemoryStorage,
    ObjectMeta, PutMode, Storage,
};
use siltstone::{
    BackupOptions, BackupReport, Context, Env, Event, Found, Observer, OperationId, Process,
    Protection, ReclaimOptions, Repository, RestoreOptions, RestoreReport, Selector, When,
};

/// SplitMix64: everything random in these tests comes from a seed that is printed on failure.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}

/// Opens what is encrypted here.
pub const PASSWORD: &[u8] = b"password";

/// A clock that is set, seeded entropy, and processes that live and die as told.
/// The newest head of each series that was noted.
pub type Notes = HashMap<(RepositoryId, SeriesId), u64>;

pub struct World {
    now_ns: AtomicI64,
    entropy: Mutex<Random>,
    process: u32,
    host: String,
    dead: Arc<Mutex<HashSet<u32>>>,
    pub interrupted: AtomicBool,
    pub warnings: Mutex<Vec<String>>,
    /// What the machine has noted, if it keeps notes.
    pub notes: Mutex<Option<Notes>>,
    /// Where the machine remembers segments, if it does.
    pub segments: Mutex<Option<PathBuf>>,
}

impl World {
    pub fn new(seed: u64) -> Arc<Self> {
        Self::process(seed, 1, "here", &Arc::default())
    }
    pub fn process(
        seed: u64,
        process: u32,
        host: &str,
        dead: &Arc<Mutex<HashSet<u32>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            now_ns: AtomicI64::new(1_790_000_000_000_000_000),
            entropy: Mutex::new(Random(seed)),
            process,
            host: host.to_owned(),
            dead: Arc::clone(dead),
            interrupted: AtomicBool::new(false),
            warnings: Mutex::default(),
            notes: Mutex::default(),
            segments: Mutex::default(),
        })
    }
    pub fn pass_seconds(&self, seconds: i64) {
        self.now_ns.fetch_add(seconds * 1_000_000_000, Ordering::SeqCst);
    }
    pub fn context(self: &Arc<Self>) -> Context {
        Context::new(self.clone(), self.clone())
    }
}

impl Env for World {
    fn now_ns(&self) -> i64 {
        self.now_ns.fetch_add(1_000_000, Ordering::SeqCst)
    }
    fn entropy(&self, bytes: &mut [u8]) {
        self.entropy.lock().unwrap().fill(bytes);
    }
    fn process(&self) -> Process {
        Process { host: self.host.clone(), boot: "boot".to_owned(), id: self.process, start: 1 }
    }
    fn may_be_running(&self, lease: &Lease) -> bool {
        lease.host != self.host || !self.dead.lock().unwrap().contains(&lease.process)
    }
    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }
    fn newest_seen(&self, repository: RepositoryId, series: SeriesId) -> u64 {
        let notes = self.notes.lock().unwrap();
        notes.as_ref().and_then(|notes| notes.get(&(repository, series)).copied()).unwrap_or(0)
    }
    fn segment_notes(&self, repository: RepositoryId) -> Option<PathBuf> {
        Some(self.segments.lock().unwrap().as_ref()?.join(repository.to_string()))
    }
    fn note_newest(&self, repository: RepositoryId, series: SeriesId, newest: u64) {
        if let Some(notes) = self.notes.lock().unwrap().as_mut() {
            let known = notes.entry((repository, series)).or_default();
            *known = newest.max(*known);
        }
    }
}

impl Observer for World {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        if let Event::Warning(warning) = event {
            self.warnings.lock().unwrap().push(warning.to_string());
        }
    }
}

/// A disk in memory whose blocks of zeros are holes, and whose reads can be made to fail.
pub struct MemorySource {
    pub bytes: Vec<u8>,
    /// The size it claims; what is behind its bytes then is gone.
    pub claimed: u64,
    pub failing: Mutex<Vec<ByteSpan>>,
    /// How many reads fail before the failing ranges are readable; `u64::MAX` for ever.
    pub failures_left: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub sequential: bool,
}

impl MemorySource {
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            claimed: bytes.len() as u64,
            bytes: bytes.to_vec(),
            failing: Mutex::default(),
            failures_left: AtomicU64::new(u64::MAX),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            sequential: false,
        }
    }
}

impl VolumeSource for MemorySource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            description: "memory".to_owned(),
            format: if self.sequential { SourceFormat::Stream } else { SourceFormat::Raw },
            size: (!self.sequential).then_some(self.claimed),
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        self.sequential
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let start = usize::try_from(offset).unwrap();
        let rest = &self.bytes[start.min(self.bytes.len())..];
        let zeros = rest.iter().take(3 * SEGMENT_BYTES).take_while(|byte| **byte == 0).count();
        let end = (zeros / 4096 * 4096) as u64;
        Ok(if end > 0 {
            Extent { offset, length: end, kind: ExtentKind::Zero }
        } else {
            Extent { offset, length: 4096, kind: ExtentKind::Data }
        })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let end = offset + buf.len() as u64;
        let hit = |span: &ByteSpan| span.offset < end && offset < span.offset + span.length;
        if self.failing.lock().unwrap().iter().any(hit) {
            let left = self.failures_left.load(Ordering::SeqCst);
            if left > 0 {
                self.failures_left.store(left - u64::from(left < u64::MAX), Ordering::SeqCst);
                return Err(Error::new(ErrorKind::Unavailable, format!("EIO at {offset}")));
            }
        }
        let start = usize::try_from(offset).unwrap().min(self.bytes.len());
        let length = buf.len().min(self.bytes.len() - start);
        buf[..length].copy_from_slice(&self.bytes[start..start + length]);
        self.read_bytes.fetch_add(length as u64, Ordering::SeqCst);
        Ok(length)
    }
}

/// A target in memory that counts what is written.
pub struct MemoryTarget {
    pub bytes: Mutex<Vec<u8>>,
    pub written: AtomicU64,
}

impl MemoryTarget {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Mutex::new(bytes), written: AtomicU64::new(0) }
    }
}

impl VolumeTarget for MemoryTarget {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.bytes.lock().unwrap()[start..start + data.len()].copy_from_slice(data);
        self.written.fetch_add(data.len() as u64, Ordering::SeqCst);
        Ok(())
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.bytes.lock().unwrap()[start..start + usize::try_from(length).unwrap()].fill(0);
        Ok(())
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.bytes.lock().unwrap()[start..start + buf.len()]);
        Ok(())
    }
    fn can_read(&self) -> bool {
        true
    }
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A disk of `blocks` blocks of 4 KiB: zeros, text that compresses, and random bytes, in runs.
pub fn image(seed: u64, blocks: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = vec![0; blocks * 4096];
    let mut at = 0;
    while at < blocks {
        let run = (1 + random.below(120)).min(blocks - at);
        let kind = random.below(4);
        for block in bytes[at * 4096..(at + run) * 4096].chunks_mut(4096) {
            match kind {
                0 => {}
                1 => {
                    let word = random.next();
                    block
                        .chunks_mut(8)
                        .for_each(|piece| piece.copy_from_slice(&word.to_le_bytes()));
                }
                _ => random.fill(block),
            }
        }
        at += run;
    }
    bytes
}

/// A day of change: edited blocks, a stretch moved elsewhere, a stretch zeroed.
pub fn changed(image: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = image.to_vec();
    let blocks = bytes.len() / 4096;
    for _ in 0..=blocks / 50 {
        let at = random.below(blocks) * 4096;
        random.fill(&mut bytes[at..at + 4096]);
    }
    let run = (blocks / 8).max(1);
    let (from, to) = (random.below(blocks - run + 1) * 4096, random.below(blocks - run + 1) * 4096);
    bytes.copy_within(from..from + run * 4096, to);
    let at = random.below(blocks) * 4096;
    bytes[at..at + 4096].fill(0);
    bytes
}

/// A little of each of some blocks is changed, as a program changes its records.
pub fn touched(image: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = image.to_vec();
    let blocks = bytes.len() / 4096;
    for _ in 0..=blocks / 8 {
        let at = random.below(blocks) * 4096 + random.below(4096 - 8);
        random.fill(&mut bytes[at..at + 8]);
    }
    bytes
}

/// Everything that is dead goes, at once.
pub const THOROUGH: ReclaimOptions = ReclaimOptions {
    dead_share_min: 0.0,
    leak_share_max: 0.0,
    grace_s: 0,
    keep_deleted_s: Some(0),
    keep_deleted_unless_said_s: 0,
    memory_bytes: 0,
};

/// Small containers and frames, so that small disks make several.
pub fn config() -> Config {
    Config { container_bytes: 256 << 10, frame_bytes: 32 << 10, ..Config::default() }
}

pub fn init(storage: Arc<dyn Storage>, world: &Arc<World>) -> Result<Repository> {
    Repository::init(storage, world.context(), config(), &Protection::None, None)
}

pub fn open(storage: Arc<dyn Storage>, world: &Arc<World>) -> Result<Repository> {
    Repository::open(storage, world.context(), || Ok(PASSWORD.to_vec()))
}

pub fn options() -> BackupOptions {
    BackupOptions { jobs: 2, ..BackupOptions::default() }
}

pub fn backup(repository: &Repository, series: &str, image: &[u8]) -> Result<BackupReport> {
    backup_with(repository, series, &MemorySource::new(image), options())
}

pub fn backup_with(
    repository: &Repository,
    series: &str,
    source: &MemorySource,
    options: BackupOptions,
) -> Result<BackupReport> {
    let mut session = repository.backup(series, options)?;
    session.add_volume("disk", source, None)?;
    session.finish()
}

pub fn chunked(bytes: &str) -> Chunking {
    match bytes {
        "64K" => Chunking::Fixed { bytes: 65536 },
        "cdc" => Chunking::FastCdc { min: 1024, avg: 4096, max: 16384 },
        _ => Chunking::Fixed { bytes: 4096 },
    }
}

pub fn find(repository: &Repository, selector: &Selector) -> Result<Found> {
    repository.find(selector)
}

pub fn latest(repository: &Repository, series: &str) -> Result<Found> {
    find(repository, &Selector::Time(Some(series.to_owned()), When::Latest))
}

pub fn restore(repository: &Repository, found: &Found) -> Result<Vec<u8>> {
    restore_with(repository, found, RestoreOptions { jobs: 2, ..RestoreOptions::default() })
        .map(|(bytes, _)| bytes)
}

pub fn restore_with(
    repository: &Repository,
    found: &Found,
    options: RestoreOptions,
) -> Result<(Vec<u8>, RestoreReport)> {
    let volume = &found.snapshot.volumes[0];
    let bytes = options.range.map_or(volume.bytes, |range| range.length);
    let target = MemoryTarget::new(vec![0; usize::try_from(bytes).unwrap()]);
    let report = repository.restore(found.volume(&volume.name).unwrap(), &target, options)?;
    Ok((target.bytes.into_inner().unwrap(), report))
}

/// Stops `action` at every mutation of what `storage` holds, before and after it takes effect, and
/// calls `after` with what is left, opened by another process, also after a run that was not
/// stopped; returns how often it was stopped.
pub fn each_crash(
    storage: &MemoryStorage,
    later_s: i64,
    action: &dyn Fn(&Repository) -> Result<()>,
    after: &mut dyn FnMut(&Repository),
) -> u32 {
    each_crash_in(storage, &|objects| Arc::new(objects), later_s, action, after)
}

/// The same in other places, which `place` makes of the objects that are there before.
pub fn each_crash_in(
    storage: &MemoryStorage,
    place: &dyn Fn(MemoryStorage) -> Arc<dyn Storage>,
    later_s: i64,
    action: &dyn Fn(&Repository) -> Result<()>,
    after: &mut dyn FnMut(&Repository),
) -> u32 {
    let open = |storage, world: &Arc<World>| open(storage, world);
    each_crash_opened((storage, place, &open), later_s, action, after)
}

/// Makes a repository of a storage.
pub type Opening<'a> = dyn Fn(Arc<dyn Storage>, &Arc<World>) -> Result<Repository> + 'a;

/// The same, where `open` opens the repository.
pub fn each_crash_opened(
    (storage, place, open): (
        &MemoryStorage,
        &dyn Fn(MemoryStorage) -> Arc<dyn Storage>,
        &Opening<'_>,
    ),
    later_s: i64,
    action: &dyn Fn(&Repository) -> Result<()>,
    after: &mut dyn FnMut(&Repository),
) -> u32 {
    let mut crashes = 0;
    for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
        for succeeding in 0.. {
            let survivor = place(storage.snapshot());
            let counted = Counted::Mutations;
            let crashing =
                Arc::new(CrashStorage::new(survivor.clone(), succeeding, counted, struck));
            let dead = Arc::new(Mutex::new(HashSet::from([7])));
            let victim = World::process(100 + succeeding, 7, "here", &dead);
            victim.pass_seconds(later_s);
            let done = open(crashing.clone(), &victim).and_then(|repository| action(&repository));
            // The run that nothing stops must end well, and leave what the others do.
            let has_ended = !crashing.has_crashed();
            if has_ended {
                done.unwrap();
            }
            crashes += u32::from(!has_ended);
            let next = World::process(900 + succeeding, 8, "here", &dead);
            next.pass_seconds(later_s + 3600);
            after(&open(survivor, &next).unwrap());
            if has_ended {
                break;
            }
        }
    }
    crashes
}

/// A folder of a storage: what counts the operations of the whole counts those of every folder.
pub struct Folder {
    whole: Arc<dyn Storage>,
    name: String,
}

impl Folder {
    /// The folder with this name.
    pub fn of(whole: &Arc<dyn Storage>, name: &str) -> Arc<dyn Storage> {
        Arc::new(Self { whole: Arc::clone(whole), name: name.to_owned() })
    }

    fn key(&self, key: &Key) -> Key {
        Key::new(format!("{}/{key}", self.name)).unwrap()
    }
}

impl Storage for Folder {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.whole.put_bytes(&self.key(key), body, mode)
    }
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.whole.get(&self.key(key), range, into)
    }
    fn settle(&self, key: &Key) -> Result<()> {
        self.whole.settle(&self.key(key))
    }
    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.whole.head(&self.key(key))
    }
    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.whole.delete(&keys.iter().map(|key| self.key(key)).collect::<Vec<_>>())
    }
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let after = after.map(|after| self.key(after));
        let mut page = self.whole.list(&format!("{}/{prefix}", self.name), after.as_ref())?;
        for (key, _) in &mut page.objects {
            *key = Key::new(&key.as_str()[self.name.len() + 1..]).unwrap();
        }
        Ok(page)
    }
    fn guarantees(&self) -> Guarantees {
        self.whole.guarantees()
    }
    fn describe(&self) -> String {
        format!("{} of {}", self.name, self.whole.describe())
    }
}

/// A head's object in an unencrypted repository, made by hand from what its configuration says.
pub fn sealed_head(storage: &dyn Storage, head: &silt_format::Head) -> Vec<u8> {
    sealed_as_head(storage, (head.series, head.generation), &head.encode())
}

/// An object that its header calls a head of this series and generation, whatever it says.
pub fn sealed_as_head(
    storage: &dyn Storage,
    (series, number): (SeriesId, u64),
    plain: &[u8],
) -> Vec<u8> {
    use silt_format::{
        BlockWriter, HEADER_BYTES, Header, HeaderRest, HostKeys, MasterKey, ObjectKind, ObjectTag,
        SealScheme, names,
    };
    let mut config = Vec::new();
    let name = Key::new(names::CONFIG).unwrap();
    storage.get(&name, ByteRange::Full, &mut config).unwrap();
    let secret: [u8; 32] = config[HEADER_BYTES..HEADER_BYTES + 32].try_into().unwrap();
    let header = Header {
        kind: ObjectKind::Head,
        scheme: SealScheme::Checksum,
        repository: Header::decode(&config).unwrap().repository,
        series,
        part: 0,
        number,
        tag: ObjectTag::NONE,
        salt: [7; 24],
        rest: HeaderRest::default(),
    };
    let mut object = header.encode().to_vec();
    let host = HostKeys::in_the_clear(MasterKey::new(secret), [0; 32]);
    let mut signed = plain.to_vec();
    host.signer(HostKeys::CLEAR_ID).sign(&header, &mut signed).unwrap();
    BlockWriter::new(1).unwrap().append(&host.keys.sealer(&header), 0, &signed, &mut object);
    object
}
