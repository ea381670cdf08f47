//! Objects with many blocks that end with a copy of their header, and those of older programs,
//! which do not.

use std::sync::Arc;

use silt_format::{Config, FOOTER_BYTES, Footer, HEADER_BYTES};
use silt_repository::chunks::open_container;
use silt_storage::{
    ByteRange, Key, MemoryStorage, OperationKind, RecordingStorage, Storage, TAIL_BYTES, list_all,
};
use siltstone::{CheckOptions, DataCheck, DeleteMethod, Protection, Repository};

use crate::kit::{self, World};
use crate::places::{ALL_DATA, Disks};

const FOLDERS: [&str; 3] = ["containers/", "recipes/", "summaries/"];
const ALL: CheckOptions =
    CheckOptions { series: Vec::new(), data: DataCheck::All, restart: true, jobs: 2 };

fn footer(object: &[u8]) -> Footer {
    Footer::decode(&object[object.len() - FOOTER_BYTES..]).unwrap()
}

/// The names of all containers, recipe packs and summary vectors; there are some of each.
fn all_ends(storage: &MemoryStorage) -> Vec<Key> {
    let of = |folder: &str| {
        let found: Vec<Key> = list_all(storage, folder, None).map(|item| item.unwrap().0).collect();
        assert!(!found.is_empty(), "{folder}");
        found
    };
    FOLDERS.into_iter().flat_map(of).collect()
}

fn read(storage: &dyn Storage, name: &Key) -> Vec<u8> {
    let mut object = Vec::new();
    storage.get(name, ByteRange::Full, &mut object).unwrap();
    object
}

#[test]
fn objects_of_programs_that_wrote_no_copy_of_the_header_are_read() {
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &World::new(1)).unwrap();
    let image = kit::image(5, 900);
    kit::backup(&repository, "vm", &image).unwrap();
    for name in all_ends(&storage) {
        let object = read(&*storage, &name);
        let footer = footer(&object);
        let copy = object.len() - footer.end_bytes()..object.len() - FOOTER_BYTES;
        assert_eq!(object[copy.clone()], object[..HEADER_BYTES], "{name}");
        let old = Footer { has_header: false, ..footer }.encode();
        let old = [&object[..copy.start], &old].concat();
        storage.damage(&name, |object| *object = old).unwrap();
    }
    for request_bytes in [0, 512 << 10] {
        let storage = Arc::new(storage.snapshot().far(request_bytes));
        let repository = kit::open(storage.clone(), &World::new(2)).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == image);
        assert!(repository.check(&ALL).unwrap().damage.is_empty());
        let next = kit::changed(&image, 6);
        let report = kit::backup(&repository, "vm", &next).unwrap();
        assert!(report.stored_bytes < 2 << 20, "most is there already");
        repository.delete("vm", &[found.snapshot.id], DeleteMethod::Exact).unwrap();
        repository.reclaim("vm", &kit::THOROUGH).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == next);
        assert!(repository.check(&ALL).unwrap().damage.is_empty());
    }
}

#[test]
fn a_damaged_beginning_is_found_and_stops_no_restore() {
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &World::new(1)).unwrap();
    let image = kit::image(5, 900);
    kit::backup(&repository, "vm", &image).unwrap();
    let name = all_ends(&storage).remove(0);
    assert!(name.as_str().starts_with("containers/"));
    // A bit of its salt: nothing but the copy tells that it is wrong.
    storage.damage(&name, |object| object[70] ^= 1).unwrap();
    let repository = kit::open(storage.clone(), &World::new(2)).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
    let report = repository.check(&ALL).unwrap();
    assert!(format!("{:?}", report.damage).contains(name.as_str()), "{:?}", report.damage);
    let report = kit::backup(&repository, "vm", &image).unwrap();
    assert!(report.stored_bytes < 100_000, "all chunks can be read, and are used again");
    // The copy is damaged instead: now the container can't be opened, and is named, too.
    storage.damage(&name, |object| object[70] ^= 1).unwrap();
    assert!(repository.check(&ALL).unwrap().damage.is_empty());
    let in_copy = read(&*storage, &name).len() - FOOTER_BYTES - HEADER_BYTES + 70;
    storage.damage(&name, |object| object[in_copy] ^= 1).unwrap();
    let error = kit::restore(&repository, &found).unwrap_err();
    assert!(error.to_string().contains(name.as_str()), "{error}");
    // So the next backup stores anew what it holds.
    assert!(!repository.check(&ALL).unwrap().damage.is_empty());
    kit::backup(&repository, "vm", &image).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
}

/// Whatever is damaged at the end of an object in one place, the other place's is read, also if its
/// directory takes a second request.
#[test]
fn ends_of_two_places_do_not_mix() {
    let (disks, world) = (Disks::with(&["a", "b"]), World::new(1));
    let context = world.context();
    let config = Config { container_bytes: 16 << 20, ..kit::config() };
    Repository::init(disks.open("a").unwrap(), context, config, &Protection::None, None).unwrap();
    let repository = disks.add("a", "b", false, &world);
    let image = kit::image(5, 4000);
    kit::backup(&repository, "vm", &image).unwrap();
    let disk = disks.get("a");
    let end_of = |name: &Key| footer(&read(&*disk, name));
    let names = all_ends(&disk).into_iter();
    let name = names.max_by_key(|name| end_of(name).directory_bytes).unwrap();
    let end = end_of(&name);
    assert!(u64::from(end.directory_bytes) > TAIL_BYTES, "{end:?}");
    let whole = read(&*disk, &name);
    let copy = whole.len() - end.end_bytes();
    let directory_bytes = whole.len() - FOOTER_BYTES + 16;
    for at in [copy + 70, directory_bytes, directory_bytes + 2, whole.len() - FOOTER_BYTES + 20] {
        disk.damage(&name, |object| object[at] ^= 1).unwrap();
        let repository = disks.repository("a", &World::new(2)).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == image, "{at}");
        let healed = repository.heal_copies(ALL_DATA).unwrap();
        assert_eq!((healed.replaced_objects, healed.conflicts.len()), (1, 0), "{at}");
        assert!(read(&*disk, &name) == whole, "{at}");
    }
}

#[test]
fn one_request_opens_a_container() {
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &World::new(1)).unwrap();
    kit::backup(&repository, "vm", &kit::image(5, 900)).unwrap();
    let recorded = Arc::new(RecordingStorage::new(storage.snapshot()));
    let repository = kit::open(recorded.clone(), &World::new(2)).unwrap();
    let head = repository.head(repository.series_id("vm")).unwrap().unwrap();
    for (number, tag) in head.containers.iter() {
        recorded.take();
        open_container(&repository.objects, head.series, number, tag).unwrap();
        assert_eq!(recorded.totals(OperationKind::Get).operations, 1);
    }
}
