//! Several processes at once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::{ErrorKind, Result};
use silt_storage::{
    ByteRange, Guarantees, Key, ListPage, LocalStorage, MemoryStorage, ObjectMeta, PutMode, Storage,
};
use siltstone::{CheckOptions, Env};

use crate::kit::{self, MemorySource, World};

#[test]
fn a_second_backup_of_a_series_is_busy_until_the_first_ends() {
    let storage = Arc::new(MemoryStorage::new());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let one = World::process(1, 1, "here", &dead);
    let two = World::process(2, 2, "here", &dead);
    let first = kit::init(storage.clone(), &one).unwrap();
    let second = kit::open(storage, &two).unwrap();
    let session = first.backup("vm", kit::options()).unwrap();
    let busy = kit::backup(&second, "vm", &kit::image(1, 100)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.to_string().contains("process 1 on here"), "{busy}");
    kit::backup(&second, "other", &kit::image(1, 100)).unwrap();
    drop(session);
    kit::backup(&second, "vm", &kit::image(1, 100)).unwrap();
}

#[test]
fn the_lease_of_a_dead_process_is_taken_at_once_and_of_another_host_when_it_ends() {
    let storage = Arc::new(MemoryStorage::new());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let one = World::process(1, 1, "here", &dead);
    let repository = kit::init(storage.clone(), &one).unwrap();
    std::mem::forget(repository.backup("vm", kit::options()).unwrap());
    let there = World::process(3, 3, "there", &dead);
    let remote = kit::open(storage.clone(), &there).unwrap();
    assert_eq!(remote.backup("vm", kit::options()).err().unwrap().kind(), ErrorKind::Busy);
    dead.lock().unwrap().insert(1);
    let two = World::process(2, 2, "here", &dead);
    let local = kit::open(storage, &two).unwrap();
    std::mem::forget(local.backup("vm", kit::options()).unwrap());
    assert_eq!(remote.backup("vm", kit::options()).err().unwrap().kind(), ErrorKind::Busy);
    there.pass_seconds(400);
    kit::backup(&remote, "vm", &kit::image(1, 100)).unwrap();
}

#[test]
fn a_clock_that_is_a_day_ahead_blocks_nobody_for_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> =
        Arc::new(LocalStorage::create(folder.path().join("repository")).unwrap());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let worlds = [World::process(1, 1, "there", &dead), World::process(2, 2, "here", &dead)];
    // By the clock of the file system, which is right.
    let written = std::fs::metadata(folder.path()).unwrap().modified().unwrap();
    let now_s = written.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let [ahead, right] = worlds.map(|world| {
        world.pass_seconds(i64::try_from(now_s).unwrap() - world.now_ns() / 1_000_000_000);
        world
    });
    ahead.pass_seconds(86_400);
    let first = kit::init(storage.clone(), &ahead).unwrap();
    std::mem::forget(first.backup("vm", kit::options()).unwrap());
    let second = kit::open(storage, &right).unwrap();
    assert_eq!(second.backup("vm", kit::options()).err().unwrap().kind(), ErrorKind::Busy);
    right.pass_seconds(400);
    kit::backup(&second, "vm", &kit::image(1, 100)).unwrap();
}

#[test]
fn of_two_backups_of_one_state_only_one_commits_and_nothing_is_lost() {
    let storage = Arc::new(MemoryStorage::new());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let one = World::process(1, 1, "here", &dead);
    let two = World::process(2, 2, "there", &dead);
    let (old, new) = (kit::image(1, 800), kit::image(2, 800));
    let first = kit::init(storage.clone(), &one).unwrap();
    kit::backup(&first, "vm", &kit::image(3, 300)).unwrap();
    let second = kit::open(storage, &two).unwrap();
    // The first is paused until its lease has ended and the second has committed.
    let mut paused = first.backup("vm", kit::options()).unwrap();
    paused.add_volume("disk", &MemorySource::new(&old), None).unwrap();
    two.pass_seconds(1000);
    kit::backup(&second, "vm", &new).unwrap();
    let lost = paused.finish().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Busy);
    let head = &second.heads(&[]).unwrap()[0];
    assert_eq!(head.snapshots.len(), 2);
    let found = kit::latest(&second, "vm").unwrap();
    assert!(kit::restore(&second, &found).unwrap() == new);
    let report = kit::backup(&first, "vm", &old).unwrap();
    assert_eq!(report.generation, 3);
    let found = kit::latest(&first, "vm").unwrap();
    let by_id = siltstone::Selector::Id(report.snapshot.id.to_string());
    assert!(kit::restore(&first, &kit::find(&first, &by_id).unwrap()).unwrap() == old);
    assert!(kit::restore(&first, &found).is_ok());
}

#[test]
fn series_are_backed_up_side_by_side() {
    let storage = Arc::new(MemoryStorage::new());
    let world = World::new(1);
    let repository = kit::init(storage, &world).unwrap();
    std::thread::scope(|scope| {
        for vm in 0..4_u64 {
            let repository = &repository;
            scope.spawn(move || {
                let name = format!("vm{vm}");
                let mut image = kit::image(vm, 700);
                for day in 0..3 {
                    kit::backup(repository, &name, &image).unwrap();
                    let found = kit::latest(repository, &name).unwrap();
                    assert!(kit::restore(repository, &found).unwrap() == image);
                    image = kit::changed(&image, day);
                }
            });
        }
    });
    assert_eq!(repository.heads(&[]).unwrap().len(), 4);
}

