//! Deleting, undeleting and reclaiming: whatever happens, the living stay whole.

use std::sync::{Arc, Mutex};

use silt_format::{ErrorKind, Id, Result, names};
use silt_source::VolumeTarget;
use silt_storage::{Key, MemoryStorage, Storage, list_all};
use siltstone::{
    CheckOptions, DataCheck, DeleteMethod, ReclaimOptions, Repository, RestoreOptions, SweepOptions,
};

use crate::kit::{self, MemorySource, MemoryTarget, World};

const APPROXIMATE: DeleteMethod = DeleteMethod::Approximate;
/// A series of several days, oldest first.
pub struct Series {
    pub storage: Arc<MemoryStorage>,
    pub world: Arc<World>,
    pub repository: Repository,
    pub ids: Vec<Id>,
    pub images: Vec<Vec<u8>>,
}

impl Series {
    pub fn new(days: u64) -> Self {
        Self::of_blocks(MemoryStorage::new(), days, 900)
    }

    /// A series in this storage, of a disk with so many blocks.
    fn of_blocks(storage: MemoryStorage, days: u64, blocks: usize) -> Self {
        let (storage, world) = (Arc::new(storage), World::new(1));
        let repository = kit::init(storage.clone(), &world).unwrap();
        let (mut ids, mut images) = (Vec::new(), vec![kit::image(5, blocks)]);
        for day in 0..days {
            let image = images.last().unwrap().clone();
            ids.push(kit::backup(&repository, "vm", &image).unwrap().snapshot.id);
            images.push(kit::changed(&image, day));
            world.pass_seconds(86_400);
        }
        images.pop();
        Self { storage, world, repository, ids, images }
    }

    pub fn restored(&self, repository: &Repository, day: usize) -> Vec<u8> {
        let selector = siltstone::Selector::Id(self.ids[day].to_string());
        kit::restore(repository, &kit::find(repository, &selector).unwrap()).unwrap()
    }

    pub fn names(&self, prefix: &str) -> Vec<Key> {
        list_all(&*self.storage, prefix, None).map(|item| item.unwrap().0).collect()
    }

    fn warned(&self, what: &str) -> bool {
        self.world.warnings.lock().unwrap().iter().any(|warning| warning.contains(what))
    }
}

/// The listed days, each restored and compared.
pub fn whole_days(series: &Series, repository: &Repository) -> Vec<usize> {
    let head = repository.head(repository.series_id("vm")).unwrap().unwrap();
    let place = |id: Id| series.ids.iter().position(|known| *known == id).unwrap();
    let days: Vec<usize> = head.snapshots.iter().map(|entry| place(entry.id)).collect();
    for day in &days {
        assert!(series.restored(repository, *day) == series.images[*day], "day {day}");
    }
    days
}

fn crash_everywhere(prepare: fn(&Series), action: fn(&Series, &Repository) -> Result<()>) -> u32 {
    let series = Series::new(4);
    prepare(&series);
    let before = whole_days(&series, &series.repository);
    let complete = Arc::new(series.storage.snapshot());
    let world = World::process(5, 5, "here", &Arc::default());
    world.pass_seconds(864_000);
    let repository = kit::open(complete, &world).unwrap();
    action(&series, &repository).unwrap();
    let after = whole_days(&series, &repository);
    kit::each_crash(
        &series.storage,
        864_000,
        &|repository| action(&series, repository),
        &mut |repository| {
            let days = whole_days(&series, repository);
            assert!(days == before || days == after, "{days:?}");
            repository.reclaim("vm", &kit::THOROUGH).unwrap();
            let again = repository.reclaim("vm", &kit::THOROUGH).unwrap();
            assert_eq!((again.removed_objects, again.sweep.unwrap().dead_slots), (0, 0));
            assert_eq!(whole_days(&series, repository), days);
            let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
            let report = repository.check(&all).unwrap();
            assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
            kit::backup(repository, "vm", &series.images[0]).unwrap();
        },
    )
}

#[test]
fn a_deletion_may_stop_anywhere() {
    for method in [APPROXIMATE, DeleteMethod::Exact] {
        let action = match method {
            DeleteMethod::Approximate => |series: &Series, repository: &Repository| {
                repository.delete("vm", &series.ids[1..3], APPROXIMATE).map(drop)
            },
            DeleteMethod::Exact => |series: &Series, repository: &Repository| {
                repository.delete("vm", &series.ids[1..3], DeleteMethod::Exact).map(drop)
            },
        };
        assert!(crash_everywhere(|_| {}, action) >= 4);
    }
}

