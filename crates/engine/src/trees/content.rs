//! Comparing two entries of file trees.

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, Metadata};
use silt_format::{Error, Result};
use silt_repository::env::Context;
use silt_repository::tree::TreeVolume;

/// Bytes that are compared at a time.
const COMPARED_BYTES: u64 = 256 << 10;

/// Returns whether two regular files have the same content. Reads only segments that differ.
pub(super) fn is_same_content(
    context: &Context,
    old: (&TreeVolume, &Entry),
    new: (&TreeVolume, &Entry),
) -> Result<bool> {
    let size = old.1.metadata.size;
    if size != new.1.metadata.size {
        return Ok(false);
    }
    let (mut old_bytes, mut new_bytes) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < size {
        context.check_interrupted()?;
        let same = old.0.known_same(old.1, new.0, new.1, at)?;
        if same > 0 {
            at += same;
            continue;
        }
        let wanted = (size - at).min(COMPARED_BYTES);
        for ((volume, entry), bytes) in [(old, &mut old_bytes), (new, &mut new_bytes)] {
            bytes.resize(to_usize(wanted), 0);
            if volume.read_at(entry, at, bytes)? != bytes.len() {
                return Err(Error::corrupt("a file has fewer bytes than its size"));
            }
        }
        if old_bytes != new_bytes {
            return Ok(false);
        }
        at += to_u64(old_bytes.len());
    }
    Ok(true)
}

/// Returns whether two directories are known to have the same entries below them.
pub(super) fn is_same_directory(old: &Entry, new: &Entry) -> bool {
    let page = |entry: &Entry| entry.subtree.map(|subtree| (subtree.page.hash, subtree.level));
    page(old) == page(new)
}

/// Returns the names of the attributes in which two entries of one type differ. Compares those that
/// a restore sets.
pub(super) fn differing_attributes(old: &Metadata, new: &Metadata) -> Vec<&'static str> {
    let differs = [
        ("mode", old.mode != new.mode),
        ("owner", old.uid != new.uid),
        ("group", old.gid != new.gid),
        ("modified", old.modified != new.modified),
        ("target", old.target != new.target),
        ("device", old.device != new.device),
        ("flags", old.flags != new.flags),
        ("xattrs", old.xattrs != new.xattrs),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

pub(super) fn is_directory(entry: &Entry) -> bool {
    entry.metadata.kind == EntryKind::Directory
}
