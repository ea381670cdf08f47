//! Tags, content hashes, and what a later version may have written.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_format::{
    BLOCK_OVERHEAD_BYTES, BlockReader, BlockWriter, ContentHash, DIRECTORY_POSITION, DeadListRef,
    Delta, Directory, ErrorKind, FOOTER_BYTES, Footer, HEADER_BYTES, Head, Header, Id, Keyring,
    Link, MasterKey, ObjectTag, Reference, Sealer, decode_blocks, names, number,
};
use silt_storage::{ByteRange, Key, MemoryStorage, PutMode, Storage, list_all};
use siltstone::{CheckOptions, DataCheck, DeleteMethod, Repository, SweepOptions};

use crate::kit::{self, MemorySource, World};

/// A repository whose series has one snapshot.
struct Case {
    storage: Arc<MemoryStorage>,
    repository: Repository,
    image: Vec<u8>,
}

impl Case {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &World::new(1)).unwrap();
        let image = kit::image(5, 900);
        kit::backup(&repository, "vm", &image).unwrap();
        Self { storage, repository, image }
    }

    fn head(&self) -> Head {
        self.repository.head(self.repository.series_id("vm")).unwrap().unwrap()
    }

    fn names(&self, prefix: &str) -> Vec<Key> {
        list_all(&*self.storage, prefix, None).map(|item| item.unwrap().0).collect()
    }

    /// Commits a head that is changed by hand.
    fn forge(&self, change: impl FnOnce(&mut Head)) {
        let mut head = self.head();
        head.generation += 1;
        change(&mut head);
        let object = kit::sealed_head(&*self.storage, &head);
        let name = names::Numbered::Head.name(head.series, head.generation);
        let name = Key::new(&name).unwrap();
        self.storage.put(&name, &[&object], PutMode::Create).unwrap();
    }

    fn read(&self, name: &Key) -> Vec<u8> {
        let mut object = Vec::new();
        self.storage.get(name, ByteRange::Full, &mut object).unwrap();
        object
    }

    fn sealer(&self, object: &[u8]) -> Sealer {
        let config = self.read(&Key::new(names::CONFIG).unwrap());
        let secret: [u8; 32] = config[HEADER_BYTES..HEADER_BYTES + 32].try_into().unwrap();
        Keyring::from(MasterKey::new(secret)).sealer(&Header::decode(object).unwrap())
    }
}

/// The plain bytes of a sealed piece of an object.
fn open(sealer: &Sealer, position: u64, sealed: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    BlockReader::default().read(sealer, position, &mut sealed.to_vec(), &mut raw).unwrap();
    raw
}

/// The plain directory of an object, and where it begins.
fn directory(sealer: &Sealer, object: &[u8]) -> (Vec<u8>, usize) {
    let footer = Footer::decode(&object[object.len() - FOOTER_BYTES..]).unwrap();
    let start = usize::try_from(footer.directory_offset).unwrap();
    let sealed = &object[start..object.len() - footer.end_bytes()];
    (open(sealer, DIRECTORY_POSITION, sealed), start)
}

/// What a backup of `image` leaves that stops before its commit.
fn interrupted(storage: Arc<MemoryStorage>, seed: u64, image: &[u8]) {
    let repository = kit::open(storage, &World::new(seed)).unwrap();
    let mut session = repository.backup("vm", kit::options()).unwrap();
    session.add_volume("disk", &MemorySource::new(image), None).unwrap();
}

