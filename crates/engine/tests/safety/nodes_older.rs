//! Storage nodes whose disks were restored from an older copy: what they have lost is not referred
//! to, however many backups follow.

use std::sync::Arc;

use silt_format::names::Numbered;
use silt_format::{ErrorKind, FIRST_NODE, Level, ObjectKind, names};
use silt_storage::{ByteRange, MemoryStorage, PutMode, Storage, list_all};
use siltstone::{Advice, CheckOptions, DataCheck, DeleteMethod, Repository};

use crate::forger::{self, Forger};
use crate::kit::{self, Folder, MemorySource, World};
use crate::nodes::{open, sweep, with_nodes};

/// Puts the node at this place back to what it was.
fn restore_node(storage: &MemoryStorage, before: &MemoryStorage, place: &str) {
    let prefix = format!("{place}/");
    let now: Vec<_> = list_all(storage, &*prefix, None).map(|item| item.unwrap().0).collect();
    storage.delete(&now).unwrap();
    for item in list_all(before, &*prefix, None) {
        let (key, mut bytes) = (item.unwrap().0, Vec::new());
        before.get(&key, ByteRange::Full, &mut bytes).unwrap();
        storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }
}

/// What another host opens, which has never seen the repository.
fn stranger(whole: &Arc<dyn Storage>, seed: u64) -> (Repository, Arc<World>) {
    let world = World::process(seed, 9, "there", &Arc::default());
    (open(whole, &world).unwrap(), world)
}

fn containers(storage: &MemoryStorage, place: &str) -> Vec<String> {
    forger::all_names(storage, &format!("{place}/containers/"))
}

fn assert_restores(repository: &Repository, series: &str, image: &[u8]) {
    let found = kit::latest(repository, series).unwrap();
    assert!(kit::restore(repository, &found).unwrap() == image, "{series}");
}

#[test]
fn an_older_copy_of_a_node_gets_nothing_and_is_never_referred_to() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let whole: Arc<dyn Storage> = storage.clone();
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let (kept, lost) = (kit::image(1, 700), kit::image(2, 700));
    kit::backup(&repository, "a", &kept).unwrap();
    let before = storage.snapshot();
    kit::backup(&repository, "b", &lost).unwrap();
    // Its head knows the node as it was before this backup, and refers to what is lost.
    kit::backup(&repository, "c", &lost).unwrap();
    restore_node(&storage, &before, "one");
    let older = containers(&storage, "one");

    // More commits than the node has lost, by a host that knows nothing.
    let (host, world) = stranger(&whole, 50);
    for seed in 0..8 {
        let image = kit::image(10 + seed, 300);
        kit::backup(&host, "d", &image).unwrap();
        assert_restores(&host, "d", &image);
    }
    assert_eq!(containers(&storage, "one"), older);
    assert!(world.warnings.lock().unwrap().iter().any(|it| it.contains("as it was before")));
    let error = sweep(&host).unwrap_err();
    assert_eq!((error.kind(), error.advice()), (ErrorKind::Corrupt, Some(&Advice::ReplaceNode)));
    let report = host.check(&CheckOptions::default()).unwrap();
    assert!(report.damage.iter().any(|damage| damage.object == "node 'one'"), "{report:?}");
    for series in ["b", "c"] {
        let report = kit::backup(&host, series, &lost).unwrap();
        assert_eq!(report.snapshot.volumes[0].levels.get(Level::Shared), 0, "{series}");
        assert_restores(&host, series, &lost);
    }

    // It is given up, though it has containers.
    let (denied, _) = stranger(&whole, 60);
    let error = denied.remove_node("main", "one", false, &place).err().unwrap();
    assert_eq!((error.kind(), error.advice()), (ErrorKind::Corrupt, Some(&Advice::ReplaceNode)));
    let [status] = &host.node_status().unwrap()[..] else { panic!("there is one node") };
    assert!(status.failure.as_ref().is_some_and(|it| it.contains("older copy")), "{status:?}");
    let (host, _) = stranger(&whole, 70);
    let host = host.remove_node("main", "one", true, &place).unwrap();
    for (series, image) in [("a", &kept), ("b", &lost), ("c", &lost)] {
        kit::backup(&host, series, image).unwrap();
        let head = host.heads(&[series.to_owned()]).unwrap().remove(0);
        let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
        host.delete(series, &ids[..ids.len() - 1], DeleteMethod::Exact).unwrap();
        host.reclaim(series, &kit::THOROUGH).unwrap();
        assert_restores(&host, series, image);
    }
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = host.check(&all).unwrap();
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

