//! A repository in two places, whose writer stops anywhere: each place alone is enough for all that
//! was committed.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use silt_format::{Error, ErrorKind, Id, Result};
use silt_storage::{Counted, CrashStorage, CrashingOperation, MemoryStorage, Storage};
use siltstone::{DeleteMethod, Repository, Selector};

use crate::kit::{self, Folder, World};
use crate::rounds;

const PLACES: [&str; 2] = ["a", "b"];

/// Opens the repository at the place `here`; only the places `reachable` are there.
fn open(
    whole: &Arc<dyn Storage>,
    here: &str,
    reachable: &[&str],
    world: &Arc<World>,
) -> Result<Repository> {
    open_each(here, world, &|place| {
        if !reachable.contains(&place) {
            return Err(Error::new(ErrorKind::Unavailable, "the disk is not there"));
        }
        Ok(Folder::of(whole, place))
    })
}

fn open_each(
    here: &str,
    world: &Arc<World>,
    place: &dyn Fn(&str) -> Result<Arc<dyn Storage>>,
) -> Result<Repository> {
    kit::open(place(here)?, world)?.with_places(here, place)
}

/// A repository in both places with a snapshot of each image, in one storage.
fn two_places(images: &[Vec<u8>]) -> MemoryStorage {
    let (memory, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let whole: Arc<dyn Storage> = memory.clone();
    let folder = |place: &str| -> Result<Arc<dyn Storage>> { Ok(Folder::of(&whole, place)) };
    let repository = kit::init(folder("a").unwrap(), &world).unwrap();
    let repository = repository.add_place("a", "b", &folder).unwrap().0;
    for image in images {
        kit::backup(&repository, "vm", image).unwrap();
        world.pass_seconds(3600);
    }
    memory.snapshot()
}

/// What every snapshot of a series was made of, by its id, as far as that is known.
type Known = BTreeMap<u64, Vec<u8>>;

/// Restores every snapshot that a repository lists of "vm"; each is one of `images`, the known ones
/// are what they were. The answer is all of them.
fn restored(repository: &Repository, known: &Known, images: &[Vec<u8>], label: &str) -> Known {
    let heads = repository.heads(&[]).unwrap();
    let entries = heads.iter().filter(|head| head.name == "vm").flat_map(|head| &head.snapshots);
    let one = |id: Id| {
        let found = kit::find(repository, &Selector::Id(id.to_string()));
        let found = found.unwrap_or_else(|error| panic!("{label}: {id} is not found: {error}"));
        let bytes = kit::restore(repository, &found);
        let bytes = bytes.unwrap_or_else(|error| panic!("{label}: {id} is not whole: {error}"));
        let is_right = known.get(&id.0).map_or(images.contains(&bytes), |known| *known == bytes);
        assert!(is_right, "{label}: {id} is something else");
        (id.0, bytes)
    };
    entries.map(|entry| one(entry.id)).collect()
}

/// Looks at each place alone: all that it lists is whole, and it lists all of `committed`.
fn each_alone(whole: &Arc<dyn Storage>, committed: &Known, images: &[Vec<u8>], label: &str) {
    for place in PLACES {
        let reader = World::process(5000, 9, "elsewhere", &Arc::default());
        let repository = open(whole, place, &[place], &reader).unwrap();
        let label = format!("{label}, {place} alone");
        let found = restored(&repository, committed, images, &label);
        let lost: Vec<&u64> = committed.keys().filter(|id| !found.contains_key(id)).collect();
        assert!(lost.is_empty(), "{label}: {lost:?} are not listed");
    }
}

/// What happens between the failure and the next look.
struct Case<'a> {
    /// Snapshots that are there before.
    before: &'a [Vec<u8>],
    next: &'a [u8],
    /// Says whether a process that could not finish may have taken snapshots away.
    deletes: bool,
    action: &'a dyn Fn(&Repository, &[u8]) -> Result<()>,
}

/// After a failure: each place alone, the next backup, each place alone again.
fn look(case: &Case<'_>, whole: &Arc<dyn Storage>, committed: &Known, label: &str) {
    let images: Vec<Vec<u8>> = case.before.iter().cloned().chain([case.next.to_vec()]).collect();
    let kept = if case.deletes { &Known::new() } else { committed };
    each_alone(whole, kept, &images, &format!("{label}, after the failure"));
    let next = World::process(9000, 8, "here", &Arc::new(Mutex::new(HashSet::from([7]))));
    next.pass_seconds(864_000 + 3600);
    let repository = open(whole, "a", &PLACES, &next).unwrap();
    // What both say now is committed, whoever was told.
    let mut all = restored(&repository, committed, &images, label);
    let report = kit::backup(&repository, "vm", case.next).unwrap();
    all.insert(report.snapshot.id.0, case.next.to_vec());
    each_alone(whole, &all, &images, &format!("{label}, after the next backup"));
}

/// The snapshots that are committed in a storage.
fn committed(whole: &Arc<dyn Storage>, images: &[Vec<u8>]) -> Known {
    let world = World::process(4000, 9, "elsewhere", &Arc::default());
    let repository = open(whole, "a", &PLACES, &world).unwrap();
    restored(&repository, &Known::new(), images, "before")
}

