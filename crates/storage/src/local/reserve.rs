//! Space reserved on a disk, so that deletions can still be recorded when it is full.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use silt_format::Error;

use crate::Key;

/// The file that holds the reserve; no key begins with a dot.
pub(super) const RESERVE: &str = ".reserve";

/// Size of the reserve in bytes: enough for the heads, leases and dead lists of a deletion and a
/// reclaim.
const RESERVE_BYTES: usize = 2 << 20;

/// Whether an object may use the reserve: only those kinds that deletions need.
pub(super) fn is_for(key: &Key) -> bool {
    ["state/", "dead/", "root/"].iter().any(|prefix| key.as_str().starts_with(prefix))
}

/// Whether an operation failed because the disk is full.
pub(super) fn is_full(error: &Error) -> bool {
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    })
}

/// Held while the reserve is released and used, or made again: tasks of one process that write at
/// once would take the room from each other. One for all folders: rarely are several full.
static IN_USE: Mutex<()> = Mutex::new(());

/// The reserve is released, and no other task of this process makes or releases one.
pub(super) struct Released {
    _in_use: MutexGuard<'static, ()>,
}

/// Releases the reserve, if nobody else has.
pub(super) fn release(root: &Path) -> Released {
    let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    drop(fs::remove_file(root.join(RESERVE)));
    Released { _in_use: in_use }
}

/// Creates the reserve again if there is space. A failure is ignored; the next call tries again.
pub(super) fn keep(root: &Path) {
    let path = root.join(RESERVE);
    if fs::symlink_metadata(&path).is_ok() {
        return;
    }
    let _in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if !has_room(root) {
        return;
    }
    match fill(&path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(_) => drop(fs::remove_file(&path)),
        Ok(()) => {}
    }
}

/// Whether a file system has room for the reserve and as much besides: filling the rest of a disk
/// would take the room that another process has just released for itself.
fn has_room(root: &Path) -> bool {
    let Ok(found) = rustix::fs::statvfs(root) else { return true };
    found.f_bavail.saturating_mul(found.f_frsize) >= 2 * RESERVE_BYTES as u64
}

fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // Bytes that no file system can compress.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let bytes: Vec<u8> = words.flatten().take(RESERVE_BYTES).collect();
    file.write_all(&bytes)
}
