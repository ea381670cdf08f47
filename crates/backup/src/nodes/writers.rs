//! Writes chunks to storage nodes.
//!
//! A backup reserves a range of container numbers by a commit of the node's head, writes containers
//! straight into the node's place, and registers them, with an index of what they hold, by a second
//! commit. Only then may its series refer to them. A sweep of the node takes the reservations of
//! backups away that have ended. One that only slept finds its reservation gone, can register
//! nothing, and does not commit.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use silt_format::number::to_u64;
use silt_format::{
    Config, Error, ErrorKind, Fingerprint, Head, ObjectSet, ObjectTag, Record, Reference, Result,
    RunRef, RunUse, SeriesId, StoreWriter,
};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::edit::Edit;
use silt_repository::event::Warning;
use silt_repository::lease::HeldLease;
use silt_repository::sync::lock;
use silt_repository::upload::Uploads;
use silt_routing::Application;
use silt_runs::shared_record::SharedRecord;
use silt_runs::{Records, RunReader, RunWriter, Stream, merge};

use super::{Node, Nodes};
use crate::container::ContainerWriter;
use crate::pipeline::Pipeline;

/// Container numbers that a backup reserves first, and then at most: it doubles them each time.
const RESERVED_FIRST: u32 = 4;
const RESERVED_MAX: u32 = 64;
/// Chunks of all nodes after which a backup registers what it has written: their records take
/// 4 MiB.
const RECORDS_MAX: usize = 1 << 17;
/// The same of each node, if there are many.
const RECORDS_MIN: usize = 1 << 13;
/// Containers of the configured size whose memory those of all nodes may take; a node's container
/// has at least so many bytes.
const CONTAINERS_OPEN: usize = 2;
const CONTAINER_BYTES_MIN: usize = 1 << 20;
/// Frames of all nodes that are sealed at once, and of each node at least.
const FRAMES_IN_FLIGHT: usize = 8;
const FRAMES_IN_FLIGHT_MIN: usize = 2;
/// Number of runs of an index from which on new ones are merged with the smallest.
const RUNS_MAX: usize = 8;
/// How often a commit is tried while other backups change the node's head.
const TRIES_MAX: u32 = 50;
/// How long registering waits for a sweep of the node.
const PATIENCE_NS: u64 = 3600 * 1_000_000_000;
const PAUSE_NS: u64 = 1_000_000_000;

/// What a backup has written to its nodes and not registered yet.
pub(crate) struct NodeWriters {
    session: [u8; 16],
    series: SeriesId,
    config: Config,
    /// Chunks of a node after which it registers them, and frames that are sealed at once.
    records_max: usize,
    frames_in_flight: usize,
    nodes: BTreeMap<u16, (Arc<Node>, Option<Writing>)>,
    /// Bytes of containers that are closed for good.
    stored_bytes: u64,
}

/// The containers that are being written to a node.
struct Writing {
    containers: ContainerWriter,
    /// Behind the last reserved number.
    end: u32,
    /// How many numbers were reserved.
    reserved: u32,
    placed: Vec<Record>,
    applications: Vec<u16>,
}

/// What is durable in a node and not named by its head.
struct Written {
    containers: Vec<(u32, ObjectTag)>,
    placed: Vec<Record>,
    applications: Vec<u16>,
}

impl NodeWriters {
    /// Writers to these nodes. Containers have the size of `config` if there are few; with many,
    /// all of them share the memory.
    pub(crate) fn new(
        nodes: &Nodes,
        (session, series): ([u8; 16], SeriesId),
        config: &Config,
    ) -> Self {
        let written = nodes.nodes.iter().filter(|node| node.takes_chunks).count().max(1);
        let bytes = config.container_bytes as usize;
        let bytes =
            (bytes * CONTAINERS_OPEN / written).clamp(CONTAINER_BYTES_MIN.min(bytes), bytes);
        let mut config = config.clone();
        config.container_bytes = silt_format::number::to_u32(bytes);
        let records_max = (RECORDS_MAX / written).max(RECORDS_MIN);
        let frames_in_flight = (FRAMES_IN_FLIGHT / written).max(FRAMES_IN_FLIGHT_MIN);
        let nodes = nodes.nodes.iter().map(|node| (node.number, (Arc::clone(node), None)));
        let (nodes, stored_bytes) = (nodes.collect(), 0);
        Self { session, series, config, records_max, frames_in_flight, nodes, stored_bytes }
    }

