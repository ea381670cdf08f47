//! Reads what becomes shared a second time, and adds it to the shared store. One thread reads and
//! fingerprints ahead, so that the one that fills containers does not wait for the volumes.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use silt_chunking::Fingerprinter;
use silt_format::number::to_u64;
use silt_format::{Record, Result};
use silt_repository::event::{Activity, Progress};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::{Sorted, Stream};

use super::Round;
use super::batch::Batch;
use super::volume::Volume;
use crate::copy::Additions;

/// Batches that are read and not stored yet, at most.
const BATCHES_AHEAD: usize = 2;
/// After so many batches the caller is told that there is progress.
const KEEP_BATCHES: u64 = 16;

/// Reads chosen chunks in the order of their places.
struct Batches<'b> {
    volumes: Vec<&'b [Volume<'b>]>,
    fingerprinter: Fingerprinter,
    stream: Stream<'b>,
    next: Option<Record>,
}

impl<'b> Batches<'b> {
    fn new(
        volumes: Vec<&'b [Volume<'b>]>,
        fingerprinter: Fingerprinter,
        chosen: &'b Sorted,
    ) -> Result<Self> {
        let mut stream = chosen.stream();
        let next = stream.next()?;
        Ok(Self { volumes, fingerprinter, stream, next })
    }

    /// Lets `batch` be the next one. Returns whether there was one.
    fn read(&mut self, batch: &mut Batch) -> Result<bool> {
        batch.clear();
        while self.next.as_ref().is_some_and(|record| batch.takes(record)) {
            self.next = self.stream.next()?;
        }
        let Some(place) = batch.place() else { return Ok(false) };
        let volume = &self.volumes[usize::from(place.member)][usize::from(place.volume)];
        batch.read(volume, &self.fingerprinter);
        Ok(true)
    }

    /// Reads all batches into buffers that come back, until nobody takes them any more.
    fn read_all(mut self, filled: &SyncSender<Result<Batch>>, emptied: &Receiver<Batch>) {
        loop {
            let mut batch = emptied.try_recv().unwrap_or_default();
            let sent = match self.read(&mut batch) {
                Ok(true) => filled.send(Ok(batch)),
                Ok(false) => return,
                Err(error) => filled.send(Err(error)),
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

impl Round<'_, '_> {
    /// Reads what was chosen, in the order of its places, and adds it to the shared store. Returns
    /// how many chunks and bytes were added; `keep` is called now and then.
    pub(crate) fn add_chosen(
        &self,
        chosen: &Sorted,
        additions: &mut Additions<'_, '_>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(u64, u64)> {
        let objects = &self.repository.objects;
        let store = objects.keys.shared_store_id(DEFAULT_DOMAIN);
        let key = objects.keys.fingerprint_key(DEFAULT_DOMAIN, store);
        let (mut chunks, mut bytes, mut batches) = (0_u64, 0_u64, 0_u64);
        // Returns whether there was a container number for every chunk.
        let mut add = |batch: &Batch| -> Result<bool> {
            for (chunk, fingerprint) in batch.unchanged() {
                if !additions.add(chunk, fingerprint)? {
                    return Ok(false);
                }
                chunks += 1;
                bytes += to_u64(chunk.len());
            }
            batches += 1;
            if batches.is_multiple_of(KEEP_BATCHES) && chunks > 0 {
                keep()?;
                let total = bytes / chunks * chosen.records();
                objects.context.report(Progress::bytes(Activity::Share, bytes, Some(total)));
            }
            Ok(true)
        };
        let volumes: Vec<_> = self.members.iter().map(|member| &*member.volumes).collect();
        let begin = move || Batches::new(volumes, Fingerprinter::new(key), chosen);
        if objects.context.env.is_single_threaded() {
            let (mut read, mut batch) = (begin()?, Batch::default());
            while read.read(&mut batch)? && add(&batch)? {}
        } else {
            each_ahead(begin, &mut add)?;
        }
        Ok((chunks, bytes))
    }
}

/// Passes batches to `add` until it returns `false`, while a thread reads the next ones.
fn each_ahead<'b>(
    begin: impl FnOnce() -> Result<Batches<'b>> + Send,
    add: &mut dyn FnMut(&Batch) -> Result<bool>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (filled, batches) = sync_channel(BATCHES_AHEAD);
        let (empty, emptied) = channel();
        scope.spawn(move || match begin() {
            Ok(read) => read.read_all(&filled, &emptied),
            // Nobody receives it only after an error of their own.
            Err(error) => drop(filled.send(Err(error))),
        });
        for batch in batches {
            let batch: Batch = batch?;
            if !add(&batch)? {
                break;
            }
            // The thread that reads may be done.
            let _ = empty.send(batch);
        }
        Ok(())
    })
}
