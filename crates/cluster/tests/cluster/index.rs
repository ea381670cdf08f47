//! The shared index in the memory of many hosts.

use std::sync::Arc;

use silt_cluster::index::{IndexClient, IndexServer, Served};
use silt_cluster::{Bus, HostileBus, LocalBus, Messages, Name};
use silt_repository::system::SystemEnv;
use silt_storage::{MemoryStorage, Storage};
use siltstone::source::StreamSource;
use siltstone::{
    BackupOptions, CheckOptions, Config, DataCheck, DeleteMethod, Level, PopularOptions,
    Protection, ReclaimOptions, Repository, Selector, SharePolicy, SharedPlaces,
    SharedSweepOptions, When,
};

use crate::conformance::name;
use crate::nats::Server;
use crate::rounds::image;

const MEMORY: u64 = 1 << 30;

/// A repository whose series have 900 chunks in common, which are shared.
struct Shared {
    storage: Arc<MemoryStorage>,
}

impl Shared {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let context = SystemEnv::context();
        let protection = Protection::None;
        let made = Repository::init(storage.clone(), context, Config::default(), &protection, None);
        let repository = made.unwrap();
        for series in ["a", "b"] {
            back_up(&repository, series, &image(0..900), None);
        }
        build(&repository);
        Self { storage }
    }

    fn open(&self) -> Repository {
        let storage = Arc::clone(&self.storage) as Arc<dyn Storage>;
        Repository::open(storage, SystemEnv::context(), || Ok(Vec::new())).unwrap()
    }

    fn serve(&self, bus: &dyn Bus, host: &str, memory_bytes: u64) -> IndexServer {
        let messages = Messages::new(&self.open().objects);
        IndexServer::start(bus, &messages, name(host), memory_bytes).unwrap()
    }

    fn client(&self, bus: Arc<dyn Bus>, hosts: &[Name]) -> Arc<dyn SharedPlaces> {
        let messages = Messages::new(&self.open().objects);
        Arc::new(IndexClient::new(bus, messages, SystemEnv::context(), hosts).unwrap())
    }
}

fn build(repository: &Repository) {
    let (spool, policy) = (std::env::temp_dir(), SharePolicy::Duplicates);
    let options = PopularOptions { policy, spool, memory_bytes: 0, dry_run: false };
    repository.build_popular(&options).unwrap();
}

/// Backs up a series; the bytes that the shared store had.
fn back_up(
    repository: &Repository,
    series: &str,
    image: &[u8],
    places: Option<Arc<dyn SharedPlaces>>,
) -> u64 {
    let options = BackupOptions { places, ..BackupOptions::default() };
    let mut backup = repository.backup(series, options).unwrap();
    let source = StreamSource::new(Box::new(std::io::Cursor::new(image.to_vec())));
    backup.add_volume("root", &source, None).unwrap();
    backup.finish().unwrap().snapshot.volumes[0].levels.get(Level::Shared)
}

fn no_damage(repository: &Repository) {
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let check = repository.check(&all).unwrap();
    assert!(check.damage.is_empty(), "{check:?}");
}

fn names(hosts: &[&str]) -> Vec<Name> {
    hosts.iter().map(|host| name(host)).collect()
}

fn finds_all(shared: &Shared, bus: &dyn Fn(&str) -> Arc<dyn Bus>) {
    let hosts = ["one", "two", "three"];
    let servers: Vec<IndexServer> =
        hosts.iter().map(|host| shared.serve(&*bus(host), host, MEMORY)).collect();
    let served: Vec<Served> =
        servers.iter().map(|server| server.refresh(&names(&hosts)).unwrap()).collect();
    assert_eq!(served.iter().map(|it| it.chunks).sum::<u64>(), 900);
    assert_eq!(served.iter().map(|it| it.partitions).sum::<u32>(), 1024);
    assert!(served.iter().all(|it| it.chunks > 150 && it.left_out == 0), "{served:?}");
    let repository = shared.open();
    let client = shared.client(bus("asking"), &names(&hosts));
    // Half of it is shared, in another order.
    let new = image((0..450).rev().chain(5000..5100));
    assert_eq!(back_up(&repository, "c", &new, Some(client)), 450 * 4096);
    no_damage(&repository);
}

#[test]
fn chunks_are_found_in_the_memory_of_others() {
    let bus = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
    finds_all(&Shared::new(), &|_| Arc::new(bus.clone()));
}