    /// Bytes of sealed frames and directories so far.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let open = self.nodes.values().filter_map(|(_, writing)| writing.as_ref());
        self.stored_bytes + open.map(|it| it.containers.stored_bytes).sum::<u64>()
    }

    /// Adds a chunk to a node; `None` if the node can't be written to now. The reference becomes
    /// valid when [`register`](Self::register) has succeeded.
    pub(crate) fn append(
        &mut self,
        repository: &Repository,
        lease: &mut HeldLease,
        pipeline: &Pipeline<'_>,
        (number, application, is_large): (u16, Application, bool),
        (chunk, fingerprint): (&[u8], Fingerprint),
    ) -> Result<Option<Reference>> {
        let Some((node, writing)) = self.nodes.get_mut(&number) else { return Ok(None) };
        let node = Arc::clone(node);
        if !node.takes_chunks {
            return Ok(None);
        }
        let records_max = self.records_max;
        // A container that is begun may be followed by one more while a chunk is added.
        let is_full = |it: &mut Writing| {
            it.containers.next_number().saturating_add(1) >= it.end
                || it.placed.len() >= records_max
        };
        let full = writing.take_if(is_full);
        let doubled = |full: &Writing| full.reserved.saturating_mul(2).min(RESERVED_MAX);
        let more = full.as_ref().map_or(RESERVED_FIRST, doubled);
        if full.is_some() || writing.is_none() {
            let written = match full {
                Some(mut full) => {
                    full.containers.close(pipeline)?;
                    self.stored_bytes += full.containers.stored_bytes;
                    Some(full.finish()?)
                }
                None => None,
            };
            let own = (self.session, self.series);
            let lease = Mutex::new(&mut *lease);
            let reserved = match commit(repository, &lease, &node, own, written.as_ref(), more) {
                Err(error) if error.kind() == ErrorKind::Busy && written.is_none() => {
                    let consequence = format!("{} is not written to", node.shown);
                    repository.warn(Warning::after(&error, &consequence));
                    self.nodes.remove(&number);
                    return Ok(None);
                }
                other => other?,
            };
            let (reserved, head) = reserved;
            let Some(StoreWriter { first, end, .. }) = reserved else { return Ok(None) };
            match node.renew(repository, &head) {
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    let consequence = "what others have stored there meanwhile is stored again";
                    repository.warn(Warning::after(&error, consequence));
                }
                Ok(()) => {}
            }
            let objects = &repository.objects;
            let budget = objects.context.budget(0);
            let tag = ObjectTag::first(objects.context.random_id());
            let uploads = Uploads::new(objects, budget.uploads(objects.storage.uploads()));
            let store = (repository.store(number).id, number);
            let mut containers =
                ContainerWriter::new(objects, store, &self.config, (first, tag), uploads)?;
            containers.limit_in_flight(self.frames_in_flight);
            let (placed, applications) = (Vec::new(), Vec::new());
            *writing = Some(Writing { containers, end, reserved: more, placed, applications });
        }
        let Some(writing) = writing else { return Ok(None) };
        writing.containers.set_large_frames(is_large);
        let reference = writing.containers.append(pipeline, chunk, fingerprint)?;
        let chunk_bytes = silt_format::number::to_u32(chunk.len());
        writing.placed.push(SharedRecord { reference, chunk_bytes }.encode(fingerprint));
        if !writing.applications.contains(&application.0) {
            writing.applications.push(application.0);
        }
        node.used_bytes.fetch_add(to_u64(chunk.len()), Ordering::Relaxed);
        Ok(Some(reference))
    }

    /// Ends the containers that are being filled.
    pub(crate) fn close(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        let mut open = self.nodes.values_mut().filter_map(|(_, writing)| writing.as_mut());
        open.try_for_each(|writing| writing.containers.close(pipeline))
    }

    /// Registers what was written in the nodes' heads, so that a series' head may refer to it.
    ///
    /// Fails with `Conflict` if a sweep has taken the reservation away.
    pub(crate) fn register(self, repository: &Repository, lease: &mut HeldLease) -> Result<()> {
        let own = (self.session, self.series);
        let written = self.nodes.into_values();
        let written = written.filter_map(|(node, writing)| Some((node, writing?))).collect();
        let lease = Mutex::new(lease);
        // A node waits for the requests about it, and not for those about others.
        let register = |repository: &Repository, (node, writing): (Arc<Node>, Writing)| {
            commit(repository, &lease, &node, own, Some(&writing.finish()?), 0)
        };
        each_beside(repository, written, register, |done| done.map(drop))
    }
}

impl Writing {
    /// Waits until all of it is durable.
    fn finish(self) -> Result<Written> {
        let mut placed = self.placed;
        placed.sort_unstable();
        let containers = self.containers.finish()?.0;
        Ok(Written { containers, placed, applications: self.applications })
    }
}

impl Written {
    /// Whether a head names all of it.
    fn is_named_by(&self, head: &Head) -> bool {
        self.containers.iter().all(|(number, tag)| head.containers.tag(*number) == Some(*tag))
    }
}

/// Records in memory, in order.
struct Placed<'a>(&'a [Record]);

impl Records for Placed<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        batch.extend(std::mem::take(&mut self.0));
        Ok(())
    }
}

