//! Zip archives with 64-bit sizes, written to a stream.
//!
//! Built on `flate2`, which qcow2 images need anyway. Libraries for zip keep an object per entry in
//! memory and add a dozen packages.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use silt_format::number::to_u64;
use silt_format::tree::EntryKind;
use silt_format::{Error, ErrorKind, Result};

use super::ArchiveEntry;

/// Maximum size in bytes of the list of entries, which stays in memory until the end. Enough for
/// about three million entries.
const DIRECTORY_BYTES_MAX: usize = 256 << 20;
/// Files of at least this size get 64-bit fields. The margin below 4 GiB is for files that grow
/// when they are deflated.
const LARGE_BYTES: u64 = 0xf000_0000;
const DEFLATED: u16 = 8;
/// Flag of an entry: its name is UTF-8.
const UTF8: u16 = 1 << 11;
/// Flag of an entry: its sizes are behind the content.
const SIZES_BEHIND: u16 = 1 << 3;
/// Made on Unix, by version 4.5 of the specification, the first with 64-bit fields.
const MADE_BY: u16 = 0x032d;

/// Counts the bytes that are written.
struct Counted<W: Write> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += to_u64(written);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// An entry whose content is being written.
struct Current {
    name: Vec<u8>,
    mode: u32,
    seconds: i64,
    flags: u16,
    is_large: bool,
    /// Offset of its header in the archive.
    at: u64,
    crc: Crc,
    /// Size of the content so far, before compression.
    bytes: u64,
}

enum Output<W: Write> {
    Plain(Counted<W>),
    Deflating(DeflateEncoder<Counted<W>>),
}

/// Writes a zip archive. It does not preserve extended attributes, owners and holes. Each name of
/// a file with hard links becomes a separate file.
pub struct ZipWriter<W: Write> {
    output: Option<Output<W>>,
    current: Option<Current>,
    directory: Vec<u8>,
    entries: u64,
}

impl<W: Write> ZipWriter<W> {
    /// Starts an archive that is written to `out`.
    pub fn new(out: W) -> Self {
        let output = Some(Output::Plain(Counted { out, bytes: 0 }));
        Self { output, current: None, directory: Vec::new(), entries: 0 }
    }

    /// Begins an entry. For a file, the caller then passes the whole content, holes included, to
    /// [`data`](Self::data). Returns `false` and writes nothing for the root, and for pipes,
    /// sockets and devices, which an archive cannot contain. Fails with `Unsupported` if the list
    /// of entries gets too long.
    pub fn begin(&mut self, entry: &ArchiveEntry<'_>) -> Result<bool> {
        let metadata = entry.metadata;
        let (kind, content) = match metadata.kind {
            EntryKind::File => (0o100_000, None),
            EntryKind::Symlink => (0o120_000, Some(&metadata.target)),
            EntryKind::Directory => (0o040_000, Some(&metadata.target)),
            _ => return Ok(false),
        };
        if entry.path.is_empty() {
            return Ok(false);
        }
        self.end_content()?;
        let mut name = entry.path.to_vec();
        if metadata.kind == EntryKind::Directory {
            name.push(b'/');
        }
        if self.directory.len() + name.len() > DIRECTORY_BYTES_MAX {
            let message = "too many entries for a zip archive: their list exceeds 256 MiB";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let is_text = std::str::from_utf8(&name).is_ok();
        let flags = SIZES_BEHIND | if is_text { UTF8 } else { 0 };
        let is_large = metadata.size >= LARGE_BYTES;
        let current = Current {
            name,
            mode: kind | u32::from(metadata.mode),
            seconds: metadata.modified.seconds,
            flags,
            is_large,
            at: 0,
            crc: Crc::new(),
            bytes: 0,
        };
        self.local_header(current)?;
        if let Some(content) = content {
            self.data(content)?;
        }
        Ok(true)
    }

    /// Appends content to the current entry.
    pub fn data(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Err(Error::invalid("content without an entry"));
        };
        current.crc.update(bytes);
        current.bytes += to_u64(bytes.len());
        match &mut self.output {
            Some(Output::Deflating(out)) => out.write_all(bytes).map_err(failed),
            _ => Err(Error::invalid("content without an entry")),
        }
    }

