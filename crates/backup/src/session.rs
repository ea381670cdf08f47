//! A backup of one series from its beginning to its commit.

mod segments;
mod stores;
mod trees;

pub(crate) use trees::TreeBefore;

use std::sync::Arc;

use silt_chunking::{Fingerprinter, SegmentDigester};
use silt_format::{
    Chunking, Error, Head, Id, Level, LevelBytes, MapRoot, ObjectTag, PRIVATE_STORE, Result,
    SEGMENT_BYTES, Snapshot, SummaryGeometry, Volume, VolumeKind,
};
use silt_repository::budget::Budget;
use silt_repository::check_record::record_damaged_recipes;
use silt_repository::env::Context;
use silt_repository::event::{Activity, Progress, Warning};
use silt_repository::lease::{self, HeldLease, SharedLease};
use silt_repository::map::MapReader;
use silt_repository::objects::is_damage;
use silt_repository::packs::PackWriter;
use silt_repository::summary::{reference_bound, write_summary};
use silt_repository::upload::Uploads;
use silt_runs::avoided::Avoided;
use silt_source::{ChangedMap, VolumeSource};

use self::segments::Detection;
use self::stores::Stores;
use super::commit::{Commit, commit};
use super::container::ContainerWriter;
use super::described::Taken;
use super::feed::Feed;
use super::first::{ClaimedNames, base, require_due};
use super::hint::Hint;
use super::known::Known;
use super::map_builder::MapBuilder;
use super::memo::Memo;
use super::nodes::{NodeWriters, Nodes};
use super::options::BackupOptions;
use super::parent::{ParentVolume, newest_sound};
use super::pipeline::Pipeline;
use super::places::{Asked, StoreLookup};
use super::scan::{Outcome, Scanned, Scanner};
use silt_repository::jobs::jobs;
use silt_repository::{Repository, heads};

/// Maximum number of warnings about the sources. A source that has shrunk causes one for each
/// segment.
pub(crate) const WARNINGS_MAX: usize = 10;

/// Number of additional workers, as some wait for the disk while others use the processors.
const READING_JOBS: usize = 2;
/// The same for trees, of which one worker at a time reads.
const TREE_READING_JOBS: usize = 1;

/// The result of a backup.
#[derive(Clone, Debug)]
pub struct BackupReport {
    /// The committed snapshot.
    pub snapshot: Snapshot,
    /// Its labels.
    pub tags: Vec<String>,
    /// The series' name.
    pub series: String,
    /// The generation of the head that names it.
    pub generation: u64,
    /// All bytes written: containers, recipes, summary vector, snapshot and head.
    pub stored_bytes: u64,
    /// Whether a changed-blocks map was wrong, so that the whole volume was read.
    pub map_distrusted: bool,
    /// Number of segments of disks that were read, but not digested: this machine remembers their
    /// digests.
    pub recognized_segments: u64,
    /// Number of containers of an interrupted backup that were reused.
    pub adopted_containers: usize,
}

/// A backup in progress. Dropped before [`finish`](Self::finish), it leaves no snapshot.
pub struct BackupSession<'r> {
    pub(super) repository: &'r Repository,
    pub(super) context: Context,
    pub(super) options: BackupOptions,
    pub(super) budget: Budget,
    session: [u8; 16],
    /// Before the lease: dropped, it waits for what is being written.
    pub(super) containers: ContainerWriter,
    pub(super) nodes: Nodes,
    /// The same.
    node_writers: NodeWriters,
    pub(super) lease: SharedLease,
    head: Head,
    pub(super) parent: Option<Snapshot>,
    /// Whether the parent's writer is this one, or one that may remove everything anyway.
    pub(super) parent_is_trusted: bool,
    pub(super) reader: Arc<MapReader>,
    pub(super) avoided: Arc<Avoided>,
    pub(super) packs: PackWriter,
    known: Known,
    /// Created for the first segment that differs from the parent's.
    detection: Option<Detection>,
    /// The shared store's index; `None` if it is empty or not used.
    shared: Option<StoreLookup>,
    pub(super) volumes: Vec<Volume>,
    /// Whether a chunk or what is known of chunks was lost with an error: nothing may be committed.
    has_failed: bool,
    pub(super) started_ns: i64,
    added_references: u64,
    pub(super) map_distrusted: bool,
    recognized_segments: u64,
    /// Number of warnings about its sources and its parent.
    warnings: usize,
}

