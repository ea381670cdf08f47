//! A wrapper whose operations fail as a rule decides.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result};

use crate::{
    ByteRange, Guarantees, Key, ListPage, ObjectMeta, Operation, OperationKind, PutMode, Storage,
    TaggedPage, Usage,
};

/// The fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is carried out.
    Pass,
    /// It fails with this kind, and nothing was done.
    FailBefore(ErrorKind),
    /// The operation is executed, and its result replaced by an error of this kind: a lost
    /// response. If the operation itself fails, its own error stays.
    FailAfter(ErrorKind),
    /// A read returns at most this many bytes, as if the object ended there.
    TruncateRead {
        /// Bytes left.
        bytes: u64,
    },
    /// A read returns one wrong bit; an empty one is left alone.
    FlipRead {
        /// The byte, from the start of what was read; it wraps around at the end.
        byte: u64,
        /// The bit, 0 to 7.
        bit: u8,
    },
}

/// Decides about operations; closures `Fn(&Operation, u64) -> Fault` are rules.
pub trait FaultRule: Send + Sync {
    /// Returns the fault of `operation`, the `index`-th (from 0) that reaches the wrapper.
    ///
    /// `TruncateRead` and `FlipRead` are for gets only; for another operation the wrapper panics.
    fn decide(&self, operation: &Operation, index: u64) -> Fault;
}

impl<F: Fn(&Operation, u64) -> Fault + Send + Sync> FaultRule for F {
    fn decide(&self, operation: &Operation, index: u64) -> Fault {
        self(operation, index)
    }
}

/// A storage whose operations fail as a rule decides.
pub struct FaultStorage<S> {
    inner: S,
    rule: Box<dyn FaultRule>,
    operations: AtomicU64,
}

impl<S: Storage> FaultStorage<S> {
    /// Puts `rule` before `inner`.
    pub fn new(inner: S, rule: impl FaultRule + 'static) -> Self {
        Self { inner, rule: Box::new(rule), operations: AtomicU64::new(0) }
    }

    /// The storage below.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn run<T>(
        &self,
        operation: &Operation,
        carry_out: impl FnOnce(Fault) -> Result<T>,
    ) -> Result<T> {
        let index = self.operations.fetch_add(1, Ordering::Relaxed);
        let fault = self.rule.decide(operation, index);
        match fault {
            Fault::Pass => {}
            Fault::FailBefore(kind) => return Err(injected(kind, "before", operation)),
            Fault::FailAfter(kind) => {
                carry_out(fault)?;
                return Err(injected(kind, "after", operation));
            }
            Fault::TruncateRead { .. } | Fault::FlipRead { .. } => assert!(
                operation.kind() == OperationKind::Get,
                "the rule asks for {fault:?}, which only reads can have, of {operation:?}"
            ),
        }
        carry_out(fault)
    }
}

fn injected(kind: ErrorKind, when: &str, operation: &Operation) -> Error {
    Error::new(kind, format!("injected failure {when} {operation:?}"))
}

/// Does to the bytes of a read what the fault says.
fn alter(fault: Fault, bytes: &mut Vec<u8>) {
    match fault {
        Fault::TruncateRead { bytes: left } => {
            bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        }
        Fault::FlipRead { byte, bit } => {
            assert!(bit < 8, "a byte has no bit {bit}");
            if !bytes.is_empty() {
                let at = usize::try_from(byte % bytes.len() as u64).unwrap_or(0);
                bytes[at] ^= 1 << bit;
            }
        }
        // Not even the bytes of an answer that was lost may arrive.
        Fault::FailBefore(_) | Fault::FailAfter(_) => bytes.clear(),
        Fault::Pass => {}
    }
}

impl<S: Storage> Storage for FaultStorage<S> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.run(&Operation::put(key, body), |_| self.inner.put_bytes(key, body, mode))
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        self.run(&Operation::put(key, body), |_| self.inner.put_tagged(key, body, mode))
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        self.run(&Operation::get(key, range), |fault| {
            self.inner.get(key, range, into)?;
            alter(fault, into);
            Ok(())
        })
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        self.run(&Operation::get(key, range), |fault| {
            self.inner.get_from(copy, key, range, into)?;
            alter(fault, into);
            Ok(())
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
        self.run(&Operation::head(key), |_| self.inner.settle(key))
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.run(&Operation::head(key), |_| self.inner.head(key))
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.run(&Operation::delete(keys), |_| self.inner.delete(keys))
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.run(&Operation::list(prefix, after), |_| self.inner.list(prefix, after))
    }

    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let operation = Operation::list(prefix, after);
        self.run(&operation, |_| self.inner.list_from(copy, prefix, after))
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        self.run(&Operation::list(prefix, after), |_| self.inner.list_tagged(prefix, after))
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
