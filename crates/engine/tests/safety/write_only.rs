//! Hosts with a key that only writes.

use std::sync::Arc;

use silt_format::{ErrorKind, Header, KdfCost, KeyLabel, ObjectKind, SealScheme};
use silt_storage::{ByteRange, MemoryStorage, Storage, list_all};
use siltstone::{CheckOptions, DeleteMethod, KeyAccess, Protection, Repository, SharePolicy};

use crate::kit::{self, World};
use crate::shared;

const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

struct Case {
    world: Arc<World>,
    storage: Arc<MemoryStorage>,
}

impl Case {
    fn new() -> Self {
        let (world, storage) = (World::new(5), Arc::new(MemoryStorage::new()));
        let label = KeyLabel::default();
        let protection = Protection::Password { password: b"all".to_vec(), cost: COST, label };
        let context = world.context();
        let repository =
            Repository::init(storage.clone(), context, kit::config(), &protection, None).unwrap();
        let access = KeyAccess::write_only(&["*"]);
        repository.add_key(b"writes", COST, &KeyLabel::default(), &access).unwrap();
        Self { world, storage }
    }

    fn open(&self, password: &[u8]) -> Repository {
        self.world.pass_seconds(600);
        let password = password.to_vec();
        let storage = self.storage.clone();
        Repository::open(storage, self.world.context(), move || Ok(password)).unwrap()
    }

    /// How many containers are sealed in each scheme.
    fn schemes(&self) -> (usize, usize) {
        let schemes: Vec<SealScheme> =
            list_all(&*self.storage as &dyn Storage, "containers/", None)
                .map(|item| {
                    let mut bytes = Vec::new();
                    self.storage.get(&item.unwrap().0, ByteRange::Full, &mut bytes).unwrap();
                    let header = Header::decode(&bytes).unwrap();
                    assert_eq!(header.kind, ObjectKind::Container);
                    header.scheme
                })
                .collect();
        let to_key = schemes.iter().filter(|&&scheme| scheme == SealScheme::SealedToKey).count();
        (schemes.len() - to_key, to_key)
    }
}

fn restored(repository: &Repository, series: &str) -> Vec<u8> {
    kit::restore(repository, &kit::latest(repository, series).unwrap()).unwrap()
}

#[test]
fn a_write_only_host_backs_up_and_deduplicates_and_others_read_it() {
    let case = Case::new();
    let first = kit::image(1, 600);
    kit::backup(&case.open(b"all"), "vm", &first).unwrap();
    let (own, _) = case.schemes();
    let second = kit::changed(&first, 2);
    let host = case.open(b"writes");
    assert!(host.is_write_only());
    let report = kit::backup(&host, "vm", &second).unwrap();
    assert!(report.stored_bytes < 500 << 10, "{}", report.stored_bytes);
    let (same, to_key) = case.schemes();
    assert!(same == own && to_key > 0);
    // Its own containers are known to it as well.
    let third = kit::changed(&second, 3);
    let report = kit::backup(&case.open(b"writes"), "vm", &third).unwrap();
    assert!(report.stored_bytes < 500 << 10, "{}", report.stored_bytes);
    kit::backup(&host, "another", &kit::image(9, 200)).unwrap();

    let all = case.open(b"all");
    assert!(restored(&all, "vm") == third && restored(&all, "another") == kit::image(9, 200));
    assert!(shared::check(&all).damage.is_empty());
    // Whoever may read seals what is moved in the usual way.
    let found = kit::latest(&all, "vm").unwrap();
    let ids: Vec<_> = found.head.snapshots.iter().map(|snapshot| snapshot.id).collect();
    all.delete("vm", &ids[..2], DeleteMethod::Exact).unwrap();
    all.reclaim("vm", &kit::THOROUGH).unwrap();
    assert!(restored(&all, "vm") == third && shared::check(&all).damage.is_empty());
    kit::backup(&case.open(b"writes"), "vm", &second).unwrap();
    assert!(restored(&case.open(b"all"), "vm") == second);
}

