//! Replication whose ends crash, sleep, or lose what is being sent.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::replica::SourceMessage;
use silt_format::{Error, ErrorKind, KdfCost, KeyLabel, Result};
use silt_replicate::{Outcome, ReplicateOptions, ReplicateReport, replicate_watched};
use silt_storage::{
    ByteRange, Counted, CrashStorage, CrashingOperation, Guarantees, Key, ListPage, MemoryStorage,
    ObjectMeta, PutMode, Storage,
};
use siltstone::{
    CheckOptions, DataCheck, DeleteMethod, KeyAccess, Protection, ReclaimOptions, Repository,
    Selector, SweepOptions,
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

/// The destinations of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// It has the secret of the source.
    Replica,
    /// It has another one.
    Foreign,
    /// It has another one, and a key that only writes.
    WriteOnly,
}

const ALL: [To; 3] = [To::Replica, To::Foreign, To::WriteOnly];

fn empty(source: &Source, to: To) -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::new());
    let context = World::new(1000).context();
    match to {
        To::Replica => {
            let none = Protection::None;
            source.repository.init_replica(storage.clone(), context, &none, None).unwrap();
        }
        To::Foreign => drop(kit::init(storage.clone(), &World::new(1000)).unwrap()),
        To::WriteOnly => {
            let (cost, label) =
                (KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }, KeyLabel::default());
            let password = FULL.to_vec();
            let protection = Protection::Password { password, cost, label: label.clone() };
            let made = Repository::init(storage.clone(), context, kit::config(), &protection, None);
            let access = KeyAccess::write_only(&["*"]);
            made.unwrap().add_key(kit::PASSWORD, cost, &label, &access).unwrap();
        }
    }
    storage
}

/// The password of the key that can do everything.
const FULL: &[u8] = b"full";

/// Opens a destination with the key that can do everything; `kit::open` takes the other one.
fn open_full(storage: &Arc<MemoryStorage>, world: &Arc<World>) -> Repository {
    Repository::open(storage.clone(), world.context(), || Ok(FULL.to_vec())).unwrap()
}

fn send(from: &Repository, to: &Repository) -> Result<ReplicateReport> {
    send_watched(from, to, &mut |_| Ok(()))
}

fn send_watched(
    from: &Repository,
    to: &Repository,
    watch: &mut dyn FnMut(&SourceMessage) -> Result<()>,
) -> Result<ReplicateReport> {
    // With one secret, this changes nothing.
    let options = ReplicateOptions { foreign: true, ..ReplicateOptions::default() };
    replicate_watched(from, to, options, kit::options(), watch)
}

/// Every snapshot restores to its image, all data is intact, and a reclaim leaves nothing over.
fn is_whole(storage: &Arc<MemoryStorage>, images: &[Vec<u8>]) {
    let world = World::new(98);
    // Leases of dead processes have ended.
    world.pass_seconds(3600);
    let replica = &open_full(storage, &world);
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
    ALL.into_iter().for_each(stop_at_every_operation);
}

fn stop_at_every_operation(to: To) {
    let source = source(1);
    let mut adopted = 0;
    for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
        for succeeding in 0.. {
            let survivor = empty(&source, to);
            let dead = Arc::new(Mutex::new(HashSet::from([7])));
            let crashing =
                CrashStorage::new(survivor.clone(), succeeding, Counted::Mutations, struck);
            let world = World::process(succeeding + 2, 7, "there", &dead);
            let replica = kit::open(Arc::new(crashing), &world).unwrap();
            let first = send(&source.repository, &replica);
            let is_done = first.is_ok_and(|report| report.is_complete());

            let replica =
                kit::open(survivor.clone(), &World::process(99, 9, "there", &dead)).unwrap();
            let mut sent = 0;
            let report = send_watched(&source.repository, &replica, &mut |message| {
                if let SourceMessage::Data(bytes) = message {
                    sent += bytes.len();
                }
                Ok(())
            });
            assert!(report.unwrap().is_complete());
            adopted += usize::from(succeeding > 3 && sent < source.images[0].len() / 2);
            is_whole(&survivor, &source.images);
            if is_done {
                assert!(succeeding > 8, "{succeeding}");
                break;
            }
        }
    }
    // A key that only writes can't verify what had arrived.
    assert!(adopted > 5 || to == To::WriteOnly, "what had arrived is used: {adopted}");
}

#[test]
fn a_replication_may_end_at_every_message() {
    ALL.into_iter().for_each(end_at_every_message);
}

fn end_at_every_message(to: To) {
    let source = source(5);
    let survivor = empty(&source, to);
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
    let replica = kit::open(survivor.clone(), &World::new(99)).unwrap();
    assert!(send(&source.repository, &replica).unwrap().is_complete());
    is_whole(&survivor, &source.images);
}

/// While a message is on its way for an hour, somebody deletes at the source, and reclaims.
#[test]
fn what_is_deleted_while_it_is_sent_is_sent_whole_or_not_at_all() {
    ALL.into_iter().for_each(delete_while_it_is_sent);
}

fn delete_while_it_is_sent(to: To) {
    let mut gone = 0;
    for sleeps_at in 0..40 {
        let source = source(7);
        let storage = empty(&source, to);
        let replica = kit::open(storage.clone(), &World::new(3)).unwrap();
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
        is_whole(&storage, &source.images[2 - sent.count()..]);
    }
    assert!(gone > 0);
}

