//! The blocks of a file system as they are once its journal is replayed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use siltstone::{Error, Result};

use super::journal::Replay;
use crate::disk::Region;

/// Blocks that are kept, each in the slot of its number.
const CACHED: usize = 128;
/// What one of those that share a block takes of it.
const SHARED_BYTES: u64 = 256;

/// A block's number, and its bytes.
type Kept = (u64, Rc<[u8]>);

/// Reads blocks, from the journal where that has newer ones.
pub struct Blocks {
    region: Region,
    block_bytes: u64,
    replay: Replay,
    /// By the slot.
    cached: RefCell<HashMap<u64, Kept>>,
}

impl Blocks {
    pub fn new(region: Region, block_bytes: u64, replay: Replay) -> Self {
        Self { region, block_bytes, replay, cached: RefCell::default() }
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The same blocks with a journal over them.
    pub fn replayed(self, replay: Replay) -> Self {
        Self { replay, cached: RefCell::default(), ..self }
    }

    /// A block of metadata that is wanted once, unless a file system leads in circles.
    pub fn block(&self, number: u64) -> Result<Rc<[u8]>> {
        self.block_at(number, self.block_bytes)
    }

    /// A block that many inodes or descriptors share.
    pub fn shared_block(&self, number: u64) -> Result<Rc<[u8]>> {
        self.block_at(number, SHARED_BYTES)
    }

    /// A block, for which `price` bytes are counted as read if it is kept.
    fn block_at(&self, number: u64, price: u64) -> Result<Rc<[u8]>> {
        let slot = number % CACHED as u64;
        if let Some((cached, bytes)) = self.cached.borrow().get(&slot)
            && *cached == number
        {
            self.region.budget().spend_bytes(price)?;
            return Ok(Rc::clone(bytes));
        }
        let mut bytes = vec![0; usize::try_from(self.block_bytes).unwrap_or(0)];
        self.read_block(number, &mut bytes)?;
        let bytes: Rc<[u8]> = bytes.into();
        self.cached.borrow_mut().insert(slot, (number, Rc::clone(&bytes)));
        Ok(bytes)
    }

    fn read_block(&self, number: u64, into: &mut [u8]) -> Result<()> {
        if let Some(logged) = self.replay.get(number) {
            self.region.read(logged.block.saturating_mul(self.block_bytes), into)?;
            return logged.restore(into);
        }
        self.region.read(number.saturating_mul(self.block_bytes), into)
    }

    /// Reads a range of bytes; blocks are not kept.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64).ok_or_else(out_of_range)?;
        if !self.replay.has_any(offset / self.block_bytes, end.div_ceil(self.block_bytes)) {
            return self.region.read(offset, into);
        }
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let block = self.block(at / self.block_bytes)?;
            let behind = &block[usize::try_from(at % self.block_bytes).unwrap_or(0)..];
            let length = behind.len().min(rest.len());
            let (here, later) = rest.split_at_mut(length);
            here.copy_from_slice(&behind[..length]);
            at += length as u64;
            rest = later;
        }
        Ok(())
    }
}

fn out_of_range() -> Error {
    Error::corrupt("a block's number is too large")
}
