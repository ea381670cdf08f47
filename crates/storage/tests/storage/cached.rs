//! The cache in front of a storage: quicker, and never wrong.

use std::sync::Arc;

use bytes::Bytes;
use silt_format::Result;
use silt_storage::{
    Block, ByteRange, CachePolicy, CachedStorage, End, Guarantees, Keep, Key, ListPage,
    MemoryStorage, ObjectMeta, OperationKind, PutMode, RecordingStorage, Storage, TAIL_BYTES,
};

type Recorded = Arc<RecordingStorage<MemoryStorage>>;

fn recorded() -> Recorded {
    Arc::new(RecordingStorage::new(MemoryStorage::new()))
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn object(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at * 31 + usize::from(seed) * 7) % 251).unwrap()).collect()
}

/// Bytes of the footer of an object with a directory: where that begins, its bytes, and a mark.
const FOOTER_BYTES: usize = 20;
const MARK: &[u8; 4] = b"end.";

fn footer(directory_offset: usize, directory_bytes: usize) -> Vec<u8> {
    let numbers = [directory_offset, directory_bytes].map(|number| (number as u64).to_le_bytes());
    [&numbers[0][..], &numbers[1], MARK].concat()
}

/// Where the directory of an object begins and how long it is, by the object's last bytes.
fn read_footer(last: &[u8]) -> Option<(u64, u64)> {
    let footer = last.last_chunk::<FOOTER_BYTES>()?;
    let number = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap());
    footer.ends_with(MARK).then(|| (number(0), number(8)))
}

fn end(last: &[u8]) -> Option<End> {
    let (offset, bytes) = read_footer(last)?;
    let object_bytes = offset + bytes + FOOTER_BYTES as u64;
    // Containers of one folder have a copy of their beginning before the footer.
    let copy = last.len().checked_sub(FOOTER_BYTES + 100).map(|from| &last[from..]);
    let copy = copy.and_then(|copy| copy.strip_prefix(b"copy"));
    Some(End { offset, object_bytes, beginning: copy.and_then(|copy| copy.first_chunk().copied()) })
}

const POLICY: CachePolicy = CachePolicy { keep, end };

fn keep(key: &Key) -> Keep {
    match key.as_str().split('/').next() {
        Some("packs") => Keep::Whole,
        Some("heads") => Keep::Listed,
        Some("keys") => Keep::Settled,
        Some("containers") => Keep::Ends,
        Some("tagged") => Keep::SettledEnds,
        _ => Keep::Nothing,
    }
}

fn cache(inner: &Recorded, folder: &std::path::Path, bytes_max: u64) -> CachedStorage {
    CachedStorage::new(Arc::clone(inner) as Arc<dyn Storage>, folder, POLICY, bytes_max)
}

fn read(storage: &dyn Storage, name: &str, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    storage.get(&key(name), ByteRange::Bounded { offset, length }, &mut bytes).unwrap();
    bytes
}

fn gets(inner: &Recorded) -> u64 {
    inner.totals(OperationKind::Get).operations
}

#[test]
fn names_that_hold_one_object_for_good_are_not_looked_at_again() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let (whole, other) = (object(1, 500), object(2, 500));
    let first = cache(&inner, folder.path(), 1 << 20);
    inner.put(&key("keys/a"), &[&whole], PutMode::Create).unwrap();
    assert_eq!(read(&first, "keys/a", 0, 500), whole);
    let next = cache(&inner, folder.path(), 1 << 20);
    assert_eq!(read(&next, "keys/a", 0, 500), whole);
    assert_eq!(gets(&inner), 1);
    // Unless they turn out not to belong to the rest.
    inner.delete(&[key("keys/a")]).unwrap();
    inner.put(&key("keys/a"), &[&other], PutMode::Create).unwrap();
    assert!(next.forget(&key("keys/a")) && !next.forget(&key("keys/a")));
    assert_eq!(read(&next, "keys/a", 0, 500), other);
}

