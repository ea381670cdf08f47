//! Reading an archive entry by entry.

use std::io::Read;
use std::ops::Range;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, ErrorKind, Result};
use silt_tree::Owners;

use super::entry::{Parts, TarEntry};
use super::header::{BLOCK_BYTES, Header, until_zero};
use super::pax::{HEADER_BYTES_MAX, Records};
use super::sparse::{MapReader, old_ranges, ranges};
use crate::paths::PATH_BYTES_MAX;

/// Maximum size of the global headers of an archive together.
const GLOBAL_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a file, so that sums of sizes stay in range: 1 EiB.
const FILE_BYTES_MAX: u64 = 1 << 60;
/// Bytes that are skipped at a time.
const SKIP_BYTES: usize = 64 << 10;

/// The next part of an archive.
#[derive(Debug)]
pub enum Item {
    /// An entry, whose content is read by [`TarReader::data`].
    Entry(Box<TarEntry>),
    /// An entry that can't be read: its path, as far as it is known, and the reason.
    Refused(Vec<u8>, String),
}

/// What was read before the header of an entry.
#[derive(Default)]
struct Before {
    records: Option<Records>,
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    /// The reason why the entry is refused.
    problem: Option<String>,
}

/// Reads a tar archive from a stream, once and in its order. Holds at most 5 MiB of headers, and
/// 16 MiB of the map of a sparse file.
pub struct TarReader<R> {
    input: R,
    /// Bytes of the current entry's content and padding that were not read yet.
    left: u64,
    padding: u64,
    globals: Records,
    global_bytes: u64,
    machine: Owners,
    is_first: bool,
    ended: bool,
}

impl<R: Read> TarReader<R> {
    /// An archive that is read from `input`. Access control lists that name users are read by the
    /// names of `machine` where the archive itself does not tell their numbers.
    pub fn new(input: R, machine: Owners) -> Self {
        Self {
            input,
            left: 0,
            padding: 0,
            globals: Records::default(),
            global_bytes: 0,
            machine,
            is_first: true,
            ended: false,
        }
    }

    /// The next entry; `None` behind the end of the archive, once the input was read to its end.
    /// Passes over content that was not read. `archive` are the owners that entries before named.
    ///
    /// Fails with `Invalid` if the input is no archive, is damaged, or ends before the archive.
    pub fn next(&mut self, archive: &Owners) -> Result<Option<Item>> {
        self.skip(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut before = Before::default();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = stored_size(&header, before.records.as_ref())?;
            match header.kind() {
                b'x' | b'X' => self.extended(size, &mut before)?,
                b'g' => self.global(size)?,
                b'L' => before.path = self.long(size, &mut before.problem)?,
                b'K' => before.target = self.long(size, &mut before.problem)?,
                // The name of the volume.
                b'V' => self.skip(size.next_multiple_of(to_u64(BLOCK_BYTES)))?,
                _ => return self.entry(&header, size, before, archive).map(Some),
            }
        }
    }

    /// Reads content of the current entry: the bytes of its ranges, one after the other.
    pub fn data(&mut self, to: &mut [u8]) -> Result<()> {
        let Some(left) = self.left.checked_sub(to_u64(to.len())) else {
            return Err(Error::invalid("a read past the end of an entry"));
        };
        self.read(to)?;
        self.left = left;
        Ok(())
    }

    fn entry(
        &mut self,
        header: &Header,
        size: u64,
        mut before: Before,
        archive: &Owners,
    ) -> Result<Item> {
        let records = before.records.take().unwrap_or_else(|| self.globals.clone());
        let (long_path, long_target) = (before.path, before.target);
        let machine = std::mem::take(&mut self.machine);
        let mut parts =
            Parts { header, records, long_path, long_target, machine: &machine, archive };
        self.left = size;
        self.padding = padding(size);
        let path = parts.path();
        let content = self.content(header, &mut parts.records);
        let entry = match (content, before.problem) {
            (Err(error), _) => Err(error),
            (Ok(Err(reason)), _) => Ok(Item::Refused(path, reason.to_owned())),
            (_, Some(problem)) => Ok(Item::Refused(path, problem)),
            (Ok(Ok((size, ranges))), None) => Ok(match parts.entry(size, ranges) {
                Ok(entry) => Item::Entry(Box::new(entry)),
                Err(reason) => Item::Refused(path, reason),
            }),
        };
        self.machine = machine;
        entry
    }

