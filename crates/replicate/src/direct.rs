//! Replication inside one process, which has both repositories open.

use std::collections::VecDeque;

use silt_backup::{BackupOptions, Recognition, ReplicaPeer};
use silt_format::replica::{ReplicaMessage, SourceMessage};
use silt_format::{Advice, Error, ErrorKind, Result};
use silt_repository::Repository;

use crate::connection::{Connection, master_of};
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

    fn translate(&mut self, to: Recognition) -> Result<()> {
        self.source.translate(to);
        Ok(())
    }
}

/// Brings snapshots of `source` to `replica`.
///
/// Fails with `Invalid` if both are the same repository; without
/// [`foreign`](ReplicateOptions::foreign), with `Invalid` if they have different secrets, and with
/// `Denied` if the replica's key only writes. Snapshots that can't be read, or that the replica
/// refuses, are in the report.
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
    let why_foreign = foreign(source, replica)?;
    if let Some(error) = why_foreign.as_ref().filter(|_| !options.foreign) {
        let error = Error::new(error.kind(), error.to_string());
        return Err(error.with_advice(Advice::ReplicateForeign));
    }
    let mut source = Source::new(source, options)?;
    // What is not sent need not be small.
    source.set_frames(FrameUse::Stored);
    let mut direct =
        Direct { source: &mut source, sent: VecDeque::new(), watch: &mut |message| watch(message) };
    let mut replica = match why_foreign {
        Some(_) => Replica::foreign(replica, replica_options),
        None => Replica::new(replica, replica_options),
    };
    replica.serve(&mut direct)?;
    Ok(source.into_report())
}

/// Returns why nothing that `source` has can be recognised in `replica`, so that it must be read
/// and stored anew; `None` if both have the same secret.
///
/// Fails with `Invalid` if both are the same repository, with `Denied` if the key of `source` can't
/// read data.
pub fn foreign(source: &Repository, replica: &Repository) -> Result<Option<Error>> {
    if source.id() == replica.id() {
        return Err(Error::invalid("the source and the destination are the same repository"));
    }
    let ours = master_of(source)?;
    Ok(match replica.objects.keys.master() {
        Some(theirs) if ours.expose() == theirs.expose() => None,
        Some(_) => Some(Error::invalid(
            "the destination was not made as a replica of this repository: it has another secret, \
             so everything that it lacks must be read and stored anew",
        )),
        None => Some(Error::new(
            ErrorKind::Denied,
            "the destination is opened with a write-only key, which does not have its secret, so \
             everything that it lacks must be read and stored anew",
        )),
    })
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
