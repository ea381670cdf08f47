//! Putting an archive into a temporary file, so that it becomes a tree in the order of names.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, Extent, FileKind, State, Timestamp};
use silt_format::{Error, ErrorKind, Result, TAG_BYTES};
use silt_repository::Repository;
use silt_repository::env::Context;
use silt_repository::event::{Activity, Progress};
use silt_tree::{Failure, Owners, TreeSource};

use crate::join::{Class, Links, Version};
use crate::paths;
use crate::refused::{BYTES_MAX, Counted, Refusals, SHOWN_BYTES_MAX};
use crate::sorter::Sorter;
use crate::spool::{BLOCK_BYTES, Spool};
use crate::tar::{Item, TarEntry, TarReader};
use crate::tree::{Contents, Source};

/// Maximum number of hard links in an archive. Each takes up to 48 bytes of memory.
const LINKS_MAX: u64 = 4 << 20;
/// Progress is reported after so many bytes.
const REPORT_BYTES: u64 = 4 << 20;

/// How an archive is staged.
#[derive(Clone, Debug, Default)]
pub struct StageOptions {
    /// The directory of the archive that becomes the root of the tree; what is outside is left out.
    /// Empty for the root of the archive.
    pub root: Vec<u8>,
    /// The modification time of directories that the archive does not have although it has what is
    /// in them.
    pub missing_modified: Timestamp,
}

/// An archive in a temporary file, as a tree.
pub struct StagedTree {
    contents: Contents,
    refusals: Refusals,
    counted: Counted,
}

impl StagedTree {
    /// The tree for a backup. It can be read several times.
    pub fn source(&self) -> Result<Box<dyn TreeSource>> {
        Ok(Box::new(Source::new(&self.contents)?))
    }

    /// Entries of the tree, without directories that the archive does not have.
    pub fn entries(&self) -> u64 {
        self.counted.entries
    }

    /// Bytes of the files, with their holes.
    pub fn bytes(&self) -> u64 {
        self.counted.bytes
    }

    /// Entries that are not below the chosen directory.
    pub fn left_out(&self) -> u64 {
        self.counted.left_out
    }

    /// How many entries, or attributes of entries, were refused.
    pub fn refused(&self) -> u64 {
        self.refusals.count
    }

    /// The first refused entries, at most [`REFUSALS_MAX`](crate::REFUSALS_MAX).
    pub fn refusals(&self) -> &[Failure] {
        &self.refusals.first
    }
}

/// Reads a tar archive to its end, and puts it into temporary files in `folder`, which have no
/// names and are sealed.
///
/// They take as much space as the archive without its holes. Fails with `Invalid` if the archive is
/// damaged or incomplete, and if it has no entry that can be stored although it has entries.
pub fn stage(
    repository: &Repository,
    input: impl Read,
    folder: &Path,
    options: &StageOptions,
) -> Result<StagedTree> {
    let objects = &*repository.objects;
    let root = paths::key(&options.root).or_else(|reason| {
        if options.root.is_empty() { Ok(Vec::new()) } else { Err(Error::invalid(reason)) }
    })?;
    let mut stager = Stager {
        context: objects.context.clone(),
        spool: Spool::new(objects, folder),
        entries: Sorter::new(objects, folder),
        links: Sorter::new(objects, folder),
        owners: Owners::default(),
        root,
        number: 0,
        link_count: 0,
        content_bytes: 0,
        reported: 0,
        block: Vec::with_capacity(BLOCK_BYTES + TAG_BYTES),
        refusals: Refusals::default(),
        left_out: 0,
    };
    let mut archive = TarReader::new(input, Owners::of_this_machine()?);
    while let Some(item) = archive.next(&stager.owners)? {
        stager.context.check_interrupted()?;
        match item {
            Item::Entry(entry) => stager.take(*entry, &mut archive)?,
            Item::Refused(path, reason) => stager.refusals.add(path, reason),
        }
    }
    stager.finish(options.missing_modified)
}

struct Stager {
    context: Context,
    spool: Spool,
    entries: Sorter,
    links: Sorter,
    owners: Owners,
    /// The key of the directory that becomes the root.
    root: Vec<u8>,
    /// The number of the next entry.
    number: u64,
    link_count: u64,
    content_bytes: u64,
    reported: u64,
    block: Vec<u8>,
    refusals: Refusals,
    left_out: u64,
}

