//! Sweeps of the shared store whose references are counted by hosts on a bus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use silt_cluster::round::{
    CountersOptions, HostCounters, HostSeries, PlannedSeries, RoundHost, RoundHostOptions,
};
use silt_cluster::{Bus, HostileBus, LocalBus, Messages, Name};
use silt_format::{Error, ErrorKind, KdfCost, KeyLabel, Result};
use silt_repository::env::Context;
use silt_repository::system::SystemEnv;
use silt_storage::{Fault, FaultStorage, MemoryStorage, Operation, Storage};
use siltstone::source::StreamSource;
use siltstone::{
    Administrator, BackupOptions, BackupReport, CheckOptions, Config, DataCheck, DeleteMethod,
    KeyAccess, Level, PopularOptions, Protection, ReclaimOptions, Repository, RoundMember,
    RoundOptions, Selector, SharePolicy, SharedSweepOptions, SharedSweepReport, VolumeReader, When,
};

use crate::between::{Ask, Between};
use crate::conformance::name;
use crate::nats::Server;
use crate::rounds::image;

const BRIEF: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_mins(5);
const PASSWORD: &[u8] = b"reads";
const ADMINISTRATOR: &[u8] = b"removes";
const SHARED: u16 = 1;
/// Chunks of the shared store, and those of them that no series needs.
const CHUNKS: u64 = 900;
const GARBAGE: u64 = 440;
/// Series that have a head.
const SERIES: u64 = 7;

/// A repository whose shared store has chunks that no series needs any more.
struct Shared {
    storage: Arc<MemoryStorage>,
    images: BTreeMap<String, Vec<u8>>,
    opens_with: Vec<u8>,
    hosts_open_with: Vec<u8>,
}

/// Keys that are cheap to try.
const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

impl Shared {
    fn new(is_append_only: bool) -> Self {
        Self::with(is_append_only, is_append_only)
    }

    fn with(is_append_only: bool, is_encrypted: bool) -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let (cost, label) = (COST, KeyLabel::default);
        let administrator =
            Administrator { password: ADMINISTRATOR.to_vec(), cost, label: label() };
        let administrator = is_append_only.then_some(administrator);
        let (protection, opens_with) = if is_encrypted {
            let password = PASSWORD.to_vec();
            (Protection::Password { password, cost, label: label() }, PASSWORD)
        } else {
            (Protection::None, &[][..])
        };
        let config = Config { append_only: is_append_only, ..Config::default() };
        let context = SystemEnv::context();
        let there = Arc::clone(&storage) as Arc<dyn Storage>;
        Repository::init(there, context, config, &protection, administrator.as_ref()).unwrap();
        let [opens_with, hosts_open_with] = [opens_with; 2].map(<[u8]>::to_vec);
        let mut shared = Self { storage, images: BTreeMap::new(), opens_with, hosts_open_with };
        let repository = shared.remover();
        for series in ["a", "b"] {
            back_up(&repository, series, &image(0..CHUNKS));
        }
        let (spool, policy) = (std::env::temp_dir(), SharePolicy::Duplicates);
        let options = PopularOptions { policy, spool, memory_bytes: 0, dry_run: false };
        repository.build_popular(&options).unwrap();
        for series in 2..SERIES {
            let (first, own) = (series * 40, series * 10_000);
            let chunks = (first..first + 300).chain(own..own + 30);
            let (series, image) = (format!("vm{series}"), image(chunks));
            assert_eq!(back_up(&repository, &series, &image), 300 * 4096);
            shared.images.insert(series, image);
        }
        for series in ["a", "b"] {
            let latest = Selector::Time(Some(series.to_owned()), When::Latest);
            let id = repository.find(&latest).unwrap().snapshot.id;
            repository.delete(series, &[id], DeleteMethod::default()).unwrap();
            repository.reclaim(series, &thorough()).unwrap();
        }
        shared
    }

    /// The repository of a host.
    fn open(&self, storage: Arc<dyn Storage>, context: Context) -> Result<Repository> {
        Repository::open(storage, context, || Ok(self.hosts_open_with.clone()))
    }

    /// The repository of a process that may delete.
    fn remover(&self) -> Repository {
        let (storage, context) = (Arc::clone(&self.storage) as _, SystemEnv::context());
        let mut repository =
            Repository::open(storage, context, || Ok(self.opens_with.clone())).unwrap();
        repository.authorize(ADMINISTRATOR).unwrap();
        repository
    }

    /// Fails unless all disks are whole.
    fn verify(&self) {
        let repository = self.remover();
        for (name, image) in &self.images {
            let found = repository.find(&Selector::Time(Some(name.clone()), When::Latest)).unwrap();
            let reader = VolumeReader::open(&repository, found.volume("root").unwrap(), 0).unwrap();
            let mut bytes = vec![0; image.len()];
            reader.read_at(0, &mut bytes).unwrap();
            assert!(bytes == *image, "{name}");
        }
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let check = repository.check(&all).unwrap();
        assert!(check.damage.is_empty(), "{check:?}");
    }
}

