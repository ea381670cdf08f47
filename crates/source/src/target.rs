//! Targets of volumes.

mod in_place;
mod new_file;
mod open;
mod order;
mod partial;
mod qcow2;
mod stream;
mod zeroing;

use silt_format::{Advice, Error, ErrorKind, Result};

pub use in_place::MARKER_TEXT;
pub use open::{TargetFormat, TargetMode, TargetOptions, open_target};
pub use order::{Order, Turn};
pub use partial::PARTIAL_SUFFIX;
pub use stream::StreamTarget;

/// A volume to write. Several threads may write concurrently, unless a target's documentation says
/// otherwise; concurrent writes to the same bytes have an undefined result.
pub trait VolumeTarget: Send + Sync {
    /// Writes `data` at byte `offset` of the volume.
    ///
    /// Fails with Invalid outside of the volume, otherwise as writing fails.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Zeroes `length` bytes from `offset` on, in the cheapest way for the target.
    ///
    /// Fails as `write_at` does.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()>;

    /// Fills `buf` with the target's bytes from `offset` on, as they will be after `finish`.
    ///
    /// Fails with Unsupported unless [`can_read`](Self::can_read).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Whether the target's old contents can be read, so that only differences need writing.
    fn can_read(&self) -> bool;

    /// Returns the end of the range from `offset` on that is known to be zeros without reading;
    /// `offset` itself if unknown.
    fn zeros_until(&self, offset: u64) -> u64 {
        offset
    }

    /// Whether writes must follow one another, from the beginning of the volume to its end.
    fn is_sequential(&self) -> bool {
        false
    }

    /// Makes everything written durable, and the volume visible under its name.
    ///
    /// A target that is dropped before `finish` stays visibly unfinished: a partial file beside the
    /// name, or a marker in place of the first block.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Fails if a range is not inside a volume of `size` bytes.
fn check_range(offset: u64, length: u64, size: u64) -> Result<()> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{length} bytes at byte {offset} exceed the volume, which has {size} bytes"
    )))
}

/// The error of targets that cannot be read.
fn unreadable(name: impl std::fmt::Display) -> Error {
    let what = format!("{name} cannot be read while it is restored");
    Error::new(ErrorKind::Unsupported, what).with_advice(Advice::RestoreInPlace)
}
