//! What an agent knows and decides by itself. It never waits for the bus.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result};
use silt_repository::env::Env;

use super::task::{Known, Running};
use super::{AgentOptions, Event, Step};
use crate::Name;
use crate::director::SOON_NS;
use crate::notes::Notes;
use crate::status::{
    AgentStatus, DIRECTOR, DirectorStatus, IndexStatus, Issue, Refusal, RunStatus, TaskStatus,
    Telling, Told,
};
use crate::work::{End, News, Run, Work, Worker};

/// Ends of runs that are kept until they can be told.
const TELLINGS_MAX: usize = 256;
/// Directors whose messages are told apart.
const DIRECTORS_MAX: usize = 64;
/// How many times as long as for a job that is lost a task waits at most for a director that holds
/// it back.
const PATIENCE_TIMES: i64 = 16;

/// The last that was heard of a director.
#[derive(Default)]
struct Heard {
    at_ns: Option<i64>,
    oldest_waiting_ns: Option<i64>,
    index_hosts: Vec<Name>,
    /// The newest message of each process that was the director.
    counts: BTreeMap<u64, u64>,
}

pub(super) struct State {
    pub options: AgentOptions,
    pub env: Arc<dyn Env>,
    worker: Box<dyn Worker>,
    notes: Box<dyn Notes>,
    pub tasks: BTreeMap<Name, Known>,
    started_ns: i64,
    heard: Heard,
    issue: Issue,
    /// Grows when others should know.
    pub revision: u64,
    are_notes_old: bool,
    pub tellings: VecDeque<Telling>,
    pub unreadable: u64,
    pub unknown_jobs: u64,
    pub index: Option<IndexStatus>,
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// The task will be started.
    Taken,
    /// There is nothing to do.
    Needless,
    /// It is too early.
    Later(Duration),
}

/// Why a task begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// It was asked for, and waits for no room.
    Now,
    Asked,
    Job,
    Alone,
}

impl State {
    pub fn new(
        options: AgentOptions,
        env: Arc<dyn Env>,
        worker: Box<dyn Worker>,
        mut notes: Box<dyn Notes>,
    ) -> Result<Self> {
        if options.name.as_str() == DIRECTOR || options.name.as_str().len() > 80 {
            let message =
                format!("an agent is not called '{}': the name is taken or too long", options.name);
            return Err(Error::invalid(message));
        }
        let started_ns = env.now_ns();
        let mut saved = notes.load()?;
        let mut tasks = BTreeMap::new();
        for task in &options.tasks {
            let notes = saved.remove(&task.work.key());
            let known = Known::new(&options.name, task.clone(), notes, started_ns);
            if tasks.insert(known.key.clone(), known).is_some() {
                return Err(Error::invalid(format!("there are two tasks '{}'", task.work)));
            }
        }
        let mut instance = [0; 8];
        env.entropy(&mut instance);
        Ok(Self {
            options,
            env,
            worker,
            notes,
            tasks,
            started_ns,
            heard: Heard::default(),
            issue: Issue { instance: u64::from_le_bytes(instance), count: 0 },
            revision: 1,
            are_notes_old: true,
            tellings: VecDeque::new(),
            unreadable: 0,
            unknown_jobs: 0,
            index: None,
        })
    }

    pub fn step(&mut self) -> Step {
        let now_ns = self.env.now_ns();
        let mut events = Vec::new();
        self.heard.at_ns = self.heard.at_ns.map(|at| at.min(now_ns));
        self.started_ns = self.started_ns.min(now_ns);
        for known in self.tasks.values_mut() {
            self.are_notes_old |= known.correct(now_ns);
        }
        self.take_news(now_ns, &mut events);
        self.start_tasks(now_ns, &mut events);
        if self.are_notes_old {
            let notes = self.tasks.iter().map(|(key, known)| (key.clone(), known.notes.clone()));
            match self.notes.save(&notes.collect()) {
                Ok(()) => self.are_notes_old = false,
                Err(error) => events.push(Event::NotesNotSaved { error: error.to_string() }),
            }
        }
        Step { events, next_ns: self.next_ns(now_ns), running: self.running() }
    }

    pub fn running(&self) -> usize {
        self.tasks.values().filter(|known| known.running.is_some()).count()
    }

    /// How many more runs there may be, besides those that jobs have come for.
    pub fn room(&self) -> usize {
        let is_taken = |known: &&Known| known.running.is_some() || known.has_job;
        self.options.parallel.saturating_sub(self.tasks.values().filter(is_taken).count())
    }

