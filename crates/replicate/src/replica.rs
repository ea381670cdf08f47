//! The end that takes snapshots.

use std::collections::{HashMap, HashSet};

use silt_backup::{BackupOptions, BackupReport, BackupSession, ReceivedBases, ReplicaPeer, Taken};
use silt_format::replica::{Begin, KnownSnapshot, Origin, ReplicaMessage, SourceMessage};
use silt_format::{ALONE, Head, Id, SeriesId};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::Repository;
use silt_repository::env::Context;
use silt_repository::event::Warning;

/// Called after a snapshot of a series was committed whose chunks have come as deltas, so that they
/// can be stored as such. An error is a warning: the snapshot is there, with whole chunks.
pub type KeepDeltas<'k> = dyn Fn(&Context, &ReceivedBases) -> Result<()> + Send + Sync + 'k;

/// The end that takes snapshots.
pub struct Replica<'r> {
    repository: &'r Repository,
    options: BackupOptions,
    /// Whether the source has another secret.
    is_foreign: bool,
    committed: u64,
    /// The snapshots of each series that the source knows to be here. It decides by them which ones
    /// it sends.
    told: HashMap<SeriesId, HashSet<Id>>,
    keep: Option<&'r KeepDeltas<'r>>,
}

/// How often a series is looked at anew whose snapshots are removed meanwhile.
const LOOKS_MAX: usize = 5;

impl<'r> Replica<'r> {
    /// A replica in `repository`; of `options`, jobs, memory and detection count.
    pub fn new(repository: &'r Repository, options: BackupOptions) -> Self {
        let (is_foreign, committed, told) = (false, 0, HashMap::new());
        Self { repository, options, is_foreign, committed, told, keep: None }
    }

    /// The same, and calls `keep` after each snapshot whose chunks have come as deltas.
    #[must_use]
    pub fn keeping(self, keep: Option<&'r KeepDeltas<'r>>) -> Self {
        Self { keep, ..self }
    }

    /// The same for a source with another secret, which translates what it describes.
    pub fn foreign(repository: &'r Repository, options: BackupOptions) -> Self {
        Self { is_foreign: true, ..Self::new(repository, options) }
    }

