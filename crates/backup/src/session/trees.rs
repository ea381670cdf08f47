//! Backs up a file tree.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::number::to_u64;
use silt_format::tree::{NAMES_MAX, Tree};
use silt_format::{Error, Level, LevelBytes, MapRoot, Result, Volume, VolumeKind};
use silt_repository::event::{Activity, Progress};
use silt_repository::objects::Objects;
use silt_repository::tree::TreeReader;
use silt_tree::{Owners, TreeSource, Walk};

use super::{BackupSession, check_name, tree_jobs};
use crate::pipeline::Pipeline;
use crate::recorded::{ReadFiles, RecordedTree, TreeSurvey};
use crate::scan::{Outcome, Scanned, Scanner, TreeSegment};
use crate::tree::{
    ANY_LENGTH, Assembly, Cutter, KnownTree, NewMap, OldSegments, TreeFeed, TreeOptions,
};

/// What a tree is compared with.
pub(crate) struct TreeBefore {
    /// The parent's segments.
    pub(crate) old: OldSegments,
    /// The parent's entries.
    pub(crate) known: KnownTree,
    /// The size of the parent's files: the best estimate of what there is to read.
    pub(crate) expected_bytes: Option<u64>,
}

/// A tree that is being backed up.
struct MadeTree {
    volume: Volume,
    assembly: Assembly,
    /// Bytes that the backup had stored before.
    stored_before: u64,
}

