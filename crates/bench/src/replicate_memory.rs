//! The memory of both ends of a replication of a terabyte of different chunks.
//!
//! The programs are real, and so are the source's maps and recipes, and the replica's index and
//! the directories of its containers. These have all chunks, but for the first 8 GB and one segment
//! in 1,024 behind, which are new. The bytes of the other chunks are nowhere, as a replication does
//! not read them. The new ones are as many as the source sketches to find bases of deltas.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use silt_backup::{BackupOptions, BackupSession, ReplicaPeer, SharedPlaces};
use silt_chunking::{Fingerprinter, SegmentDigester, signatures};
use silt_format::number::{to_u16, to_u32, to_u64, to_usize};
use silt_format::replica::{Described, ReplicaMessage, SourceMessage, Span};
use silt_format::{
    BLOCK_BYTES, BlockWriter, Chunking, Directory, Fingerprint, Frame, HEADER_BYTES, Head, KdfCost,
    LevelBytes, MapRoot, ObjectKind, ObjectTag, Recipe, RecipeChunk, Reference, RunUse,
    SEGMENT_BYTES, SHARED_STORE, SegmentDigest, SegmentEntry, SeriesId, Volume, VolumeKind, names,
};
use silt_repository::Repository;
use silt_repository::directories::close_object;
use silt_repository::find::{Selector, When};
use silt_repository::heads;
use silt_repository::lease;
use silt_repository::map::{MapReader, digester};
use silt_repository::objects::{Address, Objects, Scratch};
use silt_repository::series::{DEFAULT_DOMAIN, SHARED_NAME};
use silt_repository::system::SystemEnv;
use silt_routing::mix;
use silt_runs::RunWriter;
use silt_runs::shared_record::SharedRecord;
use silt_storage::LocalStorage;

use crate::index::open_below;
use crate::process::Call;
use crate::replicate::Server;
use crate::{Result, sharing};

#[derive(clap::Args)]
pub struct ReplicateMemoryOptions {
    /// A folder for both repositories, of 22 bytes for each 1,000 of the disk.
    #[arg(long, value_name = "DIR")]
    work: PathBuf,
    /// Another folder for the source's, of 6 bytes for each 1,000 of the disk.
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Size of the disk.
    #[arg(long, default_value_t = 1000, value_name = "GB")]
    gb: u64,
    #[arg(long, default_value = "silt", value_name = "PROGRAM")]
    silt: PathBuf,
    /// Leave the repositories where they are.
    #[arg(long)]
    keep: bool,
    /// Send one more snapshot between repositories that are there.
    #[arg(long)]
    again: bool,
}

const SERIES: &str = "disk";
const PASSWORD: &str = "benchmark";
const PORT: u16 = 7423;
/// Chunks of a segment, and of a container: 16 MiB of data.
const SEGMENT_CHUNKS: u64 = 512;
const CONTAINER_CHUNKS: u64 = 4096;
const FRAME_CHUNKS: u16 = 64;
const FRAME_SEALED_BYTES: u32 = 120_000;
/// The first segments are new: their bytes are sent. Of the others, one of so many is.
const NEW_MAX: u64 = 4096;
const NEW_OF: u64 = 1024;
/// One chunk of so many in new segments changes a little from snapshot to snapshot.
const CHANGED_OF: u64 = 64;
/// The tag of all containers.
const TAG: ObjectTag = ObjectTag::first(0x5117_0000);
/// Odd, and so a permutation of the numbers below any power of two when multiplied.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Segments of 2 MiB, of which nearly all are in the shared store. The fingerprints of those are
/// made such that their order, which is that of the index, is known without sorting.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    segments: u64,
    /// The number of chunks is at most two to this power.
    bits: u32,
}

impl Chunks {
    fn of(gb: u64) -> Self {
        let segments = (gb * 1_000_000_000 / to_u64(SEGMENT_BYTES)).max(NEW_OF);
        let bits = (segments * SEGMENT_CHUNKS).next_power_of_two().ilog2();
        Self { segments, bits }
    }

    fn count(self) -> u64 {
        self.segments * SEGMENT_CHUNKS
    }

    fn containers(self) -> u32 {
        to_u32(to_usize(self.count().div_ceil(CONTAINER_CHUNKS)))
    }

    fn is_new(self, chunk: u64) -> bool {
        let segment = chunk / SEGMENT_CHUNKS;
        segment < NEW_MAX.min(self.segments / 8) || segment % NEW_OF == NEW_OF / 2
    }

