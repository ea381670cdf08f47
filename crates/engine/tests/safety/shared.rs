//! What series have in common: shared, linked to, deleted; whatever happens, the living stay whole.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::{ErrorKind, Level, Result, names};
use silt_repository::chunks::open_container;
use silt_storage::{
    ByteRange, Key, MemoryStorage, Operation, PutMode, RecordingStorage, Storage, list_all,
};
use siltstone::{
    CheckOptions, CheckReport, DataCheck, DeleteMethod, PopularOptions, PopularReport, Repository,
    SharePolicy, SharedSweepOptions, SharedSweepReport,
};

use crate::kit::{self, MemorySource, World};

pub fn spool() -> PathBuf {
    std::env::temp_dir()
}

pub fn build(repository: &Repository, policy: SharePolicy) -> Result<PopularReport> {
    let options = PopularOptions { policy, spool: spool(), memory_bytes: 0, dry_run: false };
    repository.build_popular(&options)
}

pub fn sweep(repository: &Repository) -> Result<SharedSweepReport> {
    let options = SharedSweepOptions {
        spool: spool(),
        memory_bytes: 0,
        reclaim: kit::THOROUGH,
        dry_run: false,
    };
    repository.sweep_shared(&options)
}

pub fn check(repository: &Repository) -> CheckReport {
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    repository.check(&all).unwrap()
}

/// Series that have a part in common and each a part of their own.
pub struct Fleet {
    pub storage: Arc<MemoryStorage>,
    pub world: Arc<World>,
    pub repository: Repository,
    pub images: Vec<(&'static str, Vec<u8>)>,
}

const COMMON_BLOCKS: usize = 500;

pub fn fleet_image(seed: u64) -> Vec<u8> {
    let mut image = kit::image(77, COMMON_BLOCKS);
    image.extend(kit::image(1000 + seed, 150));
    image
}

impl Fleet {
    fn new() -> Self {
        let world = World::new(1);
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let images: Vec<(&str, Vec<u8>)> =
            [("a", 1), ("b", 2), ("c", 3)].map(|(name, seed)| (name, fleet_image(seed))).into();
        for (name, image) in &images {
            kit::backup(&repository, name, image).unwrap();
            world.pass_seconds(3600);
        }
        Self { storage, world, repository, images }
    }

    /// The same in a storage that answers many requests at once.
    pub fn at_once(self) -> Self {
        let Self { storage, world, images, .. } = self;
        let storage = Arc::new(storage.snapshot().at_once(8));
        let repository = kit::open(storage.clone(), &world).unwrap();
        Self { storage, world, repository, images }
    }

    /// All steps that make a fleet share what it has in common.
    pub fn share(&self, repository: &Repository) -> Result<()> {
        build(repository, SharePolicy::Duplicates)?;
        for (name, _) in &self.images {
            repository.repoint(name, &spool())?;
            repository.reclaim(name, &kit::THOROUGH)?;
        }
        Ok(())
    }

    pub fn assert_whole(&self, repository: &Repository) {
        for (name, image) in &self.images {
            let found = kit::latest(repository, name).unwrap();
            assert!(kit::restore(repository, &found).unwrap() == *image, "{name}");
        }
    }