#[test]
fn ends_of_names_that_hold_one_object_for_good_are_not_looked_at_again() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let (whole, other, name) = (container(1, 90_000, 300), container(2, 80_000, 300), "tagged/a");
    inner.put(&key(name), &[&whole], PutMode::Create).unwrap();
    let first = cache(&inner, folder.path(), 1 << 20);
    let tail = |storage: &CachedStorage| {
        let mut bytes = Vec::new();
        storage.get(&key(name), ByteRange::Tail(TAIL_BYTES), &mut bytes).unwrap();
        bytes
    };
    assert!(whole.ends_with(&tail(&first)));
    inner.take();
    // Also if it is gone; whoever reads what is before the end is told, also if that is kept.
    inner.delete(&[key(name)]).unwrap();
    let next = cache(&inner, folder.path(), 1 << 20);
    assert!(whole.ends_with(&tail(&next)));
    assert!(read(&next, name, 0, 96) == whole[..96]);
    assert_eq!(gets(&inner), 0);
    for offset in [500, 89_000] {
        let range = ByteRange::Bounded { offset, length: 50 };
        next.get(&key(name), range, &mut Vec::new()).unwrap_err();
        let blocks = vec![Block { range: offset..offset + 50, bytes: vec![0; 50] }];
        next.get_blocks(&key(name), blocks).unwrap_err();
    }
    // Unless they turn out not to belong to the rest.
    inner.put(&key(name), &[&other], PutMode::Create).unwrap();
    assert!(next.forget(&key(name)));
    assert!(other.ends_with(&tail(&next)));
}

#[test]
fn what_was_written_or_read_once_is_read_from_the_folder() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let whole = object(1, 5000);
    let first = cache(&inner, folder.path(), 1 << 20);
    first.put(&key("packs/a"), &[&whole[..100], &whole[100..]], PutMode::Create).unwrap();
    for offset in (0..4000).step_by(500) {
        assert_eq!(
            read(&first, "packs/a", offset, 300),
            whole[usize::try_from(offset).unwrap()..][..300]
        );
    }
    assert_eq!(gets(&inner), 0);
    // The next process looks at the beginning, once.
    let next = cache(&inner, folder.path(), 1 << 20);
    assert_eq!(read(&next, "packs/a", 1000, 50), whole[1000..1050]);
    assert_eq!(read(&next, "packs/a", 2000, 50), whole[2000..2050]);
    assert_eq!(gets(&inner), 1);
    // What another host has written is read as a whole, once.
    inner.put(&key("packs/b"), &[&whole], PutMode::Create).unwrap();
    assert_eq!(read(&next, "packs/b", 7, 5), whole[7..12]);
    assert_eq!(read(&next, "packs/b", 70, 5), whole[70..75]);
    assert_eq!(gets(&inner), 2);
    // Other names are not kept.
    inner.put(&key("other/b"), &[&whole], PutMode::Create).unwrap();
    read(&next, "other/b", 0, 5);
    read(&next, "other/b", 0, 5);
    assert_eq!(gets(&inner), 4);
}

#[test]
fn a_name_that_holds_another_object_by_now_is_found_out() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let (old, new) = (object(1, 5000), object(2, 5000));
    cache(&inner, folder.path(), 1 << 20).put(&key("packs/a"), &[&old], PutMode::Create).unwrap();
    // Another host removes what an interrupted backup left, and uses the name again.
    inner.delete(&[key("packs/a")]).unwrap();
    inner.put(&key("packs/a"), &[&new], PutMode::Create).unwrap();
    let next = cache(&inner, folder.path(), 1 << 20);
    assert_eq!(read(&next, "packs/a", 1000, 500), new[1000..1500]);
    // An object that is gone is gone.
    let mut bytes = Vec::new();
    inner.delete(&[key("packs/a")]).unwrap();
    let again = cache(&inner, folder.path(), 1 << 20);
    again.get(&key("packs/a"), ByteRange::Full, &mut bytes).unwrap_err();
}

#[test]
fn damaged_files_and_folders_that_cannot_be_used_make_no_difference() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let whole = object(1, 5000);
    cache(&inner, folder.path(), 1 << 20).put(&key("packs/a"), &[&whole], PutMode::Create).unwrap();
    let file = folder.path().join("packs/a");
    let stored = std::fs::read(&file).unwrap();
    for damage in [&stored[..stored.len() - 1], &stored[..10], &[&[0; 40], &stored[40..]].concat()]
    {
        std::fs::write(&file, damage).unwrap();
        let next = cache(&inner, folder.path(), 1 << 20);
        assert_eq!(read(&next, "packs/a", 1000, 500), whole[1000..1500]);
    }
    let blocked = folder.path().join("packs/a/below");
    assert_eq!(read(&cache(&inner, &blocked, 1 << 20), "packs/a", 1000, 500), whole[1000..1500]);
    // A file that goes away while it is in use.
    let next = cache(&inner, folder.path(), 1 << 20);
    read(&next, "packs/a", 0, 5);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(read(&next, "packs/a", 1000, 500), whole[1000..1500]);
}

