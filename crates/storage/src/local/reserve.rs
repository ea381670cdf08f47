//! Room that is kept on a disk so that what frees space can be said when it is full.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use silt_format::Error;

use crate::Key;

/// The file that keeps it; no key begins with a dot.
pub(super) const RESERVE: &str = ".reserve";

/// How much is kept, in bytes: heads, leases and dead lists of a deletion and a reclaim.
const RESERVE_BYTES: usize = 2 << 20;

/// Whether an object may be written where the reserve was: without those of these kinds nothing can
/// be deleted.
pub(super) fn is_for(key: &Key) -> bool {
    ["state/", "dead/", "root/"].iter().any(|prefix| key.as_str().starts_with(prefix))
}

/// Whether something failed because there is no room.
pub(super) fn is_full(error: &Error) -> bool {
    let cause = error.cause().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|io| {
        matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    })
}

/// Gives the room free; whether there was any.
pub(super) fn release(root: &Path) -> bool {
    fs::remove_file(root.join(RESERVE)).is_ok()
}

/// Keeps room again if there is some. Nothing depends on it: whatever fails is tried again next
/// time.
pub(super) fn keep(root: &Path) {
    let path = root.join(RESERVE);
    if fs::symlink_metadata(&path).is_ok() {
        return;
    }
    match fill(&path) {
        // Somebody else was quicker.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(_) => drop(fs::remove_file(&path)),
        Ok(()) => {}
    }
}

fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // Bytes that no file system compresses.
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