#[test]
fn an_undeletion_may_stop_anywhere() {
    let prepare = |series: &Series| {
        drop(series.repository.delete("vm", &series.ids[0..2], APPROXIMATE).unwrap());
    };
    let crashes =
        crash_everywhere(prepare, |series, repository| repository.undelete("vm", series.ids[1]));
    assert!(crashes >= 6, "{crashes}");
}

#[test]
fn a_reclaim_may_stop_anywhere() {
    let prepare = |series: &Series| {
        drop(series.repository.delete("vm", &series.ids[1..3], APPROXIMATE).unwrap());
    };
    let crashes = crash_everywhere(prepare, |_, repository| {
        repository.reclaim("vm", &kit::THOROUGH).map(drop)
    });
    assert!(crashes > 12, "{crashes}");
}

/// A target that does something before its first byte is written.
struct Interposed<'a> {
    target: MemoryTarget,
    before_first: Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
}

impl VolumeTarget for Interposed<'_> {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let action = self.before_first.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
        self.target.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.target.write_zeroes(offset, length)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.target.read_at(offset, buf)
    }
    fn can_read(&self) -> bool {
        true
    }
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Restores a day, and deletes and reclaims others in the middle of it.
fn restore_while_reclaiming(series: &Series, day: usize, doomed: &[Id]) -> Result<Vec<u8>> {
    let selector = siltstone::Selector::Id(series.ids[day].to_string());
    let found = kit::find(&series.repository, &selector).unwrap();
    let other = kit::open(series.storage.clone(), &series.world).unwrap();
    let target = Interposed {
        target: MemoryTarget::new(vec![0; series.images[day].len()]),
        before_first: Mutex::new(Some(Box::new(|| {
            other.delete("vm", doomed, APPROXIMATE).unwrap();
            let report = other.reclaim("vm", &kit::THOROUGH).unwrap();
            assert!(report.rewritten_containers + report.dropped_containers > 0);
        }))),
    };
    let options = RestoreOptions { jobs: 1, memory_bytes: 24 << 20, ..RestoreOptions::default() };
    let volume = &found.snapshot.volumes[0];
    series.repository.restore(found.volume(&volume.name).unwrap(), &target, options)?;
    Ok(target.target.bytes.into_inner().unwrap())
}

#[test]
fn a_restore_of_a_living_snapshot_outlives_a_reclaim() {
    let series = Series::new(5);
    let restored = restore_while_reclaiming(&series, 4, &series.ids[0..4]).unwrap();
    assert!(restored == series.images[4]);
}

/// Some of what the restore has planned is read before, and some of it is gone then.
#[test]
fn a_planned_restore_outlives_a_reclaim() {
    let series = Series::of_blocks(MemoryStorage::new().far(512 << 10), 5, 6000);
    let restored = restore_while_reclaiming(&series, 4, &series.ids[0..4]).unwrap();
    assert!(restored == series.images[4]);
}

#[test]
fn a_restore_of_a_snapshot_that_is_reclaimed_meanwhile_ends_well_or_says_why() {
    let series = Series::new(5);
    match restore_while_reclaiming(&series, 0, &series.ids[0..4]) {
        Ok(restored) => assert!(restored == series.images[0]),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("deleted and its space reclaimed"), "{text}");
        }
    }
}

