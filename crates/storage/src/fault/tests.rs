use super::*;
use crate::MemoryStorage;

fn key() -> Key {
    Key::new("a/b").unwrap()
}

fn with_object(rule: impl FaultRule + 'static) -> FaultStorage<MemoryStorage> {
    let memory = MemoryStorage::new();
    memory.put(&key(), &[b"0123456789"], PutMode::Create).unwrap();
    FaultStorage::new(memory, rule)
}

fn read(storage: &impl Storage, range: ByteRange) -> Result<Vec<u8>> {
    let mut bytes = b"left over".to_vec();
    storage.get(&key(), range, &mut bytes).map(|()| bytes)
}

#[test]
fn a_failure_before_has_no_effect() {
    let storage = FaultStorage::new(MemoryStorage::new(), |operation: &Operation, _| {
        if operation.kind().is_mutation() {
            Fault::FailBefore(ErrorKind::Unavailable)
        } else {
            Fault::Pass
        }
    });
    let error = storage.put(&key(), &[b"x"], PutMode::Create).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("a/b"), "{error}");
    assert_eq!(storage.head(&key()).unwrap_err().kind(), ErrorKind::NotFound);

    storage.inner().put(&key(), &[b"x"], PutMode::Create).unwrap();
    assert_eq!(storage.delete(&[key()]).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(storage.head(&key()).unwrap().size, 1);
}

#[test]
fn a_failure_after_loses_only_the_answer() {
    let lost = |_: &Operation, index| match index {
        0 | 1 | 3 => Fault::FailAfter(ErrorKind::Unavailable),
        _ => Fault::Pass,
    };
    let storage = FaultStorage::new(MemoryStorage::new(), lost);
    let put = || storage.put(&key(), &[b"x"], PutMode::Create).unwrap_err().kind();
    assert_eq!(put(), ErrorKind::Unavailable);
    assert_eq!(put(), ErrorKind::AlreadyExists, "an error of the storage's own stays");
    assert_eq!(read(&storage, ByteRange::Full).unwrap(), b"x");
    assert_eq!(storage.delete(&[key()]).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(read(&storage, ByteRange::Full).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_failed_read_leaves_nothing_in_the_buffer() {
    for fault in
        [Fault::FailBefore(ErrorKind::Unavailable), Fault::FailAfter(ErrorKind::Unavailable)]
    {
        let storage = with_object(move |_: &Operation, _| fault);
        let mut bytes = b"left over".to_vec();
        storage.get(&key(), ByteRange::Full, &mut bytes).unwrap_err();
        assert!(bytes.is_empty(), "{fault:?}");
        let listed = storage.list("", None);
        assert_eq!(listed.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[test]
fn reads_are_cut_short_and_flipped() {
    let cut = with_object(|_: &Operation, _| Fault::TruncateRead { bytes: 3 });
    assert_eq!(read(&cut, ByteRange::Full).unwrap(), b"012");
    assert_eq!(read(&cut, ByteRange::Tail(2)).unwrap(), b"89");

    let flip = with_object(|_: &Operation, _| Fault::FlipRead { byte: 12, bit: 1 });
    assert_eq!(read(&flip, ByteRange::Full).unwrap(), b"0103456789");
    assert_eq!(read(&flip, ByteRange::Tail(5)).unwrap(), b"56589");
    assert_eq!(read(&flip, ByteRange::Tail(0)).unwrap(), b"");
    assert_eq!(read(flip.inner(), ByteRange::Full).unwrap(), b"0123456789", "stored as it was");
}

#[test]
#[should_panic(expected = "which only reads can have")]
fn a_read_fault_of_a_put_is_a_bug() {
    let storage = FaultStorage::new(MemoryStorage::new(), |_: &Operation, _| Fault::FlipRead {
        byte: 0,
        bit: 0,
    });
    let _ = storage.put(&key(), &[b"x"], PutMode::Create);
}
