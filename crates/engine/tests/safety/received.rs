//! Deltas that a replication has brought are kept as deltas: whatever happens between its commit
//! and theirs, nothing is lost, and nothing leaks.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use silt_backup::ReplicaPeer;
use silt_format::replica::{ReplicaMessage, SourceMessage};
use silt_format::{Reference, Result};
use silt_replicate::{KeepDeltas, Replica, ReplicateOptions, ReplicateReport, Source};
use silt_storage::{Counted, CrashStorage, CrashingOperation, MemoryStorage};
use siltstone::{
    Context, DeleteMethod, OptimizeReport, Protection, ReceivedBases, Repository, Selector,
    SharePolicy, SweepOptions,
};

use crate::deletion::Series;
use crate::deltas::{self, OPTIONS, check, nothing_is_left, stored};
use crate::kit::{self, World};
use crate::replication::Sleeping;
use crate::shared;

/// A source that sends deltas, in the same process.
struct Sending<'s> {
    source: Source<'s>,
    answers: VecDeque<ReplicaMessage>,
    deltas: usize,
}

impl ReplicaPeer for Sending<'_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        self.answers.push_back(message);
        Ok(())
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        while let Some(answer) = self.answers.pop_front() {
            self.source.take(answer)?;
        }
        let message = self.source.produce()?.unwrap();
        self.deltas += usize::from(matches!(message, SourceMessage::Delta(_)));
        Ok(message)
    }
}

/// Replicates. Returns the number of deltas on the wire, too.
fn send(
    from: &Repository,
    to: &Repository,
    keep: Option<&KeepDeltas<'_>>,
) -> Result<(ReplicateReport, usize)> {
    let mut source = Source::new(from, ReplicateOptions::default())?;
    source.set_deltas(3);
    let mut peer = Sending { source, answers: VecDeque::new(), deltas: 0 };
    Replica::new(to, kit::options()).keeping(keep).serve(&mut peer)?;
    let Sending { source, deltas, .. } = peer;
    Ok((source.into_report(), deltas))
}

/// Replicates, and keeps deltas; `before` is done right before they are made.
fn send_keeping(
    from: &Repository,
    to: &Repository,
    before: &(dyn Fn() + Send + Sync),
) -> Result<(ReplicateReport, Vec<Result<OptimizeReport>>)> {
    let reports = Mutex::new(Vec::new());
    let keep = |context: &Context, received: &ReceivedBases| {
        before();
        let made = to.for_operation(context.clone()).optimize_received(received, &OPTIONS);
        reports.lock().unwrap().push(made);
        Ok(())
    };
    let (report, _) = send(from, to, Some(&keep))?;
    Ok((report, reports.into_inner().unwrap()))
}

/// A source with days that resemble each other.
struct Sites {
    source: Series,
    /// The replica, which has all days but the last.
    replica: Arc<MemoryStorage>,
}

impl Sites {
    fn new(days: u64) -> Self {
        let source = deltas::series(days - 1);
        let replica = Arc::new(MemoryStorage::new());
        let (context, none) = (World::new(1000).context(), Protection::None);
        source.repository.init_replica(replica.clone(), context, &none, None).unwrap();
        let sites = Self { source, replica };
        let (there, _) = sites.open(7, &Arc::default());
        for report in send_keeping(&sites.source.repository, &there, &|| ()).unwrap().1 {
            report.unwrap();
        }
        drop(there);
        let last = sites.source.images.last().unwrap().clone();
        sites.with_another_day(&kit::touched(&last, 777))
    }

    /// The source with one more backup.
    fn with_another_day(mut self, image: &[u8]) -> Self {
        let report = kit::backup(&self.source.repository, "vm", image).unwrap();
        self.source.ids.push(report.snapshot.id);
        self.source.images.push(image.to_vec());
        self.source.world.pass_seconds(86_400);
        self
    }

    /// A process at a copy of the replica.
    fn open(&self, id: u64, dead: &Arc<Mutex<HashSet<u32>>>) -> (Repository, Arc<World>) {
        opened(&self.replica, id, dead)
    }

    /// The days of the replica, all of which must restore.
    fn days(&self, replica: &Repository) -> Vec<usize> {
        let at = |repository: &Repository| {
            repository.head(repository.series_id("vm")).unwrap().unwrap().snapshots
        };
        let times: Vec<i64> = at(&self.source.repository).iter().map(|it| it.time_ns).collect();
        let mut days = Vec::new();
        for entry in at(replica) {
            let day = times.iter().position(|time_ns| *time_ns == entry.time_ns).unwrap();
            let found = kit::find(replica, &Selector::Id(entry.id.to_string())).unwrap();
            assert!(kit::restore(replica, &found).unwrap() == self.source.images[day], "{day}");
            days.push(day);
        }
        days
    }
}

