//! Counts the requests to a store, each of which costs money, and notes how soon it answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use silt_storage::Usage;

use crate::witness::Outcome;

/// Answers that tell how far away a store is: any may have waited for a processor.
const ANSWERS_TELL: u64 = 6;

#[derive(Default)]
pub(crate) struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    answers: Mutex<Answers>,
}

#[derive(Clone, Copy, Default)]
struct Answers {
    count: u64,
    /// The shortest time in which one began.
    soonest: Option<Duration>,
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
    /// A request ended so.
    pub(crate) fn answered(&self, outcome: &Outcome) {
        let Some(after) = outcome.began_after else { return };
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.count += 1;
        answers.soonest = Some(answers.soonest.map_or(after, |soonest| soonest.min(after)));
    }
    /// The shortest time in which an answer began, in nanoseconds; `None` until there were enough.
    pub(crate) fn soonest_answer_ns(&self) -> Option<u64> {
        let answers = *self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let soonest = answers.soonest.filter(|_| answers.count >= ANSWERS_TELL)?;
        Some(u64::try_from(soonest.as_nanos()).unwrap_or(u64::MAX))
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
