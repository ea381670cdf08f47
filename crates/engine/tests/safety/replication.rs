//! Replication whose ends crash, sleep, or lose what is being sent.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use silt_format::replica::SourceMessage;
use silt_format::{Error, ErrorKind, Result};
use silt_replicate::{Outcome, ReplicateOptions, ReplicateReport, replicate_watched};
use silt_storage::{Counted, CrashStorage, CrashingOperation, MemoryStorage};
use siltstone::{
    CheckOptions, DataCheck, DeleteMethod, Protection, ReclaimOptions, Repository, Selector,
    SweepOptions,
};

use crate::kit::{self, World};

/// A source with two snapshots of one series, and the images of both.
struct Source {
    storage: Arc<MemoryStorage>,
    repository: Repository,
    images: Vec<Vec<u8>>,
}

fn source(seed: u64) -> Source {
    let storage = Arc::new(MemoryStorage::new());
    let world = World::new(seed);
    let repository = kit::init(storage.clone(), &world).unwrap();
    let first = kit::image(seed, 1200);
    let second = kit::changed(&first, seed + 1);
    for image in [&first, &second] {
        world.pass_seconds(60);
        kit::backup(&repository, "vm", image).unwrap();
    }
    Source { storage, repository, images: vec![first, second] }
}

fn empty_replica(source: &Source) -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::new());
    let context = World::new(1).context();
    source.repository.init_replica(storage.clone(), context, &Protection::None, None).unwrap();
    storage
}

fn send(from: &Repository, to: &Repository) -> Result<ReplicateReport> {
    send_watched(from, to, &mut |_| Ok(()))
}

fn send_watched(
    from: &Repository,
    to: &Repository,
    watch: &mut dyn FnMut(&SourceMessage) -> Result<()>,
) -> Result<ReplicateReport> {
    replicate_watched(from, to, ReplicateOptions::default(), kit::options(), watch)
}

/// Every snapshot restores to its image, all data is intact, and a reclaim leaves nothing over.
fn is_whole(replica: &Repository, images: &[Vec<u8>]) {
    let head = &replica.heads(&["vm".to_owned()]).unwrap()[0];
    assert_eq!(head.snapshots.len(), images.len());
    for (entry, image) in head.snapshots.iter().zip(images) {
        let found = kit::find(replica, &Selector::Id(entry.id.to_string())).unwrap();
        assert!(kit::restore(replica, &found).unwrap() == *image);
    }
    replica.sweep("vm", SweepOptions::default()).unwrap();
    let options = ReclaimOptions { grace_s: 0, dead_share_min: 0.0, ..ReclaimOptions::default() };
    replica.reclaim("vm", &options).unwrap();
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = replica.check(&all).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(report.unreferenced, 0);
}

#[test]
fn a_replica_may_stop_at_every_operation() {
    let source = source(1);
    let mut adopted = 0;
    for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
        for succeeding in 0.. {
            let survivor = empty_replica(&source);
            let dead = Arc::new(Mutex::new(HashSet::from([7])));
            let crashing =
                CrashStorage::new(survivor.clone(), succeeding, Counted::Mutations, struck);
            let world = World::process(succeeding + 2, 7, "there", &dead);
            let replica = kit::open(Arc::new(crashing), &world).unwrap();
            let first = send(&source.repository, &replica);
            let is_done = first.is_ok_and(|report| report.is_complete());

            let replica = kit::open(survivor, &World::process(99, 9, "there", &dead)).unwrap();
            let mut sent = 0;
            let report = send_watched(&source.repository, &replica, &mut |message| {
                if let SourceMessage::Data(bytes) = message {
                    sent += bytes.len();
                }
                Ok(())
            });
            assert!(report.unwrap().is_complete());
            adopted += usize::from(succeeding > 3 && sent < source.images[0].len() / 2);
            is_whole(&replica, &source.images);
            if is_done {
                assert!(succeeding > 8, "{succeeding}");
                break;
            }
        }
    }
    assert!(adopted > 5, "what had arrived is used: {adopted}");
}

