//! A source that has the secret and does not keep to the protocol: the messages of a real one,
//! changed at random.

use std::collections::VecDeque;
use std::fs;

use silt_backup::ReplicaPeer;
use silt_format::replica::{
    Begin, ChunkDelta, Described, Origin, ReplicaMessage, SourceMessage, TreeStep,
};
use silt_format::{
    BlockReader, BlockWriter, Chunking, Error, ErrorKind, Id, Recipe, RepositoryId, Result,
};
use silt_replicate::{FrameUse, Replica, ReplicateOptions, Source};
use siltstone::{
    BackupOptions, CheckOptions, DataCheck, ReclaimOptions, Selector, SweepOptions, TreeOptions,
    TreeVolume, VolumeKind, VolumeReader,
};

use crate::kit::*;

/// A generator of numbers that a seed decides.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll() % bound.max(1) as u64).unwrap()
    }

    /// A number that is often at a boundary.
    pub fn number(&mut self, near: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => near.wrapping_sub(1),
            3 => 1 << self.below(64),
            4 => near.wrapping_mul(2),
            5 => self.roll(),
            _ => near.wrapping_add(1),
        }
    }
}

/// What a hostile source did, to show that the test reaches what it is meant for.
#[derive(Debug, Default)]
struct Seen {
    changed: usize,
    changed_frames: usize,
    changed_deltas: usize,
    refused: [usize; 2],
    ended: usize,
    committed: u64,
    kinds: std::collections::BTreeSet<String>,
}

struct Hostile<'r> {
    source: Source<'r>,
    answers: VecDeque<ReplicaMessage>,
    dice: Dice,
    /// Messages until the next change.
    left: usize,
    changes: usize,
    changed: usize,
    changed_frames: usize,
    changed_deltas: usize,
    /// Messages that come next.
    said: VecDeque<SourceMessage>,
    is_lost: bool,
    total: usize,
}

impl ReplicaPeer for Hostile<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(ReplicaMessage::decode(&message.encode()).unwrap());
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        self.total += 1;
        assert!(self.total < 20_000, "the replica listens to nonsense for ever");
        let message = self.next();
        // As a connection does: a message that can't be decoded ends it.
        SourceMessage::decode(&message.encode())
    }
}

impl Hostile<'_> {
    fn next(&mut self) -> SourceMessage {
        if let Some(message) = self.said.pop_front() {
            return message;
        }
        while let Some(answer) = self.answers.pop_front() {
            self.is_lost |= self.source.take(answer).is_err();
        }
        let message = match self.source.produce() {
            Ok(Some(message)) if !self.is_lost => message,
            // The real source does not know any more what to say.
            _ if self.changes > 0 => {
                self.changes -= 1;
                self.changed += 1;
                return self.nonsense();
            }
            _ => return SourceMessage::Bye,
        };
        if self.left > 0 || self.changes == 0 {
            self.left = self.left.saturating_sub(1);
            return message;
        }
        self.changes -= 1;
        self.changed += 1;
        self.left = self.dice.below(6);
        self.change(message)
    }

    fn nonsense(&mut self) -> SourceMessage {
        let segment = self.dice.number(2);
        match self.dice.below(9) {
            0 => SourceMessage::Segments(vec![Described::Zeros(segment)]),
            1 => SourceMessage::Segments(vec![Described::Parent(segment)]),
            2 => SourceMessage::Data(vec![7; self.dice.below(100_000)]),
            3 => SourceMessage::Steps(vec![TreeStep::Leave; self.dice.below(9)]),
            4 => SourceMessage::End,
            5 => SourceMessage::Commit,
            6 => SourceMessage::Abort,
            7 => frame(&vec![7; self.dice.below(100_000)]),
            _ => SourceMessage::Ask { series: "web1".to_owned() },
        }
    }

    fn change(&mut self, message: SourceMessage) -> SourceMessage {
        let dice = &mut self.dice;
        match dice.below(8) {
            0 => {
                self.said.push_back(message.clone());
                return message;
            }
            1 => {
                self.said.push_back(message);
                return self.nonsense();
            }
            2 => return self.nonsense(),
            _ => {}
        }
        match message {
            SourceMessage::Begin(begin) => SourceMessage::Begin(changed_begin(begin, dice)),
            SourceMessage::Segments(mut all) if !all.is_empty() => {
                let which = dice.below(all.len());
                match (dice.below(5), &mut all[which]) {
                    (0, one) => *one = Described::Parent(1),
                    (1, one) => *one = Described::Zeros(1),
                    (2, one) => *one = Described::Parent(dice.number(1)),
                    (3, Described::Segment(digest, _)) => {
                        digest.bytes[dice.below(16)] ^= 1;
                        digest.kind ^= u8::try_from(dice.below(3)).unwrap();
                    }
                    (_, one) => {
                        let one = *one;
                        all.insert(which, one);
                    }
                }
                SourceMessage::Segments(all)
            }
            SourceMessage::Chunks { segment, recipe } => changed_chunks(segment, &recipe, dice),
            SourceMessage::Data(mut bytes) if !bytes.is_empty() => {
                match dice.below(3) {
                    0 => drop(bytes.pop()),
                    1 => bytes.push(1),
                    _ => bytes[0] ^= 1,
                }
                SourceMessage::Data(bytes)
            }
            SourceMessage::Frame(block) => {
                self.changed_frames += 1;
                self.changed_frame(&block)
            }
            SourceMessage::Delta(delta) => {
                self.changed_deltas += 1;
                SourceMessage::Delta(changed_delta(delta, dice))
            }
            SourceMessage::Steps(steps) => SourceMessage::Steps(changed_steps(steps, dice)),
            other => {
                self.said.push_back(other);
                SourceMessage::End
            }
        }
    }

    fn changed_frame(&mut self, block: &[u8]) -> SourceMessage {
        let dice = &mut self.dice;
        let mut raw = Vec::new();
        BlockReader::default().decode(block, &mut raw).unwrap();
        match dice.below(5) {
            0 => drop(raw.pop()),
            1 => raw.push(1),
            2 => raw[0] ^= 1,
            3 => return SourceMessage::Data(raw),
            _ => {
                let rest = raw.split_off(dice.below(raw.len()));
                self.said.push_back(frame(&rest));
            }
        }
        frame(&raw)
    }
}

