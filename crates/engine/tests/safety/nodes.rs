//! Storage nodes: backups of many series write to them at once, die, sleep and are swept, and what
//! is committed stays whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use silt_format::names::Numbered;
use silt_format::{Error, ErrorKind, KdfCost, KeyLabel, Level, Result};
use silt_storage::{
    ByteRange, Fault, FaultStorage, Key, MemoryStorage, Operation, OperationKind, PutMode, Storage,
    list_all,
};
use siltstone::{
    Administrator, CheckOptions, CheckReport, DataCheck, DeleteMethod, KeyAccess, Protection,
    ReclaimOptions, Repository, SharedSweepOptions, SharedSweepReport,
};

use crate::kit::{self, Folder, MemorySource, World};
use crate::places::{ALL_DATA, Disks};
use crate::shared::spool;

/// A repository at "main", and its nodes at "one" and "two", all in one storage.
pub fn open(whole: &Arc<dyn Storage>, world: &Arc<World>) -> Result<Repository> {
    let place = |name: &str| Ok(Folder::of(whole, name));
    kit::open(place("main")?, world)?.with_places("main", &place)
}

pub fn with_nodes(nodes: &[&str]) -> (Arc<MemoryStorage>, Arc<World>, Repository) {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let whole: Arc<dyn Storage> = storage.clone();
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let mut repository = kit::init(place("main").unwrap(), &world).unwrap();
    for node in nodes {
        repository = repository.add_node("main", node, node, &place).unwrap();
    }
    (storage, world, repository)
}

pub fn sweep(repository: &Repository) -> Result<Vec<SharedSweepReport>> {
    let options = SharedSweepOptions {
        spool: spool(),
        memory_bytes: 0,
        reclaim: kit::THOROUGH,
        dry_run: false,
    };
    // A backup may be registering what it has written.
    let sweep = |number: u16| {
        let mut tries = (0..10_000).map(|_| {
            std::thread::yield_now();
            repository.sweep_store(number, &options)
        });
        let is_busy =
            |swept: &Result<_>| swept.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        tries.find(|swept| !is_busy(swept)).unwrap()
    };
    repository.nodes().iter().map(|node| sweep(node.number)).collect()
}

fn check(repository: &Repository) -> CheckReport {
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    repository.check(&all).unwrap()
}

fn bytes(storage: &MemoryStorage, prefix: &str) -> u64 {
    list_all(storage, prefix, None).map(|item| item.unwrap().1).sum()
}

fn assert_restores(repository: &Repository, series: &str, image: &[u8]) {
    let found = kit::latest(repository, series).unwrap();
    assert!(kit::restore(repository, &found).unwrap() == image, "{series}");
}

fn delete_all(repository: &Repository, series: &str) {
    let head = repository.heads(&[series.to_owned()]).unwrap().remove(0);
    let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
    repository.delete(series, &ids, DeleteMethod::Exact).unwrap();
    repository.reclaim(series, &kit::THOROUGH).unwrap();
}

#[test]
fn new_chunks_go_to_nodes_and_other_series_find_them_there() {
    let (storage, _, repository) = with_nodes(&["one", "two"]);
    let image = kit::image(1, 3000);
    kit::backup(&repository, "a", &image).unwrap();
    assert_restores(&repository, "a", &image);
    assert_eq!(bytes(&storage, "main/containers/"), 0, "nothing is stored twice");
    let parts = ["one/containers/", "two/containers/"].map(|prefix| bytes(&storage, prefix));
    assert!(parts.iter().sum::<u64>() > 0);

    let report = kit::backup(&repository, "b", &image).unwrap();
    let levels = &report.snapshot.volumes[0].levels;
    let whole = levels.get(Level::Shared) + levels.get(Level::New);
    assert!(levels.get(Level::Shared) * 10 > whole * 9, "{levels:?}");
    assert_restores(&repository, "b", &image);
    let report = check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");

    delete_all(&repository, "a");
    sweep(&repository).unwrap();
    assert_restores(&repository, "b", &image);
    delete_all(&repository, "b");
    sweep(&repository).unwrap();
    let left = ["one/containers/", "two/containers/"].map(|prefix| bytes(&storage, prefix));
    assert_eq!(left, [0, 0]);
    assert_eq!(check(&repository).unreferenced, 0);
}

