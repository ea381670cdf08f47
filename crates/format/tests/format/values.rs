//! One fixed value of every layout.

use silt_format::tree::{
    DeviceNumber, Entry, EntryKind, Extent, FileChunking, FileKind, KindCounts, Metadata,
    OwnerName, State, Subtree, Timestamp, Tree, TreeBranch, TreeCounts, TreePage, Xattr,
};
use silt_format::{
    ApplicationRun, BlockEntry, BlockKind, BlockRef, ByteSpan, CheckRecord, Checkpoint, Chunking,
    Config, ContentHash, DamagedSlots, DeadListRef, DeadRange, DeletedEntry, Delta, Directory,
    Fingerprint, Footer, Frame, Head, Header, HeaderRest, HostKeys, Id, KdfCost, KeyLabel, Keyring,
    LeakForecast, Lease, Level, LevelBytes, Link, MapProof, MapRoot, Mark, MasterKey, ObjectKind,
    ObjectSet, ObjectTag, Page, Period, Recipe, RecipeChunk, Record, Reference, RepositoryId,
    RetentionPolicy, Role, RunBlock, RunDirectory, RunFilter, RunRef, RunUse, SealScheme,
    SegmentDigest, SegmentEntry, SeriesId, SeriesRecord, Signatures, Signer, SigningSeed, Snapshot,
    SnapshotEntry, StoreEntry, StoreWriter, SummaryGeometry, SummaryRef, VerifiedRange, Volume,
    VolumeKind, WrappedKey, Writer, WriterState, Writers,
};

use crate::messages;

pub const SERIES: SeriesId = SeriesId([5; 12]);

pub fn master() -> Keyring {
    MasterKey::new([42; 32]).into()
}

/// What the key of a host wraps.
fn host_keys() -> HostKeys {
    HostKeys { keys: master(), seed: SigningSeed::new([43; 32]), administrator: [44; 32] }
}

/// A key that signs.
pub fn signer() -> Signer {
    host_keys().signer(Id(77))
}

/// The keys of a host that only writes, as it gets them.
pub fn write_only() -> Keyring {
    HostKeys::open(&write_key(), b"secret").unwrap().keys
}

fn write_key() -> Vec<u8> {
    let (header, cost, label) = key_parts();
    wrapped(&Header { kind: ObjectKind::WriteKey, ..header }, cost, &label, ("*", false))
}

/// The key of a host that writes one series, and opens no other.
fn one_series_key() -> Vec<u8> {
    let (header, cost, label) = key_parts();
    wrapped(&Header { kind: ObjectKind::WriteKey, ..header }, cost, &label, ("web1", false))
}

/// The same for a host that shares nothing.
fn alone_key() -> Vec<u8> {
    let (header, cost, label) = key_parts();
    wrapped(&Header { kind: ObjectKind::WriteKey, ..header }, cost, &label, ("web1", true))
}

fn wrapped(
    header: &Header,
    cost: KdfCost,
    label: &KeyLabel,
    (series, is_alone): (&str, bool),
) -> Vec<u8> {
    let secret = host_keys().expose(header.kind, &[series.to_owned()], is_alone).unwrap();
    WrappedKey::wrap(header, b"secret", cost, &secret, (&master(), label)).unwrap()
}

pub fn header(kind: ObjectKind, scheme: SealScheme) -> Header {
    Header {
        kind,
        scheme,
        repository: RepositoryId([1; 16]),
        series: SERIES,
        part: 2,
        number: 0x0102_0304_0506_0708,
        tag: ObjectTag::first(0x1112_1314_1516_1718),
        salt: [9; 24],
        rest: HeaderRest::default(),
    }
}

pub fn footer() -> Footer {
    Footer { directory_offset: 123_456_789, directory_bytes: 4321, has_header: false }
}

pub fn footer_after_header() -> Footer {
    Footer { has_header: true, ..footer() }
}

pub fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 20])
}

pub fn hash(byte: u8) -> ContentHash {
    ContentHash([byte; 16])
}

