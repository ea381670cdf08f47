//! Destinations that refuse what they are sent, and ends of other versions.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::ErrorKind;
use silt_format::replica::{HELLO_BYTES, ReplicaRole};
use silt_replicate::{Connection, Outcome, ReplicateOptions, replicate};
use silt_storage::{Fault, FaultStorage, MemoryStorage, Operation, OperationKind};
use siltstone::{BackupOptions, Protection, Repository};

use crate::hostile_sources::is_sound;
use crate::kit::*;

/// A snapshot whose origin can't be read now may be the copy of one that the source would send.
#[test]
fn a_series_whose_snapshots_cannot_be_read_now_is_not_sent() {
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, 9000))]);
    let there = replica_of(&here);
    assert!(send(&here, &there).is_complete());
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied] {
        let failures = AtomicU64::new(0);
        let rule = move |operation: &Operation, _: u64| match operation {
            Operation::Get { key, .. }
                if key.as_str().starts_with("snapshots/")
                    && failures.fetch_add(1, Ordering::SeqCst) == 0 =>
            {
                Fault::FailBefore(kind)
            }
            _ => Fault::Pass,
        };
        let fails_once = Arc::new(FaultStorage::new(there.storage.clone(), rule));
        let fails_once = Repository::open(fails_once, context(), || Ok(Vec::new())).unwrap();
        let options = ReplicateOptions::default();
        let report = replicate(&here.repository, &fails_once, options, BackupOptions::default());
        let report = report.unwrap();
        assert!(report.snapshots.is_empty() && !report.is_complete(), "{report:?}");
        assert!(report.refused[0].1.contains("injected failure before Get"), "{report:?}");
    }
    let report = send(&here, &there);
    assert!(report.is_complete() && report.present == 1, "{report:?}");
    assert_eq!(there.repository.heads(&[]).unwrap()[0].snapshots.len(), 1);
}

/// Storage is full from some write on, and has room again later.
#[test]
fn a_full_destination_is_named_and_nothing_is_lost() {
    let here = site();
    let mut disk = noise(1, SEGMENT + 9000);
    for _ in 0..2 {
        back_up(&here, "web1", &[("root", &disk)]);
        disk[70_000..90_000].fill(1);
    }
    let (mut refused, mut partly) = (0, 0);
    for room in 0.. {
        let storage = Arc::new(MemoryStorage::new());
        drop(here.repository.init_replica(storage.clone(), context(), &Protection::None, None));
        let written = AtomicU64::new(0);
        let rule = move |operation: &Operation, _: u64| {
            let is_write = operation.kind() == OperationKind::Put;
            if is_write && written.fetch_add(1, Ordering::SeqCst) >= room {
                return Fault::FailBefore(ErrorKind::Denied);
            }
            Fault::Pass
        };
        let full = Arc::new(FaultStorage::new(storage.clone(), rule));
        let full = Repository::open(full, context(), || Ok(Vec::new())).unwrap();
        let options = ReplicateOptions::default();
        let report = replicate(&here.repository, &full, options, BackupOptions::default());
        let report = report.unwrap();
        drop(full);
        let mut sent = 0;
        for snapshot in &report.snapshots {
            match &snapshot.outcome {
                Outcome::Sent(_) => sent += 1,
                Outcome::Failed(ErrorKind::Denied, why) => {
                    assert!(!why.is_empty());
                    refused += 1;
                }
                other => panic!("{room}: {other:?}"),
            }
        }
        partly += usize::from(sent == 1);
        let opened = Repository::open(storage.clone(), context(), || Ok(Vec::new())).unwrap();
        let there = Site { repository: opened, storage };
        assert!(send(&here, &there).is_complete(), "{room}");
        is_sound(&there, &format!("room for {room}"));
        if sent == 2 {
            assert!(room > 8 && refused > 8 && partly > 2, "{room} {refused} {partly}");
            return;
        }
    }
}

