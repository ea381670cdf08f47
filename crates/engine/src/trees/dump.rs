//! Writing file trees as archives.

use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, FileId, OwnerName, State};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::FoundVolume;
use silt_repository::event::{Activity, Progress};
use silt_repository::tree::TreeVolume;
use silt_tree::{ArchiveEntry, PathRules, TarWriter, ZipWriter};

use super::content::is_directory;
use super::selected::{Selected, SelectedWalk};
use super::walk::Failures;
use crate::repository::Repository;

/// Maximum number of bytes that are read at a time. A file up to this size is read before its entry
/// begins, so that it can be left out if it is damaged.
const READ_BYTES: u64 = 1 << 20;
/// Maximum number of files with hard links that are remembered at a time. Of others, each name
/// becomes a separate file in the archive.
const LINKS_MAX: usize = 1 << 20;

/// The format of an archive.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("notes.txt");
/// # for text in ["remember", "remember more"] {
/// #     std::fs::write(&file, text).unwrap();
/// #     let mut backup = repository.backup("home", BackupOptions::default())?;
/// #     backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// #     backup.finish()?;
/// # }
/// # let head = repository.heads(&[])?.remove(0);
/// # let at = |n: usize| repository.find(&Selector::Id(head.snapshots[n].id.to_string()));
/// # let (old, new) = (at(0)?, at(1)?);
/// # let (old, new) = (old.volume("files")?, new.volume("files")?);
/// let mut archive = Vec::new();
/// repository.dump_tree(new, b"/", ArchiveFormat::Zip, 0, &mut archive)?;
/// assert!(archive.starts_with(b"PK"));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// Tar in the pax format. Contains everything except sockets and inode flags.
    #[default]
    Tar,
    /// Zip. Contains files, directories and symbolic links with their modes and times.
    Zip,
}

/// The result of writing an archive.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("notes.txt");
/// # for text in ["remember", "remember more"] {
/// #     std::fs::write(&file, text).unwrap();
/// #     let mut backup = repository.backup("home", BackupOptions::default())?;
/// #     backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// #     backup.finish()?;
/// # }
/// # let head = repository.heads(&[])?.remove(0);
/// # let at = |n: usize| repository.find(&Selector::Id(head.snapshots[n].id.to_string()));
/// # let (old, new) = (at(0)?, at(1)?);
/// # let (old, new) = (old.volume("files")?, new.volume("files")?);
/// let mut archive = Vec::new();
/// let report: DumpReport =
///     repository.dump_tree(new, b"/notes.txt", ArchiveFormat::Tar, 0, &mut archive)?;
/// assert_eq!((report.entries, report.bytes, report.failures.count), (1, 13, 0));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct DumpReport {
    /// Entries in the archive.
    pub entries: u64,
    /// Sum of the sizes of its files in bytes.
    pub bytes: u64,
    /// Entries that were left out because the format does not have their type.
    pub left_out: u64,
    /// Entries that the backup could not read completely. Missing content is zeros in the archive.
    pub unreadable: u64,
    /// Entries that could not be read. They are not in the archive, except files of more than
    /// 1 MiB: these have zeros in place of the unreadable parts.
    pub failures: Failures,
}

impl Repository {
    /// Writes an archive of `path` in a file tree to `out`: the content of a directory, or a single
    /// entry. An entry that cannot be read does not stop it; the report has the failures.
    pub fn dump_tree(
        &self,
        of: FoundVolume<'_>,
        path: &[u8],
        format: ArchiveFormat,
        memory_bytes: u64,
        out: &mut dyn Write,
    ) -> Result<DumpReport> {
        let volume = TreeVolume::open(self, of, memory_bytes)?;
        let root = volume.find(path)?;
        let total = root.subtree.as_ref().map_or(root.metadata.size, |tree| tree.bytes_below);
        let writer = match format {
            ArchiveFormat::Tar => Writer::Tar(TarWriter::new(out)),
            ArchiveFormat::Zip => Writer::Zip(ZipWriter::new(out)),
        };
        let mut dump = Dump {
            repository: self,
            volume: &volume,
            writer,
            first_names: HashMap::new(),
            buffer: Vec::new(),
            total,
            report: DumpReport::default(),
        };
        if is_directory(&root) {
            dump.entry(b"", &root)?;
            let mut walk = SelectedWalk::new(&volume, &root, &PathRules::default())?;
            while let Some(step) = walk.next_step()? {
                self.objects.context.check_interrupted()?;
                match step {
                    Selected::Enter(path, entry) | Selected::Entry(path, entry) => {
                        dump.entry(&path, &entry)?;
                    }
                    Selected::Failed(path, error) => dump.report.failures.add(path, error),
                    Selected::Leave(_) => {}
                }
            }
        } else {
            dump.entry(&root.name, &root)?;
        }
        match dump.writer {
            Writer::Tar(tar) => drop(tar.finish()?),
            Writer::Zip(zip) => drop(zip.finish()?),
        }
        Ok(dump.report)
    }
}

enum Writer<'w> {
    Tar(TarWriter<&'w mut dyn Write>),
    Zip(ZipWriter<&'w mut dyn Write>),
}

impl Writer<'_> {
    fn begin(&mut self, entry: &ArchiveEntry<'_>) -> Result<bool> {
        match self {
            Self::Tar(tar) => tar.begin(entry),
            Self::Zip(zip) => zip.begin(entry),
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Tar(tar) => tar.data(bytes),
            Self::Zip(zip) => zip.data(bytes),
        }
    }
}

