//! Publishing files so that they survive a power failure: the one place that syncs and renames.
//!
//! A file is written under a temporary name, synced, moved to its own name in one step, and the
//! folder that holds the name is synced. Until the move nothing is visible under the name, after
//! it all of the file is; new folders are synced into their parents before anything is put there.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the module that the lint points everybody else to"
)]

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use silt_format::{Error, ErrorKind, Result, ResultExt};

use crate::direct::{AlignedBuffer, DIRECT_ALIGNMENT, DirectFile};

/// From this size on a file is written past the page cache, in writes of this size.
const DIRECT_BYTES_MIN: usize = 1 << 20;

/// Pieces per write call; the kernel takes no more (`IOV_MAX`).
const PIECES_PER_WRITE_MAX: usize = 1024;

/// Names tried for one temporary file before something must be wrong.
const TEMP_NAMES_TRIED_MAX: u32 = 10_000;

/// Folders remembered as durable before all are forgotten and looked at anew.
const FOLDERS_REMEMBERED_MAX: usize = 1 << 16;

/// A file under a temporary name, mode 0600, removed when dropped unpublished.
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
    file: File,
    published: bool,
}

impl TempFile {
    /// Makes an empty file in `folder`, which must exist, on the file system of the target.
    pub fn create_in(folder: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut tried = 0;
        loop {
            // The process id may come again, on another host or after a crash: hence the retries.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".silt-{}-{number}", std::process::id()));
            tried += 1;
            let opened =
                OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
            match opened {
                Ok(file) => return Ok(Self { path, file, published: false }),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && tried < TEMP_NAMES_TRIED_MAX => {}
                Err(error) => return Err(before_publishing("create", &path, error)),
            }
        }
    }

    /// The file, for writing by other means than [`TempFile::write_pieces`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the file is until it is published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the pieces in order, without copying them into one buffer.
    pub fn write_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        write_pieces(&mut self.file, pieces)
            .map_err(|error| before_publishing("write", &self.path, error))
    }

    /// Writes all of the file, which is still empty, and past the page cache if it is large:
    /// through `spare` then, a buffer that is made when it is first needed.
    pub fn write_whole(
        &mut self,
        pieces: &[&[u8]],
        spare: &mut Option<AlignedBuffer>,
    ) -> Result<()> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let direct = (bytes >= DIRECT_BYTES_MIN).then(|| DirectFile::open(&self.file)).flatten();
        match direct {
            Some(direct) => {
                let buffer = spare.get_or_insert_with(|| AlignedBuffer::new(DIRECT_BYTES_MIN));
                write_direct(&mut self.file, &direct, pieces, buffer)
            }
            None => write_pieces(&mut self.file, pieces),
        }
        .map_err(|error| before_publishing("write", &self.path, error))
    }

    /// Syncs the file and publishes it as `target`, as [`publish_new`] does.
    pub fn publish_new(mut self, target: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| before_publishing("sync", &self.path, error))?;
        place_new(&self.path, target, rename_new)?;
        self.published = true;
        sync_name(target)
    }

    /// Publishes the file as `target` without syncing anything; `AlreadyExists` if that is there.
    pub fn publish_transient(mut self, target: &Path) -> Result<()> {
        place_new(&self.path, target, rename_new)?;
        self.published = true;
        Ok(())
    }

    /// Syncs the file and publishes it as `target`, as [`publish_replacing`] does.
    pub fn publish_replacing(mut self, target: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| before_publishing("sync", &self.path, error))?;
        place_replacing(&self.path, target)?;
        self.published = true;
        sync_name(target)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            // What stays behind wastes space and nothing else; the error that led here matters.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Waits until the file's bytes and size are on stable storage.
///
/// After an error the kernel may have dropped what it could not write: a second sync proves
/// nothing, the file must be written anew.
pub fn sync_file(file: &File) -> Result<()> {
    file.sync_all().map_err(|error| Error::io("sync a file", error))
}

/// Waits until the names in `folder` are on stable storage.
pub fn sync_folder(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|opened| opened.sync_all()) {
        // Some network file systems have no such operation; names there are as durable as the
        // server makes them.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        Err(error) => Err(Error::io(format!("sync folder {}", folder.display()), error)),
        Ok(()) => Ok(()),
    }
}