/// Changes the node's head: registers what was written, and reserves `more` numbers.
///
/// Other backups commit meanwhile, so it is tried again. What a failed try has written of the index
/// is not used again: a sweep may have found that nothing names it, and removed it.
fn commit(
    repository: &Repository,
    lease: &Mutex<&mut HeldLease>,
    node: &Node,
    (session, series): ([u8; 16], SeriesId),
    written: Option<&Written>,
    more: u32,
) -> Result<(Option<StoreWriter>, Head)> {
    let env = &repository.objects.context.env;
    let (mut tries, mut waited_ns) = (0, 0);
    loop {
        lock(lease).keep()?;
        let changed = Edit::begin_store_brief(repository, node.number).and_then(|mut edit| {
            let place = edit.head.store_writers.iter().position(|it| it.session == session);
            if written.is_some_and(|written| written.is_named_by(&edit.head)) {
                // The answer to an earlier try was lost.
                let reserved = place.map(|place| edit.head.store_writers[place]);
                return Ok((reserved, edit.head));
            }
            let own = place.map(|place| edit.head.store_writers.remove(place));
            match (written, own) {
                (Some(written), Some(_)) => add(repository, &mut edit.head, written, tries == 0)?,
                (Some(_), None) => return Err(is_gone(node)),
                // What an earlier try has reserved, whose answer was lost, is not used.
                (None, _) => {}
            }
            let reserved = (more > 0).then(|| reserve_in(&mut edit.head, (session, series), more));
            let reserved = reserved.transpose()?;
            edit.commit()?;
            Ok((reserved, edit.head))
        });
        match changed {
            Err(error) if error.kind() == ErrorKind::Busy => {
                let is_swept = error.advice().is_some();
                tries += u32::from(!is_swept);
                // Nothing is lost if these chunks are stored elsewhere.
                let may_wait = written.is_some() && waited_ns < PATIENCE_NS;
                if tries > TRIES_MAX || is_swept && !may_wait {
                    return Err(error);
                }
                if waited_ns == 0 && is_swept {
                    repository.warn(Warning::after(&error, "waiting"));
                }
                repository.objects.context.check_interrupted()?;
                let pause_ns = if is_swept { PAUSE_NS } else { pause_ns(repository, tries) };
                env.sleep_ns(pause_ns);
                waited_ns += if is_swept { pause_ns } else { 0 };
            }
            other => return other,
        }
    }
}

/// A random pause that grows with the number of tries, at most half a second.
fn pause_ns(repository: &Repository, tries: u32) -> u64 {
    let random: [u8; 16] = repository.objects.context.random();
    let share = u64::from(u16::from_le_bytes([random[0], random[1]]));
    (u64::from(tries.min(50)) * 10_000_000) * share / u64::from(u16::MAX)
}

fn is_gone(node: &Node) -> Error {
    let message = format!(
        "the backup took longer than its lease, and a sweep of {} has taken its reservation away; \
         nothing was committed; run it again",
        node.shown
    );
    Error::new(ErrorKind::Conflict, message)
}

fn reserve_in(
    head: &mut Head,
    (session, series): ([u8; 16], SeriesId),
    count: u32,
) -> Result<StoreWriter> {
    let first = head.next_container;
    let end = first.checked_add(count).ok_or_else(|| {
        Error::invalid("a storage node has used all 2^32 container numbers; add another node")
    })?;
    head.next_container = end;
    let writer = StoreWriter { session, series, first, end };
    head.store_writers.push(writer);
    // A sweep deletes nothing while one of these is missing.
    if let Err(place) = head.users.binary_search(&series) {
        head.users.insert(place, series);
    }
    Ok(writer)
}

/// Adds containers and the index of what they hold to a head.
fn add(repository: &Repository, head: &mut Head, written: &Written, may_merge: bool) -> Result<()> {
    // Other backups may have registered containers with higher numbers.
    let mut containers: Vec<_> = head.containers.iter().chain(written.containers.clone()).collect();
    containers.sort_unstable_by_key(|(number, _)| *number);
    head.containers = ObjectSet::default();
    containers.into_iter().for_each(|(number, tag)| head.containers.push(number, tag));
    for application in &written.applications {
        if !head.applications.contains(application) {
            head.applications.push(*application);
        }
    }
    if written.placed.is_empty() {
        return Ok(());
    }
    let (objects, store) = (&repository.objects, head.series);
    let merged =
        if may_merge { smallest(&mut head.runs, written.placed.len()) } else { Vec::new() };
    let records = merged.iter().map(|run| run.records).sum::<u64>() + to_u64(written.placed.len());
    let mut writer = RunWriter::new(objects, store, RunUse::Shared, records)?;
    let readers = merged.iter().map(|run| Stream::new(RunReader::new(objects, store, *run)));
    let own = Stream::new(Placed(&written.placed));
    let mut all = merge(readers.chain([own]).collect());
    while let Some(record) = all.next()? {
        writer.push(record)?;
    }
    head.runs.push(writer.finish()?.run);
    Ok(())
}

/// Takes the runs out that are to be merged with one of so many records: the newest ones, while the
/// next older one is at most twice as large as those behind it together.
fn smallest(runs: &mut Vec<RunRef>, records: usize) -> Vec<RunRef> {
    if runs.len() < RUNS_MAX {
        return Vec::new();
    }
    let (mut sum, mut first) = (to_u64(records), runs.len());
    while first > 0 && runs[first - 1].records <= sum.saturating_mul(2) {
        first -= 1;
        sum += runs[first].records;
    }
    runs.split_off(first)
}