impl Stager {
    fn take(&mut self, entry: TarEntry, archive: &mut TarReader<impl Read>) -> Result<()> {
        let key = match paths::key(&entry.path) {
            Ok(key) => key,
            Err(reason) => {
                self.refusals.add(entry.path, reason);
                return Ok(());
            }
        };
        let Some(key) = paths::below(&key, &self.root).map(<[u8]>::to_vec) else {
            // The directories above the root are no loss.
            self.left_out += 1;
            return Ok(());
        };
        if key.is_empty() && entry.metadata.kind != EntryKind::Directory {
            self.refusals.add(entry.path, "it is the root of the tree, but no directory");
            return Ok(());
        }
        self.owners.add_user(entry.metadata.uid, &entry.user);
        self.owners.add_group(entry.metadata.gid, &entry.group);
        if let Some(target) = &entry.link_to {
            return self.link(&key, &entry.path, target);
        }
        let bytes = entry.metadata.size;
        if self.content_bytes.saturating_add(bytes) > BYTES_MAX {
            self.refusals.add(entry.path, "the files of the archive are larger than 4 EiB");
            return Ok(());
        }
        self.content_bytes += bytes;
        for lost in &entry.lost {
            self.refusals.add(entry.path.clone(), format!("imported without {lost}"));
        }
        let class = match entry.metadata.kind {
            EntryKind::Directory => Class::Directory,
            _ => Class::Other,
        };
        let extents = self.content(&entry, archive)?;
        let record = Entry {
            name: Vec::new(),
            metadata: entry.metadata,
            state: State::Whole,
            content: FileKind::Other,
            extents,
            subtree: None,
        };
        self.block.extend(record.encode());
        let bytes = to_u32(self.block.len());
        let start = self.spool.append(&mut self.block)?;
        let version = Version { class, start, bytes, size: record.metadata.size };
        self.entries.add(&key, self.number, &version.encode())?;
        self.number += 1;
        Ok(())
    }

    /// Notes a hard link, whose target is looked for at the end.
    fn link(&mut self, key: &[u8], path: &[u8], target: &[u8]) -> Result<()> {
        let refused = |reason: &str| {
            let target = &target[..target.len().min(SHOWN_BYTES_MAX)];
            format!("it is a hard link to '{}': {reason}", target.escape_ascii())
        };
        let Ok(target) = paths::key(target) else {
            self.refusals.add(path.to_vec(), refused("that is no path in the archive"));
            return Ok(());
        };
        let Some(target) = paths::below(&target, &self.root) else {
            self.refusals.add(path.to_vec(), refused("that is outside of the chosen directory"));
            return Ok(());
        };
        if self.link_count == LINKS_MAX {
            self.refusals.add(path.to_vec(), refused("the archive has more than 4,194,304 links"));
            return Ok(());
        }
        self.link_count += 1;
        let version = Version { class: Class::Link, start: 0, bytes: 0, size: 0 };
        self.entries.add(key, self.number, &version.encode())?;
        // The path is not the payload: it may be long, and is found by its number.
        self.links.add(target, self.number, &[])?;
        self.number += 1;
        Ok(())
    }

    /// Puts the content of a file into the spool. Returns where it is.
    fn content(
        &mut self,
        entry: &TarEntry,
        archive: &mut TarReader<impl Read>,
    ) -> Result<Vec<Extent>> {
        let (mut extents, mut behind) = (Vec::new(), 0);
        for range in &entry.ranges {
            if range.start > behind {
                extents.push(Extent { address: None, bytes: range.start - behind });
            }
            let bytes = range.end - range.start;
            extents.push(Extent { address: Some(self.spool.end()), bytes });
            let mut left = bytes;
            while left > 0 {
                self.context.check_interrupted()?;
                let count = to_usize(left.min(to_u64(BLOCK_BYTES)));
                self.block.resize(count, 0);
                archive.data(&mut self.block)?;
                self.spool.append(&mut self.block)?;
                left -= to_u64(count);
                self.report();
            }
            behind = range.end;
        }
        if behind < entry.metadata.size {
            extents.push(Extent { address: None, bytes: entry.metadata.size - behind });
        }
        Ok(extents)
    }

    fn report(&mut self) {
        let done = self.spool.end();
        if done - self.reported >= REPORT_BYTES {
            self.reported = done;
            self.context.report(Progress::bytes(Activity::Unpack, done, None));
        }
    }

    fn finish(mut self, missing_modified: Timestamp) -> Result<StagedTree> {
        let (entries, links) = (self.entries.finish()?, self.links.finish()?);
        let links = Links::join(&entries, &links)?;
        let mut counted = Counted { left_out: self.left_out, ..Counted::default() };
        let links = links.counted(&entries, &mut counted, &mut self.refusals)?;
        if counted.entries == 0 && self.refusals.count > 0 {
            let first = self.refusals.first.first().map(|first| {
                format!("; the first, '{}': {}", first.path.escape_ascii(), first.error)
            });
            let message = format!(
                "none of the {} entries of the archive can be imported{}",
                self.refusals.count,
                first.unwrap_or_default()
            );
            return Err(Error::invalid(message));
        }
        if counted.entries == 0 && self.left_out > 0 {
            let shown = paths::path_of(&self.root);
            let message = format!("the archive has nothing below '{}'", shown.escape_ascii());
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let contents = Contents {
            entries,
            spool: self.spool.reader(),
            links: Arc::new(links),
            owners: self.owners,
            missing_modified,
        };
        Ok(StagedTree { contents, refusals: self.refusals, counted })
    }
}