#[test]
fn a_write_only_host_reads_no_data_and_takes_nothing_away() {
    let case = Case::new();
    let image = kit::image(1, 300);
    kit::backup(&case.open(b"all"), "vm", &image).unwrap();
    let host = case.open(b"writes");
    kit::backup(&host, "own", &image).unwrap();
    let before = case.storage.snapshot();
    for series in ["vm", "own"] {
        let found = kit::latest(&host, series).unwrap();
        let denied = |error: silt_format::Error| {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        };
        denied(kit::restore(&host, &found).unwrap_err());
        let id = found.snapshot.id;
        denied(host.delete(series, &[id], DeleteMethod::Approximate).unwrap_err());
        denied(host.delete(series, &[id], DeleteMethod::Exact).unwrap_err());
        denied(host.reclaim(series, &kit::THOROUGH).unwrap_err());
        denied(shared::build(&host, SharePolicy::Duplicates).unwrap_err());
    }
    let label = KeyLabel::default();
    for access in [KeyAccess::full(), KeyAccess::write_only(&["own"])] {
        let error = host.add_key(b"x", COST, &label, &access).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
    let keys = host.keys().unwrap();
    assert_eq!(keys.iter().filter(|key| key.is_write_only).count(), 1);
    assert_eq!(host.remove_key(&keys[0].id.to_string()).unwrap_err().kind(), ErrorKind::Denied);
    // Structure is what it can check.
    assert!(host.check(&CheckOptions::default()).unwrap().damage.is_empty());
    let names = |storage: &MemoryStorage| {
        let all = list_all(storage as &dyn Storage, "", None).map(|item| item.unwrap().0);
        all.filter(|key| !key.as_str().contains("/checks/")).collect::<Vec<_>>()
    };
    assert_eq!(names(&before), names(&case.storage), "nothing was written or removed");
    // The last key that reads stays, however many only write.
    let all = case.open(b"all");
    let (reads, writes) = (all.opened_by.unwrap(), host.opened_by.unwrap());
    assert!(all.remove_key(&reads.to_string()).is_err());
    all.remove_key(&writes.to_string()).unwrap();
}

#[test]
fn what_an_interrupted_write_only_backup_left_is_used_only_by_who_can_read_it() {
    let case = Case::new();
    let image = kit::image(4, 600);
    let host = case.open(b"writes");
    let mut session = host.backup("vm", kit::options()).unwrap();
    session.add_volume("disk", &kit::MemorySource::new(&image), None).unwrap();
    drop(session);
    // A host that can't open frames has no proof that they are whole.
    let host = case.open(b"writes");
    let mut session = host.backup("vm", kit::options()).unwrap();
    session.add_volume("disk", &kit::MemorySource::new(&image), None).unwrap();
    let adopted = session.finish().unwrap().adopted_containers;
    assert_eq!(adopted, 0);
    let mut session = host.backup("other", kit::options()).unwrap();
    session.add_volume("disk", &kit::MemorySource::new(&image), None).unwrap();
    drop(session);
    let report = kit::backup(&case.open(b"all"), "other", &image).unwrap();
    assert!(report.adopted_containers > 0);
    assert!(restored(&case.open(b"all"), "vm") == image);
}

#[test]
fn a_write_only_host_finds_what_series_share() {
    let case = Case::new();
    let all = case.open(b"all");
    let image = kit::image(4, 600);
    for series in ["a", "b"] {
        kit::backup(&all, series, &image).unwrap();
    }
    shared::build(&all, SharePolicy::Duplicates).unwrap();
    let report = kit::backup(&case.open(b"writes"), "c", &image).unwrap();
    assert!(report.stored_bytes < 300 << 10, "{}", report.stored_bytes);
    assert!(restored(&case.open(b"all"), "c") == image);
}
