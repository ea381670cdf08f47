//! Writes chunks to storage nodes.
//!
//! A backup reserves ranges of container numbers by commits of the node's head, and writes
//! containers straight into the node's place. When a range is full, its containers are
//! [registered](super::registration), while those of the next one are filled: a backup always has
//! two ranges.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::number::to_u64;
use silt_format::{Config, Error, ErrorKind, Fingerprint, ObjectTag, Reference, Result};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::event::Warning;
use silt_repository::lease::SharedLease;
use silt_repository::operation::CancelToken;
use silt_repository::settle::verify_unchanged;
use silt_repository::upload::Uploads;
use silt_routing::Application;
use silt_runs::shared_record::SharedRecord;

use super::registration::{Own, Range, Registering, Registration, Writing, give_back, reserve};
use super::{Node, Nodes};
use crate::container::ContainerWriter;
use crate::pipeline::Pipeline;

/// Container numbers in the first range of a node, and in later ones at most: each has twice as
/// many as the one before.
const RESERVED_FIRST: u32 = 4;
const RESERVED_MAX: u32 = 64;
/// Chunks in the ranges of all nodes that are being filled. As many may be being registered; the
/// records of both take 4 MiB, or 5 where last containers are filled first.
const RECORDS_MAX: usize = 1 << 16;
/// The same of each node, if there are many.
const RECORDS_MIN: usize = 1 << 13;
/// What the containers that are being filled may hold together, in halves of a container of the
/// configured size.
const HALVES_OPEN: usize = 3;
/// The part of the configured size at which a container is closed where there are several nodes:
/// with the frames that are still being sealed then, a restore reads all of it by one request.
const CONTAINER_SHARE: (usize, usize) = (2, 3);
/// A node's container is not closed for want of memory before it has so many bytes.
const CONTAINER_BYTES_MIN: usize = 1 << 20;
/// Frames of all nodes that are sealed at once, and of each node at least.
const FRAMES_IN_FLIGHT: usize = 8;
const FRAMES_IN_FLIGHT_MIN: usize = 2;

/// What a backup has written to its nodes and not registered yet.
pub(crate) struct NodeWriters {
    own: Own,
    config: Config,
    /// What the containers that are being filled may hold together, in bytes.
    open_bytes_max: usize,
    /// Chunks after which a node's range counts as full, and frames that are sealed at once.
    records_max: usize,
    frames_in_flight: usize,
    targets: BTreeMap<u16, Target>,
    uses_all: bool,
    /// Bytes of containers that are closed for good.
    stored_bytes: u64,
}

/// A node that is written to.
struct Target {
    node: Arc<Node>,
    /// The containers that are being filled.
    writing: Option<Writing>,
    /// The ranges after theirs; none while one is being reserved.
    next: VecDeque<Range>,
    /// The containers before them. Registering these reserves the next range.
    registering: Option<Registering>,
    /// Numbers in the range that was reserved last.
    reserved: u32,
}

impl NodeWriters {
    /// Writers to these nodes. All containers that are being filled share the memory of one and a
    /// half of the size in `config`; with many nodes, the largest is closed early. `uses_all` says
    /// that new chunks are to be expected for each.
    pub(crate) fn new(nodes: &Nodes, own: Own, config: &Config, uses_all: bool) -> Self {
        let written = nodes.all.iter().filter(|node| node.takes_chunks).count().max(1);
        let bytes = config.container_bytes as usize;
        let least = CONTAINER_BYTES_MIN.min(bytes);
        let open_bytes_max = (bytes * HALVES_OPEN / 2).max(least * written);
        let share = (bytes * CONTAINER_SHARE.0 / CONTAINER_SHARE.1).max(least);
        let bytes = if written == 1 { bytes } else { share };
        let mut config = config.clone();
        config.container_bytes = silt_format::number::to_u32(bytes);
        let records_max = (RECORDS_MAX / written).max(RECORDS_MIN);
        let frames_in_flight = (FRAMES_IN_FLIGHT / written).max(FRAMES_IN_FLIGHT_MIN);
        let targets = nodes.all.iter().map(|node| (node.number, Target::of(node))).collect();
        Self {
            own,
            config,
            open_bytes_max,
            records_max,
            frames_in_flight,
            targets,
            uses_all,
            stored_bytes: 0,
        }
    }