fn thorough() -> ReclaimOptions {
    ReclaimOptions {
        keep_deleted_s: Some(0),
        grace_s: 0,
        leak_share_max: 0.0,
        ..ReclaimOptions::default()
    }
}

/// Backs up a series; the bytes that the shared store had.
fn back_up(repository: &Repository, series: &str, image: &[u8]) -> u64 {
    let mut backup = repository.backup(series, BackupOptions::default()).unwrap();
    let source = StreamSource::new(Box::new(std::io::Cursor::new(image.to_vec())));
    backup.add_volume("root", &source, None).unwrap();
    backup.finish().unwrap().snapshot.volumes[0].levels.get(Level::Shared)
}

/// A host without series of its own.
struct NoSeries;

impl HostSeries for NoSeries {
    fn plan(&self) -> Result<Vec<PlannedSeries>> {
        Ok(Vec::new())
    }
    fn open(&self, series: &str) -> Result<RoundMember<'_>> {
        Err(Error::new(ErrorKind::NotFound, format!("no disk of '{series}'")))
    }
    fn ended(&self, _: &str, _: &Result<BackupReport>) {}
}

type MakeBus<'a> = dyn Fn(&str) -> Arc<dyn Bus> + Sync + 'a;

/// What happens to a host when it writes a run; `true` interrupts it.
type OnWrite = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a test differs from a sweep in which all goes well.
struct Course<'a> {
    /// How many hosts are called, and how many come.
    hosts: [usize; 2],
    patience: Duration,
    limit: Duration,
    /// Of the first host.
    on_write: OnWrite,
    /// The first host ends when the bus has carried so many questions.
    death: Option<u64>,
    bus: &'a MakeBus<'a>,
}

impl<'a> Course<'a> {
    fn new(bus: &'a MakeBus<'a>) -> Self {
        let on_write: OnWrite = Arc::new(|| false);
        Self { hosts: [3, 3], patience: LONG, limit: LONG, on_write, death: None, bus }
    }
}

/// Interrupts a host at a question.
struct Death {
    interrupted: Arc<AtomicBool>,
    asked: AtomicU64,
    at: u64,
}

impl Ask for Death {
    fn ask(
        &self,
        bus: &dyn Bus,
        service: &Name,
        question: &[u8],
        patience: Duration,
    ) -> Result<Option<Vec<u8>>> {
        if self.asked.fetch_add(1, Ordering::SeqCst) >= self.at {
            self.interrupted.store(true, Ordering::SeqCst);
        }
        bus.ask(service, question, patience)
    }
}

