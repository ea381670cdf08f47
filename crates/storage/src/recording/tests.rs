use super::*;
use crate::MemoryStorage;

#[test]
fn every_operation_is_recorded_and_summed() {
    let key = |name| Key::new(name).unwrap();
    let (one, two) = (key("h/1"), key("h/2"));
    let storage = RecordingStorage::new(MemoryStorage::new());
    storage.put(&one, &[b"abc", b"de"], PutMode::Create).unwrap();
    storage.put(&one, &[b"again"], PutMode::Create).unwrap_err();
    storage.put(&two, &[b""], PutMode::Create).unwrap();
    storage.get(&one, ByteRange::Tail(2), &mut Vec::new()).unwrap();
    storage.get(&key("absent"), ByteRange::Full, &mut Vec::new()).unwrap_err();
    storage.head(&one).unwrap();
    storage.list("h/", Some(&one)).unwrap();
    storage.delete(&[one.clone(), two.clone()]).unwrap();

    let put = |key: &Key, bytes| Operation::Put { key: key.clone(), bytes };
    let expected = [
        (put(&one, 5), Ok(5)),
        (put(&one, 5), Err(ErrorKind::AlreadyExists)),
        (put(&two, 0), Ok(0)),
        (Operation::Get { key: one.clone(), range: ByteRange::Tail(2) }, Ok(2)),
        (Operation::Get { key: key("absent"), range: ByteRange::Full }, Err(ErrorKind::NotFound)),
        (Operation::Head { key: one.clone() }, Ok(0)),
        (Operation::List { prefix: "h/".to_owned(), after: Some(one.clone()) }, Ok(0)),
        (Operation::Delete { keys: vec![one, two] }, Ok(0)),
    ]
    .map(|(operation, outcome)| Record { operation, outcome });
    assert_eq!(storage.records(), expected);

    let totals = OperationKind::ALL.map(|kind| storage.totals(kind));
    let sums =
        |operations, failures, objects, bytes| Totals { operations, failures, objects, bytes };
    let expected_totals =
        [sums(3, 1, 2, 5), sums(2, 1, 1, 2), sums(1, 0, 1, 0), sums(1, 0, 2, 0), sums(1, 0, 1, 0)];
    assert_eq!(totals, expected_totals);

    assert_eq!(storage.take(), expected);
    assert_eq!(storage.records(), []);
    assert_eq!(storage.totals(OperationKind::Put), Totals::default());
}
