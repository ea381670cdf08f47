//! What goes in comes out, whatever its shape.

use std::sync::Arc;

use silt_format::{ByteSpan, KdfCost, KeyLabel};
use silt_storage::{MemoryStorage, Storage, list_all};
use siltstone::{BackupOptions, CheckOptions, DataCheck, Protection, Repository, RestoreOptions};

use crate::kit::{self, MemorySource, MemoryTarget, World};

fn shapes() -> Vec<Vec<u8>> {
    let mut odd = kit::image(3, 600);
    odd.truncate(600 * 4096 - 1234);
    vec![
        Vec::new(),
        vec![7],
        vec![0; 5000],
        vec![0; 5 << 20],
        kit::image(1, 512),
        kit::image(2, 1500),
        odd,
        kit::image(4, 1).repeat(700),
    ]
}

#[test]
fn every_shape_comes_back_with_every_chunking() {
    for (number, image) in shapes().iter().enumerate() {
        for chunking in ["4K", "64K", "cdc"] {
            for jobs in [1, 4] {
                let world = World::new(number as u64);
                let storage = Arc::new(MemoryStorage::new());
                let repository = kit::init(storage, &world).unwrap();
                let options = BackupOptions {
                    chunking: Some(kit::chunked(chunking)),
                    jobs,
                    ..BackupOptions::default()
                };
                let source = MemorySource::new(image);
                for _ in 0..2 {
                    kit::backup_with(&repository, "vm", &source, options.clone()).unwrap();
                }
                let found = kit::latest(&repository, "vm").unwrap();
                let back = kit::restore(&repository, &found).unwrap();
                assert!(back == *image, "shape {number}, {chunking}, {jobs} jobs");
                let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
                assert!(repository.check(&all).unwrap().damage.is_empty());
            }
        }
    }
}

#[test]
fn days_of_change_come_back_and_little_is_stored_twice() {
    let world = World::new(5);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let mut images = vec![kit::image(9, 4000)];
    for day in 1..5 {
        images.push(kit::changed(images.last().unwrap(), day));
    }
    let mut stored = 0;
    for image in &images {
        let report = kit::backup(&repository, "vm", image).unwrap();
        stored += report.snapshot.levels().get(silt_format::Level::New);
    }
    let distinct: std::collections::HashSet<&[u8]> = images
        .iter()
        .flat_map(|image| image.chunks(4096))
        .filter(|block| block.iter().any(|byte| *byte != 0))
        .collect();
    let exact = distinct.len() as u64 * 4096;
    assert!(stored * 100 <= exact * 103, "{stored} stored, {exact} are distinct");
    let head = &repository.heads(&[]).unwrap()[0];
    for (entry, image) in head.snapshots.iter().zip(&images) {
        let selector = siltstone::Selector::Id(entry.id.to_string());
        let found = kit::find(&repository, &selector).unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == *image);
    }
}