    /// Ends the archive and returns the writer.
    pub fn finish(mut self) -> Result<W> {
        self.end_content()?;
        let Some(Output::Plain(mut out)) = self.output.take() else {
            return Err(Error::invalid("an entry is not complete"));
        };
        let start = out.bytes;
        out.write_all(&self.directory).map_err(failed)?;
        let (bytes, end) = (to_u64(self.directory.len()), out.bytes);
        let mut tail = Fields::default();
        // The 64-bit end record, its locator, and the original end record.
        tail.u32(0x0606_4b50).u64(44).u16(MADE_BY).u16(45).u32(0).u32(0);
        tail.u64(self.entries).u64(self.entries).u64(bytes).u64(start);
        tail.u32(0x0706_4b50).u32(0).u64(end).u32(1);
        let entries = u16::try_from(self.entries).unwrap_or(u16::MAX);
        tail.u32(0x0605_4b50).u16(0).u16(0).u16(entries).u16(entries);
        tail.u32(lowest(bytes)).u32(lowest(start)).u16(0);
        out.write_all(&tail.0).and_then(|()| out.flush()).map_err(failed)?;
        Ok(out.out)
    }

    fn local_header(&mut self, mut current: Current) -> Result<()> {
        let Some(Output::Plain(mut out)) = self.output.take() else {
            return Err(Error::invalid("an entry is not complete"));
        };
        current.at = out.bytes;
        let mut header = Fields::default();
        header.u32(0x0403_4b50).u16(45).u16(current.flags).u16(DEFLATED);
        header.dos_time().u32(0);
        let size = if current.is_large { u32::MAX } else { 0 };
        header.u32(size).u32(size);
        let times = unix_time(current.seconds);
        let extra = times.len() + if current.is_large { 20 } else { 0 };
        header.u16(length(current.name.len())?).u16(length(extra)?);
        header.0.extend_from_slice(&current.name);
        if current.is_large {
            header.u16(1).u16(16).u64(0).u64(0);
        }
        header.0.extend_from_slice(&times);
        out.write_all(&header.0).map_err(failed)?;
        self.current = Some(current);
        self.output = Some(Output::Deflating(DeflateEncoder::new(out, Compression::fast())));
        Ok(())
    }

    /// Writes sizes and checksum of the current entry, and adds it to the list of entries.
    fn end_content(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let Some(Output::Deflating(out)) = self.output.take() else {
            return Err(Error::invalid("an entry is not complete"));
        };
        let start = out.get_ref().bytes - out.total_out();
        let mut out = out.finish().map_err(failed)?;
        let (packed, crc) = (out.bytes - start, current.crc.sum());
        let mut behind = Fields::default();
        behind.u32(0x0807_4b50).u32(crc);
        let is_large = current.is_large;
        let short = |number: u64| if is_large { u32::MAX } else { lowest(number) };
        if is_large {
            behind.u64(packed).u64(current.bytes);
        } else {
            behind.u32(lowest(packed)).u32(lowest(current.bytes));
        }
        out.write_all(&behind.0).map_err(failed)?;
        self.output = Some(Output::Plain(out));

        let mut wide = Fields::default();
        if is_large {
            wide.u64(current.bytes).u64(packed);
        }
        let is_far = current.at >= LARGE_BYTES;
        if is_far {
            wide.u64(current.at);
        }
        let mut extra = Fields::default();
        if !wide.0.is_empty() {
            extra.u16(1).u16(length(wide.0.len())?);
            extra.0.extend(wide.0);
        }
        extra.0.extend(unix_time(current.seconds));
        let mut record = Fields::default();
        record.u32(0x0201_4b50).u16(MADE_BY).u16(45).u16(current.flags).u16(DEFLATED);
        record.dos_time().u32(crc).u32(short(packed)).u32(short(current.bytes));
        record.u16(length(current.name.len())?).u16(length(extra.0.len())?);
        let is_directory = current.mode & 0o170_000 == 0o040_000;
        record.u16(0).u16(0).u16(0).u32(current.mode << 16 | if is_directory { 0x10 } else { 0 });
        record.u32(if is_far { u32::MAX } else { lowest(current.at) });
        self.directory.extend(record.0);
        self.directory.extend(current.name);
        self.directory.extend(extra.0);
        self.entries += 1;
        Ok(())
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("writing the archive", error)
}

fn length(bytes: usize) -> Result<u16> {
    u16::try_from(bytes)
        .map_err(|_| Error::new(ErrorKind::Unsupported, "its path is too long for a zip archive"))
}

/// Returns a number as 32 bits, or the mark for "see the 64-bit field" if it does not fit.
fn lowest(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the extra field with a modification time; empty if it does not fit into 32 bits.
fn unix_time(seconds: i64) -> Vec<u8> {
    let Ok(seconds) = i32::try_from(seconds) else { return Vec::new() };
    let mut field = Fields::default();
    field.u16(0x5455).u16(5);
    field.0.push(1);
    field.0.extend(seconds.to_le_bytes());
    field.0
}

#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u16(&mut self, number: u16) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Writes 1980-01-01 into the field for the local time, which has no time zone. An extra field
    /// has the real time.
    fn dos_time(&mut self) -> &mut Self {
        self.u16(0).u16(1 << 5 | 1)
    }
}
