//! Whoever changes the nodes of a repository dies after every storage operation, or sleeps before
//! it for longer than any lease while others go on.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{ErrorKind, Result};
use silt_storage::{Fault, FaultStorage, MemoryStorage, Operation, OperationKind, Storage};
use siltstone::{CheckOptions, DataCheck, DeleteMethod, PlaceInfo, Repository, SharedSweepOptions};

use crate::kit::{self, Folder, World};
use crate::nodes::{self, with_nodes};
use crate::shared::spool;

/// A process that may open the repository again and again.
#[derive(Clone)]
struct Actor {
    whole: Arc<dyn Storage>,
    world: Arc<World>,
}

/// What an actor does. Done again, it continues or finds that nothing is left to do.
type Deed = dyn Fn(&Actor) -> Result<()> + Send + Sync;

impl Actor {
    fn open(&self) -> Result<Repository> {
        nodes::open(&self.whole, &self.world)
    }

    #[expect(clippy::unnecessary_wraps, reason = "as those who look for places want it")]
    fn place(&self, name: &str) -> Result<Arc<dyn Storage>> {
        Ok(Folder::of(&self.whole, name))
    }

    fn sweep(&self) -> Result<()> {
        let repository = self.open()?;
        let places = repository.places();
        for node in repository.nodes() {
            // Somebody may be adding it.
            let own = |it: &PlaceInfo| it.location == node.locations[0] && it.failure.is_some();
            if places.iter().any(own) {
                continue;
            }
            let options = SharedSweepOptions {
                spool: spool(),
                memory_bytes: 0,
                reclaim: kit::THOROUGH,
                dry_run: false,
            };
            repository.sweep_store(node.number, &options)?;
        }
        Ok(())
    }

    fn back_up(&self, series: &str, image: &[u8]) -> Result<()> {
        kit::backup(&self.open()?, series, image).map(drop)
    }

    fn delete(&self, series: &str) {
        let repository = self.open().unwrap();
        let Ok(head) = repository.heads(&[series.to_owned()]) else { return };
        let ids: Vec<_> = head[0].snapshots.iter().map(|entry| entry.id).collect();
        repository.delete(series, &ids, DeleteMethod::Exact).unwrap();
        repository.reclaim(series, &kit::THOROUGH).unwrap();
    }

    /// What is not referred to, where all series restore and nothing is damaged. `None` if that
    /// cannot be told before somebody has completed a node.
    fn verify(&self, living: &[(&str, &[u8])]) -> Option<u64> {
        let repository = self.open().unwrap();
        for (series, image) in living {
            let found = kit::latest(&repository, series).unwrap();
            assert!(kit::restore(&repository, &found).unwrap() == *image, "{series}");
        }
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let report = repository.check(&all).unwrap();
        if report.damage.iter().any(|it| it.is_away && it.error.contains("it holds no repository"))
        {
            return None;
        }
        assert!(report.damage.is_empty(), "{report:?}");
        Some(report.unreferenced)
    }

    /// Backs up once more, removes what is dead, and then everything: nothing is left in the nodes.
    fn ends_well(&self, living: &[(&str, &[u8])]) {
        let last = kit::image(77, 500);
        self.back_up("last", &last).unwrap();
        let living: Vec<_> = living.iter().copied().chain([("last", &last[..])]).collect();
        let repository = self.open().unwrap();
        for head in repository.heads(&[]).unwrap() {
            repository.reclaim(&head.name, &kit::THOROUGH).unwrap();
        }
        // What was condemned beside a backup goes with the next one.
        (0..2).for_each(|_| self.sweep().unwrap());
        assert_eq!(self.verify(&living), Some(0));
        for head in repository.heads(&[]).unwrap() {
            self.delete(&head.name);
        }
        (0..2).for_each(|_| self.sweep().unwrap());
        let repository = self.open().unwrap();
        for location in repository.nodes().iter().flat_map(|node| &node.locations) {
            let left = self.whole.list(&format!("{location}/containers/"), None).unwrap();
            assert!(left.objects.is_empty(), "{location}: {left:?}");
        }
    }
}

