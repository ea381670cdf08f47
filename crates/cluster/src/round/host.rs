//! A host in a round: carries out orders, one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use silt_format::{Error, ErrorKind, Level, Result, SeriesId};
use silt_repository::Repository;
use silt_repository::event::Warning;
use silt_sharing::counting::{CountTask, count_references};
use silt_sharing::exchange::{HostRound, Workspace, join_claims, write_owners};
use silt_sharing::round::{RoundMember, RoundOptions, RoundReport};

use super::orders::{Answer, BackedUp, Order, Outcome, PlannedSeries, Question, State, read_all};
use super::rates::{HostRates, Stage};
use super::service_of;
use crate::{Bus, Messages, Name};

/// How long a host looks away when it has nothing to do.
const LOOK_NS: u64 = 20_000_000;

/// The series that a host brings to a round.
pub trait HostSeries {
    /// The series, and what they are expected to cost.
    fn plan(&self) -> Result<Vec<PlannedSeries>>;
    /// Opens a series' volumes.
    fn open(&self, series: &str) -> Result<RoundMember<'_>>;
    /// How fast this host was in its last round, if that is known.
    fn rates(&self) -> HostRates {
        HostRates::default()
    }
    /// How fast it was in a part of this one.
    fn measured(&self, _: HostRates) {}
    /// A series was backed up, or not.
    fn ended(&self, series: &str, report: &Result<silt_backup::BackupReport>);
}

/// How a host takes part in a round.
#[derive(Clone, Debug)]
pub struct RoundHostOptions {
    /// The round's id.
    pub round: u64,
    /// The host's name on the bus.
    pub host: Name,
    /// How its volumes are scanned.
    pub round_options: RoundOptions,
    /// Without a question for so long, before the first one and after it, the host does without the
    /// coordinator: what it has scanned is backed up, and shares what the shared store has.
    pub patience: [Duration; 2],
}

/// A host in a round.
pub struct RoundHost<'a> {
    repository: &'a Repository,
    series: &'a dyn HostSeries,
    options: &'a RoundHostOptions,
    board: Arc<Mutex<Board>>,
}

/// Orders and what became of them.
#[derive(Default)]
struct Board {
    turn: u64,
    waiting: VecDeque<(String, Order)>,
    states: BTreeMap<String, State>,
    is_end: bool,
    asked_ns: i64,
}

impl Board {
    /// Takes the orders of a question that are new, and says how those that it names get on.
    fn answer(&mut self, question: Question, now_ns: i64) -> Answer {
        self.asked_ns = now_ns;
        let named = question.orders.keys().cloned();
        let names: Vec<String> = named.chain(question.known).collect();
        if question.turn > self.turn {
            self.turn = question.turn;
            for (name, order) in question.orders {
                if !self.states.contains_key(&name) {
                    self.states.insert(name.clone(), State::Awaited);
                    self.waiting.push_back((name, order));
                }
            }
            self.is_end |= question.is_end;
        }
        let known = names.into_iter().filter_map(|name| {
            let state = self.states.get(&name)?.clone();
            Some((name, state))
        });
        Answer { states: known.collect() }
    }
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> RoundHost<'a> {
    /// A host that has done nothing yet.
    pub fn new(
        repository: &'a Repository,
        series: &'a dyn HostSeries,
        options: &'a RoundHostOptions,
    ) -> Self {
        Self { repository, series, options, board: Arc::default() }
    }

    /// Takes part until the round is over, or nobody asks any more. Returns whether it has ended
    /// as it should.
    pub fn run(&self, bus: &dyn Bus, messages: &Messages) -> Result<bool> {
        let env = &self.repository.objects.context.env;
        lock(&self.board).asked_ns = env.now_ns();
        let service = service_of(&self.options.host)?;
        let answering = self.answers(messages);
        let _answering = bus.answer(&service, answering)?;
        let mut scanned = None;
        loop {
            self.repository.objects.context.check_interrupted()?;
            let next = lock(&self.board).waiting.pop_front();
            if let Some((name, order)) = next {
                let state = match self.carry_out(&mut scanned, &order) {
                    Ok(outcome) => State::Done(outcome),
                    Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                    Err(error) => {
                        self.repository.warn(Warning::from(&error));
                        State::Failed { error: error.to_string() }
                    }
                };
                lock(&self.board).states.insert(name, state);
                continue;
            }
            let (is_end, asked_ns, is_asked) = {
                let board = lock(&self.board);
                (board.is_end, board.asked_ns, board.turn > 0)
            };
            if is_end {
                return Ok(true);
            }
            let silent_ns = env.now_ns().saturating_sub(asked_ns);
            let patience = self.options.patience[usize::from(is_asked)];
            if i128::from(silent_ns) > i128::try_from(patience.as_nanos()).unwrap_or(0) {
                return self.go_on_alone(scanned);
            }
            env.sleep_ns(LOOK_NS);
        }
    }

