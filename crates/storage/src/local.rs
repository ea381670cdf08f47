//! Objects as files in a folder.

mod reserve;
mod walk;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result, ResultExt};

use crate::direct::AlignedBuffer;
use crate::durable::{self, Folders, TempFile};
use crate::storage::{already_exists, name_in_the_way, not_found};
use crate::{ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage};

/// Enough for the processors of a small machine and a disk that searches, few enough for a folder
/// on the network.
const REQUESTS_AT_ONCE: usize = 4;
/// The folder of files that are not published yet; no key begins with a dot.
const TEMP_FOLDER: &str = ".tmp";

/// The age at which a temporary file counts as left by a crash.
const STALE_AGE: Duration = Duration::from_hours(24);

/// Objects as files (mode 0600) below a folder (mode 0700), each at the path that is its name.
///
/// Files whose names cannot be keys are ignored. Several processes and hosts may use one folder
/// concurrently. Empty folders are not removed.
#[derive(Debug)]
pub struct LocalStorage {
    root: PathBuf,
    folders: Folders,
    sweep: Once,
    /// The buffer of direct writes, while not in use.
    spare: Mutex<Option<AlignedBuffer>>,
}

impl LocalStorage {
    /// Creates a storage in a folder that does not exist or is empty.
    ///
    /// Fails with `AlreadyExists` if the folder is not empty, with `Invalid` if `path` is not a
    /// folder.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let root = absolute(path.as_ref())?;
        match fs::metadata(&root) {
            Ok(found) if !found.is_dir() => return Err(not_a_folder(&root)),
            Ok(_) => check_empty(&root)?,
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed("look at", &root, error)),
        }
        durable::create_folders(&root)?;
        let storage = Self::at(root);
        // Fails now without permission to write.
        storage.temp_folder()?;
        reserve::keep(&storage.root);
        Ok(storage)
    }

    /// Opens the storage in an existing folder, without writing to it.
    ///
    /// Fails with `NoRepository` if the folder does not exist, with `Invalid` if `path` is not a
    /// folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let root = absolute(path.as_ref())?;
        match fs::metadata(&root) {
            Ok(found) if found.is_dir() => Ok(Self::at(root)),
            Ok(_) => Err(not_a_folder(&root)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                let message = format!("folder {} does not exist", root.display());
                Err(Error::new(ErrorKind::NoRepository, message))
            }
            Err(error) => Err(failed("open", &root, error)),
        }
    }

    fn at(root: PathBuf) -> Self {
        let folders = Folders::below(root.clone());
        Self { folders, root, sweep: Once::new(), spare: Mutex::new(None) }
    }

    fn path_of(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn temp_folder(&self) -> Result<PathBuf> {
        let folder = self.root.join(TEMP_FOLDER);
        self.folders.ensure_transient(&folder)?;
        self.sweep.call_once(|| {
            // This only frees space; a failure must not prevent writing.
            let _ = remove_stale(&folder);
        });
        Ok(folder)
    }

    fn write(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        let target = self.path_of(key);
        let folder = target.parent().unwrap_or(&self.root);
        if mode == PutMode::CreateTransient {
            self.folders.ensure_transient(folder)?;
            let mut temp = TempFile::create_in(&self.temp_folder()?)?;
            temp.write_pieces(body)?;
            return temp.publish_transient(&target);
        }
        self.folders.ensure(folder)?;
        if fs::symlink_metadata(&target).is_ok() {
            // Avoids writing the body again; the name must be durable, as after a lost race.
            durable::sync_folder(folder)?;
            return Err(already_exists(key, &self.describe()));
        }
        let mut temp = TempFile::create_in(&self.temp_folder()?)?;
        // If another thread uses it, a new buffer is allocated for this object.
        let mut spare = self.spare.try_lock().map_or(None, |mut spare| spare.take());
        temp.write_whole(body, &mut spare)?;
        if let Ok(mut kept) = self.spare.try_lock() {
            *kept = spare;
        }
        temp.publish_new(&target)
    }

    /// Returns the error for a missing file, or for a missing folder.
    fn missing(&self, key: &Key) -> Error {
        self.check_root().err().unwrap_or_else(|| not_found(key, &self.describe()))
    }

    /// An unmounted disk must not look like a repository without objects.
    fn check_root(&self) -> Result<()> {
        match fs::metadata(&self.root) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(not_a_folder(&self.root)),
            Err(error) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("folder {} is gone; is its disk mounted?", self.root.display()),
            )
            .with_source(error)),
        }
    }

    fn read(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        let path = self.path_of(key);
        let mut file = File::open(&path).map_err(|error| self.read_error(key, error))?;
        let found = file.metadata().map_err(|error| self.read_error(key, error))?;
        if !found.is_file() {
            return Err(self.missing(key));
        }
        let range = range.resolve(key, found.len()).context(|| self.describe())?;
        let length = range.end - range.start;
        if let Ok(bytes) = usize::try_from(length) {
            into.reserve_exact(bytes);
        }
        if range.start > 0 {
            file.seek(SeekFrom::Start(range.start)).map_err(|error| self.read_error(key, error))?;
        }
        file.take(length).read_to_end(into).map_err(|error| self.read_error(key, error))?;
        if into.len() as u64 != length {
            return Err(Error::corrupt(format!(
                "object {key} in {} was shortened while it was read: {} of {length} bytes at \
                 offset {} are left",
                self.root.display(),
                into.len(),
                range.start
            )));
        }
        Ok(())
    }

    fn read_error(&self, key: &Key, error: io::Error) -> Error {
        if is_absent(&error) {
            return self.missing(key);
        }
        Error::io(format!("read object {key} in {}", self.root.display()), error)
    }
}