fn opened(
    storage: &Arc<MemoryStorage>,
    id: u64,
    dead: &Arc<Mutex<HashSet<u32>>>,
) -> (Repository, Arc<World>) {
    let world = World::process(1000 + id, u32::try_from(id).unwrap(), "there", dead);
    world.pass_seconds(2_000_000);
    (kit::open(storage.clone(), &world).unwrap(), world)
}

fn bytes(storage: &MemoryStorage) -> u64 {
    let items = silt_storage::list_all(storage, "containers/", None);
    items.map(|item| item.unwrap().1).sum()
}

#[test]
fn what_came_as_deltas_is_stored_as_deltas() {
    let whole = Sites::new(2);
    let (there, world) = whole.open(9, &Arc::default());
    let (report, on_the_wire) = send(&whole.source.repository, &there, None).unwrap();
    assert!(report.is_complete() && on_the_wire > 0);
    assert_eq!(stored(&there).0.len(), 0, "unless it is wanted, nothing becomes a delta");
    assert!(world.warnings.lock().unwrap().is_empty());

    let sites = Sites::new(5);
    let before = bytes(&sites.replica);
    let (there, world) = sites.open(9, &Arc::default());
    let (deltas_before, _) = stored(&there);
    assert!(deltas_before.len() > 60, "those of the first days: {}", deltas_before.len());
    let (report, made) = send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
    assert!(report.is_complete());
    let made = made.into_iter().next().unwrap().unwrap();
    assert!(made.deltas > 10 && made.rewritten_bytes * 4 < made.removed_bytes, "{made:?}");
    assert_eq!(made.removed_bytes - made.rewritten_bytes, made.saved_bytes());
    assert_eq!(bytes(&sites.replica) - before, made.rewritten_bytes);
    let (deltas, _) = stored(&there);
    assert_eq!(deltas.len() as u64, deltas_before.len() as u64 + made.deltas);
    // A search through everything finds hardly more.
    let dry = siltstone::OptimizeOptions { dry_run: true, ..OPTIONS };
    let more = there.optimize("vm", &dry).unwrap();
    assert!(more.deltas * 20 <= deltas.len() as u64, "{more:?} {}", deltas.len());
    assert_eq!(sites.days(&there), [0, 1, 2, 3, 4]);
    nothing_is_left(&there);
    assert_eq!(sites.days(&there), [0, 1, 2, 3, 4]);
    assert!(world.warnings.lock().unwrap().is_empty());
}

/// The chunks that deltas are applied to.
fn bases(repository: &Repository) -> BTreeSet<u64> {
    stored(repository).0.iter().map(|(_, base)| base.bits()).collect()
}

#[test]
fn bases_outlive_the_snapshots_that_they_came_with() {
    let sites = Sites::new(3);
    let (there, _) = sites.open(9, &Arc::default());
    send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
    let head = there.head(there.series_id("vm")).unwrap().unwrap();
    let old: Vec<_> = head.snapshots[..2].iter().map(|entry| entry.id).collect();
    let before = bases(&there);
    there.delete("vm", &old, DeleteMethod::Exact).unwrap();
    let options = siltstone::ReclaimOptions { leak_share_max: 1.0, ..kit::THOROUGH };
    there.reclaim("vm", &options).unwrap();
    assert_eq!(sites.days(&there), [2]);
    assert!(bases(&there).is_subset(&before) && !bases(&there).is_empty());
    nothing_is_left(&there);
    assert_eq!(sites.days(&there), [2]);
}

/// A replication that claims containers to be new which the parent's chunks are in: what is
/// rewritten is no base.
#[test]
fn a_chunk_that_may_become_a_delta_is_offered_to_none() {
    let sites = Sites::new(2);
    let (there, _) = sites.open(9, &Arc::default());
    let all = Mutex::new(None);
    let keep = |_: &Context, received: &ReceivedBases| {
        *all.lock().unwrap() = Some(received.clone());
        Ok(())
    };
    send(&sites.source.repository, &there, Some(&keep)).unwrap();
    let mut received = all.into_inner().unwrap().unwrap();
    received.first_container = 0;
    there.optimize_received(&received, &OPTIONS).unwrap();
    assert_eq!(sites.days(&there), [0, 1]);
    nothing_is_left(&there);
}

