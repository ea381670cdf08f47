//! Storage nodes that are taken out of a repository: empty ones, and lost ones.

use std::sync::Arc;

use silt_format::{Error, ErrorKind, Result};
use silt_storage::Storage;
use siltstone::{Advice, CheckOptions, DataCheck, DeleteMethod, Repository};

use crate::kit::{self, Folder, MemorySource, World};
use crate::nodes::{open, sweep, with_nodes};

/// The places as a host sees them that can't reach one node.
fn without(whole: &Arc<dyn Storage>, node: &str) -> impl Fn(&str) -> Result<Arc<dyn Storage>> {
    move |name| {
        if name == node {
            return Err(Error::new(ErrorKind::Unavailable, "its disk is broken"));
        }
        Ok(Folder::of(whole, name))
    }
}

/// Opens the repository as such a host.
fn open_without(whole: &Arc<dyn Storage>, world: &Arc<World>, node: &str) -> Repository {
    let place = without(whole, node);
    kit::open(place("main").unwrap(), world).unwrap().with_places("main", &place).unwrap()
}

fn restored(repository: &Repository, series: &str) -> Result<Vec<u8>> {
    kit::restore(repository, &kit::latest(repository, series).unwrap())
}

#[test]
fn a_node_without_chunks_can_be_taken_out_and_others_cannot() {
    let (storage, world, repository) = with_nodes(&["one"]);
    let whole: Arc<dyn Storage> = storage;
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let image = kit::image(1, 2000);
    kit::backup(&repository, "a", &image).unwrap();
    for is_lost in [false, true] {
        let repository = open(&whole, &world).unwrap();
        let error = repository.remove_node("main", "one", is_lost, &place).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("containers"), "{error}");
    }
    let repository = open(&whole, &world).unwrap();
    let repository = repository.add_node("main", "two", "two", &place).unwrap();
    // Series name the node now, though they need nothing of it.
    kit::backup(&repository, "a", &image).unwrap();
    let number = repository.node("two").unwrap().number;
    let slept = open(&whole, &world).unwrap();
    let repository = repository.remove_node("main", "two", false, &place).unwrap();
    let error = kit::backup(&slept, "b", &image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "it knows the node as one: {error}");
    let again = repository.add_node("main", "two", "three", &place).unwrap();
    assert_ne!(again.node("two").unwrap().number, number);
    kit::backup(&again, "b", &image).unwrap();
    kit::backup(&again, "a", &image).unwrap();
    assert!(world.warnings.lock().unwrap().is_empty());
    for series in ["a", "b"] {
        assert!(restored(&again, series).unwrap() == image);
    }
    sweep(&again).unwrap();
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = again.check(&all).unwrap();
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

#[test]
fn a_node_that_cannot_be_reached_is_named_with_all_that_needs_it() {
    let (storage, world, repository) = with_nodes(&["one"]);
    let whole: Arc<dyn Storage> = storage;
    let (image, other) = (kit::image(1, 2000), kit::image(9, 700));
    kit::backup(&repository, "a", &image).unwrap();
    let away = open_without(&whole, &world, "one");
    kit::backup(&away, "b", &other).unwrap();
    let report = away.check(&CheckOptions::default()).unwrap();
    let [damage] = &report.damage[..] else { panic!("{report:?}") };
    assert!(damage.is_away && damage.object == "node 'one'", "{damage:?}");
    let [affected] = &damage.affected[..] else { panic!("{damage:?}") };
    let zeros = image.chunks(4096).filter(|chunk| chunk.iter().all(|byte| *byte == 0)).count();
    let expected = (2000 - zeros) as u64 * 4096;
    assert_eq!((affected.series.as_str(), affected.bytes), ("a", expected));
    assert_eq!(report.snapshots, 2, "all else is checked");
    // Nothing is taken for lost.
    let back = open(&whole, &world).unwrap();
    assert!(back.check(&CheckOptions::default()).unwrap().damage.is_empty());
    let report = kit::backup(&back, "a", &image).unwrap();
    assert_eq!(report.snapshot.volumes[0].levels.get(silt_format::Level::New), 0);
}

