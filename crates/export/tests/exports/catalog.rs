//! The catalog: what it lists, when it asks storage, and what it opens.

use std::sync::Arc;

use silt_export::catalog::{Catalog, CatalogOptions};
use silt_format::ErrorKind;
use silt_storage::{MemoryStorage, OperationKind, RecordingStorage, Storage};
use siltstone::DeleteMethod;

use crate::kit::{backup, init, noise, reopen};

type Recorded = Arc<RecordingStorage<Arc<MemoryStorage>>>;

/// A storage, and the same to be counted.
fn storages() -> (Arc<MemoryStorage>, Recorded) {
    let storage = Arc::new(MemoryStorage::new());
    (Arc::clone(&storage), Arc::new(RecordingStorage::new(storage)))
}

fn catalog(storage: Arc<dyn Storage>, refresh_ns: u64) -> Catalog {
    let options = CatalogOptions { refresh_ns, ..CatalogOptions::default() };
    Catalog::new(reopen(storage), options)
}

fn names(catalog: &Catalog) -> Vec<String> {
    let listing = catalog.series().unwrap();
    listing.iter().map(|series| format!("{} {}", series.name, series.snapshots.len())).collect()
}

#[test]
fn new_snapshots_appear_and_removed_ones_go() {
    let (storage, recorded) = storages();
    let repository = init(storage);
    let catalog = catalog(recorded.clone(), 0);
    assert!(names(&catalog).is_empty());
    backup(&repository, "web", &[("root", b"one")]);
    let second = backup(&repository, "db", &[("root", b"two")]);
    assert_eq!(names(&catalog), ["db 1", "web 1"]);
    backup(&repository, "db", &[("root", b"three"), ("data", b"")]);
    assert_eq!(names(&catalog), ["db 2", "web 1"]);

    let gets = recorded.totals(OperationKind::Get).operations;
    assert_eq!(names(&catalog), ["db 2", "web 1"]);
    assert_eq!(recorded.totals(OperationKind::Get).operations, gets, "no head has changed");

    repository.delete("db", &[second], DeleteMethod::Exact).unwrap();
    assert_eq!(names(&catalog), ["db 1", "web 1"]);
}

#[test]
fn storage_is_asked_no_more_often_than_it_may_be() {
    let (storage, recorded) = storages();
    let repository = init(storage);
    backup(&repository, "web", &[("root", b"one")]);
    let catalog = catalog(recorded.clone(), u64::MAX);
    assert_eq!(names(&catalog), ["web 1"]);
    catalog.resolve("web@latest").unwrap();
    let asked = recorded.records().len();
    backup(&repository, "web", &[("root", b"two")]);
    for _ in 0..100 {
        assert_eq!(names(&catalog), ["web 1"]);
        catalog.resolve("web@latest").unwrap();
    }
    assert_eq!(recorded.records().len(), asked);
}

#[test]
fn names_mean_what_they_mean_on_the_command_line() {
    let (storage, recorded) = storages();
    let repository = init(storage);
    let first = backup(&repository, "web", &[("root", b"one")]);
    let second = backup(&repository, "web", &[("root", b"two"), ("data", b"more")]);
    let catalog = catalog(recorded, 0);
    let found = |name: &str| {
        let id = catalog.resolve(name).unwrap();
        (id.snapshot, id.volume)
    };
    assert_eq!(found("web@latest:data"), (second, "data".to_owned()));
    assert_eq!(found("latest:root"), (second, "root".to_owned()));
    assert_eq!(found(&first.to_string()), (first, "root".to_owned()));
    assert_eq!(found(&format!("{}:root", &first.to_string()[..12])).0, first);
    assert_eq!(found("web@2100-01-01:root").0, second);
    let entry = catalog.series_named("web").unwrap().snapshots[0].clone();
    let exact = jiff::Timestamp::from_nanosecond(entry.time_ns.into()).unwrap();
    assert_eq!(found(&format!("web@{exact}:root")).0, first);

    let fails = |name: &str| catalog.resolve(name).unwrap_err().kind();
    assert_eq!(fails("web@latest"), ErrorKind::Invalid, "two volumes");
    assert_eq!(fails("web@latest:swap"), ErrorKind::NotFound);
    assert_eq!(fails("mail@latest:root"), ErrorKind::NotFound);
    assert_eq!(fails("web@2000-01-01:root"), ErrorKind::NotFound);
    assert_eq!(fails("0000:root"), ErrorKind::NotFound);
    assert_eq!(fails("no such thing"), ErrorKind::Invalid);
    assert_eq!(fails(""), ErrorKind::Invalid);
}

#[test]
fn a_volume_is_open_once_and_closed_when_nobody_uses_it() {
    let (storage, recorded) = storages();
    let repository = init(storage);
    let image = noise(1, 5 << 20);
    backup(&repository, "web", &[("root", &image)]);
    let catalog = catalog(recorded.clone(), 0);
    let id = catalog.resolve("web@latest").unwrap();
    let one = catalog.open(&id).unwrap();
    let asked = recorded.records().len();
    let two = catalog.open(&id).unwrap();
    assert!(Arc::ptr_eq(&one, &two));
    assert_eq!(recorded.records().len(), asked);
    let mut into = vec![0; image.len()];
    assert_eq!(one.reader().read_at(0, &mut into).unwrap(), image.len());
    assert!(into == image);
    let weak = Arc::downgrade(&one);
    drop((one, two));
    assert!(weak.upgrade().is_none(), "it is closed");

    // What was read is still in memory.
    let three = catalog.open(&id).unwrap();
    let gets = recorded.totals(OperationKind::Get).operations;
    three.reader().read_at(1 << 20, &mut into[..4096]).unwrap();
    assert_eq!(recorded.totals(OperationKind::Get).operations, gets);
}

#[test]
fn a_deleted_snapshot_can_be_told_from_damage() {
    let (storage, recorded) = storages();
    let repository = init(storage);
    let first = backup(&repository, "web", &[("root", b"one")]);
    backup(&repository, "web", &[("root", b"two")]);
    let catalog = catalog(recorded, u64::MAX);
    let id = catalog.resolve(&first.to_string()).unwrap();
    assert!(!catalog.is_deleted(&id).unwrap());
    repository.delete("web", &[first], DeleteMethod::Exact).unwrap();
    assert!(catalog.is_deleted(&id).unwrap());
    let refused = catalog.open(&id).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}

#[test]
fn the_lists_of_open_volumes_are_part_of_the_memory() {
    let (storage, _) = storages();
    let repository = init(storage.clone());
    for series in ["a", "b"] {
        backup(&repository, series, &[("disk", &noise(1, 5000))]);
    }
    // An eighth of it has room for the lists of one volume, a container and a pack, and not of two.
    let options = CatalogOptions { memory_bytes: 8 * 60, ..CatalogOptions::default() };
    let catalog = Catalog::new(reopen(storage), options);
    let id = |series: &str| catalog.resolve(&format!("{series}@latest")).unwrap();
    let first = catalog.open(&id("a")).unwrap();
    let busy = catalog.open(&id("b")).err().unwrap();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("lists of objects"), "{busy}");
    assert!(Arc::ptr_eq(&first, &catalog.open(&id("a")).unwrap()), "it is open already");
    drop(first);
    catalog.open(&id("b")).unwrap();
}
