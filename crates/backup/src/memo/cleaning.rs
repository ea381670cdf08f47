//! Removes files of volumes that are no longer backed up.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use silt_format::{Error, Result};

/// A file that no backup has used for so long is removed, and sooner the ones before the newest
/// [`BYTES_MAX`].
const AGE_MAX_S: i64 = 90 * 24 * 3600;
/// The files of disks of 64 TiB together.
const BYTES_MAX: u64 = 1 << 30;
/// Interrupted backups leave temporary files, whose names begin so.
const TEMPORARY: &[u8] = b".";
const TEMPORARY_AGE_MAX_S: i64 = 24 * 3600;
/// Bytes of a block in the file system's count.
const BLOCK_BYTES: u64 = 512;

struct Found {
    path: PathBuf,
    age_s: i64,
    bytes: u64,
}

/// Removes old files beside `newest`, which is never removed.
pub(super) fn clean(newest: &Path, now_ns: i64) -> Result<()> {
    let Some(folder) = newest.parent() else { return Ok(()) };
    let failed = |error| Error::io(format!("clean {}", folder.display()), error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Another process may have removed it.
        let Ok(metadata) = entry.metadata() else { continue };
        let age_s = (now_ns / 1_000_000_000).saturating_sub(metadata.mtime());
        let bytes = metadata.blocks().saturating_mul(BLOCK_BYTES);
        found.push(Found { path: entry.path(), age_s, bytes });
    }
    found.sort_by_key(|file| file.age_s);
    let mut bytes = 0_u64;
    for file in found.iter().filter(|file| file.path != newest) {
        let name = file.path.file_name().unwrap_or_default().as_encoded_bytes();
        let age_max_s = if name.starts_with(TEMPORARY) { TEMPORARY_AGE_MAX_S } else { AGE_MAX_S };
        bytes = bytes.saturating_add(file.bytes);
        let is_old = file.age_s > age_max_s || (bytes > BYTES_MAX && !name.starts_with(TEMPORARY));
        if is_old
            && let Err(error) = fs::remove_file(&file.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(failed(error));
        }
    }
    Ok(())
}
