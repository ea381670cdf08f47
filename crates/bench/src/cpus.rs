//! Processors for a server and for those who ask it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// Starts a server on `own` processors that nobody else gets: this thread, and the programs that it
/// starts afterwards, have the others. With 0 all share all.
pub fn apart<S>(own: usize, server: impl FnOnce() -> Result<S>) -> Result<S> {
    if own == 0 {
        return server();
    }
    let all = sched_getaffinity(None)?;
    let mut numbers = (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number));
    let of = |numbers: &mut dyn Iterator<Item = usize>| {
        let mut set = CpuSet::new();
        numbers.for_each(|number| set.set(number));
        set
    };
    let servers = of(&mut numbers.by_ref().take(own));
    let programs = of(&mut numbers);
    if programs.count() == 0 {
        let message = format!("--server-cpus {own}: of {} processors none is left", all.count());
        return Err(message.into());
    }
    sched_setaffinity(None, &servers)?;
    let started = server();
    sched_setaffinity(None, &programs)?;
    started
}