/// An object with a directory of so many bytes between its frames and its footer.
fn container(seed: u8, frames: usize, directory: usize) -> Vec<u8> {
    let mut bytes = object(seed, frames + directory);
    bytes.extend_from_slice(&footer(frames, directory));
    bytes
}

/// Reads what tells an object's directory, as readers do; the answer is the directory.
fn directory(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    storage.get(&key(name), ByteRange::Tail(TAIL_BYTES), &mut bytes).unwrap();
    if end(&bytes).unwrap().beginning.is_none() {
        read(storage, name, 0, 96);
    }
    let (offset, bytes) = read_footer(&bytes).unwrap();
    read(storage, name, offset, bytes)
}

#[test]
fn headers_and_directories_of_large_objects_are_kept() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let (frames, long) = (400_000, 100_000);
    let first = cache(&inner, folder.path(), 1 << 20);
    // What this host writes is not asked for again.
    for (number, bytes) in (0_u8..).zip([100, 5000, long]) {
        let name = format!("containers/{number}");
        let whole = container(number, frames, bytes);
        first.put(&key(&name), &[&whole[..frames], &whole[frames..]], PutMode::Create).unwrap();
        assert!(directory(&first, &name) == whole[frames..][..bytes]);
    }
    assert_eq!(gets(&inner), 0);
    // Its frames are.
    let whole = container(2, frames, long);
    assert!(read(&first, "containers/2", 1000, 5000) == whole[1000..6000]);
    assert!(read(&first, "containers/2", 90, 50) == whole[90..140]);
    assert_eq!(gets(&inner), 2);
    // The next process looks at the beginning, once.
    let next = cache(&inner, folder.path(), 1 << 20);
    (0..2).for_each(|_| assert!(directory(&next, "containers/2") == whole[frames..][..long]));
    assert_eq!(gets(&inner), 3);
    // What another host has written takes one request for the beginning and one for the end, once.
    inner.put(&key("containers/b"), &[&whole], PutMode::Create).unwrap();
    (0..2).for_each(|_| assert!(directory(&next, "containers/b") == whole[frames..][..long]));
    assert_eq!(gets(&inner), 5);
    // One, if the end tells the beginning; which must then be the object's.
    let mut copied = object(9, frames + 3000);
    copied.extend_from_within(..96);
    let at = copied.len() - 96;
    copied.splice(at..at, *b"copy");
    copied.extend_from_slice(&footer(frames, 3100));
    inner.put(&key("containers/copied"), &[&copied], PutMode::Create).unwrap();
    let expected = &copied[frames..][..3100];
    (0..2).for_each(|_| assert!(directory(&next, "containers/copied") == *expected));
    assert!(read(&next, "containers/copied", 0, 96) == copied[..96]);
    assert_eq!(gets(&inner), 6);
    let third = cache(&inner, folder.path(), 1 << 20);
    assert!(directory(&third, "containers/copied") == *expected);
    assert!(read(&third, "containers/copied", 0, 96) == copied[..96]);
    assert_eq!(gets(&inner), 7, "its beginning is what is kept");
    // A directory that is longer than what is read at once is read each time.
    let huge = container(3, frames, 300_000);
    inner.put(&key("containers/c"), &[&huge], PutMode::Create).unwrap();
    (0..2).for_each(|_| assert!(directory(&next, "containers/c") == huge[frames..][..300_000]));
    assert_eq!(gets(&inner), 13);
}