#[test]
fn chunks_are_found_over_nats() {
    let Some(server) = Server::start() else { return };
    // Servers answer as long as their connections are there.
    let kept = std::sync::Mutex::new(Vec::new());
    finds_all(&Shared::new(), &|member| {
        let bus: Arc<dyn Bus> = Arc::new(server.connect(member));
        kept.lock().unwrap().push(Arc::clone(&bus));
        bus
    });
}

#[test]
fn what_a_lost_host_held_is_missed_and_nothing_else() {
    let shared = Shared::new();
    let bus: Arc<dyn Bus> = Arc::new(LocalBus::new(Arc::new(SystemEnv::new(Arc::default()))));
    let hosts = names(&["one", "two"]);
    let (one, two) = (shared.serve(&*bus, "one", MEMORY), shared.serve(&*bus, "two", MEMORY));
    let held = one.refresh(&hosts).unwrap().chunks;
    two.refresh(&hosts).unwrap();
    drop(two);
    let client = shared.client(Arc::clone(&bus), &hosts);
    let repository = shared.open();
    let found = back_up(&repository, "c", &image(0..900), Some(client));
    assert_eq!(found, held * 4096);
    no_damage(&repository);
    // The one that is left takes over, as far as its memory goes.
    assert_eq!(one.refresh(&names(&["one"])).unwrap().chunks, 900);
    let little = shared.serve(&*bus, "little", 300 * 32);
    let served = little.refresh(&names(&["little"])).unwrap();
    assert!(served.left_out > 0 && served.chunks <= 300, "{served:?}");
}

#[test]
fn old_answers_lead_nowhere() {
    let shared = Shared::new();
    let bus: Arc<dyn Bus> = Arc::new(LocalBus::new(Arc::new(SystemEnv::new(Arc::default()))));
    let hosts = names(&["one"]);
    let server = shared.serve(&*bus, "one", MEMORY);
    server.refresh(&hosts).unwrap();
    // Everything that was shared is deleted, and what is shared then is other chunks.
    let repository = shared.open();
    for series in ["a", "b"] {
        let latest = Selector::Time(Some(series.to_owned()), When::Latest);
        let id = repository.find(&latest).unwrap().snapshot.id;
        repository.delete(series, &[id], DeleteMethod::default()).unwrap();
        let reclaim = ReclaimOptions {
            keep_deleted_s: Some(0),
            grace_s: 0,
            leak_share_max: 0.0,
            ..ReclaimOptions::default()
        };
        repository.reclaim(series, &reclaim).unwrap();
    }
    for series in ["d", "e"] {
        back_up(&repository, series, &image(7000..7900), None);
    }
    let reclaim = ReclaimOptions { grace_s: 0, ..ReclaimOptions::default() };
    let spool = std::env::temp_dir();
    let sweep = SharedSweepOptions { spool, memory_bytes: 0, reclaim, dry_run: false };
    // Condemned, and then dead.
    assert_eq!(repository.sweep_shared(&sweep).unwrap().dead_slots, 900);
    build(&repository);
    let client = shared.client(Arc::clone(&bus), &hosts);
    let both = image((0..900).chain(7000..7900));
    assert_eq!(back_up(&repository, "f", &both, Some(Arc::clone(&client))), 0);
    no_damage(&repository);
    // Nobody refers to what is shared now either.
    assert_eq!(repository.sweep_shared(&sweep).unwrap().dead_slots, 900);
    assert_eq!(back_up(&repository, "g", &both, Some(Arc::clone(&client))), 0);
    no_damage(&repository);
    // It reads the new index, and finds what is there now: what f and g have, too.
    build(&repository);
    server.refresh(&hosts).unwrap();
    let found = back_up(&repository, "h", &both, Some(client));
    assert_eq!(found, 1800 * 4096);
    no_damage(&repository);
}

#[test]
fn a_hostile_bus_makes_no_chunk_up() {
    for seed in 0..10 {
        let shared = Shared::new();
        let local = LocalBus::new(Arc::new(SystemEnv::new(Arc::default())));
        let hosts = names(&["one", "two"]);
        let servers = ["one", "two"].map(|host| shared.serve(&local, host, MEMORY));
        for server in &servers {
            server.refresh(&hosts).unwrap();
        }
        let bus: Arc<dyn Bus> = Arc::new(HostileBus::new(local, seed, 500));
        let client = shared.client(bus, &hosts);
        let repository = shared.open();
        let new = image((0..900).rev().chain(5000..5100));
        let found = back_up(&repository, "c", &new, Some(client));
        assert!(found <= 900 * 4096);
        no_damage(&repository);
    }
}
