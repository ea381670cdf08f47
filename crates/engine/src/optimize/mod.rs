//! Stores chunks that resemble others as deltas.
//!
//! Containers are rewritten under the same references, so snapshots, recipes and summary vectors
//! stay as they are. A base is always a whole chunk of the same series, so any chunk is read from
//! at most two containers. The commit that makes deltas lists their bases in the head: from then
//! on they stay, even when no snapshot refers to them.

mod forecast;
mod received;
mod search;

use std::collections::{HashMap, HashSet};

use silt_backup::ReceivedBases;
use silt_format::{Compression, DeletedEntry, ObjectTag, Result, SeriesId, names};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::{Activity, Progress, Warning};
use silt_repository::objects::is_damage;

use crate::deletion::{Changed, Rewriter, retagged};
use crate::edit::Edit;
use crate::repository::Repository;
use search::{Found, Search};

/// Number of containers rewritten before a commit, which is the most that an interruption can cost.
const REWRITES_PER_COMMIT: usize = 32;
/// Memory by default, in bytes.
const MEMORY_BYTES_DEFAULT: u64 = 128 << 20;
/// Memory at least, in bytes.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// How chunks of a series become deltas.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let options = OptimizeOptions { dry_run: true, ..OptimizeOptions::default() };
/// assert_eq!(repository.optimize("web1", &options)?.deltas, 0, "all chunks are equal");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OptimizeOptions {
    /// A chunk becomes a delta if that saves at least this share of its compressed size, from 0 to
    /// 1.
    pub saved_share_min: f64,
    /// A container is rewritten if that makes it smaller by at least this share, from 0 to 1.
    pub container_share_min: f64,
    /// The zstd level of rewritten containers. With one, containers are also rewritten if they
    /// become smaller by it alone, and small files get frames as large as those of large files.
    /// `None` compresses as reclaiming does.
    pub compression: Option<i32>,
    /// Bytes of memory for sketches and frames, 0 for the default. With less, fewer bases are
    /// found.
    pub memory_bytes: u64,
    /// Finds out what would be saved, and changes nothing.
    pub dry_run: bool,
}

impl Default for OptimizeOptions {
    fn default() -> Self {
        Self {
            saved_share_min: 0.25,
            container_share_min: 0.05,
            compression: None,
            memory_bytes: 0,
            dry_run: false,
        }
    }
}

impl OptimizeOptions {
    /// The same with the memory that is really used.
    fn bounded(self) -> Self {
        let memory_bytes = match self.memory_bytes {
            0 => MEMORY_BYTES_DEFAULT,
            bytes => bytes.max(MEMORY_BYTES_MIN),
        };
        Self { memory_bytes, ..self }
    }

    /// How frames are compressed, if not as they usually are.
    fn compression(&self) -> Option<Compression> {
        self.compression.map(Compression::of_disk)
    }
}

/// The deltas that were made, or would be.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let report = repository.optimize("web1", &OptimizeOptions::default())?;
/// println!("{} bytes were saved by {} deltas", report.saved_bytes(), report.deltas);
/// assert_eq!(report.chunks, 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizeReport {
    /// Chunks that were whole before.
    pub chunks: u64,
    /// Chunks that became deltas.
    pub deltas: u64,
    /// Bytes of these chunks.
    pub delta_chunk_bytes: u64,
    /// Containers that were rewritten.
    pub rewritten_containers: u64,
    /// Bytes that these containers had before.
    pub removed_bytes: u64,
    /// Bytes that they have now.
    pub rewritten_bytes: u64,
}

impl OptimizeReport {
    /// The number of bytes by which the repository shrank.
    pub fn saved_bytes(&self) -> u64 {
        self.removed_bytes.saturating_sub(self.rewritten_bytes)
    }
}

impl Repository {
    /// Stores chunks of a series that resemble other ones as deltas. The series' lease is held
    /// meanwhile; backups of other series and restores go on.
    ///
    /// Fails with `Busy` while the series is being backed up or changed, with `Denied` for a
    /// write-only key, and in an append-only repository without the administrator's key. After an
    /// interruption, what was committed stays, and the next run goes on.
    pub fn optimize(&self, series: &str, options: &OptimizeOptions) -> Result<OptimizeReport> {
        self.make_deltas((self.series_id(series), series), options, None)
    }