/// An observer that does something when progress is first reported.
struct AtFirstProgress(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl siltstone::Observer for AtFirstProgress {
    fn event(&self, _: siltstone::OperationId, event: &siltstone::Event<'_>) {
        let is_progress = matches!(event, siltstone::Event::Progress(_));
        let action = is_progress.then(|| self.0.lock().unwrap().take()).flatten();
        if let Some(action) = action {
            action();
        }
    }
}

#[test]
fn a_check_takes_no_reclaim_for_damage() {
    let series = Series::new(5);
    let other = kit::open(series.storage.clone(), &series.world).unwrap();
    let doomed = series.ids[0..4].to_vec();
    let reclaimed = Arc::new(Mutex::new(0));
    let count = reclaimed.clone();
    let action = move || {
        other.delete("vm", &doomed, APPROXIMATE).unwrap();
        let report = other.reclaim("vm", &kit::THOROUGH).unwrap();
        *count.lock().unwrap() = report.rewritten_containers + report.dropped_containers;
    };
    let observer = Arc::new(AtFirstProgress(Mutex::new(Some(Box::new(action)))));
    let context = siltstone::Context::new(series.world.clone(), observer);
    let password = || Ok(kit::PASSWORD.to_vec());
    let repository = Repository::open(series.storage.clone(), context, password).unwrap();
    let all = CheckOptions { data: DataCheck::All, jobs: 1, ..CheckOptions::default() };
    let report = repository.check(&all).unwrap();
    assert!(*reclaimed.lock().unwrap() > 2);
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    kit::backup(&repository, "vm", &series.images[4]).unwrap();
    assert!(!series.warned("damaged"));
}

#[test]
fn a_backup_that_slept_through_a_reclaim_cannot_commit() {
    let series = Series::new(3);
    let there = World::process(50, 50, "there", &Arc::default());
    there.pass_seconds(300_000);
    let remote = kit::open(series.storage.clone(), &there).unwrap();
    let mut sleeper = remote.backup("vm", kit::options()).unwrap();
    sleeper.add_volume("disk", &MemorySource::new(&kit::image(77, 500)), None).unwrap();
    // Its lease ends; a deletion and a reclaim remove what it has uploaded and what it relied on.
    series.world.pass_seconds(100_000);
    series.repository.delete("vm", &series.ids, APPROXIMATE).unwrap();
    series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert_eq!(sleeper.finish().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(whole_days(&series, &series.repository), Vec::<usize>::new());
    let report = kit::backup(&series.repository, "vm", &series.images[2]).unwrap();
    let found = kit::latest(&series.repository, "vm").unwrap();
    assert_eq!(found.snapshot.id, report.snapshot.id);
    assert!(kit::restore(&series.repository, &found).unwrap() == series.images[2]);
}

#[test]
fn a_number_that_was_free_again_is_no_commit() {
    let series = Series::new(1);
    let there = World::process(50, 50, "there", &Arc::default());
    let remote = kit::open(series.storage.clone(), &there).unwrap();
    let mut sleeper = remote.backup("vm", kit::options()).unwrap();
    sleeper.add_volume("disk", &MemorySource::new(&series.images[0]), None).unwrap();
    series.world.pass_seconds(100_000);
    for _ in 0..30 {
        kit::backup(&series.repository, "vm", &series.images[0]).unwrap();
    }
    series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let id = series.repository.series_id("vm");
    let heads = series.names(&names::Numbered::Head.prefix(id));
    assert_eq!(heads.len(), 16, "old heads go, the newest stay");
    assert_eq!(sleeper.finish().unwrap_err().kind(), ErrorKind::Busy);
    // The head that it made is too old for anybody to read, and goes with the next reclaim.
    kit::backup(&series.repository, "vm", &series.images[0]).unwrap();
    series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert_eq!(series.names(&names::Numbered::Head.prefix(id)).len(), 16, "it leaves no head");
    assert_eq!(series.repository.head(id).unwrap().unwrap().snapshots.len(), 32);
}

/// The same where the sleeper's was to be the first head of all, so that there is none before it.
#[test]
fn the_first_number_that_was_free_again_is_no_commit() {
    let (world, storage) = (World::new(1), Arc::new(MemoryStorage::new()));
    let repository = kit::init(storage.clone(), &world).unwrap();
    let there = World::process(50, 50, "there", &Arc::default());
    let remote = kit::open(storage.clone(), &there).unwrap();
    let image = kit::image(5, 300);
    let mut sleeper = remote.backup("vm", kit::options()).unwrap();
    sleeper.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    world.pass_seconds(100_000);
    let backup = |_| kit::backup(&repository, "vm", &image).unwrap().snapshot.id;
    let ids: Vec<Id> = (0..18).map(backup).collect();
    repository.delete("vm", &ids, APPROXIMATE).unwrap();
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let id = repository.series_id("vm");
    let heads = || -> Vec<Key> {
        let prefix = names::Numbered::Head.prefix(id);
        list_all(&*storage, &prefix, None).map(|item| item.unwrap().0).collect()
    };
    let before = heads();
    let first = names::Numbered::Head.name(id, 1);
    assert!(before.iter().all(|name| name.as_str() != first), "the first is gone: {before:?}");
    let Err(error) = sleeper.finish() else { panic!("nobody can see what it has committed") };
    assert_eq!(error.kind(), ErrorKind::Busy);
    // The head that it made is too old for anybody to read, and goes with the next reclaim.
    kit::backup(&repository, "vm", &image).unwrap();
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert_eq!(heads().len(), before.len(), "it leaves no head");
    assert_eq!(repository.head(id).unwrap().unwrap().snapshots.len(), 1);
    let report = kit::backup(&repository, "vm", &image).unwrap();
    assert_eq!(kit::latest(&repository, "vm").unwrap().snapshot.id, report.snapshot.id);
    assert!(kit::restore(&repository, &kit::latest(&repository, "vm").unwrap()).unwrap() == image);
}

#[test]
fn what_is_protected_or_unknown_is_not_deleted_nor_what_is_named_beside_it() {
    let series = Series::new(3);
    series.repository.protect("vm", series.ids[1]).unwrap();
    let error = series.repository.delete("vm", &series.ids, APPROXIMATE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let unknown = [series.ids[0], Id(12)];
    let error = series.repository.delete("vm", &unknown, APPROXIMATE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(whole_days(&series, &series.repository), [0, 1, 2]);
    series.repository.unprotect("vm", series.ids[1]).unwrap();
    series.repository.delete("vm", &series.ids, APPROXIMATE).unwrap();
    assert_eq!(whole_days(&series, &series.repository), Vec::<usize>::new());
    let report = series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert!(report.purged.len() == 3 && report.freed_bytes() > 0);
    let id = series.repository.series_id("vm");
    let left = [names::containers(id), names::recipes(id), names::summaries(id)];
    assert!(left.iter().all(|prefix| series.names(prefix).is_empty()), "nothing is left");
    kit::backup(&series.repository, "vm", &series.images[1]).unwrap();
}

/// Flips a byte in the middle of the last object below a prefix.
fn damage(series: &Series, prefix: &str) {
    let name = series.names(prefix).pop().unwrap();
    let flip = |bytes: &mut Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    series.storage.damage(&name, flip).unwrap();
}

#[test]
fn damaged_vectors_and_dead_lists_make_it_exact() {
    let series = Series::new(4);
    let id = series.repository.series_id("vm");
    let newest = kit::latest(&series.repository, "vm").unwrap().snapshot.summary.unwrap();
    damage(&series, &names::summary(id, newest.id, 0));
    let report = series.repository.delete("vm", &series.ids[0..1], APPROXIMATE).unwrap();
    assert!(series.warned("found exactly instead") && report.dead_chunks > 0);
    damage(&series, &names::dead_lists(id));
    let report = series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert!(report.sweep.is_some() && report.rewritten_containers > 0);
    assert_eq!(whole_days(&series, &series.repository), [1, 2, 3]);
}

#[test]
fn damage_to_a_living_snapshot_stops_a_sweep_and_costs_nothing_else() {
    let series = Series::new(3);
    series.repository.delete("vm", &series.ids[0..1], APPROXIMATE).unwrap();
    let id = series.repository.series_id("vm");
    let containers = series.names(&names::containers(id));
    damage(&series, &names::recipes(id));
    assert!(
        series.repository.sweep("vm", SweepOptions::default()).is_err(),
        "what cannot be read may be needed"
    );
    let _ = series.repository.reclaim("vm", &kit::THOROUGH);
    assert_eq!(series.names(&names::containers(id)), containers);
}

#[test]
fn what_an_interrupted_backup_has_left_is_kept_for_the_next_one() {
    let series = Series::new(1);
    let image = kit::image(99, 1200);
    let interrupted = |name: &str| {
        let mut session = series.repository.backup(name, kit::options()).unwrap();
        session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    };
    interrupted("vm");
    let gentle = ReclaimOptions { grace_s: 3600, ..kit::THOROUGH };
    // This storage does not know when it got an object, so that all count as new.
    assert_eq!(series.repository.reclaim("vm", &gentle).unwrap().removed_objects, 0);
    let report = kit::backup(&series.repository, "vm", &image).unwrap();
    assert!(report.adopted_containers > 0);
    interrupted("vm");
    interrupted("vm");
    kit::backup(&series.repository, "vm", &image).unwrap();
    series.repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    assert_eq!(series.repository.check(&all).unwrap().unreferenced, 0);
}

#[test]
fn deleting_reads_no_more_than_the_doomed_snapshot_has_of_its_own() {
    let series = Series::new(3);
    let objects = series.storage.clone() as Arc<dyn Storage>;
    let recording = Arc::new(silt_storage::RecordingStorage::new(objects));
    let repository = kit::open(recording.clone(), &series.world).unwrap();
    // An unchanged day shares all of its map: nothing of it is read.
    let same = kit::backup(&repository, "vm", &series.images[2]).unwrap().snapshot.id;
    let report = repository.delete("vm", &[same], APPROXIMATE).unwrap();
    assert_eq!((report.segments, report.references, report.dead_chunks), (0, 0, 0));
    let report = repository.delete("vm", &series.ids[1..2], APPROXIMATE).unwrap();
    assert!(report.segments > 0 && report.dead_chunks > 0);
    let recorded = recording.records();
    let mut keys = recorded.iter().flat_map(|record| record.operation.keys());
    assert!(keys.all(|key| !key.as_str().starts_with("containers/")), "no data is read");
}

/// An append-only repository whose administrator's password is `admin`.
pub fn init_append_only(storage: &Arc<MemoryStorage>, world: &Arc<World>) {
    let cost = silt_format::KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
    let administrator = siltstone::Administrator {
        password: b"admin".to_vec(),
        cost,
        label: silt_format::KeyLabel::default(),
    };
    let (objects, context) = (storage.clone(), world.context());
    let none = siltstone::Protection::None;
    Repository::init(objects, context, kit::config(), &none, Some(&administrator)).unwrap();
}

/// An append-only repository with three days of a series, and the host that backs up to it.
fn append_only() -> (Arc<MemoryStorage>, Arc<World>, Repository, Vec<Id>) {
    let world = World::new(1);
    let storage = Arc::new(MemoryStorage::new());
    init_append_only(&storage, &world);
    let host = kit::open(storage.clone(), &world).unwrap();
    let mut ids = Vec::new();
    for day in 0..3 {
        ids.push(kit::backup(&host, "vm", &kit::image(day, 400)).unwrap().snapshot.id);
        world.pass_seconds(86_400);
    }
    (storage, world, host, ids)
}

#[test]
fn in_an_append_only_repository_a_host_adds_and_only_the_administrator_takes_away() {
    let (storage, world, host, ids) = append_only();
    let denied = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Denied);
    denied(host.delete("vm", &ids[0..1], APPROXIMATE).map(drop));
    denied(host.reclaim("vm", &kit::THOROUGH).map(drop));
    denied(host.protect("vm", ids[0]));
    denied(host.sweep("vm", SweepOptions::default()).map(drop));
    denied(host.recover("vm").map(drop));
    let mut administrator = kit::open(storage, &world).unwrap();
    assert_eq!(administrator.authorize(b"secret").unwrap_err().kind(), ErrorKind::WrongPassword);
    denied(administrator.delete("vm", &ids[0..1], APPROXIMATE).map(drop));
    administrator.authorize(b"admin").unwrap();
    administrator.delete("vm", &ids[0..1], APPROXIMATE).unwrap();
    kit::backup(&host, "vm", &kit::image(9, 400)).unwrap();
    let report = administrator.reclaim("vm", &kit::THOROUGH).unwrap();
    assert_eq!(report.purged, &ids[0..1]);
    assert!(!administrator.recover("vm").unwrap(), "nothing was taken away without leave");
    assert!(host.check(&CheckOptions::default()).unwrap().damage.is_empty());
}

/// A head that a host with all its keys can write: the next generation, changed as it likes.
fn forge(host: &Repository, storage: &MemoryStorage, change: impl FnOnce(&mut silt_format::Head)) {
    let series = host.series_id("vm");
    let mut head = host.head(series).unwrap().unwrap();
    head.generation += 1;
    change(&mut head);
    let object = kit::sealed_head(storage, &head);
    let name = names::Numbered::Head.name(series, head.generation);
    let name = Key::new(&name).unwrap();
    storage.put(&name, &[&object], silt_storage::PutMode::Create).unwrap();
}

#[test]
fn what_a_host_takes_away_by_force_is_seen_and_brought_back() {
    let (storage, world, host, ids) = append_only();
    forge(&host, &storage, |head| drop(head.snapshots.drain(0..2)));
    let series = host.series_id("vm");
    assert_eq!(host.head(series).unwrap().unwrap().snapshots.len(), 1, "hosts believe it");
    let found = host.check(&CheckOptions::default()).unwrap().damage;
    assert!(found.iter().any(|damage| format!("{damage:?}").contains("tampered")), "{found:?}");
    let mut administrator = kit::open(storage.clone(), &world).unwrap();
    administrator.authorize(b"admin").unwrap();
    // What looks like an orphan now is not removed.
    let before = list_all(&*storage, "", None).count();
    let refused = administrator.reclaim("vm", &kit::THOROUGH).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert_eq!(list_all(&*storage, "", None).count(), before);
    assert!(administrator.recover("vm").unwrap());
    let head = administrator.head(series).unwrap().unwrap();
    assert_eq!(head.snapshots.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    administrator.reclaim("vm", &kit::THOROUGH).unwrap();
    for (day, id) in (0..).zip(&ids) {
        let selector = siltstone::Selector::Id(id.to_string());
        let found = kit::find(&administrator, &selector).unwrap();
        assert!(kit::restore(&administrator, &found).unwrap() == kit::image(day, 400));
    }
}
