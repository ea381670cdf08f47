//! An export of an NBD server.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};

use super::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use crate::changed::{ChangedMap, MapForm};
use crate::nbd::wire::{ReplyForm, StatusExtent, allocation, transmission_flag};
use crate::nbd::{Connection, Read, Status, TlsClient, Uri, Wanted, connect, violation};
use crate::number::{lock, to_usize};

/// The metadata context for holes and zeros.
const ALLOCATION: &str = "base:allocation";
/// Maximum size of a read request in bytes.
const PIECE_BYTES_MAX: u32 = 256 << 10;
/// Maximum number of connections to a server that allows several.
const CONNECTIONS_MAX: usize = 4;
/// Timeout for replies until an export is open.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// The same for connections after the first. It is short, as a server may accept only one client at
/// a time.
const MORE_SILENCE_MAX: Duration = Duration::from_secs(2);
/// Size in bytes of the range for which block status is requested at a time.
const WINDOW_BYTES: u64 = 1 << 30;
/// The same with extended headers.
const EXTENDED_WINDOW_BYTES: u64 = 256 << 30;
/// Maximum number of consecutive requests that look for the end of a range of zeros.
const ZERO_REQUESTS_MAX: usize = 16;
/// Minimum size in bytes of a range of zeros that is not read.
const ZERO_BYTES_MIN: u64 = 64 << 10;
/// A reply with block status for fewer bytes than this counts as a small step.
const STEP_BYTES_MIN: u64 = 4096;
/// Maximum number of small steps through a volume, to stop at a server that hardly advances.
const SMALL_STEPS_MAX: usize = 4096;

/// An export of an NBD server, over one connection, or several if the server allows them.
pub(crate) struct NbdSource {
    uri: Uri,
    tls: Option<TlsClient>,
    contexts: Vec<String>,
    size: u64,
    pool: Mutex<Pool>,
    window: Mutex<Window>,
}

struct Pool {
    connections: Vec<Arc<Connection>>,
    may_grow: bool,
}

/// The known block status of a range of the volume.
#[derive(Default)]
struct Window {
    from: u64,
    /// For each extent in order: its end, and whether it is zeros. Adjacent extents differ.
    extents: Vec<(u64, bool)>,
    small_steps: usize,
}

impl Window {
    fn until(&self) -> u64 {
        self.extents.last().map_or(self.from, |(end, _)| *end)
    }

    /// Returns the end of the extent that contains `offset`, and whether it is zeros; `None` if
    /// unknown.
    fn find(&self, offset: u64) -> Option<(u64, bool)> {
        let at = self.extents.partition_point(|(end, _)| *end <= offset);
        self.extents.get(at).copied().filter(|_| offset >= self.from)
    }

    /// Returns the end of the run of blocks that begins at `at`, at most `end`, and whether the run
    /// is zeros. Short ranges of zeros count as data.
    fn run(&self, at: u64, end: u64, block_bytes: u64) -> (u64, bool) {
        let zeros_at = |at| {
            let (to, _) = self.find(at).filter(|(_, is_zero)| *is_zero)?;
            let blocks = |to: u64| to - to % block_bytes;
            (to >= end || to - at >= ZERO_BYTES_MIN)
                .then(|| if to >= end { end } else { blocks(to) })
        };
        if let Some(to) = zeros_at(at) {
            return (to, true);
        }
        let mut to = at;
        while to < end && zeros_at(to).is_none() {
            to = self.find(to).map_or(end, |(to, _)| to);
        }
        (to.next_multiple_of(block_bytes).min(end), false)
    }

    fn add(&mut self, end: u64, is_zero: bool) {
        match self.extents.last_mut() {
            Some((last, kind)) if *kind == is_zero => *last = end,
            _ => self.extents.push((end, is_zero)),
        }
    }
}

impl NbdSource {
    /// Connects to the server. `changed` is the metadata context with the changed blocks.
    pub(crate) fn open(text: &OsStr, changed: Option<&str>) -> Result<Self> {
        let uri = Uri::parse(text)?;
        let about = |error: Error| error.context(format!("NBD server {uri}"));
        let tls = uri.tls.as_ref();
        let tls = tls.map(|tls| TlsClient::load(tls.certificates.as_deref(), uri.server_name()));
        let tls = tls.transpose().map_err(about)?;
        let mut contexts = vec![ALLOCATION.to_owned()];
        contexts.extend(changed.map(str::to_owned));
        let wanted = Wanted { export: &uri.export, contexts: &contexts, tls: tls.as_ref() };
        let first = connect(&uri.address, &wanted, SILENCE_MAX).map_err(about)?;
        let (size, flags) = (first.terms().bytes, first.terms().flags);
        let may_grow = flags & transmission_flag::CAN_MULTI_CONN != 0;
        let pool = Mutex::new(Pool { connections: vec![Arc::new(first)], may_grow });
        Ok(Self { tls, contexts, size, pool, window: Mutex::default(), uri })
    }