    fn take_news(&mut self, now_ns: i64, events: &mut Vec<Event>) {
        for news in self.worker.news() {
            match news {
                News::Progress { key, done, total } => {
                    let known = self.tasks.get_mut(&key);
                    if let Some(running) = known.and_then(|known| known.running.as_mut()) {
                        (running.done, running.total) = (done, total);
                    }
                }
                News::Made { series, at_ns, warning } => {
                    let known = self.tasks.get_mut(&Work::Backup { series }.key());
                    if known.is_some_and(|known| known.made(at_ns, warning, now_ns)) {
                        self.changed();
                    }
                }
                News::Ended { key, end } => self.end(&key, end, now_ns, events),
            }
        }
    }

    fn end(&mut self, key: &Name, end: End, now_ns: i64, events: &mut Vec<Event>) {
        let Some(known) = self.tasks.get_mut(key) else { return };
        let Some(last) = known.end(end, now_ns) else { return };
        let (work, retry_ns) = (known.task.work.clone(), known.notes.retry_ns);
        let what = Told::Ended(last.clone());
        events.push(Event::Ended { work: work.clone(), last, retry_ns });
        let agent = self.options.name.clone();
        if self.tellings.len() == TELLINGS_MAX {
            self.tellings.pop_front();
        }
        self.tellings.push_back(Telling { agent, key: key.clone(), work, at_ns: now_ns, what });
        self.changed();
    }

    fn changed(&mut self) {
        self.revision += 1;
        self.are_notes_old = true;
    }

    /// Starts what may begin, as far as there is room, in the order of due times.
    fn start_tasks(&mut self, now_ns: i64, events: &mut Vec<Event>) {
        let zone = self.options.zone.clone();
        let (has_bus, alone_ns) = (self.options.has_bus, duration_ns(self.options.alone_after));
        let heard = self.heard.at_ns.is_some_and(|at| now_ns - at < alone_ns);
        let oldest_waiting_ns = self.heard.oldest_waiting_ns.filter(|_| heard);
        let mut candidates = Vec::new();
        for known in self.tasks.values_mut() {
            let Some(cause) = (match known.asked {
                _ if known.running.is_some() => None,
                Some(true) => Some((Cause::Now, 0)),
                Some(false) => Some((Cause::Asked, 0)),
                None => {
                    let since = known.due_since(now_ns, &zone);
                    known.has_job &= since.is_some();
                    let retry_ns = known.notes.retry_ns.unwrap_or(i64::MIN);
                    let is_free = known.is_free(now_ns);
                    since.filter(|_| is_free).and_then(|since_ns| {
                        if known.has_job {
                            return Some((Cause::Job, since_ns));
                        }
                        // A task that failed, or that a stopped agent missed, first waits anew.
                        let ready_ns = since_ns.max(retry_ns).max(self.started_ns);
                        let waits_ns = now_ns - ready_ns;
                        let is_held = oldest_waiting_ns.is_some_and(|oldest| since_ns >= oldest);
                        let limit_ns = if is_held { PATIENCE_TIMES * alone_ns } else { alone_ns };
                        (!has_bus || waits_ns >= limit_ns).then_some((Cause::Alone, since_ns))
                    })
                }
            }) else {
                continue;
            };
            candidates.push((cause, known.key.clone()));
        }
        candidates.sort();
        let mut running = self.running();
        for ((cause, _), key) in candidates {
            if running < self.options.parallel.max(1) || cause == Cause::Now {
                running += usize::from(self.start(&key, cause, now_ns, events));
            }
        }
    }

    /// Starts a task. Returns whether it runs.
    fn start(&mut self, key: &Name, cause: Cause, now_ns: i64, events: &mut Vec<Event>) -> bool {
        let Some(known) = self.tasks.get_mut(key) else { return false };
        let due = known.due(now_ns, &self.options.zone);
        let due_ns = due.filter(|_| cause > Cause::Asked).map(|due| due.ns);
        let run = Run { key: key.clone(), work: known.task.work.clone(), due_ns };
        assert!(known.running.is_none(), "a task has one run");
        (known.has_job, known.asked) = (false, None);
        let (is_cancelled, done, total) = (false, 0, None);
        let running = Running { run: run.clone(), since_ns: now_ns, is_cancelled, done, total };
        known.running = Some(running);
        self.changed();
        events.push(Event::Started { run: run.clone() });
        let Err(error) = self.worker.start(&run) else { return true };
        let end = match error.kind() {
            ErrorKind::Busy => End::Busy,
            _ => End::Failed { error: error.to_string() },
        };
        self.end(key, end, now_ns, events);
        false
    }