#[test]
fn two_interrupted_backups_have_taken_the_same_numbers() {
    let case = Case::new();
    let image = kit::image(99, 1200);
    let other = Arc::new(case.storage.snapshot());
    interrupted(case.storage.clone(), 20, &image);
    interrupted(other.clone(), 21, &image);
    // Both wrote the same numbers, as if neither had seen the other's objects.
    let prefix = names::containers(case.repository.series_id("vm"));
    for (name, _) in list_all(&*other, &prefix, None).map(|item| item.unwrap()) {
        let mut object = Vec::new();
        other.get(&name, ByteRange::Full, &mut object).unwrap();
        let _ = case.storage.put(&name, &[&object], PutMode::Create);
    }
    let next = case.head().next_container;
    let numbered = |name: &Key| names::number_and_tag(name.as_str()).unwrap();
    let left: Vec<(u32, ObjectTag)> =
        case.names(&prefix).iter().map(numbered).filter(|(number, _)| *number >= next).collect();
    let numbers: BTreeSet<u32> = left.iter().map(|(number, _)| *number).collect();
    // A session that is dropped may still have had its last container to send.
    assert!(left.len() > numbers.len() + 2, "most numbers are there twice: {left:?}");

    let world = World::new(22);
    world.pass_seconds(3600);
    let repository = kit::open(case.storage.clone(), &world).unwrap();
    let report = kit::backup(&repository, "vm", &image).unwrap();
    let head = case.head();
    let adopted =
        numbers.iter().filter_map(|number| Some((*number, head.containers.tag(*number)?)));
    let adopted: Vec<(u32, ObjectTag)> = adopted.collect();
    assert!(adopted.len() > 2 && adopted.len() == report.adopted_containers, "{report:?}");
    for (number, tag) in adopted {
        let first = left.iter().find(|(other, _)| *other == number);
        assert_eq!(first, Some(&(number, tag)), "the first that is listed is used");
    }
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = repository.check(&all).unwrap();
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
    assert!(kit::restore(&repository, &kit::latest(&repository, "vm").unwrap()).unwrap() == image);
}

#[test]
fn a_session_has_one_tag_and_rewriting_another() {
    let case = Case::new();
    let before = case.head();
    let tags = |head: &Head| -> BTreeSet<ObjectTag> {
        head.containers.iter().map(|(_, tag)| tag).collect()
    };
    let first = tags(&before);
    assert!(before.containers.len() > 1 && first.len() == 1);
    assert!(before.packs.iter().all(|(_, tag)| first.contains(&tag)));
    assert!(first.iter().all(|tag| !tag.is_rewritten()));
    let mut image = case.image.clone();
    image[..200 * 4096].copy_from_slice(&kit::image(8, 200));
    kit::backup(&case.repository, "vm", &image).unwrap();
    let second: BTreeSet<ObjectTag> = &tags(&case.head()) - &first;
    assert!(second.len() == 1 && second.iter().all(|tag| !tag.is_rewritten()));

    let oldest = before.snapshots[0].id;
    case.repository.delete("vm", &[oldest], DeleteMethod::Exact).unwrap();
    let report = case.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert!(report.rewritten_containers > 0, "{report:?}");
    let after = case.head();
    let third: Vec<ObjectTag> = tags(&after).difference(&(&first | &second)).copied().collect();
    assert!(third.len() == 1 && third[0].is_rewritten(), "{third:?}");
    let of_run = after.containers.iter().filter(|(_, tag)| *tag == third[0]).count();
    assert_eq!(of_run as u64, report.rewritten_containers);
    let found = kit::latest(&case.repository, "vm").unwrap();
    assert!(kit::restore(&case.repository, &found).unwrap() == image);
}

#[test]
fn labels_are_in_the_head_and_in_the_report() {
    let case = Case::new();
    let tags = vec!["nightly".to_owned(), "keep".to_owned()];
    let options = siltstone::BackupOptions { tags: tags.clone(), ..kit::options() };
    let source = MemorySource::new(&case.image);
    let report = kit::backup_with(&case.repository, "vm", &source, options).unwrap();
    assert_eq!(report.tags, tags);
    assert_eq!(case.head().snapshots.last().unwrap().labels, tags);
    assert_eq!(kit::latest(&case.repository, "vm").unwrap().entry.labels, tags);
}

#[test]
fn a_snapshot_is_the_one_that_the_head_lists() {
    let case = Case::new();
    case.forge(|head| head.snapshots[0].hash = ContentHash([7; 16]));
    let error = kit::latest(&case.repository, "vm").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("content hash differs"), "{error}");
    let damage = case.repository.check(&CheckOptions::default()).unwrap().damage;
    assert!(format!("{damage:?}").contains("content hash differs"), "{damage:?}");
}

