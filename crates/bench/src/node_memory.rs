//! The memory of a node's process that answers for a terabyte of different chunks.
//!
//! The node's head and index are real, and so is all that reads them. Its containers are made when
//! they are read: a directory of the format, and no chunks, which the process never reads.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use silt_backup::{NodeAnswers, Wanted, print_of};
use silt_cluster::Messages;
use silt_cluster::nodes::{NodeClient, NodeServer, NodeServerOptions};
use silt_format::number::to_u32;
use silt_format::{
    BlockWriter, Directory, Fingerprint, Frame, HEADER_BYTES, Head, ObjectKind, ObjectTag,
    Reference, RunUse, SeriesId, names,
};
use silt_repository::directories::close_object;
use silt_repository::heads;
use silt_repository::objects::{Address, Objects};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::stores::store_name;
use silt_repository::system::SystemEnv;
use silt_routing::{handprint, mix};
use silt_runs::RunWriter;
use silt_runs::shared_record::SharedRecord;
use silt_storage::{
    ByteRange, Guarantees, Key, ListPage, LocalStorage, ObjectMeta, PutMode, Storage,
};

use crate::export::peak_bytes;
use crate::index::{Nats, connect, open_below};
use crate::{NodeMemoryOptions, Result, sharing};

/// The node's number in references.
const NODE: u16 = 2;
/// The application of its chunks.
const DISKS: u16 = 1;
const CHUNK_BYTES: u32 = 4096;
/// Chunks of a container: 16 MiB of data.
const CHUNKS: u16 = 4096;
const FRAME_CHUNKS: u16 = 64;
const FRAME_SEALED_BYTES: u32 = 120_000;
/// The tag of all containers.
const TAG: ObjectTag = ObjectTag::first(0x5117_0000);
/// Super-chunks that are asked for, and chunks of one.
const ASKED: u32 = 4000;
const SUPER_CHUNK: u16 = 96;

/// The fingerprint of a chunk of a container.
fn fingerprint(container: u32, slot: u16) -> Fingerprint {
    spread(mix(u64::from(container) << 16 | u64::from(slot)))
}

/// A fingerprint that begins with a number.
fn spread(first: u64) -> Fingerprint {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..16].copy_from_slice(&mix(first).to_be_bytes());
    bytes[16..].copy_from_slice(&mix(!first).to_be_bytes()[..4]);
    Fingerprint(bytes)
}

/// A folder whose node has containers that are made when they are read.
struct Generated {
    folder: LocalStorage,
    objects: Arc<Objects>,
    node: SeriesId,
    prefix: String,
    /// The container that was read last: its header is read before its directory.
    last: Mutex<Option<Container>>,
}

struct Container {
    number: u32,
    header: Vec<u8>,
    /// Where its frames end, and what follows.
    frames_end: u64,
    end: Vec<u8>,
}

impl Generated {
    fn make(&self, number: u32) -> silt_format::Result<Container> {
        let (mut directory, mut offset) = (Directory::default(), to_u32(HEADER_BYTES));
        for frame in 0..CHUNKS / FRAME_CHUNKS {
            let raw_bytes = u32::from(FRAME_CHUNKS) * CHUNK_BYTES;
            let sealed_bytes = FRAME_SEALED_BYTES;
            directory.frames.push(Frame { offset, sealed_bytes, raw_bytes });
            offset += sealed_bytes;
            for slot in frame * FRAME_CHUNKS..(frame + 1) * FRAME_CHUNKS {
                directory.begin_application(slot, DISKS);
                directory.push(slot, frame, CHUNK_BYTES, fingerprint(number, slot));
            }
        }
        let address = Address::tagged(ObjectKind::Container, self.node, number, TAG);
        let (header, sealer) = self.objects.begin_container(address)?;
        let encoded = directory.encode();
        let mut writer = BlockWriter::new(1)?;
        let end = close_object(&mut writer, (&header, &sealer), offset as usize, &encoded);
        Ok(Container { number, header: header.encode().to_vec(), frames_end: offset.into(), end })
    }
}

impl Container {
    fn read(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> silt_format::Result<()> {
        let range = range.resolve(key, self.frames_end + self.end.len() as u64)?;
        into.clear();
        let header = self.header.iter().copied().chain(std::iter::repeat(0));
        let from = usize::try_from(range.start).unwrap_or(usize::MAX);
        let frames = usize::try_from(self.frames_end).unwrap_or(usize::MAX);
        let until = usize::try_from(range.end).unwrap_or(usize::MAX);
        if from < frames {
            into.extend(header.skip(from).take(until.min(frames) - from));
        }
        if until > frames {
            into.extend_from_slice(&self.end[from.saturating_sub(frames)..until - frames]);
        }
        Ok(())
    }
}

impl Storage for Generated {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> silt_format::Result<()> {
        self.folder.put_bytes(key, body, mode)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> silt_format::Result<()> {
        let number = key.as_str().strip_prefix(&self.prefix).and_then(|rest| rest.get(..8));
        let Some(number) = number.and_then(|number| u32::from_str_radix(number, 16).ok()) else {
            return self.folder.get(key, range, into);
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some(container) if container.number == number => container.read(key, range, into),
            other => other.insert(self.make(number)?).read(key, range, into),
        }
    }

    fn settle(&self, key: &Key) -> silt_format::Result<()> {
        self.folder.settle(key)
    }

    fn head(&self, key: &Key) -> silt_format::Result<ObjectMeta> {
        self.folder.head(key)
    }