/// A backup that has begun before the node's disk was replaced has seen only the older state.
#[test]
fn a_backup_during_which_a_node_becomes_older_commits_nothing() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let whole: Arc<dyn Storage> = storage.clone();
    kit::backup(&repository, "a", &kit::image(1, 700)).unwrap();
    let before = storage.snapshot();
    let (host, _) = stranger(&whole, 50);
    let mut session = host.backup("x", kit::options()).unwrap();
    kit::backup(&repository, "b", &kit::image(2, 700)).unwrap();
    restore_node(&storage, &before, "one");
    let image = kit::image(3, 700);
    session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    let error = session.finish().unwrap_err();
    assert_eq!((error.kind(), error.advice()), (ErrorKind::Corrupt, Some(&Advice::ReplaceNode)));
    let (host, _) = stranger(&whole, 60);
    kit::backup(&host, "x", &image).unwrap();
    assert_restores(&host, "x", &image);
}

/// A mark is of the newest state that series rely on, and older ones go.
#[test]
fn the_mark_of_a_node_follows_its_head() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let store = repository.store(FIRST_NODE).id;
    let marks = |storage: &MemoryStorage| -> Vec<u64> {
        let names = forger::all_names(storage, &format!("main/{}", names::MARKS));
        let number = |name: &String| Numbered::Mark.number_of(store, &name["main/".len()..]);
        names.iter().map(|name| number(name).unwrap()).collect()
    };
    assert!(marks(&storage).is_empty());
    for seed in 0..3 {
        kit::backup(&repository, "a", &kit::image(seed, 300)).unwrap();
        assert_eq!(marks(&storage), [repository.store_generation(FIRST_NODE).unwrap()]);
    }
    sweep(&repository).unwrap();
    assert_eq!(marks(&storage), [repository.store_generation(FIRST_NODE).unwrap()]);
    let before = marks(&storage);
    kit::backup(&repository, "a", &kit::image(2, 300)).unwrap();
    assert_eq!(marks(&storage), before, "nothing was registered");
}

/// A mark that is damaged, or that somebody put there who may not, is replaced by the next backup.
#[test]
fn a_mark_that_does_not_count_is_replaced() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let image = kit::image(1, 700);
    kit::backup(&repository, "a", &image).unwrap();
    let name = forger::all_names(&storage, &format!("main/{}", names::MARKS)).remove(0);
    forger::replace(&storage, &name, &[7; 150]);
    let marks = || silt_runs::marks::Marks::list(&repository, FIRST_NODE).unwrap().newest();
    assert_eq!(marks(), 0);
    kit::backup(&repository, "a", &image).unwrap();
    assert_eq!(marks(), repository.store_generation(FIRST_NODE).unwrap());
}

/// Whoever has stolen a host that may not remove must not have an administrator give up good nodes.
#[test]
fn a_mark_counts_only_if_a_key_that_may_remove_has_signed_it() {
    let (disks, world, repository) = crate::nodes::append_only_with_node();
    let image = kit::image(1, 700);
    kit::backup(&repository, "a", &image).unwrap();
    let (main, store) = (disks.get("main"), repository.store(FIRST_NODE).id);
    let forger = Forger::steal(&main, kit::PASSWORD);
    for (number, bytes) in [(1 << 20, None), (1 << 21, Some([7; 200]))] {
        let header = forger.address(ObjectKind::Mark, store, number);
        let forged = forger.object(&header, &[], forger.id);
        let name = Numbered::Mark.name(store, number);
        forger::replace(&main, &name, bytes.as_ref().map_or(&forged, |bytes| &bytes[..]));
    }
    let host = disks.repository("main", &world).unwrap();
    kit::backup(&host, "b", &image).unwrap();
    let found = kit::latest(&host, "b").unwrap();
    assert_eq!(found.snapshot.volumes[0].levels.get(Level::New), 0);
    assert!(world.warnings.lock().unwrap().is_empty());
    let place = |name: &str| disks.open(name);
    let error = repository.remove_node("main", "n1", true, &place).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}