    /// Makes deltas of the chunks of one series, or of those that a replication has brought.
    fn make_deltas(
        &self,
        (series, name): (SeriesId, &str),
        options: &OptimizeOptions,
        received: Option<&ReceivedBases>,
    ) -> Result<OptimizeReport> {
        let mut edit = Edit::begin(self, series, name)?;
        let options = options.bounded();
        let _place = self.objects.room.place(options.memory_bytes);
        let report = edit.optimize(&options, received)?;
        edit.finish()?;
        Ok(report)
    }
}

/// Rewritten containers that are not committed yet.
#[derive(Default)]
struct Batch {
    done: HashSet<u32>,
    /// What their new deltas are applied to.
    bases: Vec<u64>,
    /// The names of the objects that they replace.
    replaced: Vec<String>,
}

impl Edit<'_> {
    fn optimize(
        &mut self,
        options: &OptimizeOptions,
        received: Option<&ReceivedBases>,
    ) -> Result<OptimizeReport> {
        let repository = self.repository;
        let objects = &repository.objects;
        // Backups no longer refer to condemned slots of a common store: they are about to die.
        let gone = [&self.head.dead[..], &self.head.condemned[..]].concat();
        let dead = dead::read(objects, self.head.series, &gone)?;
        let mut bases = self.bases()?;
        let mut search = Search::new(repository, &self.head, options)?;
        let (containers, unneeded) = if let Some(received) = received {
            search.offer(self.chunks_of(received)?, received.first_container)?;
            (self.received_containers(received), DeadSlots::default())
        } else {
            require_listed(objects, &self.head)?;
            let deleted: Vec<&DeletedEntry> = self.head.deleted.iter().collect();
            let unneeded = self.unneeded(dead.clone(), &deleted)?.without(&bases);
            (self.head.containers.iter().collect(), unneeded)
        };
        let sizes =
            self.container_sizes(received.map_or(0, |received| received.first_container))?;
        let total_bytes: u64 = sizes.values().sum();
        let mut rewriter = search.rewriter(&self.head)?;
        let (mut report, mut batch, mut done_bytes) =
            (OptimizeReport::default(), Batch::default(), 0);
        let tag = ObjectTag::rewritten(objects.context.random_id());
        for (number, old) in containers {
            self.keep()?;
            let progress = Progress::bytes(Activity::Optimize, done_bytes, Some(total_bytes));
            objects.context.report(progress);
            let name = names::container(self.head.series, number, old);
            let old_bytes = sizes.get(&number).copied().unwrap_or_default();
            done_bytes += old_bytes;
            let around = Around { dead: &dead, unneeded: &unneeded, bases: &bases, old_bytes };
            match optimized(&rewriter, &mut search, (number, old, tag), &around, options) {
                Ok(None) => {}
                Ok(Some((found, new_bytes))) => {
                    report.deltas += found.deltas.len() as u64;
                    report.delta_chunk_bytes += found.chunk_bytes();
                    report.rewritten_containers += 1;
                    report.removed_bytes += old_bytes;
                    report.rewritten_bytes += new_bytes;
                    batch.bases.extend(found.bases());
                    batch.done.insert(number);
                    batch.replaced.push(name);
                }
                Err(error) if is_damage(&error) => {
                    repository.warn(Warning::after(&error, "the container is not changed"));
                }
                Err(error) => return Err(error),
            }
            if batch.done.len() >= REWRITES_PER_COMMIT && !options.dry_run {
                bases = self.commit_deltas(std::mem::take(&mut batch), tag, bases, &unneeded)?;
                search.follow(&self.head)?;
                rewriter = search.rewriter(&self.head)?;
            }
        }
        report.chunks = search.chunks;
        if !batch.done.is_empty() && !options.dry_run {
            self.commit_deltas(batch, tag, bases, &unneeded)?;
        }
        Ok(report)
    }

    /// The sizes of the containers from number `first` on that the head lists, in bytes.
    fn container_sizes(&self, first: u32) -> Result<HashMap<u32, u64>> {
        let mut sizes = HashMap::new();
        let prefix = names::containers(self.head.series);
        let name = names::container(self.head.series, first, ObjectTag::NONE);
        // The listing leaves out its start, so it starts at the name right before: without a tag.
        let after = name.rsplit_once('.').map(|(number, _)| number);
        for item in self.repository.objects.names(&prefix, after)? {
            let (name, bytes) = item?;
            if let Some((number, tag)) = names::number_and_tag(&name)
                && self.head.containers.tag(number) == Some(tag)
            {
                sizes.insert(number, bytes);
            }
        }
        Ok(sizes)
    }

    /// Commits rewritten containers together with all bases, which it returns; then removes what
    /// they replace.
    fn commit_deltas(
        &mut self,
        batch: Batch,
        tag: ObjectTag,
        bases: DeadSlots,
        unneeded: &DeadSlots,
    ) -> Result<DeadSlots> {
        let Batch { done, bases: mut new, mut replaced } = batch;
        new.sort_unstable();
        new.dedup();
        let bases = bases.union(DeadSlots::of_references(&new));
        let series = self.head.series;
        let lists = self.head.delta_bases.clone();
        self.set_bases(&bases)?;
        self.head.containers = retagged(&self.head.containers, &done, tag);
        let done: Vec<u32> = done.into_iter().collect();
        replaced.append(&mut self.replace_dead(unneeded, &done)?);
        self.commit()?;
        let parts = lists.iter().flat_map(|list| (0..list.parts).map(|part| (list.id, part)));
        replaced.extend(parts.map(|(id, part)| names::dead_list(series, id, part)));
        self.repository.objects.delete(&replaced)?;
        Ok(bases)
    }
}