#[test]
fn a_replication_may_end_at_every_message() {
    let source = source(5);
    let survivor = empty_replica(&source);
    for last in 0.. {
        let dead = Arc::new(Mutex::new(HashSet::from([7])));
        let replica =
            kit::open(survivor.clone(), &World::process(last + 2, 7, "there", &dead)).unwrap();
        let mut left = last;
        let ended = send_watched(&source.repository, &replica, &mut |_| {
            left = left
                .checked_sub(1)
                .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the line is cut"))?;
            Ok(())
        });
        drop(replica);
        if ended.is_ok() {
            assert!(last > 1, "{last}");
            break;
        }
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let replica = kit::open(survivor, &World::new(99)).unwrap();
    assert!(send(&source.repository, &replica).unwrap().is_complete());
    is_whole(&replica, &source.images);
}

/// While a message is on its way for an hour, somebody deletes at the source, and reclaims.
#[test]
fn what_is_deleted_while_it_is_sent_is_sent_whole_or_not_at_all() {
    let mut gone = 0;
    for sleeps_at in 0..40 {
        let source = source(7);
        let replica = empty_replica(&source);
        let replica = kit::open(replica, &World::new(3)).unwrap();
        let mut at = 0;
        let report = send_watched(&source.repository, &replica, &mut |_| {
            at += 1;
            if at == sleeps_at {
                let elsewhere = kit::open(source.storage.clone(), &World::new(44)).unwrap();
                let head = elsewhere.heads(&["vm".to_owned()]).unwrap().remove(0);
                let id = head.snapshots[0].id;
                elsewhere.delete("vm", &[id], DeleteMethod::Exact).unwrap();
                let options =
                    ReclaimOptions { grace_s: 0, dead_share_min: 0.0, ..ReclaimOptions::default() };
                elsewhere.reclaim("vm", &options).unwrap();
            }
            Ok(())
        });
        let report = report.unwrap();
        let is_gone = report.snapshots.iter().any(|s| matches!(s.outcome, Outcome::Gone));
        gone += usize::from(is_gone);
        assert!(
            report.snapshots.iter().all(|s| !matches!(s.outcome, Outcome::Failed(..))),
            "{report:?}"
        );
        // The second one is always sent.
        let sent = report.snapshots.iter().filter(|s| matches!(s.outcome, Outcome::Sent(_)));
        is_whole(&replica, &source.images[2 - sent.count()..]);
    }
    assert!(gone > 0);
}

/// While the replica waits for a message, its series is deleted from, and reclaimed, by somebody
/// who takes the lease for that of a dead process.
#[test]
fn a_replica_that_is_reclaimed_while_it_sleeps_commits_nothing_that_is_gone() {
    for sleeps_at in 1..40 {
        let source = source(9);
        let storage = empty_replica(&source);
        let dead = Arc::new(Mutex::new(HashSet::new()));
        let replica = kit::open(storage.clone(), &World::process(3, 7, "there", &dead)).unwrap();
        let mut at = 0;
        let report = send_watched(&source.repository, &replica, &mut |_| {
            at += 1;
            if at == sleeps_at {
                dead.lock().unwrap().insert(7);
                let world = World::process(55, 9, "there", &dead);
                world.pass_seconds(7200);
                let elsewhere = kit::open(storage.clone(), &world).unwrap();
                let heads = elsewhere.heads(&[]).unwrap();
                for entry in heads.iter().flat_map(|head| &head.snapshots) {
                    elsewhere.delete("vm", &[entry.id], DeleteMethod::Exact).unwrap();
                }
                if !heads.is_empty() {
                    let options = ReclaimOptions { grace_s: 0, ..ReclaimOptions::default() };
                    elsewhere.reclaim("vm", &options).unwrap();
                }
            }
            Ok(())
        });
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let checked = kit::open(storage.clone(), &World::new(77)).unwrap();
        let checked = checked.check(&all).unwrap();
        assert!(checked.damage.is_empty(), "{sleeps_at}: {:?} {report:?}", checked.damage);
        for entry in replica.heads(&[]).unwrap().iter().flat_map(|head| head.snapshots.clone()) {
            let found = kit::find(&replica, &Selector::Id(entry.id.to_string())).unwrap();
            let restored = kit::restore(&replica, &found).unwrap();
            assert!(source.images.contains(&restored), "{sleeps_at}");
        }
    }
}

#[test]
fn of_a_damaged_source_the_whole_snapshots_are_sent() {
    let source = source(11);
    // Only the second snapshot has the containers that were written last.
    let containers = silt_storage::list_all(&*source.storage, "containers/", None);
    let last = containers.map(|item| item.unwrap().0).max().unwrap();
    source.storage.damage(&last, |bytes| bytes[200] ^= 1).unwrap();
    let fresh = kit::open(source.storage.clone(), &World::new(2)).unwrap();
    let replica = kit::open(empty_replica(&source), &World::new(3)).unwrap();
    let report = send(&fresh, &replica).unwrap();
    let outcomes: Vec<_> = report.snapshots.iter().map(|s| &s.outcome).collect();
    assert!(matches!(outcomes[0], Outcome::Sent(_)), "{outcomes:?}");
    let Outcome::Failed(ErrorKind::Corrupt, why) = outcomes[1] else { panic!("{outcomes:?}") };
    assert!(why.contains("containers/"), "{why}");
    is_whole(&replica, &source.images[..1]);
}