    /// The size of a file, and its ranges that are not holes. The inner error is the reason why
    /// the entry is refused.
    #[expect(clippy::type_complexity, reason = "a failure of the archive, or of one entry")]
    fn content(
        &mut self,
        header: &Header,
        records: &mut Records,
    ) -> Result<Result<(u64, Vec<Range<u64>>), &'static str>> {
        if header.kind() == b'S' {
            return self.old_sparse(header);
        }
        if records.sparse.is_unknown() {
            return Ok(Err("its map of holes is of an unknown version"));
        }
        if records.sparse.is_in_data() {
            let map = match self.map_in_data()? {
                Ok(map) => map,
                Err(reason) => return Ok(Err(reason)),
            };
            return Ok(sparse(&map, records.sparse.size, self.left));
        }
        if let Some(map) = records.sparse.take_map() {
            return Ok(sparse(&map, records.sparse.size, self.left));
        }
        let whole = (self.left > 0).then_some(0..self.left);
        Ok(Ok((self.left, whole.into_iter().collect())))
    }

    /// The map before the data in version 1.0.
    fn map_in_data(&mut self) -> Result<Result<Vec<(u64, u64)>, &'static str>> {
        let mut map = MapReader::default();
        loop {
            let mut block = [0; BLOCK_BYTES];
            if self.left < to_u64(BLOCK_BYTES) {
                return Ok(Err("its map of holes is malformed"));
            }
            self.data(&mut block)?;
            match map.take(&block) {
                Ok(true) => return Ok(Ok(map.into_map())),
                Ok(false) => {}
                Err(reason) => return Ok(Err(reason)),
            }
        }
    }

    /// The ranges in the header and in those behind it.
    #[expect(clippy::type_complexity, reason = "a failure of the archive, or of one entry")]
    fn old_sparse(
        &mut self,
        header: &Header,
    ) -> Result<Result<(u64, Vec<Range<u64>>), &'static str>> {
        let mut map = Vec::new();
        let mut refused = old_ranges(header, (386, 4), &mut map).err();
        let mut goes_on = header.0[482] != 0;
        while goes_on {
            let mut next = Header([0; BLOCK_BYTES]);
            self.read(&mut next.0)?;
            if refused.is_none() {
                refused = old_ranges(&next, (0, 21), &mut map).err();
            }
            goes_on = next.0[504] != 0;
        }
        let size = header.number(483, 12).and_then(|size| u64::try_from(size).ok());
        Ok(match refused {
            Some(reason) => Err(reason),
            None => sparse(&map, size, self.left),
        })
    }

    /// Reads the records of the entry that follows.
    fn extended(&mut self, size: u64, before: &mut Before) -> Result<()> {
        if size > to_u64(HEADER_BYTES_MAX) {
            before.problem = Some("its extended header is larger than 4 MiB".to_owned());
            return self.skip(size.next_multiple_of(to_u64(BLOCK_BYTES)));
        }
        let bytes = self.padded(size)?;
        let mut records = before.records.take().unwrap_or_else(|| self.globals.clone());
        if let Err(reason) = records.add(&bytes) {
            before.problem = Some(reason.to_owned());
        }
        before.records = Some(records);
        Ok(())
    }

    /// Reads records for all entries that follow.
    fn global(&mut self, size: u64) -> Result<()> {
        self.global_bytes = self.global_bytes.saturating_add(size);
        if self.global_bytes > GLOBAL_BYTES_MAX {
            return Err(Error::invalid("the global headers of the archive are larger than 1 MiB"));
        }
        let bytes = self.padded(size)?;
        let failed = |reason| Error::invalid(format!("a global header of the archive: {reason}"));
        self.globals.add(&bytes).map_err(failed)
    }

    /// Reads a long name of GNU tar.
    fn long(&mut self, size: u64, problem: &mut Option<String>) -> Result<Option<Vec<u8>>> {
        if size > to_u64(PATH_BYTES_MAX) + 1 {
            *problem = Some("its path, or what it links to, is longer than 128 KiB".to_owned());
            self.skip(size.next_multiple_of(to_u64(BLOCK_BYTES)))?;
            return Ok(None);
        }
        Ok(Some(until_zero(&self.padded(size)?).to_vec()))
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>> {
        if self.ended {
            return Ok(None);
        }
        let mut header = Header([0; BLOCK_BYTES]);
        let bytes = self.fill(&mut header.0)?;
        if bytes < BLOCK_BYTES {
            return Err(self.truncated());
        }
        if header.is_zero() {
            // A second block of zeros follows, but not always.
            self.drain()?;
            self.ended = true;
            return Ok(None);
        }
        if !header.has_right_sum() {
            let message = if self.is_first {
                "the input is not a tar archive"
            } else {
                "the archive is damaged: the checksum of a header is wrong"
            };
            return Err(Error::invalid(message));
        }
        self.is_first = false;
        Ok(Some(header))
    }

    /// A small content with its padding.
    fn padded(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(size)];
        self.read(&mut bytes)?;
        self.skip(padding(size))?;
        Ok(bytes)
    }

    /// Reads the input to its end, so that a program that writes it succeeds, and what fails it is
    /// known.
    fn drain(&mut self) -> Result<()> {
        let mut buffer = vec![0; SKIP_BYTES];
        while self.fill(&mut buffer)? == buffer.len() {}
        Ok(())
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut buffer = vec![0; SKIP_BYTES];
        while bytes > 0 {
            let count = to_usize(bytes.min(to_u64(SKIP_BYTES)));
            self.read(&mut buffer[..count])?;
            bytes -= to_u64(count);
        }
        Ok(())
    }

    fn read(&mut self, to: &mut [u8]) -> Result<()> {
        if self.fill(to)? == to.len() { Ok(()) } else { Err(self.truncated()) }
    }

    /// Reads until the buffer is full or the input ends.
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.input.read(&mut to[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(
                        Error::io("reading the archive", error).with_kind(ErrorKind::Invalid)
                    );
                }
            }
        }
        Ok(done)
    }

    fn truncated(&self) -> Error {
        Error::invalid(if self.is_first {
            "the input is not a tar archive: it is empty or too short"
        } else {
            "the archive is truncated: it ends before its end mark"
        })
    }
}

