//! What a node knows of one application: the index, the cache and the containers behind one lock.

use std::collections::BTreeMap;

use crate::bins::Bins;
use crate::cache::Cache;
use crate::options::{Lookup, NodeOptions, Stored};
use crate::piece::Piece;
use crate::print::{Print, PrintMap, mix};

/// One lock's share of a node.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    similar: PrintMap<u32>,
    full: PrintMap<u32>,
    cache: Cache,
    containers: Vec<Vec<Print>>,
    open: BTreeMap<u32, u32>,
    bins: Bins,
}

impl Domain {
    /// Finds which chunks are new, and adds them.
    pub fn store(&mut self, piece: &Piece, options: &NodeOptions) -> Stored {
        match options.lookup {
            Lookup::Bins => self.store_binned(piece),
            Lookup::Full => self.store_full(piece),
            Lookup::Sampled(rate) => self.store_sampled(piece, rate.max(1), options),
            Lookup::Approximate | Lookup::Exact => self.store_similar(piece, options),
        }
    }

    fn store_binned(&mut self, piece: &Piece) -> Stored {
        let binned = self.bins.store(piece);
        let bytes = |place: &usize| u64::from(piece.chunks[*place].bytes);
        Stored {
            new_bytes: binned.new.iter().map(bytes).sum(),
            new_chunks: binned.new.len() as u64,
            looked_up: binned.looked_up,
            index_reads: binned.read_bins,
        }
    }

    fn store_full(&mut self, piece: &Piece) -> Stored {
        let mut stored = Stored { looked_up: piece.chunks.len() as u64, ..Stored::default() };
        for chunk in &piece.chunks {
            if self.full.insert(chunk.print, 0).is_none() {
                stored.add(chunk.bytes);
            }
        }
        stored
    }

    fn store_similar(&mut self, piece: &Piece, options: &NodeOptions) -> Stored {
        let handprint = piece.handprint(options.handprint);
        let mut stored = Stored { looked_up: piece.chunks.len() as u64, ..Stored::default() };
        for print in &handprint {
            if let Some(&container) = self.similar.get(print) {
                stored.index_reads += u64::from(self.fetch(container, options));
            }
        }
        let mut places = vec![None; handprint.len()];
        for chunk in &piece.chunks {
            let mut found = self.cache.find(chunk.print);
            if found.is_none() && options.lookup == Lookup::Exact {
                found = self.full.get(&chunk.print).copied();
                stored.index_reads += 1;
            }
            let container = found.unwrap_or_else(|| {
                stored.add(chunk.bytes);
                self.append(piece.stream, chunk.print, options)
            });
            if let Ok(place) = handprint.binary_search(&chunk.print) {
                places[place] = Some(container);
            }
        }
        for (print, container) in handprint.iter().zip(places) {
            if let Some(container) = container {
                self.similar.insert(*print, container);
            }
        }
        stored
    }

    /// The index has one fingerprint in `rate`; each that it finds brings the fingerprints of a
    /// whole container into the cache, in which then all chunks are looked up.
    fn store_sampled(&mut self, piece: &Piece, rate: u64, options: &NodeOptions) -> Stored {
        let is_sampled = |print: Print| mix(print).is_multiple_of(rate);
        let mut stored = Stored { looked_up: piece.chunks.len() as u64, ..Stored::default() };
        for chunk in piece.chunks.iter().filter(|chunk| is_sampled(chunk.print)) {
            if let Some(&container) = self.similar.get(&chunk.print) {
                stored.index_reads += u64::from(self.fetch(container, options));
            }
        }
        for chunk in &piece.chunks {
            if self.cache.find(chunk.print).is_some() {
                continue;
            }
            stored.add(chunk.bytes);
            let container = self.append(piece.stream, chunk.print, options);
            if is_sampled(chunk.print) {
                self.similar.insert(chunk.print, container);
            }
        }
        stored
    }

    fn fetch(&mut self, container: u32, options: &NodeOptions) -> bool {
        self.cache.fetch(container, &self.containers, options.cache_containers)
    }

    /// Adds a fingerprint to the container that its stream fills.
    fn append(&mut self, stream: u32, print: Print, options: &NodeOptions) -> u32 {
        let open = self.open.get(&stream).copied();
        let is_full = |container: u32| {
            let place = usize::try_from(container).unwrap_or(usize::MAX);
            self.containers.get(place).is_none_or(|all| all.len() >= options.container_chunks)
        };
        let container = open.filter(|container| !is_full(*container)).unwrap_or_else(|| {
            let next = u32::try_from(self.containers.len()).unwrap_or(u32::MAX);
            self.containers.push(Vec::new());
            self.open.insert(stream, next);
            next
        });
        self.fetch(container, options);
        if let Some(content) = self.containers.get_mut(usize::try_from(container).unwrap_or(0)) {
            content.push(print);
        }
        self.cache.add(print, container);
        if options.lookup == Lookup::Exact {
            self.full.insert(print, container);
        }
        container
    }

    /// How many of these representatives the similarity index has.
    pub fn similar(&self, handprint: &[Print]) -> usize {
        handprint.iter().filter(|print| self.similar.contains_key(print)).count()
    }

    /// How many of these fingerprints the full index has.
    pub fn known(&self, sample: &[Print]) -> usize {
        sample.iter().filter(|print| self.full.contains_key(print)).count()
    }

    /// Entries of the index that is in memory.
    pub fn entries(&self) -> u64 {
        self.similar.len() as u64 + self.bins.entries()
    }

    /// Bytes that the table of the similarity index takes, with its empty places: a place has an
    /// entry and a control byte.
    pub fn index_bytes(&self) -> u64 {
        let places = (self.similar.capacity() * 8).div_ceil(7).next_power_of_two();
        let places = if self.similar.capacity() == 0 { 0 } else { places };
        (places * (size_of::<(Print, u32)>() + 1)) as u64
    }

    /// Empties the cache.
    pub fn forget(&mut self) {
        self.cache.clear();
    }
}
