//! A wrapper that records the operations on a storage.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use silt_format::{ErrorKind, Result};

use crate::storage::body_bytes;
use crate::{
    ByteRange, Guarantees, Key, ListPage, ObjectMeta, Operation, OperationKind, PutMode, Storage,
    TaggedPage, Usage,
};

/// Maximum number of operations recorded individually; later ones count only in the totals.
pub const RECORDS_MAX: usize = 1 << 20;

/// An operation and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The operation.
    pub operation: Operation,
    /// Bytes written by a put or read by a get, zero for others; or the kind of the error.
    pub outcome: Result<u64, ErrorKind>,
}

/// Totals of the operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Operations, failed ones included.
    pub operations: u64,
    /// Those that failed.
    pub failures: u64,
    /// Objects named by the successful ones; for listings, objects listed.
    pub objects: u64,
    /// Bytes written or read by the successful ones.
    pub bytes: u64,
}

/// A storage that records every operation, in order of completion.
#[derive(Debug)]
pub struct RecordingStorage<S> {
    inner: S,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    records: Vec<Record>,
    totals: BTreeMap<OperationKind, Totals>,
}

/// The amounts of a successful operation.
#[derive(Default)]
struct Amount {
    objects: u64,
    bytes: u64,
}

impl<S: Storage> RecordingStorage<S> {
    /// Records the operations on `inner` from now on.
    pub fn new(inner: S) -> Self {
        Self { inner, log: Mutex::default() }
    }

    /// The storage below.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The operations so far, at most [`RECORDS_MAX`].
    pub fn records(&self) -> Vec<Record> {
        self.log().records.clone()
    }

    /// The totals of one kind of operation.
    pub fn totals(&self, kind: OperationKind) -> Totals {
        self.log().totals.get(&kind).copied().unwrap_or_default()
    }

    /// Forgets everything recorded, and returns the operations.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.log()).records
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // At worst one operation, whose caller panicked, is counted in part.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record<T>(
        &self,
        operation: Operation,
        carry_out: impl FnOnce() -> Result<(T, Amount)>,
    ) -> Result<T> {
        let result = carry_out();
        let mut log = self.log();
        let totals = log.totals.entry(operation.kind()).or_default();
        totals.operations += 1;
        let outcome = match &result {
            Ok((_, amount)) => {
                totals.objects += amount.objects;
                totals.bytes += amount.bytes;
                Ok(amount.bytes)
            }
            Err(error) => {
                totals.failures += 1;
                Err(error.kind())
            }
        };
        if log.records.len() < RECORDS_MAX {
            log.records.push(Record { operation, outcome });
        }
        result.map(|(value, _)| value)
    }
}

impl<S: Storage> Storage for RecordingStorage<S> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.record(Operation::put(key, body), || {
            self.inner.put_bytes(key, body, mode)?;
            Ok(((), Amount { objects: 1, bytes: body_bytes(body) }))
        })
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.record(Operation::put(key, body), || {
            let tag = self.inner.put_tagged(key, body, mode)?;
            Ok((tag, Amount { objects: 1, bytes: body_bytes(body) }))
        })
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.record(Operation::get(key, range), || {
            self.inner.get(key, range, into)?;
            Ok(((), Amount { objects: 1, bytes: into.len() as u64 }))
        })
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.record(Operation::get(key, range), || {
            self.inner.get_from(copy, key, range, into)?;
            Ok(((), Amount { objects: 1, bytes: into.len() as u64 }))
        })
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
        self.record(Operation::head(key), || {
            self.inner.settle(key)?;
            Ok(((), Amount { objects: 1, bytes: 0 }))
        })
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.record(Operation::head(key), || {
            Ok((self.inner.head(key)?, Amount { objects: 1, bytes: 0 }))
        })
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.record(Operation::delete(keys), || {
            self.inner.delete(keys)?;
            Ok(((), Amount { objects: keys.len() as u64, bytes: 0 }))
        })
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.record(Operation::list(prefix, after), || {
            let page = self.inner.list(prefix, after)?;
            let objects = page.objects.len() as u64;
            Ok((page, Amount { objects, bytes: 0 }))
        })
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.record(Operation::list(prefix, after), || {
            let page = self.inner.list_from(copy, prefix, after)?;
            let objects = page.objects.len() as u64;
            Ok((page, Amount { objects, bytes: 0 }))
        })
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        self.record(Operation::list(prefix, after), || {
            let tagged = self.inner.list_tagged(prefix, after)?;
            let objects = tagged.page.objects.len() as u64;
            Ok((tagged, Amount { objects, bytes: 0 }))
        })
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
