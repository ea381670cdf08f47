//! The jobs of a bus inside one process.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bus::{ATTEMPTS_MAX, Delivery, Job, JobState, Name, Offer, REPEATS, SIGN_OF_LIFE};

/// Jobs that wait and run.
#[derive(Default)]
pub(super) struct Queue {
    /// By pool and key, of which each has one.
    jobs: BTreeMap<(Name, Name), Entry>,
    /// The ids of jobs that were added lately, and until when they are remembered.
    known: BTreeMap<Name, i64>,
    /// Counts what was added and taken.
    count: u64,
}

struct Entry {
    job: Job,
    /// Its place in the queue.
    place: u64,
    attempts: u32,
    /// Not taken before this time; while it runs, the time at which it counts as abandoned.
    free_ns: i64,
    /// The delivery that is running.
    receipt: Option<u64>,
}

fn after(now_ns: i64, term: Duration) -> i64 {
    now_ns.saturating_add(i64::try_from(term.as_nanos()).unwrap_or(i64::MAX))
}

impl Queue {
    pub fn offer(&mut self, job: &Job, now_ns: i64) -> Offer {
        self.known.retain(|_, until_ns| *until_ns > now_ns);
        if self.known.contains_key(&job.id) {
            return Offer::Repeated;
        }
        let place = (job.pool.clone(), job.key.clone());
        if self.jobs.contains_key(&place) {
            return Offer::Present;
        }
        self.count += 1;
        self.known.insert(job.id.clone(), after(now_ns, REPEATS));
        let job = job.clone();
        let entry = Entry { job, place: self.count, attempts: 0, free_ns: now_ns, receipt: None };
        self.jobs.insert(place, entry);
        Offer::Added
    }

    pub fn take(&mut self, pool: &Name, now_ns: i64) -> Option<Delivery> {
        self.jobs.retain(|_, entry| entry.attempts < ATTEMPTS_MAX || entry.free_ns > now_ns);
        let free = self.jobs.values_mut();
        let free = free.filter(|entry| entry.job.pool == *pool && entry.free_ns <= now_ns);
        let entry = free.min_by_key(|entry| entry.place)?;
        self.count += 1;
        entry.attempts += 1;
        entry.free_ns = after(now_ns, SIGN_OF_LIFE);
        entry.receipt = Some(self.count);
        let receipt = self.count.to_string();
        Some(Delivery { job: entry.job.clone(), attempt: entry.attempts, receipt })
    }

    pub fn settle(&mut self, delivery: &Delivery, state: JobState, now_ns: i64) {
        let place = (delivery.job.pool.clone(), delivery.job.key.clone());
        let Some(entry) = self.jobs.get_mut(&place) else { return };
        if entry.receipt.map(|receipt| receipt.to_string()).as_ref() != Some(&delivery.receipt) {
            return;
        }
        match state {
            JobState::Running => entry.free_ns = after(now_ns, SIGN_OF_LIFE),
            JobState::Done => drop(self.jobs.remove(&place)),
            JobState::Again(pause) => {
                (entry.free_ns, entry.receipt) = (after(now_ns, pause), None);
            }
        }
    }
}
