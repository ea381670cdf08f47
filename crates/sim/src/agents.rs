//! Agents in a history: each host has one, which decides, and a worker, which carries out its runs
//! one at a time. All agents are one thread of the world, which steps each when its time has come;
//! each worker is another thread, which sleeps until there is a run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use silt_cluster::{
    Agent, AgentOptions, Bus, Calendar, End, Event, HostileBus, LocalBus, Messages, Name, News,
    Notes, Run, Task, TaskNotes, Work, Worker,
};
use silt_format::number::to_u64;
use silt_format::{ErrorKind, Result};
use siltstone::storage::CACHE_POLICY;
use siltstone::{Env, Repository};

use crate::called::Called;
use crate::history::{self, Stage, text};
use crate::plan::{AgentHost, Keep, Role, Series, Trouble};
use crate::process::Process;
use crate::world::{MINUTE_NS, World, minutes_ns};

const SECOND_NS: i64 = 1_000_000_000;
/// How often an agent is stepped, in some histories and in the others; a lease lasts for 30 s.
const OFTEN_NS: i64 = 10 * SECOND_NS;
const OFTEN_ONCE_IN: u64 = 8;
const SELDOM_NS: i64 = 25 * SECOND_NS;
/// How often in the others while it has nothing to do: often enough to count as there. Its lease
/// ends meanwhile, and so others become the director.
const IDLE_NS: i64 = 75 * SECOND_NS;
/// In most histories, agents sleep while none of them has anything to do: then they would only
/// say that they are there.
const AWAKE_ONCE_IN: u64 = 256;
/// In most histories, messages are not signed.
const SIGNED_ONCE_IN: u64 = 31;
/// How long before something is due, and after something has happened, an agent is not idle.
const BUSY_NS: i64 = 3 * MINUTE_NS;
/// How long a worker takes at most to begin a run.
const BEGIN_S: u64 = 20;
/// How long things go wrong, and how long they then go well.
const HOSTILE_MINUTES: u64 = 8 * 60;
const QUIET_MINUTES: u64 = 5 * 60;
/// How late a backup may be when all goes well: as if each job were lost, and each run took long.
const LATE_MINUTES: u64 = 45;
/// A task that fails is tried again at least as often.
const RETRY_MINUTES: u64 = 65;

/// What the agents share.
struct Group<'s> {
    stage: &'s Stage,
    /// Until when things go wrong, and until when agents run.
    hostile_until_ns: i64,
    until_ns: i64,
    /// The bus, and how often it was replaced.
    bus: Mutex<(LocalBus, u64)>,
    /// The snapshots that backups were reported to have made or found, and the ends of other work.
    covered: Mutex<BTreeMap<Name, Vec<i64>>>,
}

impl Group<'_> {
    /// How often an agent is stepped that is busy, or idle.
    fn pause_ns(&self, is_busy: bool) -> i64 {
        if self.stage.plan.seed.is_multiple_of(OFTEN_ONCE_IN) {
            return OFTEN_NS;
        }
        if is_busy { SELDOM_NS } else { IDLE_NS }
    }

    fn covered(&self) -> MutexGuard<'_, BTreeMap<Name, Vec<i64>>> {
        self.covered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the agent of a host and its worker meet.
#[derive(Default)]
struct Desk {
    waiting: Option<Run>,
    running: Option<(Run, Option<Arc<Process>>)>,
    news: Vec<News>,
    has_ended: bool,
    /// How many runs there were.
    count: usize,
    /// How the last run of each task ended, and when.
    last: BTreeMap<Name, (i64, End)>,
}

#[derive(Clone)]
struct Shared {
    desk: Arc<Mutex<Desk>>,
    world: Arc<World>,
    /// The worker's host.
    worker: usize,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the worker to end.
    fn end(&self) {
        self.desk().has_ended = true;
        self.world.wake(self.worker, 0);
    }
}

impl Worker for Shared {
    fn start(&mut self, run: &Run) -> Result<()> {
        let mut desk = self.desk();
        assert!(desk.waiting.is_none() && desk.running.is_none(), "one run at a time");
        desk.waiting = Some(run.clone());
        let seconds = (to_u64(desk.count) * 13 + to_u64(self.worker) * 7) % BEGIN_S;
        self.world.wake(self.worker, i64::try_from(seconds).unwrap_or(0) * SECOND_NS);
        Ok(())
    }
    fn cancel(&mut self, _: &Name) {}
    fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.desk().news)
    }
}