/// A container that ends early costs each restore that needs it a request.
#[test]
fn containers_of_a_node_are_filled_to_the_last_number_that_was_reserved() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let image = kit::image(1, 12_000);
    kit::backup(&repository, "a", &image).unwrap();
    let containers = list_all(&*storage, "one/containers/", None);
    let mut sizes: Vec<u64> = containers.map(|item| item.unwrap().1).collect();
    sizes.sort_unstable();
    // Ranges of 4, 8, 16 and so on, and the end of the disk.
    assert!(sizes.len() > 4 + 8 + 16, "{sizes:?}");
    assert!(sizes[1] >= 256 << 10, "{sizes:?}");
    assert_restores(&repository, "a", &image);
}

/// Each restore would read it by itself. What lies near other such chunks is used.
#[test]
fn a_chunk_that_is_alone_in_a_node_is_stored_again() {
    let (_, _, repository) = with_nodes(&["one"]);
    let (known, new) = (kit::image(1, 12_000), kit::image(2, 3_000));
    kit::backup(&repository, "a", &known).unwrap();
    // The beginning of the other image, then 30 of its chunks, each among 100 that are new.
    let is_stored = |chunk: &&[u8]| chunk.iter().any(|byte| *byte != 0);
    let mut image = known[..6_000 * 4096].to_vec();
    let (beginning, mut scattered) = (image.chunks(4096).filter(is_stored).count(), 0);
    for (number, part) in new.chunks(100 * 4096).enumerate() {
        image.extend_from_slice(part);
        let start = (6_100 + 190 * number) * 4096;
        let chunk = &known[start..start + 4096];
        scattered += usize::from(is_stored(&chunk));
        image.extend_from_slice(chunk);
    }
    let chunks = |series: &str, level: Level| {
        let report = kit::backup(&repository, series, &image).unwrap();
        usize::try_from(report.snapshot.volumes[0].levels.get(level)).unwrap() / 4096
    };
    assert!(scattered > 15, "{scattered}");
    let found = chunks("b", Level::Shared);
    assert!(found + 20 > beginning && found <= beginning, "{found} of {beginning}, {scattered}");
    assert_restores(&repository, "b", &image);
    assert_eq!(chunks("b", Level::New), 0, "they are stored again once");
    kit::backup(&repository, "c", &image).unwrap();
    assert_restores(&repository, "c", &image);
    assert!(check(&repository).damage.is_empty());
}

#[test]
fn super_chunks_of_several_series_spread_over_the_nodes() {
    let (storage, _, repository) = with_nodes(&["one", "two", "three"]);
    for seed in 0..12 {
        kit::backup(&repository, &format!("vm{seed}"), &kit::image(seed, 12_000)).unwrap();
    }
    let each = ["one", "two", "three"].map(|node| bytes(&storage, &format!("{node}/containers/")));
    let sum: u64 = each.iter().sum();
    assert!(each.iter().all(|bytes| *bytes * 6 > sum), "{each:?}");
}

/// Stops `action` everywhere; afterwards `living` is whole, and in the end nothing is left over.
fn crash_everywhere(
    storage: &MemoryStorage,
    living: &[(&str, Vec<u8>)],
    action: &dyn Fn(&Repository) -> Result<()>,
) -> u32 {
    let whole = |objects: MemoryStorage| -> Arc<dyn Storage> { Arc::new(objects) };
    let open = |whole: Arc<dyn Storage>, world: &Arc<World>| open(&whole, world);
    kit::each_crash_opened((storage, &whole, &open), 864_000, action, &mut |repository| {
        let all_whole = || {
            living.iter().for_each(|(series, image)| assert_restores(repository, series, image));
            let report = check(repository);
            assert!(report.damage.is_empty(), "{report:?}");
            report.unreferenced
        };
        all_whole();
        action(repository).unwrap();
        for head in repository.heads(&[]).unwrap() {
            repository.reclaim(&head.name, &kit::THOROUGH).unwrap();
        }
        sweep(repository).unwrap();
        // What was condemned beside a backup goes with the next one.
        sweep(repository).unwrap();
        assert_eq!(all_whole(), 0);
    })
}

