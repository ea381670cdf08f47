//! Writing the content of files, by several threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::number::to_usize;
use silt_format::tree::Entry;
use silt_format::{Error, Result};
use silt_repository::sync::lock;
use silt_repository::tree::TreeVolume;
use silt_tree::NewFile;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// Small files are handed to one thread together, as they are stored together.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_FILES: usize = 64;

/// A file to fill.
pub(super) struct Job {
    pub(super) file: NewFile,
    pub(super) entry: Entry,
}

/// A file that was filled, or the reason why not.
pub(super) struct Filled {
    pub(super) file: NewFile,
    pub(super) bytes: u64,
    pub(super) result: Result<()>,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Vec<Job>>,
    filled: Vec<Filled>,
    /// Files that were handed in and not taken back.
    running: usize,
    ended: bool,
}

/// Files on their way to and from the threads that fill them.
pub(super) struct Filling<'a> {
    volume: &'a TreeVolume,
    state: Mutex<State>,
    changed: Condvar,
    batch: Vec<Job>,
    batch_bytes: u64,
}

impl<'a> Filling<'a> {
    pub(super) fn new(volume: &'a TreeVolume) -> Self {
        Self {
            volume,
            state: Mutex::default(),
            changed: Condvar::new(),
            batch: Vec::new(),
            batch_bytes: 0,
        }
    }
}