/// Notes that outlive an agent.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<Name, TaskNotes>>>);

impl Kept {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Name, TaskNotes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes for Kept {
    fn load(&mut self) -> Result<BTreeMap<Name, TaskNotes>> {
        Ok(self.all().clone())
    }
    fn save(&mut self, notes: &BTreeMap<Name, TaskNotes>) -> Result<()> {
        self.all().clone_from(notes);
        Ok(())
    }
}

/// Starts the threads of all agents.
pub fn spawn<'scope, 's: 'scope>(stage: &'s Stage, scope: &'scope Scope<'scope, 's>) {
    if stage.plan.agents.is_empty() {
        return;
    }
    let first = stage.plan.hosts.len();
    let now_ns = stage.world.state().now_ns;
    let hostile_until_ns = now_ns + minutes_ns(HOSTILE_MINUTES);
    let bus = LocalBus::new(stage.process(first, 0) as _);
    let group = Arc::new(Group {
        stage,
        hostile_until_ns,
        until_ns: hostile_until_ns + minutes_ns(QUIET_MINUTES),
        bus: Mutex::new((bus, 0)),
        covered: Mutex::default(),
    });
    let mut agents = Vec::new();
    for (number, plan) in stage.plan.agents.iter().enumerate() {
        let (desk, world) = (Arc::default(), Arc::clone(&stage.world));
        let desk = Shared { desk, world, worker: first + 1 + number };
        agents.push(OneAgent::new(&group, (number, first, plan), &desk));
        let group = Arc::clone(&group);
        let worker = WorkerThread { group, number, host: desk.worker, plan, desk };
        begin(stage, scope, worker.host, move || {
            catch(stage, number, || {
                worker.run();
                Ok(())
            });
        });
    }
    begin(stage, scope, first, move || run_all(stage, first, agents));
}

/// Starts a thread that is a host of the world.
fn begin<'scope, 's: 'scope>(
    stage: &'s Stage,
    scope: &'scope Scope<'scope, 's>,
    host: usize,
    run: impl FnOnce() + Send + 's,
) {
    scope.spawn(move || {
        stage.world.begin(host);
        run();
        stage.world.end(host);
    });
}

/// Does something for an agent; what goes wrong is a violation.
fn catch<T>(stage: &Stage, number: usize, work: impl FnOnce() -> Result<T>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => stage.violated(format!("agent {number}: {error}")),
        Err(panic) => stage.violated(format!("agent {number} panicked: {}", text(&*panic))),
    }
    None
}

/// Steps all agents until each has ended, always the one whose time comes first.
fn run_all(stage: &Stage, host: usize, mut agents: Vec<OneAgent<'_>>) {
    let may_sleep = !stage.plan.seed.is_multiple_of(AWAKE_ONCE_IN);
    while let Some(at) = (0..agents.len()).min_by_key(|at| (agents[*at].next_ns, *at)) {
        let (now_ns, next_ns) = (stage.world.state().now_ns, agents[at].next_ns);
        if next_ns > now_ns {
            stage.world.pass(host, next_ns - now_ns);
        }
        let agent = &mut agents[at];
        let goes_on = catch(stage, agent.number, || agent.step());
        if goes_on != Some(true) {
            agents.remove(at).desk.end();
        }
        if may_sleep && agents.iter().all(|agent| !agent.is_busy) {
            let wake_ns = agents.iter().map(|agent| agent.wake_ns).min().unwrap_or(0);
            let next = agents.iter_mut().map(|agent| &mut agent.next_ns);
            next.for_each(|next_ns| *next_ns = wake_ns.max(*next_ns));
        }
    }
}

