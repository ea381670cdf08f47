//! Hosts with a clock that is set by hand, agents whose work is a script, and a bus with switches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::{
    Agent, AgentOptions, Answering, Bus, Delivery, End, Event, Job, JobState, Lease, Listener,
    LocalBus, Member, Messages, Name, News, Notes, Offer, Remote, Respond, Run, Step, Task,
    TaskNotes, Work, Worker,
};
use silt_format::{Config, Error, ErrorKind, Id, KdfCost, KeyLabel, Result, Signer, SigningSeed};
use silt_repository::env::{Context, Env, Process};
use silt_repository::event::Silent;
use silt_repository::keys::KeyAccess;
use silt_repository::open::Protection;
use silt_repository::repository::Repository;
use silt_storage::MemoryStorage;

use crate::conformance::name;

pub const SECOND_NS: i64 = 1_000_000_000;
pub const MINUTE_NS: i64 = 60 * SECOND_NS;
pub const HOUR_NS: i64 = 60 * MINUTE_NS;
pub const DAY_NS: i64 = 24 * HOUR_NS;
/// A Monday, 00:00 UTC.
pub const BEGINNING_NS: i64 = 1_790_553_600 * SECOND_NS;

/// True time.
pub struct Clock(AtomicI64);

impl Clock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(BEGINNING_NS)))
    }
    pub fn now_ns(&self) -> i64 {
        self.0.load(Relaxed)
    }
    pub fn pass(&self, ns: i64) {
        self.0.fetch_add(ns, Relaxed);
    }
}

/// The environment of one host.
pub struct HostEnv {
    pub clock: Arc<Clock>,
    /// By how much its clock is ahead.
    pub skew_ns: AtomicI64,
    random: Mutex<u64>,
}

impl HostEnv {
    pub fn new(clock: &Arc<Clock>, seed: u64) -> Arc<Self> {
        let (clock, skew_ns) = (Arc::clone(clock), AtomicI64::default());
        Arc::new(Self { clock, skew_ns, random: Mutex::new(seed) })
    }
}

impl Env for HostEnv {
    fn now_ns(&self) -> i64 {
        self.clock.now_ns() + self.skew_ns.load(Relaxed)
    }
    fn entropy(&self, bytes: &mut [u8]) {
        let mut random = self.random.lock().unwrap();
        for byte in bytes {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = random.to_le_bytes()[7];
        }
    }
    fn process(&self) -> Process {
        Process::default()
    }
    fn may_be_running(&self, _: &silt_format::Lease) -> bool {
        true
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn sleep_ns(&self, nanoseconds: u64) {
        self.clock.pass(i64::try_from(nanoseconds).unwrap());
    }
}

/// What the storage knows: snapshots by task, and who makes one.
#[derive(Default)]
pub struct Truth {
    pub done: Mutex<BTreeMap<Name, Vec<i64>>>,
    pub busy: Mutex<BTreeMap<Name, Name>>,
}

/// How runs end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luck {
    Succeeds,
    Fails,
    Busy,
    /// It cannot begin.
    Refuses,
    Hangs,
    /// Its snapshot is stamped this much later than it is.
    Stamps(i64),
}

/// One run that a worker was told to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub agent: Name,
    pub series: String,
    pub at_ns: i64,
    pub due_ns: Option<i64>,
}

struct Going {
    run: Run,
    since_ns: i64,
    luck: Luck,
    is_cancelled: bool,
}

/// What the worker of a host does, and did.
pub struct Hand {
    agent: Name,
    env: Arc<HostEnv>,
    truth: Arc<Truth>,
    pub luck: Mutex<Luck>,
    pub takes_ns: AtomicI64,
    /// What it tells besides the ends of runs.
    pub tells: Mutex<Vec<News>>,
    going: Mutex<BTreeMap<Name, Going>>,
    pub ran: Mutex<Vec<Ran>>,
}

impl Hand {
    pub fn going(&self) -> usize {
        self.going.lock().unwrap().len()
    }
    pub fn starts(&self) -> usize {
        self.ran.lock().unwrap().len()
    }
    fn series(run: &Run) -> String {
        run.work.series().map_or_else(|| run.key.to_string(), ToOwned::to_owned)
    }