impl Storage for LocalStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        let pieces: Vec<&[u8]> = body.iter().map(|piece| &piece[..]).collect();
        let mut written = self.write(key, &pieces, mode);
        if matches!(&written, Err(error) if error.kind() == ErrorKind::NotFound) {
            // Another process removed a folder that was known to exist; look everything up again.
            self.check_root()?;
            self.folders.forget();
            written = self.write(key, &pieces, mode);
        }
        if matches!(&written, Err(error) if reserve::is_full(error)) && reserve::is_for(key) {
            let _released = reserve::release(&self.root);
            written = self.write(key, &pieces, mode);
        }
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists if self.path_of(key).is_dir() => {
                name_in_the_way(key, "a folder of that name", &self.describe()).with_source(error)
            }
            ErrorKind::AlreadyExists => already_exists(key, &self.describe()),
            _ => error.context(format!("create object {key} in {}", self.root.display())),
        })
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        self.read(key, range, into).inspect_err(|_| into.clear())
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.head(key)?;
        let path = self.path_of(key);
        let folder = path.parent().unwrap_or(&self.root);
        // The bytes were synced before the name was given, but the name and its folder may not be
        // durable yet.
        self.folders.ensure(folder)?;
        durable::sync_folder(folder)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let found = fs::metadata(self.path_of(key)).map_err(|error| self.read_error(key, error))?;
        if !found.is_file() {
            return Err(self.missing(key));
        }
        let since_1970 = found.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(ObjectMeta {
            size: found.len(),
            modified_ms: since_1970.and_then(|age| u64::try_from(age.as_millis()).ok()),
        })
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        let mut folders: Vec<PathBuf> = Vec::new();
        for key in keys {
            let path = self.path_of(key);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if is_absent(&error) || path.is_dir() => self.check_root()?,
                Err(error) => {
                    let what = format!("delete object {key} in {}", self.root.display());
                    return Err(Error::io(what, error));
                }
            }
            // Also if it was already gone: its remover may not have synced yet.
            folders.extend(path.parent().filter(|folder| folder.is_dir()).map(Path::to_owned));
        }
        folders.sort_unstable();
        folders.dedup();
        folders.iter().try_for_each(|folder| durable::sync_folder(folder))?;
        reserve::keep(&self.root);
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let page = walk::list(&self.root, prefix, after)?;
        if page.objects.is_empty() {
            self.check_root()?;
        }
        Ok(page)
    }

    fn requests_at_once(&self) -> usize {
        REQUESTS_AT_ONCE
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

/// Fails if `root` holds anything other than files left by a file system or an interrupted
/// creation.
fn check_empty(root: &Path) -> Result<()> {
    const SHOWN_MAX: usize = 3;
    let mut names = Vec::new();
    for entry in fs::read_dir(root).map_err(|error| failed("list", root, error))? {
        let name = entry.map_err(|error| failed("list", root, error))?.file_name();
        if name != TEMP_FOLDER && name != reserve::RESERVE && name != "lost+found" {
            names.push(name.to_string_lossy().into_owned());
        }
        if names.len() > SHOWN_MAX {
            break;
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    names.sort_unstable();
    let more = if names.len() > SHOWN_MAX { " and more" } else { "" };
    names.truncate(SHOWN_MAX);
    Err(Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "folder {} is not empty: it contains {}{more}; choose an empty or a new one",
            root.display(),
            names.join(", ")
        ),
    ))
}

/// Removes temporary files that no running process can still be writing.
fn remove_stale(folder: &Path) -> Result<()> {
    let list = || fs::read_dir(folder).map_err(|error| failed("list", folder, error));
    if list()?.next().is_none() {
        return Ok(());
    }
    // Files carry the time of the file system's clock, which may be another host's, so compare with
    // that.
    let fresh = TempFile::create_in(folder)?;
    let now = fresh
        .file()
        .metadata()
        .and_then(|found| found.modified())
        .map_err(|error| failed("look at", fresh.path(), error))?;
    for entry in list()? {
        let entry = entry.map_err(|error| failed("list", folder, error))?;
        // A file that is gone by now was published, or removed by another process.
        let Ok(modified) = entry.metadata().and_then(|found| found.modified()) else { continue };
        if now.duration_since(modified).is_ok_and(|age| age > STALE_AGE) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Whether a failed lookup means that the file does not exist.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| failed("find", path, error))
}

fn failed(action: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{action} {}", path.display()), error)
}

fn not_a_folder(path: &Path) -> Error {
    Error::invalid(format!("{} is not a folder", path.display()))
}
