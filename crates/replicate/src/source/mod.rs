//! The end that has the snapshots.
//!
//! A [`Source`] is driven from outside: [`take`](Source::take) hands it a message of the replica,
//! [`produce`](Source::produce) asks for its next message. It never waits, so a test or a
//! simulator decides about every step.

mod backlog;
mod deltas;
mod plan;
mod steps;
mod translation;
mod volume;

use std::collections::VecDeque;

use silt_backup::Recognition;
use silt_format::number::to_u64;
use silt_format::replica::{Begin, KnownSnapshot, Origin, ReplicaMessage, SourceMessage};
use silt_format::{Error, ErrorKind, Result};
use silt_format::{Head, Id};
use silt_repository::event::{Activity, Progress};
use silt_repository::{Found, Repository};

pub use self::backlog::{SeriesBacklog, SeriesKnown, backlog};
use self::plan::Planned;
use self::steps::StepWalk;
use self::translation::Translation;
use self::volume::{Sending, VolumeSource};

/// Questions that are asked before the first is answered.
const QUESTIONS_MAX: usize = 64;
/// Answers to earlier messages that may come after a snapshot was given up: far more than a replica
/// can owe.
const LATE_ANSWERS_MAX: u32 = 1 << 16;

/// Which snapshots are brought to a replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicateOptions {
    /// Names of series, and beginnings of names followed by `*`; all if empty.
    pub series: Vec<String>,
    /// Whether a name may belong to no series. It then stands for no snapshots.
    pub may_be_absent: bool,
    /// Put in front of the names of series at the replica.
    pub prefix: String,
    /// Only snapshots with one of these labels, if there are any.
    pub tags: Vec<String>,
    /// Of the snapshots that a replica lacks, only this many of the newest of each series.
    pub newest: Option<usize>,
    /// Only find out what would be sent.
    pub dry_run: bool,
    /// Go on if the destination has another secret, or is opened with a key that only writes: all
    /// that it lacks is read, and stored anew under its secret.
    pub foreign: bool,
    /// Number of threads that read for a destination with another secret; 0 for one per core.
    pub jobs: usize,
    /// Send nothing after this time, in nanoseconds since 1970. A snapshot that is on its way is
    /// given up, unless it is being committed.
    pub until_ns: Option<i64>,
    /// Memory limit in bytes; 0 stands for the context's limit.
    pub memory_bytes: u64,
    /// Whether chunks go as deltas.
    pub delta: DeltaUse,
}

/// Whether chunks that resemble something in the parent go as deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeltaUse {
    /// On a connection to a replica that takes them, unless the line is faster than compression.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// When chunks go as frames. That costs less time, and more bytes, than a connection that
/// compresses all chunks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameUse {
    /// Never: the connection compresses.
    #[default]
    Never,
    /// Frames whose chunks were all asked for go as they are stored, other chunks raw.
    Stored,
    /// Other chunks are compressed to frames of their own.
    Always,
}

/// What became of a snapshot.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It would be sent.
    Planned,
    /// The replica has committed it, under this id.
    Sent(Id),
    /// It was deleted meanwhile.
    Gone,
    /// The time to send was over; the next replication sends it.
    Postponed,
    /// It could not be sent, or the replica did not take it.
    Failed(ErrorKind, String),
}

/// A snapshot that the replica lacked.
#[derive(Clone, Debug)]
pub struct SnapshotOutcome {
    /// The series at the source.
    pub series: String,
    /// Its name at the replica.
    pub to: String,
    /// The snapshot at the source.
    pub snapshot: Id,
    /// When the backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Size of its disks and files in bytes.
    pub bytes: u64,
    /// Bytes that its backup stored, compressed, together with those of the snapshots before it
    /// that are left out; `None` if that is not known. The replica may have some of them from other
    /// series.
    pub new_bytes: Option<u64>,
    /// Bytes of chunks that were sent, before compression.
    pub sent_bytes: u64,
    /// Of them, bytes of chunks that went as deltas.
    pub delta_bytes: u64,
    /// Bytes that were read to find out what a destination with another secret lacks.
    pub reread_bytes: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// The result of a replication.
#[derive(Clone, Debug, Default)]
pub struct ReplicateReport {
    /// Snapshots that the replica lacked, in the order in which they were sent.
    pub snapshots: Vec<SnapshotOutcome>,
    /// Number of series of which both already had a snapshot, one that is not dated in the future.
    /// Those that are dated in the future count, too, each of them.
    pub present: u64,
    /// Series that were not replicated, and why.
    pub refused: Vec<(String, String)>,
    /// What the replica holds now of each series that it was asked about.
    pub known: Vec<SeriesKnown>,
}

impl ReplicateReport {
    /// Whether everything that was to be sent was sent.
    pub fn is_complete(&self) -> bool {
        let is_fine = |snapshot: &SnapshotOutcome| !matches!(snapshot.outcome, Outcome::Failed(..));
        self.refused.is_empty() && self.snapshots.iter().all(is_fine)
    }

