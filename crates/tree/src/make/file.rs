//! Regular files that are being made, or that exist already.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, fallocate, ftruncate, ioctl_ficlone, openat, unlinkat,
};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, Metadata, Timestamp};
use silt_format::{Error, Result};

use super::apply::{Handle, clear_flags, has_attributes, set_early_flags, set_flags};
use super::{DEFERRED_MAX, Existing, Maker, publish};
use crate::attributes::{APPEND, IMMUTABLE};
use crate::file::{OpenFile, read_fully};
use crate::status::{FileId, Status, open_at, status_at, status_of};

/// Files of at least this size get it before they are written, so that one that is too large for
/// the file system fails at once. Others get it by being written, which takes less time.
const LARGE_BYTES: u64 = 1 << 20;

/// The next step for a regular file.
#[derive(Debug)]
pub enum FileStep {
    /// Write its content, then call [`Maker::complete`].
    New(NewFile),
    /// A file exists and may serve. If [`PresentFile::may_stay`] permits it and the content is the
    /// same, call [`Maker::keep`], otherwise [`Maker::renew`].
    Present(PresentFile),
    /// The file cannot be made; the report has the error.
    Failed,
}

/// A regular file that is being made, in a directory that existed before under a temporary name.
/// Dropping it before it is complete removes it.
#[derive(Debug)]
pub struct NewFile {
    file: Option<File>,
    /// The temporary name; `None` if the file has its own already.
    temporary: Option<Vec<u8>>,
    /// The end of what was written, in bytes.
    end: AtomicU64,
    wanted: Wanted,
}

/// A regular file to be made.
#[derive(Debug)]
struct Wanted {
    directory: Arc<OwnedFd>,
    /// The path below the target.
    path: Vec<u8>,
    name: Vec<u8>,
    metadata: Metadata,
    /// Shows that the directory has an incomplete file.
    _open: Arc<()>,
}

impl NewFile {
    /// Writes at an offset in bytes. Ranges that are never written become holes. Several threads
    /// may write at a time. Fails with `Invalid` beyond the size of the file.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.wanted.metadata.size) {
            return Err(Error::invalid("writing beyond the end of a file"));
        }
        let Some(file) = &self.file else { return Err(Error::invalid("the file is complete")) };
        file.write_all_at(bytes, offset).map_err(|error| {
            Error::io(format!("writing '{}'", crate::status::shown(&self.wanted.path)), error)
        })?;
        self.end.fetch_max(end.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Reads at an offset in bytes. Returns the number of bytes read, which is less than the length
    /// of `buffer` only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let Some(file) = &self.file else { return Err(Error::invalid("the file is complete")) };
        read_fully(file, offset, buffer)
    }

    /// Makes the content that of another file, cut or extended by a hole to the size of this one,
    /// with these holes. Both then share blocks on disk until one of them is changed. Returns
    /// `false` if the file system cannot do that; the file is then one hole.
    pub fn share_with(
        &self,
        other: &OpenFile,
        holes: &mut dyn Iterator<Item = Range<u64>>,
    ) -> Result<bool> {
        let Some(file) = &self.file else { return Err(Error::invalid("the file is complete")) };
        let failed = |error: Errno| Error::io("setting the size", error.into());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let is_shared = ioctl_ficlone(file, other).is_ok()
            && ftruncate(file, self.wanted.metadata.size).is_ok()
            && holes
                .filter(|hole| !hole.is_empty())
                .all(|hole| fallocate(file, punch, hole.start, hole.end - hole.start).is_ok());
        if !is_shared {
            ftruncate(file, 0).map_err(failed)?;
            ftruncate(file, self.wanted.metadata.size).map_err(failed)?;
        }
        self.end.store(self.wanted.metadata.size, Ordering::Relaxed);
        Ok(is_shared)
    }

    /// Extends the file by a hole to its size, unless its end was written.
    fn extend(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if self.end.load(Ordering::Relaxed) >= self.wanted.metadata.size {
            return Ok(());
        }
        ftruncate(file, self.wanted.metadata.size)
            .map_err(|error| Error::io("setting the size", error.into()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let name = self.temporary.as_ref().unwrap_or(&self.wanted.name);
        let now = status_at(&*self.wanted.directory, name).map(|now| now.id());
        // The name can be another file's by now.
        if self.temporary.is_some()
            || status_of(file).is_ok_and(|this| now.is_ok_and(|now| now == this.id()))
        {
            // If this fails, an incomplete file stays.
            let _ = unlinkat(&*self.wanted.directory, name, AtFlags::empty());
        }
    }
}

/// An existing regular file with the name of the one to be made.
///
/// It is never written to: programs may have it open, and it may have names outside of the target.
/// If its content differs, a new file takes its name.
#[derive(Debug)]
pub struct PresentFile {
    file: OpenFile,
    /// The file to be made.
    wanted: Wanted,
    /// The existing file when it was opened.
    found: Version,
    stay: Stay,
}

/// A file, and what shows that it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    id: FileId,
    size: u64,
    modified: Timestamp,
    changed: Timestamp,
    links: u32,
}