    /// Answers the coordinator's questions; those that it did not seal are not answered.
    fn answers(&self, messages: &Messages) -> crate::Respond {
        let (board, messages) = (Arc::clone(&self.board), messages.clone());
        let (round, env) = (self.options.round, Arc::clone(&self.repository.objects.context.env));
        Arc::new(move |question: &[u8]| {
            let read = || -> Option<Vec<u8>> {
                let opened = messages.open(round, question).ok()?;
                let question: Question = serde_json::from_slice(&opened.plain).ok()?;
                if !opened.signer.is_full() {
                    return None;
                }
                let nonce = question.nonce;
                let answer = lock(&board).answer(question, env.now_ns());
                messages.seal(nonce, &serde_json::to_vec(&answer).ok()?).ok()
            };
            read().unwrap_or_default()
        })
    }

    fn carry_out<'r>(
        &'r self,
        scanned: &mut Option<Scanned<'r>>,
        order: &Order,
    ) -> Result<Outcome> {
        let (workspace, began_ns) = (self.workspace(), self.now_ns());
        match order {
            Order::Plan => {
                let rates = self.series.rates();
                Ok(Outcome::Planned { series: self.series.plan()?, rates })
            }
            Order::Scan { series } => {
                // Of a part that its coordinator has given up.
                scanned.take().map_or(Ok(()), |before| self.back_up(before).map(drop))?;
                let made = self.scan(series)?;
                let requested_chunks = made.requested_chunks();
                *scanned = Some(made);
                Ok(Outcome::Scanned { requested_chunks })
            }
            Order::Requests { host } => {
                let round = scanned.as_ref().and_then(|it| it.round.as_ref());
                let written = round.ok_or_else(out_of_turn)?.write_requests(*host)?;
                Ok(Outcome::written(written))
            }
            Order::Owners { series } => {
                let keep = &mut || self.repository.objects.context.check_interrupted();
                let series: Vec<SeriesId> = series.iter().copied().map(SeriesId).collect();
                Ok(Outcome::written(write_owners(self.repository, &series, &workspace, keep)?))
            }
            Order::Join { first, last, requests, owners, hosts } => {
                let (requests, owners) = (read_all(&requests.0)?, read_all(&owners.0)?);
                let keys = *first..=*last;
                let answers =
                    join_claims(self.repository, &keys, &requests, &owners, *hosts, &workspace)?;
                let (run, bytes) = (answers.run.run.into(), answers.run.stored_bytes);
                Ok(Outcome::Answered { run, bytes, chunks: answers.chunks })
            }
            Order::Store { answers, host, hosts, numbers } => {
                let round = scanned.as_mut().and_then(|it| it.round.as_mut());
                let round = round.ok_or_else(out_of_turn)?;
                let numbers = numbers.clone();
                let placed = round.store(&read_all(answers)?, (*host, *hosts), numbers)?;
                let store_ms = self.ms_since(began_ns);
                scanned.iter_mut().for_each(|it| it.store_ms = store_ms);
                Ok(Outcome::Placed { placed: placed.into() })
            }
            Order::Count { store, containers, series } => {
                let series: Vec<SeriesId> = series.iter().copied().map(SeriesId).collect();
                let task = CountTask { store: *store, containers: *containers, series };
                let keep = &mut || self.repository.objects.context.check_interrupted();
                let (counted, _) = count_references(self.repository, &task, &workspace, keep)?;
                let heads = counted.heads.iter().map(|head| (head.generation, head.writer));
                Ok(Outcome::Counted { run: counted.run.into(), heads: heads.collect() })
            }
            Order::BackUp => {
                let scanned = scanned.take().ok_or_else(out_of_turn)?;
                Ok(Outcome::BackedUp { series: self.back_up(scanned)? })
            }
        }
    }

    fn workspace(&self) -> Workspace {
        let RoundOptions { folder, memory_bytes, .. } = &self.options.round_options;
        Workspace { folder: folder.clone(), memory_bytes: *memory_bytes }
    }

    /// Opens and scans series; one that can't be opened fails alone.
    fn scan<'r>(&'r self, series: &[String]) -> Result<Scanned<'r>> {
        let (mut members, mut names, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for name in series {
            match self.series.open(name) {
                Ok(member) => {
                    names.push(name.clone());
                    members.push(member);
                }
                Err(error) => failed.push((name.clone(), error)),
            }
        }
        let round = if members.is_empty() {
            None
        } else {
            Some(HostRound::scan(self.repository, members, &self.options.round_options)?)
        };
        Ok(Scanned { round, names, failed, store_ms: 0 })
    }

    fn now_ns(&self) -> i64 {
        self.repository.objects.context.env.now_ns()
    }

    fn ms_since(&self, began_ns: i64) -> u64 {
        u64::try_from((self.now_ns() - began_ns) / 1_000_000).unwrap_or(0)
    }

    fn back_up(&self, scanned: Scanned<'_>) -> Result<Vec<BackedUp>> {
        let Scanned { round, names, failed, store_ms } = scanned;
        let report = round.map_or_else(|| Ok(RoundReport::default()), HostRound::back_up)?;
        self.series.measured(rates(&report, store_ms));
        let made = names.into_iter().zip(report.backups).zip(report.held_ms);
        let made = made.map(|((series, backup), held_ms)| (series, backup, held_ms));
        let failed = failed.into_iter().map(|(series, error)| (series, Err(error), 0));
        let ended = |(series, backup, held_ms): (String, Result<_>, u64)| {
            self.series.ended(&series, &backup);
            backed_up(series, backup, held_ms)
        };
        Ok(made.chain(failed).map(ended).collect())
    }

    /// The coordinator is lost: what was scanned is backed up all the same.
    fn go_on_alone(&self, scanned: Option<Scanned<'_>>) -> Result<bool> {
        let message = "the coordinator of the round is not heard of any more; what was scanned is \
                       backed up without it";
        self.repository.warn(Warning::new(ErrorKind::Unavailable, message));
        scanned.map_or(Ok(()), |scanned| self.back_up(scanned).map(drop))?;
        Ok(false)
    }
}