#[test]
fn what_only_a_lost_node_had_is_stored_again_and_never_referred_to() {
    let (storage, world, repository) = with_nodes(&["one", "two"]);
    let whole: Arc<dyn Storage> = storage.clone();
    let image = kit::image(1, 2000);
    // The first backup of a series knows no head of the node.
    kit::backup(&repository, "a", &image).unwrap();
    kit::backup(&repository, "b", &image).unwrap();
    kit::backup(&repository, "b", &image).unwrap();
    let has = |node: &str| {
        let listed = storage.list(&format!("{node}/containers/"), None).unwrap();
        !listed.objects.is_empty()
    };
    let lost = if has("one") { "one" } else { "two" };
    let (away, place) = (open_without(&whole, &world, lost), without(&whole, lost));
    let error = away.remove_node("main", lost, false, &place).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.advice(), Some(&Advice::ReachPlace));
    let away = open_without(&whole, &world, lost);
    away.remove_node("main", lost, true, &place).unwrap();

    // Its place is there again, and not asked.
    let repository = open(&whole, &world).unwrap();
    assert!(repository.nodes().iter().any(silt_format::NodePlaces::is_lost));
    let report = repository.check(&CheckOptions::default()).unwrap();
    let [damage] = &report.damage[..] else { panic!("{report:?}") };
    assert!(!damage.is_away && damage.object.contains("lost"), "{damage:?}");
    let affected: Vec<&str> = damage.affected.iter().map(|it| it.series.as_str()).collect();
    assert_eq!(affected, ["a", "b", "b"]);
    assert_eq!(restored(&repository, "a").unwrap_err().kind(), ErrorKind::Corrupt);
    for series in ["a", "b"] {
        kit::backup(&repository, series, &image).unwrap();
        assert!(restored(&repository, series).unwrap() == image, "{series}");
        // Whatever the parent is: the one before is the newest again.
        let head = repository.heads(&[series.to_owned()]).unwrap().remove(0);
        let newest = head.snapshots.last().unwrap().id;
        repository.delete(series, &[newest], DeleteMethod::Exact).unwrap();
        repository.reclaim(series, &kit::THOROUGH).unwrap();
        kit::backup(&repository, series, &image).unwrap();
        assert!(restored(&repository, series).unwrap() == image, "{series}");
    }
    for series in ["a", "b"] {
        let head = repository.heads(&[series.to_owned()]).unwrap().remove(0);
        let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
        repository.delete(series, &ids[..ids.len() - 1], DeleteMethod::Exact).unwrap();
        repository.reclaim(series, &kit::THOROUGH).unwrap();
    }
    sweep(&repository).unwrap();
    sweep(&repository).unwrap();
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = repository.check(&all).unwrap();
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

/// Whoever took the node out died before its head was there, or never learnt that it is.
#[test]
fn taking_a_node_out_can_be_continued() {
    let (storage, world, repository) = with_nodes(&["one", "two"]);
    let whole: Arc<dyn Storage> = storage.clone();
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let image = kit::image(1, 700);
    kit::backup(&repository, "a", &image).unwrap();
    let has = !storage.list("one/containers/", None).unwrap().objects.is_empty();
    let (kept, out) = if has { ("one", "two") } else { ("two", "one") };
    let store = repository.store(repository.node(out).unwrap().number).id;
    repository.remove_node("main", out, false, &place).unwrap();
    let heads = storage.list(&format!("main/state/{store}/heads/"), None).unwrap().objects;
    let heads: Vec<_> = heads.into_iter().map(|(key, _)| key).collect();
    assert_eq!(heads.len(), 1);
    storage.delete(&heads).unwrap();
    let repository = open(&whole, &world).unwrap();
    let repository = repository.remove_node("main", out, false, &place).unwrap();
    assert_eq!(
        storage
            .list("main/state/", None)
            .unwrap()
            .objects
            .iter()
            .filter(|(key, _)| key.as_str().contains(&format!("{store}/heads")))
            .count(),
        1
    );
    // Then there is no such node.
    let error = repository.remove_node("main", out, true, &place).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let repository = open(&whole, &world).unwrap();
    kit::backup(&repository, "a", &image).unwrap();
    assert!(restored(&repository, "a").unwrap() == image);
    assert!(repository.node(kept).is_ok());
}

/// A backup that writes to a node while it is taken out commits nothing, or the node stays.
#[test]
fn a_backup_that_began_before_a_node_was_taken_out_cannot_commit() {
    let (storage, world, first) = with_nodes(&["one"]);
    let whole: Arc<dyn Storage> = storage;
    let place = |name: &str| Ok(Folder::of(&whole, name));
    let (image, small) = (kit::image(1, 3000), kit::image(2, 40));
    for (image, is_registered) in [(&small, false), (&image, true)] {
        let slept = open(&whole, &world).unwrap();
        let mut session = slept.backup("a", kit::options()).unwrap();
        session.add_volume("disk", &MemorySource::new(image), None).unwrap();
        let removed = open(&whole, &world).unwrap().remove_node("main", "one", false, &place);
        if let Err(error) = &removed {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(is_registered, "{error}");
        }
        match session.finish() {
            Ok(_) => assert!(removed.is_err()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        let repository = open(&whole, &world).unwrap();
        kit::backup(&repository, "a", image).unwrap();
        assert!(restored(&repository, "a").unwrap() == *image);
        assert!(repository.check(&CheckOptions::default()).unwrap().damage.is_empty());
        if removed.is_ok() {
            repository.add_node("main", "one", "again", &place).unwrap();
        }
    }
    drop(first);
}
