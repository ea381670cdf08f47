//! Identifies the operations of a process, and stops a single one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Names an operation within its process. It is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(u64);

static NEXT: AtomicU64 = AtomicU64::new(1);

impl OperationId {
    /// An id that no other operation of this process has.
    pub(crate) fn next() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Stops an operation from another thread.
///
/// The operation fails with [`Interrupted`](silt_format::ErrorKind::Interrupted) at its next safe
/// point, usually within a second. The repository stays intact, and the next backup uses the
/// uploaded containers.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Token>);

#[derive(Debug, Default)]
struct Token {
    is_cancelled: AtomicBool,
    parent: Option<CancelToken>,
}

impl CancelToken {
    /// A token that is cancelled by itself, and with this one.
    pub(crate) fn child(&self) -> Self {
        let parent = Some(self.clone());
        Self(Arc::new(Token { is_cancelled: AtomicBool::new(false), parent }))
    }

    /// Asks the operation to stop; this cannot be undone.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the operation was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        let mut token = self;
        loop {
            if token.0.is_cancelled.load(Ordering::Relaxed) {
                return true;
            }
            match &token.0.parent {
                Some(parent) => token = parent,
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_cancelled_with_its_parent_and_not_with_its_siblings() {
        let parent = CancelToken::default();
        let (one, other) = (parent.child(), parent.child());
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !parent.is_cancelled());
        parent.cancel();
        assert!(other.is_cancelled() && other.child().is_cancelled());
    }

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        assert_ne!(OperationId::next(), OperationId::next());
    }
}