fn changed_chunks(segment: u64, recipe: &[u8], dice: &mut Dice) -> SourceMessage {
    let mut changed = Recipe::decode(recipe).unwrap();
    let which = dice.below(changed.chunks.len());
    let segment = if dice.below(4) == 0 { dice.number(segment) } else { segment };
    match dice.below(4) {
        0 => changed.chunks[which].reference = silt_format::Reference::ZERO,
        1 => changed.chunks[which].fingerprint.0[3] ^= 1,
        2 => drop(changed.chunks.remove(which)),
        _ => {
            let other = dice.below(changed.chunks.len());
            changed.chunks.swap(which, other);
        }
    }
    let chunking = Chunking::FastCdc { min: 1024, avg: 4096, max: 16384 };
    SourceMessage::Chunks { segment, recipe: changed.encode(chunking) }
}

fn changed_delta(mut delta: ChunkDelta, dice: &mut Dice) -> ChunkDelta {
    let which = dice.below(delta.bases.len());
    match dice.below(7) {
        0 => delta.bases[which].offset = dice.number(delta.bases[which].offset),
        1 => delta.bases[which].length ^= 1 << dice.below(24),
        2 => delta.bases.swap(0, which),
        3 => delta.bytes ^= 1 << dice.below(24),
        4 => drop(delta.frame.pop()),
        5 => delta.bases.truncate(which),
        _ => {
            let place = dice.below(delta.frame.len());
            delta.frame[place] ^= 1 << dice.below(8);
        }
    }
    delta
}

/// A frame of chunks with these bytes.
fn frame(raw: &[u8]) -> SourceMessage {
    let mut block = Vec::new();
    BlockWriter::new(1).unwrap().pack(raw, &mut block);
    SourceMessage::Frame(block)
}

fn changed_begin(mut begin: Box<Begin>, dice: &mut Dice) -> Box<Begin> {
    let volumes = &mut begin.snapshot.volumes;
    let which = dice.below(volumes.len());
    match dice.below(9) {
        0 => volumes[which].bytes = dice.number(volumes[which].bytes) >> dice.below(40),
        1 => volumes[which].bytes = volumes[which].bytes.wrapping_sub(5000),
        2 => volumes[which].bytes += dice.roll() % (1 << 22),
        3 => volumes[which].chunking = Chunking::Fixed { bytes: 8192 },
        4 => volumes.push(volumes[which].clone()),
        5 => volumes.clear(),
        6 => begin.snapshot.time_ns = dice.number(7).cast_signed(),
        7 => "other".clone_into(&mut begin.series),
        _ => {
            let repository = RepositoryId([9; 16]);
            begin.origin = Origin { repository, snapshot: Id(dice.roll()) };
        }
    }
    begin
}