#[test]
fn a_sparse_volume_of_many_pages_costs_its_data_alone() {
    struct Sparse;
    impl silt_source::VolumeSource for Sparse {
        fn info(&self) -> silt_source::SourceInfo {
            silt_source::SourceInfo {
                description: "sparse".to_owned(),
                format: silt_source::SourceFormat::Raw,
                size: Some(5 << 40),
                backing: Vec::new(),
            }
        }
        fn is_sequential(&self) -> bool {
            false
        }
        fn extent_at(&self, offset: u64) -> silt_format::Result<silt_source::Extent> {
            let kind = silt_source::ExtentKind::Zero;
            let data = 4 << 40;
            Ok(if offset < data {
                silt_source::Extent { offset, length: data - offset, kind }
            } else if offset < data + 4096 {
                silt_source::Extent { offset, length: 4096, kind: silt_source::ExtentKind::Data }
            } else {
                silt_source::Extent { offset, length: (5 << 40) - offset, kind }
            })
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_format::Result<usize> {
            buf.fill(0);
            if offset == 4 << 40 {
                buf[100] = 1;
            }
            Ok(buf.len())
        }
    }
    let world = World::new(6);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let mut session = repository.backup("vm", kit::options()).unwrap();
    session.add_volume("disk", &Sparse, None).unwrap();
    let report = session.finish().unwrap();
    assert!(report.stored_bytes < 4096, "{}", report.stored_bytes);
    let found = kit::latest(&repository, "vm").unwrap();
    assert_eq!(found.snapshot.volumes[0].root.level, 2);
    let range = Some(ByteSpan { offset: (4 << 40) - 50, length: 300 });
    let options = RestoreOptions { range, ..RestoreOptions::default() };
    let (bytes, _) = kit::restore_with(&repository, &found, options).unwrap();
    let ones: Vec<usize> = (0..300).filter(|i| bytes[*i] != 0).collect();
    assert_eq!(ones, [150]);
}

#[test]
fn a_stream_of_unknown_size_comes_back() {
    let world = World::new(7);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let mut image = kit::image(7, 1300);
    image.truncate(1300 * 4096 - 77);
    let source = MemorySource { sequential: true, ..MemorySource::new(&image) };
    kit::backup_with(&repository, "vm", &source, kit::options()).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
}

#[test]
fn ranges_are_cut_out_exactly() {
    let world = World::new(8);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let image = kit::image(8, 1200);
    kit::backup(&repository, "vm", &image).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    for (offset, length) in
        [(0, 1), (4095, 2), (2 << 20, 4096), ((2 << 20) - 3, 9), (17, 4_000_000)]
    {
        let range = Some(ByteSpan { offset, length });
        let options = RestoreOptions { range, ..RestoreOptions::default() };
        let (bytes, _) = kit::restore_with(&repository, &found, options).unwrap();
        let start = usize::try_from(offset).unwrap();
        assert!(bytes == image[start..start + bytes.len()], "{offset}+{length}");
    }
    let range = Some(ByteSpan { offset: 1, length: image.len() as u64 });
    let options = RestoreOptions { range, ..RestoreOptions::default() };
    assert!(kit::restore_with(&repository, &found, options).is_err());
}

#[test]
fn in_place_writes_what_differs_and_no_more() {
    let world = World::new(9);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let image = kit::image(11, 1500);
    kit::backup(&repository, "vm", &image).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    let mut current = image.clone();
    for block in [3, 700, 1499] {
        current[block * 4096 + 5] ^= 1;
    }
    let target = MemoryTarget::new(current);
    let options = RestoreOptions { in_place: true, ..RestoreOptions::default() };
    let volume = &found.snapshot.volumes[0];
    let report = repository.restore(found.volume(&volume.name).unwrap(), &target, options).unwrap();
    assert!(*target.bytes.lock().unwrap() == image);
    assert_eq!(report.written_bytes, 3 * 4096);
}

#[test]
fn several_volumes_share_a_snapshot_and_their_chunks() {
    let world = World::new(10);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let (root, data) = (kit::image(12, 700), kit::image(13, 900));
    let mut session = repository.backup("vm", kit::options()).unwrap();
    session.add_volume("root", &MemorySource::new(&root), None).unwrap();
    session.add_volume("data", &MemorySource::new(&data), None).unwrap();
    session.add_volume("copy", &MemorySource::new(&root), None).unwrap();
    assert!(session.add_volume("root", &MemorySource::new(&root), None).is_err());
    let report = session.finish().unwrap();
    let copy = &report.snapshot.volumes[2];
    assert_eq!(copy.levels.get(silt_format::Level::New), 0, "{:?}", copy.levels);
    let found = kit::latest(&repository, "vm").unwrap();
    for (volume, image) in found.snapshot.volumes.iter().zip([&root, &data, &root]) {
        let target = MemoryTarget::new(vec![0; image.len()]);
        let options = RestoreOptions::default();
        repository.restore(found.volume(&volume.name).unwrap(), &target, options).unwrap();
        assert!(*target.bytes.lock().unwrap() == *image);
    }
}

#[test]
fn the_same_input_makes_the_same_objects_whatever_the_workers_do() {
    let image = kit::image(14, 6000);
    let objects = |jobs| {
        let world = World::new(15);
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let options = BackupOptions { jobs, ..BackupOptions::default() };
        kit::backup_with(&repository, "vm", &MemorySource::new(&image), options).unwrap();
        // All that is sealed with what the same seed draws, and that holds no time.
        let of_kind = |prefix| list_all(&*storage as &dyn Storage, prefix, None);
        let all = ["containers/", "recipes/", "summaries/"].into_iter().flat_map(of_kind);
        let content = |key: silt_storage::Key| {
            let mut bytes = Vec::new();
            storage.get(&key, silt_storage::ByteRange::Full, &mut bytes).unwrap();
            (key.to_string(), bytes)
        };
        all.map(|item| content(item.unwrap().0)).collect::<Vec<_>>()
    };
    let one = objects(1);
    assert!(one.len() > 5 && one.iter().any(|(name, _)| name.starts_with("summaries/")));
    for jobs in [4, 4, 2] {
        let others = objects(jobs);
        assert_eq!(others.len(), one.len());
        for (other, one) in others.iter().zip(&one) {
            assert_eq!(other.0, one.0, "{jobs} workers");
            assert!(other.1 == one.1, "{jobs} workers: {} has other bytes", one.0);
        }
    }
}

#[test]
fn encrypted_repositories_open_with_each_password_and_no_other() {
    let world = World::new(16);
    let storage = Arc::new(MemoryStorage::new());
    let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
    let label = KeyLabel::default();
    let protection =
        Protection::Password { password: b"first".to_vec(), cost, label: label.clone() };
    let repository =
        Repository::init(storage.clone(), world.context(), kit::config(), &protection, None)
            .unwrap();
    let image = kit::image(17, 600);
    kit::backup(&repository, "a series with a name", &image).unwrap();
    repository.add_key(b"second", cost, &label, &siltstone::KeyAccess::full()).unwrap();
    let open = |password: &[u8]| {
        let password = password.to_vec();
        Repository::open(storage.clone(), world.context(), move || Ok(password))
    };
    let second = open(b"second").unwrap();
    let found = kit::latest(&second, "a series with a name").unwrap();
    assert!(kit::restore(&second, &found).unwrap() == image);
    let wrong = open(b"third").err().unwrap();
    assert_eq!(wrong.kind(), silt_format::ErrorKind::WrongPassword);
    let first = repository.opened_by.unwrap().to_string();
    second.remove_key(&first).unwrap();
    assert!(open(b"first").is_err());
    let last = second.opened_by.unwrap().to_string();
    assert!(second.remove_key(&last).is_err(), "the last key stays");
    for item in list_all(&*storage as &dyn Storage, "", None) {
        let (key, _) = item.unwrap();
        let mut bytes = Vec::new();
        storage.get(&key, silt_storage::ByteRange::Full, &mut bytes).unwrap();
        let leaks = bytes.windows(6).any(|window| window == b"series");
        assert!(!leaks, "{key} shows the series' name");
    }
}
