//! Processes beside storage nodes.

use std::sync::{Arc, Mutex};

use silt_cluster::nodes::{NodeClient, NodeServer, NodeServerOptions};
use silt_cluster::{Bus, HostileBus, LocalBus, Messages};
use silt_repository::system::SystemEnv;
use silt_storage::{LocalStorage, Storage};
use siltstone::source::StreamSource;
use siltstone::{
    BackupOptions, CheckOptions, Config, DataCheck, DeleteMethod, Error, Level, NodeAnswers,
    Protection, ReclaimOptions, Reference, Repository, Selector, SharedSweepOptions, Wanted, When,
};

use crate::nats::Server;
use crate::rounds::image;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A repository with three nodes, each in a folder.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let storage = Arc::new(LocalStorage::create(place.0.path().join("main")).unwrap());
        let (context, config) = (SystemEnv::context(), Config::default());
        let made = Repository::init(storage, context, config, &Protection::None, None);
        let mut repository = made.unwrap();
        let open = |name: &str| place.storage(name);
        for node in NODES {
            LocalStorage::create(place.0.path().join(node)).unwrap();
            repository = repository.add_node("main", node, node, &open).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn storage(&self, name: &str) -> Result<Arc<dyn Storage>, Error> {
        Ok(Arc::new(LocalStorage::open(self.path(name))?))
    }

    pub fn open(&self) -> Repository {
        let main = self.storage("main").unwrap();
        let opened = Repository::open(main, SystemEnv::context(), || Ok(Vec::new())).unwrap();
        opened.with_places("main", &|name: &str| self.storage(name)).unwrap()
    }

    pub fn messages(&self) -> Messages {
        Messages::new(&self.open().objects)
    }

    pub fn numbers(&self) -> Vec<u16> {
        self.open().nodes().iter().map(|node| node.number).collect()
    }

    fn serve(&self, bus: &dyn Bus, is_exact: bool) -> Vec<NodeServer> {
        let options = NodeServerOptions { is_exact, ..NodeServerOptions::default() };
        let start = |node| NodeServer::start(bus, &self.messages(), node, options).unwrap();
        let servers: Vec<_> = self.numbers().into_iter().map(start).collect();
        servers.iter().for_each(|server| assert!(server.refresh().unwrap().unreadable == 0));
        servers
    }

    fn client(&self, bus: Arc<dyn Bus>) -> Arc<dyn NodeAnswers> {
        let context = SystemEnv::context();
        Arc::new(NodeClient::new(bus, self.messages(), context, &self.numbers()).unwrap())
    }

    /// Backs up a series; the bytes that nodes had.
    fn back_up(
        &self,
        series: &str,
        image: &[u8],
        node_answers: Option<Arc<dyn NodeAnswers>>,
    ) -> u64 {
        let options = BackupOptions { node_answers, ..BackupOptions::default() };
        let repository = self.open();
        let mut backup = repository.backup(series, options).unwrap();
        let source = StreamSource::new(Box::new(std::io::Cursor::new(image.to_vec())));
        backup.add_volume("root", &source, None).unwrap();
        let found = backup.finish().unwrap().snapshot.volumes[0].levels.get(Level::Shared);
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let check = repository.check(&all).unwrap();
        assert!(check.damage.is_empty(), "{check:?}");
        found
    }
}

/// Leaves nothing that can go.
pub fn thorough() -> ReclaimOptions {
    ReclaimOptions {
        keep_deleted_s: Some(0),
        grace_s: 0,
        leak_share_max: 0.0,
        dead_share_min: 0.0,
        ..ReclaimOptions::default()
    }
}

pub fn local() -> LocalBus {
    LocalBus::new(Arc::new(SystemEnv::new(Arc::default())))
}