/// Syncs `temp` and moves it to the name `target` in one step, if nothing is there; then syncs
/// the name.
///
/// Both must be on one file system. `AlreadyExists` if `target` is there, whose name is durable
/// then too. After any error `temp` is gone; only an error that says so leaves `target` published.
pub fn publish_new(temp: &Path, target: &Path) -> Result<()> {
    removing_on_failure(temp, || {
        sync_path(temp)?;
        place_new(temp, target, rename_new)
    })?;
    sync_name(target)
}

/// Syncs `temp` and moves it to the name `target` in one step, replacing what is there; then
/// syncs the name.
///
/// Both must be on one file system. After any error `temp` is gone; only an error that says so
/// leaves `target` replaced.
pub fn publish_replacing(temp: &Path, target: &Path) -> Result<()> {
    removing_on_failure(temp, || {
        sync_path(temp)?;
        place_replacing(temp, target)
    })?;
    sync_name(target)
}

/// Makes `folder` and whichever of its parents are missing, durably, mode 0700.
pub fn create_folders(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)
        .map_err(|error| Error::io(format!("find folder {}", folder.display()), error))?;
    let mut missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.is_dir()).collect();
    let topmost = missing.last().and_then(|path| path.parent()).unwrap_or(&folder);
    // An earlier attempt may have made it and been cut off before the sync.
    match sync_folder(parent(topmost)) {
        // Then it was made by somebody with more rights, and not by an attempt of ours.
        Err(error) if error.kind() == ErrorKind::Denied => {}
        synced => synced?,
    }
    while let Some(next) = missing.pop() {
        create_folder(next)?;
    }
    Ok(())
}

/// Makes folders below a root, durably, and remembers which it need not look at again.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    durable: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    /// Folders below `root`, which must exist: it is never made, lest an unmounted disk be
    /// mistaken for an empty one.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), durable: Mutex::new(HashSet::new()) }
    }

    /// Makes `folder`, a path below the root, and its parents up to the root, if missing.
    ///
    /// Once it has returned, the folder survives a power failure, whoever made it. `Invalid` if
    /// a file is in the way.
    pub fn ensure(&self, folder: &Path) -> Result<()> {
        if self.durable().contains(folder) {
            return Ok(());
        }
        let mut missing: Vec<&Path> =
            folder.ancestors().take_while(|path| *path != self.root).collect();
        while let Some(next) = missing.pop() {
            // Even a folder that is there is synced once: its maker may not have come to it yet.
            if !self.durable().contains(next) {
                create_folder(next)?;
                self.remember(next);
            }
        }
        Ok(())
    }

    /// Makes `folder`, a path below the root, if it is missing; a power failure may take it away.
    pub fn ensure_transient(&self, folder: &Path) -> Result<()> {
        if self.durable().contains(folder) || folder.is_dir() {
            return Ok(());
        }
        // Below a missing root nothing is made: `ensure` says what is wrong.
        self.ensure(folder)
    }

    /// Forgets every folder, so that [`Folders::ensure`] makes those that were removed.
    pub fn forget(&self) {
        self.durable().clear();
    }

    fn remember(&self, folder: &Path) {
        let mut durable = self.durable();
        if durable.len() >= FOLDERS_REMEMBERED_MAX {
            durable.clear();
        }
        durable.insert(folder.to_owned());
    }

    fn durable(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        // A set of paths has no half-done state.
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes one folder and syncs its name; fine if it is there.
fn create_folder(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory
            ) =>
        {
            let message = format!("{} cannot be a folder: a file is in the way", folder.display());
            return Err(Error::invalid(message).with_source(error));
        }
        Err(error) => return Err(before_publishing("create folder", folder, error)),
    }
    sync_folder(parent(folder))
}

