//! Every wrapper hands on every method: what one forgets, the storage below can't do.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::{ErrorKind, Result};
use silt_storage::{
    ByteRange, CachePolicy, CachedStorage, Counted, CrashStorage, CrashingOperation, DryRunStorage,
    Fault, FaultStorage, Guarantees, Keep, Key, ListPage, ObjectMeta, PutMode, RecordingStorage,
    Replica, Replicated, Routed, Storage, TaggedPage, Usage,
};

use crate::conformance::place_of;

/// Notes which methods are called.
#[derive(Default)]
struct Asked(Mutex<BTreeSet<&'static str>>);

impl Asked {
    fn note(&self, method: &'static str) {
        self.0.lock().unwrap().insert(method);
    }
}

impl Storage for Asked {
    fn put_bytes(&self, _: &Key, _: &[Bytes], _: PutMode) -> Result<()> {
        self.note("put_bytes");
        Ok(())
    }
    fn put_tagged(&self, _: &Key, _: &[Bytes], _: PutMode) -> Result<Option<String>> {
        self.note("put_tagged");
        Ok(Some("tag".to_owned()))
    }
    fn get(&self, _: &Key, _: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.note("get");
        into.clear();
        Ok(())
    }
    fn copies(&self, _: &Key) -> usize {
        self.note("copies");
        2
    }
    fn get_from(&self, _: usize, _: &Key, _: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.note("get_from");
        into.clear();
        Ok(())
    }
    fn settle(&self, _: &Key) -> Result<()> {
        self.note("settle");
        Ok(())
    }
    fn list_from(&self, _: usize, _: &str, _: Option<&Key>) -> Result<ListPage> {
        self.note("list_from");
        Ok(ListPage { objects: Vec::new(), truncated: false })
    }
    fn head(&self, _: &Key) -> Result<ObjectMeta> {
        self.note("head");
        Ok(ObjectMeta { size: 0, modified_ms: None })
    }
    fn delete(&self, _: &[Key]) -> Result<()> {
        self.note("delete");
        Ok(())
    }
    fn list(&self, _: &str, _: Option<&Key>) -> Result<ListPage> {
        self.note("list");
        Ok(ListPage { objects: Vec::new(), truncated: false })
    }
    fn list_tagged(&self, _: &str, _: Option<&Key>) -> Result<TaggedPage> {
        self.note("list_tagged");
        let page = ListPage { objects: Vec::new(), truncated: false };
        Ok(TaggedPage { page, tags: Some(Vec::new()) })
    }
    fn forget(&self, _: &Key) -> bool {
        self.note("forget");
        true
    }
    fn uploads(&self) -> usize {
        self.note("uploads");
        7
    }
    fn requests_at_once(&self) -> usize {
        self.note("requests_at_once");
        9
    }
    fn request_bytes(&self) -> u64 {
        self.note("request_bytes");
        11
    }
    fn soonest_answer_ns(&self) -> Option<u64> {
        self.note("soonest_answer_ns");
        Some(13)
    }
    fn usage(&self) -> Option<Usage> {
        self.note("usage");
        None
    }
    fn guarantees(&self) -> Guarantees {
        self.note("guarantees");
        Guarantees::ALL
    }
    fn describe(&self) -> String {
        self.note("describe");
        "asked".to_owned()
    }
}

/// Calls each method once; the methods by name.
fn call_all(storage: &dyn Storage) -> [&'static str; 19] {
    let key = Key::new("kind/store/object").unwrap();
    let mut into = Vec::new();
    storage.get(&key, ByteRange::Full, &mut into).unwrap();
    storage.get_from(0, &key, ByteRange::Full, &mut into).unwrap();
    storage.settle(&key).unwrap();
    storage.head(&key).unwrap();
    storage.list("kind/store/", None).unwrap();
    storage.list_from(0, "kind/store/", None).unwrap();
    storage.list_tagged("kind/store/", None).unwrap();
    storage.copies(&key);
    assert!(storage.forget(&key));
    assert_eq!((storage.uploads(), storage.request_bytes()), (7, 11));
    assert_eq!(storage.requests_at_once(), 9);
    assert_eq!(storage.soonest_answer_ns(), Some(13));
    storage.usage();
    storage.guarantees();
    storage.describe();
    storage.delete(std::slice::from_ref(&key)).unwrap();
    // A dry run has the name already.
    storage.put_bytes(&key, &[Bytes::from_static(b"1")], PutMode::Create).ok();
    storage.put_tagged(&key, &[Bytes::from_static(b"1")], PutMode::Create).ok();
    [
        "put_bytes",
        "put_tagged",
        "get",
        "copies",
        "get_from",
        "settle",
        "list_from",
        "head",
        "delete",
        "list",
        "list_tagged",
        "forget",
        "uploads",
        "requests_at_once",
        "request_bytes",
        "soonest_answer_ns",
        "usage",
        "guarantees",
        "describe",
    ]
}

/// The methods of a wrapped storage that were not called, but for those which the wrapper answers
/// by itself.
fn forgotten(
    wrap: impl FnOnce(Arc<Asked>) -> Box<dyn Storage>,
    by_itself: &[&str],
) -> Vec<&'static str> {
    let asked = Arc::new(Asked::default());
    let methods = call_all(&*wrap(Arc::clone(&asked)));
    let called = asked.0.lock().unwrap();
    let is_missing = |method: &&str| !called.contains(method) && !by_itself.contains(method);
    methods.into_iter().filter(is_missing).collect()
}