impl Version {
    fn of(status: &Status) -> Self {
        let Metadata { size, modified, changed, links, .. } = status.metadata;
        Self { id: status.id(), size, modified, changed, links }
    }
}

/// Whether an existing file can be kept if it has the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// No: its size differs, or it has other names, whose attributes must not change.
    No,
    /// Yes, and its attributes may be set.
    Changed,
    /// Yes, as it is.
    Unchanged,
}

impl PresentFile {
    /// Returns the file, to compare its content.
    pub fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Returns whether the file may be kept if its content is the same.
    pub fn may_stay(&self) -> bool {
        self.stay != Stay::No
    }

    /// Returns whether the file still has its name and was not changed since it was opened. Ask
    /// after its content was compared.
    pub fn is_current(&self) -> bool {
        let is_found =
            |now: Result<Status, Errno>| now.is_ok_and(|status| Version::of(&status) == self.found);
        is_found(status_of(&self.file))
            && is_found(status_at(&*self.wanted.directory, &self.wanted.name))
    }
}

impl Maker {
    /// Begins a regular file in the current directory.
    pub fn file(&mut self, name: &[u8], metadata: &Metadata) -> FileStep {
        let step = self.check(name, metadata.kind == EntryKind::File).and_then(|directory| {
            let wanted = self.wanted(directory, name, metadata);
            // Under its own name, unless that is taken.
            if self.is_in_new()
                && let Ok(file) = make_file(&wanted.directory, name)
            {
                return Ok(FileStep::New(self.begin(file, None, wanted)?));
            }
            match self.present(&wanted)? {
                Some((file, found, stay)) => {
                    Ok(FileStep::Present(PresentFile { file, wanted, found, stay }))
                }
                None => Ok(FileStep::New(self.begin_temporary(wanted)?)),
            }
        });
        step.unwrap_or_else(|error| {
            self.fail(name, error);
            FileStep::Failed
        })
    }

    /// Sets the attributes of a new file and renames it to its name. Returns `false` if that
    /// failed.
    pub fn complete(&mut self, mut new: NewFile) -> bool {
        let result = self.complete_file(&mut new);
        let made = match result {
            Ok(()) => {
                self.report.made += 1;
                true
            }
            Err(error) => {
                self.report.fail(std::mem::take(&mut new.wanted.path), error);
                false
            }
        };
        drop(new);
        self.sweep();
        made
    }

    /// Removes a new file and notes why its content is not available.
    pub fn give_up(&mut self, mut new: NewFile, error: Error) {
        self.report.fail(std::mem::take(&mut new.wanted.path), error);
        drop(new);
        self.sweep();
    }

    /// Keeps an existing file and sets its attributes. Returns `false` if that failed.
    pub fn keep(&mut self, present: PresentFile) -> bool {
        let PresentFile { file, mut wanted, stay, .. } = present;
        let kept = match stay {
            Stay::No => Err(Error::invalid("the existing file cannot be kept")),
            Stay::Unchanged => Ok(()),
            Stay::Changed => {
                let (file, metadata) = (file.into_fd(), &wanted.metadata);
                clear_flags(&file, IMMUTABLE | APPEND);
                let missing = &mut self.report.missing;
                let applied = Handle::Open(&file).apply(metadata, &self.options, missing);
                if applied.is_ok() {
                    self.set_or_defer_flags(&file, metadata, &wanted.path);
                }
                applied
            }
        };
        let is_kept = kept.is_ok();
        match kept {
            Ok(()) => self.report.made += 1,
            Err(error) => self.report.fail(std::mem::take(&mut wanted.path), error),
        }
        drop(wanted);
        self.sweep();
        is_kept
    }

    /// Begins a new file that replaces an existing one when it is complete. Returns it with the
    /// existing one, whose content may serve for the new one; `None` if that failed.
    pub fn renew(&mut self, present: PresentFile) -> Option<(NewFile, OpenFile)> {
        let PresentFile { file, wanted, .. } = present;
        let path = wanted.path.clone();
        match self.begin_temporary(wanted) {
            Ok(new) => Some((new, file)),
            Err(error) => {
                self.report.fail(path, error);
                self.sweep();
                None
            }
        }
    }