pub fn directory() -> Directory {
    let mut directory = Directory::default();
    directory.frames.push(Frame { offset: 96, sealed_bytes: 1000, raw_bytes: 12_288 });
    directory.push(0, 0, 4096, print(1));
    directory.push(1, 0, 4096, print(2));
    directory.push(2, 0, 1000, print(3));
    directory.frames.push(Frame { offset: 1096, sealed_bytes: 500, raw_bytes: 5000 });
    directory.push(7, 1, 5000, print(4));
    directory
}

pub fn blocks() -> Vec<BlockEntry> {
    vec![
        BlockEntry { kind: BlockKind::Recipe, offset: 96, sealed_bytes: 333 },
        BlockEntry { kind: BlockKind::Page, offset: 429, sealed_bytes: 77 },
        BlockEntry { kind: BlockKind::Partition, offset: 506, sealed_bytes: 1 },
    ]
}

fn chunk(reference: Reference, length: u32, byte: u8) -> RecipeChunk {
    RecipeChunk { reference, length, fingerprint: print(byte) }
}

pub fn fixed_recipe() -> (Recipe, Chunking) {
    let at = |slot| Reference::new(0, 3, slot);
    let chunks = vec![
        chunk(at(10), 4096, 1),
        chunk(at(11), 4096, 2),
        chunk(Reference::ZERO, 4096, 0),
        chunk(Reference::ZERO, 4096, 0),
        chunk(at(11), 4096, 2),
        chunk(Reference::new(0, 4, u16::MAX), 4096, 3),
        chunk(Reference::new(0, 5, 0), 100, 4),
    ];
    (Recipe { chunks }, Chunking::Fixed { bytes: 4096 })
}

pub fn cdc_recipe() -> (Recipe, Chunking) {
    let chunks = vec![
        chunk(Reference::new(0, 1, 1), 2000, 1),
        chunk(Reference::ZERO, 16_384, 0),
        chunk(Reference::new(0, 1, 2), 5000, 2),
    ];
    (Recipe { chunks }, Chunking::FastCdc { min: 1024, avg: 4096, max: 16_384 })
}

fn metadata(kind: EntryKind, inode: u64) -> Metadata {
    Metadata {
        kind,
        mode: 0o4755,
        uid: 1000,
        gid: 100,
        modified: Timestamp { seconds: -2_208_988_800, nanoseconds: 999_999_999 },
        changed: Timestamp { seconds: 7_258_118_400, nanoseconds: 1 },
        size: 0,
        inode,
        file_system: 0,
        links: 1,
        target: Vec::new(),
        device: DeviceNumber::default(),
        flags: 0,
        xattrs: Vec::new(),
    }
}

fn tree_entry(name: &[u8], metadata: Metadata) -> Entry {
    let (state, extents, subtree) = (State::Whole, Vec::new(), None);
    let content = FileKind::Other;
    Entry { name: name.to_vec(), metadata, state, content, extents, subtree }
}

fn subtree() -> Subtree {
    let page = BlockRef { pack: 3, offset: 96, length: 200, hash: hash(7) };
    Subtree { level: 1, page, entries: 2000, entries_below: 2100, bytes_below: 1 << 40 }
}

