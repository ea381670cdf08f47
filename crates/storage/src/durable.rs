//! Publishes files so that they survive a power failure. Only this module syncs and renames.
//!
//! A file is written under a temporary name, synced, moved to its own name in one step, and the
//! folder that holds the name is synced. Before the move nothing is visible under the name,
//! afterwards the whole file is. New folders are synced into their parents before anything is put
//! there.
#![expect(clippy::disallowed_methods, reason = "the lint directs all other code to this module")]

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

use crate::direct::{AlignedBuffer, DIRECT_ALIGNMENT, DirectFile, PIECES_PER_WRITE_MAX};

/// Files of at least this size are written past the page cache, in writes of this size.
const DIRECT_BYTES_MIN: usize = 1 << 20;

/// Maximum number of names tried for one temporary file.
const TEMP_NAMES_TRIED_MAX: u32 = 10_000;

/// Maximum number of folders remembered as durable; then all are forgotten and checked again.
const FOLDERS_REMEMBERED_MAX: usize = 1 << 16;

/// A file under a temporary name, mode 0600, removed when dropped unpublished.
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
    file: File,
    published: bool,
}

impl TempFile {
    /// Creates an empty file in `folder`, which must exist on the file system of the target.
    pub fn create_in(folder: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut tried = 0;
        loop {
            // The process id may occur again, on another host or after a crash, so retry.
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

    /// The file, for writing without [`TempFile::write_pieces`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of the file until it is published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the pieces in order, without copying them into one buffer.
    pub fn write_pieces(&mut self, pieces: &[&[u8]]) -> Result<()> {
        write_pieces(&mut self.file, pieces)
            .map_err(|error| before_publishing("write", &self.path, error))
    }

    /// Writes the whole file, which must be empty. Large files bypass the page cache, through the
    /// buffer `spare`, which is allocated when first needed.
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

    /// Publishes the file as `target` without syncing. Fails with `AlreadyExists` if that exists.
    pub fn publish_transient(mut self, target: &Path) -> Result<()> {
        place_new(&self.path, target, rename_new)?;
        self.published = true;
        Ok(())
    }

    /// Renames the file to `target`, replacing an existing file, without syncing: for files that
    /// prove their content and that may be lost.
    ///
    /// After a power failure, `target` may be the old file, the new one, or a damaged one.
    pub fn replace_transient(mut self, target: &Path) -> Result<()> {
        place_replacing(&self.path, target)?;
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
            // A leftover file only wastes space; the error that led here matters more.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Waits until the file's bytes and size are on stable storage.
///
/// After an error the kernel may have dropped unwritten data: a second sync proves nothing, and the
/// file must be written again.
pub fn sync_file(file: &File) -> Result<()> {
    file.sync_all().map_err(|error| Error::io("sync a file", error))
}

/// Waits until the names in `folder` are on stable storage.
pub fn sync_folder(folder: &Path) -> Result<()> {
    match File::open(folder).and_then(|opened| opened.sync_all()) {
        // Some network file systems do not support this; there the server decides how durable names
        // are.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        Err(error) => Err(Error::io(format!("sync folder {}", folder.display()), error)),
        Ok(()) => Ok(()),
    }
}

/// Syncs `temp` and atomically renames it to `target`, if that does not exist; then syncs the name.
///
/// Both must be on one file system. Fails with `AlreadyExists` if `target` exists, whose name is
/// then durable too. After any error `temp` is gone; `target` is published only if the error says
/// so.
pub fn publish_new(temp: &Path, target: &Path) -> Result<()> {
    removing_on_failure(temp, || {
        sync_path(temp)?;
        place_new(temp, target, rename_new)
    })?;
    sync_name(target)
}

/// Syncs `temp` and atomically renames it to `target`, replacing an existing file; then syncs the
/// name.
///
/// Both must be on one file system. After any error `temp` is gone; `target` is replaced only if
/// the error says so.
pub fn publish_replacing(temp: &Path, target: &Path) -> Result<()> {
    removing_on_failure(temp, || {
        sync_path(temp)?;
        place_replacing(temp, target)
    })?;
    sync_name(target)
}

/// Creates `folder` and its missing parents, durably, mode 0700.
pub fn create_folders(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)
        .map_err(|error| Error::io(format!("find folder {}", folder.display()), error))?;
    let mut missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.is_dir()).collect();
    let topmost = missing.last().and_then(|path| path.parent()).unwrap_or(&folder);
    // An earlier attempt may have created it and been interrupted before the sync.
    match sync_folder(parent(topmost)) {
        // Then a more privileged user created it, not an earlier attempt of ours.
        Err(error) if error.kind() == ErrorKind::Denied => {}
        synced => synced?,
    }
    while let Some(next) = missing.pop() {
        create_folder(next)?;
    }
    Ok(())
}

/// Creates folders below a root, durably, and remembers which ones are durable.
#[derive(Debug)]
pub struct Folders {
    root: PathBuf,
    durable: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    /// Creates folders below `root`, which must exist. It is never created, so that an unmounted
    /// disk is not mistaken for an empty one.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), durable: Mutex::new(HashSet::new()) }
    }

    /// Creates `folder`, a path below the root, and its parents up to the root, if missing.
    ///
    /// After it has returned, the folder survives a power failure, whichever process created it.
    /// Fails with `Invalid` if a file has this name.
    pub fn ensure(&self, folder: &Path) -> Result<()> {
        if self.durable().contains(folder) {
            return Ok(());
        }
        let mut missing: Vec<&Path> =
            folder.ancestors().take_while(|path| *path != self.root).collect();
        while let Some(next) = missing.pop() {
            // Even an existing folder is synced once: its creator may not have done so yet.
            if !self.durable().contains(next) {
                create_folder(next)?;
                self.remember(next);
            }
        }
        Ok(())
    }

    /// Creates `folder`, a path below the root, if it is missing; a power failure may remove it.
    pub fn ensure_transient(&self, folder: &Path) -> Result<()> {
        if self.durable().contains(folder) || folder.is_dir() {
            return Ok(());
        }
        // Nothing is created below a missing root: `ensure` reports the error.
        self.ensure(folder)
    }

    /// Forgets every folder, so that [`Folders::ensure`] creates removed ones again.
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

/// Creates one folder and syncs its name; an existing one is fine.
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
            let message =
                format!("cannot create folder {}: a file has this name", folder.display());
            return Err(Error::invalid(message).with_source(error));
        }
        Err(error) => return Err(before_publishing("create folder", folder, error)),
    }
    sync_folder(parent(folder))
}

