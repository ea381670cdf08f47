//! What changed between two days, as a hypervisor's changed-block tracking would say it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::json;

use crate::Result;

/// The grain of the map: that of QEMU's dirty bitmaps.
const CLUSTER_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 4 << 20;

/// Writes a map of the clusters in which `new` differs from `old`, in the form of `rbd diff`.
pub fn write_map(old: &Path, new: &Path, map: &Path) -> Result<()> {
    let (old, new) = (File::open(old)?, File::open(new)?);
    let bytes = new.metadata()?.len();
    let (mut before, mut after) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let mut changed: Vec<(u64, u64)> = Vec::new();
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset)?.min(BUFFER_BYTES);
        before[..length].fill(0);
        read_up_to(&old, &mut before[..length], offset)?;
        read_up_to(&new, &mut after[..length], offset)?;
        let clusters = before[..length].chunks(CLUSTER_BYTES).zip(after.chunks(CLUSTER_BYTES));
        for (number, (before, after)) in (0_u64..).zip(clusters) {
            if before == &after[..before.len()] {
                continue;
            }
            let at = offset + number * CLUSTER_BYTES as u64;
            match changed.last_mut() {
                Some(last) if last.0 + last.1 == at => last.1 += before.len() as u64,
                _ => changed.push((at, before.len() as u64)),
            }
        }
        offset += length as u64;
    }
    let extents = changed
        .iter()
        .map(|(offset, length)| json!({"offset": offset, "length": length, "exists": "true"}));
    let extents: Vec<_> = extents.collect();
    std::fs::write(map, serde_json::to_string(&extents)?)?;
    Ok(())
}

/// Whether two files hold the same bytes.
pub fn same(one: &Path, other: &Path) -> Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    let bytes = one.metadata()?.len();
    if other.metadata()?.len() != bytes {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset)?.min(BUFFER_BYTES);
        one.read_exact_at(&mut left[..length], offset)?;
        other.read_exact_at(&mut right[..length], offset)?;
        if left[..length] != right[..length] {
            return Ok(false);
        }
        offset += length as u64;
    }
    Ok(true)
}

fn read_up_to(file: &File, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
    while !buffer.is_empty() {
        let read = file.read_at(buffer, offset)?;
        if read == 0 {
            return Ok(());
        }
        buffer = &mut buffer[read..];
        offset += read as u64;
    }
    Ok(())
}