/// Kills the process at the given changes of either place, before and after each takes effect;
/// returns how often.
fn kill_at(
    case: &Case<'_>,
    place: &dyn Fn(&MemoryStorage) -> Arc<dyn Storage>,
    points: &mut dyn Iterator<Item = u64>,
) -> u32 {
    let base = two_places(case.before);
    let known = committed(&(Arc::new(base.snapshot()) as Arc<dyn Storage>), case.before);
    let mut kills = 0;
    for point in points {
        let mut is_beyond = false;
        for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
            let whole = place(&base);
            let counted = Counted::Mutations;
            let crashing = Arc::new(CrashStorage::new(whole.clone(), point, counted, struck));
            let victim = World::process(100 + point, 7, "here", &Arc::default());
            victim.pass_seconds(864_000);
            let below: Arc<dyn Storage> = crashing.clone();
            let opened = open(&below, "a", &PLACES, &victim);
            let done = opened.and_then(|repository| (case.action)(&repository, case.next));
            is_beyond = !crashing.has_crashed();
            if is_beyond {
                done.unwrap();
            }
            kills += u32::from(!is_beyond);
            look(case, &whole, &known, &format!("killed at {point}, {struck:?}"));
        }
        if is_beyond {
            break;
        }
    }
    kills
}

fn backup(repository: &Repository, image: &[u8]) -> Result<()> {
    kit::backup(repository, "vm", image).map(drop)
}

/// A day of change and some containers that are new.
fn grown(image: &[u8]) -> Vec<u8> {
    [kit::changed(image, 2), kit::image(3, 300)].concat()
}

fn in_memory(base: &MemoryStorage) -> Arc<dyn Storage> {
    Arc::new(base.snapshot())
}

#[test]
fn each_place_alone_is_enough_after_a_first_backup_was_killed_anywhere() {
    let next = kit::image(1, 300);
    let case = Case { before: &[], next: &next, deletes: false, action: &backup };
    let kills = kill_at(&case, &in_memory, &mut (0..));
    assert!(kills > 20, "{kills}");
}

#[test]
fn each_place_alone_is_enough_after_a_second_backup_was_killed_anywhere() {
    let before = [kit::image(1, 300)];
    let next = grown(&before[0]);
    let case = Case { before: &before, next: &next, deletes: false, action: &backup };
    let kills = kill_at(&case, &in_memory, &mut (0..));
    assert!(kills > 20, "{kills}");
}

/// The same in buckets, at some points.
pub fn kill_in_buckets(place: &dyn Fn(&MemoryStorage) -> Arc<dyn Storage>) {
    let first = kit::image(1, 300);
    let next = grown(&first);
    for before in [&[][..], &[first]] {
        let case = Case { before, next: &next, deletes: false, action: &backup };
        assert!(kill_at(&case, place, &mut [1, 3, 4, 7, 11].into_iter()) >= 8);
    }
}

/// One place fails at some point of something, and the other goes on.
#[test]
fn each_place_alone_restores_what_was_committed_after_a_failure() {
    let images = [kit::image(1, 300), kit::changed(&kit::image(1, 300), 2)];
    let third = kit::changed(&images[1], 3);
    let case = |deletes, action| Case { before: &images, next: &third, deletes, action };
    let cases = [
        case(false, &backup),
        case(true, &|repository, _| {
            let oldest = kit::latest(repository, "vm")?.head.snapshots[0].id;
            repository.delete("vm", &[oldest], DeleteMethod::Exact)?;
            repository.reclaim("vm", &kit::THOROUGH).map(drop)
        }),
        case(false, &|repository, image| {
            rounds::round(repository, &[("vm", image), ("other", image)]).map(drop)
        }),
    ];
    let base = two_places(&images);
    let known = committed(&(Arc::new(base.snapshot()) as Arc<dyn Storage>), &images);
    let mut failures = 0;
    for (number, case) in cases.iter().enumerate() {
        for failing in PLACES {
            for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
                for succeeding in 0.. {
                    let whole: Arc<dyn Storage> = Arc::new(base.snapshot());
                    let folder = |place: &str| -> Arc<dyn Storage> { Folder::of(&whole, place) };
                    let counted = Counted::Mutations;
                    let crashing =
                        Arc::new(CrashStorage::new(folder(failing), succeeding, counted, struck));
                    let victim = World::process(100 + succeeding, 7, "here", &Arc::default());
                    victim.pass_seconds(864_000);
                    let opened = open_each("a", &victim, &|place| {
                        Ok(if place == failing { crashing.clone() } else { folder(place) })
                    });
                    let done = opened.and_then(|repository| (case.action)(&repository, &third));
                    let is_beyond = !crashing.has_crashed();
                    if is_beyond {
                        done.unwrap();
                    }
                    let label = format!("{number}: {failing} fails at {succeeding}, {struck:?}");
                    look(case, &whole, &known, &label);
                    if is_beyond {
                        break;
                    }
                    failures += 1;
                }
            }
        }
    }
    assert!(failures > 60, "{failures}");
}
