//! Operations on many series at once come to the same as one after the other, and may stop
//! anywhere.

use std::sync::{Arc, Mutex};

use silt_format::Result;
use silt_format::names::{self, Numbered};
use silt_storage::{Key, MemoryStorage, Storage, list_all};
use siltstone::{
    CheckOptions, Context, DataCheck, DeleteMethod, Event, Observer, OperationId, Repository,
};

use crate::kit::{self, World};
use crate::{rounds, shared};

const SERIES: usize = 12;

fn name(number: usize) -> String {
    format!("s{number:02}")
}

fn image(number: usize, day: u64) -> Vec<u8> {
    kit::changed(&kit::image(number as u64, 40), day)
}

/// Series of three snapshots each, of which they share something.
fn series() -> (MemoryStorage, Arc<World>) {
    let world = World::new(1);
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &world).unwrap();
    for day in 0..3 {
        for number in 0..SERIES {
            let image = [kit::image(77, 100), image(number, day)].concat();
            kit::backup(&repository, &name(number), &image).unwrap();
        }
        world.pass_seconds(86_400);
    }
    shared::build(&repository, siltstone::SharePolicy::Duplicates).unwrap();
    (storage.snapshot(), world)
}

/// Writes down warnings.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Observer for Heard {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        if let Event::Warning(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }
}

/// What is told of a repository, in one text.
fn told(storage: MemoryStorage, world: &Arc<World>) -> String {
    let heard = Arc::new(Heard::default());
    let context = Context { observer: heard.clone(), ..world.context() };
    let repository = Repository::open(Arc::new(storage), context, || Ok(Vec::new())).unwrap();
    let all = repository.all_heads(&[]).unwrap();
    let heads: Vec<_> = all.heads.iter().map(|head| (&head.name, head.generation)).collect();
    let damaged: Vec<_> = all.damaged.iter().map(|damaged| &damaged.series).collect();
    let mut parts = vec![
        format!("{heads:?}\n{damaged:?}\n{:?}", all.unfinished),
        format!("{:?}", repository.series().unwrap()),
        format!("{:?}", repository.status(&[]).unwrap()),
        format!("{:?}", repository.stats(&[]).unwrap()),
    ];
    for data in [DataCheck::None, DataCheck::All] {
        let options = CheckOptions { data, ..CheckOptions::default() };
        parts.push(format!("{:?}", repository.check(&options).unwrap()));
    }
    parts.extend(heard.0.lock().unwrap().drain(..));
    parts.join("\n")
}

fn first(storage: &MemoryStorage, prefix: &str) -> Key {
    list_all(storage, prefix, None).next().unwrap().unwrap().0
}

#[test]
fn many_at_once_tell_the_same_of_whole_and_damaged_series() {
    let (storage, world) = series();
    let id = |number: usize| {
        let repository = kit::open(Arc::new(storage.snapshot()), &world).unwrap();
        repository.series_id(&name(number))
    };
    let compare = |damaged: &MemoryStorage| {
        let alone = told(damaged.snapshot(), &world);
        assert_eq!(alone, told(damaged.snapshot().at_once(8), &world));
        alone
    };
    let whole = compare(&storage);
    assert!(whole.contains("damage: []"), "{whole}");
    let removed = [
        names::containers(id(2)),
        names::recipes(id(3)),
        names::snapshots(id(4)),
        names::series(id(5)),
        Numbered::Head.prefix(id(6)),
    ];
    let together = storage.snapshot();
    for prefix in &removed {
        let damaged = storage.snapshot();
        let key = first(&damaged, prefix);
        damaged.damage(&key, |bytes| bytes.truncate(bytes.len() / 2)).unwrap();
        assert_ne!(compare(&damaged), whole, "{key}");
        together.delete(&[key]).unwrap();
    }
    let told = compare(&together);
    assert!(told.matches("it is missing").count() >= 2, "{told}");
}

#[test]
fn many_that_are_deleted_and_reclaimed_at_once_may_stop_anywhere() {
    let (storage, _) = series();
    let storage = storage.at_once(8);
    let crashes = kit::each_crash(&storage, 864_000, &forget_all, &mut |repository| {
        for number in 0..SERIES {
            let found = kit::latest(repository, &name(number)).unwrap();
            let image = [kit::image(77, 100), image(number, 2)].concat();
            assert!(kit::restore(repository, &found).unwrap() == image);
        }
        let report = repository.check(&CheckOptions::default()).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
        forget_all(repository).unwrap();
        let report = repository.check(&CheckOptions::default()).unwrap();
        assert_eq!((report.snapshots, report.unreferenced), (SERIES as u64, 0), "{report:?}");
    });
    assert!(crashes > 100, "{crashes}");
}

/// Deletes all snapshots but the last, and frees their space.
fn forget_all(repository: &Repository) -> Result<()> {
    let forget = |repository: &Repository, number| {
        let head = &repository.heads(&[name(number)])?[0];
        let (_, old) = head.snapshots.split_last().unwrap();
        let ids: Vec<_> = old.iter().map(|entry| entry.id).collect();
        repository.delete(&head.name, &ids, DeleteMethod::Approximate)?;
        repository.reclaim(&head.name, &kit::THOROUGH).map(drop)
    };
    repository.each_beside((0..SERIES).collect(), forget, |done| done)
}

#[test]
fn a_round_of_many_at_once_may_stop_anywhere() {
    let (storage, _) = series();
    let storage = storage.at_once(8);
    let images: Vec<(String, Vec<u8>)> =
        (0..SERIES).map(|number| (name(number), image(number, 9))).collect();
    let round = |repository: &Repository| {
        let images: Vec<(&str, &[u8])> =
            images.iter().map(|(name, image)| (name.as_str(), &image[..])).collect();
        let report = rounds::round(repository, &images)?;
        report.backups.into_iter().try_for_each(|backup| backup.map(drop))
    };
    let crashes = kit::each_crash(&storage, 864_000, &round, &mut |repository| {
        for (number, (name, new)) in images.iter().enumerate() {
            let found = kit::latest(repository, name).unwrap();
            let restored = kit::restore(repository, &found).unwrap();
            let old = [kit::image(77, 100), image(number, 2)].concat();
            let is_new =
                repository.heads(std::slice::from_ref(name)).unwrap()[0].snapshots.len() == 4;
            assert!(restored == if is_new { new.clone() } else { old }, "{name}");
        }
        let report = repository.check(&CheckOptions::default()).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
        round(repository).unwrap();
    });
    assert!(crashes > 100, "{crashes}");
}
