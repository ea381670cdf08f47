//! Compressed clusters.

use flate2::{Decompress, FlushDecompress};
use silt_format::{Error, Result};
use zstd::zstd_safe;

/// The compression of an image's clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Deflate without a header (RFC 1951).
    Deflate,
    /// Zstandard frames.
    Zstd,
}

/// Fills `cluster` from `input`, which may have extra bytes; fails with Corrupt if it cannot.
/// `input` cannot make it allocate more memory.
pub fn decompress(compression: Compression, input: &[u8], cluster: &mut [u8]) -> Result<()> {
    match compression {
        Compression::Deflate => inflate(input, cluster),
        Compression::Zstd => zstd_frames(input, cluster),
    }
}

fn inflate(input: &[u8], cluster: &mut [u8]) -> Result<()> {
    let mut state = Decompress::new(false);
    state
        .decompress(input, cluster, FlushDecompress::Finish)
        .map_err(|error| Error::corrupt("deflated data is damaged").with_source(error))?;
    if state.total_out() < cluster.len() as u64 {
        return Err(Error::corrupt("deflated data ends before its cluster is full"));
    }
    Ok(())
}

/// Decompresses each frame directly to its place: streaming would allocate the window that a frame
/// claims.
fn zstd_frames(mut input: &[u8], cluster: &mut [u8]) -> Result<()> {
    let damaged = |code| Error::corrupt(format!("zstd data: {}", zstd_safe::get_error_name(code)));
    let mut context = zstd_safe::DCtx::create();
    let mut done = 0;
    while done < cluster.len() {
        let length = zstd_safe::find_frame_compressed_size(input).map_err(damaged)?;
        let (frame, rest) =
            input
                .split_at_checked(length)
                .filter(|(frame, _)| !frame.is_empty())
                .ok_or_else(|| Error::corrupt("zstd data ends before its cluster is full"))?;
        done += context.decompress(&mut cluster[done..], frame).map_err(damaged)?;
        input = rest;
    }
    Ok(())
}
