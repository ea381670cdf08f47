//! Requests for data and for block status.

use silt_format::Result;

use super::connection::{Exchange, Turn};
use super::negotiation::violation;
use super::wire::{Request, StatusExtent, chunk, command, decode_status};
use crate::number::{be_u32, be_u64, to_usize};

/// Maximum number of separate ranges of a read that have arrived while others are missing.
const FRAGMENTS_MAX: usize = 1024;
/// Maximum length in bytes of a payload of block status: a million extents.
const STATUS_BYTES_MAX: u64 = (16 << 20) + 8;

/// A read into a buffer.
pub struct Read<'b> {
    offset: u64,
    into: &'b mut [u8],
    /// The ranges of the buffer that have arrived: start and end, ascending, with gaps in between.
    filled: Vec<(usize, usize)>,
}

impl<'b> Read<'b> {
    /// Returns a read that fills `into` from `offset` on.
    pub fn new(offset: u64, into: &'b mut [u8]) -> Self {
        Self { offset, into, filled: Vec::new() }
    }

    /// Marks a part as arrived, and returns it to be filled. Fails if it is outside of the request,
    /// or arrives twice.
    fn part(&mut self, offset: u64, length: u64) -> Result<&mut [u8]> {
        let outside = || violation(format!("{length} bytes at {offset} were not asked for"));
        let start = offset.checked_sub(self.offset).ok_or_else(outside)?;
        let end = start.checked_add(length).ok_or_else(outside)?;
        if length == 0 || end > self.into.len() as u64 {
            return Err(outside());
        }
        let (start, end) = (to_usize(start), to_usize(end));
        let at = self.filled.partition_point(|(from, _)| *from < start);
        let is_after = at == 0 || self.filled[at - 1].1 <= start;
        if !is_after || self.filled.get(at).is_some_and(|(from, _)| *from < end) {
            return Err(violation(format!("bytes at {offset} come twice")));
        }
        self.filled.insert(at, (start, end));
        // Join adjacent ranges. The list stays short if the parts arrive in order.
        if self.filled.get(at + 1).is_some_and(|(from, _)| *from == end) {
            self.filled[at].1 = self.filled.remove(at + 1).1;
        }
        if at > 0 && self.filled[at - 1].1 == start {
            self.filled[at - 1].1 = self.filled.remove(at).1;
        }
        if self.filled.len() > FRAGMENTS_MAX {
            return Err(violation("a reply comes in too many fragments"));
        }
        Ok(&mut self.into[start..end])
    }
}

impl Exchange for Read<'_> {
    fn request(&self) -> Request {
        let (command, length) = (command::READ, self.into.len() as u64);
        Request { flags: 0, command, cookie: 0, offset: self.offset, length }
    }

    fn simple(&mut self, input: &mut Turn<'_>) -> Result<()> {
        let (offset, length) = (self.offset, self.into.len() as u64);
        input.read_exact(self.part(offset, length)?)
    }

    fn chunk(&mut self, kind: u16, length: u64, input: &mut Turn<'_>) -> Result<()> {
        let mut header = [0; 12];
        match (kind, length) {
            (chunk::OFFSET_DATA, 9..) => {
                input.read_exact(&mut header[..8])?;
                input.read_exact(self.part(be_u64(&header, 0), length - 8)?)
            }
            (chunk::OFFSET_HOLE, 12) => {
                input.read_exact(&mut header)?;
                self.part(be_u64(&header, 0), be_u32(&header, 8).into())?.fill(0);
                Ok(())
            }
            _ => Err(violation(format!("a chunk of kind {kind} and {length} bytes for a read"))),
        }
    }

    fn is_complete(&self) -> bool {
        self.filled == [(0, self.into.len())]
    }
}

/// A request for the block status of a range.
pub struct Status<'s> {
    offset: u64,
    length: u64,
    /// The ids of the contexts, each with the list for its extents.
    contexts: &'s mut [(u32, Vec<StatusExtent>)],
}

impl<'s> Status<'s> {
    /// Returns a request that fills the empty lists of these contexts. All negotiated contexts must
    /// be among them.
    pub fn new(offset: u64, length: u64, contexts: &'s mut [(u32, Vec<StatusExtent>)]) -> Self {
        Self { offset, length, contexts }
    }
}

impl Exchange for Status<'_> {
    fn request(&self) -> Request {
        let command = command::BLOCK_STATUS;
        Request { flags: 0, command, cookie: 0, offset: self.offset, length: self.length }
    }

    fn simple(&mut self, _: &mut Turn<'_>) -> Result<()> {
        Err(violation("a simple reply to a status request"))
    }

    fn chunk(&mut self, kind: u16, length: u64, input: &mut Turn<'_>) -> Result<()> {
        let is_status = matches!(kind, chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT);
        if !is_status || length > STATUS_BYTES_MAX {
            let why = format!("a chunk of kind {kind} and {length} bytes for a status request");
            return Err(violation(why));
        }
        let mut payload = vec![0; to_usize(length)];
        input.read_exact(&mut payload)?;
        let decoded = decode_status(kind, &payload);
        let (id, extents) = decoded.ok_or_else(|| violation("malformed block status"))?;
        let place =
            self.contexts.iter_mut().find(|(known, found)| *known == id && found.is_empty());
        let Some((_, found)) = place else {
            return Err(violation("block status of a context that was not asked for"));
        };
        *found = extents;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.contexts.iter().all(|(_, extents)| !extents.is_empty())
    }
}