/// Stops a deed everywhere. Each time, what lives is whole, the deed is done again, and in the end
/// `after` holds and nothing is left over.
fn dies_everywhere(
    storage: &MemoryStorage,
    living: &[(&str, &[u8])],
    deed: &Deed,
    after: &dyn Fn(&Repository),
) -> u32 {
    let now: RefCell<Option<Actor>> = RefCell::default();
    let place = |objects: MemoryStorage| -> Arc<dyn Storage> { Arc::new(objects) };
    let open = |whole: Arc<dyn Storage>, world: &Arc<World>| {
        let actor = Actor { whole, world: Arc::clone(world) };
        now.replace(Some(actor.clone()));
        actor.open()
    };
    let actor = || now.borrow().clone().unwrap();
    let act = |_: &Repository| deed(&actor());
    kit::each_crash_opened((storage, &place, &open), 864_000, &act, &mut |_| {
        let actor = actor();
        actor.verify(living);
        deed(&actor).unwrap();
        actor.verify(living);
        after(&actor.open().unwrap());
        actor.ends_well(living);
    })
}

/// Puts an actor to sleep before each of its changes, for a day in which somebody else does
/// `meanwhile`. The sleeper may fail; what lives is whole, and its deed can be done again.
fn sleeps_everywhere(
    storage: &MemoryStorage,
    living: &[(&str, &[u8])],
    deed: &Deed,
    meanwhile: &Arc<Deed>,
) -> u64 {
    let mut naps = 0;
    loop {
        let objects: Arc<dyn Storage> = Arc::new(storage.snapshot());
        let (has_slept, done) = sleep_once(&objects, naps, deed, meanwhile);
        if let Err(error) = &done {
            let kinds = [ErrorKind::Conflict, ErrorKind::Busy, ErrorKind::NotFound];
            assert!(has_slept && kinds.contains(&error.kind()), "nap {naps}: {error}");
        }
        let world = World::process(9000 + naps, 11, "elsewhere", &Arc::default());
        world.pass_seconds(10 * 86_400);
        let last = Actor { whole: objects, world };
        last.verify(living);
        deed(&last).unwrap();
        last.verify(living);
        last.ends_well(living);
        if !has_slept {
            return naps;
        }
        naps += 1;
    }
}

/// Sleeps before the change that so many others precede, if there is one, and whether there was.
fn sleep_once(
    objects: &Arc<dyn Storage>,
    before: u64,
    deed: &Deed,
    meanwhile: &Arc<Deed>,
) -> (bool, Result<()>) {
    let sleeper = World::process(100 + before, 7, "here", &Arc::default());
    let other = World::process(5000 + before, 9, "there", &Arc::default());
    other.pass_seconds(86_400);
    let other = Actor { whole: Arc::clone(objects), world: other };
    let (changes, asleep) = (AtomicU64::new(0), Mutex::new(()));
    let has_slept = Arc::new(AtomicBool::new(false));
    let (slept, clock, meanwhile) =
        (Arc::clone(&has_slept), Arc::clone(&sleeper), Arc::clone(meanwhile));
    let rule = move |operation: &Operation, _: u64| {
        // All threads of a process sleep.
        let awake = asleep.lock().unwrap();
        let is_change = matches!(operation.kind(), OperationKind::Put | OperationKind::Delete);
        if is_change && changes.fetch_add(1, Ordering::SeqCst) == before {
            if let Err(error) = meanwhile(&other) {
                // The sleeper has not completed a node.
                assert!(error.to_string().contains("it holds no repository"), "{error}");
            }
            clock.pass_seconds(90_000);
            slept.store(true, Ordering::SeqCst);
        }
        drop(awake);
        Fault::Pass
    };
    let whole: Arc<dyn Storage> = Arc::new(FaultStorage::new(Arc::clone(objects), rule));
    let done = deed(&Actor { whole, world: sleeper });
    (has_slept.load(Ordering::SeqCst), done)
}

/// Two nodes, and a series that has chunks in both; the next one has some of them.
fn prepared() -> (Arc<MemoryStorage>, Vec<u8>, Vec<u8>) {
    let (storage, _, repository) = with_nodes(&["one", "two"]);
    let (first, second) = (kit::image(1, 700), kit::image(2, 700));
    kit::backup(&repository, "a", &first).unwrap();
    let mixed = [&first[..200 * 4096], &second[..]].concat();
    (storage, first, mixed)
}

fn has_node(actor: &Actor, name: &str, location: &str) -> Result<bool> {
    let repository = actor.open()?;
    let mut nodes = repository.nodes().iter();
    Ok(nodes.any(|node| node.name == name && node.locations == [location]))
}

fn add(actor: &Actor) -> Result<()> {
    let added = actor.open()?.add_node("main", "three", "three", &|name| actor.place(name));
    match added.map(drop) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            assert!(has_node(actor, "three", "three")?, "{error}");
            Ok(())
        }
        added => added,
    }
}

fn relocate(actor: &Actor, to: &str) -> Result<()> {
    if has_node(actor, "one", to)? {
        return Ok(());
    }
    actor.open()?.move_node("main", "one", to, &|name| actor.place(name)).map(drop)
}