    fn end(&self, going: &Going) -> End {
        let busy = || self.truth.busy.lock().unwrap();
        let is_others = busy().get(&going.run.key).is_some_and(|agent| *agent != self.agent);
        if !is_others {
            busy().remove(&going.run.key);
        }
        let mut done = self.truth.done.lock().unwrap();
        let done = done.entry(going.run.key.clone()).or_default();
        let now_ns = self.env.now_ns();
        let there = done.iter().filter(|at| **at <= now_ns + 10 * MINUTE_NS).max();
        let warning = None;
        match (going.luck, going.run.due_ns) {
            _ if going.is_cancelled => End::Cancelled,
            (_, Some(due)) if there.is_some_and(|at| *at >= due) => {
                End::Done { at_ns: *there.unwrap(), warning }
            }
            _ if is_others => End::Busy,
            (Luck::Fails, _) => End::Failed { error: "no space".to_owned() },
            (Luck::Busy, _) => End::Busy,
            (luck, _) => {
                let ahead_ns = if let Luck::Stamps(ns) = luck { ns } else { 0 };
                let at_ns = going.since_ns + ahead_ns;
                done.push(at_ns);
                End::Done { at_ns, warning }
            }
        }
    }
}

pub struct HandWorker(pub Arc<Hand>);

impl Worker for HandWorker {
    fn start(&mut self, run: &Run) -> Result<()> {
        let hand = &self.0;
        let luck = *hand.luck.lock().unwrap();
        let (agent, since_ns) = (hand.agent.clone(), hand.env.now_ns());
        let ran = Ran { agent, series: Hand::series(run), at_ns: since_ns, due_ns: run.due_ns };
        hand.ran.lock().unwrap().push(ran);
        if luck == Luck::Refuses {
            return Err(Error::new(ErrorKind::Unavailable, "no process"));
        }
        let mut busy = hand.truth.busy.lock().unwrap();
        busy.entry(run.key.clone()).or_insert_with(|| hand.agent.clone());
        drop(busy);
        let going = Going { run: run.clone(), since_ns, luck, is_cancelled: false };
        let before = hand.going.lock().unwrap().insert(run.key.clone(), going);
        assert!(before.is_none(), "two runs of {}", run.work);
        Ok(())
    }

    fn cancel(&mut self, key: &Name) {
        if let Some(going) = self.0.going.lock().unwrap().get_mut(key) {
            going.is_cancelled = true;
        }
    }

    fn news(&mut self) -> Vec<News> {
        let hand = &self.0;
        let (now_ns, takes_ns) = (hand.env.now_ns(), hand.takes_ns.load(Relaxed));
        let mut going = hand.going.lock().unwrap();
        let is_over = |one: &Going| {
            let hangs = one.luck == Luck::Hangs || one.luck == Luck::Refuses;
            one.is_cancelled || !hangs && (now_ns - one.since_ns).abs() >= takes_ns
        };
        let over: Vec<Name> =
            going.iter().filter(|(_, one)| is_over(one)).map(|(key, _)| key.clone()).collect();
        let mut news: Vec<News> = going
            .keys()
            .map(|key| News::Progress { key: key.clone(), done: 5, total: Some(10) })
            .collect();
        news.append(&mut hand.tells.lock().unwrap());
        for key in over {
            let end = hand.end(&going.remove(&key).unwrap());
            news.push(News::Ended { key, end });
        }
        news
    }
}

/// Notes that outlive their agent.
#[derive(Clone, Default)]
pub struct KeptNotes(pub Arc<Mutex<BTreeMap<Name, TaskNotes>>>);

impl Notes for KeptNotes {
    fn load(&mut self) -> Result<BTreeMap<Name, TaskNotes>> {
        Ok(self.0.lock().unwrap().clone())
    }
    fn save(&mut self, notes: &BTreeMap<Name, TaskNotes>) -> Result<()> {
        self.0.lock().unwrap().clone_from(notes);
        Ok(())
    }
}

/// A host with its agent.
pub struct Host {
    pub options: AgentOptions,
    pub env: Arc<HostEnv>,
    pub truth: Arc<Truth>,
    pub hand: Arc<Hand>,
    pub notes: KeptNotes,
    pub agent: Agent,
}