    /// Bytes of sealed frames and directories so far.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let open = self.targets.values().filter_map(|target| target.writing.as_ref());
        self.stored_bytes + open.map(|it| it.containers.stored_bytes).sum::<u64>()
    }

    /// Adds a chunk to a node; `None` if the node can't be written to now. The reference becomes
    /// valid when [`register`](Self::register) has succeeded.
    pub(crate) fn append(
        &mut self,
        repository: &Repository,
        lease: &SharedLease,
        pipeline: &Pipeline<'_>,
        (number, application, is_large): (u16, Application, bool),
        (chunk, fingerprint): (&[u8], Fingerprint),
    ) -> Result<Option<Reference>> {
        let own = self.own;
        let Some(target) = self.targets.get_mut(&number) else { return Ok(None) };
        if !target.node.takes_chunks {
            return Ok(None);
        }
        let open_bytes = target.open_bytes();
        let begins = target.writing.as_mut().map_or(Ok(true), |writing| {
            writing.containers.set_large_frames(is_large);
            writing.containers.make_room(pipeline, chunk.len(), &fingerprint)
        })?;
        if let Some(mut full) = target.take_full(begins, self.records_max) {
            full.containers.close(pipeline)?;
            self.stored_bytes += full.containers.stored_bytes;
            target.begin_registering(repository, lease, own, full)?;
        }
        if target.writing.is_none() {
            let Some(range) = self.next_range(repository, lease, number)? else { return Ok(None) };
            let writing = self.begin(repository, number, range)?;
            let Some(target) = self.targets.get_mut(&number) else { return Ok(None) };
            target.writing = Some(writing);
        }
        let Some(target) = self.targets.get_mut(&number) else { return Ok(None) };
        let Some(writing) = &mut target.writing else { return Ok(None) };
        writing.containers.set_large_frames(is_large);
        writing.containers.set_application(application);
        let reference = writing.containers.append(pipeline, chunk, fingerprint)?;
        let chunk_bytes = silt_format::number::to_u32(chunk.len());
        writing.add(SharedRecord { reference, chunk_bytes }.encode(fingerprint), application);
        target.node.used_bytes.fetch_add(to_u64(chunk.len()), Ordering::Relaxed);
        if target.open_bytes() > open_bytes {
            self.close_largest(pipeline)?;
        }
        Ok(Some(reference))
    }

    /// A writer of the containers of a node's range.
    fn begin(&self, repository: &Repository, number: u16, range: Range) -> Result<Writing> {
        let objects = &repository.objects;
        let budget = objects.context.budget(0);
        let tag = ObjectTag::first(objects.context.random_id());
        let uploads = Uploads::new(objects, budget.uploads(objects.storage.uploads()));
        let store = (repository.store(number).id, number);
        let first = (range.first, tag);
        let mut containers = ContainerWriter::new(objects, store, &self.config, first, uploads)?;
        containers.limit_in_flight(self.frames_in_flight);
        Ok(Writing::new(containers, range))
    }

    /// Closes the largest container that is being filled if all of them hold too much.
    fn close_largest(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        let open_bytes: usize = self.targets.values().map(Target::open_bytes).sum();
        if open_bytes <= self.open_bytes_max {
            return Ok(());
        }
        let largest = self.targets.values_mut().max_by_key(|target| target.open_bytes());
        let writing = largest.and_then(|target| target.writing.as_mut());
        writing.map_or(Ok(()), |writing| writing.containers.close(pipeline))
    }

    /// Reserves numbers in these nodes, side by side, unless it has been done. A series' first
    /// backup will use all, and reserves in all of them when it needs the first one.
    ///
    /// A node that others change all the time is not used.
    pub(crate) fn prepare(
        &mut self,
        repository: &Repository,
        lease: &SharedLease,
        numbers: &BTreeSet<u16>,
    ) -> Result<()> {
        let is_new = |target: &Target| target.reserved == 0 && target.node.takes_chunks;
        if !numbers.iter().filter_map(|number| self.targets.get(number)).any(is_new) {
            return Ok(());
        }
        let mut new = Vec::new();
        for (number, target) in &mut self.targets {
            if is_new(target) && (self.uses_all || numbers.contains(number)) {
                new.push((*number, Arc::clone(&target.node), [target.more(), target.more()]));
            }
        }
        // So that what is busy is the node.
        lease.keep()?;
        let own = self.own;
        let reserve = |repository: &Repository, (number, node, counts): (u16, Arc<Node>, _)| {
            (number, reserve(repository, lease, &node, own, counts))
        };
        each_beside(repository, new, reserve, |(number, reserved)| {
            // Nothing is lost if these chunks are stored elsewhere.
            let is_harmless = |error: &Error| match error.kind() {
                ErrorKind::Busy => true,
                ErrorKind::Interrupted => false,
                _ => !numbers.contains(&number),
            };
            match reserved {
                Err(error) if is_harmless(&error) => {
                    // Who knows an old list of places finds chunks that are gone from a moved node.
                    verify_unchanged(&repository.objects)?;
                    let consequence =
                        format!("{} is not written to", repository.store(number).shown);
                    repository.warn(Warning::after(&error, &consequence));
                    self.targets.remove(&number);
                }
                reserved => {
                    let [first, next] = reserved?;
                    if let Some(target) = self.targets.get_mut(&number) {
                        target.next.extend([first, next]);
                    }
                }
            }
            Ok(())
        })
    }

    /// The range of the containers of a node that are filled next; `None` if the node is not used.
    fn next_range(
        &mut self,
        repository: &Repository,
        lease: &SharedLease,
        number: u16,
    ) -> Result<Option<Range>> {
        self.prepare(repository, lease, &BTreeSet::from([number]))?;
        let Some(target) = self.targets.get_mut(&number) else { return Ok(None) };
        if target.next.is_empty() {
            target.take_registered()?;
        }
        Ok(target.next.pop_front())
    }

    /// Ends the containers that are being filled.
    pub(crate) fn close(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        let mut open = self.targets.values_mut().filter_map(|target| target.writing.as_mut());
        open.try_for_each(|writing| writing.containers.close(pipeline))
    }

    /// Registers what was written in the nodes' heads, so that a series' head may refer to it.
    ///
    /// Fails with `Conflict` if a sweep has taken a reservation away.
    pub(crate) fn register(self, repository: &Repository, lease: &SharedLease) -> Result<()> {
        let used = self.targets.into_values().filter(|target| target.reserved > 0);
        let used: Vec<Target> = used.collect();
        let under_way: Vec<CancelToken> =
            used.iter().filter_map(|it| it.registering.as_ref()?.token()).collect();
        // A node waits for the requests about it, and not for those about others.
        let register = |repository: &Repository, mut target: Target| {
            if let Some(earlier) = target.registering.take() {
                earlier.finish()?;
            }
            let node = Arc::clone(&target.node);
            let Some(writing) = target.writing.take() else {
                return give_back(repository, lease, &node, self.own);
            };
            let lease = lease.clone();
            Registration { lease, node, own: self.own, writing, kept: None, more: 0 }
                .run(repository)
                .map(drop)
        };
        each_beside(repository, used, register, |done| {
            // Others may be waiting for a sweep.
            done.inspect_err(|_| under_way.iter().for_each(CancelToken::cancel))
        })
    }
}