    fn delete(&self, keys: &[Key]) -> silt_format::Result<()> {
        self.folder.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> silt_format::Result<ListPage> {
        self.folder.list(prefix, after)
    }

    fn guarantees(&self) -> Guarantees {
        self.folder.guarantees()
    }

    fn describe(&self) -> String {
        self.folder.describe()
    }
}

/// Writes the node's index and head.
fn write(place: &Path, containers: u32) -> Result<()> {
    let repository = sharing::repository(place)?;
    let objects = &repository.objects;
    let node = objects.keys.store_id(DEFAULT_DOMAIN, NODE);
    let chunks = u64::from(containers) * u64::from(CHUNKS);
    let mut writer = RunWriter::new(objects, node, RunUse::Shared, chunks)?;
    let step = u64::MAX / chunks;
    for number in 0..chunks {
        let container = u32::try_from(number / u64::from(CHUNKS))?;
        let slot = u16::try_from(number % u64::from(CHUNKS))?;
        let reference = Reference::new(NODE, container, slot);
        let record = SharedRecord { reference, chunk_bytes: CHUNK_BYTES };
        writer.push(record.encode(spread(number * step + mix(number) % step)))?;
    }
    let mut head = Head::empty(node, DEFAULT_DOMAIN, &store_name(NODE));
    head.runs = vec![writer.finish()?.run];
    (0..containers).for_each(|number| head.containers.push(number, TAG));
    head.next_container = containers;
    heads::commit(objects, &mut head, objects.context.random(), None)?;
    Ok(())
}

pub fn run(options: &NodeMemoryOptions) -> Result<()> {
    let place = options.work.join("node-memory");
    let containers =
        u32::try_from(options.gb * 1_000_000_000 / (u64::from(CHUNKS) * u64::from(CHUNK_BYTES)))?;
    if options.measure {
        return measure(options, &place, containers);
    }
    write(&place, containers)?;
    // A process of its own: what writing the index took shall not count.
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["node-memory", "--measure", "--work"]).arg(&options.work);
    command.args(["--gb", &options.gb.to_string(), "--index-mib", &options.index_mib.to_string()]);
    let status = command.status()?;
    if !options.keep {
        std::fs::remove_dir_all(&place)?;
    }
    if status.success() { Ok(()) } else { Err("the measuring process failed".into()) }
}

fn measure(options: &NodeMemoryOptions, place: &Path, containers: u32) -> Result<()> {
    // As `silt` begins.
    silt_source::keep_heap_small();
    let mib = || -> Result<f64> { Ok(peak_bytes(std::process::id())? as f64 / f64::from(1 << 20)) };
    let sealing = open_below(Arc::new(LocalStorage::open(place)?))?;
    let node = sealing.objects.keys.store_id(DEFAULT_DOMAIN, NODE);
    let prefix = names::container(node, 0, TAG);
    let prefix = prefix.rsplit_once('/').ok_or("a container without a folder")?.0.to_owned() + "/";
    let (folder, last) = (LocalStorage::open(place)?, Mutex::default());
    let storage = Generated { folder, objects: sealing.objects, node, prefix, last };
    let repository = open_below(Arc::new(storage))?;
    let nats = Nats::start()?;
    let (bus, asking) = (connect(nats.port, "node")?, connect(nats.port, "client")?);
    let messages = Messages::new(&repository.objects);
    let served = NodeServerOptions::new(options.index_mib, true);
    let begun = mib()?;
    let server = NodeServer::start(&*bus, &messages, NODE, served)?;
    let begin = Instant::now();
    let holds = server.refresh()?;
    println!(
        "{} GB of chunks in {} containers: {} representatives after {:.0} s",
        options.gb,
        holds.containers,
        holds.representatives,
        begin.elapsed().as_secs_f64()
    );
    println!("memory: {begun:.0} MiB to begin with, {:.0} MiB at most while reading", mib()?);
    let client = NodeClient::new(asking, messages, SystemEnv::context(), &[NODE])?;
    let begin = Instant::now();
    let (mut similar, mut known, mut chunks) = (0, 0, 0);
    for number in 0..ASKED {
        // Every other one has new chunks.
        let container = u32::try_from(mix(number.into()) % u64::from(containers))?;
        let container = container + if number % 2 == 0 { 0 } else { containers };
        let first = u16::try_from(mix(!u64::from(number)) % u64::from(CHUNKS - SUPER_CHUNK))?;
        let wanted: Vec<Wanted> = (first..first + SUPER_CHUNK)
            .map(|slot| (fingerprint(container, slot), CHUNK_BYTES))
            .collect();
        let handprint = handprint(wanted.iter().map(|(print, _)| print_of(print)), 8);
        let counts = client.similar(DISKS, &[(NODE, vec![handprint])]).pop().flatten();
        let counts = counts.ok_or("the node's process does not answer")?;
        similar += u32::from(counts.first().is_some_and(|count| *count > 0));
        chunks += wanted.len();
        let found = client.find(DISKS, &[(NODE, wanted)]).pop().flatten();
        known += found.ok_or("the node's process does not answer")?.iter().flatten().count();
    }
    println!(
        "asked for {ASKED} super-chunks, half of them new: {similar} resemble one, {known} of \
         {chunks} chunks are known, {:.1} ms each",
        begin.elapsed().as_secs_f64() * 1e3 / f64::from(ASKED)
    );
    println!("memory: {:.0} MiB at most", mib()?);
    Ok(())
}