/// A host that takes part in one round.
fn host(shared: &Shared, course: &Course<'_>, round: u64, number: usize, dies: &Arc<AtomicBool>) {
    let silent = SystemEnv::context().observer;
    let interrupted = if number == 0 { Arc::clone(dies) } else { Arc::default() };
    let mut storage = Arc::clone(&shared.storage) as Arc<dyn Storage>;
    if number == 0 {
        let (on_write, interrupted) = (Arc::clone(&course.on_write), Arc::clone(dies));
        let rule = move |operation: &Operation, _| match operation {
            Operation::Put { key, .. } if key.as_str().starts_with("runs/") && on_write() => {
                interrupted.store(true, Ordering::SeqCst);
                Fault::FailBefore(ErrorKind::Interrupted)
            }
            _ => Fault::Pass,
        };
        storage = Arc::new(FaultStorage::new(storage, rule));
    }
    let context = Context::new(Arc::new(SystemEnv::new(interrupted)), silent);
    // A host whose key was removed does not come.
    let Ok(repository) = shared.open(storage, context) else { return };
    let folder = std::env::temp_dir();
    let options = RoundHostOptions {
        round,
        host: name(&format!("host{number}")),
        round_options: RoundOptions { folder, memory_bytes: 0, spool: false },
        patience: [LONG, course.patience.max(4 * BRIEF)],
    };
    let bus = (course.bus)(options.host.as_str());
    let messages = Messages::new(&repository.objects);
    // One that is interrupted fails.
    let _ = RoundHost::new(&repository, &NoSeries, &options).run(&*bus, &messages);
}

/// Sweeps the shared store, with hosts that come when they are called.
fn sweep(shared: &Shared, course: &Course<'_>) -> Result<SharedSweepReport> {
    sweep_until(shared, course, || ())
}

/// The same; `on_end` is called before hosts must have ended.
fn sweep_until(
    shared: &Shared,
    course: &Course<'_>,
    on_end: impl FnOnce(),
) -> Result<SharedSweepReport> {
    let dies = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let repository = shared.remover();
        let bus = (course.bus)("sweeper");
        let death = course.death.map(|at| {
            let (interrupted, asked) = (Arc::clone(&dies), AtomicU64::new(0));
            let ask = Death { interrupted, asked, at };
            Arc::new(Between { bus: Arc::clone(&bus), ask }) as Arc<dyn Bus>
        });
        let bus = death.unwrap_or(bus);
        let messages = Messages::new(&repository.objects);
        let call = |round| {
            let [called, coming] = course.hosts;
            for number in 0..coming {
                let dies = &dies;
                scope.spawn(move || host(shared, course, round, number, dies));
            }
            Ok((0..called).map(|number| name(&format!("host{number}"))).collect())
        };
        let options = CountersOptions { patience: course.patience, limit: course.limit };
        let counters = HostCounters::new(&repository, (&*bus, &messages), &call, options);
        let options = SharedSweepOptions {
            spool: std::env::temp_dir(),
            memory_bytes: 0,
            reclaim: thorough(),
            dry_run: false,
        };
        let report = repository.sweep_store_with(SHARED, &options, &counters);
        on_end();
        report
    })
}

/// Fails unless a sweep has deleted what no series needs, and nothing else.
fn is_exact(shared: &Shared, report: &SharedSweepReport) {
    assert_eq!((report.slots, report.dead_slots), (CHUNKS, GARBAGE), "{report:?}");
    shared.verify();
}

fn local() -> impl Fn(&str) -> Arc<dyn Bus> + Sync {
    let bus = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
    move |_| Arc::new(bus.clone())
}

#[test]
fn hosts_count_for_a_sweep() {
    let bus = local();
    for hosts in [1, 3] {
        let shared = Shared::new(false);
        let course = Course { hosts: [hosts; 2], ..Course::new(&bus) };
        let report = sweep(&shared, &course).unwrap();
        assert_eq!(report.counted_elsewhere, 2 * SERIES, "{hosts} hosts");
        is_exact(&shared, &report);
        let check = shared.remover().check(&CheckOptions::default()).unwrap();
        assert_eq!(check.unreferenced, 0, "{check:?}");
    }
}

#[test]
fn hosts_count_over_nats() {
    let Some(server) = Server::start() else { return };
    let shared = Shared::new(false);
    let bus = |member: &str| Arc::new(server.connect(member)) as Arc<dyn Bus>;
    let report = sweep(&shared, &Course::new(&bus)).unwrap();
    // Those that come late are asked again.
    assert_eq!(report.counted_elsewhere, 2 * SERIES);
    is_exact(&shared, &report);
}