    /// The next time at which something is to do, if nothing happens before.
    fn next_ns(&mut self, now_ns: i64) -> Option<i64> {
        let zone = self.options.zone.clone();
        let alone_ns = if self.options.has_bus { duration_ns(self.options.alone_after) } else { 0 };
        let of_task = |known: &mut Known| {
            let next = known.next_ns(now_ns, &zone);
            let since = known.due_since(now_ns, &zone)?.max(self.started_ns);
            next.or(Some(since.saturating_add(alone_ns)).filter(|at| *at > now_ns))
        };
        let mut nexts = Vec::new();
        for known in self.tasks.values_mut() {
            let next = known.next_ns(now_ns, &zone);
            nexts.extend(next.or_else(|| of_task(known)));
        }
        nexts.into_iter().min()
    }

    /// A job has come for a task.
    pub fn grant(&mut self, key: &Name) -> Grant {
        let now_ns = self.env.now_ns();
        let zone = self.options.zone.clone();
        let room = self.room();
        let Some(known) = self.tasks.get_mut(key) else {
            self.unknown_jobs += 1;
            self.changed();
            return Grant::Needless;
        };
        if known.running.is_some() || known.has_job {
            return Grant::Needless;
        }
        if known.due_since(now_ns, &zone).is_none() {
            // The director's clock may be a little ahead.
            let soon_ns = known.next_ns(now_ns, &zone).map(|next| next - now_ns);
            let soon_ns = soon_ns.filter(|pause| *pause <= SOON_NS);
            let later = |pause: i64| Grant::Later(Duration::from_nanos(pause.unsigned_abs()));
            return soon_ns.map_or(Grant::Needless, later);
        }
        if let Some(retry_ns) = known.notes.retry_ns.filter(|at| *at > now_ns) {
            return Grant::Later(Duration::from_nanos((retry_ns - now_ns).unsigned_abs()));
        }
        if room == 0 {
            return Grant::Later(Duration::from_secs(10));
        }
        known.has_job = true;
        Grant::Taken
    }

    /// Whether a task waits to be started by a job, or runs; otherwise what to tell the bus.
    pub fn job_goes_on(&self, key: &Name) -> bool {
        self.tasks.get(key).is_some_and(|known| known.has_job || known.running.is_some())
    }

    /// How long a task waits to be tried again.
    pub fn retry_in(&self, key: &Name) -> Option<Duration> {
        let retry_ns = self.tasks.get(key)?.notes.retry_ns? - self.env.now_ns();
        u64::try_from(retry_ns).ok().filter(|pause| *pause > 0).map(Duration::from_nanos)
    }

    /// A director is there. One message counts once, so that a director which is gone is not
    /// believed to be there because the bus repeats what it said.
    pub fn hear_director(&mut self, director: &DirectorStatus) {
        let Issue { instance, count } = director.issue;
        let counts = &mut self.heard.counts;
        if counts.get(&instance).is_some_and(|known| *known >= count) {
            return;
        }
        if counts.len() >= DIRECTORS_MAX && !counts.contains_key(&instance) {
            counts.pop_first();
        }
        counts.insert(instance, count);
        self.heard.at_ns = Some(self.env.now_ns());
        self.heard.oldest_waiting_ns = director.oldest_waiting_ns;
        self.heard.index_hosts.clone_from(&director.index_hosts);
    }

    /// The agents that hold the shared index, as a director has said lately.
    pub fn index_hosts(&self) -> Vec<Name> {
        let alone_ns = duration_ns(self.options.alone_after);
        let is_recent = |at_ns: &i64| self.env.now_ns() - at_ns < alone_ns;
        let heard = self.heard.at_ns.filter(is_recent);
        heard.map_or_else(Vec::new, |_| self.heard.index_hosts.clone())
    }

    /// Of the tasks that others have done, whom to ask about those that are due here.
    pub fn whom_to_ask(&mut self, done_by: &BTreeMap<Name, Name>) -> BTreeSet<Name> {
        let (now_ns, zone) = (self.env.now_ns(), self.options.zone.clone());
        let mut agents = BTreeSet::new();
        for (key, agent) in done_by.iter().filter(|(_, agent)| **agent != self.options.name) {
            let known = self.tasks.get_mut(key).filter(|known| known.running.is_none());
            if known.is_some_and(|known| known.due_since(now_ns, &zone).is_some()) {
                agents.insert(agent.clone());
            }
        }
        agents
    }