/// How many bytes follow a header in the archive.
fn stored_size(header: &Header, records: Option<&Records>) -> Result<u64> {
    // Links, devices and directories have no content, whatever their size says.
    if matches!(header.kind(), b'1'..=b'6') {
        return Ok(0);
    }
    let is_extension = matches!(header.kind(), b'x' | b'X' | b'g' | b'L' | b'K' | b'V');
    let records = records.filter(|_| !is_extension);
    let number = match records.and_then(|records| records.size) {
        Some(size) => Some(size),
        None => header.number(124, 12).and_then(|size| u64::try_from(size).ok()),
    };
    number.filter(|size| *size <= FILE_BYTES_MAX).ok_or_else(|| {
        let path = header.path();
        let shown = path.escape_ascii();
        Error::invalid(format!("the archive is damaged: the size of '{shown}' is no size"))
    })
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(to_u64(BLOCK_BYTES)) - size
}

/// The size and the ranges of a sparse file of which `stored` bytes follow.
fn sparse(
    map: &[(u64, u64)],
    size: Option<u64>,
    stored: u64,
) -> Result<(u64, Vec<Range<u64>>), &'static str> {
    let size = size.ok_or("its size is not known")?;
    if size > FILE_BYTES_MAX {
        return Err("its size is not one that Linux has");
    }
    Ok((size, ranges(map, size, stored)?))
}