    fn below(self, number: u64) -> u64 {
        number & ((1 << self.bits) - 1)
    }

    /// The fingerprint of a chunk that is not new.
    fn fingerprint(self, chunk: u64) -> Fingerprint {
        let place = self.below(chunk.wrapping_mul(SPREAD));
        let first = place << (64 - self.bits) | mix(chunk) >> self.bits;
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..16].copy_from_slice(&mix(!chunk).to_be_bytes());
        bytes[16..].copy_from_slice(&to_bytes(mix(chunk ^ SPREAD)));
        Fingerprint(bytes)
    }

    /// The chunk whose fingerprint has this place in the order of all.
    fn at(self, place: u64) -> u64 {
        // Newton's iteration for the inverse of an odd number modulo a power of two.
        let mut inverse = SPREAD;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        }
        self.below(place.wrapping_mul(inverse))
    }

    fn reference(chunk: u64) -> Reference {
        let slot = to_u16(to_usize(chunk % CONTAINER_CHUNKS));
        Reference::new(SHARED_STORE, to_u32(to_usize(chunk / CONTAINER_CHUNKS)), slot)
    }

    /// Whether a chunk is in the shared store.
    fn is_shared(self, chunk: u64) -> bool {
        chunk < self.count() && !self.is_new(chunk)
    }

    /// The bytes of a new chunk in a version of the disk; they compress well.
    fn data(chunk: u64, version: u64) -> [u8; BLOCK_BYTES] {
        let mut data = [0; BLOCK_BYTES];
        for (number, word) in (0..).zip(data.chunks_mut(8)) {
            word.copy_from_slice(&mix((chunk << 10) | (number % 32)).to_le_bytes());
        }
        if version > 0 && chunk.is_multiple_of(CHANGED_OF) {
            data[1000..1008].copy_from_slice(&mix(version).to_le_bytes());
        }
        data
    }
}

/// The upper half of a number.
fn to_bytes(number: u64) -> [u8; 4] {
    let all = number.to_be_bytes();
    [all[0], all[1], all[2], all[3]]
}

/// Says in which slots of the shared store the chunks are, in place of an index.
impl SharedPlaces for Chunks {
    fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>> {
        let place = |(fingerprint, _): &(Fingerprint, u32)| {
            let mut first = [0; 8];
            first.copy_from_slice(&fingerprint.0[..8]);
            let chunk = self.at(u64::from_be_bytes(first) >> (64 - self.bits));
            let is_it = self.is_shared(chunk) && self.fingerprint(chunk) == *fingerprint;
            is_it.then(|| Self::reference(chunk))
        };
        Some(wanted.iter().map(place).collect())
    }
}

/// Describes a version of the disk, as the source of a replication does.
struct Description {
    chunks: Chunks,
    version: u64,
    digester: SegmentDigester,
    fingerprinter: Fingerprinter,
    described: u64,
    placed: u64,
    has_ended: bool,
    needed: VecDeque<u64>,
    /// Recipes without an answer.
    listed: usize,
    wanted: VecDeque<(u64, Vec<Span>)>,
}

impl Description {
    fn recipe(&self, segment: u64) -> Recipe {
        let chunks = (0..SEGMENT_CHUNKS).map(|number| {
            let chunk = segment * SEGMENT_CHUNKS + number;
            let fingerprint = if self.chunks.is_new(chunk) {
                self.fingerprinter.fingerprint(&Chunks::data(chunk, self.version))
            } else {
                self.chunks.fingerprint(chunk)
            };
            let reference = Reference::new(0, 0, to_u16(to_usize(number)));
            RecipeChunk { reference, length: to_u32(BLOCK_BYTES), fingerprint }
        });
        Recipe { chunks: chunks.collect() }
    }

    fn describe(&mut self) -> Vec<Described> {
        let mut all = Vec::new();
        while all.len() < 512 && self.described < self.chunks.segments {
            let segment = self.described;
            self.described += 1;
            if self.version > 0 && !self.chunks.is_new(segment * SEGMENT_CHUNKS) {
                all.push(Described::Parent(1));
                continue;
            }
            let recipe = self.recipe(segment);
            let digest = self.digester.digest_recipe(&recipe, SegmentDigest::OF_BLOCKS);
            let digest = digest.unwrap_or(SegmentDigest { kind: 0, bytes: [0; 16] });
            let prints = recipe.chunks.iter().map(|chunk| &chunk.fingerprint);
            all.push(Described::Segment(digest, signatures(prints)));
        }
        all
    }
}

