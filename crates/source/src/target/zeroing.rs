//! Zeroes ranges of files and devices without writing them.

use std::fs::File;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use silt_format::{Error, Result};

use crate::positioned::{Medium, write_zeros};

/// Alignment of device ranges before they are discarded: the largest logical block size.
const DEVICE_BLOCK_BYTES: u64 = 4096;

/// Zeroes `length` bytes at `offset`: punches a hole if possible, otherwise writes zeros. Does
/// nothing past the end of a file.
pub(super) fn zero_range(
    file: &File,
    path: &Path,
    medium: Medium,
    offset: u64,
    length: u64,
) -> Result<()> {
    let end = offset + length;
    let (first, last) = match medium {
        Medium::File => (offset, end),
        Medium::Device => (
            offset.next_multiple_of(DEVICE_BLOCK_BYTES),
            end / DEVICE_BLOCK_BYTES * DEVICE_BLOCK_BYTES,
        ),
    };
    if first >= last {
        return write_zeros(file, path, offset, length);
    }
    write_zeros(file, path, offset, first - offset)?;
    if !give_up(file, path, medium, first, last - first)? {
        write_zeros(file, path, first, last - first)?;
    }
    write_zeros(file, path, last, end - last)
}

/// Punches a hole; returns whether the range now reads as zeros.
fn give_up(file: &File, path: &Path, medium: Medium, offset: u64, length: u64) -> Result<bool> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let ways: &[FallocateFlags] = match medium {
        Medium::File => &[punch],
        Medium::Device => &[punch, zero],
    };
    for &way in ways {
        loop {
            match rustix::fs::fallocate(file, way, offset, length) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => break,
                Err(error) => {
                    let what = format!("writing zeros to {} at byte {offset}", path.display());
                    return Err(Error::io(what, error.into()));
                }
            }
        }
    }
    Ok(false)
}
