//! A snapshot that is damaged at the source, and answers about it that come late.

use std::sync::Arc;

use silt_format::replica::{ReplicaMessage, SourceMessage, Span};
use silt_replicate::{Outcome, ReplicateOptions, Source};
use siltstone::storage::{ByteRange, MemoryStorage, PutMode, Storage};
use siltstone::{Config, Protection, Repository};

use crate::kit::{SEGMENT, Site, back_up, context, noise};

/// Flips a bit of every chunk that is stored.
fn damage(storage: &MemoryStorage) {
    let page = storage.list("containers", None).unwrap();
    for (key, _) in page.objects {
        let mut bytes = Vec::new();
        storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        storage.delete(std::slice::from_ref(&key)).unwrap();
        storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }
}

#[test]
fn late_answers_about_a_snapshot_that_was_given_up_do_no_harm() {
    let storage = Arc::new(MemoryStorage::new());
    let shared = Arc::clone(&storage);
    let repository =
        Repository::init(shared, context(), Config::default(), &Protection::None, None).unwrap();
    let here = Site { repository, storage: Arc::clone(&storage) };
    back_up(&here, "a", &[("root", &noise(1, SEGMENT))]);
    damage(&storage);
    back_up(&here, "b", &[("root", &noise(2, SEGMENT))]);
    let mut source = Source::new(&here.repository, ReplicateOptions::default()).unwrap();
    for _ in 0..2 {
        assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Ask { .. })));
    }
    for _ in 0..2 {
        source.take(ReplicaMessage::Known(Vec::new())).unwrap();
    }
    assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Begin(_))));
    source.take(ReplicaMessage::Ready { parent: None }).unwrap();
    assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Segments(_))));
    let all = |count| vec![Span { first: 0, count }];
    source.take(ReplicaMessage::Need(all(1))).unwrap();
    assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Chunks { .. })));
    source.take(ReplicaMessage::Want { segment: 0, chunks: all(512) }).unwrap();
    let mut given_up = false;
    for _ in 0..20 {
        given_up |= matches!(source.produce().unwrap(), Some(SourceMessage::Abort));
        if given_up {
            break;
        }
    }
    assert!(given_up);
    // They were on their way before the replica knew.
    source.take(ReplicaMessage::Want { segment: 0, chunks: all(1) }).unwrap();
    assert!(source.produce().unwrap().is_none(), "the replica has not heard of it");
    source.take(ReplicaMessage::Placed { end: 1 }).unwrap();
    source.take(ReplicaMessage::Need(all(1))).unwrap();
    let (kind, message) = (silt_format::ErrorKind::Interrupted, String::new());
    source.take(ReplicaMessage::Failed { kind, message }).unwrap();
    assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Begin(_))));
    source.take(ReplicaMessage::Ready { parent: None }).unwrap();
    assert!(matches!(source.produce().unwrap(), Some(SourceMessage::Segments(_))));
    let outcome = &source.report().snapshots[0].outcome;
    assert!(matches!(outcome, Outcome::Failed(silt_format::ErrorKind::Corrupt, _)));
}
