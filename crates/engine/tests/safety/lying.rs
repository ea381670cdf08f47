//! Storage that lies: it hides objects, serves old ones or others', and lists what it likes.
//! Whatever an administrator does through it, nothing is lost that a head names.
//!
//! Creating and deleting is honest here: a provider that destroys what it holds needs no lies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::{ErrorKind, Id, Result};
use silt_storage::{
    ByteRange, Guarantees, Key, ListPage, MemoryStorage, ObjectMeta, PutMode, Storage, list_all,
};
use siltstone::{
    CheckOptions, DataCheck, DeleteMethod, HealOptions, Repository, Selector, SharePolicy,
    SweepOptions,
};

use crate::kit::{self, Notes, Random, World};
use crate::shared;

/// What a storage lies about.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Listings lack some objects.
    Hide,
    /// Listings end early.
    Truncate,
    /// Listings are in another order, or name objects twice.
    Disorder,
    /// Empty pages say that more follows.
    Empty,
    /// Listings name objects that were removed long ago.
    Revive,
    /// Objects are not found.
    Withhold,
    /// Objects are served in place of others.
    Swap,
    /// All is as it was once, but for what was written since.
    Yesterday,
    /// The same by turns with the truth.
    Sometimes,
}

const LIES: [Lie; 9] = [
    Lie::Hide,
    Lie::Truncate,
    Lie::Disorder,
    Lie::Empty,
    Lie::Revive,
    Lie::Withhold,
    Lie::Swap,
    Lie::Yesterday,
    Lie::Sometimes,
];

struct Liar {
    real: Arc<MemoryStorage>,
    old: MemoryStorage,
    lie: Lie,
    /// One operation in so many is a lie.
    one_in: usize,
    random: Mutex<Random>,
    /// What was created and deleted since; true for what is there.
    since: Mutex<BTreeMap<Key, bool>>,
}

impl Liar {
    fn lies(&self) -> bool {
        self.random.lock().unwrap().below(self.one_in) == 0
    }

    /// Where an object is read from.
    fn served(&self, key: &Key) -> &dyn Storage {
        let is_old = match self.lie {
            Lie::Yesterday => true,
            Lie::Sometimes => self.lies(),
            _ => false,
        };
        if is_old && !self.since.lock().unwrap().contains_key(key) {
            &self.old
        } else {
            &*self.real
        }
    }
}

impl Storage for Liar {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.real.put_bytes(key, body, mode)?;
        self.since.lock().unwrap().insert(key.clone(), true);
        Ok(())
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        if matches!(self.lie, Lie::Withhold) && self.lies() {
            let missing = Key::new("nothing/of/this/name").unwrap();
            return self.real.get(&missing, range, into);
        }
        if matches!(self.lie, Lie::Swap) && self.lies() {
            let folder = key.as_str().rsplit_once('/').map_or("", |(folder, _)| folder);
            let beside: Vec<Key> =
                list_all(&*self.real, folder, None).map(|item| item.unwrap().0).collect();
            let other = self.random.lock().unwrap().below(beside.len().max(1));
            return self.real.get(beside.get(other).unwrap_or(key), range, into);
        }
        self.served(key).get(key, range, into)
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.served(key).settle(key)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.served(key).head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.real.delete(keys)?;
        self.since.lock().unwrap().extend(keys.iter().map(|key| (key.clone(), false)));
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let lies = self.lies();
        let mut page = self.real.list(prefix, after)?;
        match self.lie {
            Lie::Hide => page.objects.retain(|_| !self.lies()),
            Lie::Truncate if lies => {
                let left = self.random.lock().unwrap().below(page.objects.len() + 1);
                page.objects.truncate(left);
                page.truncated = false;
            }
            Lie::Disorder if lies => {
                page.objects.reverse();
                page.objects.extend(page.objects.first().cloned());
            }
            Lie::Empty if lies => page = ListPage { objects: Vec::new(), truncated: true },
            Lie::Revive => page = self.old.list(prefix, after)?,
            Lie::Yesterday => page = self.old_page(prefix, after)?,
            Lie::Sometimes if lies => page = self.old_page(prefix, after)?,
            _ => {}
        }
        Ok(page)
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        "a liar".to_owned()
    }
}