fn write_pieces(file: &mut File, pieces: &[&[u8]]) -> io::Result<()> {
    for group in pieces.chunks(PIECES_PER_WRITE_MAX) {
        // Empty pieces go: with none but those a write returns zero, which means failure.
        let mut slices: Vec<IoSlice<'_>> = group
            .iter()
            .filter(|piece| !piece.is_empty())
            .map(|piece| IoSlice::new(piece))
            .collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match file.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Writes the pieces through an aligned buffer past the page cache, and their end as usual.
fn write_direct(
    file: &mut File,
    direct: &DirectFile,
    pieces: &[&[u8]],
    buffer: &mut AlignedBuffer,
) -> io::Result<()> {
    let (mut filled, mut offset) = (0, 0);
    for piece in pieces {
        let mut rest = *piece;
        if filled == 0 && rest.len() >= buffer.len() {
            // Whole blocks go as they lie, if they lie well.
            let (whole, end) = rest.split_at(rest.len() / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT);
            if direct.write_all_at(whole, offset)? {
                (rest, offset) = (end, offset + whole.len() as u64);
            }
        }
        while !rest.is_empty() {
            let count = rest.len().min(buffer.len() - filled);
            let (now, later) = rest.split_at(count);
            buffer[filled..filled + count].copy_from_slice(now);
            (filled, rest) = (filled + count, later);
            if filled == buffer.len() {
                if !direct.write_all_at(buffer, offset)? {
                    file.write_all_at(buffer, offset)?;
                }
                (filled, offset) = (0, offset + buffer.len() as u64);
            }
        }
    }
    let aligned = filled / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
    let (whole, end) = buffer[..filled].split_at(aligned);
    if !direct.write_all_at(whole, offset)? {
        file.write_all_at(whole, offset)?;
    }
    file.write_all_at(end, offset + aligned as u64)
}

type Rename = fn(&Path, &Path) -> rustix::io::Result<()>;

fn rename_new(temp: &Path, target: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, temp, CWD, target, RenameFlags::NOREPLACE)
}

/// Moves `temp` to `target` unless that exists; nothing is synced but a name found there.
fn place_new(temp: &Path, target: &Path, rename: Rename) -> Result<()> {
    let placed = match rename(temp, target) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => link_new(temp, target),
        renamed => renamed.map_err(io::Error::from),
    };
    match placed {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Whoever sees it as existing will rely on it, and its maker may not have synced yet.
            sync_folder(parent(target))?;
            let message = format!("{} already exists", target.display());
            Err(Error::new(ErrorKind::AlreadyExists, message))
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the file system of {} can neither rename without replacing nor make hard links; \
                 choose a folder on another one",
                parent(target).display()
            ),
        )
        .with_source(error)),
        Err(error) => Err(before_publishing("publish", target, error)),
    }
}

/// Moves by a second name, which never replaces, where the file system knows no such rename.
fn link_new(temp: &Path, target: &Path) -> io::Result<()> {
    match fs::hard_link(temp, target) {
        Ok(()) => {}
        // A network file system may repeat a request whose answer was lost, and find our own link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !is_same_file(temp, target)? {
                return Err(error);
            }
        }
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::PERM | Errno::NOSYS | Errno::NOTSUP)
            ) =>
        {
            return Err(io::Error::new(io::ErrorKind::Unsupported, error));
        }
        Err(error) => return Err(error),
    }
    // Published it is; a second name left behind is one more stale temporary file.
    let _ = fs::remove_file(temp);
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (fs::symlink_metadata(one)?, fs::symlink_metadata(other)?);
    Ok(one.dev() == other.dev() && one.ino() == other.ino())
}

fn place_replacing(temp: &Path, target: &Path) -> Result<()> {
    fs::rename(temp, target).map_err(|error| before_publishing("publish", target, error))
}

fn sync_path(temp: &Path) -> Result<()> {
    File::open(temp)
        .and_then(|file| file.sync_all())
        .map_err(|error| before_publishing("sync", temp, error))
}

fn sync_name(target: &Path) -> Result<()> {
    sync_folder(parent(target)).context(|| {
        format!("{} is published, but may not survive a power failure", target.display())
    })
}

fn removing_on_failure(temp: &Path, publish: impl FnOnce() -> Result<()>) -> Result<()> {
    publish().inspect_err(|_| {
        // The error that led here matters more than a file that wastes space.
        let _ = fs::remove_file(temp);
    })
}

/// The folder that holds the name of `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// An error met while nothing is visible under the target's name yet.
fn before_publishing(action: &str, path: &Path, error: io::Error) -> Error {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        let folder = parent(path).display();
        let message =
            format!("no space left in {folder}; free some and run again: nothing was changed");
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    }
    Error::io(format!("{action} {}", path.display()), error)
}
