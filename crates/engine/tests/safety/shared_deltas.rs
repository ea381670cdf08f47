//! What deltas would save in the shared store, which holds none.

use std::sync::Arc;

use silt_format::{SHARED_STORE, names};
use silt_storage::{MemoryStorage, list_all};
use siltstone::{OptimizeOptions, Repository, SharePolicy};

use crate::deltas::OPTIONS;
use crate::kit::{self, World};
use crate::shared;

/// Two series that have the same days: all of it is shared.
fn twins(days: &[Vec<u8>]) -> (Arc<MemoryStorage>, Arc<World>, Repository) {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage.clone(), &world).unwrap();
    for name in ["a", "b"] {
        for day in days {
            kit::backup(&repository, name, day).unwrap();
            world.pass_seconds(3600);
        }
    }
    shared::build(&repository, SharePolicy::Duplicates).unwrap();
    (storage, world, repository)
}

#[test]
fn the_forecast_is_what_optimize_does_in_one_series() {
    let first = kit::image(5, 400);
    let days = [first.clone(), kit::touched(&first, 7)];
    let (storage, _, repository) = twins(&days);
    let store = repository.objects.keys.shared_store_id(0);
    let all = |prefix: &str| -> Vec<(silt_storage::Key, u64)> {
        list_all(&*storage, prefix, None).map(Result::unwrap).collect()
    };
    let objects =
        || (all(&names::containers(store)), all(&names::dead_lists(store)), all("heads/"));
    let before = objects();
    // Also if the caller forgets to say that nothing is to be changed.
    let forecast = repository.forecast_optimize_store(SHARED_STORE, &OPTIONS).unwrap();
    assert_eq!(objects(), before, "a forecast changes nothing");
    assert!(forecast.deltas > 10 && forecast.saved_bytes() > 0, "{forecast:?}");
    let of_series =
        repository.optimize("a", &OptimizeOptions { dry_run: true, ..OPTIONS }).unwrap();
    assert_eq!(forecast.chunks, of_series.chunks);
    // Containers have other borders here and there.
    assert!(forecast.deltas.abs_diff(of_series.deltas) * 10 <= of_series.deltas, "{of_series:?}");
    let none = repository.forecast_optimize_store(7, &OPTIONS).unwrap();
    assert_eq!(none.chunks, 0, "a node that is not there");
}

#[test]
fn condemned_chunks_are_no_bases() {
    let first = kit::image(5, 200);
    let (_, world, repository) = twins(std::slice::from_ref(&first));
    for name in ["a", "b"] {
        repository.repoint(name, &shared::spool()).unwrap();
        kit::backup(&repository, name, &kit::touched(&first, 7)).unwrap();
        world.pass_seconds(3600);
    }
    shared::build(&repository, SharePolicy::Duplicates).unwrap();
    let before = repository.forecast_optimize_store(SHARED_STORE, &OPTIONS).unwrap();
    assert!(before.deltas > 10, "{before:?}");
    for name in ["a", "b"] {
        let oldest = repository.head(repository.series_id(name)).unwrap().unwrap().snapshots[0].id;
        repository.delete(name, &[oldest], siltstone::DeleteMethod::Approximate).unwrap();
        repository.reclaim(name, &kit::THOROUGH).unwrap();
    }
    // A backup of one series keeps the sweep from burying what it has condemned.
    let writing = repository.backup("a", kit::options()).unwrap();
    let report = shared::sweep(&repository).unwrap();
    assert!(report.condemned_slots > 10 && report.dead_slots == 0, "{report:?}");
    let after = repository.forecast_optimize_store(SHARED_STORE, &OPTIONS).unwrap();
    assert_eq!(after.chunks, before.chunks - report.condemned_slots);
    assert_eq!(after.deltas, 0, "nothing else resembles them");
    drop(writing);
}