/// An entry of every kind, with every field in use somewhere.
pub fn tree_leaf() -> TreePage {
    let file = Metadata {
        size: 5_000_000,
        links: 3,
        flags: 0x10,
        file_system: 2,
        xattrs: vec![
            Xattr { name: b"security.capability".to_vec(), value: vec![1, 0, 0, 2] },
            Xattr { name: b"user.\xff".to_vec(), value: Vec::new() },
        ],
        ..metadata(EntryKind::File, 12)
    };
    let device = DeviceNumber { major: 8, minor: 1 };
    let mut entries = vec![
        tree_entry(b"\xfe not UTF-8\n", metadata(EntryKind::File, 11)),
        tree_entry(b"big", file),
        tree_entry(b"block", Metadata { device, ..metadata(EntryKind::BlockDevice, 13) }),
        tree_entry(b"char", Metadata { device, ..metadata(EntryKind::CharDevice, 14) }),
        tree_entry(b"dir", metadata(EntryKind::Directory, 15)),
        tree_entry(b"empty dir", metadata(EntryKind::Directory, 16)),
        tree_entry(b"fifo", metadata(EntryKind::Fifo, 17)),
        tree_entry(
            b"link",
            Metadata { target: b"../else".to_vec(), ..metadata(EntryKind::Symlink, 18) },
        ),
        tree_entry(b"socket", metadata(EntryKind::Socket, 19)),
    ];
    entries[1].extents = vec![
        Extent { address: Some(3 << 21), bytes: 2 << 20 },
        Extent { address: None, bytes: 2_902_847 },
        Extent { address: Some(12_345), bytes: 1 },
    ];
    entries[1].state = State::Changed;
    entries[1].content = FileKind::Executable;
    entries[4].subtree = Some(subtree());
    entries[5].state = State::Unreadable;
    entries[6].state = State::Fresh;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    TreePage::Leaf(entries)
}

pub fn tree_branch() -> TreePage {
    let child = |first: &[u8], i: u8| TreeBranch {
        first: first.to_vec(),
        page: BlockRef { pack: u32::from(i), offset: 96, length: 100, hash: hash(i) },
    };
    TreePage::Branch(1, vec![child(b"a", 1), child(b"aa", 2), child(b"\xff", 3)])
}

/// A snapshot of a file tree.
pub fn tree_snapshot() -> Snapshot {
    let mut snapshot = snapshot();
    let root =
        Entry { subtree: Some(subtree()), ..tree_entry(b"", metadata(EntryKind::Directory, 2)) };
    let name = |id, name: &[u8]| OwnerName { id, name: name.to_vec() };
    let tree = Tree {
        root,
        users: vec![name(0, b"root"), name(1000, b"a\xff")],
        groups: vec![name(100, b"users")],
        counts: TreeCounts {
            files: 5,
            directories: 4,
            others: 3,
            unreadable: 2,
            changed: 1,
            excluded: 6,
            vanished: 7,
        },
        kinds: std::array::from_fn(|i| KindCounts { files: i as u64, bytes: 100 * i as u64 }),
        sparse_segments: vec![1, 9],
    };
    snapshot.volumes.truncate(1);
    snapshot.volumes[0].kind = VolumeKind::Tree(Box::new(tree));
    snapshot
}

pub fn leaf() -> Page {
    let entry = |i: u8| SegmentEntry {
        recipe: BlockRef { pack: u32::from(i), offset: 96, length: 100, hash: hash(i) },
        // The second is of a kind that a later version computes.
        digest: SegmentDigest { kind: i, bytes: [i; 16] },
        signatures: Signatures([1, 2, 3, 4, 5, 6, 7, u32::from(i)]),
    };
    Page::Leaf(vec![None, Some(entry(1)), None, Some(entry(3)), None])
}

pub fn branch() -> Page {
    let block = |pack| BlockRef { pack, offset: 7, length: 8, hash: hash(9) };
    Page::Branch(1, vec![Some(block(1)), None, Some(block(2))])
}

pub fn geometry() -> SummaryGeometry {
    SummaryGeometry { partitions: 3, partition_bytes: 1 << 20, hashes: 7 }
}

fn block() -> BlockRef {
    BlockRef { pack: 1, offset: 2, length: 3, hash: hash(4) }
}