/// Fails with `Invalid` for names that a user could not enter.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    if silt_repository::series::is_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "'{name}' is not allowed as the name of a {what}: use 1 to 255 bytes without '@', ':', \
         '=', '/' and control characters, and not 'latest'"
    )))
}

impl<'r> BackupSession<'r> {
    /// Begins a backup of the series called `name`; creates the series if necessary.
    ///
    /// Fails with `Busy` while another backup of the series runs, and if there is a snapshot that
    /// makes this one needless.
    pub fn begin(repository: &'r Repository, name: &str, options: BackupOptions) -> Result<Self> {
        Self::begin_claimed(repository, name, options, &ClaimedNames::default())
    }

    /// The same for a series whose name may be among the claimed ones: then it is not searched for
    /// again.
    pub fn begin_claimed(
        repository: &'r Repository,
        name: &str,
        options: BackupOptions,
        claimed: &ClaimedNames,
    ) -> Result<Self> {
        check_name("series", name)?;
        let objects = &repository.objects;
        let (context, series) = (objects.context.clone(), repository.series_id(name));
        let session = context.random();
        silt_repository::settle::verify_unchanged_since_opened(objects)?;
        objects.believed.require_may_write(objects.signer.id(), name)?;
        let mut state = heads::state(objects, series)?;
        if lease::wait_while_held(objects, series, state.lease.clone(), name)? {
            state = heads::state(objects, series)?;
        }
        let lease = HeldLease::acquire(objects, series, name, state.lease, session)?.shared();
        let started_ns = context.env.now_ns();
        let by = (options.no_share, claimed.has(series));
        let mut head = base(repository, (series, name), state.head, by)?;
        require_due(&head, options.due_since_ns, started_ns)?;
        let parent = if options.no_parent { None } else { newest_sound(repository, &head)? };
        let budget = objects.context.budget(options.memory_bytes);
        let uses = (options.detection.shared, options.detection.nodes);
        let (places, answers) = (options.places.as_ref(), options.node_answers.as_ref());
        let asked = Asked { places, nodes: answers };
        // Must be after reading the series' record and head: condemning chunks relies on it.
        let Stores { shared, nodes, avoided } =
            Stores::open(repository, &mut head, state.check, uses, asked, budget)?;
        let reader = Arc::new(MapReader::new(objects, &head));
        let mut config = repository.config.clone();
        let bytes = budget.container_bytes(config.container_bytes as usize);
        config.container_bytes = silt_format::number::to_u32(bytes);
        let tag = ObjectTag::first(context.random_id());
        let node_writers = NodeWriters::new(&nodes, (session, series), &config, parent.is_none());
        Ok(Self {
            nodes,
            node_writers,
            containers: ContainerWriter::new(
                objects,
                (series, PRIVATE_STORE),
                &config,
                (head.next_container, tag),
                Uploads::new(objects, budget.uploads(objects.storage.uploads())),
            )?,
            packs: PackWriter::new(objects, series, &reader, head.next_pack, tag)?,
            known: Known::new(
                objects,
                series,
                &reader,
                &avoided,
                Fingerprinter::new(objects.keys.fingerprint_key(head.domain, head.series)),
                budget.tables_bytes(),
            ),
            repository,
            context,
            options,
            budget,
            session,
            lease,
            head,
            parent_is_trusted: parent.as_ref().is_some_and(|(_, is_trusted)| *is_trusted),
            parent: parent.map(|(snapshot, _)| snapshot),
            reader,
            shared,
            avoided,
            detection: None,
            volumes: Vec::new(),
            has_failed: false,
            started_ns,
            added_references: 0,
            map_distrusted: false,
            recognized_segments: 0,
            warnings: 0,
        })
    }

    /// Returns the head that this backup builds upon.
    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the snapshot that this backup compares with; `None` for a full backup.
    pub fn parent(&self) -> Option<&Snapshot> {
        self.parent.as_ref()
    }

    /// Backs up a volume under `name`.
    ///
    /// With `changed`, reads only the ranges that may have changed, and samples of the others.
    pub fn add_volume(
        &mut self,
        name: &str,
        source: &dyn VolumeSource,
        changed: Option<&ChangedMap>,
    ) -> Result<&Volume> {
        self.add_volume_by(name, source, changed.map_or(Hint::None, Hint::Map), &mut |_| {})
    }