/// The series of a part of the round.
struct Scanned<'r> {
    /// `None` if no series could be opened.
    round: Option<HostRound<'r, 'r>>,
    names: Vec<String>,
    failed: Vec<(String, Error)>,
    /// How long storing what the answers left to this host took, in milliseconds.
    store_ms: u64,
}

impl Scanned<'_> {
    fn requested_chunks(&self) -> u64 {
        self.round.as_ref().map_or(0, HostRound::requested_chunks)
    }
}

/// How fast the stages of a round were, by what its backups have found.
fn rates(report: &RoundReport, store_ms: u64) -> HostRates {
    let backups = report.backups.iter().flatten();
    let levels = backups.flat_map(|backup| &backup.snapshot.volumes).map(|volume| &volume.levels);
    let (scanned, new) = levels.fold((0, 0), |(scanned, new), levels| {
        let data = levels.total().saturating_sub(levels.get(Level::Zero));
        (scanned + data, new + levels.get(Level::New) + levels.get(Level::Shared))
    });
    let scan = Stage { bytes: scanned, ms: report.scan_ms };
    HostRates::of(scan, Stage { bytes: new, ms: report.backup_ms + store_ms })
}

fn backed_up(series: String, backup: Result<silt_backup::BackupReport>, held_ms: u64) -> BackedUp {
    match backup {
        Ok(report) => BackedUp {
            series,
            snapshot: Some(report.snapshot.id.to_string()),
            time_ns: report.snapshot.time_ns,
            stored_bytes: report.stored_bytes,
            held_ms,
            error: None,
        },
        Err(error) => BackedUp {
            series,
            snapshot: None,
            time_ns: 0,
            stored_bytes: 0,
            held_ms,
            error: Some(error.to_string()),
        },
    }
}

fn out_of_turn() -> Error {
    Error::invalid("the order does not fit what the host has done before")
}
