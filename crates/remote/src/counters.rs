//! Counts the requests to a store; each one costs money.

use std::sync::atomic::{AtomicU64, Ordering};

use silt_storage::Usage;

#[derive(Default)]
pub(crate) struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn put(&self, bytes: usize) {
        add(&self.puts, 1);
        add(&self.sent, bytes);
    }
    pub(crate) fn get(&self) {
        add(&self.gets, 1);
    }
    pub(crate) fn received(&self, bytes: usize) {
        add(&self.received, bytes);
    }
    pub(crate) fn head(&self) {
        add(&self.heads, 1);
    }
    pub(crate) fn list(&self) {
        add(&self.lists, 1);
    }
    pub(crate) fn delete(&self) {
        add(&self.deletes, 1);
    }
    pub(crate) fn usage(&self) -> Usage {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            puts: read(&self.puts),
            gets: read(&self.gets),
            heads: read(&self.heads),
            lists: read(&self.lists),
            deletes: read(&self.deletes),
            sent_bytes: read(&self.sent),
            received_bytes: read(&self.received),
        }
    }
}