pub fn snapshot() -> Snapshot {
    let mut levels = LevelBytes::default();
    levels.add(Level::Zero, 1 << 30);
    levels.add(Level::New, 5000);
    Snapshot {
        id: Id(0xdead_beef_0123_4567),
        series: SERIES,
        time_ns: 1_790_000_000_123_456_789,
        duration_ms: 1234,
        parent: Some(Id(17)),
        host: "host".to_owned(),
        program: "silt 0.1.0".to_owned(),
        volumes: vec![Volume {
            kind: VolumeKind::Disk,
            name: "root".to_owned(),
            bytes: 5 << 30,
            source: "/vm/root.qcow2".to_owned(),
            source_format: "qcow2".to_owned(),
            chunking: Chunking::Fixed { bytes: 4096 },
            root: MapRoot { level: 1, page: Some(block()) },
            levels,
            stored_bytes: 777,
            unreadable: vec![ByteSpan { offset: 4096, length: 8192 }],
            backing: vec!["/vm/base.qcow2".to_owned(), "/vm/base.raw".to_owned()],
            map_proof: Some(MapProof { clean: 100, compared: 9, compared_ns: vec![5, -6, 7] }),
        }],
        checkpoints: vec![Checkpoint {
            volume: "root".to_owned(),
            kind: "qemu-bitmap".to_owned(),
            id: "silt-7".to_owned(),
        }],
        summary: Some(SummaryRef {
            id: Id(99),
            geometry: geometry(),
            references: 1000,
            hash: hash(90),
        }),
        origin: None,
    }
}

pub fn entry(id: u64, time_ns: i64, flags: u32, labels: &[&str]) -> SnapshotEntry {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    SnapshotEntry { id: Id(id), time_ns, flags, hash: hash(6), labels }
}

pub fn head() -> Head {
    let mut containers = ObjectSet::default();
    let (first, rewritten) = (ObjectTag::first(0x77), ObjectTag::rewritten(0x1234_5678_9abc_def0));
    [(0, first), (1, first), (2, rewritten), (9, first)]
        .into_iter()
        .for_each(|(number, tag)| containers.push(number, tag));
    let mut packs = ObjectSet::default();
    packs.push(0, first);
    Head {
        generation: 7,
        series: SERIES,
        domain: 0,
        name: "web1".to_owned(),
        writer: [3; 16],
        next_container: 10,
        next_pack: 1,
        stores: vec![StoreEntry::new(0, 0, SERIES)],
        containers,
        packs,
        snapshots: vec![entry(1, -5, 0, &["nightly", "ä"])],
        summary: Some(geometry()),
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
        writers: 3,
    }
}

/// A head of a series that snapshots were deleted from.
pub fn head_after_deletions() -> Head {
    let gone = entry(2, 9, SnapshotEntry::PROTECTED, &["gone"]);
    let period = Period { years: 1, months: 2, days: 3, hours: 4 };
    Head {
        deleted: vec![DeletedEntry { entry: gone, deleted_ns: 1_000 }],
        dead: vec![DeadListRef { id: Id(77), parts: 2, slots: 1_000_000, hash: hash(90) }],
        leak: LeakForecast { deletions: 3, leaked_millichunks: 1_234, stored_chunks: 99_999 },
        policy: Some(RetentionPolicy {
            last: 1,
            hourly: 2,
            daily: 3,
            weekly: 4,
            monthly: u32::MAX,
            yearly: 6,
            within: period,
            tags: vec!["keep".to_owned()],
            age_min_s: 3600,
            keep_deleted_s: 86_400,
        }),
        ..head()
    }
}

/// A head that says all there is to say of sharing, as a series' and a shared store's do apart.
pub fn head_sharing() -> Head {
    let shared = SeriesId([4; 12]);
    Head {
        stores: vec![
            StoreEntry::new(0, 0, SERIES),
            StoreEntry { seen: 5, ..StoreEntry::new(1, 1, shared) },
        ],
        runs: vec![
            RunRef {
                id: Id(5),
                use_: RunUse::Shared,
                partition_bits: 3,
                records: 800_000,
                hash: hash(90),
            },
            RunRef {
                id: Id(6),
                use_: RunUse::Owners,
                partition_bits: 0,
                records: 7,
                hash: hash(90),
            },
        ],
        condemned: vec![DeadListRef { id: Id(78), parts: 1, slots: 9, hash: hash(90) }],
        condemned_in: 6,
        users: vec![SERIES, shared],
        ..head()
    }
}