#[test]
fn directories_of_objects_that_have_changed_or_are_none_are_not_kept() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let (old, new) = (container(1, 90_000, 3000), container(2, 80_000, 4000));
    let name = "containers/a";
    cache(&inner, folder.path(), 1 << 20).put(&key(name), &[&old], PutMode::Create).unwrap();
    inner.delete(&[key(name)]).unwrap();
    inner.put(&key(name), &[&new], PutMode::Create).unwrap();
    let next = cache(&inner, folder.path(), 1 << 20);
    (0..2).for_each(|_| assert!(directory(&next, name) == new[80_000..][..4000]));
    // An object without a footer is read as it is.
    let strange = object(3, 50_000);
    next.put(&key("containers/s"), &[&strange], PutMode::Create).unwrap();
    let mut bytes = Vec::new();
    for _ in 0..2 {
        assert!(read(&next, "containers/s", 0, 96) == strange[..96]);
        next.get(&key("containers/s"), ByteRange::Tail(TAIL_BYTES), &mut bytes).unwrap();
        assert!(bytes == strange[50_000 - 32_768..]);
    }
    // One that is shorter than what is asked for, too.
    let short = container(4, 200, 50);
    next.put(&key("containers/t"), &[&short], PutMode::Create).unwrap();
    assert!(directory(&next, "containers/t") == short[200..250]);
    next.get(&key("containers/t"), ByteRange::Full, &mut bytes).unwrap();
    assert!(bytes == short);
}

/// Whoever may write objects decides what their last bytes say.
#[test]
fn an_end_that_cannot_be_is_not_kept() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let storage = cache(&inner, folder.path(), 1 << 20);
    let wrong = [(usize::MAX >> 1, 10), (0, 10), (0, 1 << 40), (90_000, 0), (500, 500), (501, 499)];
    for (number, (offset, bytes)) in (0_u8..).zip(wrong) {
        let name = format!("containers/{number}");
        let whole = [object(number, 1000), footer(offset, bytes)].concat();
        for way in ["put", "get"] {
            let key = key(&format!("{name}.{way}"));
            let put: &dyn Storage = if way == "put" { &storage } else { &*inner };
            put.put(&key, &[&whole], PutMode::Create).unwrap();
            for _ in 0..2 {
                assert!(read(&storage, key.as_str(), 0, 96) == whole[..96]);
                let mut bytes = Vec::new();
                storage.get(&key, ByteRange::Tail(TAIL_BYTES), &mut bytes).unwrap();
                assert!(bytes == whole, "{key}");
                assert!(read(&storage, key.as_str(), 80, 500) == whole[80..580], "{key}");
            }
        }
    }
}

#[test]
fn an_end_that_tells_a_size_which_no_object_has_is_read_as_it_is() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let whole = [object(1, 40_000), footer(usize::MAX - 1000, 950)].concat();
    inner.put(&key("containers/a"), &[&whole], PutMode::Create).unwrap();
    for _ in 0..2 {
        let storage = cache(&inner, folder.path(), 1 << 20);
        let mut bytes = Vec::new();
        storage.get(&key("containers/a"), ByteRange::Tail(TAIL_BYTES), &mut bytes).unwrap();
        assert!(whole.ends_with(&bytes) && bytes.len() as u64 == TAIL_BYTES);
        assert!(read(&storage, "containers/a", 30_000, 500) == whole[30_000..30_500]);
    }
}

/// A store that does not tell the tag of what it has just taken.
struct Untold<S>(S);

impl<S: Storage> Storage for Untold<S> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.0.put_bytes(key, body, mode)
    }
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.0.get(key, range, into)
    }
    fn settle(&self, key: &Key) -> Result<()> {
        self.0.settle(key)
    }
    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.0.head(key)
    }
    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.0.delete(keys)
    }
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.0.list(prefix, after)
    }
    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn a_listed_name_that_comes_back_with_another_object_is_noticed_while_a_process_goes_on() {
    for tells_tags in [true, false] {
        let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
        let told: Arc<dyn Storage> = Arc::clone(&inner) as _;
        let untold: Arc<dyn Storage> = Arc::new(Untold(Arc::clone(&inner)));
        let below = if tells_tags { told } else { untold };
        let process = CachedStorage::new(below, folder.path(), POLICY, 1 << 20);
        let name = "heads/7";
        for seed in 1..4 {
            let whole = object(seed, 500);
            inner.put(&key(name), &[&whole], PutMode::Create).unwrap();
            for _ in 0..3 {
                process.list("heads/", None).unwrap();
                let before = gets(&inner);
                assert!(read(&process, name, 0, 500) == whole, "{seed}");
                assert!(read(&process, name, 10, 20) == whole[10..30]);
                assert!(gets(&inner) <= before + 2);
            }
            // An unchanged one costs nothing where tags are told.
            process.list("heads/", None).unwrap();
            let before = gets(&inner);
            assert!(read(&process, name, 0, 500) == whole);
            assert_eq!(gets(&inner) - before, u64::from(!tells_tags));
            inner.delete(&[key(name)]).unwrap();
        }
    }
}

