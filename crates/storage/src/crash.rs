//! A wrapper that stops a program after a number of operations.

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result};

use crate::{
    ByteRange, Guarantees, Key, ListPage, ObjectMeta, Operation, OperationKind, PutMode, Storage,
    TaggedPage, Usage,
};

/// Which operations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Puts, and each object of a delete: operations that can change the surviving state.
    Mutations,
    /// Reads, size requests and listings too.
    Everything,
}

/// The result of the operation at which the crash occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashingOperation {
    /// The crash occurred before it took effect.
    Lost,
    /// It took effect, but its response was lost in the crash.
    Applied,
}

/// A storage that crashes: some operations succeed, the next one is struck, and all later ones
/// fail.
///
/// Later operations fail with `Interrupted` and change nothing. The storage below, usually an `Arc`
/// of a [`MemoryStorage`](crate::MemoryStorage), holds the state after the crash. To stop a program
/// at every operation, first count its operations without a crash, then strike at each of them.
#[derive(Debug)]
pub struct CrashStorage<S> {
    inner: S,
    succeeding: u64,
    counted: Counted,
    struck: CrashingOperation,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    succeeded: u64,
    crashed: bool,
}

impl<S: Storage> CrashStorage<S> {
    /// Lets `succeeding` operations of the kind `counted` through and strikes the next one,
    /// which is `struck` before or after it takes effect.
    pub fn new(inner: S, succeeding: u64, counted: Counted, struck: CrashingOperation) -> Self {
        Self { inner, succeeding, counted, struck, state: Mutex::default() }
    }

    /// The storage below, which survives.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Counted operations that succeeded so far; one delete counts once for each of its objects.
    pub fn succeeded(&self) -> u64 {
        self.state().succeeded
    }

    /// Whether the crash has occurred.
    pub fn has_crashed(&self) -> bool {
        self.state().crashed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changed only by assignments that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs one operation, or one object's part of it, unless the crash has occurred.
    fn step<T>(
        &self,
        kind: OperationKind,
        describe: impl Fn() -> Operation,
        carry_out: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        // Held meanwhile, so that no operation of another thread takes effect after the crash.
        let mut state = self.state();
        let counts = kind.is_mutation() || self.counted == Counted::Everything;
        if !state.crashed && counts && state.succeeded == self.succeeding {
            state.crashed = true;
            if kind.is_mutation() && self.struck == CrashingOperation::Applied {
                carry_out()?;
            }
            return Err(interrupted(&describe()));
        }
        if state.crashed {
            return Err(interrupted(&describe()));
        }
        let value = carry_out()?;
        state.succeeded += u64::from(counts);
        Ok(value)
    }
}

fn interrupted(operation: &Operation) -> Error {
    Error::new(ErrorKind::Interrupted, format!("crashed at {operation:?}"))
}

impl<S: Storage> Storage for CrashStorage<S> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        let describe = || Operation::put(key, body);
        self.step(OperationKind::Put, describe, || self.inner.put_bytes(key, body, mode))
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        let describe = || Operation::put(key, body);
        self.step(OperationKind::Put, describe, || self.inner.put_tagged(key, body, mode))
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        let describe = || Operation::get(key, range);
        self.step(OperationKind::Get, describe, || self.inner.get(key, range, into))
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        let describe = || Operation::get(key, range);
        self.step(OperationKind::Get, describe, || self.inner.get_from(copy, key, range, into))
    }

    fn copies(&self, key: &Key) -> usize {
        self.inner.copies(key)
    }

    fn forget(&self, key: &Key) -> bool {
        self.inner.forget(key)
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.step(OperationKind::Head, || Operation::head(key), || self.inner.settle(key))
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.step(OperationKind::Head, || Operation::head(key), || self.inner.head(key))
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        // No storage deletes several objects atomically: a crash may leave any number of them.
        for key in keys {
            let one = std::slice::from_ref(key);
            let describe = || Operation::delete(keys);
            self.step(OperationKind::Delete, describe, || self.inner.delete(one))?;
        }
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let describe = || Operation::list(prefix, after);
        self.step(OperationKind::List, describe, || self.inner.list(prefix, after))
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let describe = || Operation::list(prefix, after);
        self.step(OperationKind::List, describe, || self.inner.list_from(copy, prefix, after))
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        let describe = || Operation::list(prefix, after);
        self.step(OperationKind::List, describe, || self.inner.list_tagged(prefix, after))
    }

    fn uploads(&self) -> usize {
        self.inner.uploads()
    }

    fn requests_at_once(&self) -> usize {
        self.inner.requests_at_once()
    }

    fn request_bytes(&self) -> u64 {
        self.inner.request_bytes()
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.inner.soonest_answer_ns()
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