struct Dump<'d> {
    repository: &'d Repository,
    volume: &'d TreeVolume,
    writer: Writer<'d>,
    /// For each file with hard links: its first path, and the number of names still to come.
    first_names: HashMap<(EntryKind, FileId), (Vec<u8>, u32)>,
    buffer: Vec<u8>,
    total: u64,
    report: DumpReport,
}

impl Dump<'_> {
    fn entry(&mut self, path: &[u8], entry: &Entry) -> Result<()> {
        self.report.unreadable += u64::from(entry.state == State::Unreadable);
        let metadata = &entry.metadata;
        if let Err(error) = self.volume.check_extents(entry) {
            // Its size may be forged; the archive would contain that many zeros.
            return self.failed(path, error);
        }
        let is_tar = matches!(self.writer, Writer::Tar(_));
        let link_to =
            if is_tar && metadata.links > 1 { self.first_name(path, entry) } else { None };
        let tree = self.volume.tree();
        let ranges = if is_tar { data_ranges(entry) } else { whole(entry) };
        let archived = ArchiveEntry {
            path,
            metadata,
            link_to: link_to.as_deref(),
            user: name(&tree.users, metadata.uid),
            group: name(&tree.groups, metadata.gid),
            data: &ranges,
        };
        let has_content = metadata.kind == EntryKind::File && link_to.is_none();
        let is_small = metadata.size <= READ_BYTES;
        let mut content = std::mem::take(&mut self.buffer);
        if has_content && is_small {
            content.clear();
            let read = ranges.iter().try_for_each(|range| self.read(entry, range, &mut content));
            if let Err(error) = read {
                self.first_names.remove(&(entry.metadata.kind, entry.file_id()));
                self.failed(path, error)?;
                self.buffer = content;
                return Ok(());
            }
        }
        if !self.writer.begin(&archived)? {
            // The root of a zip archive has no entry.
            self.report.left_out += u64::from(!path.is_empty());
            self.buffer = content;
            return Ok(());
        }
        if has_content && is_small {
            self.writer.data(&content)?;
        } else if has_content {
            self.large(path, entry, &ranges, &mut content)?;
        }
        self.buffer = content;
        self.report.entries += 1;
        if has_content {
            self.report.bytes = self.report.bytes.saturating_add(metadata.size);
            let (bytes, total) = (self.report.bytes, Some(self.total));
            let progress = Progress::bytes(Activity::Restore, bytes, total);
            self.repository.objects.context.report(progress);
        }
        Ok(())
    }

    /// Writes content in parts. Parts that cannot be read become zeros: the size is already in the
    /// archive.
    fn large(
        &mut self,
        path: &[u8],
        entry: &Entry,
        ranges: &[Range<u64>],
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let mut first = None;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                self.repository.objects.context.check_interrupted()?;
                let part = at..range.end.min(at + READ_BYTES);
                buffer.clear();
                if let Err(error) = self.read(entry, &part, buffer) {
                    buffer.clear();
                    buffer.resize(to_usize(part.end - part.start), 0);
                    first.get_or_insert(error);
                }
                self.writer.data(buffer)?;
                at = part.end;
            }
        }
        match first {
            Some(error) => {
                self.failed(path, error.context("damaged parts are zeros in the archive"))
            }
            None => Ok(()),
        }
    }

    /// Appends a range of a file's content to `to`. Holes, and ranges that the backup could not
    /// read, are zeros.
    fn read(&self, entry: &Entry, range: &Range<u64>, to: &mut Vec<u8>) -> Result<()> {
        let mut at = range.start;
        let mut start = 0;
        for extent in &entry.extents {
            let end = start + extent.bytes;
            if at < end.min(range.end) && at >= start {
                let bytes = to_usize(end.min(range.end) - at);
                let behind = to.len();
                to.resize(behind + bytes, 0);
                if extent.address.is_some()
                    && self.volume.read_at(entry, at, &mut to[behind..])? != bytes
                {
                    return Err(Error::corrupt("a file has fewer bytes than its size"));
                }
                at += to_u64(bytes);
            }
            start = end;
        }
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: Error) -> Result<()> {
        if error.kind() == ErrorKind::Interrupted {
            return Err(error);
        }
        self.report.failures.add(path.to_vec(), error);
        Ok(())
    }

    /// Returns the first path of a file with hard links; `None` if this is the first.
    fn first_name(&mut self, path: &[u8], entry: &Entry) -> Option<Vec<u8>> {
        let metadata = &entry.metadata;
        if is_directory(entry) {
            return None;
        }
        let id = (metadata.kind, entry.file_id());
        if let Some((first, left)) = self.first_names.get_mut(&id) {
            let first = first.clone();
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.first_names.remove(&id);
            }
            return Some(first);
        }
        if self.first_names.len() < LINKS_MAX {
            self.first_names.insert(id, (path.to_vec(), metadata.links - 1));
        }
        None
    }
}

fn name(names: &[OwnerName], id: u32) -> Option<&[u8]> {
    let place = names.binary_search_by_key(&id, |owner| owner.id).ok()?;
    Some(&names[place].name)
}

/// Returns the ranges of a file that are not holes.
fn data_ranges(entry: &Entry) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut start = 0;
    for extent in &entry.extents {
        let end = start + extent.bytes;
        if extent.address.is_some() {
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        start = end;
    }
    ranges
}

/// Returns the whole file as one range; none if it is empty.
fn whole(entry: &Entry) -> Vec<Range<u64>> {
    let size = entry.metadata.size;
    Vec::from_iter((size > 0).then_some(0..size))
}