/// Chunks of 4 KiB that two series have, in the same order but for the ends.
fn finds_nearly_all(place: &Place, bus: &dyn Fn(&str) -> Arc<dyn Bus>, is_exact: bool) {
    // The director adds a node to an application when the others have 16 MiB more than the mean.
    place.back_up("a", &image(0..16_000), None);
    let servers = place.serve(&*bus("node"), is_exact);
    let holds: Vec<_> = servers.iter().map(NodeServer::holds).collect();
    let full = holds.iter().filter(|it| it.containers > 0 && it.representatives > 4);
    assert!(full.count() > 1, "{holds:?}");
    let found = place.back_up("b", &image(300..16_300), Some(place.client(bus("host"))));
    // A super-chunk at a border of segments may be routed to another node.
    assert!(found > 15_700 * 4096 * 9 / 10, "{} of 15,700", found / 4096);
    let holds: Vec<_> = servers.iter().map(NodeServer::holds).collect();
    let told = holds.iter().map(|it| it.found).sum::<u64>() * 4096;
    let left = told - found;
    assert!(left <= told / 32, "few are alone where they lie: {} chunks", left / 4096);
    let asked = holds.iter().map(|it| it.asked).sum::<u64>();
    assert!((14_000..=16_000).contains(&asked), "no chunk is asked of two nodes: {asked}");
}

#[test]
fn a_process_finds_what_its_node_has() {
    let bus = local();
    finds_nearly_all(&Place::new(), &|_| Arc::new(bus.clone()), true);
}

#[test]
fn representatives_are_enough_for_nearly_all() {
    let bus = local();
    finds_nearly_all(&Place::new(), &|_| Arc::new(bus.clone()), false);
}

#[test]
fn processes_answer_over_nats() {
    let Some(server) = Server::start() else { return };
    let kept = Mutex::new(Vec::new());
    finds_nearly_all(
        &Place::new(),
        &|member| {
            let bus: Arc<dyn Bus> = Arc::new(server.connect(member));
            kept.lock().unwrap().push(Arc::clone(&bus));
            bus
        },
        true,
    );
}

/// Without any answer, and without those of one node, the indexes in the storage do.
#[test]
fn who_does_not_answer_is_not_needed() {
    for left in [0, 2] {
        let (place, bus) = (Place::new(), local());
        place.back_up("a", &image(0..6000), None);
        let mut servers = place.serve(&bus, true);
        servers.truncate(left);
        let found = place.back_up("b", &image(0..6000), Some(place.client(Arc::new(bus))));
        assert!(found > 6000 * 4096 * 95 / 100, "{left}: {}", found / 4096);
    }
}

/// An application, and the chunks that were asked about by node.
type Question = (u16, Vec<(u16, Vec<Wanted>)>);

/// Asks, and keeps what was asked about.
#[derive(Debug)]
struct Kept {
    answers: Arc<dyn NodeAnswers>,
    asked: Mutex<Vec<Question>>,
}