#[test]
fn a_replica_that_keeps_deltas_may_stop_at_every_operation() {
    let sites = Sites::new(3);
    let mut made = 0;
    for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
        for succeeding in 0.. {
            let survivor = Arc::new(sites.replica.snapshot());
            let dead = Arc::new(Mutex::new(HashSet::from([7])));
            let crashing =
                CrashStorage::new(survivor.clone(), succeeding, Counted::Mutations, struck);
            let world = World::process(succeeding + 2, 7, "there", &dead);
            world.pass_seconds(2_000_000);
            let replica = kit::open(Arc::new(crashing), &world).unwrap();
            let first = send_keeping(&sites.source.repository, &replica, &|| ());
            let is_done = first
                .is_ok_and(|(report, made)| report.is_complete() && made.iter().all(Result::is_ok));
            drop(replica);
            let (there, _) = opened(&survivor, 8, &dead);
            sites.days(&there);
            assert!(check(&there).damage.is_empty());
            let (report, _) = send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
            assert!(report.is_complete());
            assert_eq!(sites.days(&there), [0, 1, 2]);
            nothing_is_left(&there);
            assert_eq!(sites.days(&there), [0, 1, 2]);
            made += usize::from(!stored(&there).0.is_empty());
            if is_done {
                assert!(succeeding > 8, "{succeeding}");
                break;
            }
        }
    }
    assert!(made > 10, "{made}");
}

/// Deletes all but the newest snapshot of the series, and everything that nothing needs then.
fn forget_the_old(storage: &Arc<MemoryStorage>, dead: &Arc<Mutex<HashSet<u32>>>) {
    dead.lock().unwrap().insert(7);
    let (elsewhere, _) = opened(storage, 8, dead);
    let head = elsewhere.head(elsewhere.series_id("vm")).unwrap().unwrap();
    let old: Vec<_> = head.snapshots.iter().rev().skip(1).map(|entry| entry.id).collect();
    if !old.is_empty() {
        elsewhere.delete("vm", &old, DeleteMethod::Exact).unwrap();
    }
    elsewhere.sweep("vm", SweepOptions::default()).unwrap();
    elsewhere.reclaim("vm", &kit::THOROUGH).unwrap();
}

/// The replica sleeps right before a change, while the parent goes.
#[test]
fn a_replica_that_sleeps_makes_no_delta_of_what_is_gone() {
    let sites = Sites::new(3);
    for sleeps_at in 1.. {
        let storage = Arc::new(sites.replica.snapshot());
        let dead = Arc::new(Mutex::new(HashSet::new()));
        let slept = Arc::new(AtomicBool::new(false));
        let meanwhile = {
            let (storage, dead, slept) = (storage.clone(), dead.clone(), slept.clone());
            move || {
                forget_the_old(&storage, &dead);
                slept.store(true, Ordering::SeqCst);
            }
        };
        let sleeping = Sleeping { inner: storage.clone(), left: Mutex::new(sleeps_at), meanwhile };
        let world = World::process(3, 7, "there", &dead);
        world.pass_seconds(2_000_000);
        let sleeper = kit::open(Arc::new(sleeping), &world).unwrap();
        let done = send_keeping(&sites.source.repository, &sleeper, &|| ());
        let (there, _) = opened(&storage, 9, &dead);
        sites.days(&there);
        let report = check(&there);
        assert!(report.damage.is_empty(), "{sleeps_at} {done:?} {report:?}");
        nothing_is_left(&there);
        sites.days(&there);
        if !slept.load(Ordering::SeqCst) {
            assert!(done.unwrap().1.iter().all(Result::is_ok));
            assert!(sleeps_at > 10, "{sleeps_at}");
            return;
        }
    }
}

/// Between the commit of the snapshot and that of its deltas, others do something.
fn between(meanwhile: fn(&Sites, &Repository)) -> (Sites, Repository, OptimizeReport) {
    let sites = Sites::new(3);
    let (there, _) = sites.open(9, &Arc::default());
    let done = send_keeping(&sites.source.repository, &there, &|| {
        let (other, _) = sites.open(8, &Arc::default());
        meanwhile(&sites, &other);
    });
    let (report, mut made) = done.unwrap();
    assert!(report.is_complete());
    let made = made.remove(0).unwrap();
    sites.days(&there);
    assert!(check(&there).damage.is_empty());
    nothing_is_left(&there);
    sites.days(&there);
    (sites, there, made)
}