    fn about(&self, error: Error) -> Error {
        error.context(format!("NBD server {}", self.uri))
    }

    fn first(&self) -> Arc<Connection> {
        Arc::clone(&lock(&self.pool).connections[0])
    }

    /// Returns the connection with the fewest waiting requests. Makes another one if all are in
    /// use.
    fn pick(&self) -> Arc<Connection> {
        let mut pool = lock(&self.pool);
        let least = pool.connections.iter().min_by_key(|connection| connection.load());
        let least = least.map_or_else(|| Arc::clone(&pool.connections[0]), Arc::clone);
        let is_full = pool.connections.len() >= CONNECTIONS_MAX;
        if !pool.may_grow || is_full || least.load() == 0 {
            return least;
        }
        // Other threads continue with the existing connections meanwhile.
        pool.may_grow = false;
        drop(pool);
        let contexts = &self.contexts;
        let wanted = Wanted { export: &self.uri.export, contexts, tls: self.tls.as_ref() };
        let more = connect(&self.uri.address, &wanted, MORE_SILENCE_MAX);
        match more {
            Ok(more) if more.terms() == least.terms() => {
                let (more, mut pool) = (Arc::new(more), lock(&self.pool));
                pool.connections.push(Arc::clone(&more));
                pool.may_grow = true;
                more
            }
            // Not an error: the existing connections are enough.
            _ => least,
        }
    }

    /// Requests the block status from `offset` on, and calls `each` with the end and the state of
    /// each extent of the context. Returns the end of the last extent; as the inner error, that of
    /// a request that the server has refused while the connection goes on.
    fn status(
        &self,
        context: &str,
        offset: u64,
        small_steps: &mut usize,
        mut each: impl FnMut(u64, u64),
    ) -> Result<Result<u64>> {
        let connection = self.first();
        let terms = connection.terms();
        let window = match terms.form {
            ReplyForm::Extended => EXTENDED_WINDOW_BYTES,
            ReplyForm::Simple | ReplyForm::Structured => WINDOW_BYTES,
        };
        let start = offset - offset % u64::from(terms.block_bytes);
        let length = window.min(self.size - start);
        let mut found: Vec<(u32, Vec<StatusExtent>)> =
            terms.contexts.iter().map(|(_, id)| (*id, Vec::new())).collect();
        let done = connection.exchange(std::iter::once(Status::new(start, length, &mut found)));
        if let Err(error) = done {
            return if connection.failure().is_some() { Err(error) } else { Ok(Err(error)) };
        }
        let names = terms.contexts.iter().map(|(name, _)| name);
        let extents = names.zip(found).find(|(name, _)| *name == context);
        let (_, (_, extents)) = extents.ok_or_else(|| violation("a context has vanished"))?;
        let mut at = start;
        for (length, state) in extents {
            at = at.saturating_add(length).min(self.size);
            if at > offset {
                each(at, state);
            }
        }
        if at < self.size && at - start < STEP_BYTES_MIN {
            *small_steps += 1;
        }
        if at <= offset || *small_steps > SMALL_STEPS_MAX {
            return Err(violation("block status hardly advances"));
        }
        Ok(Ok(at))
    }

    /// Replaces `window` by the block status of a range that begins at `offset`.
    fn look(&self, window: &mut Window, offset: u64) -> Result<()> {
        let mut small_steps = window.small_steps;
        *window = Window { from: offset, ..Window::default() };
        for _ in 0..ZERO_REQUESTS_MAX {
            let at = window.until();
            let told = self.status(ALLOCATION, at, &mut small_steps, |end, state| {
                window.add(end, state & u64::from(allocation::ZERO) != 0);
            })?;
            if told.is_err() {
                // Holes only save reading, so treat the range as data.
                window.add(at.saturating_add(WINDOW_BYTES).min(self.size), false);
            }
            // If zeros are last, find their end: the reply may describe only a part of them.
            let is_zero = window.extents.last().is_some_and(|(_, is_zero)| *is_zero);
            if !is_zero || window.until() >= self.size {
                break;
            }
        }
        window.small_steps = small_steps;
        Ok(())
    }