fn copy(actor: &Actor) -> Result<()> {
    let added = actor.open()?.add_node_place("main", "one", "copy", &|name| actor.place(name));
    match added.map(drop) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let repository = actor.open()?;
            assert!(repository.node("one")?.locations.iter().any(|it| it == "copy"), "{error}");
            Ok(())
        }
        added => added,
    }
}

fn close(actor: &Actor) -> Result<()> {
    actor.open()?.close_node("main", "two", true, &|name| actor.place(name)).map(drop)
}

fn drain(actor: &Actor) -> Result<()> {
    actor.open()?.close_node("main", "one", true, &|name| actor.place(name))?;
    relocate(actor, "new")
}

fn locations<'r>(repository: &'r Repository, node: &str) -> &'r [String] {
    &repository.node(node).unwrap().locations
}

#[test]
fn adding_a_node_may_stop_anywhere() {
    let (storage, first, _) = prepared();
    let crashes = dies_everywhere(&storage, &[("a", &first)], &add, &|repository| {
        assert_eq!(locations(repository, "three"), ["three"]);
    });
    assert!(crashes > 8, "{crashes}");
}

#[test]
fn moving_and_draining_a_node_may_stop_anywhere() {
    let (storage, first, _) = prepared();
    let crashes = dies_everywhere(&storage, &[("a", &first)], &drain, &|repository| {
        assert!(repository.node("one").unwrap().is_closed);
        assert_eq!(locations(repository, "one"), ["new"]);
    });
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn copying_a_node_may_stop_anywhere() {
    let (storage, first, _) = prepared();
    let crashes = dies_everywhere(&storage, &[("a", &first)], &copy, &|repository| {
        assert_eq!(locations(repository, "one"), ["one", "copy"]);
        assert!(repository.places().iter().all(|place| !place.is_filling));
    });
    assert!(crashes > 20, "{crashes}");
}

#[test]
fn closing_a_node_may_stop_anywhere() {
    let (storage, first, _) = prepared();
    let crashes = dies_everywhere(&storage, &[("a", &first)], &close, &|repository| {
        assert!(repository.node("two").unwrap().is_closed);
    });
    assert!(crashes >= 4, "{crashes}");
}

/// A backup that fills several ranges of a node: it registers some while it fills the next ones.
#[test]
fn registering_beside_writing_may_stop_anywhere() {
    let (storage, _, repository) = with_nodes(&["one"]);
    let first = kit::image(1, 700);
    kit::backup(&repository, "a", &first).unwrap();
    let large = kit::image(3, 4500);
    let backup = large.clone();
    let crashes = dies_everywhere(
        &storage,
        &[("a", &first)],
        &move |actor| actor.back_up("b", &backup),
        &|_| {},
    );
    assert!(crashes >= 50, "{crashes}");
}

/// What others may do while somebody sleeps: sweep and back up, move a node, and close one.
fn others() -> Vec<Arc<Deed>> {
    let image = kit::image(9, 400);
    let works = move |actor: &Actor| {
        actor.sweep()?;
        actor.back_up("c", &image)?;
        actor.sweep()
    };
    let moves = |actor: &Actor| relocate(actor, "elsewhere");
    vec![Arc::new(works), Arc::new(moves), Arc::new(close)]
}

fn sleeps(deed: &Deed, naps_min: u64) {
    let (storage, first, _) = prepared();
    for meanwhile in others() {
        let naps = sleeps_everywhere(&storage, &[("a", &first)], deed, &meanwhile);
        assert!(naps >= naps_min, "{naps}");
    }
}

#[test]
fn a_backup_may_sleep_anywhere() {
    let mixed = prepared().2;
    sleeps(&move |actor| actor.back_up("b", &mixed), 10);
}

#[test]
fn a_sweep_may_sleep_anywhere() {
    let (storage, first, mixed) = prepared();
    let (_, world, _) = with_nodes(&[]);
    let actor = Actor { whole: storage.clone(), world };
    actor.back_up("b", &mixed).unwrap();
    actor.delete("a");
    drop(first);
    for meanwhile in others() {
        let naps = sleeps_everywhere(&storage, &[("b", &mixed)], &Actor::sweep, &meanwhile);
        assert!(naps >= 5, "{naps}");
    }
}

#[test]
fn who_changes_nodes_may_sleep_anywhere() {
    sleeps(&add, 4);
    sleeps(&copy, 10);
    sleeps(&|actor| relocate(actor, "new"), 10);
    sleeps(&close, 2);
}