#[test]
fn a_parent_that_goes_before_the_deltas_are_made_has_no_bases() {
    let (sites, there, made) = between(|sites, _| forget_the_old(&sites.replica, &Arc::default()));
    assert_eq!(sites.days(&there), [2]);
    assert_eq!(made.deltas, 0, "no chunk resembles another of its own day: {made:?}");
}

#[test]
fn deltas_that_another_makes_before_are_left_as_they_are() {
    let (sites, there, made) = between(|_, other| {
        assert!(other.optimize("vm", &OPTIONS).unwrap().deltas > 10);
    });
    assert_eq!(sites.days(&there), [0, 1, 2]);
    assert_eq!(made.deltas, 0, "{made:?}");
}

#[test]
fn bases_that_become_links_before_the_deltas_are_made_are_none() {
    let (sites, there, made) = between(|sites, other| {
        kit::backup(other, "twin", &sites.source.images[1]).unwrap();
        shared::build(other, SharePolicy::Duplicates).unwrap();
        assert!(other.repoint("vm", &shared::spool()).unwrap().linked_chunks > 100);
    });
    assert_eq!(sites.days(&there), [0, 1, 2]);
    let all = stored(&there).0;
    let of_links = |base: &Reference| base.store() != silt_format::PRIVATE_STORE;
    assert!(!all.iter().any(|(_, base)| of_links(base)), "{made:?}");
}

#[test]
fn chunks_of_the_shared_store_are_no_bases() {
    let source = deltas::series(0);
    let replica = Arc::new(MemoryStorage::new());
    let (context, none) = (World::new(1000).context(), Protection::None);
    source.repository.init_replica(replica.clone(), context, &none, None).unwrap();
    // Two other series have half of the first day, so that this half is in the shared store alone.
    let (common, own) = (kit::image(5, 400), kit::image(6, 400));
    let sites = Sites { source, replica }.with_another_day(&[&common[..], &own].concat());
    let (there, _) = sites.open(9, &Arc::default());
    for twin in ["one", "two"] {
        kit::backup(&there, twin, &common).unwrap();
    }
    shared::build(&there, SharePolicy::Duplicates).unwrap();
    send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
    let newest = kit::latest(&there, "vm").unwrap();
    let levels = &newest.snapshot.volumes[0].levels;
    assert!(levels.get(silt_format::Level::Shared) > 500_000, "{levels:?}");
    let sites = sites.with_another_day(&[&kit::touched(&common, 777)[..], &own].concat());
    let (_, made) = send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
    assert_eq!(made[0].as_ref().unwrap().deltas, 0);
    assert_eq!(sites.days(&there), [0, 1]);
    assert!(check(&there).damage.is_empty());
}

#[test]
fn a_damaged_base_at_the_replica_is_found_and_what_needs_it_is_sent_again() {
    let sites = Sites::new(3);
    let (there, _) = sites.open(9, &Arc::default());
    send_keeping(&sites.source.repository, &there, &|| ()).unwrap();
    let (deltas, _) = stored(&there);
    let (_, base) = deltas.iter().find(|(one, base)| one.container() != base.container()).unwrap();
    let head = there.head(there.series_id("vm")).unwrap().unwrap();
    let tag = head.containers.tag(base.container()).unwrap();
    let name = silt_format::names::container(head.series, base.container(), tag);
    let name = silt_storage::Key::new(name).unwrap();
    sites
        .replica
        .damage(&name, |bytes| (100..bytes.len() / 2).step_by(97).for_each(|at| bytes[at] ^= 1))
        .unwrap();
    let (fresh, _) = sites.open(10, &Arc::default());
    let report = check(&fresh);
    assert!(report.damage.iter().any(|damage| damage.object == name.as_str()), "{report:?}");
    let newest = kit::latest(&fresh, "vm").unwrap();
    assert!(kit::restore(&fresh, &newest).is_err(), "the newest day needs it");
    // The source still has the data: the next snapshot brings it again.
    let last = sites.source.images.last().unwrap().clone();
    let sites = sites.with_another_day(&kit::touched(&last, 888));
    let (report, made) = send_keeping(&sites.source.repository, &fresh, &|| ()).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let newest = kit::latest(&fresh, "vm").unwrap();
    assert!(kit::restore(&fresh, &newest).unwrap() == sites.source.images[3]);
}
