//! Replaces private copies of shared chunks by links to them.
//!
//! Containers are rewritten under the same references, so snapshots, recipes and summary vectors
//! stay as they are. One commit does this for a whole series. A private copy is removed only after
//! the shared one was read and verified.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use silt_format::{DeletedEntry, Error, ErrorKind, Head, Link, ObjectTag, Result, SHARED_STORE};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::{ChunkReader, Cursor, open_container};
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::{Activity, Progress, Warning};
use silt_repository::objects::{Scratch, is_damage};
use silt_repository::repository::OpenPlaces;
use silt_repository::settle::verify_unchanged;
use silt_runs::shared_index::{SharedIndex, name_store};
use silt_runs::shared_record::{Owner, SharedRecord, by_place, place_of};
use silt_runs::{RunReader, Sorted, Sorter, Stream, join, merge};

use crate::deletion::{Changed, Rewriter, retagged};
use crate::edit::Edit;
use crate::repository::Repository;
use silt_sharing::copy::shared_runs;

/// From which linked share of its bytes on a container is rewritten, in percent.
const LINKED_PERCENT_MIN: u64 = 5;
/// Memory of each of the two sortings, in bytes.
const SORT_BYTES: usize = 12 << 20;

/// What replacing copies needs at least and at most, and for each container: what is sorted, and
/// what is read and written.
const REPOINT_BYTES_MIN: u64 = 4 << 20;
const REPOINT_BYTES_MAX: u64 = 48 << 20;
const CONTAINER_BYTES: u64 = 1 << 20;

/// The result of replacing private copies by links.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let mut backup = repository.backup("web2", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// # let (spool, memory_bytes, dry_run) = (std::env::temp_dir(), 0, false);
/// # let policy = SharePolicy::Duplicates;
/// # let options = PopularOptions { policy, spool, memory_bytes, dry_run };
/// repository.build_popular(&options)?;
/// let report = repository.repoint("web1", &std::env::temp_dir())?;
/// assert_eq!(report.linked_chunks, 2);
/// println!("{} bytes of web1 are shared now", report.linked_bytes);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepointReport {
    /// Private copies that were replaced by links.
    pub linked_chunks: u64,
    /// Bytes of the linked chunks.
    pub linked_bytes: u64,
    /// Containers that were rewritten.
    pub rewritten_containers: u64,
    /// Bytes written to storage.
    pub stored_bytes: u64,
}

impl Repository {
    /// Replaces a series' private copies of shared chunks by links; the next reclaim gives the
    /// space back. `spool` is a folder for temporary files.
    ///
    /// `Busy` while a backup of the series runs.
    pub fn repoint(&self, series: &str, spool: &Path) -> Result<RepointReport> {
        let mut edit = Edit::begin(self, self.series_id(series), series)?;
        let bytes = edit.head.containers.len().saturating_mul(CONTAINER_BYTES);
        let _place = self.objects.room.place(bytes.clamp(REPOINT_BYTES_MIN, REPOINT_BYTES_MAX));
        let report = edit.repoint(spool)?;
        edit.finish()?;
        Ok(report)
    }
}

impl Edit<'_> {
    fn repoint(&mut self, spool: &Path) -> Result<RepointReport> {
        let mut report = RepointReport::default();
        let store = self.repository.objects.keys.shared_store_id(self.head.domain);
        let Some(shared) = self.repository.verified_head(store)? else { return Ok(report) };
        let repository = self.repository;
        let objects = &repository.objects;
        let bytes = objects.context.budget(0).lookup_bytes();
        let Some((index, _)) = SharedIndex::open(objects, (self.head.domain, SHARED_STORE), bytes)?
        else {
            return Ok(report);
        };
        if index.generation() != shared.generation {
            let message = "the shared store has changed meanwhile; run this again";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        // As for backups: the shared store may have been moved.
        if repository.places.as_ref().is_some_and(OpenPlaces::has_stores_elsewhere) {
            verify_unchanged(objects)?;
        }
        name_store(&mut self.head, (SHARED_STORE, shared.series), shared.generation);
        let links = self.linkable(spool, &shared, &index)?;
        let tag = ObjectTag::rewritten(objects.context.random_id());
        let unneeded = self.unneeded_or_none()?;
        let mut rewriting = Linking {
            unneeded: &unneeded,
            rewriter: Rewriter::of(repository, &self.head)?,
            reader: ChunkReader::new(objects, &self.head, objects.context.budget(0))?,
            cursor: Cursor::default(),
            scratch: Scratch::default(),
            report: &mut report,
        };
        let mut done: HashSet<u32> = HashSet::new();
        let mut stream = links.stream();
        while let Some((number, wanted)) = next_container(&mut stream)? {
            self.keep()?;
            let Some(old) = self.head.containers.tag(number) else { continue };
            match rewriting.rewrite(number, old, tag, &wanted) {
                Ok(true) => drop(done.insert(number)),
                Ok(false) => {}
                Err(error) if is_damage(&error) => {
                    repository.warn(Warning::after(&error, "the container is not changed"));
                }
                Err(error) => return Err(error),
            }
            let done = rewriting.report.linked_bytes;
            objects.context.report(Progress::bytes(Activity::Repoint, done, None));
        }
        if !done.is_empty() {
            self.head.containers = retagged(&self.head.containers, &done, tag);
            let done: Vec<u32> = done.into_iter().collect();
            let replaced = self.replace_dead(&unneeded, &done)?;
            self.commit()?;
            objects.delete(&replaced)?;
        }
        Ok(report)
    }

    /// The dead slots that no deleted snapshot and no delta needs; none if that can't be read.
    fn unneeded_or_none(&self) -> Result<DeadSlots> {
        let dead = dead::read(&self.repository.objects, self.head.series, &self.head.dead)?;
        let deleted: Vec<&DeletedEntry> = self.head.deleted.iter().collect();
        let unneeded = match self.unneeded(dead, &deleted) {
            Err(error) if is_damage(&error) => {
                self.repository.warn(Warning::after(&error, "dead chunks stay"));
                return Ok(DeadSlots::default());
            }
            other => other?,
        };
        Ok(unneeded.without(&self.bases()?))
    }

    /// Which private slots hold chunks that the shared store has, in the order of the slots.
    fn linkable(&self, spool: &Path, shared: &Head, index: &SharedIndex) -> Result<Sorted> {
        let objects = &self.repository.objects;
        require_listed(objects, &self.head)?;
        let mut held = Sorter::new(objects, spool, SORT_BYTES);
        let dead = dead::read(objects, self.head.series, &self.head.dead)?;
        let dead: HashMap<_, _> = dead.by_container().collect();
        // A base of deltas is a chunk, never a link.
        let bases = self.bases()?;
        let bases: HashMap<_, _> = bases.by_container().collect();
        for (container, tag) in self.head.containers.iter() {
            let opened = open_container(objects, self.head.series, container, tag);
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) if is_damage(&error) => {
                    self.repository.warn(Warning::after(&error, "it is not changed"));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let gone = dead.get(&container).copied().unwrap_or_default();
            let bases = bases.get(&container).copied().unwrap_or_default();
            for (slot, place) in opened.directory.slots() {
                if !dead::holds(gone, slot) && !dead::holds(bases, slot) {
                    let owner = Owner { series: 0, container, slot, is_shared: false };
                    let fingerprint = opened.directory.fingerprints[place.index as usize];
                    held.push(owner.encode(fingerprint))?;
                }
            }
        }
        let held = held.finish()?;
        let mut links = Sorter::new(objects, spool, SORT_BYTES);
        let runs =
            shared_runs(shared).map(|run| Stream::new(RunReader::new(objects, shared.series, run)));
        let runs: Vec<_> = runs.collect();
        if runs.is_empty() {
            return links.finish();
        }
        join(&mut held.stream(), &mut merge(runs), &mut |_, held, found| {
            let found = found.iter().map(|record| (record, SharedRecord::decode(record)));
            let open = found.into_iter().find(|(_, found)| index.is_open(found.reference));
            if let Some((record, _)) = open {
                for owner in held {
                    links.push(by_place(Owner::decode(owner), record.payload))?;
                }
            }
            Ok(())
        })?;
        links.finish()
    }
}