/// A head that says what this version keeps and does not write itself.
pub fn head_reserved() -> Head {
    let places = vec!["/mnt/pool".to_owned(), "s3://bucket/pool".to_owned()];
    Head {
        stores: vec![
            StoreEntry::new(0, 0, SERIES),
            StoreEntry { seen: 9, places, ..StoreEntry::new(2, 3, SeriesId([6; 12])) },
        ],
        delta_bases: vec![DeadListRef { id: Id(79), parts: 3, slots: 11, hash: hash(90) }],
        alias: Some("webserver".to_owned()),
        ..head()
    }
}

/// A head that says how files are cut.
pub fn head_files() -> Head {
    let mut chunking = FileChunking::default();
    chunking.set(FileKind::DiskImage, Chunking::Fixed { bytes: 8192 }).unwrap();
    chunking.set(FileKind::Video, Chunking::FastCdc { min: 512, avg: 2048, max: 16_384 }).unwrap();
    Head { file_chunking: Some(chunking), ..head() }
}

/// Two chunks with two deltas between them, as a later version may store them.
pub fn directory_with_deltas() -> Directory {
    let mut directory = Directory::default();
    directory.frames.push(Frame { offset: 96, sealed_bytes: 1000, raw_bytes: 2 * 4096 + 2 * 100 });
    directory.push(0, 0, 4096, print(1));
    for (slot, base) in [(1, Reference::new(0, 3, 9)), (2, Reference::new(1, 4, 8))] {
        directory.push_delta(Delta { slot, chunk_bytes: 4096, base }, 0, 100, print(2));
    }
    directory.push(4, 0, 4096, print(3));
    directory
}

/// Three chunks of a storage node, the last two of known applications.
pub fn directory_with_applications() -> Directory {
    let mut directory = Directory::default();
    for (slot, application) in [(0, ApplicationRun::UNKNOWN), (1, 8), (2, 1)] {
        directory.begin_application(slot, application);
        directory.push(slot, 0, 4096, print(1));
    }
    directory.frames.push(Frame { offset: 96, sealed_bytes: 1000, raw_bytes: 3 * 4096 });
    directory
}

/// Three chunks in slots 0, 2 and 5, and links in slots 1 and 3.
pub fn directory_with_links() -> Directory {
    let mut directory = Directory::default();
    for (slot, byte) in [(0, 1), (2, 2), (5, 3)] {
        directory.push(slot, 0, 4096, Fingerprint([byte; 20]));
    }
    directory.frames.push(Frame { offset: 96, sealed_bytes: 1000, raw_bytes: 3 * 4096 });
    for (slot, byte) in [(1, 8), (3, 9)] {
        directory.links.push(Link {
            slot,
            chunk_bytes: 4096,
            target: Reference::new(1, 77, slot),
            fingerprint: Fingerprint([byte; 20]),
        });
    }
    directory
}

pub fn run_directory() -> RunDirectory {
    let block = |offset, sealed_bytes, first| RunBlock {
        offset,
        sealed_bytes,
        first: Fingerprint([first; 20]),
        hash: hash(first),
    };
    RunDirectory {
        blocks: vec![block(96, 500, 1), block(596, 400, 1), block(996, 10, 200)],
        filter: Some(RunFilter {
            geometry: SummaryGeometry { partitions: 1, partition_bytes: 128, hashes: 7 },
            offset: 1006,
            sealed_bytes: 150,
            hash: hash(91),
        }),
        before: vec![hash(92), hash(93), hash(94)],
    }
}

pub fn records() -> Vec<Record> {
    let record = |first, payload| {
        let mut fingerprint = [7; 20];
        fingerprint[0] = first;
        Record { fingerprint: Fingerprint(fingerprint), payload: [payload; 12] }
    };
    vec![record(0, 9), record(1, 2), record(1, 3), record(255, 0)]
}

fn encoded_records() -> Vec<u8> {
    let mut bytes = Vec::new();
    silt_format::encode_records(&records(), &mut bytes);
    bytes
}

pub fn dead_ranges() -> Vec<DeadRange> {
    let range = |container, first, last| DeadRange { container, first, last };
    vec![range(0, 3, 3), range(0, 5, 900), DeadRange::whole(7), range(9, 0, 0)]
}

