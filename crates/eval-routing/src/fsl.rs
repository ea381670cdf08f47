//! Snapshots in the format of the File systems and Storage Lab's traces ("Homes", "MacOS" and
//! others, <https://tracer.filesystems.org>), as `fs-hasher` writes them.
//!
//! A file is a scan of a file system: a header, then for each file its own header and its chunks.
//! All integers are little-endian and nothing is padded. Versions 1 to 7 exist; this reads those
//! in which a chunk's size is known: all with fixed chunks, and from 3 on those with variable ones.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use silt_report::Result;
use silt_routing::{Chunk, mix};

const MAGIC: u32 = 0xdead_dead;
/// Bytes of paths in headers, and the most of any.
const PATH_BYTES: usize = 4096;
const SYSTEM_BYTES: usize = 4096;
/// Bytes of the parameters of chunking, of which the first four are the size of fixed chunks.
const PARAMETER_BYTES: usize = 44;
const FIXED: u32 = 1;
const VARIABLE: u32 = 2;
/// Bits of a digest at most.
const DIGEST_BITS_MAX: u32 = 512;
/// Bytes of a chunk at most; `fs-hasher` has none of more than a few MiB.
const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// What a scan says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub files: u64,
    pub chunks: u64,
    /// Bytes of a fixed chunk; `None` if chunks are cut by content.
    pub fixed_bytes: Option<u32>,
    /// Bytes of a digest.
    pub digest_bytes: usize,
}

/// What a scan holds, in its order.
pub enum Item<'a> {
    /// A file begins, with this path.
    File(&'a [u8]),
    /// A chunk of it.
    Chunk(Chunk),
}