    /// Whether the time to send was over before everything was sent.
    pub fn is_postponed(&self) -> bool {
        self.snapshots.iter().any(|snapshot| matches!(snapshot.outcome, Outcome::Postponed))
    }
}

/// What the source is doing.
enum Stage {
    /// Asks what the replica has.
    Asking,
    /// Begins the next snapshot.
    Next,
    /// Waits until the replica is ready for one.
    Starting,
    /// Sends a volume's segments.
    Segments(Box<VolumeSource>),
    /// Sends a tree's entries.
    Steps(Box<StepWalk>),
    /// Waits until the replica has committed.
    Committing,
    /// The replica does not take the snapshot.
    Refused(ErrorKind, String),
    /// The snapshot can't be read.
    Lost(Error),
    /// Waits until the replica has heard that the snapshot is given up. Its answers to earlier
    /// messages come first.
    GivenUp(Outcome, u32),
    Done,
    /// The time to send is over; what the replica still says is about a snapshot that was given up.
    Stopped,
}

/// The end that has the snapshots.
pub struct Source<'r> {
    repository: &'r Repository,
    options: ReplicateOptions,
    heads: Vec<Head>,
    asked: usize,
    answered: usize,
    planned: VecDeque<Planned>,
    current: Option<Current>,
    stage: Stage,
    /// How a replica with another secret recognises the current snapshot.
    recognition: Option<Recognition>,
    report: ReplicateReport,
    frames: FrameUse,
    /// The zstd level of deltas, if they are sent.
    delta_level: Option<i32>,
}

/// Bytes that were moved for a snapshot, as in its [`SnapshotOutcome`].
#[derive(Clone, Copy, Default)]
struct Moved {
    sent: u64,
    in_deltas: u64,
    reread: u64,
}

/// The snapshot that is being sent.
struct Current {
    planned: Planned,
    found: Found,
    /// The snapshot that the replica compares it with.
    parent: Option<Found>,
    /// The next volume.
    volume: usize,
    moved: Moved,
}

impl<'r> Source<'r> {
    /// Prepares to replicate snapshots of `repository`.
    pub fn new(repository: &'r Repository, options: ReplicateOptions) -> Result<Self> {
        let heads = backlog::heads(repository, &options)?;
        Ok(Self {
            repository,
            options,
            heads,
            asked: 0,
            answered: 0,
            planned: VecDeque::new(),
            current: None,
            stage: Stage::Asking,
            recognition: None,
            report: ReplicateReport::default(),
            frames: FrameUse::Never,
            delta_level: None,
        })
    }