impl NodeAnswers for Kept {
    fn similar(&self, application: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>> {
        self.answers.similar(application, asked)
    }

    fn find(
        &self,
        application: u16,
        asked: &[(u16, Vec<Wanted>)],
    ) -> Vec<Option<Vec<Option<Reference>>>> {
        self.asked.lock().unwrap().push((application, asked.to_vec()));
        self.answers.find(application, asked)
    }
}

impl Kept {
    /// How many of the chunks that were asked about are known now.
    fn known(&self) -> usize {
        let asked = self.asked.lock().unwrap();
        let told = asked.iter().map(|(application, asked)| self.answers.find(*application, asked));
        told.flatten().flatten().flatten().flatten().count()
    }
}

/// Otherwise each backup that registers something would let all others wait.
#[test]
fn what_was_read_is_not_read_again_after_a_refresh() {
    for is_exact in [true, false] {
        let (place, bus) = (Place::new(), local());
        place.back_up("a", &image(0..6000), None);
        let servers = place.serve(&bus, is_exact);
        let answers = place.client(Arc::new(bus.clone()));
        let kept = Arc::new(Kept { answers, asked: Mutex::default() });
        place.back_up("b", &image(0..6000), Some(Arc::clone(&kept) as Arc<dyn NodeAnswers>));
        let before = kept.known();
        assert!(before > 5000, "{before}");
        place.back_up("c", &image(9000..12_000), None);
        let generations = || servers.iter().map(|it| it.holds().generation).collect::<Vec<_>>();
        let old = generations();
        for server in &servers {
            server.refresh().unwrap();
        }
        assert!(generations() != old);
        // A node that has got nothing has no such folders.
        for folder in NODES.iter().flat_map(|node| ["containers", "runs"].map(|it| (node, it))) {
            drop(std::fs::remove_dir_all(place.path(folder.0).join(folder.1)));
        }
        let known = kept.known();
        assert!(known >= before * 9 / 10, "{known} of {before}");
    }
}

#[test]
fn what_is_stored_later_is_known_after_a_refresh() {
    let (place, bus) = (Place::new(), local());
    place.back_up("a", &image(0..3000), None);
    let servers = place.serve(&bus, false);
    place.back_up("b", &image(9000..12_000), None);
    let before: u64 = servers.iter().map(|it| it.holds().containers).sum();
    for server in &servers {
        server.refresh().unwrap();
        assert_eq!(server.refresh().unwrap(), server.holds());
    }
    let after: u64 = servers.iter().map(|it| it.holds().containers).sum();
    assert!(after > before, "{before} {after}");
    let found = place.back_up("c", &image(9000..12_000), Some(place.client(Arc::new(bus))));
    assert!(found > 3000 * 4096 * 9 / 10, "{}", found / 4096);
}

/// A process that slept while everything that it knew was deleted.
#[test]
fn old_answers_lead_nowhere() {
    let (place, bus) = (Place::new(), local());
    place.back_up("a", &image(0..3000), None);
    let servers = place.serve(&bus, true);
    let repository = place.open();
    let latest = Selector::Time(Some("a".to_owned()), When::Latest);
    let id = repository.find(&latest).unwrap().snapshot.id;
    repository.delete("a", &[id], DeleteMethod::default()).unwrap();
    let thorough = thorough();
    repository.reclaim("a", &thorough).unwrap();
    let sweep = |repository: &Repository| {
        let spool = std::env::temp_dir();
        let options =
            SharedSweepOptions { spool, memory_bytes: 0, reclaim: thorough, dry_run: false };
        let numbers = place.numbers().into_iter();
        let reports = numbers.map(|node| repository.sweep_store(node, &options).unwrap());
        reports.map(|report| report.dead_slots).sum::<u64>()
    };
    assert_eq!(sweep(&repository), 3000);
    let client = place.client(Arc::new(bus));
    assert_eq!(place.back_up("b", &image(0..3000), Some(Arc::clone(&client))), 0);
    // It learns that containers are gone, and which came in their place.
    let holds = servers.iter().map(|server| server.refresh().unwrap().representatives);
    assert!(holds.sum::<u64>() > 4);
    let found = place.back_up("c", &image(0..3000), Some(client));
    assert!(found > 3000 * 4096 * 9 / 10, "{}", found / 4096);
}

/// Says that each chunk is somewhere else.
#[derive(Debug)]
struct Liar(u16);

impl NodeAnswers for Liar {
    fn similar(&self, _: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>> {
        asked.iter().map(|(_, handprints)| Some(vec![8; handprints.len()])).collect()
    }

    fn find(&self, _: u16, asked: &[(u16, Vec<Wanted>)]) -> Vec<Option<Vec<Option<Reference>>>> {
        let lie = |number: usize| {
            let slot = u16::try_from(number % 60_000).unwrap();
            Some(Reference::new(self.0, 4_000_000, slot))
        };
        asked.iter().map(|(_, chunks)| Some((0..chunks.len()).map(lie).collect())).collect()
    }
}

/// References to containers that the node's head does not name, or of another node, are dropped.
#[test]
fn places_that_a_head_does_not_allow_are_dropped() {
    let place = Place::new();
    place.back_up("a", &image(0..2000), None);
    for (series, number) in [("b", 2), ("c", 3), ("d", 1), ("e", 77)] {
        assert_eq!(place.back_up(series, &image(0..2000), Some(Arc::new(Liar(number)))), 0);
    }
}

#[test]
fn a_hostile_bus_makes_no_chunk_up() {
    for seed in 0..6 {
        let (place, bus) = (Place::new(), local());
        place.back_up("a", &image(0..3000), None);
        let _servers = place.serve(&bus, true);
        let hostile: Arc<dyn Bus> = Arc::new(HostileBus::new(bus, seed, 500));
        let client = place.client(hostile);
        let found = place.back_up("b", &image(0..3100), Some(client));
        assert!(found <= 3000 * 4096);
    }
}