impl Host {
    pub fn new(options: AgentOptions, clock: &Arc<Clock>, truth: &Arc<Truth>) -> Self {
        let seed = options.name.as_str().bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte));
        let env = HostEnv::new(clock, seed);
        let (truth, notes) = (Arc::clone(truth), KeptNotes::default());
        let hand = hand(&options.name, &env, &truth);
        let agent = agent(&options, &env, &hand, &notes);
        Self { options, env, truth, hand, notes, agent }
    }

    /// One alone, without a bus.
    pub fn alone(tasks: Vec<Task>) -> Self {
        let options = AgentOptions { tasks, ..AgentOptions::new(name("web1")) };
        Self::new(options, &Clock::new(), &Arc::default())
    }

    /// Its process ends, with its runs, and a new one begins.
    pub fn restart(&mut self) {
        let mut busy = self.truth.busy.lock().unwrap();
        busy.retain(|_, agent| *agent != self.options.name);
        drop(busy);
        let ran = std::mem::take(&mut *self.hand.ran.lock().unwrap());
        let (luck, takes_ns) = (*self.hand.luck.lock().unwrap(), self.hand.takes_ns.load(Relaxed));
        self.hand = hand(&self.options.name, &self.env, &self.truth);
        *self.hand.ran.lock().unwrap() = ran;
        *self.hand.luck.lock().unwrap() = luck;
        self.hand.takes_ns.store(takes_ns, Relaxed);
        self.agent = agent(&self.options, &self.env, &self.hand, &self.notes);
    }

    pub fn luck(&self, luck: Luck) {
        *self.hand.luck.lock().unwrap() = luck;
    }

    pub fn takes(&self, ns: i64) {
        self.hand.takes_ns.store(ns, Relaxed);
    }

    /// Steps each `tick_ns` for `ns`, and returns the events.
    pub fn run_for(&self, ns: i64, tick_ns: i64) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..ns / tick_ns {
            let Step { events: more, .. } = self.agent.step();
            events.extend(more);
            self.env.clock.pass(tick_ns);
        }
        events
    }

    /// When runs of a series began, in seconds since the beginning.
    pub fn began(&self, series: &str) -> Vec<i64> {
        let ran = self.hand.ran.lock().unwrap();
        let of_series = ran.iter().filter(|ran| ran.series == series);
        of_series.map(|ran| (ran.at_ns - BEGINNING_NS) / SECOND_NS).collect()
    }
}

fn hand(agent: &Name, env: &Arc<HostEnv>, truth: &Arc<Truth>) -> Arc<Hand> {
    Arc::new(Hand {
        agent: agent.clone(),
        env: Arc::clone(env),
        truth: Arc::clone(truth),
        luck: Mutex::new(Luck::Succeeds),
        takes_ns: AtomicI64::new(90 * SECOND_NS),
        tells: Mutex::default(),
        going: Mutex::default(),
        ran: Mutex::default(),
    })
}

fn agent(options: &AgentOptions, env: &Arc<HostEnv>, hand: &Arc<Hand>, notes: &KeptNotes) -> Agent {
    let worker = Box::new(HandWorker(Arc::clone(hand)));
    Agent::new(options.clone(), Arc::clone(env) as _, worker, Box::new(notes.clone())).unwrap()
}

/// A backup of a series with a schedule.
pub fn backup(series: &str, when: &str) -> Task {
    let when = (!when.is_empty()).then(|| when.parse().unwrap());
    let work = Work::Backup { series: series.to_owned() };
    Task { work, when, spread: Duration::ZERO }
}

/// A bus with switches.
pub struct Wire {
    bus: Arc<dyn Bus>,
    pub is_dead: Arc<AtomicBool>,
    /// Jobs are acknowledged and lost.
    pub loses_jobs: AtomicBool,
    /// Those of this pool only.
    pub loses_jobs_of: Mutex<Option<Name>>,
    /// Everybody gets every lease.
    pub grants_all: AtomicBool,
    pub jobs: Mutex<Vec<Job>>,
    pub settled: Mutex<Vec<JobState>>,
    /// What went over it: messages in both directions, and their bytes.
    pub messages: AtomicU64,
    pub sent: AtomicU64,
    pub read: AtomicU64,
}