impl BackupSession<'_> {
    /// Backs up the directory `root` and everything below it under `name`.
    ///
    /// Does not read files whose metadata equals the parent's, as far as `options` trust it. If a
    /// file cannot be read, warns and counts it in the tree, and backs up the others. Fails with
    /// `NotFound` if there is no such directory.
    pub fn add_tree(&mut self, name: &str, root: &Path, options: &TreeOptions) -> Result<&Volume> {
        check_name("volume", name)?;
        self.require_new_volume(name)?;
        let walk = Walk::open(root, &options.rules)?;
        self.add_tree_from(name, &root.display().to_string(), Box::new(walk), options)
    }

    /// Backs up a file tree from any source. The snapshot records `description` as the source. Does
    /// not apply the rules of `options`: the source must do that.
    pub fn add_tree_from(
        &mut self,
        name: &str,
        description: &str,
        source: Box<dyn TreeSource + '_>,
        options: &TreeOptions,
    ) -> Result<&Volume> {
        self.add_tree_by(name, (description, source), options, &mut |_| {})
    }

    /// The same with a source and its description. Notifies `watch` of every step.
    pub fn add_tree_by(
        &mut self,
        name: &str,
        (description, source): (&str, Box<dyn TreeSource + '_>),
        options: &TreeOptions,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<&Volume> {
        check_name("volume", name)?;
        self.require_new_volume(name)?;
        let TreeBefore { old, known, expected_bytes } = self.tree_before(name);
        let scanner = self.scanner_of_tree()?;
        let owners = source.owners();
        let cutter = self.cutter()?;
        let context = self.context.clone();
        let feed = TreeFeed::new(context, source, options, known, &old, cutter.clone());
        let seen_bytes = feed.seen_bytes();
        let mut made = self.begin_tree((name, description), &old);
        let objects = Arc::clone(&self.repository.objects);
        let left_out = {
            let pipeline = self.tree_pipeline((feed, &old, cutter), &scanner, &objects);
            // The parent's size is the best estimate of the total.
            let seen = |_: &Pipeline<'_>| {
                let done = seen_bytes.load(Ordering::Relaxed);
                (done, expected_bytes.map(|bytes| bytes.max(done)))
            };
            if !self.take_parts(&pipeline, &mut made, &seen, watch)? {
                return Err(Error::invalid("a tree that is walked differs from its record"));
            }
            pipeline.left_out()
        };
        self.finish_tree(made, &old, left_out, &owners)
    }

    /// Backs up a file tree as a survey has seen it, if the survey still holds for the parent and
    /// nothing has changed of what is to be stored. Returns whether it is backed up; if not, the
    /// tree has to be walked. `read` reads what is to be stored.
    pub fn add_surveyed_tree(
        &mut self,
        (name, description): (&str, &str),
        survey: &TreeSurvey,
        read: &ReadFiles<'_>,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<bool> {
        check_name("volume", name)?;
        self.require_new_volume(name)?;
        if !self.still_holds(survey.parent) {
            return Ok(false);
        }
        let TreeBefore { old, .. } = self.tree_before(name);
        let scanner = self.scanner_of_tree()?;
        let mut made = self.begin_tree((name, description), &old);
        let objects = Arc::clone(&self.repository.objects);
        {
            let tree = RecordedTree::new(survey, &old, &scanner, read);
            let (workers, level, buffers) = self.tree_workers();
            let pipeline =
                Pipeline::of_recorded_tree(tree, &objects.buffers, level, workers, buffers);
            let seen = |pipeline: &Pipeline<'_>| (pipeline.seen_bytes(), Some(survey.bytes));
            if !self.take_parts(&pipeline, &mut made, &seen, watch)? {
                return Ok(false);
            }
        }
        survey.warnings.iter().cloned().for_each(|warning| self.warn(warning));
        self.finish_tree(made, &old, survey.left_out, &survey.owners)?;
        Ok(true)
    }

    fn begin_tree(&self, (name, description): (&str, &str), old: &OldSegments) -> MadeTree {
        let (volume, assembly) = (empty(name, description), Assembly::new(NewMap::new(old)));
        MadeTree { volume, assembly, stored_before: self.stored_bytes() }
    }

    /// Stores the parts of a tree. Returns `false` at one that is not what its record says.
    fn take_parts(
        &mut self,
        pipeline: &Pipeline<'_>,
        made: &mut MadeTree,
        seen: &dyn Fn(&Pipeline<'_>) -> (u64, Option<u64>),
        watch: &mut dyn FnMut(Progress),
    ) -> Result<bool> {
        pipeline.run(|pipeline| {
            let mut is_as_recorded = true;
            while is_as_recorded && let Some(outcome) = pipeline.next()? {
                self.lease.keep()?;
                self.context.check_interrupted()?;
                is_as_recorded = self.take_tree(outcome, pipeline, made)?;
                let (done, total) = seen(pipeline);
                let counts = &made.assembly.counts;
                let progress = Progress {
                    new_bytes: made.volume.levels.get(Level::New),
                    stored_bytes: self.stored_bytes() - made.stored_before,
                    entries: counts.files + counts.directories + counts.others,
                    ..Progress::bytes(Activity::Backup, done, total)
                };
                self.context.report(progress);
                watch(progress);
            }
            self.close_containers(pipeline)?;
            Ok(is_as_recorded)
        })
    }

    /// Writes the map of a tree, and adds its volume to the snapshot. `left_out` is how many
    /// entries were left out by rules, how many vanished, and how many could not be reached.
    fn finish_tree(
        &mut self,
        made: MadeTree,
        old: &OldSegments,
        left_out: (u64, u64, u64),
        owners: &Owners,
    ) -> Result<&Volume> {
        let MadeTree { mut volume, assembly, stored_before } = made;
        let Assembly { map, root, mut counts, kinds, users, groups, .. } = assembly;
        let root = root.ok_or_else(|| Error::invalid("the walk of a tree did not end"))?;
        let (excluded, vanished, failed) = left_out;
        (counts.excluded, counts.vanished) = (excluded, vanished);
        counts.unreadable += failed;
        let (map, bytes, sparse_segments) = map.finish(old, &mut self.packs)?;
        let (mut users, mut groups) = (owners.users(&users), owners.groups(&groups));
        users.truncate(NAMES_MAX);
        groups.truncate(NAMES_MAX);
        let tree = Tree { root, users, groups, counts, kinds, sparse_segments };
        (volume.root, volume.bytes) = (map, bytes);
        volume.kind = VolumeKind::Tree(Box::new(tree));
        volume.stored_bytes = self.stored_bytes() - stored_before;
        self.volumes.push(volume);
        let last = self.volumes.len() - 1;
        Ok(&self.volumes[last])
    }

    /// Returns a pipeline that scans a tree.
    pub(crate) fn tree_pipeline<'a>(
        &self,
        tree: (TreeFeed<'a>, &'a OldSegments, Cutter),
        scanner: &'a Scanner,
        objects: &'a Objects,
    ) -> Pipeline<'a> {
        let (workers, level, buffers) = self.tree_workers();
        Pipeline::of_tree(tree, scanner, &objects.buffers, level, workers, buffers)
    }

    /// Returns the number of workers for a tree, how they compress, and the number of buffers.
    fn tree_workers(&self) -> (usize, i32, usize) {
        let workers = self.context.workers(self.budget.workers(tree_jobs(self.options.jobs)));
        (workers, self.repository.config.zstd_level, self.budget.segment_buffers(workers))
    }

    /// Returns what cuts the files of the series' trees.
    pub(crate) fn cutter(&self) -> Result<Cutter> {
        Cutter::new(&self.head.file_chunking.unwrap_or_default())
    }

    /// Returns the segments and entries of a volume in the parent. Without entries if the
    /// parent's writer is not trusted: for a forged entry, the real file would never be read.
    pub(crate) fn tree_before(&self, name: &str) -> TreeBefore {
        let parent = self.parent.as_ref();
        let began_ns = parent.map_or(0, |parent| parent.time_ns);
        let parent = parent.and_then(|parent| parent.volumes.iter().find(|v| v.name == name));
        let reader = Arc::clone(&self.reader);
        let avoided = Arc::clone(&self.avoided);
        let pages = TreeReader::of(Arc::clone(&reader));
        let tree = parent.and_then(|volume| match &volume.kind {
            VolumeKind::Tree(tree) => Some((volume, tree)),
            VolumeKind::Disk => None,
        });
        let Some((volume, tree)) = tree else {
            let none = MapRoot { level: 0, page: None };
            let old = OldSegments::new(reader, none, 0, &[], avoided);
            let known = KnownTree::new(pages, None, began_ns);
            return TreeBefore { old, known, expected_bytes: None };
        };
        let count = volume.bytes / to_u64(silt_format::SEGMENT_BYTES);
        let repack = &tree.sparse_segments;
        let old = OldSegments::new(reader, volume.root, count, repack, avoided);
        let expected_bytes = tree.root.subtree.as_ref().map(|below| below.bytes_below);
        let root = self.parent_is_trusted.then(|| tree.root.clone());
        TreeBefore { old, known: KnownTree::new(pages, root, began_ns), expected_bytes }
    }

    /// Stores a part of the tree, and adds its entries. Returns `false` if it is not what its
    /// record says.
    fn take_tree(
        &mut self,
        outcome: Outcome,
        pipeline: &Pipeline<'_>,
        made: &mut MadeTree,
    ) -> Result<bool> {
        outcome.warnings.into_iter().for_each(|warning| self.warn(warning));
        let (events, segment) = match outcome.scanned {
            Scanned::Tree(events, segment) => (events, segment),
            Scanned::Changed => return Ok(false),
            _ => {
                return Err(Error::invalid("the pipeline of a tree returned a part of a disk"));
            }
        };
        let number = match segment {
            TreeSegment::None => None,
            TreeSegment::Same(number) => Some(number),
            TreeSegment::Draft(mut draft) => {
                self.resolve(&mut draft)?;
                if draft.lacks_bytes() {
                    // A chunk that the scan has found is no longer there.
                    return Ok(false);
                }
                let entry = self.place(&mut draft, pipeline, &mut made.volume)?;
                pipeline.recycle(draft.data);
                Some(made.assembly.map.add(entry, &mut self.packs)?)
            }
        };
        let objects = Arc::clone(&self.repository.objects);
        for event in events {
            made.assembly.take(event, number, &objects, &mut self.packs)?;
        }
        Ok(true)
    }
}

/// Returns the volume of a tree to which nothing was added yet.
fn empty(name: &str, description: &str) -> Volume {
    Volume {
        kind: VolumeKind::Disk,
        name: name.to_owned(),
        bytes: 0,
        source: description.to_owned(),
        source_format: "tree".to_owned(),
        chunking: ANY_LENGTH,
        root: MapRoot { level: 0, page: None },
        levels: LevelBytes::default(),
        stored_bytes: 0,
        unreadable: Vec::new(),
        backing: Vec::new(),
        map_proof: None,
    }
}