pub fn config() -> Config {
    Config { created_ns: 1, zstd_level: -3, administrator: [5; 32], ..Config::default() }
}

pub fn config_append_only() -> Config {
    Config { append_only: true, ..config() }
}

pub fn key_parts() -> (Header, KdfCost, KeyLabel) {
    let (host, user) = ("host".to_owned(), "uid 0".to_owned());
    let label = KeyLabel { created_ns: 4, host, user, purpose: String::new() };
    let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
    (header(ObjectKind::Key, SealScheme::Aes256Gcm), cost, label)
}

pub fn series_record() -> SeriesRecord {
    SeriesRecord { name: "web1".to_owned(), domain: 0, created_ns: 5 }
}

pub fn lease() -> Lease {
    Lease {
        session: [8; 16],
        host: "host".to_owned(),
        boot: "boot".to_owned(),
        process: 123,
        process_start: 456,
        expires_ns: 789,
    }
}

pub fn mark() -> Mark {
    Mark { writer: [9; 16] }
}

pub fn check_record() -> CheckRecord {
    CheckRecord {
        pass_started_s: 11,
        verified: vec![VerifiedRange { first: 0, count: 9, tag: ObjectTag::first(8), time_s: 12 }],
        damaged: vec![DamagedSlots {
            container: 3,
            tag: ObjectTag::rewritten(8),
            first: 4,
            last: 65_535,
        }],
        damaged_blocks: vec![block()],
        unneeded: vec![(3, ObjectTag::rewritten(8))],
    }
}

/// Every layout by name, in its stored form.
pub fn encoded() -> Vec<(&'static str, Vec<u8>)> {
    let (fixed, fixed_chunking) = fixed_recipe();
    let (cdc, cdc_chunking) = cdc_recipe();
    let (key_header, cost, label) = key_parts();
    let key = wrapped(&key_header, cost, &label, ("*", false));
    let mut all = vec![
        ("header", header(ObjectKind::Container, SealScheme::Aes256Gcm).encode().to_vec()),
        ("footer", footer().encode().to_vec()),
        ("footer-after-header", footer_after_header().encode().to_vec()),
        ("container-directory", directory().encode()),
        ("block-directory", silt_format::encode_blocks(&blocks())),
        ("recipe-fixed", fixed.encode(fixed_chunking)),
        ("recipe-fastcdc", cdc.encode(cdc_chunking)),
        ("page-leaf", leaf().encode()),
        ("snapshot-tree", tree_snapshot().encode()),
        ("tree-branch", tree_branch().encode()),
        ("tree-leaf", tree_leaf().encode()),
        ("page-branch", branch().encode()),
        ("snapshot", snapshot().encode()),
        ("head", head().encode()),
        ("head-deletions", head_after_deletions().encode()),
        ("head-sharing", head_sharing().encode()),
        ("head-reserved", head_reserved().encode()),
        ("head-files", head_files().encode()),
        ("container-links", directory_with_links().encode()),
        ("container-deltas", directory_with_deltas().encode()),
        ("container-applications", directory_with_applications().encode()),
        ("run-directory", run_directory().encode()),
        ("run-records", encoded_records()),
        ("dead-list", silt_format::encode_dead_ranges(&dead_ranges())),
        ("config", config().encode()),
        ("config-append-only", config_append_only().encode()),
        ("key", key),
        ("key-write-only", write_key()),
        ("key-one-series", one_series_key()),
        ("key-alone", alone_key()),
        ("series", series_record().encode()),
        ("lease", lease().encode()),
        ("mark", mark().encode()),
        ("places", places().encode()),
        ("places-nodes", places_with_nodes().encode()),
        ("head-node", head_node().encode()),
        ("check", check_record().encode()),
        ("writers", writers().encode()),
        ("signed", signed()),
        ("sealed-aes256gcm", sealed(SealScheme::Aes256Gcm)),
        ("sealed-checksum", sealed(SealScheme::Checksum)),
        ("sealed-to-key", sealed_to_key()),
        ("summary-partition", partition()),
    ];
    all.push(("snapshot-copied", messages::copied_snapshot().encode()));
    all.push(("hello", messages::hello().encode().to_vec()));
    all.extend(messages::of_source().into_iter().map(|(name, message)| (name, message.encode())));
    all.extend(messages::of_replica().into_iter().map(|(name, message)| (name, message.encode())));
    all.extend(messages::of_init().into_iter().map(|(name, message)| (name, message.encode())));
    all
}

