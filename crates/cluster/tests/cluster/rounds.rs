//! Rounds across hosts: each is a thread with a repository, a bus and disks of its own.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::round::{
    Coordinator, CoordinatorOptions, HostSeries, PartReport, Parts, PlannedSeries, RoundHost,
    RoundHostOptions, Workspace,
};
use silt_cluster::{Bus, HostileBus, LocalBus, Messages, Name};
use silt_format::{Error, ErrorKind, Result};
use silt_repository::env::Context;
use silt_repository::system::SystemEnv;
use silt_storage::{Fault, FaultStorage, MemoryStorage, Operation, Storage};
use siltstone::source::{SourceOptions, open_source};
use siltstone::{
    BackupOptions, BackupReport, CheckOptions, Config, CostModel, DataCheck, Protection,
    Repository, RoundMember, RoundOptions, Selector, VolumeReader, When,
};

use crate::conformance::name;
use crate::nats::Server;

const CHUNK: usize = 4096;
const LONG: Duration = Duration::from_mins(5);
const BRIEF: Duration = Duration::from_millis(700);

/// Chunks that differ from all others, by their numbers.
pub fn image(chunks: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let chunk = |number: u64| {
        let mut seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..CHUNK / 8).flat_map(move |_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()
        })
    };
    chunks.into_iter().flat_map(chunk).collect()
}

/// Disks of several hosts: all have one part in common, neighbours another, and each has its own.
struct Fleet {
    folder: tempfile::TempDir,
    storage: Arc<MemoryStorage>,
    hosts: Vec<BTreeMap<String, PathBuf>>,
    /// The volumes that were opened and released, by their series.
    events: Mutex<Vec<(Event, String)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Opened,
    Released,
}

fn open(storage: Arc<dyn Storage>, context: Context) -> Repository {
    Repository::open(storage, context, || Ok(Vec::new())).unwrap()
}

impl Fleet {
    fn new(hosts: u64, series: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let storage = Arc::new(MemoryStorage::new());
        let context = SystemEnv::context();
        let protection = Protection::None;
        Repository::init(storage.clone(), context, Config::default(), &protection, None).unwrap();
        let disk = |host: u64, series: u64| {
            let name = format!("vm{host}-{series}");
            let own = 10_000 * (host * 100 + series + 2);
            let chunks =
                (0..400).chain(1000 + series * 100..1050 + series * 100).chain(own..own + 60);
            let path = folder.path().join(&name);
            std::fs::write(&path, image(chunks)).unwrap();
            (name, path)
        };
        let hosts = (0..hosts).map(|host| (0..series).map(|it| disk(host, it)).collect()).collect();
        Self { folder, storage, hosts, events: Mutex::default() }
    }

    fn names(&self) -> Vec<Name> {
        (0..self.hosts.len()).map(|number| name(&format!("host{number}"))).collect()
    }

    fn repository(&self, context: Context) -> Repository {
        open(Arc::clone(&self.storage) as _, context)
    }

    /// Bytes of the different chunks of these hosts.
    fn unique(&self, hosts: &[usize]) -> u64 {
        let disks = hosts.iter().flat_map(|host| self.hosts[*host].values());
        let disks: Vec<Vec<u8>> = disks.map(|path| std::fs::read(path).unwrap()).collect();
        let unique: HashSet<&[u8]> = disks.iter().flat_map(|disk| disk.chunks(CHUNK)).collect();
        (unique.len() * CHUNK) as u64
    }

    /// Fails unless the latest snapshot of each series of these hosts is its disk.
    fn verify(&self, hosts: &[usize]) {
        let repository = self.repository(SystemEnv::context());
        for (name, path) in hosts.iter().flat_map(|host| &self.hosts[*host]) {
            let found = repository.find(&Selector::Time(Some(name.clone()), When::Latest)).unwrap();
            let reader = VolumeReader::open(&repository, found.volume("root").unwrap(), 0).unwrap();
            let expected = std::fs::read(path).unwrap();
            let mut bytes = vec![0; expected.len()];
            reader.read_at(0, &mut bytes).unwrap();
            assert!(bytes == expected, "{name}");
        }
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let check = repository.check(&all).unwrap();
        assert!(check.damage.is_empty(), "{check:?}");
    }
}

