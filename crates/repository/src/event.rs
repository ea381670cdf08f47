//! Events: what an operation reports while it runs.

use std::fmt;

use silt_format::{Advice, Error, ErrorKind};
use silt_tree::{LeftOut, Unreliable};

use crate::operation::OperationId;

/// The work whose progress is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activity {
    /// A volume is backed up.
    Backup,
    /// An archive is read before it is backed up.
    Unpack,
    /// A round looks for data that is new to a series.
    Scan,
    /// A round stores chunks that several machines have.
    Share,
    /// A volume is restored.
    Restore,
    /// Stored data is read and verified.
    Check,
    /// Snapshots are followed down to their chunks.
    CheckStructure,
    /// Containers are rewritten without their dead chunks.
    Reclaim,
    /// Chunks of a series are replaced by links to the shared store.
    Repoint,
    /// Popular chunks are copied to the shared store.
    CopyPopular,
    /// Copies of the repository are compared, and damaged objects replaced.
    Heal,
    /// A bucket is put back to an earlier time.
    RollBack,
    /// Object locks are extended.
    ExtendLocks,
    /// Objects of a test are removed.
    CleanUp,
    /// A volume is copied to another repository.
    Replicate,
    /// Chunks that resemble others become deltas.
    Optimize,
    /// The process of a storage node reads what the node's containers hold.
    ReadNode,
}

impl Activity {
    /// A stable name for logs and messages to programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Unpack => "unpack",
            Self::Scan => "scan",
            Self::Share => "share",
            Self::Restore => "restore",
            Self::Check => "check",
            Self::CheckStructure => "check structure",
            Self::Reclaim => "reclaim",
            Self::Repoint => "repoint",
            Self::CopyPopular => "popular",
            Self::Heal => "heal",
            Self::RollBack => "rollback",
            Self::ExtendLocks => "extend locks",
            Self::CleanUp => "clean up",
            Self::Replicate => "replicate",
            Self::Optimize => "optimize",
            Self::ReadNode => "read node",
        }
    }
}

/// The unit of [`Progress::done`] and [`Progress::total`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Logical bytes of volumes, or bytes of stored objects.
    Bytes,
    /// Objects in a storage.
    Objects,
}

/// The progress of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The work.
    pub activity: Activity,
    /// The unit of `done` and `total`.
    pub unit: Unit,
    /// The amount done. Each volume or series of `Backup`, `Scan`, `Restore` and `Check` begins
    /// with a report of 0; other activities start again from a smaller amount.
    pub done: u64,
    /// The amount to do, if it is known.
    pub total: Option<u64>,
    /// Bytes of chunks that were not known before; of a restore, bytes written to the target.
    pub new_bytes: u64,
    /// Bytes written to storage.
    pub stored_bytes: u64,
    /// Entries of a file tree that were backed up or restored so far; 0 for disks.
    pub entries: u64,
}

impl Progress {
    /// Progress in bytes; `total` is `None` where it is not known.
    pub fn bytes(activity: Activity, done: u64, total: Option<u64>) -> Self {
        let unit = Unit::Bytes;
        Self { activity, unit, done, total, new_bytes: 0, stored_bytes: 0, entries: 0 }
    }

    /// Progress in objects; `total` is `None` where it is not known.
    pub fn objects(activity: Activity, done: u64, total: Option<u64>) -> Self {
        Self { unit: Unit::Objects, ..Self::bytes(activity, done, total) }
    }
}

/// A problem that did not stop the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    kind: ErrorKind,
    message: String,
    advice: Option<Advice>,
}

impl Warning {
    /// Returns a warning; `message` names the object and the consequence.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), advice: None }
    }

    /// Returns a warning about an error that did not stop the operation; `consequence` says how it
    /// continued.
    pub fn after(error: &Error, consequence: &str) -> Self {
        let message = format!("{error}; {consequence}");
        Self { kind: error.kind(), message, advice: error.advice().cloned() }
    }

    /// The same warning with advice for the user.
    #[must_use]
    pub fn with_advice(mut self, advice: Advice) -> Self {
        self.advice = Some(advice);
        self
    }

    /// The kind that the problem would have as an error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns advice for the user, if there is any.
    pub fn advice(&self) -> Option<&Advice> {
        self.advice.as_ref()
    }
}

impl From<&Error> for Warning {
    fn from(error: &Error) -> Self {
        let (kind, advice) = (error.kind(), error.advice().cloned());
        Self { kind, message: error.to_string(), advice }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An event of an operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// The operation made progress.
    Progress(Progress),
    /// Something went wrong that did not stop the operation.
    Warning(&'e Warning),
    /// An entry of a file tree is left out. Only if the options of the backup ask for it.
    LeftOut(&'e LeftOut<'e>),
    /// Files on this file system are compared without metadata that is unreliable there.
    Unreliable(&'e Unreliable<'e>),
}

/// Receives the events of operations, often and from several threads at once, so it must return
/// quickly.
pub trait Observer: Send + Sync {
    /// Takes note of an event of an operation.
    fn event(&self, operation: OperationId, event: &Event<'_>);
}

/// An observer that ignores everything.
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: OperationId, _: &Event<'_>) {}
}
