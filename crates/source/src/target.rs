//! Where a volume's bytes go to.

mod in_place;
mod new_file;
mod open;
mod partial;
mod qcow2;
mod stream;
mod zeroing;

use silt_format::{Advice, Error, ErrorKind, Result};

pub use in_place::MARKER_TEXT;
pub use open::{TargetFormat, TargetMode, TargetOptions, open_target};
pub use partial::PARTIAL_SUFFIX;
pub use stream::StreamTarget;

/// A volume to write. Threads may write at once, unless a target says otherwise; what two of them
/// write to the same bytes at once is undefined.
pub trait VolumeTarget: Send + Sync {
    /// Writes `data` at byte `offset` of the volume.
    ///
    /// Invalid where they lie outside of the volume; else errors as writing fails.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes `length` bytes from `offset` on zeros, by the cheapest way the target has.
    ///
    /// Errors as `write_at` does.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()>;

    /// Fills `buf` with what the target holds from `offset` on, as it will be after `finish`.
    ///
    /// Unsupported unless [`can_read`](Self::can_read).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Whether the target shows what it held before, so that only differences need writing.
    fn can_read(&self) -> bool;

    /// Up to where the target is known to hold zeros from `offset` on, without reading it; `offset`
    /// itself if that is not known.
    fn zeros_until(&self, offset: u64) -> u64 {
        offset
    }

    /// Makes everything written durable, and the volume visible under its name.
    ///
    /// A target dropped without it stays unfinished and is seen to be: a partial file beside the
    /// name, or a marker in place of the first block.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Refuses a range that does not lie in a volume of `size` bytes.
fn check_range(offset: u64, length: u64, size: u64) -> Result<()> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{length} bytes at byte {offset} lie outside of a volume of {size} bytes"
    )))
}

/// The answer of targets that cannot be read.
fn unreadable(name: impl std::fmt::Display) -> Error {
    let what = format!("{name} cannot be read while it is restored");
    Error::new(ErrorKind::Unsupported, what).with_advice(Advice::RestoreInPlace)
}