impl Target {
    fn of(node: &Arc<Node>) -> Self {
        let node = Arc::clone(node);
        Self { node, writing: None, next: VecDeque::new(), registering: None, reserved: 0 }
    }

    /// Bytes of the container that is being filled.
    fn open_bytes(&self) -> usize {
        self.writing.as_ref().map_or(0, |writing| writing.containers.open_bytes())
    }

    /// Takes the containers to which no chunk may be added, or none that `begins` another one.
    fn take_full(&mut self, begins: bool, records_max: usize) -> Option<Writing> {
        self.writing.take_if(|it| it.is_full(begins, records_max))
    }

    /// Numbers in the next range.
    fn more(&mut self) -> u32 {
        let more = self.reserved.saturating_mul(2).clamp(RESERVED_FIRST, RESERVED_MAX);
        self.reserved = more;
        more
    }

    /// Waits until the containers before those that are full are registered, and begins to register
    /// these.
    fn begin_registering(
        &mut self,
        repository: &Repository,
        lease: &SharedLease,
        own: Own,
        full: Writing,
    ) -> Result<()> {
        self.take_registered()?;
        let (kept, more) = (self.next.front().copied(), self.more());
        let (lease, node) = (lease.clone(), Arc::clone(&self.node));
        let registration = Registration { lease, node, own, writing: full, kept, more };
        self.registering = Some(Registering::begin(repository, registration));
        Ok(())
    }

    /// Waits until the containers before are registered, if that has been begun.
    fn take_registered(&mut self) -> Result<()> {
        if let Some(registering) = self.registering.take() {
            self.next.extend(registering.finish()?);
        }
        Ok(())
    }
}
