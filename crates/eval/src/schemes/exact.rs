//! Collaborative deduplication: the requests of all machines of a round are sorted and merged with
//! the index, by the product's own runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use silt_format::{Config, Fingerprint};
use silt_storage::MemoryStorage;
use siltstone::{Context, ExactIndex, Protection, Repository, Silent, SystemEnv};

use crate::Result;
use crate::random::draw;
use crate::trace::Trace;

/// Memory of a sort, in bytes.
const SORT_BYTES: usize = 4 << 20;

/// Chunks that are stored if each day's machines are backed up in so many rounds.
pub fn collaborative(trace: &Trace, rounds: usize) -> Result<u64> {
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let storage = Arc::new(MemoryStorage::new());
    let config = Config::default();
    let repository = Repository::init(storage, context, config, &Protection::None, None)?;
    let mut index = ExactIndex::new(&repository, &std::env::temp_dir(), SORT_BYTES);
    let mut stored = 0;
    for day in 0..trace.days() {
        for round in 0..rounds {
            let members = trace.machines.iter().skip(round).step_by(rounds);
            let segments = members.flat_map(|machine| machine.days[day].changed.values());
            let prints = segments.flat_map(|segment| segment.iter().copied());
            let mut requests = prints.filter(|print| *print != 0).map(|print| {
                let mut fingerprint = [0; 20];
                fingerprint[..8].copy_from_slice(&draw(print).to_be_bytes());
                fingerprint[8..16].copy_from_slice(&print.to_be_bytes());
                Fingerprint(fingerprint)
            });
            stored += index.round(&mut requests)?;
        }
    }
    Ok(stored)
}