/// Deletes the whole series of a replica whose process is taken for dead, and reclaims.
fn take_everything(storage: &Arc<MemoryStorage>, dead: &Arc<Mutex<HashSet<u32>>>) {
    dead.lock().unwrap().insert(7);
    let world = World::process(55, 9, "there", dead);
    world.pass_seconds(7200);
    let elsewhere = open_full(storage, &world);
    let heads = elsewhere.heads(&[]).unwrap();
    for entry in heads.iter().flat_map(|head| &head.snapshots) {
        elsewhere.delete("vm", &[entry.id], DeleteMethod::Exact).unwrap();
    }
    if !heads.is_empty() {
        let options = ReclaimOptions { grace_s: 0, ..ReclaimOptions::default() };
        elsewhere.reclaim("vm", &options).unwrap();
    }
}

/// No snapshot lacks anything, and each that is there is one of the source's.
fn nothing_is_missing(storage: &Arc<MemoryStorage>, source: &Source, when: &str) {
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let replica = open_full(storage, &World::new(77));
    let checked = replica.check(&all).unwrap();
    assert!(checked.damage.is_empty(), "{when}: {:?}", checked.damage);
    for entry in replica.heads(&[]).unwrap().iter().flat_map(|head| head.snapshots.clone()) {
        let found = kit::find(&replica, &Selector::Id(entry.id.to_string())).unwrap();
        assert!(source.images.contains(&kit::restore(&replica, &found).unwrap()), "{when}");
    }
}

/// While the replica waits for a message, its series is deleted from, and reclaimed, by somebody
/// who takes the lease for that of a dead process.
#[test]
fn a_replica_that_is_reclaimed_while_it_sleeps_commits_nothing_that_is_gone() {
    for (to, sleeps_at) in ALL.into_iter().flat_map(|to| (1..40).map(move |at| (to, at))) {
        let source = source(9);
        let storage = empty(&source, to);
        let dead = Arc::new(Mutex::new(HashSet::new()));
        let replica = kit::open(storage.clone(), &World::process(3, 7, "there", &dead)).unwrap();
        let mut at = 0;
        let report = send_watched(&source.repository, &replica, &mut |_| {
            at += 1;
            if at == sleeps_at {
                take_everything(&storage, &dead);
            }
            Ok(())
        });
        nothing_is_missing(&storage, &source, &format!("{to:?} {sleeps_at} {report:?}"));
    }
}

/// A storage whose user sleeps right before one of its changes.
pub struct Sleeping<F> {
    pub inner: Arc<MemoryStorage>,
    pub left: Mutex<usize>,
    pub meanwhile: F,
}

impl<F: Fn() + Send + Sync> Sleeping<F> {
    fn change(&self) {
        let mut left = self.left.lock().unwrap();
        if *left == 1 {
            (self.meanwhile)();
        }
        *left = left.saturating_sub(1);
    }
}

impl<F: Fn() + Send + Sync> Storage for Sleeping<F> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.change();
        self.inner.put_bytes(key, body, mode)
    }
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.inner.get(key, range, into)
    }
    fn settle(&self, key: &Key) -> Result<()> {
        self.inner.settle(key)
    }
    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key)
    }
    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.change();
        self.inner.delete(keys)
    }
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.inner.list(prefix, after)
    }
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// The same while it sleeps right before it changes something in its storage.
#[test]
fn a_replica_that_sleeps_before_a_change_commits_nothing_that_is_gone() {
    for to in ALL {
        for sleeps_at in 1.. {
            let source = source(9);
            let storage = empty(&source, to);
            let dead = Arc::new(Mutex::new(HashSet::new()));
            let slept = Arc::new(AtomicBool::new(false));
            let meanwhile = {
                let (storage, dead, slept) = (storage.clone(), dead.clone(), slept.clone());
                move || {
                    take_everything(&storage, &dead);
                    slept.store(true, Ordering::SeqCst);
                }
            };
            let left = Mutex::new(sleeps_at);
            let sleeping = Sleeping { inner: storage.clone(), left, meanwhile };
            let world = World::process(3, 7, "there", &dead);
            let replica = kit::open(Arc::new(sleeping), &world).unwrap();
            let report = send(&source.repository, &replica);
            nothing_is_missing(&storage, &source, &format!("{to:?} {sleeps_at} {report:?}"));
            if !slept.load(Ordering::SeqCst) {
                assert!(sleeps_at > 8, "{sleeps_at}");
                break;
            }
        }
    }
}

#[test]
fn of_a_damaged_source_the_whole_snapshots_are_sent() {
    ALL.into_iter().for_each(send_from_a_damaged_source);
}

fn send_from_a_damaged_source(to: To) {
    let source = source(11);
    // Only the second snapshot has the containers that were written last.
    let containers = silt_storage::list_all(&*source.storage, "containers/", None);
    let last = containers.map(|item| item.unwrap().0).max().unwrap();
    source.storage.damage(&last, |bytes| bytes[200] ^= 1).unwrap();
    let fresh = kit::open(source.storage.clone(), &World::new(2)).unwrap();
    let storage = empty(&source, to);
    let replica = kit::open(storage.clone(), &World::new(3)).unwrap();
    let report = send(&fresh, &replica).unwrap();
    let outcomes: Vec<_> = report.snapshots.iter().map(|s| &s.outcome).collect();
    assert!(matches!(outcomes[0], Outcome::Sent(_)), "{outcomes:?}");
    let Outcome::Failed(ErrorKind::Corrupt, why) = outcomes[1] else { panic!("{outcomes:?}") };
    assert!(why.contains("containers/"), "{why}");
    is_whole(&storage, &source.images[..1]);
}
