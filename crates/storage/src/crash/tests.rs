use std::sync::Arc;

use super::*;
use crate::{MemoryStorage, list_all};

fn key(number: u32) -> Key {
    Key::new(format!("k/{number}")).unwrap()
}

/// Four puts with reads between them, then a delete of two.
fn program(storage: &dyn Storage) -> Result<()> {
    for number in 0..4 {
        storage.put(&key(number), &[b"x"], PutMode::Create)?;
        storage.head(&key(number))?;
        storage.get(&key(number), ByteRange::Full, &mut Vec::new())?;
    }
    storage.list("", None)?;
    storage.delete(&[key(0), key(3)])
}

fn names(storage: &impl Storage) -> Vec<u32> {
    list_all(storage, "", None)
        .map(|object| object.unwrap().0.as_str()[2..].parse().unwrap())
        .collect()
}

/// What survives when the program is stopped at each operation in turn.
fn images(counted: Counted, struck: CrashingOperation) -> Vec<Vec<u32>> {
    let mut images = Vec::new();
    for succeeding in 0.. {
        let memory = Arc::new(MemoryStorage::new());
        let storage = CrashStorage::new(Arc::clone(&memory), succeeding, counted, struck);
        let ended = program(&storage);
        assert_eq!(storage.succeeded(), succeeding.min(storage.succeeded()));
        if !storage.has_crashed() {
            ended.unwrap();
            assert_eq!(storage.succeeded(), succeeding);
            break;
        }
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        let image = names(&memory);
        // The dead do nothing more, not even read.
        let put = storage.put(&key(9), &[b"x"], PutMode::Create);
        assert_eq!(put.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(storage.delete(&[key(0)]).unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(storage.head(&key(0)).unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(storage.list("", None).unwrap_err().kind(), ErrorKind::Interrupted);
        let got = storage.get(&key(0), ByteRange::Full, &mut Vec::new());
        assert_eq!(got.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(names(&memory), image, "nothing changes after the crash");
        images.push(image);
    }
    images
}

#[test]
fn every_mutation_is_struck_before_its_effect() {
    let expected: [&[u32]; 6] = [&[], &[0], &[0, 1], &[0, 1, 2], &[0, 1, 2, 3], &[1, 2, 3]];
    assert_eq!(images(Counted::Mutations, CrashingOperation::Lost), expected);
}

#[test]
fn every_mutation_is_struck_after_its_effect() {
    let expected: [&[u32]; 6] = [&[0], &[0, 1], &[0, 1, 2], &[0, 1, 2, 3], &[1, 2, 3], &[1, 2]];
    assert_eq!(images(Counted::Mutations, CrashingOperation::Applied), expected);
}

#[test]
fn reads_are_struck_when_they_count() {
    let images = images(Counted::Everything, CrashingOperation::Applied);
    assert_eq!(images.len(), 4 * 3 + 1 + 2);
    let expected: [&[u32]; 4] = [&[0], &[0], &[0], &[0, 1]];
    assert_eq!(images[..4], expected);
}

#[test]
fn failed_operations_do_not_count() {
    let storage =
        CrashStorage::new(MemoryStorage::new(), 1, Counted::Everything, CrashingOperation::Lost);
    assert_eq!(storage.head(&key(0)).unwrap_err().kind(), ErrorKind::NotFound);
    storage.put(&key(0), &[b"x"], PutMode::Create).unwrap();
    assert!(!storage.has_crashed());
    assert_eq!(storage.head(&key(0)).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(storage.has_crashed());
}