fn changed_steps(mut steps: Vec<TreeStep>, dice: &mut Dice) -> Vec<TreeStep> {
    let which = dice.below(steps.len());
    match dice.below(8) {
        0 => drop(steps.remove(which)),
        1 => steps.insert(which, steps[which].clone()),
        2 => steps.insert(which, TreeStep::Leave),
        3 => steps.insert(which, TreeStep::Same(b"file1".to_vec())),
        4 => {
            steps.insert(which, TreeStep::SameRange(b"file3".to_vec(), b"file1".to_vec()));
        }
        5 => {
            let other = dice.below(steps.len());
            steps.swap(which, other);
        }
        _ => {
            let names: [&[u8]; 5] = [b"..", b"a/b", b"", b"file1", b"\0"];
            let name = names[dice.below(names.len())].to_vec();
            if let TreeStep::Entry(entry) | TreeStep::Enter(entry) = &mut steps[which] {
                match (dice.below(4), entry.extents.first_mut()) {
                    (0, Some(extent)) => extent.address = Some(dice.number(1 << 21)),
                    (1, Some(extent)) => {
                        extent.bytes = dice.number(extent.bytes);
                        entry.metadata.size = extent.bytes;
                    }
                    (2, Some(extent)) => {
                        (extent.address, extent.bytes) = (None, u64::MAX);
                        entry.metadata.size = u64::MAX;
                    }
                    _ => entry.name = name,
                }
            }
        }
    }
    steps
}

/// Everything that is committed can be read, nothing is damaged, and nothing is left over.
pub fn is_sound(site: &Site, what: &str) {
    for head in site.repository.heads(&[]).unwrap() {
        for entry in &head.snapshots {
            let found = site.repository.find(&Selector::Id(entry.id.to_string())).unwrap();
            for volume in &found.snapshot.volumes {
                let of = found.volume(&volume.name).unwrap();
                let whole = match volume.kind {
                    VolumeKind::Disk => read_disk(site, of),
                    VolumeKind::Tree(_) => read_tree(site, of),
                };
                if let Err(error) = whole {
                    panic!("{what}: {}@{} does not restore: {error}", head.name, entry.id);
                }
            }
        }
        site.repository.sweep(&head.name, SweepOptions::default()).unwrap();
        let options = ReclaimOptions {
            grace_s: 0,
            dead_share_min: 0.0,
            leak_share_max: 0.0,
            ..ReclaimOptions::default()
        };
        site.repository.reclaim(&head.name, &options).unwrap();
    }
    let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let damage = site.repository.check(&options).unwrap().damage;
    assert!(damage.is_empty(), "{what}: {damage:?}");
}

fn read_disk(site: &Site, of: siltstone::FoundVolume<'_>) -> Result<()> {
    let reader = VolumeReader::open(&site.repository, of, 0)?;
    if reader.bytes() > 1 << 30 {
        return Ok(());
    }
    let mut bytes = vec![0; usize::try_from(reader.bytes()).unwrap()];
    assert_eq!(reader.read_at(0, &mut bytes)?, bytes.len());
    Ok(())
}

fn read_tree(site: &Site, of: siltstone::FoundVolume<'_>) -> Result<()> {
    let tree = TreeVolume::open(&site.repository, of, 0)?;
    let mut open = vec![tree.tree().root.clone()];
    while let Some(directory) = open.pop() {
        let mut cursor = tree.entries(&directory);
        while let Some(entry) = tree.next(&mut cursor)? {
            if entry.metadata.kind == silt_format::tree::EntryKind::File {
                let size = usize::try_from(entry.metadata.size.min(1 << 24)).unwrap();
                tree.check_extents(&entry)?;
                tree.read_at(&entry, 0, &mut vec![0; size])?;
            }
            open.push(entry);
        }
    }
    Ok(())
}