#[test]
fn a_backup_to_nodes_may_stop_anywhere() {
    let (storage, _, repository) = with_nodes(&["one", "two"]);
    let (first, second) = (kit::image(1, 700), kit::image(2, 700));
    kit::backup(&repository, "a", &first).unwrap();
    let mixed = [&first[..200 * 4096], &second[..]].concat();
    let backup = |repository: &Repository| kit::backup(repository, "b", &mixed).map(drop);
    let crashes = crash_everywhere(&storage, &[("a", first.clone())], &backup);
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn a_sweep_of_nodes_may_stop_anywhere() {
    let (storage, _, repository) = with_nodes(&["one", "two"]);
    let (first, second) = (kit::image(1, 600), kit::image(2, 600));
    kit::backup(&repository, "a", &first).unwrap();
    let mixed = [&first[..300 * 4096], &second[..]].concat();
    kit::backup(&repository, "b", &mixed).unwrap();
    delete_all(&repository, "a");
    let crashes =
        crash_everywhere(&storage, &[("b", mixed)], &|repository| sweep(repository).map(drop));
    assert!(crashes > 10, "{crashes}");
}

#[test]
fn a_sweep_leaves_what_a_running_backup_writes() {
    let (_, _, repository) = with_nodes(&["one", "two"]);
    let image = kit::image(1, 2000);
    let mut session = repository.backup("a", kit::options()).unwrap();
    session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    sweep(&repository).unwrap();
    session.finish().unwrap();
    sweep(&repository).unwrap();
    assert_restores(&repository, "a", &image);
    assert!(check(&repository).damage.is_empty());
}

#[test]
fn a_backup_that_slept_through_a_sweep_of_its_nodes_cannot_commit() {
    let (storage, _, repository) = with_nodes(&["one", "two"]);
    let image = kit::image(1, 2000);
    let mut session = repository.backup("a", kit::options()).unwrap();
    session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    let other = World::process(50, 9, "there", &Arc::default());
    other.pass_seconds(86_400);
    let whole: Arc<dyn Storage> = storage.clone();
    let awake = open(&whole, &other).unwrap();
    sweep(&awake).unwrap();
    let late = session.finish().unwrap_err();
    assert!([ErrorKind::Conflict, ErrorKind::Busy].contains(&late.kind()), "{late}");
    assert!(kit::latest(&awake, "a").is_err());
    // A container may have been on its way during the first sweep.
    sweep(&awake).unwrap();
    let left = ["one/containers/", "two/containers/"].map(|prefix| bytes(&storage, prefix));
    assert_eq!(left, [0, 0]);
    kit::backup(&awake, "a", &image).unwrap();
    assert_restores(&awake, "a", &image);
    assert!(check(&awake).damage.is_empty());
}

/// A place that was interrupted while it was filled for one node lacks what another one has.
#[test]
fn a_node_is_not_moved_to_a_place_that_is_filled_for_another() {
    let (storage, world, repository) = with_nodes(&["one", "two"]);
    let image = kit::image(1, 3000);
    kit::backup(&repository, "a", &image).unwrap();
    let whole: Arc<dyn Storage> = storage.clone();
    let fails = |operation: &Operation, _: u64| {
        let name = operation.keys().first().map_or("", Key::as_str);
        let is_put = operation.kind() == OperationKind::Put;
        if is_put && name.starts_with("containers/") {
            Fault::FailBefore(ErrorKind::Unavailable)
        } else {
            Fault::Pass
        }
    };
    let stops = |name: &str| -> Result<Arc<dyn Storage>> {
        let place = Folder::of(&whole, name);
        let is_new = name == "three";
        Ok(if is_new { Arc::new(FaultStorage::new(place, fails)) } else { place })
    };
    assert!(repository.move_node("main", "one", "three", &stops).is_err());
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let again = || open(&whole, &world).unwrap();
    let refused = again().move_node("main", "two", "three", &place).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert_restores(&again(), "a", &image);
    let (moved, _) = again().move_node("main", "one", "three", &place).unwrap();
    assert_restores(&moved, "a", &image);
    assert!(check(&moved).damage.is_empty());
}

/// The answer to every commit of a node is lost: the backup sees that it failed, or that somebody
/// has written that object, as after a request that was sent again.
#[test]
fn a_backup_outlasts_lost_answers_of_a_node() {
    for seen in [ErrorKind::Unavailable, ErrorKind::AlreadyExists] {
        lost_answers(seen);
    }
}

fn lost_answers(seen: ErrorKind) {
    let (storage, world, repository) = with_nodes(&["one", "two"]);
    let (first, second) = (kit::image(1, 1500), kit::image(2, 1500));
    kit::backup(&repository, "a", &first).unwrap();
    let lost = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lost);
    let loses = move |operation: &Operation, _: u64| {
        let name = operation.keys().first().map_or("", Key::as_str);
        let name = ["one/", "two/"].iter().find_map(|node| name.strip_prefix(node));
        if operation.kind() == OperationKind::Put && name.is_some_and(|it| Numbered::Head.is(it)) {
            counted.fetch_add(1, Ordering::SeqCst);
            return Fault::FailAfter(seen);
        }
        Fault::Pass
    };
    let losing: Arc<dyn Storage> = Arc::new(FaultStorage::new(storage.clone(), loses));
    let mixed = [&first[..700 * 4096], &second[..]].concat();
    let losing = open(&losing, &world).unwrap();
    for _ in 0..2 {
        let made = kit::backup(&losing, "b", &mixed);
        assert_restores(&repository, "a", &first);
        match made {
            Ok(_) => assert_restores(&repository, "b", &mixed),
            Err(error) => assert_ne!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
    assert!(lost.load(Ordering::SeqCst) > 0);
    kit::backup(&repository, "b", &mixed).unwrap();
    assert_restores(&repository, "b", &mixed);
    for head in repository.heads(&[]).unwrap() {
        repository.reclaim(&head.name, &kit::THOROUGH).unwrap();
    }
    sweep(&repository).unwrap();
    sweep(&repository).unwrap();
    let report = check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
    for name in ["a", "b"] {
        delete_all(&repository, name);
    }
    sweep(&repository).unwrap();
    let left = ["one/containers/", "two/containers/"].map(|prefix| bytes(&storage, prefix));
    assert_eq!(left, [0, 0]);
}

#[test]
fn backups_write_to_the_same_nodes_at_once() {
    let (storage, world, repository) = with_nodes(&["one", "two"]);
    let images = [1, 2, 3].map(|seed| kit::image(seed, 1500));
    let names = ["a", "b", "c"];
    let mut sessions: Vec<_> =
        names.iter().map(|name| repository.backup(name, kit::options()).unwrap()).collect();
    for (session, image) in sessions.iter_mut().zip(&images) {
        session.add_volume("disk", &MemorySource::new(image), None).unwrap();
    }
    // The last that has reserved numbers registers first.
    for session in sessions.into_iter().rev() {
        world.pass_seconds(10);
        session.finish().unwrap();
    }
    for (name, image) in names.iter().zip(&images) {
        assert_restores(&repository, name, image);
    }
    let report = check(&repository);
    assert!(report.damage.is_empty(), "{report:?}");
    // Who found that another had changed the head leaves its part of the index to a sweep.
    let names = || -> BTreeSet<String> {
        list_all(&*storage, "", None).map(|item| item.unwrap().0.to_string()).collect()
    };
    let before = names();
    sweep(&repository).unwrap();
    let after = names();
    let gone: Vec<_> = before.difference(&after).filter(|name| !name.contains("/heads/")).collect();
    assert!(gone.iter().all(|name| name.contains("/runs/")), "{gone:?}");
    assert_eq!(check(&repository).unreferenced, 0);
}

#[test]
fn a_node_that_cannot_be_reached_is_named_and_backups_go_on_without_it() {
    let (disks, world) = (Disks::with(&["main", "one", "two"]), World::new(1));
    let place = |name: &str| disks.open(name);
    let repository = kit::init(disks.get("main"), &world).unwrap();
    let repository = repository.add_node("main", "n1", "one", &place).unwrap();
    let repository = repository.add_node("main", "n2", "two", &place).unwrap();
    let (first, second) = (kit::image(1, 6000), kit::image(2, 6000));
    kit::backup(&repository, "a", &first).unwrap();
    let away = disks.0.lock().unwrap().remove("one").unwrap();

    let repository = disks.repository("main", &world).unwrap();
    let found = kit::latest(&repository, "a").unwrap();
    let error = kit::restore(&repository, &found).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("node 'n1' in one"), "{error}");
    kit::backup(&repository, "b", &second).unwrap();
    assert_restores(&repository, "b", &second);
    let status = repository.node_status().unwrap();
    assert!(status[0].failure.is_some() && status[1].failure.is_none(), "{status:?}");

    disks.0.lock().unwrap().insert("one".to_owned(), away);
    let repository = disks.repository("main", &world).unwrap();
    assert_restores(&repository, "a", &first);
    let report = check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

#[test]
fn the_store_of_a_node_moves_to_another_place_and_a_closed_one_gets_nothing() {
    let (disks, world) = (Disks::with(&["main", "one", "two", "new"]), World::new(1));
    let place = |name: &str| disks.open(name);
    let repository = kit::init(disks.get("main"), &world).unwrap();
    let repository = repository.add_node("main", "n1", "one", &place).unwrap();
    let repository = repository.add_node("main", "n2", "two", &place).unwrap();
    let image = kit::image(1, 6000);
    kit::backup(&repository, "a", &image).unwrap();
    for (name, location) in [("n1", "elsewhere"), ("n3", "one")] {
        let again = disks.repository("main", &world).unwrap();
        assert!(again.add_node("main", name, location, &place).is_err(), "{name} {location}");
    }
    let (repository, report) = repository.move_node("main", "n1", "new", &place).unwrap();
    assert!(report.copied_objects > 0);
    disks.0.lock().unwrap().remove("one");
    assert_restores(&repository, "a", &image);
    let repository = repository.close_node("main", "n2", true, &place).unwrap();
    let before = bytes(&disks.get("two"), "containers/");
    kit::backup(&repository, "b", &kit::image(2, 6000)).unwrap();
    assert_eq!(bytes(&disks.get("two"), "containers/"), before);
    // What the closed node has is found there.
    let report = kit::backup(&repository, "c", &image).unwrap();
    let levels = &report.snapshot.volumes[0].levels;
    assert!(levels.get(Level::Shared) > levels.get(Level::New), "{levels:?}");
    let repository = disks.repository("main", &world).unwrap();
    assert_restores(&repository, "c", &image);
    let report = check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

#[test]
fn a_copy_of_a_node_heals_it() {
    let (disks, world) = (Disks::with(&["main", "one", "copy"]), World::new(1));
    let place = |name: &str| disks.open(name);
    let repository = kit::init(disks.get("main"), &world).unwrap();
    let repository = repository.add_node("main", "n1", "one", &place).unwrap();
    let image = kit::image(1, 2000);
    kit::backup(&repository, "a", &image).unwrap();
    let (repository, _) = repository.add_node_place("main", "n1", "copy", &place).unwrap();
    let later = kit::changed(&image, 2);
    kit::backup(&repository, "a", &later).unwrap();
    let containers: Vec<Key> =
        list_all(&*disks.get("one"), "containers/", None).map(|item| item.unwrap().0).collect();
    disks.get("one").delete(&containers).unwrap();
    let repository = disks.repository("main", &world).unwrap();
    assert_restores(&repository, "a", &later);
    let report = repository.heal_copies(ALL_DATA).unwrap();
    assert!(report.lost.is_empty() && report.copied_objects >= containers.len() as u64);
    disks.0.lock().unwrap().remove("copy");
    let repository = disks.repository("main", &world).unwrap();
    assert_restores(&repository, "a", &later);
}

/// An append-only repository at "main" with the node "n1" at "one", opened by its administrator.
pub fn append_only_with_node() -> (Disks, Arc<World>, Repository) {
    let (disks, world) = (Disks::with(&["main", "one"]), World::new(1));
    let place = |name: &str| disks.open(name);
    let (cost, label) = (KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }, KeyLabel::default());
    let (password, admin) = (kit::PASSWORD.to_vec(), b"admin".to_vec());
    let administrator = Administrator { password: admin, cost, label: label.clone() };
    let protection = Protection::Password { password, cost, label };
    let config = silt_format::Config { append_only: true, ..kit::config() };
    let mut repository = Repository::init(
        disks.get("main"),
        world.context(),
        config,
        &protection,
        Some(&administrator),
    )
    .unwrap();
    repository.authorize(b"admin").unwrap();
    let repository = repository.add_node("main", "n1", "one", &place).unwrap();
    (disks, world, repository)
}

/// In an append-only repository only the administrator writes to stores of several series: a host
/// uses what nodes have, and keeps what is new in its series.
#[test]
fn a_host_that_may_not_remove_writes_nothing_to_nodes() {
    let (disks, world, repository) = append_only_with_node();
    let (shared, own) = (kit::image(1, 2000), kit::image(2, 700));
    kit::backup(&repository, "a", &shared).unwrap();
    let before = disks.objects("one");
    assert!(before.keys().any(|name| name.starts_with("containers/")));

    let host = disks.repository("main", &world).unwrap();
    let both = [&shared[..], &own].concat();
    kit::backup(&host, "b", &both).unwrap();
    assert_eq!(disks.objects("one"), before);
    assert_restores(&host, "b", &both);
    let found = kit::latest(&host, "b").unwrap();
    let levels = &found.snapshot.volumes[0].levels;
    assert!(levels.get(Level::Shared) > levels.get(Level::New), "{levels:?}");
    assert!(check(&host).damage.is_empty());
}

/// A storage that shows a node as it was before chunks were deleted there: they are not referred
/// to.
#[test]
fn an_older_head_of_a_node_is_not_used() {
    let (storage, world, repository) = with_nodes(&["one"]);
    let (kept, gone) = (kit::image(1, 700), kit::image(2, 700));
    kit::backup(&repository, "a", &kept).unwrap();
    kit::backup(&repository, "b", &gone).unwrap();
    let before = storage.snapshot();
    delete_all(&repository, "b");
    sweep(&repository).unwrap();
    // Of the node, everything is as it was.
    let node = list_all(&*storage, "one/", None).map(|item| item.unwrap().0).collect::<Vec<_>>();
    storage.delete(&node).unwrap();
    for item in list_all(&before, "one/", None) {
        let (key, mut bytes) = (item.unwrap().0, Vec::new());
        before.get(&key, ByteRange::Full, &mut bytes).unwrap();
        storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }
    let whole: Arc<dyn Storage> = storage.clone();
    let repository = open(&whole, &world).unwrap();
    let report = kit::backup(&repository, "a", &gone).unwrap();
    assert_eq!(report.snapshot.volumes[0].levels.get(Level::Shared), 0);
    let warned = world.warnings.lock().unwrap();
    assert!(warned.iter().any(|warning| warning.contains("as it was before")), "{warned:?}");
    drop(warned);
    assert_restores(&repository, "a", &gone);
}

/// What a key has written to nodes counts after the key was removed.
#[test]
fn nodes_stay_whole_when_the_key_is_removed_that_wrote_to_them() {
    let (disks, world) = (Disks::with(&["main", "one"]), World::new(1));
    let place = |name: &str| disks.open(name);
    let (cost, label) = (KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }, KeyLabel::default());
    let protection =
        Protection::Password { password: b"first".to_vec(), cost, label: label.clone() };
    let context = world.context();
    let main = disks.get("main");
    let made = Repository::init(main.clone(), context, kit::config(), &protection, None).unwrap();
    let repository = made.add_node("main", "n1", "one", &place).unwrap();
    let (image, other) = (kit::image(1, 700), kit::image(2, 300));
    kit::backup(&repository, "a", &image).unwrap();
    let second = repository.add_key(kit::PASSWORD, cost, &label, &KeyAccess::full()).unwrap();
    let host = disks.repository("main", &world).unwrap();
    // Registered by one key after the other, and the newest by the one that goes.
    kit::backup(&host, "b", &other).unwrap();
    kit::backup(&repository, "c", &kit::image(3, 300)).unwrap();
    let keys = host.keys().unwrap();
    let first = keys.iter().find(|key| key.id != second).unwrap().id;
    host.remove_key(&first.to_string()).unwrap();
    let host = disks.repository("main", &world).unwrap();
    for (series, image) in [("a", &image), ("b", &other), ("c", &kit::image(3, 300))] {
        assert_restores(&host, series, image);
        let report = kit::backup(&host, series, image).unwrap();
        assert_eq!(report.snapshot.volumes[0].levels.get(Level::New), 0, "{series}");
    }
    sweep(&host).unwrap();
    assert!(check(&host).damage.is_empty());
    assert!(world.warnings.lock().unwrap().is_empty());
    for (series, image) in [("a", &image), ("b", &other), ("c", &kit::image(3, 300))] {
        assert_restores(&host, series, image);
    }
}

/// A move that was interrupted is undone by another one; the place that was left is then that of a
/// new node, which has all that it ever had.
#[test]
fn a_place_that_was_left_while_it_was_filled_is_complete_for_another_node() {
    for opens in 1..20 {
        let (storage, world, repository) = with_nodes(&["one"]);
        let whole: Arc<dyn Storage> = storage;
        let place = |name: &str| Ok(Folder::of(&whole, name));
        kit::backup(&repository, "a", &kit::image(1, 300)).unwrap();
        let left = AtomicUsize::new(opens);
        let dying = |name: &str| {
            if name == "two" && left.fetch_sub(1, Ordering::SeqCst) <= 1 {
                return Err(Error::new(ErrorKind::Unavailable, "it has just gone away"));
            }
            Ok(Folder::of(&whole, name))
        };
        if repository.move_node("main", "one", "two", &dying).is_ok() {
            assert!(opens > 2, "{opens}");
            return;
        }
        let repository = open(&whole, &world).unwrap();
        let is_filling = |repository: &Repository| {
            let places = repository.places().into_iter();
            places.filter(|place| place.is_filling).count() > 0
        };
        if !is_filling(&repository) {
            continue;
        }
        let (repository, _) = repository.move_node("main", "one", "one", &place).unwrap();
        let repository = repository.add_node("main", "two", "two", &place).unwrap();
        assert!(!is_filling(&repository), "{opens}");
        kit::backup(&repository, "b", &kit::image(2, 300)).unwrap();
        assert!(check(&repository).damage.is_empty());
    }
    panic!("it is never moved");
}

/// A node goes away while its containers are registered; it is back when the backup ends.
#[test]
fn a_backup_of_which_a_volume_has_failed_commits_nothing() {
    let (storage, world, _) = with_nodes(&["one"]);
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let fails = move |operation: &Operation, _: u64| {
        let is_head = operation.keys().iter().any(|key| key.as_str().contains("/heads/"));
        match operation.kind() {
            OperationKind::Put if is_head && away.load(Ordering::SeqCst) => {
                Fault::FailBefore(ErrorKind::Unavailable)
            }
            _ => Fault::Pass,
        }
    };
    let whole: Arc<dyn Storage> = Arc::new(FaultStorage::new(storage.clone(), fails));
    let repository = open(&whole, &world).unwrap();
    let mut session = repository.backup("a", kit::options()).unwrap();
    session.add_volume("first", &MemorySource::new(&kit::image(1, 700)), None).unwrap();
    is_away.store(true, Ordering::SeqCst);
    let large = kit::image(2, 12_000);
    assert!(session.add_volume("second", &MemorySource::new(&large), None).is_err());
    is_away.store(false, Ordering::SeqCst);
    let late = session.finish().unwrap_err();
    assert!(late.to_string().contains("begin the backup again"), "{late}");
    assert!(kit::latest(&repository, "a").is_err());
    kit::backup(&repository, "a", &large).unwrap();
    assert_restores(&repository, "a", &large);
}

/// A backup finds chunks that another one has registered after it has begun. They are condemned
/// when the other series is deleted, and do not die before the backup has committed.
#[test]
fn what_others_register_meanwhile_is_used_and_does_not_die() {
    let (_, world, repository) = with_nodes(&["one"]);
    let [first, others] = [1, 2].map(|seed| kit::image(seed, 3000));
    let mut session = repository.backup("a", kit::options()).unwrap();
    session.add_volume("first", &MemorySource::new(&first), None).unwrap();
    kit::backup(&repository, "b", &others).unwrap();
    // It registers containers itself, and sees what was registered.
    for seed in 3..6 {
        let more = kit::image(seed, 3000);
        session.add_volume(&format!("more{seed}"), &MemorySource::new(&more), None).unwrap();
    }
    let found = session.add_volume("others", &MemorySource::new(&others), None);
    found.unwrap();
    delete_all(&repository, "b");
    for _ in 0..3 {
        world.pass_seconds(10);
        sweep(&repository).unwrap();
    }
    let report = session.finish().unwrap();
    let levels = &report.snapshot.volumes.last().unwrap().levels;
    assert!(levels.get(Level::Shared) > levels.get(Level::New), "{levels:?}");
    for _ in 0..3 {
        world.pass_seconds(10);
        sweep(&repository).unwrap();
    }
    let report = check(&repository);
    assert!(report.damage.is_empty(), "{report:?}");
}

/// A list of a node's dead chunks that is gone: the node is named and not used, and the backup is
/// made.
#[test]
fn a_node_whose_dead_chunks_cannot_be_read_is_left_out() {
    let (storage, world, repository) = with_nodes(&["one"]);
    let gone = kit::image(2, 700);
    kit::backup(&repository, "b", &gone).unwrap();
    // A part of each container stays.
    let kept = gone.chunks(40 * 4096).flat_map(|part| &part[..4096]).copied().collect::<Vec<_>>();
    kit::backup(&repository, "a", &kept).unwrap();
    delete_all(&repository, "b");
    let reclaim = ReclaimOptions { dead_share_min: 1.0, ..kit::THOROUGH };
    let options = SharedSweepOptions { spool: spool(), memory_bytes: 0, reclaim, dry_run: false };
    repository.sweep_store(2, &options).unwrap();
    let lists = list_all(&*storage, "one/dead/", None).map(|item| item.unwrap().0);
    let lists: Vec<Key> = lists.collect();
    assert!(!lists.is_empty());
    storage.delete(&lists).unwrap();
    let whole: Arc<dyn Storage> = storage.clone();
    let repository = open(&whole, &world).unwrap();
    kit::backup(&repository, "c", &gone).unwrap();
    let warned = world.warnings.lock().unwrap();
    assert!(warned.iter().any(|it| it.contains("node 'one' is not written to")), "{warned:?}");
    drop(warned);
    assert_restores(&repository, "c", &gone);
}

#[test]
fn a_process_that_knows_an_old_list_of_places_takes_nothing_for_damaged() {
    for nodes in [&[][..], &["one"]] {
        let (storage, world, repository) = with_nodes(nodes);
        kit::backup(&repository, "a", &kit::image(1, 300)).unwrap();
        let whole: Arc<dyn Storage> = storage.clone();
        let old = open(&whole, &world).unwrap();
        let place = |name: &str| Ok(Folder::of(&whole, name));
        let new = if nodes.is_empty() {
            repository.add_node("main", "one", "one", &place).unwrap()
        } else {
            repository.move_node("main", "one", "three", &place).unwrap().0
        };
        let image = kit::image(2, 300);
        kit::backup(&new, "a", &image).unwrap();
        let error = kit::restore(&old, &kit::latest(&old, "a").unwrap()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let checked = old.check(&all).map(|report| report.damage);
        assert!(
            checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy),
            "{checked:?}"
        );
        assert_restores(&new, "a", &image);
        assert!(check(&new).damage.is_empty());
    }
}

/// Where a repository has nodes but no copies, the place that it is opened by is the only one that
/// has its root: what is there is read once.
#[test]
fn the_root_is_read_once_by_its_only_place() {
    let (storage, world, _) = with_nodes(&["one", "two"]);
    let asked = Arc::new(AtomicU64::new(0));
    let counts = {
        let asked = Arc::clone(&asked);
        move |operation: &Operation, _: u64| {
            let is_of_root = match operation {
                Operation::List { prefix, .. } => prefix.contains("root/"),
                Operation::Get { key, .. } => key.as_str().contains("root/places/"),
                _ => false,
            };
            asked.fetch_add(u64::from(is_of_root), Ordering::SeqCst);
            Fault::Pass
        }
    };
    let whole: Arc<dyn Storage> = Arc::new(FaultStorage::new(storage, counts));
    let repository = open(&whole, &world).unwrap();
    assert_eq!(repository.nodes().len(), 2);
    assert_eq!(asked.load(Ordering::SeqCst), 2, "a listing and the newest list of places");
}