/// An agent, which lives until it meets trouble, and begins again.
struct OneAgent<'s> {
    group: Arc<Group<'s>>,
    number: usize,
    host: usize,
    plan: &'s AgentHost,
    desk: Shared,
    notes: Kept,
    tasks: Vec<Task>,
    process: Arc<Process>,
    messages: Option<Messages>,
    agent: Option<Agent>,
    bus: Option<(Arc<dyn Bus>, u64, bool)>,
    /// The trouble that comes next, and since when it is waited for.
    trouble: usize,
    begun_ns: i64,
    /// From when it knows what was due, by its clock: since it has begun, or begun again without
    /// notes. It may be stopped again before that.
    knows_from_ns: Option<i64>,
    /// Until when it is not idle.
    busy_until_ns: i64,
    is_busy: bool,
    /// When it will have something to do, if it has nothing now.
    wake_ns: i64,
    /// When it is stepped next.
    next_ns: i64,
}

impl<'s> OneAgent<'s> {
    fn new(
        group: &Arc<Group<'s>>,
        (number, host, plan): (usize, usize, &'s AgentHost),
        desk: &Shared,
    ) -> Self {
        let task = |work, when: &str| Task {
            work,
            when: when.parse().ok(),
            spread: std::time::Duration::ZERO,
        };
        let mut tasks: Vec<Task> = Vec::new();
        for (series, when) in &plan.tasks {
            tasks.push(task(Work::Backup { series: series.name().to_owned() }, when));
        }
        tasks.extend(plan.reclaims.map(|when| task(Work::Reclaim, when)));
        let machine = (host, format!("host{host}-{number}"));
        Self {
            group: Arc::clone(group),
            number,
            host,
            plan,
            desk: desk.clone(),
            notes: Kept::default(),
            tasks,
            process: group.stage.process_on(machine, plan.skew_minutes),
            messages: None,
            agent: None,
            bus: None,
            trouble: 0,
            begun_ns: 0,
            knows_from_ns: None,
            busy_until_ns: 0,
            is_busy: true,
            wake_ns: 0,
            next_ns: 0,
        }
    }

    /// Does what the agent of a host does each second or so. Returns whether it goes on.
    fn step(&mut self) -> Result<bool> {
        let stage = self.group.stage;
        let process = Arc::clone(&self.process);
        if self.messages.is_none() {
            self.open(&process)?;
        }
        let now_ns = stage.world.state().now_ns;
        if now_ns >= self.group.until_ns {
            self.verify(&process);
            process.end();
            return Ok(false);
        }
        let is_hostile = now_ns < self.group.hostile_until_ns;
        let plan = self.plan;
        let trouble = plan.troubles.get(self.trouble).filter(|_| is_hostile);
        let trouble_ns = trouble.map(|next| self.begun_ns + minutes_ns(next.after_minutes));
        let trouble = trouble.filter(|_| trouble_ns.is_some_and(|at_ns| at_ns <= now_ns));
        if let Some(trouble) = trouble {
            self.suffer(trouble);
            (self.trouble, self.begun_ns, self.agent) = (self.trouble + 1, now_ns, None);
            self.busy_until_ns = now_ns + minutes_ns(trouble.down_minutes) + BUSY_NS;
            self.next_ns = now_ns + minutes_ns(trouble.down_minutes);
            (self.is_busy, self.wake_ns) = (false, self.next_ns);
            if trouble.down_minutes > 0 {
                return Ok(true);
            }
        }
        let agent = match self.agent.take() {
            Some(agent) => agent,
            None => self.begin(&process)?,
        };
        let step = agent.step();
        step.events.iter().for_each(|event| self.note(event));
        let due_ns = step.next_ns.map_or(i64::MAX, |next| next - process.skew_ns);
        if !step.events.is_empty() || step.running > 0 || due_ns - now_ns <= BUSY_NS {
            self.busy_until_ns = now_ns + BUSY_NS;
        }
        let bus = self.bus(is_hostile);
        if let Some(messages) = &self.messages {
            // It must do well without the bus.
            let _ = agent.meet(&bus, messages);
        }
        // What is due waits for a job, and is no event.
        let waits = agent.status().tasks.iter().any(|task| task.due_ns.is_some());
        self.agent = Some(agent);
        self.is_busy = waits || now_ns < self.busy_until_ns;
        let end_ns = self.group.until_ns.min(due_ns.saturating_sub(BUSY_NS));
        self.wake_ns = trouble_ns.map_or(end_ns, |at_ns| end_ns.min(at_ns));
        self.next_ns = stage.world.state().now_ns + self.group.pause_ns(self.is_busy);
        Ok(true)
    }

    /// Opens the repository, if it is reached: until then, the agent does without the bus.
    fn open(&mut self, process: &Arc<Process>) -> Result<()> {
        let stage = self.group.stage;
        if self.begun_ns == 0 {
            self.begun_ns = stage.world.state().now_ns;
        }
        let repository = match history::open(stage, process, 0, Role::Administrator) {
            Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(()),
            opened => opened?,
        };
        let is_signed = stage.plan.seed.is_multiple_of(SIGNED_ONCE_IN);
        let make = if is_signed { |it: &_| Ok(Messages::new(it)) } else { Messages::simulated };
        self.messages = Some(make(&repository.objects)?);
        Ok(())
    }

    fn note(&self, event: &Event) {
        let number = self.number;
        self.group.stage.note(format_args!("agent {number}: {event:?}"));
    }

    fn begin(&mut self, process: &Arc<Process>) -> Result<Agent> {
        self.knows_from_ns.get_or_insert(process.now_ns());
        let name = Name::new(format!("agent{}", self.number))?;
        let options = AgentOptions {
            tasks: self.tasks.clone(),
            has_bus: true,
            limit: self.plan.limit,
            ..AgentOptions::new(name)
        };
        let worker = Box::new(self.desk.clone());
        Agent::new(options, Arc::clone(process) as _, worker, Box::new(self.notes.clone()))
    }

    /// The bus as the agent reaches it now.
    fn bus(&mut self, is_hostile: bool) -> Arc<dyn Bus> {
        let (local, count) = &*self.group.bus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((bus, of, was_hostile)) = &self.bus
            && *of == *count
            && *was_hostile == is_hostile
        {
            return Arc::clone(bus);
        }
        let seed = self.group.stage.plan.seed ^ count << 8 ^ to_u64(self.host + self.number);
        let faults = if is_hostile { self.plan.bus_faults } else { 0 };
        let bus = Arc::new(HostileBus::new(local.clone(), seed, faults)) as Arc<dyn Bus>;
        self.bus = Some((Arc::clone(&bus), *count, is_hostile));
        bus
    }

    fn suffer(&mut self, trouble: &Trouble) {
        let stage = self.group.stage;
        stage.note(format_args!("agent {}: {trouble:?}", self.number));
        if trouble.loses_bus {
            let env = stage.process(self.host, 0);
            let mut bus = self.group.bus.lock().unwrap_or_else(PoisonError::into_inner);
            *bus = (LocalBus::new(env as _), bus.1 + 1);
        }
        let mut desk = self.desk.desk();
        // The runs of an agent end with it; nobody hears how.
        desk.waiting = None;
        desk.news.clear();
        let running = desk.running.take().and_then(|(_, process)| process);
        drop(desk);
        if let Some(running) = running {
            running.end();
        }
        if trouble.forgets {
            self.notes.all().clear();
            self.knows_from_ns = None;
        }
    }

    /// Every time at which something was due is covered, unless it is still tried.
    fn verify(&self, process: &Arc<Process>) {
        let stage = self.group.stage;
        let now_ns = process.now_ns();
        let desk = self.desk.desk();
        for task in &self.tasks {
            let key = task.work.key();
            let until_ns = now_ns - minutes_ns(LATE_MINUTES);
            let (when, from_ns) = (task.when.as_ref(), self.knows_from_ns.unwrap_or(now_ns));
            let due = when.and_then(|when| last(when, from_ns, until_ns));
            let Some(due) = due else { continue };
            let is_tried = desk.last.get(&key).is_some_and(|(at_ns, end)| {
                !matches!(end, End::Done { .. })
                    && now_ns - at_ns < minutes_ns(RETRY_MINUTES + LATE_MINUTES)
            });
            let is_covered = self.group.covered().get(&key).is_some_and(|covered| {
                covered.iter().any(|at| (due..=now_ns + 10 * MINUTE_NS).contains(at))
            });
            if !is_tried && !is_covered {
                let minutes = (now_ns - due) / MINUTE_NS;
                stage.violated(format!(
                    "agent {}: the {}, due {minutes} minutes ago, was not made up for",
                    self.number, task.work
                ));
            }
        }
    }
}

fn last(when: &Calendar, after_ns: i64, until_ns: i64) -> Option<i64> {
    let at = |ns: i64| Timestamp::from_nanosecond(i128::from(ns)).ok();
    let due = when.due(at(after_ns)?, at(until_ns)?, &TimeZone::UTC)?;
    i64::try_from(due.as_nanosecond()).ok()
}

/// The thread that carries out the runs of an agent.
struct WorkerThread<'s> {
    group: Arc<Group<'s>>,
    number: usize,
    host: usize,
    plan: &'s AgentHost,
    desk: Shared,
}

