//! A storage node: deduplicates what it is given, inside of itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::domain::Domain;
use crate::options::{Domains, NodeOptions, Stored};
use crate::piece::{Application, Piece};
use crate::print::Print;

/// A node. Several threads can store at the same time.
#[derive(Debug)]
pub struct Node {
    options: NodeOptions,
    domains: RwLock<BTreeMap<u16, Arc<Mutex<Domain>>>>,
    used_bytes: AtomicU64,
    looked_up: AtomicU64,
    index_reads: AtomicU64,
}

impl Node {
    /// An empty node.
    pub fn new(options: NodeOptions) -> Self {
        Self {
            options,
            domains: RwLock::default(),
            used_bytes: AtomicU64::new(0),
            looked_up: AtomicU64::new(0),
            index_reads: AtomicU64::new(0),
        }
    }

    fn domain(&self, application: Application) -> Arc<Mutex<Domain>> {
        let key = match self.options.domains {
            Domains::PerApplication => application.0,
            Domains::One => 0,
        };
        let known = self.domains.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.domains.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key).or_default())
        })
    }

    fn all(&self) -> Vec<Arc<Mutex<Domain>>> {
        let all = self.domains.read().unwrap_or_else(PoisonError::into_inner);
        all.values().cloned().collect()
    }

    /// Stores the chunks of a piece that the node does not find.
    pub fn store(&self, piece: &Piece) -> Stored {
        let stored = lock(&self.domain(piece.application)).store(piece, &self.options);
        self.used_bytes.fetch_add(stored.new_bytes, Ordering::Relaxed);
        self.looked_up.fetch_add(stored.looked_up, Ordering::Relaxed);
        self.index_reads.fetch_add(stored.index_reads, Ordering::Relaxed);
        stored
    }

    /// How many representatives of a piece the application's similarity index has.
    pub fn similar(&self, application: Application, handprint: &[Print]) -> usize {
        lock(&self.domain(application)).similar(handprint)
    }

    /// How many of these fingerprints the full indexes have.
    pub fn known(&self, sample: &[Print]) -> usize {
        self.all().iter().map(|domain| lock(domain).known(sample)).sum()
    }

    /// Bytes of the chunks that the node has stored.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Fingerprints that were looked up to store pieces.
    pub fn looked_up(&self) -> u64 {
        self.looked_up.load(Ordering::Relaxed)
    }

    /// Containers, bins and places of the full index that were read.
    pub fn index_reads(&self) -> u64 {
        self.index_reads.load(Ordering::Relaxed)
    }

    /// Entries of the indexes in memory: representatives.
    pub fn entries(&self) -> u64 {
        self.all().iter().map(|domain| lock(domain).entries()).sum()
    }

    /// Bytes that the similarity indexes take in memory.
    pub fn index_bytes(&self) -> u64 {
        self.all().iter().map(|domain| lock(domain).index_bytes()).sum()
    }

    /// Empties the caches, as a restart does.
    pub fn forget_caches(&self) {
        self.all().iter().for_each(|domain| lock(domain).forget());
    }
}

/// A panic while it was held leaves an index that may miss duplicates, which costs no data.
fn lock(domain: &Mutex<Domain>) -> MutexGuard<'_, Domain> {
    domain.lock().unwrap_or_else(PoisonError::into_inner)
}