impl Liar {
    /// What was there once, with what was done since.
    fn old_page(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let mut objects: BTreeMap<Key, u64> =
            list_all(&self.old, prefix, after.cloned()).collect::<Result<_>>()?;
        for (key, is_there) in &*self.since.lock().unwrap() {
            if key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after) {
                objects.remove(key);
                if *is_there {
                    objects.insert(key.clone(), self.real.head(key)?.size);
                }
            }
        }
        Ok(ListPage { objects: objects.into_iter().collect(), truncated: false })
    }
}

/// Series that share, with deletions that were taken back, and what storage looked like meanwhile.
struct Truth {
    world: Arc<World>,
    /// What the machine has noted by then.
    notes: Notes,
    states: Vec<MemoryStorage>,
    living: Vec<(Id, Vec<u8>)>,
}

impl Truth {
    fn new() -> Self {
        let (world, storage) = (World::new(3), Arc::new(MemoryStorage::new()));
        *world.notes.lock().unwrap() = Some(Notes::new());
        let all = kit::init(storage.clone(), &world).unwrap();
        let (mut living, mut states): (Vec<(Id, Vec<u8>)>, Vec<_>) = (Vec::new(), Vec::new());
        let image = |own: u64| [kit::image(77, 60), kit::image(1000 + own, 20)].concat();
        let mut seed = 0;
        for round in 0..8 {
            for series in ["a", "b", "c"] {
                seed += 1;
                let id = kit::backup(&all, series, &image(seed)).unwrap().snapshot.id;
                living.push((id, image(seed)));
                world.pass_seconds(3600);
                states.push(storage.snapshot());
            }
            if round == 1 {
                shared::build(&all, SharePolicy::Duplicates).unwrap();
                for series in ["a", "b", "c"] {
                    all.repoint(series, &shared::spool()).unwrap();
                }
            }
            // Deleted, and brought back before anything was reclaimed.
            let (kept, _) = living[living.len() - 2];
            all.delete("b", &[kept], DeleteMethod::Exact).unwrap();
            states.push(storage.snapshot());
            all.undelete("b", kept).unwrap();
            let (gone, _) = living.remove(living.len() - 3);
            all.delete("a", &[gone], DeleteMethod::Approximate).unwrap();
            if round % 3 == 2 {
                all.reclaim("a", &kit::THOROUGH).unwrap();
                all.reclaim("b", &kit::THOROUGH).unwrap();
                shared::sweep(&all).unwrap();
            }
            states.push(storage.snapshot());
        }
        let notes = world.notes.lock().unwrap().clone().unwrap();
        Self { world, notes, states, living }
    }

    fn assert_whole(&self, storage: &Arc<MemoryStorage>, what: &str) {
        let honest = kit::open(storage.clone(), &World::new(999)).unwrap();
        for (id, image) in &self.living {
            let found = kit::find(&honest, &Selector::Id(id.to_string()));
            let found = found.unwrap_or_else(|error| panic!("{what}: {id}: {error}"));
            let restored = kit::restore(&honest, &found);
            let restored = restored.unwrap_or_else(|error| panic!("{what}: {id}: {error}"));
            assert!(restored == *image, "{what}: snapshot {id}");
        }
        let damage = shared::check(&honest).damage;
        assert!(damage.is_empty(), "{what}: {damage:?}");
    }
}

