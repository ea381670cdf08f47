//! The queue of containers to send, and the results for each session.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use silt_format::{Error, Result};
use silt_storage::Pieces;

use crate::sync::lock;

/// A finished container.
pub struct Upload {
    /// The object that it becomes.
    pub name: String,
    /// Its number.
    pub number: u32,
    /// Header and frames.
    pub body: Pieces,
    /// Directory and footer.
    pub end: Vec<u8>,
}

/// What one session has handed over.
#[derive(Default)]
pub(crate) struct Account {
    /// Containers that are not durable yet.
    pub(crate) under_way: usize,
    pub(crate) durable: Vec<u32>,
    failure: Option<Error>,
    /// Whether a container was lost, even after its error was returned: this session must not
    /// commit anything.
    has_failed: bool,
}

impl Account {
    /// Fails if a container was lost: with its error the first time, later with a general one.
    pub(crate) fn check(&mut self) -> Result<()> {
        let lost = || Error::invalid("a container of this session could not be stored");
        self.has_failed.then(|| self.failure.take().unwrap_or_else(lost)).map_or(Ok(()), Err)
    }
}

#[derive(Default)]
pub(crate) struct QueueState {
    pub(crate) waiting: VecDeque<(u64, Upload)>,
    pub(crate) sending: usize,
    pub(crate) accounts: HashMap<u64, Account>,
    pub(crate) next_account: u64,
    pub(crate) threads: Vec<JoinHandle<()>>,
    stop: bool,
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(crate) changed: Condvar,
}

impl Queue {
    pub(crate) fn state(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    pub(crate) fn wait<'s>(&self, state: MutexGuard<'s, QueueState>) -> MutexGuard<'s, QueueState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The next container to send; `None` once there will be none.
    pub(crate) fn next(&self) -> Option<(u64, Upload)> {
        let mut state = self.state();
        while !state.stop {
            if let Some(next) = state.waiting.pop_front() {
                state.sending += 1;
                return Some(next);
            }
            state = self.wait(state);
        }
        None
    }

    /// Enters what came of sending a container in its account.
    pub(crate) fn sent(&self, account: u64, result: Result<u32>) {
        let mut state = self.state();
        state.sending -= 1;
        if let Some(account) = state.accounts.get_mut(&account) {
            account.under_way -= 1;
            match result {
                Ok(number) => account.durable.push(number),
                Err(error) => {
                    account.has_failed = true;
                    account.failure.get_or_insert(error);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The threads that send, and the buffers that they share. They end with the last that uses them.
pub(crate) struct Uploader(pub(crate) Arc<Queue>);

impl Drop for Uploader {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.0.state();
            state.stop = true;
            self.0.changed.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// The uploader of a repository, while one is used.
#[derive(Clone, Default)]
pub struct SharedUploader(pub(crate) Arc<Mutex<Weak<Uploader>>>);