    /// Another agent says when it has done a task.
    pub fn hear_done(&mut self, task: &TaskStatus) {
        let now_ns = self.env.now_ns();
        let known = self.tasks.get_mut(&task.key);
        if let (Some(known), Some(done_ns)) = (known, task.done_ns)
            && known.done_elsewhere(done_ns, now_ns)
        {
            self.changed();
        }
    }

    /// Asks for a run, of a series or of a task with this key.
    pub fn ask(&mut self, what: &str, now: bool) -> Result<(Name, bool), Refusal> {
        let allowed = self.options.allowed.backup;
        let known = find(&mut self.tasks, what)?;
        if matches!(known.task.work, Work::Join { .. }) {
            return Err(Refusal::NoTask { what: what.to_owned() });
        }
        if !allowed {
            return Err(Refusal::NotAllowed { entry: "backup".to_owned() });
        }
        let was_running = known.running.is_some();
        if !was_running {
            known.asked = Some(now || known.asked == Some(true));
        }
        let key = known.key.clone();
        self.revision += 1;
        Ok((key, was_running))
    }

    /// Asks to take part in a round. It begins at once, as others wait.
    pub fn join(&mut self, round: u64) -> Result<(Name, bool), Refusal> {
        if !self.options.allowed.round {
            return Err(Refusal::NotAllowed { entry: "round".to_owned() });
        }
        let work = Work::Join { round };
        let known = self.tasks.get_mut(&work.key());
        let known = known.ok_or_else(|| Refusal::NoTask { what: "round".to_owned() })?;
        let was_running = known.running.is_some();
        if was_running && known.task.work != work {
            return Err(Refusal::InRound);
        }
        if !was_running {
            known.task.work = work;
            known.asked = Some(true);
        }
        let key = known.key.clone();
        self.revision += 1;
        Ok((key, was_running))
    }

    /// Cancels a run, or what was asked for and has not begun.
    pub fn cancel(&mut self, what: &str) -> Result<(Name, bool), Refusal> {
        let allowed = self.options.allowed.cancel;
        let known = find(&mut self.tasks, what)?;
        if !allowed {
            return Err(Refusal::NotAllowed { entry: "cancel".to_owned() });
        }
        let was_asked = known.asked.take().is_some();
        let key = known.key.clone();
        let Some(running) = &mut known.running else {
            self.revision += 1;
            let refusal = Refusal::NotRunning { what: what.to_owned() };
            return if was_asked { Ok((key, false)) } else { Err(refusal) };
        };
        running.is_cancelled = true;
        self.worker.cancel(&key);
        Ok((key, true))
    }

    pub fn status(&mut self) -> AgentStatus {
        let now_ns = self.env.now_ns();
        self.issue.count += 1;
        let zone = self.options.zone.clone();
        // The part in a round is nothing that an agent does by itself.
        let is_own = |known: &&mut Known| {
            known.running.is_some() || !matches!(known.task.work, Work::Join { .. })
        };
        let tasks = self.tasks.values_mut().filter(is_own);
        AgentStatus {
            name: self.options.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            issue: self.issue,
            at_ns: now_ns,
            zone: zone.iana_name().unwrap_or("UTC").to_owned(),
            parallel: self.options.parallel,
            leads: self.options.leads,
            allowed: self.options.allowed,
            unreadable: self.unreadable,
            unknown_jobs: self.unknown_jobs,
            index: self.index,
            tasks: tasks.map(|known| known.status(now_ns, &zone)).collect(),
        }
    }

    /// The runs that go on, with what is told about them.
    pub fn runs(&self) -> Vec<(Name, Work, RunStatus)> {
        let run = |known: &Known| {
            let running = known.running.as_ref()?;
            Some((known.key.clone(), known.task.work.clone(), running.status()))
        };
        self.tasks.values().filter_map(run).collect()
    }

    /// The keys of the tasks.
    pub fn keys(&self) -> BTreeSet<Name> {
        self.tasks.keys().cloned().collect()
    }
}

/// The task of a series, or with a key.
fn find<'t>(tasks: &'t mut BTreeMap<Name, Known>, what: &str) -> Result<&'t mut Known, Refusal> {
    let of_series = Work::Backup { series: what.to_owned() }.key();
    let is_meant = |known: &&mut Known| known.key.as_str() == what || known.key == of_series;
    let found = tasks.values_mut().find(is_meant);
    found.ok_or_else(|| Refusal::NoTask { what: what.to_owned() })
}

fn duration_ns(duration: Duration) -> i64 {
    // So that sixteen times as much fits.
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX).min(i64::MAX / 32)
}
