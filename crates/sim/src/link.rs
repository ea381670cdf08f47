//! The line between two sites: messages on their way, and what must hold for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};

use silt_backup::ReplicaPeer;
use silt_format::replica::{KnownSnapshot, Origin as StoredOrigin, ReplicaMessage, SourceMessage};
use silt_format::{Error, ErrorKind, Result};
use silt_replicate::{KeepDeltas, Outcome, Replica, ReplicateOptions, ReplicateReport, Source};
use siltstone::{BackupOptions, Context, Env, ReceivedBases, Repository};

use crate::called::Called;
use crate::drawn_deltas::delta_options;
use crate::model::{Model, Origin};
use crate::process::Process;
use crate::random::Random;
use crate::site::Replication;

/// Messages of the source that are on their way at most.
const AHEAD_MAX: usize = 12;

/// One end of a replication.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The repository as the process sees it.
    pub repository: &'a Repository,
    /// The process.
    pub process: &'a Arc<Process>,
}

/// Both ends and the line.
pub struct Link<'a> {
    model: &'a std::sync::Mutex<Model>,
    from: End<'a>,
    from_site: usize,
    to: End<'a>,
    to_site: usize,
    replication: Replication,
    has_deltas: bool,
}

impl<'a> Link<'a> {
    /// A line between a repository and another one, each with its site.
    pub fn new(
        model: &'a std::sync::Mutex<Model>,
        (from, from_site): (End<'a>, usize),
        (to, to_site): (End<'a>, usize),
        replication: Replication,
    ) -> Self {
        Self { model, from, from_site, to, to_site, replication, has_deltas: false }
    }

    /// The same, on which deltas go, which the replica keeps.
    #[must_use]
    pub fn with_deltas(self, has_deltas: bool) -> Self {
        Self { has_deltas, ..self }
    }

    /// The replica stores what has come as deltas as such.
    fn keep(&self, context: &Context, received: &ReceivedBases) -> Result<()> {
        let repository = self.to.repository.for_operation(context.clone());
        let report = repository.optimize_received(received, &delta_options())?;
        let mut state = self.to.process.world.state();
        state.note(format_args!("kept deltas of {} chunks", report.deltas));
        Ok(())
    }

    /// Replicates. A failure of one end is the error of the other end's line.
    pub fn replicate(&self, replica_options: BackupOptions) -> Result<ReplicateReport> {
        let mut options = ReplicateOptions {
            newest: self.replication.only_newest.then_some(1),
            ..ReplicateOptions::default()
        };
        if self.replication.is_prefixed {
            let heads = self.from.repository.heads(&[])?.into_iter().map(|head| head.name);
            let is_own = |name: &String| {
                Called::by_name(self.from_site, name).is_some_and(|called| called.prefix.is_none())
            };
            options.series = heads.filter(is_own).collect();
            Called::prefix_of(self.from_site).clone_into(&mut options.prefix);
            if options.series.is_empty() {
                return Ok(ReplicateReport::default());
            }
        }
        let mut source = Source::new(self.from.repository, options)?;
        if self.has_deltas {
            source.set_deltas(1);
        }
        let mut talk = Talk {
            link: self,
            source,
            to_replica: VecDeque::new(),
            to_source: VecDeque::new(),
            random: Random(self.replication.seed),
            asked: VecDeque::new(),
            known: BTreeMap::new(),
            sent: None,
            newest_sent: BTreeMap::new(),
            failure: None,
        };
        let keep = |context: &Context, received: &ReceivedBases| self.keep(context, received);
        let keep: Option<&KeepDeltas<'_>> = if self.has_deltas { Some(&keep) } else { None };
        let mut replica = Replica::new(self.to.repository, replica_options).keeping(keep);
        let served = replica.serve(&mut talk);
        let Talk { source, failure, .. } = talk;
        let report = source.into_report();
        self.note(&report, failure.as_ref().or(served.as_ref().err()));
        for error in failure.iter().chain(served.as_ref().err()) {
            if self.is_violation(error.kind(), error) {
                self.violated(&format!("the ends do not understand each other: {error}"));
            }
        }
        for snapshot in &report.snapshots {
            if let Outcome::Failed(kind, why) = &snapshot.outcome
                && self.is_violation(*kind, why)
            {
                self.violated(&format!("{} is not sent: {why}", snapshot.snapshot));
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        served.map(|_| report)
    }

    /// Whether no end may fail like this. A process that has read a head which its storage then
    /// lost with the power says that the storage serves an old state, and is right.
    fn is_violation(&self, kind: ErrorKind, why: &dyn std::fmt::Display) -> bool {
        let has_lost = || {
            let state = self.from.process.world.state();
            state.places.iter().any(|place| place.has_lost)
        };
        match kind {
            ErrorKind::Invalid => true,
            ErrorKind::Corrupt => !(why.to_string().contains("serves an old state") && has_lost()),
            _ => false,
        }
    }

    /// Records what has become of everything.
    fn note(&self, report: &ReplicateReport, failure: Option<&Error>) {
        let mut state = self.from.process.world.state();
        for snapshot in &report.snapshots {
            let what = match &snapshot.outcome {
                Outcome::Failed(kind, _) => format!("{kind:?}"),
                Outcome::Sent(_) => "Sent".to_owned(),
                other => format!("{other:?}"),
            };
            let (id, to) = (snapshot.snapshot, &snapshot.to);
            state.note(format_args!("replicated {id} as one of {to}: {what}"));
        }
        for (name, why) in &report.refused {
            state.note(format_args!("replicated {name}: Refused: {why}"));
        }
        if let Some(failure) = failure {
            state.note(format_args!("replicated until: {:?}: {failure}", failure.kind()));
        }
    }

    fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn violated(&self, what: &str) {
        let (from, to) = (self.from_site, self.to_site);
        self.model().violations.push(format!("replication from {from} to {to}: {what}"));
    }
}

/// A snapshot that a replica has: its origin and time.
type There = (Origin, i64);

/// Messages between both ends. Each end is a state machine, so that either may be ahead.
struct Talk<'l, 'a> {
    link: &'l Link<'a>,
    source: Source<'a>,
    to_replica: VecDeque<SourceMessage>,
    to_source: VecDeque<ReplicaMessage>,
    random: Random,
    /// The series that were asked for and not answered.
    asked: VecDeque<String>,
    /// Snapshots that both ends certainly have and that are not dated in the future, by series.
    known: BTreeMap<String, Vec<There>>,
    /// The series and the origin of the snapshot that is being sent.
    sent: Option<(String, Origin)>,
    /// The time of the newest snapshot of each series that was sent.
    newest_sent: BTreeMap<String, i64>,
    /// Why the source has ended.
    failure: Option<Error>,
}

impl Talk<'_, '_> {
    fn origin(&self, origin: StoredOrigin) -> Origin {
        let sites = &self.link.model().sites;
        let site = sites.iter().position(|site| *site == origin.repository);
        (site.unwrap_or(usize::MAX), origin.snapshot.0)
    }

    fn called(&self, name: &str) -> Option<Called> {
        Called::by_name(self.link.to_site, name)
    }

    /// The source says something: nothing older than what both have.
    fn says(&mut self, message: &SourceMessage) {
        match message {
            SourceMessage::Ask { series } => self.asked.push_back(series.clone()),
            SourceMessage::Begin(begin) => {
                let origin = self.origin(begin.origin);
                let known = self.known.get(&begin.series).into_iter().flatten();
                let newer = known.filter(|there| there.1 >= begin.snapshot.time_ns).max();
                if let Some(newer) = newer {
                    let (name, id) = (&begin.series, origin.1);
                    self.link.violated(&format!(
                        "{name}: {id:016x} is sent, and both have the newer one {newer:x?}"
                    ));
                }
                let time_ns = begin.snapshot.time_ns;
                let before = self.newest_sent.insert(begin.series.clone(), time_ns);
                if before.is_some_and(|before| before > time_ns) {
                    self.link.violated(&format!("{}: a newer one is sent before", begin.series));
                }
                self.sent = Some((begin.series.clone(), origin));
            }
            _ => {}
        }
    }

    /// The source hears an answer.
    fn hears(&mut self, message: &ReplicaMessage) {
        match message {
            ReplicaMessage::Known(known) => {
                let Some(name) = self.asked.pop_front() else { return };
                self.takes_known(name, known);
            }
            ReplicaMessage::Failed { .. } if !self.asked.is_empty() => {
                self.asked.pop_front();
            }
            _ => {}
        }
    }

    fn takes_known(&mut self, name: String, known: &[KnownSnapshot]) {
        let Some(to) = self.called(&name) else { return };
        let now_ns = self.link.from.process.now_ns();
        let there: Vec<There> =
            known.iter().map(|known| (self.origin(known.origin), known.time_ns)).collect();
        let from = match (self.link.replication.is_prefixed, to.prefix) {
            (true, _) => Called::own(self.link.from_site, to.series),
            (false, _) => Called { site: self.link.from_site, ..to },
        };
        let mut model = self.link.model();
        // After a wrong clock, or when all is gone, the replica's list does not say what it had.
        if there.iter().any(|(_, time_ns)| *time_ns > now_ns)
            || (there.is_empty() && model.has_copies(to))
        {
            model.excuse(to);
        }
        let in_both = there
            .into_iter()
            .filter(|(origin, time_ns)| *time_ns <= now_ns && model.has(from, *origin));
        let in_both = in_both.collect();
        drop(model);
        self.known.insert(name, in_both);
    }

    /// The replica says that it has committed.
    fn commits(&mut self, id: u64) {
        let Some((name, origin)) = self.sent.take() else { return };
        if let Some(called) = self.called(&name) {
            self.link.model().copied(called, id, origin);
        }
    }

    /// Lets the source do one thing: hear an answer, or say something. Returns whether it did.
    fn step(&mut self) -> Result<bool> {
        let hears_first = self.random.once_in(2) || self.to_replica.len() >= AHEAD_MAX;
        if hears_first && let Some(message) = self.to_source.pop_front() {
            self.hears(&message);
            self.source.take(message)?;
            return Ok(true);
        }
        if self.to_replica.len() < AHEAD_MAX
            && self.to_replica.back() != Some(&SourceMessage::Bye)
            && let Some(message) = self.source.produce()?
        {
            self.says(&message);
            self.link.from.process.at_message()?;
            self.to_replica.push_back(message);
            return Ok(true);
        }
        if let Some(message) = self.to_source.pop_front() {
            self.hears(&message);
            self.source.take(message)?;
            return Ok(true);
        }
        Ok(false)
    }
}

impl ReplicaPeer for Talk<'_, '_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        if let ReplicaMessage::Committed { snapshot, .. } = &message {
            self.commits(snapshot.0);
        }
        self.link.to.process.at_message()?;
        self.to_source.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        let cut = || Error::new(ErrorKind::Unavailable, "the other end closed the connection");
        loop {
            let waits = self.random.once_in(2);
            if !waits && let Some(message) = self.to_replica.pop_front() {
                return Ok(message);
            }
            if self.failure.is_some() {
                return self.to_replica.pop_front().ok_or_else(cut);
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => {
                    return self.to_replica.pop_front().ok_or_else(|| {
                        Error::invalid("both ends of a replication wait for each other")
                    });
                }
                Err(error) => self.failure = Some(error),
            }
        }
    }
}