impl Wire {
    pub fn new(bus: impl Bus + 'static) -> Arc<Self> {
        Arc::new(Self {
            bus: Arc::new(bus),
            is_dead: Arc::default(),
            loses_jobs: AtomicBool::default(),
            loses_jobs_of: Mutex::default(),
            grants_all: AtomicBool::default(),
            jobs: Mutex::default(),
            settled: Mutex::default(),
            messages: AtomicU64::default(),
            sent: AtomicU64::default(),
            read: AtomicU64::default(),
        })
    }
    fn count(&self, counter: &AtomicU64, sizes: impl IntoIterator<Item = usize>) {
        for bytes in sizes {
            self.messages.fetch_add(1, Relaxed);
            counter.fetch_add(u64::try_from(bytes).unwrap(), Relaxed);
        }
    }
    fn counted(&self, read: Vec<Member>) -> Vec<Member> {
        self.count(&self.read, read.iter().map(|member| member.about.len()));
        read
    }
    fn bus(&self) -> Result<&dyn Bus> {
        if self.is_dead.load(Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the bus is dead"));
        }
        Ok(&*self.bus)
    }
}

impl Bus for Wire {
    fn offer(&self, job: &Job) -> Result<Offer> {
        let bus = self.bus()?;
        self.count(&self.sent, [job.body.len()]);
        self.jobs.lock().unwrap().push(job.clone());
        let is_lost = self.loses_jobs_of.lock().unwrap().as_ref() == Some(&job.pool);
        if is_lost || self.loses_jobs.load(Relaxed) {
            return Ok(Offer::Added);
        }
        bus.offer(job)
    }
    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<Delivery>> {
        let taken = self.bus()?.take(pool, patience)?;
        self.count(&self.read, [taken.as_ref().map_or(0, |delivery| delivery.job.body.len())]);
        Ok(taken)
    }
    fn settle(&self, delivery: &Delivery, state: JobState) -> Result<()> {
        self.settled.lock().unwrap().push(state);
        self.count(&self.sent, [0]);
        self.bus()?.settle(delivery, state)
    }
    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<Lease>> {
        if self.grants_all.load(Relaxed) {
            return Ok(Some(Lease { name: name.clone(), number: 1 }));
        }
        self.bus()?.acquire(name, term)
    }
    fn renew(&self, lease: &mut Lease, term: Duration) -> Result<bool> {
        if self.grants_all.load(Relaxed) {
            return Ok(true);
        }
        self.bus()?.renew(lease, term)
    }
    fn release(&self, lease: Lease) -> Result<()> {
        self.bus()?.release(lease)
    }
    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        self.count(&self.sent, [about.len()]);
        self.bus()?.announce(member, about, term)
    }
    fn members(&self) -> Result<Vec<Member>> {
        Ok(self.counted(self.bus()?.members()?))
    }
    fn find_member(&self, name: &Name) -> Result<Option<Member>> {
        let found = self.bus()?.find_member(name)?;
        Ok(self.counted(found.into_iter().collect()).pop())
    }
    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        self.count(&self.sent, [details.len()]);
        self.bus()?.describe(member, details, term)
    }
    fn details(&self, members: &[Name]) -> Result<Vec<Member>> {
        Ok(self.counted(self.bus()?.details(members)?))
    }
    fn answer(&self, service: &Name, respond: Respond) -> Result<Box<dyn Answering>> {
        self.bus()?.answer(service, respond)
    }
    fn ask(&self, service: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        self.bus()?.ask(service, question, patience)
    }
    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        self.count(&self.sent, [message.len()]);
        self.bus()?.tell(topic, message)
    }
    fn listen(&self, topic: &Name) -> Result<Box<dyn Listener>> {
        self.bus()?.listen(topic)
    }
}

/// The password of a key that reads, and of one that only writes.
pub const READS: &[u8] = b"reads";
pub const WRITES: &[u8] = b"writes";
const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

/// An encrypted repository, and how its hosts talk.
pub struct Secret {
    storage: Arc<MemoryStorage>,
    repository: Repository,
    env: Arc<HostEnv>,
}

impl Secret {
    pub fn new(clock: &Arc<Clock>, seed: u64) -> Self {
        let (storage, env) = (Arc::new(MemoryStorage::default()), HostEnv::new(clock, seed));
        let (password, label) = (READS.to_vec(), KeyLabel::default());
        let protection = Protection::Password { password, cost: COST, label };
        let context = Context::new(Arc::clone(&env) as _, Arc::new(Silent));
        let (there, config) = (Arc::clone(&storage) as _, Config::default());
        let repository = Repository::init(there, context, config, &protection, None).unwrap();
        Self { storage, repository, env }
    }

    /// The messages of a host with a key that reads.
    pub fn messages(&self) -> Messages {
        Messages::new(&self.repository.objects)
    }