    /// Answers a source until it ends the connection; returns the number of snapshots that were
    /// committed.
    ///
    /// Fails if the connection does, or if the source breaks the protocol. A snapshot that can't
    /// be taken is refused, and the next one is waited for.
    pub fn serve(&mut self, peer: &mut dyn ReplicaPeer) -> Result<u64> {
        let mut next = None;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => peer.receive()?,
            };
            match message {
                SourceMessage::Ask { series } => {
                    let answer = self.known(&series).unwrap_or_else(|error| failed(&error));
                    peer.send(answer)?;
                }
                SourceMessage::Begin(begin) => next = self.take(*begin, peer)?,
                SourceMessage::Bye => return Ok(self.committed),
                _ => return Err(Error::invalid("the source sent a message at the wrong time")),
            }
        }
    }

    /// The snapshots of a series that are here, living and deleted.
    fn known(&mut self, series: &str) -> Result<ReplicaMessage> {
        let objects = &self.repository.objects;
        objects.believed.require_may_write(objects.signer.id(), series)?;
        let id = self.repository.series_id(series);
        self.told.remove(&id);
        let mut last_generation = None;
        for _ in 0..LOOKS_MAX {
            let head = match self.repository.head(id) {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(ReplicaMessage::Known(Vec::new())),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Ok(ReplicaMessage::Known(Vec::new()));
                }
                Err(error) => return Err(error),
            };
            // What an unchanged head names is missing for good.
            let is_unchanged = last_generation == Some(head.generation);
            last_generation = Some(head.generation);
            if let Some(known) = self.known_of(&head, is_unchanged)? {
                self.told.insert(id, all_ids(&head).collect());
                return Ok(ReplicaMessage::Known(known));
            }
        }
        let message = format!("series '{series}' changes all the time; replicate it later");
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// The snapshots of a head; `None` if some have been removed since it was read.
    fn known_of(&self, head: &Head, is_unchanged: bool) -> Result<Option<Vec<KnownSnapshot>>> {
        let living = head.snapshots.iter().map(|entry| (entry, false));
        let deleted = head.deleted.iter().map(|deleted| (&deleted.entry, true));
        let mut known = Vec::new();
        for (entry, is_deleted) in living.chain(deleted) {
            let origin = match self.repository.snapshot(head.series, entry) {
                Ok(snapshot) => snapshot.origin,
                Err(error) if error.kind() == ErrorKind::NotFound && !is_unchanged => {
                    return Ok(None);
                }
                // A snapshot that is damaged stands for itself.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                    None
                }
                Err(error) => return Err(error),
            };
            let itself = Origin { repository: self.repository.id(), snapshot: entry.id };
            let origin = origin.unwrap_or(itself);
            known.push(KnownSnapshot { origin, time_ns: entry.time_ns, is_deleted });
        }
        Ok(Some(known))
    }

    /// Takes a snapshot. Returns the message that comes after it, if it was read already.
    fn take(&mut self, begin: Begin, peer: &mut dyn ReplicaPeer) -> Result<Option<SourceMessage>> {
        let (volume, bases) = (String::new(), None);
        let mut line = Line { peer, has_failed: false, is_given_up: false, volume, bases };
        match self.add(begin, &mut line) {
            Ok(report) => {
                self.committed += 1;
                let (series, id) = (report.snapshot.series, report.snapshot.id);
                self.told.entry(series).or_default().insert(id);
                line.peer.send(ReplicaMessage::Committed {
                    snapshot: report.snapshot.id,
                    generation: report.generation,
                    stored_bytes: report.stored_bytes,
                })?;
                self.keep_deltas(line.bases.as_ref());
                Ok(None)
            }
            // The connection has failed, not the snapshot.
            Err(error) if line.has_failed => Err(error),
            Err(error) => {
                // Also if the source has given up: then it knows that no more answers come.
                line.peer.send(failed(&error))?;
                if line.is_given_up {
                    return Ok(None);
                }
                if error.kind() == ErrorKind::Interrupted {
                    return Err(error);
                }
                skip(line.peer).map(Some)
            }
        }
    }

    /// Lets what has come as deltas be stored as such.
    fn keep_deltas(&self, bases: Option<&ReceivedBases>) {
        let bases = bases.filter(|bases| !bases.volumes().is_empty());
        let Some((keep, bases)) = self.keep.zip(bases) else { return };
        if let Err(error) = keep(&self.repository.objects.context, bases) {
            let what = "the chunks of the snapshot stay whole";
            self.repository.warn(Warning::after(&error, what));
        }
    }

    fn add(&self, begin: Begin, line: &mut Line<'_>) -> Result<BackupReport> {
        let Begin { series, domain, labels, origin, snapshot } = begin;
        let options = BackupOptions {
            tags: labels,
            no_share: domain == ALONE,
            taken: Taken {
                time_ns: Some(snapshot.time_ns),
                duration_ms: Some(snapshot.duration_ms),
                host: Some(snapshot.host.clone()),
                program: Some(snapshot.program.clone()),
                origin: Some(origin),
            },
            ..self.options.clone()
        };
        let mut session: BackupSession<'_> =
            BackupSession::begin(self.repository, &series, options)?;
        if self.is_foreign {
            line.peer.translate(session.recognition())?;
        } else {
            session.require_series(snapshot.series, domain)?;
        }
        let told = self.told.get(&self.repository.series_id(&series));
        session.require_known(|id| told.is_some_and(|told| told.contains(&id)))?;
        line.send(ReplicaMessage::Ready { parent: session.parent_origin() })?;
        line.bases = self.keep.map(|_| session.received_bases());
        for volume in &snapshot.volumes {
            line.volume.clone_from(&volume.name);
            session.add_described(volume, line)?;
        }
        match line.receive()? {
            SourceMessage::Commit => session.finish(),
            SourceMessage::Abort => {
                Err(Error::new(ErrorKind::Interrupted, "the source gave the snapshot up"))
            }
            _ => Err(Error::invalid("the source sent a message in place of the commit")),
        }
    }
}

/// The ids of the snapshots of a series, deleted ones, too.
fn all_ids(head: &Head) -> impl Iterator<Item = Id> {
    let deleted = head.deleted.iter().map(|deleted| deleted.entry.id);
    head.snapshots.iter().map(|entry| entry.id).chain(deleted)
}

/// A connection that remembers whether it has failed.
struct Line<'p> {
    peer: &'p mut dyn ReplicaPeer,
    has_failed: bool,
    /// Whether the source gave the snapshot up.
    is_given_up: bool,
    /// The volume that is described, and the bases of all deltas so far.
    volume: String,
    bases: Option<ReceivedBases>,
}

impl ReplicaPeer for Line<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        let sent = self.peer.send(message);
        self.has_failed |= sent.is_err();
        sent
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        let received = self.peer.receive();
        self.has_failed |= received.is_err();
        self.is_given_up |= matches!(received, Ok(SourceMessage::Abort));
        if let (Ok(SourceMessage::Delta(delta)), Some(bases)) = (&received, &mut self.bases) {
            bases.add(&self.volume, &delta.bases);
        }
        received
    }
}

/// Reads on until the source begins something else.
fn skip(peer: &mut dyn ReplicaPeer) -> Result<SourceMessage> {
    loop {
        let message = peer.receive()?;
        let is_next = matches!(
            message,
            SourceMessage::Begin(_) | SourceMessage::Ask { .. } | SourceMessage::Bye
        );
        if is_next {
            return Ok(message);
        }
    }
}

fn failed(error: &Error) -> ReplicaMessage {
    ReplicaMessage::Failed { kind: error.kind(), message: error.to_string() }
}
