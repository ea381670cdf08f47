//! Replication inside one process, which has both repositories open.

use std::collections::VecDeque;

use silt_backup::{BackupOptions, ReplicaPeer};
use silt_format::replica::{ReplicaMessage, SourceMessage};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::Repository;

use crate::connection::Connection;
use crate::replica::Replica;
use crate::source::{FrameUse, ReplicateOptions, ReplicateReport, Source};

/// Called with each message of the source before the replica takes it; an error ends the
/// replication.
pub type Watch<'w> = dyn FnMut(&SourceMessage) -> Result<()> + 'w;

/// A source that is asked for its next message whenever the replica waits for one.
struct Direct<'s, 'r> {
    source: &'s mut Source<'r>,
    sent: VecDeque<ReplicaMessage>,
    watch: &'s mut Watch<'s>,
}

impl ReplicaPeer for Direct<'_, '_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.sent.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        while let Some(message) = self.sent.pop_front() {
            self.source.take(message)?;
        }
        let message = self.source.produce()?;
        let waits = || Error::invalid("both ends of a replication wait for each other");
        let message = message.ok_or_else(waits)?;
        (self.watch)(&message)?;
        Ok(message)
    }
}

/// Brings snapshots of `source` to `replica`, a repository with the same secret.
///
/// Fails with `Invalid` if the repositories have different secrets or are the same one. Snapshots
/// that can't be read, or that the replica refuses, are in the report.
pub fn replicate(
    source: &Repository,
    replica: &Repository,
    options: ReplicateOptions,
    replica_options: BackupOptions,
) -> Result<ReplicateReport> {
    replicate_watched(source, replica, options, replica_options, &mut |_| Ok(()))
}

/// The same, and calls `watch` with each message of the source.
pub fn replicate_watched(
    source: &Repository,
    replica: &Repository,
    options: ReplicateOptions,
    replica_options: BackupOptions,
    watch: &mut Watch<'_>,
) -> Result<ReplicateReport> {
    require_one_secret(source, replica)?;
    let mut source = Source::new(source, options)?;
    // What is not sent need not be small.
    source.set_frames(FrameUse::Stored);
    let mut direct =
        Direct { source: &mut source, sent: VecDeque::new(), watch: &mut |message| watch(message) };
    Replica::new(replica, replica_options).serve(&mut direct)?;
    Ok(source.into_report())
}

fn require_one_secret(source: &Repository, replica: &Repository) -> Result<()> {
    if source.id() == replica.id() {
        return Err(Error::invalid("the source and the destination are the same repository"));
    }
    let master =
        |repository: &Repository| repository.objects.keys.master().map(|master| *master.expose());
    let (Some(ours), Some(theirs)) = (master(source), master(replica)) else {
        let message = "replication needs keys that can read data, for both repositories";
        return Err(Error::new(ErrorKind::Denied, message));
    };
    if ours != theirs {
        return Err(Error::invalid(
            "the destination was not made as a replica of this repository: its secret is another, \
             so nothing in it can be recognised",
        ));
    }
    Ok(())
}

/// Brings snapshots of `source` to the replica at the other end of a connection.
pub fn replicate_over(
    source: &Repository,
    options: ReplicateOptions,
    connection: &mut Connection<'_>,
) -> Result<ReplicateReport> {
    let mut source = Source::new(source, options)?;
    connection.send_from(&mut source)?;
    Ok(source.into_report())
}