/// What the destination could not take for a while, it gets by the next replication.
#[test]
fn a_snapshot_that_failed_once_is_not_left_out_for_good() {
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, SEGMENT))]);
    back_up(&here, "web1", &[("root", &noise(2, 9000))]);
    back_up(&here, "web2", &[("root", &noise(3, 9000))]);
    let mut waited = 0;
    for broken in 0.. {
        let storage = Arc::new(MemoryStorage::new());
        drop(here.repository.init_replica(storage.clone(), context(), &Protection::None, None));
        let written = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&written);
        let rule = move |operation: &Operation, _: u64| {
            let is_write = operation.kind() == OperationKind::Put;
            if is_write && count.fetch_add(1, Ordering::SeqCst) == broken {
                return Fault::FailBefore(ErrorKind::Denied);
            }
            Fault::Pass
        };
        let faulty = Arc::new(FaultStorage::new(storage.clone(), rule));
        let faulty = Repository::open(faulty, context(), || Ok(Vec::new())).unwrap();
        let options = ReplicateOptions::default();
        let report = replicate(&here.repository, &faulty, options, BackupOptions::default());
        let report = report.unwrap();
        drop(faulty);
        for snapshot in &report.snapshots {
            if let Outcome::Failed(_, why) = &snapshot.outcome {
                waited += u32::from(why.contains("waits for an older snapshot"));
            }
        }
        let opened = Repository::open(storage.clone(), context(), || Ok(Vec::new())).unwrap();
        let there = Site { repository: opened, storage };
        assert!(send(&here, &there).is_complete(), "{broken}");
        let heads = there.repository.heads(&[]).unwrap();
        let copies: usize = heads.iter().map(|head| head.snapshots.len()).sum();
        assert_eq!(copies, 3, "write {broken} failed: {report:?}");
        if written.load(Ordering::SeqCst) <= broken {
            assert!(broken > 8 && waited > 2, "{broken} {waited}");
            return;
        }
    }
}

/// A backup of the series runs at the destination.
#[test]
fn a_busy_series_is_refused_and_the_others_are_sent() {
    let here = site();
    back_up(&here, "web1", &[("root", &noise(1, 50_000))]);
    back_up(&here, "web2", &[("root", &noise(2, 50_000))]);
    let there = replica_of(&here);
    let running = there.repository.backup("web1", BackupOptions::default()).unwrap();
    let report = send(&here, &there);
    let outcomes: Vec<_> = report.snapshots.iter().map(|s| (&*s.series, &s.outcome)).collect();
    for (series, outcome) in outcomes {
        match outcome {
            Outcome::Failed(ErrorKind::Busy, why) => {
                assert!(series == "web1" && why.contains("'web1'"), "{why}");
            }
            Outcome::Sent(_) => assert_eq!(series, "web2"),
            other => panic!("{series}: {other:?}"),
        }
    }
    drop(running);
    assert_eq!(send(&here, &there).snapshots.len(), 1);
    is_sound(&there, "after the backup");
}

/// The version of the protocol is in both hellos.
#[test]
fn an_end_of_another_version_is_told_so_or_spoken_to() {
    let here = site();
    let there = replica_of(&here);
    for (version, is_spoken) in [(0_u16, false), (1, true), (9, true), (u16::MAX, true)] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // What a replica of this version says first.
        let (other, mut wire) = UnixStream::pair().unwrap();
        wire.write_all(&[0; HELLO_BYTES]).unwrap();
        let writer = Box::new(other.try_clone().unwrap());
        let stream = stream_of(other, writer);
        drop(Connection::open(&there.repository, ReplicaRole::Replica, stream, 3));
        let mut hello = [0; HELLO_BYTES];
        wire.read_exact(&mut hello).unwrap();
        hello[10..12].copy_from_slice(&version.to_le_bytes());
        theirs.write_all(&hello).unwrap();
        let writer = Box::new(ours.try_clone().unwrap());
        let stream = stream_of(ours, writer);
        let opened = Connection::open(&here.repository, ReplicaRole::Source, stream, 3);
        match opened.err() {
            None => assert!(is_spoken, "{version}"),
            Some(error) => {
                assert!(!is_spoken && error.kind() == ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("version 0"), "{error}");
            }
        }
    }
}