    /// Returns the existing file with the name of a wanted one if it may serve. Fails if it exists
    /// and may not be replaced.
    fn present(&self, wanted: &Wanted) -> Result<Option<(OpenFile, Version, Stay)>> {
        let failed = |error: Errno| Error::io("reading the existing entry", error.into());
        let Wanted { directory, name, metadata, .. } = wanted;
        let status = match status_at(&**directory, name) {
            Ok(status) => status,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        self.may_replace(&status)?;
        let is_file = |status: &Status| status.metadata.kind == EntryKind::File;
        if self.options.existing != Existing::KeepIfSame || !is_file(&status) {
            return Ok(None);
        }
        // A file that cannot be read is replaced.
        let Ok(file) = open_at(&**directory, name, OFlags::empty()) else { return Ok(None) };
        let found = status_of(&file).map_err(failed)?;
        Ok(is_file(&found).then(|| {
            let stay = self.stay(&file, &found.metadata, metadata);
            (OpenFile::new(file), Version::of(&found), stay)
        }))
    }

    /// Returns whether an existing file can be kept if its content is the same.
    fn stay(&self, file: &OwnedFd, found: &Metadata, wanted: &Metadata) -> Stay {
        let has_links = (found.links > 1, wanted.links > 1);
        if found.size != wanted.size || has_links.0 != has_links.1 {
            return Stay::No;
        }
        if !has_links.0 {
            return Stay::Changed;
        }
        // Its other names may be outside of the target.
        let is_same = has_attributes(file, found, wanted, &self.options);
        if is_same { Stay::Unchanged } else { Stay::No }
    }

    /// A file of the current directory.
    fn wanted(&self, directory: Arc<OwnedFd>, name: &[u8], metadata: &Metadata) -> Wanted {
        Wanted {
            directory,
            path: [&self.path, name].concat(),
            name: name.to_vec(),
            metadata: metadata.clone(),
            _open: self.frames.last().map(|frame| frame.open.clone()).unwrap_or_default(),
        }
    }

    /// Begins a file under a temporary name.
    fn begin_temporary(&mut self, wanted: Wanted) -> Result<NewFile> {
        let opened = std::cell::Cell::new(None);
        let temporary = self.temporary(|name| {
            make_file(&wanted.directory, name).map(|file| opened.set(Some(file)))
        })?;
        let Some(file) = opened.take() else { return Err(Error::invalid("no file was made")) };
        self.begin(file, Some(temporary), wanted)
    }

    /// Begins a file that was made just now.
    fn begin(&self, file: OwnedFd, temporary: Option<Vec<u8>>, wanted: Wanted) -> Result<NewFile> {
        set_early_flags(&file, &wanted.metadata, &self.options);
        let is_large = wanted.metadata.size >= LARGE_BYTES;
        let new = NewFile { file: Some(file.into()), temporary, end: AtomicU64::new(0), wanted };
        if is_large {
            new.extend()?;
        }
        Ok(new)
    }

    fn complete_file(&mut self, new: &mut NewFile) -> Result<()> {
        new.extend()?;
        let Some(file) = new.file.take() else { return Ok(()) };
        let file = OwnedFd::from(file);
        let Wanted { directory, path, name, metadata, .. } = &new.wanted;
        let applied = Handle::Open(&file).apply(metadata, &self.options, &mut self.report.missing);
        // Even without some attribute, the content is worth keeping.
        if let Some(temporary) = &new.temporary
            && let Err(error) = publish(directory, temporary, name)
        {
            // Dropping it removes the temporary name.
            new.file = Some(file.into());
            return Err(error);
        }
        self.set_or_defer_flags(&file, metadata, path);
        applied
    }

    /// Sets the flags of a file, or defers them to the end: an immutable file can get no further
    /// hard links.
    fn set_or_defer_flags(&mut self, file: &OwnedFd, metadata: &Metadata, path: &[u8]) {
        let is_final = metadata.flags & (IMMUTABLE | APPEND) == 0;
        if metadata.links == 1 || is_final {
            set_flags(file, metadata.flags, &self.options, &mut self.report.missing);
        } else if self.deferred.len() < DEFERRED_MAX {
            let names = path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect();
            self.deferred.push((names, metadata.flags));
        } else {
            self.report.missing.flags += 1;
        }
    }
}

/// Makes a file that only its owner may read. Fails with `EXIST` if the name is taken.
fn make_file(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}