#[test]
fn many_objects_are_compared_by_their_tags_at_once() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let lists = || inner.totals(OperationKind::List).operations;
    let name = |number: usize| format!("containers/s/{number:04}");
    let whole = |number: usize| container(u8::try_from(number % 200).unwrap(), 500 + number, 300);
    let new = || cache(&inner, folder.path(), 1 << 30);
    let untold: Arc<dyn Storage> = Arc::new(Untold(Arc::clone(&inner)));
    let first = CachedStorage::new(untold, folder.path(), POLICY, 1 << 30);
    for number in 0..1200 {
        first.put(&key(&name(number)), &[&whole(number)], PutMode::Create).unwrap();
    }
    let read_all = |storage: &CachedStorage| {
        for number in (0..1200).step_by(10) {
            let expected = &whole(number)[500 + number..][..300];
            assert!(directory(storage, &name(number)) == expected, "{number}");
        }
    };
    // The next process does not know yet which tags its files' objects have.
    read_all(&new());
    assert_eq!((gets(&inner), lists()), (120, 2));
    read_all(&new());
    assert_eq!((gets(&inner), lists()), (120, 4));
    // One that is another object by now has another tag; also if the one of before comes back.
    let old = whole(500);
    let other = container(77, 500, 300);
    inner.delete(&[key(&name(500))]).unwrap();
    inner.put(&key(&name(500)), &[&other], PutMode::Create).unwrap();
    let next = new();
    assert!(directory(&next, &name(500)) == other[500..800]);
    assert!(directory(&new(), &name(500)) == other[500..800]);
    inner.delete(&[key(&name(500))]).unwrap();
    inner.put(&key(&name(500)), &[&old], PutMode::Create).unwrap();
    assert!(directory(&new(), &name(500)) == old[1000..1300]);
    // One that was written anew by this host does not inherit the tag of the one before.
    let next = new();
    next.delete(&[key(&name(10))]).unwrap();
    next.put(&key(&name(10)), &[&other], PutMode::Create).unwrap();
    inner.delete(&[key(&name(10))]).unwrap();
    inner.put(&key(&name(10)), &[&whole(10)], PutMode::Create).unwrap();
    assert!(directory(&new(), &name(10)) == whole(10)[510..810]);
    // One that is gone is gone.
    inner.delete(&[key(&name(20))]).unwrap();
    new().get(&key(&name(20)), ByteRange::Tail(50), &mut Vec::new()).unwrap_err();
}

#[test]
fn tags_that_were_told_before_a_listing_do_not_count() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let name = |number: usize| format!("containers/s/{number:04}");
    let whole = |seed: u8| container(seed, 500, 300);
    let new = || cache(&inner, folder.path(), 1 << 30);
    let first = new();
    for number in 0..8 {
        first.put(&key(&name(number)), &[&whole(1)], PutMode::Create).unwrap();
    }
    // Notes the tags.
    let second = new();
    (0..8).for_each(|number| assert!(directory(&second, &name(number)) == whole(1)[500..800]));
    // A process that has asked for the tags, after which an object that nobody refers to is another
    // one.
    let process = new();
    assert!(directory(&process, &name(0)) == whole(1)[500..800]);
    inner.delete(&[key(&name(5))]).unwrap();
    inner.put(&key(&name(5)), &[&whole(2)], PutMode::Create).unwrap();
    // It learns by a listing that somebody refers to it now.
    process.list("state/", None).unwrap();
    assert!(directory(&process, &name(5)) == whole(2)[500..800]);
}