fn write_pieces(file: &mut File, pieces: &[&[u8]]) -> io::Result<()> {
    for group in pieces.chunks(PIECES_PER_WRITE_MAX) {
        // Empty pieces are removed: a write of only empty pieces returns zero, which means failure.
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

/// What can be written past the page cache from where it is: whole blocks of aligned pieces, from
/// the first one on. And what is left behind them.
fn split_aligned<'p>(pieces: &[&'p [u8]]) -> [Vec<&'p [u8]>; 2] {
    let (mut blocks, mut rest) = (Vec::new(), Vec::new());
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let is_aligned = rest.is_empty() && piece.as_ptr().align_offset(DIRECT_ALIGNMENT) == 0;
        let whole = if is_aligned { piece.len() / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT } else { 0 };
        let (whole, end) = piece.split_at(whole);
        blocks.extend(Some(whole).filter(|whole| !whole.is_empty()));
        rest.extend(Some(end).filter(|end| !end.is_empty()));
    }
    [blocks, rest]
}

/// Writes the pieces past the page cache, those that are not aligned through an aligned buffer, and
/// the unaligned end normally.
fn write_direct(
    file: &mut File,
    direct: &DirectFile,
    pieces: &[&[u8]],
    buffer: &mut AlignedBuffer,
) -> io::Result<()> {
    let [blocks, mut behind] = split_aligned(pieces);
    let mut offset = blocks.iter().map(|block| block.len() as u64).sum();
    if !direct.write_pieces_at(&blocks, 0)? {
        (behind, offset) = (pieces.to_vec(), 0);
    }
    let mut filled = 0;
    for mut rest in behind {
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

/// Renames `temp` to `target` unless that exists. Syncs nothing except the name of an existing
/// `target`.
fn place_new(temp: &Path, target: &Path, rename: Rename) -> Result<()> {
    let placed = match rename(temp, target) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => link_new(temp, target),
        renamed => renamed.map_err(io::Error::from),
    };
    match placed {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // The caller will rely on the existing file, whose creator may not have synced it yet.
            sync_folder(parent(target))?;
            let message = format!("{} already exists", target.display());
            Err(Error::new(ErrorKind::AlreadyExists, message))
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the file system of {} supports neither rename without replacement nor hard links; \
                 choose another file system",
                parent(target).display()
            ),
        )
        .with_source(error)),
        Err(error) => Err(before_publishing("publish", target, error)),
    }
}

/// Renames through a hard link, which never replaces, on file systems without such a rename.
fn link_new(temp: &Path, target: &Path) -> io::Result<()> {
    match fs::hard_link(temp, target) {
        Ok(()) => {}
        // A network file system may repeat a request whose response was lost, and find our own
        // link.
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
    // The file is published; a leftover second name is only a stale temporary file.
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
        format!("{} was written, but may not survive a power failure", target.display())
    })
}

fn removing_on_failure(temp: &Path, publish: impl FnOnce() -> Result<()>) -> Result<()> {
    publish().inspect_err(|_| {
        // The original error matters more than a leftover file.
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

/// An error that occurred before anything was visible under the target's name.
fn before_publishing(action: &str, path: &Path, error: io::Error) -> Error {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        let folder = parent(path).display();
        let message = format!(
            "no space left in {folder}; nothing was changed. Free some space and run this again"
        );
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    }
    Error::io(format!("{action} {}", path.display()), error)
}