/// All that an administrator may do; any of it may fail. What is restored and compared is right, or
/// fails.
fn administer(truth: &Truth, repository: &Repository, random: &mut Random, what: &str) {
    for _ in 0..6 {
        let series = ["a", "b", "c"][random.below(3)];
        let done = match random.below(8) {
            0 | 1 => repository.reclaim(series, &kit::THOROUGH).map(drop),
            2 => shared::sweep(repository).map(drop),
            3 => repository.sweep(series, SweepOptions::default()).map(drop),
            4 => shared::build(repository, SharePolicy::Duplicates).map(drop),
            5 => repository.repoint(series, &shared::spool()).map(drop),
            6 => {
                let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
                repository.check(&options).map(drop)
            }
            _ => repository.heal_copies(HealOptions::default()).map(drop),
        };
        if let Err(error) = done {
            assert_ne!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
        }
        let (id, image) = &truth.living[random.below(truth.living.len())];
        if let Ok(found) = kit::find(repository, &Selector::Id(id.to_string()))
            && let Ok(restored) = kit::restore(repository, &found)
        {
            assert!(restored == *image, "{what}: wrong data of {id}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how much is tried is said from outside")]
#[test]
fn nothing_is_lost_that_a_head_names_whatever_storage_says() {
    let truth = Truth::new();
    let last = truth.states.last().unwrap();
    truth.assert_whole(&Arc::new(last.snapshot()), "before");
    let runs = std::env::var("SILT_LYING_RUNS").ok().and_then(|runs| runs.parse().ok());
    for run in 0..runs.unwrap_or(20_usize) {
        for lie in LIES {
            let mut random = Random(7000 + run as u64);
            let old = truth.states[random.below(truth.states.len())].snapshot();
            let one_in = [2, 5, 20][random.below(3)];
            let what = format!("{lie:?}, run {run}, one in {one_in}");
            *truth.world.notes.lock().unwrap() = Some(truth.notes.clone());
            let real = Arc::new(last.snapshot());
            let (since, inner) = (Mutex::default(), Mutex::new(Random(run as u64)));
            let liar = Liar { real: real.clone(), old, lie, one_in, random: inner, since };
            if let Ok(repository) = kit::open(Arc::new(liar), &truth.world) {
                administer(&truth, &repository, &mut random, &what);
            }
            truth.assert_whole(&real, &what);
        }
    }
}

/// A provider's copy of last week is whole in itself: only who has seen more can tell.
#[test]
fn an_old_state_is_known_to_who_has_seen_a_newer_one() {
    let truth = Truth::new();
    let last = truth.states.last().unwrap();
    let newest = |storage: &MemoryStorage, series: &str| {
        let honest = kit::open(Arc::new(storage.snapshot()), &World::new(998)).unwrap();
        honest.head(honest.series_id(series)).unwrap().map(|head| head.generation)
    };
    let mut refused = 0;
    for old in &truth.states {
        let real = Arc::new(last.snapshot());
        let (since, random) = (Mutex::default(), Mutex::new(Random(1)));
        let (old, lie) = (old.snapshot(), Lie::Yesterday);
        let is_old = newest(&old, "b") != newest(last, "b");
        *truth.world.notes.lock().unwrap() = Some(truth.notes.clone());
        let liar = Liar { real: real.clone(), old, lie, one_in: 1, random, since };
        let repository = kit::open(Arc::new(liar), &truth.world).unwrap();
        let done = [
            repository.reclaim("b", &kit::THOROUGH).map(drop),
            kit::backup(&repository, "b", &kit::image(1, 10)).map(drop),
            repository.recover("b").map(drop),
        ];
        if is_old {
            refused += 1;
            for error in done.into_iter().map(Result::unwrap_err) {
                assert!(error.to_string().contains("was seen before"), "{error}");
            }
            let damage = shared::check(&repository).damage;
            assert!(damage.iter().any(|damage| damage.error.contains("was seen before")));
        }
        truth.assert_whole(&real, "yesterday");
    }
    assert!(refused > 20, "{refused}");
}

/// Storage that shows nothing of one series, not even that it is there: a sweep would free what it
/// shares.
#[test]
fn a_sweep_that_misses_a_series_deletes_nothing() {
    let truth = Truth::new();
    let last = truth.states.last().unwrap();
    let honest = kit::open(Arc::new(last.snapshot()), &World::new(997)).unwrap();
    let hidden = honest.series_id("c").to_string();
    let real = Arc::new(last.snapshot());
    let without = Arc::new(MemoryStorage::new());
    for item in list_all(last, "", None) {
        let (key, _) = item.unwrap();
        let mut bytes = Vec::new();
        last.get(&key, ByteRange::Full, &mut bytes).unwrap();
        if !key.as_str().contains(&hidden) {
            without.put(&key, &[&bytes], PutMode::Create).unwrap();
        }
    }
    let containers = |storage: &MemoryStorage| list_all(storage, "containers/", None).count();
    let before = containers(&without);
    // Also on a machine that has never seen the repository.
    let repository = kit::open(without.clone(), &World::new(996)).unwrap();
    let refused = shared::sweep(&repository).unwrap_err();
    assert!(refused.to_string().contains(&hidden), "{refused}");
    assert_eq!(containers(&without), before);
    truth.assert_whole(&real, "hidden");
}