#[test]
fn a_block_is_the_one_that_refers_to_it_names() {
    let case = Case::new();
    let name = case.names(&names::recipes(case.head().series)).remove(0);
    let object = case.read(&name);
    let sealer = case.sealer(&object);
    let blocks = decode_blocks(&directory(&sealer, &object).0).unwrap();
    let block = blocks[0];
    let (start, length) = (block.offset as usize, block.sealed_bytes as usize);
    let raw = open(&sealer, u64::from(block.offset), &object[start..start + length]);
    assert!(raw.len() + BLOCK_OVERHEAD_BYTES >= length);
    // Another block that is sealed as well as the first, and as long.
    let last = raw.len() - 1;
    let swapped = (1..=u8::MAX).find_map(|bits| {
        let (mut raw, mut sealed) = (raw.clone(), Vec::new());
        raw[last] ^= bits;
        BlockWriter::new(1).unwrap().append(&sealer, u64::from(block.offset), &raw, &mut sealed);
        (sealed.len() == length).then_some(sealed)
    });
    let swapped = swapped.unwrap();
    case.storage
        .damage(&name, |object| object[start..start + length].copy_from_slice(&swapped))
        .unwrap();
    let found = kit::latest(&case.repository, "vm").unwrap();
    let error = kit::restore(&case.repository, &found).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("content hash differs"), "{error}");
}

#[test]
fn a_list_of_bases_that_cannot_be_read_frees_nothing_before_a_sweep() {
    let case = Case::new();
    case.forge(|head| {
        head.delta_bases.push(DeadListRef {
            id: Id(9),
            parts: 1,
            slots: 2,
            hash: ContentHash([0; 16]),
        });
    });
    let repository = &case.repository;
    let containers = case.names("containers/");
    let error = repository.optimize("vm", &siltstone::OptimizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(case.names("containers/"), containers);
    // A backup changes nothing of it, and a sweep finds out that there are no deltas.
    kit::backup(repository, "vm", &case.image).unwrap();
    assert_eq!(case.head().delta_bases.len(), 1);
    repository.sweep("vm", SweepOptions::default()).unwrap();
    assert!(case.head().delta_bases.is_empty());
    let id = case.head().snapshots[0].id;
    repository.delete("vm", &[id], DeleteMethod::Exact).unwrap();
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
}

/// Replaces the directory of the first container; `change` gives slot 1 to the new one, or not.
fn redirect(
    case: &Case,
    change: impl Fn(&mut Directory, silt_format::Slot, silt_format::Fingerprint),
) -> silt_format::Error {
    let name = case.names("containers/").remove(0);
    let object = case.read(&name);
    let sealer = case.sealer(&object);
    let (raw, start) = directory(&sealer, &object);
    let old = Directory::decode(&raw).unwrap();
    let mut new = Directory::default();
    new.frames.clone_from(&old.frames);
    for (slot, place) in old.slots() {
        let fingerprint = old.fingerprints[place.index as usize];
        if slot == 1 {
            change(&mut new, place, fingerprint);
        } else {
            new.push(slot, place.frame, place.length, fingerprint);
        }
    }
    let mut bytes = object[..start].to_vec();
    let directory_bytes =
        BlockWriter::new(1).unwrap().append(&sealer, DIRECTORY_POSITION, &new.encode(), &mut bytes);
    let (directory_offset, directory_bytes) = (start as u64, number::to_u32(directory_bytes));
    let footer = Footer { directory_offset, directory_bytes, has_header: true };
    bytes.extend_from_slice(&object[..HEADER_BYTES]);
    bytes.extend_from_slice(&footer.encode());
    case.storage.damage(&name, |object| *object = bytes).unwrap();
    let repository = kit::open(case.storage.clone(), &World::new(2)).unwrap();
    kit::restore(&repository, &kit::latest(&repository, "vm").unwrap()).unwrap_err()
}

#[test]
fn a_container_that_was_never_rewritten_holds_no_deltas() {
    let error = redirect(&Case::new(), |directory, place, fingerprint| {
        let delta = Delta { slot: 1, chunk_bytes: place.length, base: Reference::new(0, 0, 0) };
        directory.push_delta(delta, place.frame, place.length, fingerprint);
    });
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("holds deltas, but was never rewritten"), "{error}");
}

#[test]
fn a_container_that_was_never_rewritten_holds_no_links() {
    let error = redirect(&Case::new(), |directory, place, fingerprint| {
        let (chunk_bytes, target) = (place.length, Reference::new(1, 0, 0));
        directory.links.push(Link { slot: 1, chunk_bytes, target, fingerprint });
    });
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("never rewritten"), "{error}");
}