const NOTHING: CachePolicy = CachePolicy { keep: |_| Keep::Nothing, end: |_| None };

#[test]
fn wrappers_hand_on_all_that_they_are_asked() {
    let none: [&str; 0] = [];
    assert_eq!(forgotten(|inner| Box::new(inner), &[]), none, "pointers");
    assert_eq!(forgotten(|inner| Box::new(RecordingStorage::new(inner)), &[]), none, "recording");
    let fault = |inner| Box::new(FaultStorage::new(inner, |_: &_, _: u64| Fault::Pass)) as _;
    assert_eq!(forgotten(fault, &[]), none, "faults");
    let crash = |inner| {
        let (counted, struck) = (Counted::Mutations, CrashingOperation::Lost);
        Box::new(CrashStorage::new(inner, 1000, counted, struck)) as _
    };
    assert_eq!(forgotten(crash, &[]), none, "crash");
    let folder = tempfile::tempdir().unwrap();
    let cached = |inner: Arc<Asked>| {
        Box::new(CachedStorage::new(inner, folder.path(), NOTHING, 1 << 20)) as _
    };
    // It asks for tags, whether or not it was asked for them itself.
    assert_eq!(forgotten(cached, &["put_bytes", "list"]), none, "cached");
    // Nothing of a dry run reaches what is below. Tags are for the cache, which is below all these.
    let dry = |inner: Arc<Asked>| Box::new(DryRunStorage::new(inner)) as _;
    let changes = ["put_bytes", "put_tagged", "delete", "settle", "list_tagged"];
    assert_eq!(forgotten(dry, &changes), none, "dry run");
    for store in ["store", "other"] {
        let routed = |inner: Arc<Asked>| {
            let elsewhere = Arc::new(silt_storage::MemoryStorage::new());
            let (main, own): (Arc<dyn Storage>, Arc<dyn Storage>) =
                if store == "store" { (elsewhere, inner) } else { (inner, elsewhere) };
            Box::new(Routed::new(main, own, move |named| place_of(store, named))) as _
        };
        // Requests are counted where the store is opened; two are not one store.
        let mut by_itself = vec!["usage", "list_tagged"];
        by_itself.extend((store == "store").then_some("describe"));
        assert_eq!(forgotten(routed, &by_itself), none, "routed");
    }
    // Copies have no common tags, count as one, and are called by their locations.
    let replicated =
        |inner: Arc<Asked>| Box::new(Replicated::new(vec![replica(false, Ok(inner))])) as _;
    let own = ["put_tagged", "list_tagged", "copies", "get_from", "list_from", "usage", "describe"];
    assert_eq!(forgotten(replicated, &own), none, "replicated");
}

fn replica(is_filling: bool, storage: std::result::Result<Arc<dyn Storage>, String>) -> Replica {
    Replica { node: None, location: "here".to_owned(), is_filling, storage }
}

#[test]
fn what_a_place_lacks_that_is_being_filled_may_be_in_one_that_is_away() {
    let (there, lacks) = (Key::new("heads/a").unwrap(), Key::new("heads/b").unwrap());
    let filling = Arc::new(silt_storage::MemoryStorage::new());
    filling.put(&there, &[b"1"], PutMode::Create).unwrap();
    let away = || replica(false, Err("its disk is not mounted".to_owned()));
    let filled = |is_filling| replica(is_filling, Ok(filling.clone() as Arc<dyn Storage>));
    let kind = |storage: &Replicated, key: &Key| storage.head(key).map_err(|error| error.kind());
    let lists = |storage: &Replicated, prefix: &str| {
        storage.list(prefix, None).map(|page| page.objects.len()).map_err(|error| error.kind())
    };
    for replicas in [vec![filled(true), away()], vec![away(), filled(true)]] {
        let storage = Replicated::new(replicas);
        assert!(kind(&storage, &there).is_ok());
        assert_eq!(kind(&storage, &lacks).unwrap_err(), ErrorKind::Unavailable);
        assert_eq!(lists(&storage, "heads/"), Ok(1));
        assert_eq!(lists(&storage, "containers/"), Err(ErrorKind::Unavailable));
    }
    // One whole place is enough, and a place that is being filled may be the first one.
    for replicas in
        [vec![away(), filled(false)], vec![filled(true)], vec![filled(true), filled(false)]]
    {
        let storage = Replicated::new(replicas);
        assert_eq!(kind(&storage, &lacks).unwrap_err(), ErrorKind::NotFound);
        assert_eq!(lists(&storage, "containers/"), Ok(0));
    }
}

#[test]
fn of_several_places_the_farthest_tells_how_far_they_are() {
    let place = |soonest_ns: Option<u64>| -> Arc<dyn Storage> {
        let silent = silt_storage::MemoryStorage::new();
        Arc::new(match soonest_ns {
            Some(soonest_ns) => silent.answering_in(soonest_ns),
            None => silent,
        })
    };
    for (one, other, farthest) in [
        (Some(2), Some(7), Some(7)),
        (Some(7), Some(2), Some(7)),
        (None, Some(2), Some(2)),
        (Some(2), None, Some(2)),
        (None, None, None),
    ] {
        let (main, apart) = (place(one), place(other));
        let routed = Routed::new(main, apart, |named| place_of("other", named));
        assert_eq!(routed.soonest_answer_ns(), farthest);
        let places = [one, other].map(|soonest_ns| replica(false, Ok(place(soonest_ns))));
        assert_eq!(Replicated::new(places.into()).soonest_answer_ns(), farthest);
    }
}