#[test]
fn objects_that_listings_find_are_compared_by_what_these_tell() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let new = || cache(&inner, folder.path(), 1 << 20);
    let name = |series: usize| format!("heads/{series}/1");
    let first = new();
    for series in 0..300 {
        first.put(&key(&name(series)), &[&object(1, 500)], PutMode::Create).unwrap();
    }
    let is_read = |storage: &CachedStorage, series: usize, seed: u8| {
        assert!(read(storage, &name(series), 0, 500) == object(seed, 500), "{series}");
    };
    // Others are listed before each is read, as many are side by side.
    let second = new();
    (0..300).for_each(|series| drop(second.list(&format!("heads/{series}/"), None).unwrap()));
    (0..300).for_each(|series| is_read(&second, series, 1));
    assert_eq!(gets(&inner), 0);
    // What another host has put there since has another tag, and so is read.
    inner.delete(&[key(&name(7))]).unwrap();
    inner.put(&key(&name(7)), &[&object(2, 500)], PutMode::Create).unwrap();
    let third = new();
    third.list("heads/", None).unwrap();
    (0..300).for_each(|series| is_read(&third, series, if series == 7 { 2 } else { 1 }));
    assert_eq!(gets(&inner), 2, "its beginning, and all of it");
    // What is not listed is compared with its object. An earlier listing tells nothing of a name
    // that a later one does not have.
    let fourth = new();
    fourth.list("heads/", None).unwrap();
    inner.delete(&[key(&name(8))]).unwrap();
    fourth.list("heads/8/", None).unwrap();
    inner.put(&key(&name(8)), &[&object(3, 500)], PutMode::Create).unwrap();
    is_read(&fourth, 8, 3);
    // A page replaces what was told of its names alone.
    let fifth = new();
    fifth.list("heads/", None).unwrap();
    fifth.list("heads/", Some(&key("heads/5"))).unwrap();
    inner.take();
    let seed = |series| match series {
        7 => 2,
        8 => 3,
        _ => 1,
    };
    (0..300).for_each(|series| is_read(&fifth, series, seed(series)));
    assert_eq!(gets(&inner), 2, "these two had no tag yet");
    // A listing from before an object was replaced tells nothing of the one that replaced it.
    let (sixth, other) = (new(), new());
    sixth.list("heads/", None).unwrap();
    other.delete(&[key(&name(9))]).unwrap();
    other.put(&key(&name(9)), &[&object(4, 500)], PutMode::Create).unwrap();
    is_read(&sixth, 9, 4);
    inner.delete(&[key(&name(9))]).unwrap();
    inner.put(&key(&name(9)), &[&object(1, 500)], PutMode::Create).unwrap();
    let seventh = new();
    seventh.list("heads/", None).unwrap();
    is_read(&seventh, 9, 1);
}

#[test]
fn tags_of_all_that_is_near_are_asked_for_once() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let lists = || inner.totals(OperationKind::List).operations;
    let name = |number: usize| format!("containers/s/{number:05}");
    let whole = |number: usize| container(u8::try_from(number % 200).unwrap(), 500, 300);
    let new = || cache(&inner, folder.path(), 1 << 30);
    let first = new();
    for number in 0..400 {
        let storage: &dyn Storage = if number % 2 == 0 { &first } else { &*inner };
        storage.put(&key(&name(number)), &[&whole(number)], PutMode::Create).unwrap();
    }
    let read = |storage: &CachedStorage, number: usize| {
        assert!(directory(storage, &name(number)) == whole(number)[500..800], "{number}");
    };
    let second = new();
    (0..400).step_by(2).for_each(|number| read(&second, number));
    // Backwards, and by several threads.
    inner.take();
    let third = new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (third, read) = (&third, &read);
            scope.spawn(move || {
                (0..400).rev().filter(|number| number % 8 == 2 * thread).for_each(|number| {
                    read(third, number);
                });
            });
        }
    });
    assert_eq!((gets(&inner), lists()), (0, 1));
    // Of objects that are far apart, an answer tells those from the wanted one on.
    for number in 400..8000 {
        inner.put(&key(&name(number)), &[&whole(number)], PutMode::Create).unwrap();
    }
    for number in [2000, 4000, 6000] {
        read(&first, number);
        read(&new(), number);
    }
    inner.take();
    let fourth = new();
    [6000, 4000, 2000].iter().for_each(|number| read(&fourth, *number));
    assert_eq!((gets(&inner), lists()), (0, 4));
}

#[test]
fn it_stays_below_its_bound() {
    let (inner, folder) = (recorded(), tempfile::tempdir().unwrap());
    let storage = cache(&inner, folder.path(), 20_000);
    for number in 0..30_u8 {
        let name = format!("packs/{number:02}");
        storage.put(&key(&name), &[&object(number, 3000)], PutMode::Create).unwrap();
    }
    let held: u64 = std::fs::read_dir(folder.path().join("packs"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!((3000..=20_000).contains(&held), "{held}");
    for number in 0..30_u8 {
        let name = format!("packs/{number:02}");
        assert_eq!(read(&storage, &name, 5, 50), object(number, 3000)[5..55]);
    }
}