    /// Bytes of chunks of the current snapshot that were sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.moved.sent)
    }

    /// The time, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.repository.objects.context.env.now_ns()
    }

    /// Decides when chunks go as frames.
    pub fn set_frames(&mut self, frames: FrameUse) {
        self.frames = frames;
    }

    /// Sends deltas, which the replica must take, if the options allow it.
    ///
    /// `level` is their zstd level.
    pub fn set_deltas(&mut self, level: i32) {
        self.delta_level = Some(level).filter(|_| self.options.delta == DeltaUse::Auto);
    }

    /// From now on, describes snapshots to a replica with another secret.
    pub(crate) fn translate(&mut self, to: Recognition) {
        self.recognition = Some(to);
    }

    /// The report, once [`produce`](Self::produce) has returned [`Bye`](SourceMessage::Bye).
    pub fn into_report(self) -> ReplicateReport {
        self.report
    }

    /// What is reported so far.
    pub fn report(&self) -> &ReplicateReport {
        &self.report
    }

    /// Fails with `Interrupted` if the user asked to stop.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        self.repository.objects.context.check_interrupted()
    }

    /// Takes a message of the replica.
    ///
    /// Fails with `Invalid` if the replica breaks the protocol.
    pub fn take(&mut self, message: ReplicaMessage) -> Result<()> {
        match (message, &mut self.stage) {
            (ReplicaMessage::Known(known), Stage::Asking) if self.answered < self.asked => {
                let head = &self.heads[self.answered];
                self.answered += 1;
                plan::plan(
                    (self.repository, head),
                    &known,
                    &self.options,
                    (&mut self.planned, &mut self.report),
                )?;
                if self.answered == self.heads.len() {
                    self.stage = Stage::Next;
                }
                Ok(())
            }
            (_, Stage::Stopped) => Ok(()),
            (ReplicaMessage::Failed { message, .. }, Stage::Asking)
                if self.answered < self.asked =>
            {
                let name = self.heads[self.answered].name.clone();
                self.report.known.push(SeriesKnown { series: name.clone(), newest: Vec::new() });
                self.answered += 1;
                self.report.refused.push((name, message));
                if self.answered == self.heads.len() {
                    self.stage = Stage::Next;
                }
                Ok(())
            }
            (ReplicaMessage::Ready { parent }, Stage::Starting) => {
                let started = self.start(parent);
                self.unless_lost(started)
            }
            (ReplicaMessage::Need(segments), Stage::Segments(volume)) => volume.need(segments),
            (ReplicaMessage::Want { segment, chunks }, Stage::Segments(volume)) => {
                let wanted = volume.want(segment, &chunks);
                self.unless_lost(wanted)
            }
            (ReplicaMessage::Placed { end }, Stage::Segments(volume)) => {
                volume.placed(end)?;
                let sent_bytes = self.current.as_ref().map_or(0, |current| current.moved.sent);
                let (done, total) = volume.progress();
                self.repository.objects.context.report(Progress {
                    new_bytes: sent_bytes,
                    ..Progress::bytes(Activity::Replicate, done, Some(total))
                });
                Ok(())
            }
            (ReplicaMessage::Committed { snapshot, .. }, Stage::Committing) => {
                self.end(Outcome::Sent(snapshot));
                Ok(())
            }
            // The replica may fail while other answers of it are on their way.
            (ReplicaMessage::Failed { kind, message }, Stage::Starting | Stage::Committing) => {
                self.end_refused(kind, message);
                Ok(())
            }
            (ReplicaMessage::Failed { kind, message }, Stage::Segments(_) | Stage::Steps(_)) => {
                self.stage = Stage::Refused(kind, message);
                Ok(())
            }
            (message, Stage::Lost(_) | Stage::GivenUp(..)) => self.take_late(message),
            (other, _) => Err(untimely(&other)),
        }
    }

    /// Takes a message after the snapshot was found to be unreadable: most are answers to earlier
    /// messages.
    fn take_late(&mut self, message: ReplicaMessage) -> Result<()> {
        match (message, &mut self.stage) {
            (ReplicaMessage::Failed { .. }, Stage::GivenUp(outcome, _)) => {
                let outcome = outcome.clone();
                self.end(outcome);
            }
            (ReplicaMessage::Failed { kind, message }, _) => {
                self.stage = Stage::Refused(kind, message);
            }
            (
                ReplicaMessage::Need(_)
                | ReplicaMessage::Want { .. }
                | ReplicaMessage::Placed { .. },
                Stage::GivenUp(_, late),
            ) if *late < LATE_ANSWERS_MAX => *late += 1,
            (
                ReplicaMessage::Need(_)
                | ReplicaMessage::Want { .. }
                | ReplicaMessage::Placed { .. },
                Stage::Lost(_),
            ) => {}
            (other, _) => return Err(untimely(&other)),
        }
        Ok(())
    }

    /// The next message to the replica; `None` if it has to say something first.
    pub fn produce(&mut self) -> Result<Option<SourceMessage>> {
        self.check_interrupted()?;
        if let Some(message) = self.stop_in_time() {
            return Ok(Some(message));
        }
        loop {
            match &mut self.stage {
                Stage::Asking => return Ok(self.ask()),
                Stage::Next => match self.begin()? {
                    Some(message) => return Ok(Some(message)),
                    None if self.planned.is_empty() => self.stage = Stage::Done,
                    None => {}
                },
                Stage::Starting | Stage::Committing | Stage::GivenUp(..) => return Ok(None),
                Stage::Done | Stage::Stopped => return Ok(Some(SourceMessage::Bye)),
                Stage::Refused(kind, message) => {
                    let (kind, message) = (*kind, std::mem::take(message));
                    self.end_refused(kind, message);
                }
                Stage::Lost(_) => {
                    let Stage::Lost(error) = std::mem::replace(&mut self.stage, Stage::Next) else {
                        continue;
                    };
                    return self.give_up(&error).map(Some);
                }
                Stage::Segments(_) | Stage::Steps(_) => match self.send_volume() {
                    Ok(Some(Some(message))) => return Ok(Some(message)),
                    Ok(Some(None)) => return Ok(None),
                    Ok(None) => {}
                    Err(error) => return self.give_up(&error).map(Some),
                },
            }
        }
    }

    /// Stops once the time to send is over, unless a snapshot is being committed. Returns the
    /// message that gives up the current snapshot.
    fn stop_in_time(&mut self) -> Option<SourceMessage> {
        let now_ns = self.repository.objects.context.env.now_ns();
        let is_over = self.options.until_ns.is_some_and(|until_ns| now_ns >= until_ns);
        let may_stop = matches!(
            self.stage,
            Stage::Next | Stage::Starting | Stage::Segments(_) | Stage::Steps(_)
        );
        if !is_over || !may_stop {
            return None;
        }
        let is_begun = self.current.is_some();
        self.end(Outcome::Postponed);
        for planned in std::mem::take(&mut self.planned) {
            let bytes = planned.bytes;
            self.report.snapshots.push(planned.outcome(
                bytes,
                Moved::default(),
                Outcome::Postponed,
            ));
        }
        self.stage = Stage::Stopped;
        is_begun.then_some(SourceMessage::Abort)
    }

    fn ask(&mut self) -> Option<SourceMessage> {
        if self.heads.is_empty() {
            self.stage = Stage::Done;
            return Some(SourceMessage::Bye);
        }
        let head = self.heads.get(self.asked)?;
        if self.asked - self.answered >= QUESTIONS_MAX {
            return None;
        }
        self.asked += 1;
        Some(SourceMessage::Ask { series: plan::replica_name(&self.options, head) })
    }

    /// Begins the next snapshot; `None` if it can't be sent.
    fn begin(&mut self) -> Result<Option<SourceMessage>> {
        let Some(planned) = self.planned.pop_front() else { return Ok(None) };
        if self.options.dry_run {
            let bytes = planned.bytes;
            self.report.snapshots.push(planned.outcome(bytes, Moved::default(), Outcome::Planned));
            return Ok(None);
        }
        let found = match plan::find(self.repository, &planned) {
            Ok(found) => found,
            Err(error) => {
                let outcome = outcome_of(self.repository, &planned, &error)?;
                self.report.snapshots.push(planned.outcome(0, Moved::default(), outcome));
                return Ok(None);
            }
        };
        let message = SourceMessage::Begin(Box::new(Begin {
            series: planned.to.clone(),
            domain: found.head.domain,
            labels: found.entry.labels.clone(),
            origin: planned.origin,
            snapshot: found.snapshot.clone(),
        }));
        let (parent, volume, moved) = (None, 0, Moved::default());
        self.current = Some(Current { planned, found, parent, volume, moved });
        self.stage = Stage::Starting;
        Ok(Some(message))
    }

    /// Begins the first volume of a snapshot that the replica will compare with `parent`.
    fn start(&mut self, parent: Option<Origin>) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        current.parent = match parent {
            Some(parent) => plan::find_origin(self.repository, &current.found.head, parent)?,
            None => None,
        };
        self.open_volume()
    }

    /// Opens the next volume.
    fn open_volume(&mut self) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        let ReplicateOptions { jobs, memory_bytes, .. } = self.options;
        let translation = self.recognition.clone();
        let translation =
            translation.map(|to| Translation::new(self.repository, to, jobs, memory_bytes));
        let delta_level = self.delta_level.filter(|_| translation.is_none());
        let sending = Sending { translation, delta_level, jobs, memory_bytes };
        let volume = VolumeSource::open(self.repository, current, sending)?;
        self.stage = Stage::Segments(Box::new(volume));
        Ok(())
    }

    /// The next message of the volume: `Some(None)` if the replica has to say something first, and
    /// `None` if the stage has changed.
    #[expect(clippy::option_option, reason = "a message, none for now, or look again")]
    fn send_volume(&mut self) -> Result<Option<Option<SourceMessage>>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        match &mut self.stage {
            Stage::Segments(volume) => {
                let wanted = volume.wanted_bytes();
                let produced = volume.produce(self.frames);
                current.moved.reread += volume.take_reread_bytes();
                current.moved.in_deltas += volume.take_delta_bytes();
                if let Some(message) = produced? {
                    current.moved.sent += to_u64(wanted - volume.wanted_bytes());
                    return Ok(Some(Some(message)));
                }
                if !volume.is_placed() {
                    return Ok(Some(None));
                }
                if let Some(walk) = StepWalk::begin(self.repository, current) {
                    self.stage = Stage::Steps(Box::new(walk));
                    return Ok(None);
                }
            }
            Stage::Steps(walk) => {
                if let Some(message) = walk.produce()? {
                    return Ok(Some(Some(message)));
                }
            }
            _ => return Ok(None),
        }
        current.volume += 1;
        if current.volume < current.found.snapshot.volumes.len() {
            self.open_volume()?;
            return Ok(None);
        }
        self.stage = Stage::Committing;
        Ok(Some(Some(SourceMessage::Commit)))
    }

    /// Ends a snapshot that the replica did not take. If that is not the snapshot's fault, the
    /// series' later ones wait: the replica would never get this one after them.
    fn end_refused(&mut self, kind: ErrorKind, message: String) {
        use ErrorKind::{Corrupt, Invalid, NotFound, Unsupported};
        let series = self.current.as_ref().map(|current| current.planned.series.clone());
        self.end(Outcome::Failed(kind, message));
        if matches!(kind, Corrupt | Invalid | NotFound | Unsupported) {
            return;
        }
        for planned in std::mem::take(&mut self.planned) {
            if series.as_ref() != Some(&planned.series) {
                self.planned.push_back(planned);
                continue;
            }
            let why = "it waits for an older snapshot of the series, which was not taken";
            let (bytes, outcome) = (planned.bytes, Outcome::Failed(kind, why.to_owned()));
            self.report.snapshots.push(planned.outcome(bytes, Moved::default(), outcome));
        }
    }

    /// Ends the current snapshot.
    fn end(&mut self, outcome: Outcome) {
        if let Some(current) = self.current.take() {
            if let Outcome::Sent(_) = outcome {
                self.note_sent(&current.planned);
            }
            let bytes = plan::size_of(&current.found.snapshot);
            let outcome = current.planned.outcome(bytes, current.moved, outcome);
            self.report.snapshots.push(outcome);
        }
        self.stage = Stage::Next;
    }

    /// Notes that the replica holds a snapshot now.
    fn note_sent(&mut self, planned: &Planned) {
        let now_ns = self.repository.objects.context.env.now_ns();
        let Planned { origin, time_ns, .. } = *planned;
        let sent = KnownSnapshot { origin, time_ns, is_deleted: false };
        let mut known = self.report.known.iter_mut();
        if let Some(known) = known.find(|known| known.series == planned.series) {
            known.add(sent, now_ns);
        }
    }

    /// Remembers that the snapshot can't be read; other errors end the replication.
    fn unless_lost(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                self.stage = Stage::Lost(error);
                Ok(())
            }
            done => done,
        }
    }

    /// Gives up a snapshot that can't be read; other errors end the replication.
    fn give_up(&mut self, error: &Error) -> Result<SourceMessage> {
        if let Some(current) = &self.current {
            let outcome = outcome_of(self.repository, &current.planned, error)?;
            self.stage = Stage::GivenUp(outcome, 0);
        }
        Ok(SourceMessage::Abort)
    }
}

/// What becomes of a snapshot that can't be read; an error if it is not about that snapshot.
fn outcome_of(repository: &Repository, planned: &Planned, error: &Error) -> Result<Outcome> {
    let kind = error.kind();
    if !matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound) {
        return Err(Error::new(kind, error.to_string()));
    }
    // What a reclaim has removed looks like damage.
    let is_gone = matches!(
        plan::find(repository, planned),
        Err(error) if error.kind() == ErrorKind::NotFound
    );
    let damaged = || Outcome::Failed(ErrorKind::Corrupt, error.to_string());
    Ok(if is_gone { Outcome::Gone } else { damaged() })
}

/// The error of a message that must not come now.
fn untimely(message: &ReplicaMessage) -> Error {
    let name = match message {
        ReplicaMessage::Known(_) => "a list of snapshots",
        ReplicaMessage::Ready { .. } => "that it is ready",
        ReplicaMessage::Need(_) => "needed segments",
        ReplicaMessage::Want { .. } => "wanted chunks",
        ReplicaMessage::Placed { .. } => "placed segments",
        ReplicaMessage::Committed { .. } => "a commit",
        ReplicaMessage::Failed { .. } => "a failure",
    };
    Error::invalid(format!("the replica sent {name} at the wrong time"))
}