/// A source with two snapshots of a disk, and two of a tree.
fn source_site() -> (Site, Site) {
    let here = site();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut disk = noise(1, 2 * SEGMENT + 5000);
    disk[100_000..300_000].fill(0);
    for day in 0..2 {
        back_up(&here, "web1", &[("root", &disk)]);
        disk[SEGMENT + 10_000..SEGMENT + 30_000].fill(3);
        disk[SEGMENT..].iter_mut().step_by(9000).for_each(|byte| *byte ^= 1);
        for directory in 0..3 {
            let directory = root.join(format!("directory{directory}"));
            fs::create_dir_all(&directory).unwrap();
            for file in 0..6 {
                let bytes = noise(file + if file == 2 { day * 100 } else { 0 }, 3000);
                fs::write(directory.join(format!("file{file}")), bytes).unwrap();
            }
        }
        let mut backup = here.repository.backup("home", BackupOptions::default()).unwrap();
        backup.add_tree("files", root, &TreeOptions::default()).unwrap();
        backup.finish().unwrap();
    }
    let half = replica_of(&here);
    (here, half)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long a test runs is the tester's choice")]
fn a_hostile_source_leaves_a_replica_whole() {
    let runs = std::env::var("SILT_HOSTILE_RUNS").ok().and_then(|runs| runs.parse().ok());
    let (here, there) = source_site();
    let mut seen = Seen::default();
    let mut replica = there;
    for seed in 0..runs.unwrap_or(160_u64) {
        if seed % 2 == 0 {
            replica = replica_of(&here);
            if seed % 4 == 0 {
                let first = ReplicateOptions { newest: Some(1), ..ReplicateOptions::default() };
                send_by(&here, &replica, first);
                let mut disk = noise(50, SEGMENT + 77);
                let change = seed.to_le_bytes()[0] | 1;
                disk.iter_mut().step_by(4000).for_each(|byte| *byte ^= change);
                back_up(&here, "web1", &[("root", &disk)]);
            }
        }
        let mut dice = Dice(seed);
        let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
        let frames = [FrameUse::Never, FrameUse::Stored, FrameUse::Never, FrameUse::Always];
        source.set_frames(frames[dice.below(4)]);
        source.set_deltas(1);
        let mut hostile = Hostile {
            source,
            answers: VecDeque::new(),
            left: dice.below(25),
            changes: 1 + dice.below(4),
            changed: 0,
            changed_frames: 0,
            changed_deltas: 0,
            dice,
            said: VecDeque::new(),
            is_lost: false,
            total: 0,
        };
        let served =
            Replica::new(&replica.repository, BackupOptions::default()).serve(&mut hostile);
        seen.changed += hostile.changed;
        seen.changed_frames += hostile.changed_frames;
        seen.changed_deltas += hostile.changed_deltas;
        match served {
            Ok(committed) => {
                seen.ended += 1;
                seen.committed += committed;
            }
            Err(error) => note(&mut seen, seed, &error),
        }
        for snapshot in &hostile.source.report().snapshots {
            if let silt_replicate::Outcome::Failed(kind, why) = &snapshot.outcome {
                note(&mut seen, seed, &Error::new(*kind, why.clone()));
            }
        }
        is_sound(&replica, &format!("seed {seed}"));
    }
    // Honest replications go on.
    let fresh = replica_of(&here);
    assert!(send(&here, &fresh).is_complete());
    is_sound(&fresh, "an honest one");
    let Seen { changed, changed_frames, changed_deltas, refused, ended, committed, kinds } = &seen;
    assert!(*changed_frames > 10 && *changed_deltas > 5, "{seen:?}");
    assert!(*changed > 150 && refused[0] > 50 && refused[1] > 15, "{seen:?}");
    assert!(*ended > 50 && *committed > 50 && kinds.len() > 12, "{seen:?}");
}

/// A breach is told apart from a broken line.
fn note(seen: &mut Seen, seed: u64, error: &Error) {
    match error.kind() {
        ErrorKind::Invalid => seen.refused[0] += 1,
        ErrorKind::Corrupt => seen.refused[1] += 1,
        ErrorKind::Busy | ErrorKind::Interrupted | ErrorKind::Unsupported => {}
        other => panic!("seed {seed}: {other:?}: {error}"),
    }
    let message = error.to_string();
    let letters: String = message.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
    seen.kinds.insert(letters);
}
