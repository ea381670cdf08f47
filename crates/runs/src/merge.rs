//! Streams of records in order, and their merge.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use silt_format::{Record, Result};

/// Gives records in order, a batch at a time.
pub trait Records {
    /// Replaces `batch` by the next records; empty at the end, and only there.
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()>;
}

impl<T: Records + ?Sized> Records for Box<T> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        (**self).next_batch(batch)
    }
}

/// A source of records taken one by one.
pub struct Stream<'a> {
    source: Box<dyn Records + 'a>,
    batch: Vec<Record>,
    at: usize,
    ended: bool,
}

impl<'a> Stream<'a> {
    /// A stream of the records of `source`.
    pub fn new(source: impl Records + 'a) -> Self {
        Self { source: Box::new(source), batch: Vec::new(), at: 0, ended: false }
    }

    /// The next record, left where it is.
    pub fn peek(&mut self) -> Result<Option<&Record>> {
        if self.at == self.batch.len() && !self.ended {
            self.at = 0;
            self.source.next_batch(&mut self.batch)?;
            self.ended = self.batch.is_empty();
        }
        Ok(self.batch.get(self.at))
    }

    /// The next record.
    #[expect(clippy::should_implement_trait, reason = "reading may fail")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        let next = self.peek()?.copied();
        self.at += usize::from(next.is_some());
        Ok(next)
    }

    /// Passes over all records whose fingerprints have a lesser prefix.
    pub fn skip_below(&mut self, prefix: u64) -> Result<()> {
        while self.peek()?.is_some() {
            let rest = &self.batch[self.at..];
            // Mostly a few records: a search from here is quicker than one in all that are left.
            match rest.iter().position(|record| record.prefix() >= prefix) {
                Some(passed) => {
                    self.at += passed;
                    return Ok(());
                }
                None => self.at = self.batch.len(),
            }
        }
        Ok(())
    }
}

impl Records for Stream<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        if self.peek()?.is_some() {
            batch.extend_from_slice(&self.batch[self.at..]);
            self.at = self.batch.len();
        }
        Ok(())
    }
}

/// All records of several streams, in order; equal ones come as often as they are there.
pub fn merge(mut streams: Vec<Stream<'_>>) -> Stream<'_> {
    if streams.len() == 1 {
        return streams.remove(0);
    }
    Stream::new(Merge { streams, heads: BinaryHeap::new(), started: false })
}

/// Records of one batch of a merge.
const BATCH_RECORDS: usize = 1024;

struct Merge<'a> {
    streams: Vec<Stream<'a>>,
    /// The next record of each stream that has one.
    heads: BinaryHeap<Reverse<(Record, usize)>>,
    started: bool,
}

impl Records for Merge<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        if !self.started {
            self.started = true;
            for (number, stream) in self.streams.iter_mut().enumerate() {
                if let Some(record) = stream.next()? {
                    self.heads.push(Reverse((record, number)));
                }
            }
        }
        batch.clear();
        while batch.len() < BATCH_RECORDS {
            let Some(mut least) = self.heads.peek_mut() else { break };
            let Reverse((record, number)) = *least;
            batch.push(record);
            match self.streams[number].next()? {
                Some(next) => *least = Reverse((next, number)),
                None => drop(std::collections::binary_heap::PeekMut::pop(least)),
            }
        }
        Ok(())
    }
}
