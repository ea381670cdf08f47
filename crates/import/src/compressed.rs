//! Compressed archives, known by their first bytes.

use std::io::{BufRead, BufReader, Read};

use silt_format::{Error, ErrorKind, Result};

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// The largest window of zstd that is accepted, as of the zstd program: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Formats that are only recognised: first bytes, name, and the program that decompresses them.
const FOREIGN: [(&[u8], &str, &str); 6] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    (b"LZIP", "lzip", "lzip -dc"),
    (b"\x89LZO\0", "lzop", "lzop -dc"),
    (b"\x1f\x9d", "compress", "zcat"),
];

/// Decompresses what is compressed with gzip or zstd, and passes on everything else.
///
/// Fails with `Unsupported` if another program's compression is recognised.
pub fn decompressed<'r>(input: impl Read + Send + 'r) -> Result<Box<dyn Read + Send + 'r>> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    let failed = |error| Error::io("reading the archive", error);
    let start = input.fill_buf().map_err(failed)?;
    if start.starts_with(b"\x1f\x8b") {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(input)));
    }
    if start.starts_with(b"\x28\xb5\x2f\xfd") {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(failed)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(failed)?;
        return Ok(Box::new(decoder));
    }
    if let Some((_, name, program)) = FOREIGN.iter().find(|(magic, ..)| start.starts_with(magic)) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the archive is compressed with {name}; decompress it first with `{program}`"),
        ));
    }
    Ok(Box::new(input))
}
