//! Random sequences against a model: a map from snapshots to images.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use silt_format::Id;
use silt_storage::{Counted, CrashStorage, CrashingOperation, MemoryStorage};
use siltstone::{CheckOptions, DataCheck, Repository, Selector};

use crate::kit::{self, Random, World};

const SEQUENCES: u64 = 120;
const STEPS: usize = 12;
const ALL: CheckOptions =
    CheckOptions { series: Vec::new(), data: DataCheck::All, restart: false, jobs: 1 };

struct Model {
    storage: Arc<MemoryStorage>,
    dead: Arc<Mutex<HashSet<u32>>>,
    process: u32,
    seed: u64,
    images: [Vec<u8>; 2],
    committed: [BTreeMap<u64, Vec<u8>>; 2],
}

const NAMES: [&str; 2] = ["vm", "other"];

impl Model {
    fn new(seed: u64) -> Self {
        let model = Self {
            storage: Arc::new(MemoryStorage::new()),
            dead: Arc::default(),
            process: 1,
            seed,
            images: [kit::image(seed, 300), kit::image(seed + 1, 700)],
            committed: [BTreeMap::new(), BTreeMap::new()],
        };
        kit::init(model.storage.clone(), &model.world()).unwrap();
        model
    }

    fn world(&self) -> Arc<World> {
        let seed = self.seed * 1000 + u64::from(self.process);
        let world = World::process(seed, self.process, "here", &self.dead);
        world.pass_seconds(i64::from(self.process) * 60);
        world
    }

    /// The next process; the one before has died.
    fn repository(&mut self) -> Repository {
        self.dead.lock().unwrap().insert(self.process);
        self.process += 1;
        kit::open(self.storage.clone(), &self.world()).unwrap()
    }

    fn backup(&mut self, which: usize) {
        let repository = self.repository();
        let report = kit::backup(&repository, NAMES[which], &self.images[which]).unwrap();
        self.committed[which].insert(report.snapshot.id.0, self.images[which].clone());
    }

    fn crashing(&mut self, random: &mut Random, action: impl Fn(&Repository)) {
        self.dead.lock().unwrap().insert(self.process);
        self.process += 1;
        let struck = [CrashingOperation::Lost, CrashingOperation::Applied][random.below(2)];
        let at = random.below(16) as u64;
        let storage =
            Arc::new(CrashStorage::new(self.storage.clone(), at, Counted::Mutations, struck));
        if let Ok(repository) = kit::open(storage, &self.world()) {
            action(&repository);
        }
    }

    fn crashed_backup(&mut self, which: usize, random: &mut Random) {
        let image = self.images[which].clone();
        self.crashing(random, |repository| {
            let _ = kit::backup(repository, NAMES[which], &image);
        });
        // A crash behind the creation of the head leaves a commit that nobody was told of.
        let repository = self.repository();
        let head = repository.head(repository.series_id(NAMES[which])).unwrap();
        for entry in head.iter().flat_map(|head| &head.snapshots) {
            self.committed[which].entry(entry.id.0).or_insert_with(|| image.clone());
        }
    }

    fn verify(&mut self) {
        let repository = self.repository();
        for (which, committed) in self.committed.iter().enumerate() {
            let head = repository.head(repository.series_id(NAMES[which])).unwrap();
            let found: HashSet<u64> =
                head.iter().flat_map(|head| &head.snapshots).map(|entry| entry.id.0).collect();
            assert_eq!(found, committed.keys().copied().collect(), "seed {}", self.seed);
            for (id, image) in committed {
                let selector = Selector::Id(Id(*id).to_string());
                let found = kit::find(&repository, &selector).unwrap();
                let same = kit::restore(&repository, &found).unwrap() == *image;
                assert!(same, "seed {}: snapshot {} differs", self.seed, Id(*id));
            }
        }
        let report = repository.check(&ALL).unwrap();
        assert!(report.damage.is_empty(), "seed {}: {:?}", self.seed, report.damage);
    }
}

#[test]
fn random_sequences_lose_nothing() {
    for seed in 0..SEQUENCES {
        let mut random = Random(seed);
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            let which = random.below(2);
            match random.below(6) {
                0 | 1 => {
                    model.images[which] = kit::changed(&model.images[which], random.next());
                }
                2 | 3 => model.backup(which),
                4 => model.crashed_backup(which, &mut random),
                _ => model.crashing(&mut random, |repository| {
                    let _ = repository.check(&ALL);
                }),
            }
        }
        model.verify();
    }
}