    /// Backs up a volume under `name` with any kind of hint. Notifies `watch` of every step.
    pub fn add_volume_by(
        &mut self,
        name: &str,
        source: &dyn VolumeSource,
        hint: Hint<'_>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<&Volume> {
        check_name("volume", name)?;
        self.require_new_volume(name)?;
        let chunking = self.options.chunking.unwrap_or(self.repository.config.chunking);
        let scanner = self.scanner_of_disk(name, chunking, hint)?;
        let checked = self.clean_segments(hint, source, name, &scanner)?;
        let (checked, map_proof) = checked.unzip();
        let info = source.info();
        let mut volume = Volume {
            kind: VolumeKind::Disk,
            name: name.to_owned(),
            bytes: 0,
            source: info.description,
            source_format: info.format.name().to_owned(),
            chunking,
            root: MapRoot { level: 0, page: None },
            levels: LevelBytes::default(),
            stored_bytes: 0,
            unreadable: Vec::new(),
            backing: info.backing,
            map_proof: map_proof.flatten(),
        };
        let before = self.stored_bytes();
        let workers = self.context.workers(self.budget.workers(scan_jobs(self.options.jobs)));
        let pipeline = Pipeline::new(
            Feed::new(source, checked.as_ref(), self.recorded(hint)),
            source,
            &scanner,
            &self.repository.objects.buffers,
            self.repository.config.zstd_level,
            workers,
            self.budget.segment_buffers(workers),
        );
        let mut map = MapBuilder::new();
        let mut notes = scanner.memo.as_ref().map(Memo::notes);
        self.context.report(Progress::bytes(Activity::Backup, 0, info.size));
        pipeline.run(|pipeline| {
            while let Some(outcome) = pipeline.next()? {
                self.lease.keep()?;
                self.context.check_interrupted()?;
                outcome.note_in(notes.as_mut());
                self.take(outcome, pipeline, &mut map, &mut volume, &scanner)?;
                let stored = self.stored_bytes() - before;
                let progress = Progress {
                    new_bytes: volume.levels.get(Level::New),
                    stored_bytes: stored,
                    ..Progress::bytes(Activity::Backup, volume.levels.total(), info.size)
                };
                self.context.report(progress);
                watch(progress);
            }
            self.close_containers(pipeline)
        })?;
        self.recognized_segments += match hint {
            Hint::Survey(survey) => survey.recognized_segments,
            _ => notes.map_or(0, |notes| notes.finish(&self.context)),
        };
        volume.bytes = pipeline.volume_bytes();
        let parent = scanner.parent.as_ref();
        volume.root = map.finish(volume.bytes, &mut self.packs, parent)?;
        volume.stored_bytes = self.stored_bytes() - before;
        self.volumes.push(volume);
        let last = self.volumes.len() - 1;
        Ok(&self.volumes[last])
    }

    pub(super) fn scanner(&self, volume: &str, chunking: Chunking) -> Result<Scanner> {
        let parent = self
            .parent_volume(volume)
            .map(|volume| ParentVolume { reader: Arc::clone(&self.reader), root: volume.root });
        self.scanner_beside(parent, chunking)
    }

    /// Returns a scanner for a file tree. It has no parent: each part of a tree lists the parent's
    /// segments to compare with.
    pub(super) fn scanner_of_tree(&self) -> Result<Scanner> {
        self.scanner_beside(None, crate::tree::ANY_LENGTH)
    }

    pub(super) fn scanner_beside(
        &self,
        parent: Option<ParentVolume>,
        chunking: Chunking,
    ) -> Result<Scanner> {
        let keys = &self.repository.objects.keys;
        let (domain, series) = (self.head.domain, self.head.series);
        let fingerprinter = Fingerprinter::new(keys.fingerprint_key(domain, series));
        Ok(Scanner {
            chunker: silt_chunking::Chunker::new(chunking)?,
            digester: SegmentDigester::new(keys.segment_key(domain, series), fingerprinter.clone()),
            fingerprinter,
            parent,
            avoided: Arc::clone(&self.avoided),
            shared: self.shared.clone(),
            memo: None,
        })
    }

    /// Reports a warning about a source, up to [`WARNINGS_MAX`] of them.
    fn warn(&mut self, warning: Warning) {
        match self.warnings {
            0..WARNINGS_MAX => self.context.warn(warning),
            WARNINGS_MAX => {
                self.context.warn(Warning::new(warning.kind(), "there is more of that kind"));
            }
            _ => {}
        }
        self.warnings += 1;
    }