#[test]
fn a_long_backup_keeps_its_lease() {
    let storage = Arc::new(MemoryStorage::new());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let one = World::process(1, 1, "here", &dead);
    let two = World::process(2, 2, "there", &dead);
    let first = kit::init(storage.clone(), &one).unwrap();
    let second = kit::open(storage, &two).unwrap();
    let mut session = first.backup("vm", kit::options()).unwrap();
    for round in 0..5 {
        one.pass_seconds(150);
        two.pass_seconds(150);
        let source = MemorySource::new(&kit::image(round, 600));
        session.add_volume(&format!("disk{round}"), &source, None).unwrap();
        assert_eq!(second.backup("vm", kit::options()).err().unwrap().kind(), ErrorKind::Busy);
    }
    session.finish().unwrap();
}

#[test]
fn a_name_never_means_two_series() {
    for round in 0..40 {
        let storage = Arc::new(MemoryStorage::new());
        let dead = Arc::new(Mutex::new(HashSet::new()));
        let worlds = [1_u32, 2].map(|number| World::process(number.into(), number, "here", &dead));
        let first = kit::init(storage.clone(), &worlds[0]).unwrap();
        for series in ["a", "b"] {
            kit::backup(&first, series, &kit::image(1, 20)).unwrap();
        }
        let second = kit::open(storage.clone(), &worlds[1]).unwrap();
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| first.rename("a", "x").map(drop));
            let other = scope.spawn(|| match round % 2 {
                0 => second.rename("b", "x").map(drop),
                _ => kit::backup(&second, "x", &kit::image(2, 20)).map(drop),
            });
            (one.join().unwrap(), other.join().unwrap())
        });
        let heads = kit::open(storage, &worlds[0]).unwrap().heads(&[]).unwrap();
        let shown = heads.iter().filter(|head| head.shown() == "x").count();
        let done = [&one, &other].into_iter().filter(|result| result.is_ok()).count();
        assert_eq!(shown, done, "{one:?} {other:?}");
        assert!(done <= 1, "{one:?} {other:?}");
    }
}

#[test]
fn a_first_backup_and_a_rename_do_not_take_the_same_name() {
    let storage = Arc::new(MemoryStorage::new());
    let dead = Arc::new(Mutex::new(HashSet::new()));
    let worlds = [1_u32, 2].map(|number| World::process(number.into(), number, "here", &dead));
    let first = kit::init(storage.clone(), &worlds[0]).unwrap();
    kit::backup(&first, "a", &kit::image(1, 20)).unwrap();
    let second = kit::open(storage, &worlds[1]).unwrap();
    // Nothing of it is committed, and its name is taken all the same.
    let session = second.backup("x", kit::options()).unwrap();
    assert_eq!(first.rename("a", "x").unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(session);
    first.rename("a", "y").unwrap();
    let refused = second.backup("y", kit::options()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert!(refused.to_string().contains("series 'a' is shown"), "{refused}");
    assert_eq!(second.own_name("y").unwrap(), "a");
    kit::backup(&second, "a", &kit::image(2, 20)).unwrap();
    assert_eq!(second.heads(&["y".to_owned()]).unwrap()[0].snapshots.len(), 2);
}

/// What another thread does while the storage lists objects.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A storage that answers one listing of heads late: it shows what was there when it was asked.
struct Late {
    real: MemoryStorage,
    /// Listings of heads before that one, and what is done meanwhile.
    late: Mutex<Option<(usize, Meanwhile)>>,
}

impl Late {
    fn wait(&self) {
        let taken = {
            let mut late = self.late.lock().unwrap();
            match late.as_mut() {
                Some((left, _)) if *left > 0 => {
                    *left -= 1;
                    None
                }
                _ => late.take(),
            }
        };
        if let Some((_, meanwhile)) = taken {
            meanwhile();
        }
    }
}

impl Storage for Late {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.real.put_bytes(key, body, mode)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.real.get(key, range, into)
    }

    fn settle(&self, key: &Key) -> Result<()> {
        self.real.settle(key)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.real.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.real.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let page = self.real.list(prefix, after)?;
        if prefix.starts_with(silt_format::names::STATE) {
            self.wait();
        }
        Ok(page)
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        "late".to_owned()
    }
}

/// A thread that waits for a listing is not told that the storage is old because another thread of
/// the process commits meanwhile.
#[test]
fn a_commit_of_another_thread_does_not_make_a_listing_old() {
    let late = Arc::new(Late { real: MemoryStorage::new(), late: Mutex::default() });
    let repository = Arc::new(kit::init(late.clone(), &World::new(1)).unwrap());
    let image = kit::image(1, 100);
    kit::backup(&repository, "a", &image).unwrap();
    let mut before = 0;
    loop {
        let again = Arc::clone(&repository);
        let other = kit::image(2 + before as u64, 100);
        let backup = move || drop(kit::backup(&again, "a", &other).unwrap());
        *late.late.lock().unwrap() = Some((before, Box::new(backup)));
        let found = kit::latest(&repository, "a").unwrap();
        let restored = kit::restore(&repository, &found).unwrap();
        assert!(before > 0 || restored == image);
        assert!(repository.check(&CheckOptions::default()).unwrap().damage.is_empty());
        repository.verify_history(found.head.series).unwrap();
        if late.late.lock().unwrap().take().is_some() {
            break;
        }
        before += 1;
    }
    assert!(before > 2, "{before} listings");
}
