//! Regular files that are being made, or that exist already.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, ftruncate, openat, unlinkat};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, Metadata};
use silt_format::{Error, Result};

use super::apply::{Handle, clear_flags, set_early_flags, set_flags};
use super::{DEFERRED_MAX, Existing, Maker, publish};
use crate::attributes::{APPEND, IMMUTABLE};
use crate::file::OpenFile;
use crate::status::{open_at, status_at, status_of};

/// The next step for a regular file.
#[derive(Debug)]
pub enum FileStep {
    /// Write its content, then call [`Maker::complete`].
    New(NewFile),
    /// A file of the same size and modification time exists. Compare its content, then call
    /// [`Maker::keep`] or [`Maker::renew`].
    Present(PresentFile),
    /// The file cannot be made; the report has the error.
    Failed,
}

/// A regular file that is being made under a temporary name. Dropping it before it is complete
/// removes it.
#[derive(Debug)]
pub struct NewFile {
    file: Option<File>,
    directory: Arc<OwnedFd>,
    temporary: Vec<u8>,
    /// The path below the target.
    path: Vec<u8>,
    name: Vec<u8>,
    metadata: Metadata,
    _open: Arc<()>,
}

impl NewFile {
    /// Writes at an offset in bytes. Ranges that are never written become holes. Several threads
    /// may write at a time. Fails with `Invalid` beyond the size of the file.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.metadata.size) {
            return Err(Error::invalid("writing beyond the end of a file"));
        }
        let Some(file) = &self.file else { return Err(Error::invalid("the file is complete")) };
        file.write_all_at(bytes, offset).map_err(|error| {
            Error::io(format!("writing '{}'", crate::status::shown(&self.path)), error)
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            // If this fails, a file with a temporary name stays.
            let _ = unlinkat(&*self.directory, &*self.temporary, AtFlags::empty());
        }
    }
}

/// An existing regular file that has the name, size and modification time of the one to be made.
#[derive(Debug)]
pub struct PresentFile {
    file: OpenFile,
    name: Vec<u8>,
    metadata: Metadata,
}

impl PresentFile {
    /// Returns the file, to compare its content.
    pub fn file(&self) -> &OpenFile {
        &self.file
    }
}

impl Maker {
    /// Begins a regular file in the current directory.
    pub fn file(&mut self, name: &[u8], metadata: &Metadata) -> FileStep {
        let step = self.check(name, metadata.kind == EntryKind::File).and_then(|directory| {
            if let Some(present) = self.present(&directory, name, metadata)? {
                return Ok(FileStep::Present(present));
            }
            Ok(FileStep::New(self.new_file(directory, name, metadata)?))
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
                self.report.fail(std::mem::take(&mut new.path), error);
                false
            }
        };
        drop(new);
        self.sweep();
        made
    }

    /// Removes a new file and notes why its content is not available.
    pub fn give_up(&mut self, mut new: NewFile, error: Error) {
        self.report.fail(std::mem::take(&mut new.path), error);
        drop(new);
        self.sweep();
    }

    /// Keeps an existing file and sets its attributes. Returns `false` if that failed.
    pub fn keep(&mut self, present: PresentFile) -> bool {
        let PresentFile { file, name, metadata, .. } = present;
        let file = file.into_fd();
        clear_flags(&file, IMMUTABLE | APPEND);
        let applied = Handle::Open(&file).apply(&metadata, &self.options, &mut self.report.missing);
        if applied.is_ok() {
            let path = [&self.path, &*name].concat();
            self.set_or_defer_flags(&file, &metadata, &path);
        }
        self.made(&name, applied)
    }

    /// Begins a new file that replaces an existing one. `None` if that failed.
    pub fn renew(&mut self, present: &PresentFile) -> Option<NewFile> {
        let made = self
            .check_name(&present.name)
            .and_then(|directory| self.new_file(directory, &present.name, &present.metadata));
        made.map_err(|error| self.fail(&present.name, error)).ok()
    }

    /// Returns the existing file with this name if it can be kept. Fails if it exists and may not
    /// be replaced.
    fn present(
        &self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<Option<PresentFile>> {
        let failed = |error: Errno| Error::io("reading the existing entry", error.into());
        let status = match status_at(&**directory, name) {
            Ok(status) => status,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        self.may_replace(&status)?;
        // If only one of the two has hard links, the file is replaced: other names of the existing
        // file may be outside of the target.
        let may_stay = |now: &Metadata| {
            now.kind == EntryKind::File
                && now.size == metadata.size
                && now.modified == metadata.modified
                && (now.links == 1) == (metadata.links == 1)
        };
        if self.options.existing != Existing::KeepIfSame || !may_stay(&status.metadata) {
            return Ok(None);
        }
        // A file that cannot be read is replaced.
        let Ok(file) = open_at(&**directory, name, OFlags::empty()) else { return Ok(None) };
        let status = status_of(&file).map_err(failed)?;
        Ok(may_stay(&status.metadata).then(|| PresentFile {
            file: OpenFile::new(file),
            name: name.to_vec(),
            metadata: metadata.clone(),
        }))
    }

    fn new_file(
        &mut self,
        directory: Arc<OwnedFd>,
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<NewFile> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = std::cell::Cell::new(None);
        let temporary = self.temporary(|name| {
            openat(&*directory, name, flags, Mode::RUSR | Mode::WUSR)
                .map(|file| opened.set(Some(file)))
        })?;
        let Some(file) = opened.take() else { return Err(Error::invalid("no file was made")) };
        set_early_flags(&file, metadata, &self.options);
        let new = NewFile {
            file: Some(file.into()),
            directory,
            temporary,
            path: [&self.path, name].concat(),
            name: name.to_vec(),
            metadata: metadata.clone(),
            _open: self.frames.last().map(|frame| frame.open.clone()).unwrap_or_default(),
        };
        if let Some(file) = &new.file {
            ftruncate(file, metadata.size)
                .map_err(|error| Error::io("setting the size", error.into()))?;
        }
        Ok(new)
    }

    fn complete_file(&mut self, new: &mut NewFile) -> Result<()> {
        let Some(file) = new.file.take() else { return Ok(()) };
        let file = OwnedFd::from(file);
        let applied =
            Handle::Open(&file).apply(&new.metadata, &self.options, &mut self.report.missing);
        // Even without some attribute, the content is worth keeping.
        if let Err(error) = publish(&new.directory, &new.temporary, &new.name) {
            // Dropping it removes the temporary name.
            new.file = Some(file.into());
            return Err(error);
        }
        self.set_or_defer_flags(&file, &new.metadata, &new.path);
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
