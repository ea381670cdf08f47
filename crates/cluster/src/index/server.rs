//! A host that holds partitions of the shared index.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use silt_format::number::to_u64;
use silt_format::{ALONE, Fingerprint, Record, Reference, Result, RunRef};
use silt_repository::heads;
use silt_repository::objects::Objects;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::shared_record::SharedRecord;
use silt_runs::{RunReader, Stream, merge};
use silt_sharing::copy::shared_runs;

use super::messages::{decode_question, encode_answer};
use super::{PARTITION_BITS, PARTITIONS, holder, partition, service_of};
use crate::{Answering, Bus, IndexStatus, Messages, Name, Respond};

/// The number that questions are sealed with.
pub(super) const QUESTIONS: u64 = 0x5349_4c54_2049_4458;

/// What a host holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The generation of the shared store's head.
    pub generation: u64,
    /// Partitions.
    pub partitions: u32,
    /// Chunks whose places are known.
    pub chunks: u64,
    /// Partitions that would be this host's, and for which it has no memory.
    pub left_out: u32,
}

/// Holds partitions of the shared index, and answers for them until it is dropped.
pub struct IndexServer {
    objects: Arc<Objects>,
    name: Name,
    memory_bytes: u64,
    held: Arc<RwLock<Held>>,
    answered: Arc<Answered>,
    _answering: Box<dyn Answering>,
}

/// Fingerprints that were asked for, and those that were known.
#[derive(Default)]
struct Answered {
    asked: AtomicU64,
    found: AtomicU64,
}

/// The records of the partitions, each in the order of fingerprints.
#[derive(Default)]
struct Held {
    served: Served,
    hosts: Vec<Name>,
    partitions: Vec<Option<Box<[Record]>>>,
}

impl Held {
    /// Memory of the records.
    fn bytes(&self) -> u64 {
        let records: usize = self.partitions.iter().flatten().map(|records| records.len()).sum();
        to_u64(records * size_of::<Record>())
    }

    /// Where a chunk is. A chunk may be there twice: condemned, and stored again. Which one may be
    /// used the host that asks decides, so it is given the one that was stored last.
    fn find(&self, fingerprint: &Fingerprint, length: u32) -> Option<Reference> {
        let records = self.partitions.get(partition(fingerprint) as usize)?.as_ref()?;
        let (start, end) = near(records, fingerprint);
        let found = records[start..end].iter().filter(|it| it.fingerprint == *fingerprint);
        let found = found.map(SharedRecord::decode).filter(|it| it.chunk_bytes == length);
        found.map(|it| it.reference).max_by_key(|it| (it.container(), it.slot()))
    }
}

/// The range of records that can have a fingerprint. Fingerprints are evenly distributed, so that
/// a few steps of interpolation come close.
fn near(records: &[Record], fingerprint: &Fingerprint) -> (usize, usize) {
    let (mut start, mut end) = (0, records.len());
    let key = key_of(fingerprint);
    while end - start > 32 {
        let (first, last) =
            (key_of(&records[start].fingerprint), key_of(&records[end - 1].fingerprint));
        if key < first || key > last {
            return (start, start);
        }
        let span = u128::from(last - first).max(1);
        let ahead = u128::from(key - first) * (end - 1 - start) as u128 / span;
        let guess = start + usize::try_from(ahead).unwrap_or(0).min(end - 1 - start);
        // Equal keys stay on both sides.
        let window = 12;
        let (low, high) = (guess.saturating_sub(window).max(start), (guess + window).min(end - 1));
        match (
            key_of(&records[low].fingerprint) < key || low == start,
            key_of(&records[high].fingerprint) > key || high == end - 1,
        ) {
            (true, true) => return (low, high + 1),
            (true, false) => start = high,
            (false, _) => end = low + 1,
        }
    }
    (start, end)
}

/// The first eight bytes of a fingerprint behind those that are equal in a partition.
fn key_of(fingerprint: &Fingerprint) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&fingerprint.0[1..9]);
    u64::from_be_bytes(bytes)
}

impl IndexServer {
    /// Begins to answer, about the repository of these messages. Nothing is held before
    /// [`refresh`](Self::refresh).
    pub fn start(
        bus: &dyn Bus,
        messages: &Messages,
        name: Name,
        memory_bytes: u64,
    ) -> Result<Self> {
        let (held, answered): (Arc<RwLock<Held>>, Arc<Answered>) = Default::default();
        let respond = respond(Arc::clone(&held), Arc::clone(&answered), messages.clone());
        let answering = bus.answer(&service_of(&name)?, respond)?;
        let objects = Arc::clone(&messages.objects);
        Ok(Self { objects, name, memory_bytes, held, answered, _answering: answering })
    }