/// What a host brings, and what happens to it.
#[expect(clippy::struct_field_names, reason = "the disks of a host")]
struct Disks<'a> {
    disks: &'a BTreeMap<String, PathBuf>,
    events: &'a Mutex<Vec<(Event, String)>>,
    ended: Mutex<Vec<String>>,
    released: AtomicU64,
}

impl HostSeries for Disks<'_> {
    fn plan(&self) -> Result<Vec<PlannedSeries>> {
        let plan = |series: &String| PlannedSeries {
            series: series.clone(),
            scan_bytes: 2 << 20,
            requests: 512,
            read_bytes_per_s: None,
        };
        Ok(self.disks.keys().map(plan).collect())
    }

    fn open(&self, series: &str) -> Result<RoundMember<'_>> {
        let missing = || Error::new(ErrorKind::NotFound, format!("no disk of '{series}'"));
        let path: &Path = self.disks.get(series).ok_or_else(missing)?;
        let source = open_source(path, &SourceOptions::default())?;
        let name = series.to_owned();
        let note = |event, series| self.events.lock().unwrap().push((event, series));
        note(Event::Opened, name.clone());
        Ok(RoundMember {
            series: series.to_owned(),
            volumes: vec![("root".to_owned(), source.into())],
            options: BackupOptions::default(),
            on_released: Some(Box::new(move || {
                self.released.fetch_add(1, Ordering::SeqCst);
                note(Event::Released, name);
            })),
        })
    }

    fn ended(&self, series: &str, report: &Result<BackupReport>) {
        if report.is_ok() {
            self.ended.lock().unwrap().push(series.to_owned());
        }
    }
}

/// How a test differs from a round in which all goes well.
struct Course<'a> {
    parts: usize,
    patience: Duration,
    /// A host that ends when the bus has carried so many questions.
    death: Option<(usize, u64)>,
    /// A host that ends in the middle of its first comparison.
    dies_comparing: Option<usize>,
    bus: &'a (dyn Fn(&str) -> Arc<dyn Bus> + Sync),
}

/// A bus that counts questions, and interrupts a host at one of them.
struct Counting {
    bus: Arc<dyn Bus>,
    asked: Arc<AtomicU64>,
    death: Option<(Arc<AtomicBool>, u64)>,
}

impl Bus for Counting {
    fn ask(&self, to: &Name, question: &[u8], patience: Duration) -> Result<Option<Vec<u8>>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some((interrupted, at)) = &self.death
            && asked >= *at
        {
            interrupted.store(true, Ordering::SeqCst);
        }
        self.bus.ask(to, question, patience)
    }
    fn offer(&self, job: &silt_cluster::Job) -> Result<silt_cluster::Offer> {
        self.bus.offer(job)
    }
    fn take(&self, pool: &Name, patience: Duration) -> Result<Option<silt_cluster::Delivery>> {
        self.bus.take(pool, patience)
    }
    fn settle(
        &self,
        delivery: &silt_cluster::Delivery,
        state: silt_cluster::JobState,
    ) -> Result<()> {
        self.bus.settle(delivery, state)
    }
    fn acquire(&self, name: &Name, term: Duration) -> Result<Option<silt_cluster::Lease>> {
        self.bus.acquire(name, term)
    }
    fn renew(&self, lease: &mut silt_cluster::Lease, term: Duration) -> Result<bool> {
        self.bus.renew(lease, term)
    }
    fn release(&self, lease: silt_cluster::Lease) -> Result<()> {
        self.bus.release(lease)
    }
    fn announce(&self, member: &Name, about: &[u8], term: Duration) -> Result<()> {
        self.bus.announce(member, about, term)
    }
    fn members(&self) -> Result<Vec<silt_cluster::Member>> {
        self.bus.members()
    }
    fn find_member(&self, name: &Name) -> Result<Option<silt_cluster::Member>> {
        self.bus.find_member(name)
    }
    fn describe(&self, member: &Name, details: &[u8], term: Duration) -> Result<()> {
        self.bus.describe(member, details, term)
    }
    fn details(&self, members: &[Name]) -> Result<Vec<silt_cluster::Member>> {
        self.bus.details(members)
    }
    fn answer(
        &self,
        service: &Name,
        respond: silt_cluster::Respond,
    ) -> Result<Box<dyn silt_cluster::Answering>> {
        self.bus.answer(service, respond)
    }
    fn tell(&self, topic: &Name, message: &[u8]) -> Result<()> {
        self.bus.tell(topic, message)
    }
    fn listen(&self, topic: &Name) -> Result<Box<dyn silt_cluster::Listener>> {
        self.bus.listen(topic)
    }
}

