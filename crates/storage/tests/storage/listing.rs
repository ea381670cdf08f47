//! Going through all pages of a listing that misbehaves.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{
    ByteRange, Fault, FaultStorage, Guarantees, Key, ListPage, MemoryStorage, ObjectMeta,
    Operation, PutMode, RecordingStorage, Storage, list_all,
};

/// Answers every listing with the same page.
struct Repeating(ListPage, AtomicUsize);

impl Storage for Repeating {
    fn put_bytes(&self, _: &Key, _: &[Bytes], _: PutMode) -> Result<()> {
        Err(Error::invalid("only lists"))
    }
    fn get(&self, _: &Key, _: ByteRange, _: &mut Vec<u8>) -> Result<()> {
        Err(Error::invalid("only lists"))
    }
    fn settle(&self, _: &Key) -> Result<()> {
        Err(Error::invalid("only lists"))
    }
    fn head(&self, _: &Key) -> Result<ObjectMeta> {
        Err(Error::invalid("only lists"))
    }
    fn delete(&self, _: &[Key]) -> Result<()> {
        Err(Error::invalid("only lists"))
    }
    fn list(&self, _: &str, _: Option<&Key>) -> Result<ListPage> {
        assert!(self.1.fetch_add(1, Ordering::Relaxed) < 10, "listed without end");
        Ok(self.0.clone())
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }
    fn describe(&self) -> String {
        "a broken server".to_owned()
    }
}

#[test]
fn a_server_that_repeats_itself_is_an_error() {
    let object = (Key::new("a").unwrap(), 1);
    for objects in [vec![object], vec![]] {
        let page = ListPage { objects, truncated: true };
        let storage = Repeating(page.clone(), AtomicUsize::new(0));
        let items: Vec<_> = list_all(&storage, "", None).collect();
        assert_eq!(items.len(), page.objects.len() + 1);
        let error = items.into_iter().next_back().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("a broken server"), "{error}");
    }
}

fn two_pages() -> MemoryStorage {
    let storage = MemoryStorage::new();
    for number in 0..1500 {
        let key = Key::new(format!("k/{number:04}")).unwrap();
        storage.put(&key, &[b"x"], PutMode::Create).unwrap();
    }
    storage
}

#[test]
fn an_error_ends_the_listing() {
    let storage = FaultStorage::new(two_pages(), |_: &Operation, index| match index {
        1 => Fault::FailBefore(ErrorKind::Unavailable),
        _ => Fault::Pass,
    });
    let items: Vec<_> = list_all(&storage, "k/", None).collect();
    assert_eq!(items.len(), 1001);
    assert!(items[..1000].iter().all(Result::is_ok));
    assert_eq!(items[1000].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn pages_are_fetched_when_they_are_reached() {
    let storage = RecordingStorage::new(two_pages());
    let mut all = list_all(&storage, "k/", None);
    assert_eq!(storage.records().len(), 0);
    assert_eq!(all.by_ref().take(1000).count(), 1000);
    assert_eq!(storage.records().len(), 1);
    assert_eq!(all.count(), 500);
    assert_eq!(storage.records().len(), 2, "a page that is not truncated is the last");
}