#[test]
fn a_key_that_is_removed_while_it_counts_is_not_believed() {
    let mut shared = Shared::with(false, true);
    let of_hosts = b"of the hosts".to_vec();
    let access = KeyAccess::full();
    let key = shared.remover().add_key(&of_hosts, COST, &KeyLabel::default(), &access).unwrap();
    shared.hosts_open_with = of_hosts;
    let (bus, storage) = (local(), Arc::clone(&shared.storage));
    let is_removed = AtomicBool::new(false);
    let on_write: OnWrite = Arc::new(move || {
        if !is_removed.swap(true, Ordering::SeqCst) {
            let storage = Arc::clone(&storage) as Arc<dyn Storage>;
            let password = || Ok(PASSWORD.to_vec());
            let remover = Repository::open(storage, SystemEnv::context(), password).unwrap();
            remover.remove_key(&key.to_string()).unwrap();
        }
        false
    });
    let course = Course { on_write, patience: 2 * BRIEF, ..Course::new(&bus) };
    let report = sweep(&shared, &course).unwrap();
    assert_eq!(report.counted_elsewhere, 0);
    is_exact(&shared, &report);
}

#[test]
fn without_hosts_a_sweep_counts_by_itself() {
    let bus = local();
    for hosts in [[0, 0], [2, 0]] {
        let shared = Shared::new(false);
        let course = Course { hosts, patience: BRIEF, ..Course::new(&bus) };
        let report = sweep(&shared, &course).unwrap();
        assert_eq!(report.counted_elsewhere, 0, "{hosts:?}");
        is_exact(&shared, &report);
    }
}

#[test]
fn what_a_dead_host_has_not_counted_is_counted_by_others() {
    for at in [0, 2, 5, 11] {
        let (shared, bus) = (Shared::new(false), local());
        let course = Course { patience: 2 * BRIEF, death: Some(at), ..Course::new(&bus) };
        is_exact(&shared, &sweep(&shared, &course).unwrap());
    }
    let (shared, bus) = (Shared::new(false), local());
    let on_write: OnWrite = Arc::new(|| true);
    // So long that no other host is taken for dead where the machine is busy.
    let course = Course { patience: 10 * BRIEF, on_write, ..Course::new(&bus) };
    let report = sweep(&shared, &course).unwrap();
    assert_eq!(report.counted_elsewhere, 2 * SERIES);
    is_exact(&shared, &report);
}

#[test]
fn a_host_that_takes_too_long_is_not_waited_for() {
    let (shared, bus) = (Shared::new(false), local());
    let (gate, writes) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let guard = gate.lock().unwrap();
    let (behind, counted) = (Arc::clone(&gate), Arc::clone(&writes));
    let on_write: OnWrite = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        drop(behind.lock().unwrap());
        false
    });
    // It answers that it is there; its storage hangs until the sweep has ended.
    let course = Course { hosts: [2, 2], limit: BRIEF, on_write, ..Course::new(&bus) };
    let report = sweep_until(&shared, &course, || drop(guard)).unwrap();
    assert!(writes.load(Ordering::SeqCst) > 0);
    assert!((1..2 * SERIES).contains(&report.counted_elsewhere), "{report:?}");
    is_exact(&shared, &report);
}

#[test]
fn hosts_that_may_not_remove_are_not_believed() {
    let (shared, bus) = (Shared::new(true), local());
    let course = Course { patience: BRIEF, ..Course::new(&bus) };
    let report = sweep(&shared, &course).unwrap();
    assert_eq!(report.counted_elsewhere, 0);
    is_exact(&shared, &report);
}

#[test]
fn a_hostile_bus_deletes_nothing() {
    let mut counted = 0;
    for seed in 0..12 {
        let shared = Shared::new(false);
        let bus = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
        let bus: Arc<dyn Bus> = Arc::new(HostileBus::new(bus, seed, 300));
        let bus: &MakeBus<'_> = &|_| Arc::clone(&bus);
        let course = Course { patience: 4 * BRIEF, ..Course::new(bus) };
        let report = sweep(&shared, &course).unwrap();
        assert_eq!(report.dead_slots, GARBAGE, "seed {seed}");
        is_exact(&shared, &report);
        counted += report.counted_elsewhere;
    }
    assert!(counted > 0);
}