/// Of each host, the series that were backed up, and how many volumes were released.
type Ended = Vec<(Vec<String>, u64)>;

/// Runs a round: the parts' reports, whether the coordinator ended well, and what hosts say.
fn round(fleet: &Fleet, course: &Course<'_>) -> (Vec<PartReport>, Result<Vec<Name>>, Ended) {
    let deaths: Vec<Arc<AtomicBool>> = fleet.hosts.iter().map(|_| Arc::default()).collect();
    let round = 77;
    std::thread::scope(|scope| {
        let hosts: Vec<_> = (0..fleet.hosts.len())
            .map(|number| {
                let (death, course) = (Arc::clone(&deaths[number]), &*course);
                scope.spawn(move || host(fleet, course, (round, number), death))
            })
            .collect();
        let repository = fleet.repository(SystemEnv::context());
        let asked = Arc::default();
        let death = course.death.map(|(host, at)| (Arc::clone(&deaths[host]), at));
        let bus = Counting { bus: (course.bus)("coordinator"), asked, death };
        let options = CoordinatorOptions {
            round,
            hosts: fleet.names(),
            parts: Parts::Number(course.parts),
            model: CostModel::published(),
            use_measured: true,
            patience: course.patience,
            arrival: course.patience,
            chunk_bytes: CHUNK as u64,
            workspace: Workspace { folder: std::env::temp_dir(), memory_bytes: 0 },
        };
        let messages = Messages::new(&repository.objects);
        let mut parts = Vec::new();
        let coordinator = Coordinator::new(&repository, &bus, &messages, &options).unwrap();
        let ended = coordinator.run(&mut |part| {
            parts.push(part.clone());
            Ok(())
        });
        let hosts = hosts.into_iter().map(|host| host.join().unwrap()).collect();
        (parts, ended, hosts)
    })
}

fn host(
    fleet: &Fleet,
    course: &Course<'_>,
    (round, number): (u64, usize),
    death: Arc<AtomicBool>,
) -> (Vec<String>, u64) {
    let silent = SystemEnv::context().observer;
    let mut storage = Arc::clone(&fleet.storage) as Arc<dyn Storage>;
    if course.dies_comparing == Some(number) {
        let interrupted = Arc::clone(&death);
        // Whoever counts owners reads no runs in a new repository.
        let rule = move |operation: &Operation, _| match operation {
            Operation::Get { key, .. } if key.as_str().starts_with("runs/") => {
                interrupted.store(true, Ordering::SeqCst);
                Fault::FailBefore(ErrorKind::Interrupted)
            }
            _ => Fault::Pass,
        };
        storage = Arc::new(FaultStorage::new(storage, rule));
    }
    let context = Context::new(Arc::new(SystemEnv::new(death)), silent);
    let repository = open(storage, context);
    let folder = fleet.folder.path().to_owned();
    let host = fleet.names()[number].clone();
    let bus = (course.bus)(host.as_str());
    let options = RoundHostOptions {
        round,
        host,
        round_options: RoundOptions { folder, memory_bytes: 0, spool: false },
        patience: [LONG, course.patience.max(8 * BRIEF)],
    };
    let (disks, events) = (&fleet.hosts[number], &fleet.events);
    let series = Disks { disks, events, ended: Mutex::default(), released: AtomicU64::new(0) };
    let messages = Messages::new(&repository.objects);
    // An interrupted one fails.
    let _ = RoundHost::new(&repository, &series, &options).run(&*bus, &messages);
    (series.ended.into_inner().unwrap(), series.released.into_inner())
}