    /// Reads the shared store's head, and the partitions that are this host's if it has changed or
    /// other hosts are there. `hosts` are all that hold partitions, with this one; without it, it
    /// holds none. Never holds more than its memory.
    pub fn refresh(&self, hosts: &[Name]) -> Result<Served> {
        let mut hosts = hosts.to_vec();
        hosts.sort();
        hosts.dedup();
        let head = if self.objects.keys.has_domain(DEFAULT_DOMAIN) {
            let store = self.objects.keys.shared_store_id(DEFAULT_DOMAIN);
            heads::newest(&self.objects, store)?.filter(|head| head.domain != ALONE)
        } else {
            None
        };
        let Some(head) = head else {
            *self.write() = Held::default();
            return Ok(Served::default());
        };
        let is_new = self.read_held().served.generation != head.generation;
        if !is_new && self.read_held().hosts == hosts {
            return Ok(self.read_held().served);
        }
        let is_own = |number: &u32| holder(*number, &hosts) == Some(&self.name);
        {
            let mut held = self.write();
            held.partitions.resize_with(PARTITIONS as usize, || None);
            let others = (0..PARTITIONS).filter(|number| !is_own(number));
            others.for_each(|number| held.partitions[number as usize] = None);
        }
        let runs: Vec<RunRef> = shared_runs(&head).collect();
        let mut served = Served { generation: head.generation, ..Served::default() };
        for number in (0..PARTITIONS).filter(is_own) {
            if is_new || self.read_held().partitions[number as usize].is_none() {
                // What is held anew has the place of what was held before.
                let left_bytes = {
                    let mut held = self.write();
                    held.partitions[number as usize] = None;
                    self.memory_bytes.saturating_sub(held.bytes())
                };
                let records = self.read(&runs, number, left_bytes)?;
                self.write().partitions[number as usize] = records;
            }
            match &self.read_held().partitions[number as usize] {
                Some(records) => {
                    served.partitions += 1;
                    served.chunks += to_u64(records.len());
                }
                None => served.left_out += 1,
            }
        }
        let mut held = self.write();
        (held.served, held.hosts) = (served, hosts);
        Ok(served)
    }

    /// What it holds, and what it has answered.
    pub fn status(&self) -> IndexStatus {
        let held = self.read_held();
        let Served { generation, partitions, chunks, left_out } = held.served;
        let (memory_bytes, used_bytes) = (self.memory_bytes, held.bytes());
        let asked = self.answered.asked.load(Ordering::Relaxed);
        let found = self.answered.found.load(Ordering::Relaxed);
        IndexStatus {
            memory_bytes,
            used_bytes,
            generation,
            partitions,
            left_out,
            chunks,
            asked,
            found,
        }
    }

    fn read_held(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of a partition, unless they take more than `left_bytes`.
    fn read(&self, runs: &[RunRef], number: u32, left_bytes: u64) -> Result<Option<Box<[Record]>>> {
        let objects = &self.objects;
        let store = objects.keys.shared_store_id(DEFAULT_DOMAIN);
        let keys = keys_of(number);
        let reader = |run: &RunRef| {
            Stream::new(RunReader::between(objects, store, *run, keys.clone()).reading(64 << 10))
        };
        let mut stream = merge(runs.iter().map(reader).collect());
        let mut records = Vec::new();
        while let Some(record) = stream.next()? {
            records.push(record);
            if to_u64(records.len() * size_of::<Record>()) > left_bytes {
                return Ok(None);
            }
        }
        Ok(Some(records.into_boxed_slice()))
    }
}

/// The fingerprints of a partition, by their first four bytes.
fn keys_of(partition: u32) -> RangeInclusive<u32> {
    let width = 1 << (32 - u32::from(PARTITION_BITS));
    partition * width..=partition * width + (width - 1)
}

fn respond(held: Arc<RwLock<Held>>, answered: Arc<Answered>, messages: Messages) -> Respond {
    Arc::new(move |question: &[u8]| {
        let answer = || -> Result<Vec<u8>> {
            let question = messages.open(QUESTIONS, question)?;
            let (nonce, wanted) = decode_question(&question.plain)?;
            let held = held.read().unwrap_or_else(PoisonError::into_inner);
            let found = wanted.iter().map(|(fingerprint, length)| held.find(fingerprint, *length));
            let found: Vec<_> = found.collect();
            drop(held);
            answered.asked.fetch_add(to_u64(found.len()), Ordering::Relaxed);
            let known = to_u64(found.iter().flatten().count());
            answered.found.fetch_add(known, Ordering::Relaxed);
            messages.seal(nonce, &encode_answer(&found))
        };
        // What can't be read is nobody's question.
        answer().unwrap_or_default()
    })
}