impl WorkerThread<'_> {
    fn run(&self) {
        loop {
            let run = {
                let mut desk = self.desk.desk();
                let run = desk.waiting.take();
                if desk.has_ended {
                    return;
                }
                desk.running = run.clone().map(|run| (run, None));
                desk.count += usize::from(run.is_some());
                run
            };
            match run {
                Some(run) => self.carry_out(&run),
                None => self.group.stage.world.park(self.host),
            }
        }
    }

    fn carry_out(&self, run: &Run) {
        let machine = (self.host, format!("agent{}", self.number));
        let process = self.group.stage.process_on(machine, self.plan.skew_minutes);
        let mine = Arc::clone(&process);
        let count = {
            let mut desk = self.desk.desk();
            desk.running = Some((run.clone(), Some(mine)));
            desk.count
        };
        let is_backup = run.work.series().is_some();
        self.group.stage.lend_caches(&process, is_backup.then_some(CACHE_POLICY));
        process.expect(self.plan.runs.get(count - 1).map_or(&[][..], Vec::as_slice));
        let done = self.work(&process, run);
        process.expect(&[]);
        let end = match done {
            Ok(at_ns) => End::Done { at_ns, warning: None },
            Err(error) if error.kind() == ErrorKind::Busy => End::Busy,
            Err(error) => End::Failed { error: error.to_string() },
        };
        process.end();
        if let End::Done { at_ns, .. } = end {
            self.group.covered().entry(run.key.clone()).or_default().push(at_ns);
        }
        let mut desk = self.desk.desk();
        let is_mine = |(_, running): &(Run, Option<Arc<Process>>)| {
            running.as_ref().is_some_and(|running| Arc::ptr_eq(running, &process))
        };
        // The agent that wanted it may be gone.
        if desk.running.as_ref().is_some_and(is_mine) {
            desk.running = None;
            desk.last.insert(run.key.clone(), (process.now_ns(), end.clone()));
            desk.news.push(News::Ended { key: run.key.clone(), end });
        }
    }

    /// Does what a run is about. Returns when it was done.
    fn work(&self, process: &Arc<Process>, run: &Run) -> Result<i64> {
        let stage = self.group.stage;
        let repository = history::open(stage, process, 0, Role::Host)?;
        let Some(series) = run.work.series() else {
            // The model must not stay locked while others run.
            let all = stage.model().all_called(0, Series::Vm);
            for called in all {
                history::reclaim(&repository, called, Keep::Nothing)?;
            }
            return Ok(process.now_ns());
        };
        let series = Series::ALL.into_iter().find(|one| one.name() == series);
        let series = series.unwrap_or(Series::Vm);
        if let Some(at_ns) = found(&repository, series, run.due_ns, process.now_ns())? {
            return Ok(at_ns);
        }
        let begun_ns = process.now_ns();
        history::backup(stage, process, &repository, (0, series))?;
        Ok(begun_ns)
    }
}

/// The time of a snapshot that a run would make up for.
fn found(
    repository: &Repository,
    series: Series,
    due_ns: Option<i64>,
    now_ns: i64,
) -> Result<Option<i64>> {
    let Some(due_ns) = due_ns else { return Ok(None) };
    let id = repository.series_id(Called::own(0, series).name());
    let head = repository.head(id)?;
    let entries = head.iter().flat_map(|head| &head.snapshots);
    let times = entries.map(|entry| entry.time_ns);
    Ok(times.filter(|at| (due_ns..=now_ns + 10 * MINUTE_NS).contains(at)).max())
}