fn goes_well(fleet: &Fleet, bus: &(dyn Fn(&str) -> Arc<dyn Bus> + Sync), parts: usize) {
    let course = Course { parts, patience: LONG, death: None, dies_comparing: None, bus };
    let (reports, ended, hosts) = round(fleet, &course);
    assert_eq!(ended.unwrap(), []);
    assert_eq!(reports.len(), parts);
    let all: Vec<usize> = (0..fleet.hosts.len()).collect();
    for report in &reports {
        assert_eq!(report.unshared, None);
        let series = report.hosts.iter().flat_map(|host| &host.series);
        assert!(series.clone().all(|series| series.error.is_none() && series.snapshot.is_some()));
    }
    let backed_up: usize =
        reports.iter().flat_map(|report| &report.hosts).map(|host| host.series.len()).sum();
    let expected: usize = fleet.hosts.iter().map(BTreeMap::len).sum();
    assert_eq!(backed_up, expected);
    for ((ended, released), disks) in hosts.iter().zip(&fleet.hosts) {
        assert_eq!((ended.len(), *released), (disks.len(), disks.len() as u64));
    }
    fleet.verify(&all);
    is_perfect(fleet, &reports);
}

/// Fails unless the hosts have stored what exact deduplication leaves, and not a chunk more.
fn is_perfect(fleet: &Fleet, reports: &[PartReport]) {
    let all: Vec<usize> = (0..fleet.hosts.len()).collect();
    let repository = fleet.repository(SystemEnv::context());
    let spool = fleet.folder.path().to_owned();
    let policy = siltstone::SharePolicy::Duplicates;
    let options = siltstone::PopularOptions { policy, spool, memory_bytes: 0, dry_run: true };
    let counted = repository.build_popular(&options).unwrap();
    let stored = counted.private_slots + counted.shared_slots;
    assert_eq!(stored * CHUNK as u64, fleet.unique(&all));
    let shared: u64 = reports.iter().map(|report| report.shared_chunks).sum();
    assert_eq!(shared, counted.shared_slots);
}

fn local() -> impl Fn(&str) -> Arc<dyn Bus> + Sync {
    let bus = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
    move |_| Arc::new(bus.clone())
}

#[test]
fn hosts_back_up_together_and_store_what_they_share_once() {
    goes_well(&Fleet::new(3, 2), &local(), 1);
    goes_well(&Fleet::new(2, 4), &local(), 2);
    goes_well(&Fleet::new(1, 2), &local(), 1);
}

#[test]
fn rounds_go_over_nats() {
    let Some(server) = Server::start() else { return };
    goes_well(&Fleet::new(3, 2), &|member| Arc::new(server.connect(member)), 2);
}

#[test]
fn a_round_without_hosts_says_so() {
    let fleet = Fleet::new(2, 1);
    let repository = fleet.repository(SystemEnv::context());
    let (bus, messages) = (local()("coordinator"), Messages::new(&repository.objects));
    let options = CoordinatorOptions {
        round: 5,
        hosts: fleet.names(),
        parts: Parts::Number(1),
        model: CostModel::published(),
        use_measured: true,
        patience: BRIEF,
        arrival: BRIEF,
        chunk_bytes: CHUNK as u64,
        workspace: Workspace { folder: std::env::temp_dir(), memory_bytes: 0 },
    };
    let coordinator = Coordinator::new(&repository, &*bus, &messages, &options).unwrap();
    let error = coordinator.run(&mut |_| Ok(())).unwrap_err();
    assert_eq!(error.to_string(), "no host of the round answers");
}

#[test]
fn a_host_that_dies_harms_no_other() {
    for at in [2, 5, 9, 12, 16, 20, 30] {
        let fleet = Fleet::new(3, 2);
        let (bus, death) = (local(), Some((1, at)));
        let course =
            Course { parts: 1, patience: 3 * BRIEF, death, dies_comparing: None, bus: &bus };
        let (_, ended, hosts) = round(&fleet, &course);
        ended.unwrap();
        for number in [0, 2] {
            assert_eq!(hosts[number].0.len(), 2, "death at {at}: {hosts:?}");
        }
        // Volumes are given back in any case.
        assert!([0, 2].contains(&hosts[1].1), "{hosts:?}");
        fleet.verify(&[0, 2]);
    }
}