/// What is known of a series while one of its containers is rewritten.
struct Around<'a> {
    /// Slots that no living snapshot refers to.
    dead: &'a DeadSlots,
    /// Those of them that no deleted snapshot and no delta needs either.
    unneeded: &'a DeadSlots,
    /// Slots that must stay whole.
    bases: &'a DeadSlots,
    old_bytes: u64,
}

/// Rewrites a container if that makes it smaller by enough. Returns the new deltas and the new
/// size; in a dry run, nothing is written.
fn optimized(
    rewriter: &Rewriter<'_>,
    search: &mut Search<'_>,
    (number, old, tag): (u32, ObjectTag, ObjectTag),
    around: &Around<'_>,
    options: &OptimizeOptions,
) -> Result<Option<(Found, u64)>> {
    let container = open_container(rewriter.objects, rewriter.series, number, old)?;
    let found = search.container(rewriter, &container, around.dead, around.bases)?;
    let old_bytes = around.old_bytes;
    let most = old_bytes - share(old_bytes, options.container_share_min);
    // The estimate may be too low by the compression of what deltas insert.
    let saved_bytes = 2 * found.saved_bytes + found.sampled.saved_bytes(old_bytes);
    if saved_bytes == 0 || old_bytes.saturating_sub(saved_bytes) > most {
        search.keep_whole(&found);
        return Ok(None);
    }
    let dead = around.unneeded.of_container(number);
    let changed = Changed { dead, deltas: &found.deltas, ..Changed::default() };
    let draft = rewriter.draft(&container, tag, changed)?;
    // If all of it is dead, a reclaim drops it.
    if draft.slots() == 0 {
        search.keep_whole(&found);
        return Ok(None);
    }
    let closed = draft.close()?;
    if closed.bytes() > most {
        search.keep_whole(&found);
        return Ok(None);
    }
    let bytes = if options.dry_run { closed.bytes() } else { closed.put(rewriter.objects)? };
    Ok(Some((found, bytes)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a size need not be exact, and is between 0 and the size"
)]
fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share.clamp(0.0, 1.0)) as u64
}
