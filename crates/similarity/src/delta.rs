//! Deltas: what a target is, given a base that it resembles.

#[cfg(test)]
mod tests;

use silt_format::{Error, ErrorKind, Result};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter};

/// Maximum size of a base in bytes, and of a target.
pub const PREFIX_BYTES_MAX: usize = 16 << 20;
/// Size of the window of a delta, as a power of two: base and target together fit in it.
const WINDOW_LOG_MAX: u32 = 25;
const WINDOW_LOG_MIN: u32 = 10;

/// Encodes targets by their bases.
pub trait DeltaCoder {
    /// Appends the delta of `target` from `base` to `into`.
    ///
    /// Fails with `Invalid` if either is larger than [`PREFIX_BYTES_MAX`].
    fn encode(&mut self, base: &[u8], target: &[u8], into: &mut Vec<u8>) -> Result<()>;

    /// Fills `target` with what `delta` encodes. Base and delta are not trusted: takes no more
    /// memory than the target has and a constant.
    ///
    /// Fails with `Corrupt` unless the delta is for exactly as many bytes. What else is wrong, such
    /// as another base, need not be noticed: the caller compares the target's fingerprint.
    fn decode(&mut self, base: &[u8], delta: &[u8], target: &mut [u8]) -> Result<()>;
}

/// Zstandard whose window begins with the base.
pub struct PrefixCoder {
    level: i32,
}

impl PrefixCoder {
    /// A coder of this zstd level.
    pub fn new(level: i32) -> Self {
        Self { level }
    }
}

pub(crate) fn require_size(base: &[u8], target: &[u8]) -> Result<()> {
    if base.len().max(target.len()) <= PREFIX_BYTES_MAX {
        return Ok(());
    }
    let (base, target) = (base.len(), target.len());
    Err(Error::invalid(format!("a delta of {target} bytes from {base} bytes is too large")))
}

pub(crate) fn wrong() -> Error {
    Error::corrupt("a delta does not decode to its target")
}

/// The error of a compression that needs more memory than there is.
pub(crate) fn compression_failed(error: std::io::Error) -> Error {
    Error::io("compress a delta", error)
}

fn failed(code: usize) -> Error {
    let name = zstd::zstd_safe::get_error_name(code);
    Error::new(ErrorKind::Unavailable, format!("compress a delta: {name}"))
}

impl DeltaCoder for PrefixCoder {
    fn encode(&mut self, base: &[u8], target: &[u8], into: &mut Vec<u8>) -> Result<()> {
        require_size(base, target)?;
        let bytes = base.len() + target.len();
        let window = bytes.max(1).next_power_of_two().ilog2().clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
        let mut context = CCtx::create();
        let parameters = [
            CParameter::CompressionLevel(self.level),
            CParameter::WindowLog(window),
            CParameter::ContentSizeFlag(false),
        ];
        for parameter in parameters {
            context.set_parameter(parameter).map_err(failed)?;
        }
        context.ref_prefix(base).map_err(failed)?;
        let start = into.len();
        into.resize(start + zstd::zstd_safe::compress_bound(target.len()), 0);
        let written = context.compress2(&mut into[start..], target).map_err(failed)?;
        into.truncate(start + written);
        Ok(())
    }

    fn decode(&mut self, base: &[u8], delta: &[u8], target: &mut [u8]) -> Result<()> {
        require_size(base, target)?;
        let mut context = DCtx::create();
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(failed)?;
        context.ref_prefix(base).map_err(failed)?;
        let length = target.len();
        match context.decompress(target, delta) {
            Ok(written) if written == length => Ok(()),
            _ => Err(wrong()),
        }
    }
}