/// What every rewriting of a series' containers with links works with.
struct Linking<'a> {
    /// Dead slots, which go with the rewriting: the bases of dead deltas may be gone.
    unneeded: &'a DeadSlots,
    rewriter: Rewriter<'a>,
    reader: ChunkReader,
    cursor: Cursor,
    scratch: Scratch,
    report: &'a mut RepointReport,
}

impl Linking<'_> {
    /// Rewrites a container with links, if enough of it is linked; whether it did.
    fn rewrite(
        &mut self,
        number: u32,
        old: ObjectTag,
        tag: ObjectTag,
        wanted: &[(u16, SharedRecord)],
    ) -> Result<bool> {
        let container = open_container(self.rewriter.objects, self.rewriter.series, number, old)?;
        let directory = &container.directory;
        let all: u64 = directory.slots().map(|(_, place)| u64::from(place.length)).sum();
        let linkable: u64 = wanted.iter().map(|(_, found)| u64::from(found.chunk_bytes)).sum();
        if linkable * 100 < all * LINKED_PERCENT_MIN {
            return Ok(false);
        }
        let mut links = Vec::with_capacity(wanted.len());
        for (slot, found) in wanted {
            let Some(place) = directory.slot(*slot) else { continue };
            let fingerprint = directory.fingerprints[place.index as usize];
            let (target, chunk_bytes) = (found.reference, found.chunk_bytes);
            let link = Link { slot: *slot, chunk_bytes, target, fingerprint };
            if directory.chunk_bytes(*slot) == Some(chunk_bytes) && self.is_whole(&link)? {
                links.push(link);
            }
        }
        if links.is_empty() {
            return Ok(false);
        }
        let dead = self.unneeded.of_container(number);
        let changed = Changed { dead, links: &links, ..Changed::default() };
        let bytes = self.rewriter.rewrite(&container, tag, changed)?;
        self.report.linked_chunks += links.len() as u64;
        self.report.linked_bytes += links.iter().map(|l| u64::from(l.chunk_bytes)).sum::<u64>();
        self.report.rewritten_containers += 1;
        self.report.stored_bytes += bytes;
        Ok(true)
    }

    /// Whether the shared store really has the chunk.
    fn is_whole(&mut self, link: &Link) -> Result<bool> {
        let mut chunk = vec![0; link.chunk_bytes as usize];
        let (cursor, scratch) = (&mut self.cursor, &mut self.scratch);
        match self.reader.read_unverified(link.target, cursor, scratch, &mut chunk) {
            Ok(()) => Ok(self.reader.fingerprinter().fingerprint(&chunk) == link.fingerprint),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Slots with what the shared store has of them.
type Found = Vec<(u16, SharedRecord)>;

/// The next container of a stream of places, and which of its slots the shared store has.
fn next_container(stream: &mut Stream<'_>) -> Result<Option<(u32, Found)>> {
    let Some(first) = stream.peek()?.map(place_of) else { return Ok(None) };
    let mut found = Vec::new();
    while stream.peek()?.is_some_and(|next| place_of(next).container == first.container) {
        let Some(record) = stream.next()? else { break };
        found.push((place_of(&record).slot, SharedRecord::decode(&record)));
    }
    Ok(Some((first.container, found)))
}