    /// Fails if the snapshot has a volume of this name already.
    pub(super) fn require_new_volume(&self, name: &str) -> Result<()> {
        if self.volumes.iter().any(|volume| volume.name == name) {
            return Err(Error::invalid(format!(
                "two volumes are named '{name}'; give them different names"
            )));
        }
        Ok(())
    }

    /// Adds a worker's result to the volume.
    fn take(
        &mut self,
        outcome: Outcome,
        pipeline: &Pipeline<'_>,
        map: &mut MapBuilder,
        volume: &mut Volume,
        scanner: &Scanner,
    ) -> Result<()> {
        outcome.warnings.into_iter().for_each(|warning| self.warn(warning));
        for span in outcome.unreadable {
            match volume.unreadable.last_mut() {
                Some(last) if last.offset + last.length == span.offset => {
                    last.length += span.length;
                }
                _ => volume.unreadable.push(span),
            }
        }
        let parent = scanner.parent.as_ref();
        match outcome.scanned {
            Scanned::Zeros { segments, bytes } => {
                volume.levels.add(Level::Zero, bytes);
                (0..segments).try_for_each(|_| map.push(None, &mut self.packs, parent))
            }
            Scanned::Clean { first, segments, bytes } => {
                volume.levels.add(Level::Map, bytes);
                (first..first + segments).try_for_each(|segment| {
                    let entry = match parent {
                        Some(parent) => parent.reader.entry(parent.root, segment)?,
                        None => None,
                    };
                    map.push(entry, &mut self.packs, parent)
                })
            }
            Scanned::Same { entry, bytes } => {
                volume.levels.add(Level::Digest, bytes);
                map.push(Some(entry), &mut self.packs, parent)
            }
            Scanned::Tree(..) | Scanned::Changed => {
                Err(Error::invalid("the pipeline of a disk returned a part of a tree"))
            }
            Scanned::Draft(mut draft) => {
                self.resolve(&mut draft)?;
                if draft.lacks_bytes() {
                    // A chunk that the scan has found is no longer there: read the segment.
                    let outcome = pipeline.rescan(*draft)?;
                    return self.take(outcome, pipeline, map, volume, scanner);
                }
                let entry = self.place(&mut draft, pipeline, volume)?;
                pipeline.recycle(draft.data);
                map.push(Some(entry), &mut self.packs, parent)
            }
        }
    }

    /// About how much memory [`finish`](Self::finish) takes: recipes, and a part of the vector.
    pub fn finish_bytes(&self) -> u64 {
        let parent = self.parent.as_ref().and_then(|parent| parent.summary);
        let vector_bytes = reference_bound(parent, self.added_references).saturating_mul(2);
        // A part of a vector has 16 MiB at most.
        self.packs.pending_bytes() + vector_bytes.min(16 << 20)
    }

