//! Backs up a file tree.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::number::to_u64;
use silt_format::tree::{NAMES_MAX, Tree};
use silt_format::{Error, Level, LevelBytes, MapRoot, Result, Volume, VolumeKind};
use silt_repository::event::{Activity, Progress};
use silt_repository::tree::TreeReader;
use silt_tree::{TreeSource, Walk};

use super::{BackupSession, check_name, tree_jobs};
use crate::pipeline::Pipeline;
use crate::scan::{Outcome, Scanned, TreeSegment};
use crate::tree::{
    ANY_LENGTH, Assembly, Cutter, KnownTree, NewMap, OldSegments, TreeFeed, TreeOptions,
};

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
        check_name("volume", name)?;
        self.require_new_volume(name)?;
        let parent = self.parent.as_ref();
        let began_ns = parent.map_or(0, |parent| parent.time_ns);
        let parent = parent.and_then(|parent| parent.volumes.iter().find(|v| v.name == name));
        let root = parent.and_then(Volume::tree).map(|tree| &tree.root);
        let expected_bytes =
            root.and_then(|root| root.subtree.as_ref()).map(|below| below.bytes_below);
        let (old, known) = self.known_tree(parent, began_ns);
        let scanner = self.scanner_of_tree()?;
        let before = self.stored_bytes();
        let mut volume = empty(name, description);
        let owners = source.owners();
        let cutter = Cutter::new(&self.head.file_chunking.unwrap_or_default())?;
        let context = self.context.clone();
        let feed = TreeFeed::new(context, source, options, known, &old, cutter.clone());
        let seen_bytes = feed.seen_bytes();
        let mut assembly = Assembly::new(NewMap::new(&old));
        let workers = self.context.workers(self.budget.workers(tree_jobs(self.options.jobs)));
        let objects = Arc::clone(&self.repository.objects);
        let (excluded, vanished, failed) = {
            let pipeline = Pipeline::of_tree(
                (feed, &old, cutter),
                &scanner,
                &objects.buffers,
                self.repository.config.zstd_level,
                workers,
                self.budget.segment_buffers(workers),
            );
            pipeline.run(|pipeline| {
                while let Some(outcome) = pipeline.next()? {
                    self.lease.keep()?;
                    self.context.check_interrupted()?;
                    self.take_tree(outcome, pipeline, &mut assembly, &mut volume)?;
                    let stored = self.stored_bytes() - before;
                    // The parent's size is the best estimate of the total.
                    let done = seen_bytes.load(Ordering::Relaxed);
                    let total = expected_bytes.map(|bytes| bytes.max(done));
                    self.context.report(Progress {
                        new_bytes: volume.levels.get(Level::New),
                        stored_bytes: stored,
                        ..Progress::bytes(Activity::Backup, done, total)
                    });
                }
                self.close_containers(pipeline)
            })?;
            pipeline.left_out()
        };
        let Assembly { map, root, mut counts, kinds, users, groups, .. } = assembly;
        let root = root.ok_or_else(|| Error::invalid("the walk of a tree did not end"))?;
        (counts.excluded, counts.vanished) = (excluded, vanished);
        counts.unreadable += failed;
        let (map, bytes, sparse_segments) = map.finish(&old, &mut self.packs)?;
        let (mut users, mut groups) = (owners.users(&users), owners.groups(&groups));
        users.truncate(NAMES_MAX);
        groups.truncate(NAMES_MAX);
        let tree = Tree { root, users, groups, counts, kinds, sparse_segments };
        (volume.root, volume.bytes) = (map, bytes);
        volume.kind = VolumeKind::Tree(Box::new(tree));
        volume.stored_bytes = self.stored_bytes() - before;
        self.volumes.push(volume);
        let last = self.volumes.len() - 1;
        Ok(&self.volumes[last])
    }

    /// Returns the segments and entries of this volume in the parent. Without entries if the
    /// parent's writer is not trusted: for a forged entry, the real file would never be read.
    fn known_tree(&self, parent: Option<&Volume>, began_ns: i64) -> (OldSegments, KnownTree) {
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
            return (old, KnownTree::new(pages, None, began_ns));
        };
        let count = volume.bytes / to_u64(silt_format::SEGMENT_BYTES);
        let repack = &tree.sparse_segments;
        let old = OldSegments::new(reader, volume.root, count, repack, avoided);
        let root = self.parent_is_trusted.then(|| tree.root.clone());
        (old, KnownTree::new(pages, root, began_ns))
    }

    /// Stores a part of the tree, and adds its entries.
    fn take_tree(
        &mut self,
        outcome: Outcome,
        pipeline: &Pipeline<'_>,
        assembly: &mut Assembly,
        volume: &mut Volume,
    ) -> Result<()> {
        outcome.warnings.into_iter().for_each(|warning| self.warn(warning));
        let Scanned::Tree(events, segment) = outcome.scanned else {
            return Err(Error::invalid("the pipeline of a tree returned a part of a disk"));
        };
        let number = match segment {
            TreeSegment::None => None,
            TreeSegment::Same(number) => Some(number),
            TreeSegment::Draft(mut draft) => {
                self.resolve(&mut draft)?;
                let entry = self.place(&mut draft, pipeline, volume)?;
                pipeline.recycle(draft.data);
                Some(assembly.map.add(entry, &mut self.packs)?)
            }
        };
        let objects = Arc::clone(&self.repository.objects);
        for event in events {
            assembly.take(event, number, &objects, &mut self.packs)?;
        }
        Ok(())
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
