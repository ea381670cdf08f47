//! What only the storage in memory has.

use silt_format::ErrorKind;
use silt_storage::{ByteRange, Key, MemoryStorage, PutMode, READ_BYTES_MAX, Storage};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn read(storage: &MemoryStorage, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    storage.get(&key(name), ByteRange::Full, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_snapshot_is_independent() {
    let storage = MemoryStorage::new();
    storage.put(&key("a"), &[b"a"], PutMode::Create).unwrap();
    storage.put(&key("b"), &[b"b"], PutMode::Create).unwrap();
    let snapshot = storage.snapshot();
    storage.delete(&[key("a")]).unwrap();
    storage.put(&key("c"), &[b"c"], PutMode::Create).unwrap();
    snapshot.damage(&key("b"), |bytes| bytes.push(0xff)).unwrap();

    assert_eq!(read(&storage, "b"), b"b");
    assert_eq!(read(&snapshot, "b"), b"b\xff");
    assert_eq!(read(&snapshot, "a"), b"a");
    assert_eq!(snapshot.head(&key("c")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn damage_needs_an_object() {
    let storage = MemoryStorage::new();
    let error = storage.damage(&key("a"), Vec::clear).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    storage.put(&key("a"), &[b"abc"], PutMode::Create).unwrap();
    storage.damage(&key("a"), |bytes| bytes.truncate(1)).unwrap();
    assert_eq!(read(&storage, "a"), b"a");
}

#[test]
fn a_name_is_an_object_or_the_beginning_of_others() {
    let storage = MemoryStorage::new();
    storage.put(&key("a/b"), &[b"x"], PutMode::Create).unwrap();
    for name in ["a", "a/b/c", "a/b/c/d"] {
        let error = storage.put(&key(name), &[b"x"], PutMode::Create).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
        assert!(error.to_string().contains("a/b"), "{error}");
    }
    storage.put(&key("a/b-c"), &[b"x"], PutMode::Create).unwrap();
}

#[test]
fn one_read_has_a_limit() {
    let whole = key("a");
    let size = READ_BYTES_MAX + 1;
    for range in
        [ByteRange::Full, ByteRange::Tail(size), ByteRange::Bounded { offset: 0, length: size }]
    {
        let error = range.resolve(&whole, size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{range:?}");
    }
    assert_eq!(ByteRange::Full.resolve(&whole, READ_BYTES_MAX).unwrap(), 0..READ_BYTES_MAX);
    assert_eq!(ByteRange::Tail(READ_BYTES_MAX).resolve(&whole, size).unwrap(), 1..size);
    let far = ByteRange::Bounded { offset: u64::MAX - 1, length: 1 };
    assert_eq!(far.resolve(&whole, u64::MAX).unwrap(), u64::MAX - 1..u64::MAX);
}