    /// Those of a simulated host.
    pub fn simulated_messages(&self) -> Messages {
        Messages::simulated(&self.repository.objects).unwrap()
    }

    /// The messages of a host with a new key that writes these series only.
    pub fn messages_of_writer(&self, series: &str) -> Messages {
        self.add_key(&KeyAccess::write_only(&[series]));
        self.messages_opened_by(WRITES)
    }

    /// Adds a key whose password is [`WRITES`].
    pub fn add_key(&self, access: &KeyAccess) -> Id {
        self.repository.add_key(WRITES, COST, &KeyLabel::default(), access).unwrap()
    }

    pub fn remove_key(&self, id: Id) {
        self.repository.remove_key(&id.to_string()).unwrap();
    }

    /// The messages of another host.
    pub fn messages_opened_by(&self, password: &[u8]) -> Messages {
        let context = Context::new(Arc::clone(&self.env) as _, Arc::new(Silent));
        let there = Arc::clone(&self.storage) as _;
        let opened = Repository::open(there, context, || Ok(password.to_vec())).unwrap();
        Messages::new(&opened.objects)
    }

    /// The messages of somebody who has the repository's keys, and a signing key of his own.
    pub fn stranger(&self) -> Messages {
        let objects = &self.repository.objects;
        let mut objects = objects.with_context(objects.context.clone());
        objects.signer = Arc::new(Signer::new(Id(5), SigningSeed::new([9; 32])));
        Messages::new(&Arc::new(objects))
    }
}

/// Hosts on one bus.
pub struct Group {
    pub clock: Arc<Clock>,
    pub local: LocalBus,
    pub wire: Arc<Wire>,
    pub secret: Secret,
    pub messages: Messages,
    pub truth: Arc<Truth>,
    pub hosts: Vec<Host>,
    /// Hosts that are down.
    pub down: Vec<usize>,
}

pub const TICK_NS: i64 = 5 * SECOND_NS;

impl Group {
    /// Hosts called `web0`, `web1` and so on, each with these tasks.
    pub fn new(count: usize, tasks: impl Fn(usize) -> Vec<Task>) -> Self {
        Self::with(count, tasks, |options| options)
    }

    pub fn with(
        count: usize,
        tasks: impl Fn(usize) -> Vec<Task>,
        set: impl Fn(AgentOptions) -> AgentOptions,
    ) -> Self {
        let clock = Clock::new();
        let truth = Arc::default();
        let local = LocalBus::new(HostEnv::new(&clock, 1) as _);
        let secret = Secret::new(&clock, 2);
        let host = |number: usize| {
            let options = AgentOptions::new(name(&format!("web{number}")));
            let options = AgentOptions { tasks: tasks(number), has_bus: true, ..options };
            Host::new(set(options), &clock, &truth)
        };
        let hosts = (0..count).map(host).collect();
        let (wire, messages) = (Wire::new(local.clone()), secret.messages());
        Self { clock, local, wire, secret, messages, truth, hosts, down: Vec::new() }
    }

    pub fn bus(&self) -> Arc<dyn Bus> {
        Arc::clone(&self.wire) as _
    }

    pub fn run_for(&self, ns: i64) {
        self.run_with(ns, |_| ());
    }

    /// Runs, and looks after each tick.
    pub fn run_with(&self, ns: i64, mut look: impl FnMut(&Self)) {
        let bus = self.bus();
        for _ in 0..ns / TICK_NS {
            for (number, host) in self.hosts.iter().enumerate() {
                if !self.down.contains(&number) {
                    host.agent.step();
                    // The agent must do well without it.
                    let _ = host.agent.meet(&bus, &self.messages);
                }
            }
            look(self);
            self.clock.pass(TICK_NS);
        }
    }

    /// Runs of a series on all hosts, with the host and the seconds since the beginning.
    pub fn began(&self, series: &str) -> Vec<(usize, i64)> {
        let mut began = Vec::new();
        for (number, host) in self.hosts.iter().enumerate() {
            began.extend(host.began(series).into_iter().map(|at| (number, at)));
        }
        began.sort_by_key(|(_, at)| *at);
        began
    }

    pub fn remote(&self, host: usize, messages: &Messages) -> Remote {
        let (bus, env) = (self.bus(), HostEnv::new(&self.clock, 77) as _);
        Remote::new(bus, messages.clone(), env, name(&format!("web{host}")))
    }
}