impl ReplicaPeer for Description {
    fn send(&mut self, message: ReplicaMessage) -> silt_format::Result<()> {
        match message {
            ReplicaMessage::Need(spans) => {
                self.needed.extend(spans.iter().flat_map(Span::numbers));
            }
            ReplicaMessage::Want { segment, chunks } => {
                self.listed = self.listed.saturating_sub(1);
                if !chunks.is_empty() {
                    self.wanted.push_back((segment, chunks));
                }
            }
            ReplicaMessage::Placed { end } => self.placed = end,
            _ => {}
        }
        Ok(())
    }

    fn receive(&mut self) -> silt_format::Result<SourceMessage> {
        if let Some((segment, numbers)) = self.wanted.pop_front() {
            let numbers = numbers.iter().flat_map(Span::numbers);
            let chunks = numbers.map(|number| segment * SEGMENT_CHUNKS + number);
            let data = chunks.flat_map(|chunk| Chunks::data(chunk, self.version));
            return Ok(SourceMessage::Data(data.collect()));
        }
        if self.listed < 64
            && let Some(segment) = self.needed.pop_front()
        {
            self.listed += 1;
            let recipe = self.recipe(segment).encode(chunking());
            return Ok(SourceMessage::Chunks { segment, recipe });
        }
        if self.described < self.chunks.segments && self.described - self.placed < 4096 {
            return Ok(SourceMessage::Segments(self.describe()));
        }
        if !std::mem::replace(&mut self.has_ended, true) {
            return Ok(SourceMessage::End);
        }
        Err(silt_format::Error::invalid("both ends wait for each other"))
    }
}

fn chunking() -> Chunking {
    Chunking::Fixed { bytes: to_u32(BLOCK_BYTES) }
}

fn volume(chunks: Chunks) -> Volume {
    Volume {
        kind: VolumeKind::Disk,
        name: SERIES.to_owned(),
        bytes: chunks.segments * to_u64(SEGMENT_BYTES),
        source: SERIES.to_owned(),
        source_format: "raw".to_owned(),
        chunking: chunking(),
        root: MapRoot { level: 0, page: None },
        levels: LevelBytes::default(),
        stored_bytes: 0,
        unreadable: Vec::new(),
        backing: Vec::new(),
        map_proof: None,
    }
}

/// Stores a version of the disk as a snapshot of the source.
fn back_up(source: &Repository, chunks: Chunks, version: u64) -> Result<()> {
    let options = BackupOptions { places: Some(Arc::new(chunks)), ..BackupOptions::default() };
    let mut session = BackupSession::begin(source, SERIES, options)?;
    let head = Head::empty(source.series_id(SERIES), DEFAULT_DOMAIN, SERIES);
    let mut description = Description {
        chunks,
        version,
        digester: digester(&source.objects, &head),
        fingerprinter: fingerprinter(source),
        described: 0,
        placed: 0,
        has_ended: false,
        needed: VecDeque::new(),
        listed: 0,
        wanted: VecDeque::new(),
    };
    session.add_described(&volume(chunks), &mut description)?;
    session.finish()?;
    Ok(())
}

fn fingerprinter(repository: &Repository) -> Fingerprinter {
    let id = repository.series_id(SERIES);
    Fingerprinter::new(repository.objects.keys.fingerprint_key(DEFAULT_DOMAIN, id))
}

/// Commits a head of the shared store that lists all containers. Its index has all chunks, or one.
fn share(repository: &Repository, chunks: Chunks, is_whole: bool) -> Result<()> {
    let objects = &repository.objects;
    let store = objects.keys.shared_store_id(DEFAULT_DOMAIN);
    let places = if is_whole { 1 << chunks.bits } else { 1 };
    let mut writer = RunWriter::new(objects, store, RunUse::Shared, places.min(chunks.count()))?;
    for chunk in (0..places).map(|place| chunks.at(place)).filter(|it| chunks.is_shared(*it)) {
        let reference = Chunks::reference(chunk);
        let record = SharedRecord { reference, chunk_bytes: to_u32(BLOCK_BYTES) };
        writer.push(record.encode(chunks.fingerprint(chunk)))?;
    }
    let mut head = Head::empty(store, DEFAULT_DOMAIN, SHARED_NAME);
    head.runs = vec![writer.finish()?.run];
    (0..chunks.containers()).for_each(|number| head.containers.push(number, TAG));
    head.next_container = chunks.containers();
    heads::commit(objects, &mut head, objects.context.random(), None)?;
    Ok(())
}

