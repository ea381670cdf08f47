//! Number of concurrent threads.

/// Number of workers: one per core by default.
pub fn jobs(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        jobs => jobs.min(256),
    }
}