    fn has_allocation(&self) -> bool {
        self.first().terms().contexts.iter().any(|(name, _)| name == ALLOCATION)
    }

    /// Reads a range that is aligned to blocks.
    fn read_blocks(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let connection = self.pick();
        let terms = connection.terms();
        let most = terms.read_bytes_max.min(PIECE_BYTES_MAX);
        let most = to_usize(u64::from(most - most % terms.block_bytes));
        let mut pieces = Vec::new();
        let (mut at, mut rest) = (offset, into);
        let window = lock(&self.window);
        let (end, block_bytes) = (offset + rest.len() as u64, u64::from(terms.block_bytes));
        while !rest.is_empty() {
            let (to, is_zero) = window.run(at, end, block_bytes);
            let length = to - at;
            let (part, behind) = rest.split_at_mut(to_usize(length));
            rest = behind;
            if is_zero {
                part.fill(0);
                at += length;
                continue;
            }
            for piece in part.chunks_mut(most) {
                let length = piece.len() as u64;
                pieces.push(Read::new(at, piece));
                at += length;
            }
        }
        drop(window);
        connection.exchange(pieces.into_iter())
    }
}

impl VolumeSource for NbdSource {
    fn info(&self) -> SourceInfo {
        let (format, size) = (SourceFormat::Nbd, Some(self.size));
        SourceInfo { description: self.uri.to_string(), format, size, backing: Vec::new() }
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        assert!(offset < self.size, "an extent was asked for past the end of the volume");
        if let Some(error) = self.failure() {
            return Err(error);
        }
        if !self.has_allocation() {
            return Ok(Extent { offset, length: self.size - offset, kind: ExtentKind::Data });
        }
        let mut window = lock(&self.window);
        if window.find(offset).is_none() {
            self.look(&mut window, offset).map_err(|error| self.about(error))?;
        }
        let Some((end, is_zero)) = window.find(offset) else {
            return Err(self.about(violation("block status of another place")));
        };
        let kind = if is_zero { ExtentKind::Zero } else { ExtentKind::Data };
        Ok(Extent { offset, length: end - offset, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(buf.len());
        let buf = &mut buf[..count];
        if count == 0 {
            return Ok(0);
        }
        let block = u64::from(self.first().terms().block_bytes);
        let (start, end) =
            (offset - offset % block, (offset + count as u64).next_multiple_of(block));
        if start == offset && end == offset + count as u64 {
            self.read_blocks(offset, buf).map_err(|error| self.about(error))?;
            return Ok(count);
        }
        // Not aligned: read the first and last block completely.
        let mut whole = vec![0; to_usize((end - start).min(u64::from(PIECE_BYTES_MAX)))];
        let (mut at, mut done) = (start, 0);
        while done < count {
            let length = to_usize((end - at).min(whole.len() as u64));
            let piece = &mut whole[..length];
            self.read_blocks(at, piece).map_err(|error| self.about(error))?;
            let skip = to_usize(offset.saturating_sub(at));
            let part = (length - skip).min(count - done);
            buf[done..done + part].copy_from_slice(&piece[skip..skip + part]);
            done += part;
            at += length as u64;
        }
        Ok(count)
    }

    fn changed_map(&self, grain: u64) -> Result<Option<ChangedMap>> {
        let Some(context) = self.contexts.get(1) else { return Ok(None) };
        let known = &self.first().terms().contexts.iter().any(|(name, _)| name == context);
        if !known {
            let message = format!("the server has no metadata context '{context}' for the export");
            return Err(self.about(Error::new(ErrorKind::NotFound, message)));
        }
        let mut map = ChangedMap::of_ranges(self.size, grain, MapForm::NbdInfo)?;
        let (mut at, mut small_steps) = (0, 0);
        while at < self.size {
            let mut from = at;
            let end = self.status(context, at, &mut small_steps, |end, state| {
                if state != 0 {
                    map.add_range(from, end);
                }
                from = end;
            });
            at = end.and_then(|end| end).map_err(|error| self.about(error))?;
        }
        Ok(Some(map))
    }

    fn failure(&self) -> Option<Error> {
        let pool = lock(&self.pool);
        let failure = pool.connections.iter().find_map(|connection| connection.failure());
        failure.map(|error| self.about(error))
    }
}