/// Writes the containers of the shared store: their directories, and holes in place of frames.
fn contain(objects: &Objects, place: &Path, chunks: Chunks) -> Result<()> {
    let store = objects.keys.shared_store_id(DEFAULT_DOMAIN);
    fs::create_dir_all(place.join(names::containers(store)))?;
    let mut writer = BlockWriter::new(1)?;
    for number in 0..chunks.containers() {
        write_container((objects, store), (place, number), chunks, &mut writer)?;
    }
    Ok(())
}

fn write_container(
    (objects, store): (&Objects, SeriesId),
    (place, number): (&Path, u32),
    chunks: Chunks,
    writer: &mut BlockWriter,
) -> Result<()> {
    let (mut directory, mut offset) = (Directory::default(), to_u32(HEADER_BYTES));
    let first = u64::from(number) * CONTAINER_CHUNKS;
    for frame_first in (0..to_u16(to_usize(CONTAINER_CHUNKS))).step_by(FRAME_CHUNKS.into()) {
        if !chunks.is_shared(first + u64::from(frame_first)) {
            continue;
        }
        let frame = to_u16(directory.frames.len());
        let raw_bytes = u32::from(FRAME_CHUNKS) * to_u32(BLOCK_BYTES);
        directory.frames.push(Frame { offset, sealed_bytes: FRAME_SEALED_BYTES, raw_bytes });
        offset += FRAME_SEALED_BYTES;
        for slot in frame_first..frame_first + FRAME_CHUNKS {
            let fingerprint = chunks.fingerprint(first + u64::from(slot));
            directory.push(slot, frame, to_u32(BLOCK_BYTES), fingerprint);
        }
    }
    let address = Address::tagged(ObjectKind::Container, store, number, TAG);
    let (header, sealer) = objects.begin_container(address)?;
    let directory = directory.encode();
    let end = close_object(writer, (&header, &sealer), offset as usize, &directory);
    let file = File::create(place.join(names::container(store, number, TAG)))?;
    file.write_all_at(&header.encode(), 0)?;
    file.write_all_at(&end, offset.into())?;
    Ok(())
}

/// Compares some segments of the newest snapshot with what they should be.
fn compare(replica: &Repository, chunks: Chunks, version: u64) -> Result<()> {
    let found = replica.find(&Selector::Time(Some(SERIES.to_owned()), When::Latest))?;
    let root = found.snapshot.volumes.first().ok_or("a snapshot without a volume")?.root;
    let map = MapReader::new(&replica.objects, &found.head);
    let fingerprinter = fingerprinter(replica);
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    let some = (0..1000).map(|number| mix(number) % chunks.segments);
    let new = (NEW_OF / 2..chunks.segments).step_by(to_usize(NEW_OF)).take(100);
    for segment in some.chain(new) {
        let entry: Option<SegmentEntry> = map.entry(root, segment)?;
        let entry = entry.ok_or("a segment is missing")?;
        let recipe = map.segment_recipe(&entry, &mut scratch, &mut raw)?;
        let is_right = |(chunk, stored): (u64, &RecipeChunk)| {
            if chunks.is_new(chunk) {
                let data = Chunks::data(chunk, version);
                return stored.fingerprint == fingerprinter.fingerprint(&data);
            }
            let is_there = stored.reference == Chunks::reference(chunk);
            is_there && stored.fingerprint == chunks.fingerprint(chunk)
        };
        let first = segment * SEGMENT_CHUNKS;
        if !(first..).zip(&recipe.chunks).all(is_right) {
            return Err(format!("segment {segment} of the replica is not the source's").into());
        }
    }
    Ok(())
}

/// Bytes of the chunks that `silt replicate --json` says were sent, and of those in deltas.
fn sent(told: &str) -> Result<(u64, u64)> {
    let messages = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut replicated = messages.filter(|message| message["message_type"] == "replicated");
    let message = replicated.next().ok_or("nothing was replicated")?;
    let number = |field: &str| message[field].as_u64().ok_or("a field is missing");
    Ok((number("sent_bytes")?, number("delta_bytes")?))
}

