//! How much an unchanged disk costs.

use std::sync::Arc;

use silt_storage::{MemoryStorage, OperationKind, RecordingStorage};

use crate::kit::{self, World};

#[test]
fn an_unchanged_disk_costs_three_objects_and_reads_little() {
    let world = World::new(1);
    let storage = Arc::new(RecordingStorage::new(MemoryStorage::new()));
    let repository = kit::init(storage.clone(), &world).unwrap();
    let image = kit::image(1, 9000);
    let first = kit::backup(&repository, "vm", &image).unwrap().snapshot;
    storage.take();
    let second = kit::backup(&repository, "vm", &image).unwrap();
    let puts = storage.totals(OperationKind::Put);
    assert!(puts.objects <= 3 && puts.bytes <= 64 << 10, "{puts:?}");
    assert!(puts.bytes >= second.stored_bytes);
    assert_eq!(second.snapshot.summary, first.summary);
    assert!(first.summary.is_some());
    assert_eq!(second.snapshot.parent, Some(first.id));
    let roots = |snapshot: &silt_format::Snapshot| snapshot.volumes[0].root;
    assert_eq!(roots(&second.snapshot), roots(&first));
    let gets = storage.totals(OperationKind::Get);
    assert!(gets.operations <= 8, "{gets:?}");
}

#[test]
fn a_dry_run_writes_nothing_and_says_what_it_would() {
    let world = World::new(2);
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &world).unwrap();
    let image = kit::image(2, 3000);
    kit::backup(&repository, "vm", &image).unwrap();
    let recording = Arc::new(RecordingStorage::new((*storage).snapshot()));
    let dry = Arc::new(silt_storage::DryRunStorage::new(recording.clone()));
    let repository = kit::open(dry, &world).unwrap();
    let next = kit::changed(&image, 3);
    let would = kit::backup(&repository, "vm", &next).unwrap();
    assert_eq!(recording.totals(OperationKind::Put).operations, 0);
    assert_eq!(recording.totals(OperationKind::Delete).operations, 0);
    let real = kit::open(storage, &world).unwrap();
    let did = kit::backup(&real, "vm", &next).unwrap();
    assert_eq!(would.snapshot.levels(), did.snapshot.levels());
}

#[test]
fn from_far_away_frames_are_read_together() {
    let world = World::new(3);
    let image = kit::image(3, 9000);
    let near = Arc::new(MemoryStorage::new());
    kit::backup(&kit::init(near.clone(), &world).unwrap(), "vm", &image).unwrap();
    let requests = |storage: MemoryStorage, jobs: usize| {
        let storage = Arc::new(RecordingStorage::new(storage));
        let repository = kit::open(storage.clone(), &world).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        storage.take();
        let options = siltstone::RestoreOptions { jobs, ..siltstone::RestoreOptions::default() };
        assert!(kit::restore_with(&repository, &found, options).unwrap().0 == image);
        storage.totals(OperationKind::Get)
    };
    let one_by_one = requests(near.snapshot(), 2);
    for jobs in [1, 2, 8] {
        let together = requests(near.snapshot().far(512 << 10), jobs);
        assert!(together.operations * 2 < one_by_one.operations, "{together:?} {one_by_one:?}");
        // A part that is read before a segment is planned which needs its end is read again.
        assert!(together.bytes < one_by_one.bytes * 6 / 5, "{together:?} {one_by_one:?}");
    }
}