    /// Bytes of containers and recipe packs written so far.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.containers.stored_bytes + self.node_writers.stored_bytes() + self.packs.stored_bytes
    }

    /// Ends the containers that are being filled.
    pub(super) fn close_containers(&mut self, pipeline: &Pipeline<'_>) -> Result<()> {
        let closed =
            self.node_writers.close(pipeline).and_then(|()| self.containers.close(pipeline));
        self.note_failure(closed)
    }

    /// Remembers that something failed that was to become a part of the snapshot.
    fn note_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        self.has_failed |= result.is_err();
        result
    }

    /// Fails if there is nothing to commit, or a part of it was lost.
    fn verify_complete(&self) -> Result<()> {
        if self.volumes.is_empty() {
            return Err(Error::invalid("a snapshot needs at least one volume"));
        }
        if self.has_failed {
            let message = "a volume of this backup failed; begin the backup again";
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// Commits the snapshot, which is durable and visible on return.
    pub fn finish(mut self) -> Result<BackupReport> {
        self.verify_complete()?;
        // Free the memory for lookups: another session may begin now.
        let Known { proven, .. } = self.known;
        drop(self.shared);
        let objects = &self.repository.objects;
        let adopted = self.detection.map(|d| d.orphans.adopt(objects, self.head.series, &proven));
        let adopted = adopted.transpose()?.unwrap_or_default();
        let packs = self.packs.finish()?;
        let parent = self.parent.as_ref();
        let roots: Vec<MapRoot> = self.volumes.iter().map(|volume| volume.root).collect();
        let unchanged = parent.is_some_and(|parent| {
            parent.volumes.iter().map(|volume| volume.root).eq(roots.iter().copied())
        });
        let kept = parent.filter(|_| unchanged).and_then(|parent| parent.summary);
        let bound = reference_bound(parent.and_then(|p| p.summary), self.added_references);
        let summary = if kept.is_some() || bound == 0 {
            None
        } else {
            let geometry = geometry_for(&self.head, bound);
            let written = write_summary(objects, self.head.series, &self.reader, &roots, geometry);
            Some(written.map_err(|error| {
                note_damage(self.repository, &self.head, &self.reader, &roots, error)
            })?)
        };
        let Taken { time_ns, duration_ms, host, program, origin } = self.options.taken;
        let snapshot = Snapshot {
            id: Id(self.context.random_id()),
            series: self.head.series,
            time_ns: time_ns.unwrap_or(self.started_ns),
            duration_ms: duration_ms.unwrap_or_else(|| elapsed_ms(&self.context, self.started_ns)),
            parent: parent.map(|parent| parent.id),
            host: host.unwrap_or_else(|| self.context.env.process().host),
            program: program.unwrap_or(self.options.program),
            origin,
            volumes: self.volumes,
            checkpoints: Vec::new(),
            summary: kept,
        };
        let data_bytes = self.containers.stored_bytes + self.packs.stored_bytes;
        let data_bytes = data_bytes + self.node_writers.stored_bytes();
        let summary_bytes = summary.as_ref().map_or(0, |summary| summary.stored_bytes);
        // What the head refers to is named by the nodes' heads before it is.
        self.node_writers.register(self.repository, &self.lease)?;
        silt_runs::marks::raise(self.repository, self.nodes.numbers())?;
        let (adopted_containers, series) = (adopted.len(), self.head.shown().to_owned());
        let committed = commit(
            &self.repository.objects,
            self.head,
            Commit {
                next_container: self.containers.next_number(),
                containers: self.containers.finish()?,
                adopted,
                next_pack: self.packs.next_number(),
                packs,
                summary,
                snapshot,
                labels: self.options.tags.clone(),
                session: self.session,
            },
        )?;
        self.lease.release()?;
        Ok(BackupReport {
            snapshot: committed.snapshot,
            tags: self.options.tags,
            series,
            generation: committed.generation,
            stored_bytes: data_bytes + summary_bytes + committed.stored_bytes,
            map_distrusted: self.map_distrusted,
            recognized_segments: self.recognized_segments,
            adopted_containers,
        })
    }
}

/// The geometry of a summary vector of so many references: that of the head, if it is large enough.
fn geometry_for(head: &Head, references: u64) -> SummaryGeometry {
    let fits = |geometry: &SummaryGeometry| geometry.capacity() >= references;
    head.summary.filter(fits).unwrap_or_else(|| SummaryGeometry::for_references(references))
}

/// Time since `started_ns`, in milliseconds.
fn elapsed_ms(context: &Context, started_ns: i64) -> u64 {
    let elapsed_ns = context.env.now_ns().saturating_sub(started_ns);
    u64::try_from(elapsed_ns / 1_000_000).unwrap_or(0)
}

/// Writes down which of the parent's recipes turned out to be damaged, if that is what `error`
/// says, so that the next backup does not share them.
fn note_damage(
    repository: &Repository,
    head: &Head,
    reader: &Arc<MapReader>,
    roots: &[MapRoot],
    error: Error,
) -> Error {
    if !is_damage(&error) {
        return error;
    }
    let objects = &repository.objects;
    match record_damaged_recipes(objects, head.series, reader, roots) {
        Ok(()) => error.context(
            "recipes of the parent are damaged; this was recorded. Run the backup again: it stores \
             their segments again",
        ),
        Err(_) => error,
    }
}

/// Returns the number of workers that read and scan. By default a few more than cores, so that the
/// cores have work while some workers wait for the disk.
pub(super) fn scan_jobs(wanted: usize) -> usize {
    if wanted == 0 { jobs(0) + READING_JOBS } else { jobs(wanted) }
}

/// Returns the number of workers that read and scan a tree.
fn tree_jobs(wanted: usize) -> usize {
    if wanted == 0 { jobs(0) + TREE_READING_JOBS } else { jobs(wanted) }
}

const _: () = assert!(SEGMENT_BYTES.is_power_of_two());