/// Replicates with the programs, and prints what each took at most.
fn replicate(options: &ReplicateMemoryOptions, (here, there): (&Path, &Path)) -> Result<()> {
    let state = |name: &str| -> Result<PathBuf> {
        let state = options.work.join("replicate-memory").join(name);
        fs::create_dir_all(&state)?;
        Ok(state)
    };
    let (near, far) = (state("state")?, state("state-there")?);
    let mut command = std::process::Command::new(&options.silt);
    let address = ([127, 0, 0, 1], PORT).into();
    command.args(["serve", "replica", "--listen", &format!("127.0.0.1:{PORT}"), "-r"]).arg(there);
    command.env("SILT_PASSWORD", PASSWORD).env("XDG_STATE_HOME", &far);
    command.env("SILT_CACHE_DIR", far.join("cache"));
    let server = Server::start(&mut command, address)?;
    let call = Call::new(&options.silt)
        .env("SILT_PASSWORD", PASSWORD)
        .env("XDG_STATE_HOME", &near)
        .env("SILT_CACHE_DIR", near.join("cache"))
        .args(&["replicate", "--json", "--compression", "9", "-r"])
        .arg(here)
        .args(&["--to", &format!("tcp://127.0.0.1:{PORT}")]);
    // With a level, the source compresses, and sends deltas, on a line of any speed.
    let told = near.join("told.json");
    let cost = call.run_to(File::create(&told)?.into())?;
    let (sent, deltas) = sent(&fs::read_to_string(told)?)?;
    // After the commit, the replica may still make deltas.
    std::thread::sleep(Duration::from_secs(2));
    let repository = open_below(Arc::new(LocalStorage::open(there)?))?;
    while lease::require_free(&repository.objects, repository.series_id(SERIES), SERIES).is_err() {
        std::thread::sleep(Duration::from_secs(1));
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{:.0} MiB of new chunks, {:.0} of them as deltas, in {:.0} s, {:.0} s of CPU here; the \
         source took {:.0} MiB at most, the replica {:.0} MiB",
        mib(sent),
        mib(deltas),
        cost.wall_s,
        cost.cpu_s,
        mib(cost.rss_bytes),
        mib(server.peak_bytes()?),
    );
    Ok(())
}

/// Makes both repositories; the replica's shared store has all chunks that are not new.
fn make(here: &Path, there: &Path, chunks: Chunks) -> Result<()> {
    sharing::repository(here)?;
    let source = open_below(Arc::new(LocalStorage::open(here)?))?;
    let protection = silt_repository::open::Protection::Password {
        password: PASSWORD.as_bytes().to_vec(),
        cost: KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 },
        label: silt_format::KeyLabel::default(),
    };
    let storage = Arc::new(LocalStorage::create(there)?);
    let replica = source.init_replica(storage, SystemEnv::context(), &protection, None)?;
    share(&source, chunks, false)?;
    share(&replica, chunks, true)?;
    contain(&replica.objects, there, chunks)?;
    println!("{} chunks in {} containers", chunks.count(), chunks.containers());
    Ok(())
}

pub fn run(options: &ReplicateMemoryOptions) -> Result<()> {
    let chunks = Chunks::of(options.gb);
    let place = options.work.join("replicate-memory");
    let here = options.source.clone().unwrap_or_else(|| place.join("source"));
    let there = place.join("replica");
    if !options.again {
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir_all(&place)?;
        make(&here, &there, chunks)?;
    }
    let source = open_below(Arc::new(LocalStorage::open(&here)?))?;
    let replica = open_below(Arc::new(LocalStorage::open(&there)?))?;
    let head = heads::newest(&source.objects, source.series_id(SERIES))?;
    let first = head.map_or(0, |head| to_u64(head.snapshots.len()));
    for version in first..(first + 1).max(2) {
        back_up(&source, chunks, version)?;
        let what = if version == 0 { "the first snapshot" } else { "the next one, with deltas" };
        print!("{what}: ");
        replicate(options, (&here, &there))?;
        compare(&replica, chunks, version)?;
    }
    if !options.keep {
        fs::remove_dir_all(&here)?;
        fs::remove_dir_all(&place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_fingerprints_is_known() {
        let chunks = Chunks::of(3);
        let prints: Vec<Fingerprint> = (0..1 << chunks.bits)
            .map(|place| chunks.at(place))
            .filter(|chunk| chunks.is_shared(*chunk))
            .map(|chunk| chunks.fingerprint(chunk))
            .collect();
        assert!(prints.is_sorted_by(|a, b| a.0 < b.0), "strictly ascending");
        let all = (0..chunks.count()).filter(|chunk| chunks.is_shared(*chunk));
        assert_eq!(prints.len(), all.count());
        let wanted = [(chunks.fingerprint(300_000), 4096), (Fingerprint([3; 20]), 4096)];
        assert_eq!(chunks.find(&wanted), Some(vec![Some(Chunks::reference(300_000)), None]));
    }
}