pub fn places() -> silt_format::Places {
    let copies = vec!["/backup/first".to_owned(), "/backup/second".to_owned()];
    silt_format::Places {
        copies,
        shared: vec!["/backup/shared".to_owned()],
        filling: vec!["/backup/shared".to_owned()],
        nodes: Vec::new(),
    }
}

pub fn places_with_nodes() -> silt_format::Places {
    let node = |number, name: &str, locations: &[&str], is_closed| {
        let locations = locations.iter().map(|&location| location.to_owned()).collect();
        silt_format::NodePlaces { number, name: name.to_owned(), locations, is_closed }
    };
    let nodes = vec![
        node(2, "n1", &["s3://node1/silt", "s3://copies/n1"], false),
        node(3, "n2", &["/mnt/node2/silt"], true),
    ];
    silt_format::Places { nodes, ..places() }
}

/// The head of a storage node, to which two backups write.
pub fn head_node() -> Head {
    let writer = |session, first| StoreWriter {
        session: [session; 16],
        series: SERIES,
        first,
        end: first + 64,
    };
    Head {
        name: silt_format::node_store_name(2),
        store_writers: vec![writer(0xa1, 1000), writer(0xa2, 1064)],
        applications: vec![1, 3, 10],
        ..head_sharing()
    }
}

pub fn writers() -> Writers {
    let full = Writer {
        id: Id(77),
        role: Role::Full,
        public: signer().public().unwrap(),
        series: vec!["*".to_owned()],
        state: WriterState::Removed(vec![(SERIES, 9)]),
    };
    let series = vec!["web1".to_owned(), "db-*".to_owned()];
    let state = WriterState::Active;
    let host = Writer { id: Id(78), role: Role::WriteOnly, public: [6; 32], series, state };
    let closing = Writer { state: WriterState::Closing, ..host.clone() };
    Writers { all: vec![full, host, closing] }
}

/// What a signed object holds.
pub fn signed() -> Vec<u8> {
    let mut plain = b"abc".to_vec();
    signer().sign(&header(ObjectKind::Head, SealScheme::Aes256Gcm), &mut plain).unwrap();
    plain
}

/// An object of one stored (not compressed) block at position 5.
fn sealed(scheme: SealScheme) -> Vec<u8> {
    let header = header(ObjectKind::Snapshot, scheme);
    let mut object = header.encode().to_vec();
    let at = object.len();
    object.extend_from_slice(&[0, 3, 0, 0, 0, b'a', b'b', b'c']);
    master().sealer(&header).seal(5, &mut object, at);
    object
}

/// A container's block at position 5 and a directory, by a host that can't read the first.
fn sealed_to_key() -> Vec<u8> {
    let header = header(ObjectKind::Container, SealScheme::Aes256Gcm);
    let (header, sealer) = write_only().begin_container(header, [3; 32]).unwrap();
    let mut object = header.encode().to_vec();
    for position in [5, silt_format::DIRECTORY_POSITION] {
        let at = object.len();
        object.extend_from_slice(&[0, 3, 0, 0, 0, b'a', b'b', b'c']);
        sealer.seal(position, &mut object, at);
    }
    object
}

fn partition() -> Vec<u8> {
    let geometry = SummaryGeometry { partitions: 1, partition_bytes: 64, hashes: 7 };
    let mut bits = vec![0; 64];
    for slot in 0..20 {
        let (_, drawn) = geometry.place(Reference::new(0, 1, slot));
        geometry.insert(drawn, &mut bits);
    }
    bits
}