    fn bytes(&self, prefix: &str) -> u64 {
        list_all(&*self.storage, prefix, None).map(|item| item.unwrap().1).sum()
    }
}

#[test]
fn what_series_share_is_stored_once_and_restored_from_there() {
    let fleet = Fleet::new();
    let before = fleet.bytes("containers/");
    let report = build(&fleet.repository, SharePolicy::Duplicates).unwrap();
    assert!(report.series_min == 2 && report.copied_chunks == report.chosen_chunks, "{report:?}");
    let again = build(&fleet.repository, SharePolicy::Duplicates).unwrap();
    assert_eq!((again.present_chunks, again.copied_chunks), (report.chosen_chunks, 0));
    fleet.assert_whole(&fleet.repository);
    fleet.share(&fleet.repository).unwrap();
    fleet.assert_whole(&fleet.repository);
    let after = fleet.bytes("containers/");
    assert!(after * 10 < before * 7, "{before} bytes became {after}");
    let report = check(&fleet.repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");

    // A new series refers to the shared store from the start.
    let image = fleet_image(9);
    let stored = kit::backup(&fleet.repository, "d", &image).unwrap().snapshot;
    let levels = &stored.volumes[0].levels;
    assert!(levels.get(Level::Shared) > 0 && levels.get(Level::New) <= 150 * 4096, "{levels:?}");
    let found = kit::latest(&fleet.repository, "d").unwrap();
    assert!(kit::restore(&fleet.repository, &found).unwrap() == image);
    assert!(check(&fleet.repository).damage.is_empty());
    // What it refers to counts as its own.
    let counted = build(&fleet.repository, SharePolicy::Duplicates).unwrap();
    assert_eq!(counted.series, 4);
    assert!(counted.chunks_by_series[3] > 100, "{counted:?}");
}

#[test]
fn a_share_takes_the_most_popular_and_no_more() {
    let fleet = Fleet::new();
    let extra = kit::image(77, COMMON_BLOCKS / 2);
    kit::backup(&fleet.repository, "half", &extra).unwrap();
    let report = build(&fleet.repository, SharePolicy::Popular(0.10)).unwrap();
    let quota = (report.unique_chunks + 5) / 10;
    assert_eq!(report.chosen_chunks, quota);
    assert_eq!(report.copied_chunks, quota);
    assert_eq!(report.series_min, 4, "only what all four have: {report:?}");
    assert_eq!(build(&fleet.repository, SharePolicy::Popular(0.0)).unwrap().chosen_chunks, 0);
}

/// Crashes `action` at every mutation; afterwards all is whole, and a second run ends it.
fn crash_everywhere(
    fleet: &Fleet,
    living: &[&str],
    action: &dyn Fn(&Repository) -> Result<()>,
) -> u32 {
    let whole = |repository: &Repository| {
        for (name, image) in fleet.images.iter().filter(|(name, _)| living.contains(name)) {
            let found = kit::latest(repository, name).unwrap();
            assert!(kit::restore(repository, &found).unwrap() == *image, "{name}");
        }
        let report = check(repository);
        assert!(report.damage.is_empty(), "{report:?}");
        report.unreferenced
    };
    kit::each_crash(&fleet.storage, 864_000, action, &mut |repository| {
        whole(repository);
        action(repository).unwrap();
        sweep(repository).unwrap();
        for (name, _) in &fleet.images {
            repository.reclaim(name, &kit::THOROUGH).unwrap();
        }
        assert_eq!(whole(repository), 0);
        kit::backup(repository, "new", &fleet_image(9)).unwrap();
        let found = kit::latest(repository, "new").unwrap();
        assert!(kit::restore(repository, &found).unwrap() == fleet_image(9));
    })
}

#[test]
fn sharing_may_stop_anywhere() {
    let fleet = Fleet::new();
    let crashes = crash_everywhere(&fleet, &["a", "b", "c"], &|repository| fleet.share(repository));
    assert!(crashes > 40, "{crashes}");
}

/// A fleet that shares, and of which two series are deleted: what only they had in common is
/// garbage.
pub fn with_garbage() -> Fleet {
    let fleet = Fleet::new();
    fleet.share(&fleet.repository).unwrap();
    for name in ["a", "b"] {
        let found = kit::latest(&fleet.repository, name).unwrap();
        let ids = [found.snapshot.id];
        fleet.repository.delete(name, &ids, DeleteMethod::Approximate).unwrap();
        fleet.repository.reclaim(name, &kit::THOROUGH).unwrap();
    }
    // The third keeps a part of what was common.
    let kept = [&kit::image(77, COMMON_BLOCKS)[..200 * 4096], &kit::image(3, 100)].concat();
    let found = kit::latest(&fleet.repository, "c").unwrap();
    kit::backup(&fleet.repository, "c", &kept).unwrap();
    let ids = [found.snapshot.id];
    fleet.repository.delete("c", &ids, DeleteMethod::Exact).unwrap();
    fleet.repository.reclaim("c", &kit::THOROUGH).unwrap();
    let Fleet { storage, world, repository, .. } = fleet;
    Fleet { storage, world, repository, images: vec![("c", kept)] }
}

#[test]
fn what_no_series_refers_to_is_deleted_and_nothing_else() {
    for fleet in [with_garbage(), with_garbage().at_once()] {
        sweep_garbage(&fleet);
    }
}

fn sweep_garbage(fleet: &Fleet) {
    let before = fleet.bytes("containers/");
    let report = sweep(&fleet.repository).unwrap();
    assert!(report.waiting_for.is_empty());
    assert!(report.dead_slots > 50 && report.dead_slots == report.condemned_slots, "{report:?}");
    assert!(fleet.bytes("containers/") < before);
    fleet.assert_whole(&fleet.repository);
    let again = sweep(&fleet.repository).unwrap();
    assert_eq!((again.condemned_slots, again.dead_slots), (0, 0));
    let report = check(&fleet.repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
    // What is gone is not found any more.
    let image = fleet_image(9);
    kit::backup(&fleet.repository, "d", &image).unwrap();
    let found = kit::latest(&fleet.repository, "d").unwrap();
    assert!(kit::restore(&fleet.repository, &found).unwrap() == image);
}

/// The references are read twice, the directories of containers only again where something is
/// condemned.
#[test]
fn a_sweep_reads_a_directory_again_only_if_something_in_it_is_condemned() {
    let (world, storage) = (World::new(1), MemoryStorage::new().at_once(8));
    let storage = Arc::new(RecordingStorage::new(storage));
    let repository = kit::init(storage.clone(), &world).unwrap();
    // What does not compress fills several containers, and what comes last is given up.
    let noise = |blocks: u64| -> Vec<u8> {
        let words = |block: u64| {
            let mut word = (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..512).flat_map(move |_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word.to_le_bytes()
            })
        };
        (0..blocks).flat_map(words).collect()
    };
    let (whole, image) = (noise(400), noise(300));
    for name in ["a", "b"] {
        kit::backup(&repository, name, &whole).unwrap();
    }
    build(&repository, SharePolicy::Duplicates).unwrap();
    for name in ["a", "b"] {
        repository.repoint(name, &spool()).unwrap();
        world.pass_seconds(3600);
        let before = kit::latest(&repository, name).unwrap();
        kit::backup(&repository, name, &image).unwrap();
        repository.delete(name, &[before.snapshot.id], DeleteMethod::Exact).unwrap();
        repository.reclaim(name, &kit::THOROUGH).unwrap();
    }
    let store = repository.objects.keys.shared_store_id(0);
    let prefix = names::containers(store);
    let reads = || {
        let mut reads: BTreeMap<String, u32> = BTreeMap::new();
        for record in storage.take() {
            if let Operation::Get { key, .. } = record.operation
                && key.as_str().starts_with(&prefix)
            {
                *reads.entry(key.as_str().to_owned()).or_default() += 1;
            }
        }
        reads
    };
    let before = repository.head(store).unwrap().unwrap().containers;
    let (number, tag) = before.iter().next().unwrap();
    reads();
    open_container(&repository.objects, store, number, tag).unwrap();
    let once = *reads().values().next().unwrap();
    let report = sweep(&repository).unwrap();
    assert!(report.dead_slots > 50 && report.slots > report.dead_slots, "{report:?}");
    let swept = reads();
    assert_eq!(swept.len(), before.iter().count());
    let after = repository.head(store).unwrap().unwrap().containers;
    let kept = before.iter().filter(|(number, tag)| after.tag(*number) == Some(*tag));
    let kept: Vec<String> =
        kept.map(|(number, tag)| names::container(store, number, tag)).collect();
    assert!(!kept.is_empty() && kept.len() < swept.len(), "{swept:?}");
    assert!(kept.iter().all(|name| swept[name] == once), "{swept:?}, {kept:?}, {once} each");
    let found = kit::latest(&repository, "a").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
}

#[test]
fn a_sweep_of_the_shared_store_may_stop_anywhere() {
    for fleet in [with_garbage(), with_garbage().at_once()] {
        let crashes = crash_everywhere(&fleet, &["c"], &|repository| sweep(repository).map(drop));
        assert!(crashes > 10, "{crashes}");
    }
}

#[test]
fn a_backup_in_progress_keeps_what_it_uses_from_being_deleted() {
    for fleet in [with_garbage(), with_garbage().at_once()] {
        sweep_beside_a_backup(&fleet);
    }
}

fn sweep_beside_a_backup(fleet: &Fleet) {
    let image = fleet_image(9);
    let mut session = fleet.repository.backup("d", kit::options()).unwrap();
    let volume = session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    assert!(volume.levels.get(Level::Shared) > 0);
    let report = sweep(&fleet.repository).unwrap();
    assert_eq!((report.waiting_for.as_slice(), report.dead_slots), (&["d".to_owned()][..], 0));
    session.finish().unwrap();
    let after = sweep(&fleet.repository).unwrap();
    assert!(after.waiting_for.is_empty(), "{after:?}");
    assert!(after.dead_slots < after.condemned_slots, "some of it is used now: {after:?}");
    let found = kit::latest(&fleet.repository, "d").unwrap();
    assert!(kit::restore(&fleet.repository, &found).unwrap() == image);
    assert!(check(&fleet.repository).damage.is_empty());
}

#[test]
fn a_backup_that_slept_through_a_sweep_of_the_shared_store_cannot_commit() {
    for (series, is_at_once) in [("new", false), ("c", false), ("new", true), ("c", true)] {
        let fleet = with_garbage();
        let fleet = if is_at_once { fleet.at_once() } else { fleet };
        let mut session = fleet.repository.backup(series, kit::options()).unwrap();
        session.add_volume("disk", &MemorySource::new(&fleet_image(9)), None).unwrap();
        // Its lease ends, and others take it for gone.
        let other = World::process(50, 9, "there", &Arc::default());
        other.pass_seconds(86_400);
        let awake = kit::open(fleet.storage.clone(), &other).unwrap();
        let report = sweep(&awake).unwrap();
        assert!(report.waiting_for.is_empty() && report.dead_slots > 0, "{report:?}");
        let late = session.finish();
        assert_eq!(late.err().map(|error| error.kind()), Some(ErrorKind::Busy), "{series}");
        fleet.assert_whole(&awake);
        assert!(check(&awake).damage.is_empty());
        kit::backup(&awake, series, &fleet_image(9)).unwrap();
        let found = kit::latest(&awake, series).unwrap();
        assert!(kit::restore(&awake, &found).unwrap() == fleet_image(9));
    }
}

#[test]
fn damage_to_the_shared_store_is_found_for_every_series_and_healed_by_its_next_backup() {
    let fleet = Fleet::new();
    fleet.share(&fleet.repository).unwrap();
    let containers: Vec<Key> =
        list_all(&*fleet.storage, "containers/", None).map(|item| item.unwrap().0).collect();
    let series: Vec<String> = fleet
        .images
        .iter()
        .map(|(name, _)| names::containers(fleet.repository.series_id(name)))
        .collect();
    let shared = containers
        .iter()
        .find(|key| !series.iter().any(|prefix| key.as_str().starts_with(prefix)))
        .unwrap();
    let mut bytes = Vec::new();
    fleet.storage.get(shared, ByteRange::Full, &mut bytes).unwrap();
    bytes[200] ^= 1;
    fleet.storage.delete(std::slice::from_ref(shared)).unwrap();
    fleet.storage.put(shared, &[&bytes], PutMode::Create).unwrap();

    let report = check(&fleet.repository);
    let affected: HashSet<&str> = report
        .damage
        .iter()
        .flat_map(|damage| &damage.affected)
        .map(|affected| affected.series.as_str())
        .collect();
    assert_eq!(affected.len(), 3, "{report:?}");
    for (name, image) in &fleet.images {
        let found = kit::latest(&fleet.repository, name).unwrap();
        let error = kit::restore(&fleet.repository, &found).unwrap_err();
        assert!(error.to_string().contains(shared.as_str()), "{error}");
        kit::backup(&fleet.repository, name, image).unwrap();
        let found = kit::latest(&fleet.repository, name).unwrap();
        assert!(kit::restore(&fleet.repository, &found).unwrap() == *image, "{name} is healed");
    }
}

/// A storage that shows the shared store as it was before chunks were deleted there: they are not
/// referred to.
#[test]
fn an_older_head_of_the_shared_store_is_not_used() {
    let fleet = with_garbage();
    let before = fleet.storage.snapshot();
    let gone = fleet_image(9);
    sweep(&fleet.repository).unwrap();
    // The series that is left has seen the sweep.
    kit::backup(&fleet.repository, "c", &fleet.images[0].1).unwrap();
    let shared = format!("state/{}/", fleet.repository.store(1).id);
    let of_store = |storage: &MemoryStorage| {
        list_all(storage, &shared, None).map(|item| item.unwrap().0).collect::<Vec<_>>()
    };
    let old = of_store(&before);
    let new: Vec<_> =
        of_store(&fleet.storage).into_iter().filter(|key| !old.contains(key)).collect();
    assert!(!new.is_empty() && !old.is_empty(), "{old:?} {new:?}");
    let after = fleet.storage.snapshot();
    fleet.storage.delete(&new).unwrap();
    let repository = kit::open(fleet.storage.clone(), &fleet.world).unwrap();
    let report = kit::backup(&repository, "c", &gone).unwrap();
    assert_eq!(report.snapshot.volumes[0].levels.get(Level::Shared), 0);
    let warned = fleet.world.warnings.lock().unwrap();
    assert!(warned.iter().any(|warning| warning.contains("as it was before")), "{warned:?}");
    drop(warned);
    // The storage shows it as it is again.
    for key in new {
        let mut bytes = Vec::new();
        after.get(&key, ByteRange::Full, &mut bytes).unwrap();
        fleet.storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }
    let repository = kit::open(fleet.storage.clone(), &fleet.world).unwrap();
    let found = kit::latest(&repository, "c").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == gone);
    assert!(check(&repository).damage.is_empty());
}