#[test]
fn a_host_whose_coordinator_has_gone_before_it_asked_is_free_soon() {
    let fleet = Fleet::new(1, 1);
    let context = SystemEnv::context();
    let repository = open(Arc::clone(&fleet.storage) as _, context.clone());
    let folder = fleet.folder.path().to_owned();
    let options = RoundHostOptions {
        round: 7,
        host: fleet.names()[0].clone(),
        round_options: RoundOptions { folder, memory_bytes: 0, spool: false },
        patience: [BRIEF, LONG],
    };
    let (disks, events) = (&fleet.hosts[0], &fleet.events);
    let series = Disks { disks, events, ended: Mutex::default(), released: AtomicU64::new(0) };
    let (bus, messages) = (local(), Messages::new(&repository.objects));
    let began_ns = context.env.now_ns();
    let host = RoundHost::new(&repository, &series, &options);
    assert!(!host.run(&*bus("host"), &messages).unwrap(), "it has not ended as it should");
    let waited = Duration::from_nanos(u64::try_from(context.env.now_ns() - began_ns).unwrap());
    assert!(waited >= BRIEF && waited < LONG / 2, "{waited:?}");
    assert!(series.ended.into_inner().unwrap().is_empty());
}

#[test]
fn a_comparison_is_done_by_another_host_if_its_own_dies() {
    let mut fleet = Fleet::new(3, 2);
    // It has no series of its own, so nobody misses what it would have stored.
    fleet.hosts[1].clear();
    let (bus, dies_comparing) = (local(), Some(1));
    let course = Course { parts: 1, patience: 2 * BRIEF, death: None, dies_comparing, bus: &bus };
    let (reports, ended, hosts) = round(&fleet, &course);
    assert_eq!(ended.unwrap(), [name("host1")]);
    assert_eq!(reports[0].unshared, None);
    assert_eq!(hosts.iter().map(|host| host.0.len()).collect::<Vec<_>>(), [2, 0, 2]);
    fleet.verify(&[0, 2]);
    is_perfect(&fleet, &reports);
}

#[test]
fn volumes_of_a_part_are_released_before_those_of_the_next_are_opened() {
    let fleet = Fleet::new(2, 4);
    let bus = local();
    let course = Course { parts: 4, patience: LONG, death: None, dies_comparing: None, bus: &bus };
    let (reports, ended, _) = round(&fleet, &course);
    assert_eq!((ended.unwrap().len(), reports.len()), (0, 4));
    let events = fleet.events.lock().unwrap();
    let at = |event: Event, series: &str| {
        let found = events.iter().position(|(it, of)| *it == event && of == series);
        found.unwrap_or_else(|| panic!("{event:?} {series}: {events:?}"))
    };
    for parts in reports.windows(2) {
        let series = |part: &PartReport| -> Vec<String> {
            let all = part.hosts.iter().flat_map(|host| &host.series);
            all.map(|series| series.series.clone()).collect()
        };
        let [before, after] = [series(&parts[0]), series(&parts[1])];
        let released = before.iter().map(|series| at(Event::Released, series)).max().unwrap();
        let opened = after.iter().map(|series| at(Event::Opened, series)).min().unwrap();
        assert!(released < opened, "{before:?} {after:?}: {events:?}");
        assert_eq!((before.len(), after.len()), (2, 2), "one of each host");
    }
    assert_eq!(events.len(), 2 * 8);
    fleet.verify(&[0, 1]);
}

#[test]
fn a_hostile_bus_costs_space_at_most() {
    for seed in 0..12 {
        let fleet = Fleet::new(3, 2);
        let env = Arc::new(SystemEnv::new(Arc::default()));
        let bus: Arc<dyn Bus> = Arc::new(HostileBus::new(LocalBus::new(env), seed, 200));
        let bus: &(dyn Fn(&str) -> Arc<dyn Bus> + Sync) = &|_| Arc::clone(&bus);
        let course =
            Course { parts: 2, patience: 4 * BRIEF, death: None, dies_comparing: None, bus };
        let (reports, ended, hosts) = round(&fleet, &course);
        // What was scanned was backed up, also by a host that was taken for lost.
        for ((ended, released), _) in hosts.iter().zip(&fleet.hosts) {
            assert_eq!(ended.len() as u64, *released, "seed {seed}");
        }
        if ended.is_ok() {
            let known = reports.iter().flat_map(|part| &part.hosts).flat_map(|host| &host.series);
            let made = known.filter(|series| series.snapshot.is_some());
            let all: Vec<&String> = hosts.iter().flat_map(|(ended, _)| ended).collect();
            assert!(made.clone().all(|series| all.contains(&&series.series)), "seed {seed}");
        }
        let repository = fleet.repository(SystemEnv::context());
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        assert!(repository.check(&all).unwrap().damage.is_empty(), "seed {seed}");
    }
}