/// Reads a scan, and calls `each` with its files and chunks.
///
/// # Errors
/// Fails if the file is no scan, ends early, or has other totals than its header says.
pub fn read(path: &Path, each: &mut dyn FnMut(Item<'_>)) -> Result<Header> {
    let mut bytes = BufReader::with_capacity(1 << 20, File::open(path)?);
    read_from(&mut bytes, each).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn read_from(from: &mut dyn Read, each: &mut dyn FnMut(Item<'_>)) -> Result<Header> {
    let header = Header::read(from)?;
    let mut chunks = 0;
    for _ in 0..header.files {
        chunks += header.file(from, each)?;
    }
    if chunks != header.chunks {
        let said = header.chunks;
        return Err(format!("it has {chunks} chunks, where its header says {said}").into());
    }
    match from.read(&mut [0]) {
        Ok(0) => Ok(header),
        Ok(_) => Err("there is something behind its last file".into()),
        Err(error) => Err(error.into()),
    }
}

impl Header {
    fn read(from: &mut dyn Read) -> Result<Self> {
        if u32_of(from)? != MAGIC {
            return Err("it is no scan of fs-hasher".into());
        }
        let version = u32_of(from)?;
        if !(1..=7).contains(&version) {
            return Err(format!("version {version} of fs-hasher's format is not known").into());
        }
        let files = u64_of(from)?;
        skip(from, PATH_BYTES)?;
        let (chunks, method) = (u64_of(from)?, u32_of(from)?);
        let mut parameters = [0; PARAMETER_BYTES];
        exact(from, &mut parameters)?;
        let [a, b, c, d, ..] = parameters;
        let fixed = u32::from_le_bytes([a, b, c, d]);
        let fixed_bytes = match method {
            FIXED if fixed > 0 && u64::from(fixed) <= CHUNK_BYTES_MAX => Some(fixed),
            VARIABLE if version > 2 => None,
            _ => return Err("its chunks have no sizes".into()),
        };
        u32_of(from)?;
        let bits = u32_of(from)?;
        if bits == 0 || bits > DIGEST_BITS_MAX || !bits.is_multiple_of(8) {
            return Err(format!("digests of {bits} bits are not possible").into());
        }
        // The name of the system and two times, and then the number of bytes.
        let rest = [0, SYSTEM_BYTES + 16, 8];
        let behind = rest.iter().take(1 + usize::from(version > 2) + usize::from(version > 4));
        skip(from, behind.sum())?;
        let digest_bytes = usize::try_from(bits / 8)?;
        Ok(Self { version, files, chunks, fixed_bytes, digest_bytes })
    }

    /// Reads a file; returns how many chunks it has.
    fn file(&self, from: &mut dyn Read, each: &mut dyn FnMut(Item<'_>)) -> Result<u64> {
        let mut path = vec![0; PATH_BYTES];
        if self.version == 1 {
            exact(from, &mut path)?;
            path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(PATH_BYTES));
        }
        let bytes = u64_of(from)?;
        // Blocks; then owner, group, permissions, three times, links, device and inode.
        skip(from, if self.version > 4 { 8 } else { 0 } + if self.version > 3 { 64 } else { 0 })?;
        let chunks = u64_of(from)?;
        if self.version > 1 {
            let own = u32_of(from)?;
            let target = if self.version > 3 { u32_of(from)? } else { 0 };
            let [own, target] = [usize::try_from(own)?, usize::try_from(target)?];
            if own > PATH_BYTES || target > PATH_BYTES {
                return Err("a path is longer than any".into());
            }
            path.truncate(own);
            exact(from, &mut path)?;
            skip(from, target)?;
        }
        each(Item::File(&path));
        for number in 0..chunks {
            let chunk_bytes = match (self.fixed_bytes, self.version) {
                // The last one has what is left, unless such tails were left out.
                (Some(fixed), _) => {
                    let before = number.saturating_mul(fixed.into());
                    bytes.saturating_sub(before).min(fixed.into())
                }
                (None, 7) => u32_of(from)?.into(),
                (None, _) => u64_of(from)?,
            };
            let chunk_bytes = Some(chunk_bytes).filter(|bytes| *bytes <= CHUNK_BYTES_MAX);
            let chunk_bytes = chunk_bytes.ok_or("a chunk is larger than any")?;
            let mut digest = [0; 64];
            exact(from, &mut digest[..self.digest_bytes])?;
            // How well it compresses.
            skip(from, usize::from(self.version > 5))?;
            let chunk = Chunk { print: print_of(&digest), bytes: u32::try_from(chunk_bytes)? };
            each(Item::Chunk(chunk));
        }
        Ok(chunks)
    }
}

/// Digests may have 48 bits, and fingerprints have no bits that are always zero.
fn print_of(digest: &[u8; 64]) -> u64 {
    let (first, _) = digest.split_first_chunk().unwrap_or((&[0; 8], &[]));
    mix(u64::from_le_bytes(*first))
}

fn exact(from: &mut dyn Read, into: &mut [u8]) -> Result<()> {
    from.read_exact(into).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "it ends early".into(),
        _ => error.into(),
    })
}

fn u32_of(from: &mut dyn Read) -> Result<u32> {
    let mut bytes = [0; 4];
    exact(from, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn u64_of(from: &mut dyn Read) -> Result<u64> {
    let mut bytes = [0; 8];
    exact(from, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn skip(from: &mut dyn Read, bytes: usize) -> Result<()> {
    exact(from, &mut vec![0; bytes])
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A scan in the published format, written field by field: files with their paths and the
    /// digests and sizes of their chunks. Fixed chunks have 4,096 bytes.
    pub fn scan(version: u32, is_fixed: bool, files: &[(&str, &[(u64, u32)])]) -> Vec<u8> {
        let mut to = Vec::new();
        let text = |to: &mut Vec<u8>, text: &str| {
            to.extend_from_slice(text.as_bytes());
            to.resize(to.len() + 4096 - text.len(), 0);
        };
        let chunks: usize = files.iter().map(|(_, chunks)| chunks.len()).sum();
        to.extend_from_slice(&0xdead_dead_u32.to_le_bytes());
        to.extend_from_slice(&version.to_le_bytes());
        to.extend_from_slice(&(files.len() as u64).to_le_bytes());
        text(&mut to, "/home");
        to.extend_from_slice(&(chunks as u64).to_le_bytes());
        // Fixed, and the size in a union that is as large as the parameters of Rabin's chunking.
        to.extend_from_slice(&if is_fixed { 1_u32 } else { 2 }.to_le_bytes());
        to.extend_from_slice(&if is_fixed { 4096_u32 } else { 3 }.to_le_bytes());
        to.resize(to.len() + 40, 0);
        // MD5, of which 48 bits.
        to.extend_from_slice(&3_u32.to_le_bytes());
        to.extend_from_slice(&48_u32.to_le_bytes());
        if version >= 3 {
            text(&mut to, "a system");
            to.resize(to.len() + 16, 0);
        }
        if version >= 5 {
            to.resize(to.len() + 8, 0);
        }
        for (path, chunks) in files {
            let bytes: u64 = chunks.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
            let count = (chunks.len() as u64).to_le_bytes();
            if version == 1 {
                text(&mut to, path);
            }
            to.extend_from_slice(&bytes.to_le_bytes());
            to.resize(to.len() + if version >= 5 { 8 } else { 0 }, 0);
            // Owner and group of 4 bytes, and seven fields of 8.
            to.resize(to.len() + if version >= 4 { 2 * 4 + 7 * 8 } else { 0 }, 7);
            to.extend_from_slice(&count);
            if version >= 2 {
                to.extend_from_slice(&u32::try_from(path.len()).unwrap_or(0).to_le_bytes());
            }
            if version >= 4 {
                to.extend_from_slice(&3_u32.to_le_bytes());
            }
            if version >= 2 {
                to.extend_from_slice(path.as_bytes());
            }
            if version >= 4 {
                to.extend_from_slice(b"/to");
            }
            for (digest, bytes) in *chunks {
                match (is_fixed, version) {
                    (true, _) => {}
                    (false, 7) => to.extend_from_slice(&bytes.to_le_bytes()),
                    (false, _) => to.extend_from_slice(&u64::from(*bytes).to_le_bytes()),
                }
                to.extend_from_slice(&digest.to_le_bytes()[..6]);
                if version >= 6 {
                    to.push(13);
                }
            }
        }
        to
    }

    const FILES: [(&str, &[(u64, u32)]); 3] = [
        ("/home/a/mail.mbox", &[(1, 4096), (2, 4096), (3, 100)]),
        ("/home/a/empty", &[]),
        ("/home/b/film.mp4", &[(1, 4096)]),
    ];

    fn items(bytes: &[u8]) -> Result<(Header, Vec<String>)> {
        let (mut from, mut items) = (bytes, Vec::new());
        let header = read_from(&mut from, &mut |item| {
            items.push(match item {
                Item::File(path) => String::from_utf8_lossy(path).into_owned(),
                Item::Chunk(chunk) => format!("{:x} {}", chunk.print, chunk.bytes),
            });
        })?;
        Ok((header, items))
    }

    #[test]
    fn every_version_is_read() -> Result<()> {
        let chunk = |digest: u64, bytes: u32| format!("{:x} {bytes}", mix(digest));
        for (version, is_fixed) in (1..=7).flat_map(|it| [(it, true), (it, false)]) {
            let bytes = scan(version, is_fixed, &FILES);
            if version < 3 && !is_fixed {
                assert!(items(&bytes).is_err(), "the sizes of its chunks are not written");
                continue;
            }
            let (header, items) = items(&bytes)?;
            assert_eq!((header.version, header.files, header.chunks), (version, 3, 4));
            assert_eq!((header.fixed_bytes.is_some(), header.digest_bytes), (is_fixed, 6));
            let expected = [
                FILES[0].0.to_owned(),
                chunk(1, 4096),
                chunk(2, 4096),
                chunk(3, 100),
                FILES[1].0.to_owned(),
                FILES[2].0.to_owned(),
                chunk(1, 4096),
            ];
            assert_eq!(items, expected, "{version} {is_fixed}");
        }
        Ok(())
    }

    #[test]
    fn what_is_no_scan_is_refused() {
        let good = scan(7, false, &FILES);
        let is_bad = |bytes: &[u8]| items(bytes).is_err();
        assert!((0..good.len()).step_by(7).all(|end| is_bad(&good[..end])));
        assert!(is_bad(&[&good[..], &[0]].concat()), "there is more");
        for (at, byte) in [(0, 1), (4, 8), (8, 4), (4096 + 16, 5), (4096 + 24, 3)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(is_bad(&bad), "{at}");
        }
    }
}
