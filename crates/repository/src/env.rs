//! The environment of operations: clock, entropy and process, the observer, memory, and
//! cancellation.

use std::path::PathBuf;
use std::sync::Arc;

use silt_format::{Lease, RepositoryId, SeriesId};

use crate::budget::Budget;
use crate::event::{Event, Observer, Progress, Warning};
use crate::operation::{CancelToken, OperationId};

/// Time, randomness and the identity of the process; a simulation provides its own.
pub trait Env: Send + Sync {
    /// Nanoseconds since 1970.
    fn now_ns(&self) -> i64;
    /// Fills `bytes` with cryptographically strong random bytes.
    fn entropy(&self, bytes: &mut [u8]);
    /// This process, for leases.
    fn process(&self) -> Process;
    /// Whether the process that holds `lease` may still be running; `true` if that is not known.
    fn may_be_running(&self, lease: &Lease) -> bool;
    /// How many nanoseconds an operation waits for another process that is changing the series
    /// before it fails with `Busy`.
    fn patience_ns(&self) -> u64 {
        0
    }
    /// Whether the user has asked to stop.
    fn is_interrupted(&self) -> bool;
    /// Whether each operation does all its work on its caller's thread, so that a simulation which
    /// lets one thread run at a time sees every step in an order that a seed decides.
    fn is_single_threaded(&self) -> bool {
        false
    }
    /// The highest number of a head of a series, or of a list of writers where the series is
    /// [`NONE`](SeriesId::NONE), that this machine has noted; 0 if it keeps no notes. A storage
    /// that shows less serves an old state.
    fn newest_seen(&self, _repository: RepositoryId, _series: SeriesId) -> u64 {
        0
    }
    /// Whether a storage that shows an older state is accepted, because it was rolled back on
    /// purpose.
    fn accepts_older(&self) -> bool {
        false
    }
    /// Notes such a number, if the machine keeps notes.
    fn note_newest(&self, _repository: RepositoryId, _series: SeriesId, _newest: u64) {}
    /// The folder in which this machine remembers segments of a repository's volumes that it has
    /// read; `None` if it remembers nothing. It may be absent, and be removed at any time. Nothing
    /// else may be in it.
    fn segment_notes(&self, _repository: RepositoryId) -> Option<PathBuf> {
        None
    }
    /// Waits for `nanoseconds`; a simulation with a clock of its own need not.
    fn sleep_ns(&self, _nanoseconds: u64) {}
}

/// Identifies a process of one boot of a host.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The host's name.
    pub host: String,
    /// Identifies this boot of the host.
    pub boot: String,
    /// The process number.
    pub id: u32,
    /// When the process started, in the host's own unit.
    pub start: u64,
}

/// The context of an operation. The operation reports to the observer under its id, and fails with
/// `Interrupted` once its token is cancelled.
#[derive(Clone)]
pub struct Context {
    /// Clock, entropy and process.
    pub env: Arc<dyn Env>,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
    /// The memory limit of each operation whose options set none, in bytes; 0 for
    /// [`MEMORY_BYTES_DEFAULT`](crate::budget::MEMORY_BYTES_DEFAULT). A process that runs several
    /// at once gives each its share.
    pub memory_bytes: u64,
    /// Stops the operations of this context.
    pub cancel: CancelToken,
    /// Identifies the operations of this context in events.
    pub id: OperationId,
}

impl Context {
    /// Returns a context whose operations use the default amount of memory.
    pub fn new(env: Arc<dyn Env>, observer: Arc<dyn Observer>) -> Self {
        let (cancel, id) = (CancelToken::default(), OperationId::next());
        Self { env, observer, memory_bytes: 0, cancel, id }
    }

    /// Returns a context for one of several concurrent operations, with an id of its own. Its
    /// cancel token is also cancelled with this context's.
    #[must_use]
    pub fn operation(&self) -> Self {
        Self { cancel: self.cancel.child(), id: OperationId::next(), ..self.clone() }
    }

    /// Returns the same context with a token of its own, which is also cancelled with this one's.
    #[must_use]
    pub fn operation_beside(&self) -> Self {
        Self { cancel: self.cancel.child(), ..self.clone() }
    }

    /// Reports progress.
    pub fn report(&self, progress: Progress) {
        self.observer.event(self.id, &Event::Progress(progress));
    }

    /// Reports a problem that did not stop the operation.
    pub fn warn(&self, warning: impl Into<Warning>) {
        self.observer.event(self.id, &Event::Warning(&warning.into()));
    }

    /// Returns the budget of an operation that may use `memory_bytes`; 0 stands for the context's
    /// limit.
    pub fn budget(&self, memory_bytes: u64) -> Budget {
        Budget::new(if memory_bytes == 0 { self.memory_bytes } else { memory_bytes })
    }

    /// Returns `N` random bytes.
    pub fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.env.entropy(&mut bytes);
        bytes
    }
    /// Returns the number of threads that work besides the caller's, at least one; 0 if the caller
    /// does all work.
    pub fn workers(&self, wanted: usize) -> usize {
        if self.env.is_single_threaded() { 0 } else { wanted.max(1) }
    }
    /// Returns a random number that is neither zero nor all ones.
    pub fn random_id(&self) -> u64 {
        loop {
            let id = u64::from_le_bytes(self.random());
            if id != 0 && id != u64::MAX {
                return id;
            }
        }
    }
    /// Seconds since 1970.
    pub fn now_s(&self) -> u64 {
        u64::try_from(self.env.now_ns() / 1_000_000_000).unwrap_or(0)
    }
    /// Whether the user has asked to stop the operation or the whole process.
    pub fn is_interrupted(&self) -> bool {
        self.cancel.is_cancelled() || self.env.is_interrupted()
    }
    /// Fails as `Interrupted` once [`Self::is_interrupted`].
    pub fn check_interrupted(&self) -> silt_format::Result<()> {
        if !self.is_interrupted() {
            return Ok(());
        }
        Err(silt_format::Error::new(
            silt_format::ErrorKind::Interrupted,
            "interrupted; the repository is intact, and the next run uses the uploaded data",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::SystemEnv;

    #[test]
    fn what_is_not_told_how_much_takes_its_share() {
        let mut context = SystemEnv::context();
        assert_eq!(context.budget(0), Budget::new(0));
        context.memory_bytes = 30 << 20;
        assert_eq!(context.budget(0), Budget::new(30 << 20));
        assert_eq!(context.budget(40 << 20), Budget::new(40 << 20));
    }
}
