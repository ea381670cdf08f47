//! Damage of every kind to objects of every kind (I-4).

use std::sync::Arc;

use silt_format::names::Numbered;
use silt_format::{ByteSpan, ErrorKind, KdfCost, KeyLabel, Result};
use silt_storage::{Key, MemoryStorage, Storage, list_all};
use siltstone::{CheckOptions, CheckReport, DataCheck, Protection, Repository, RestoreOptions};

use crate::kit::{self, World};

/// Days 0 to 2 of one disk, and a check record.
struct Case {
    storage: MemoryStorage,
    images: Vec<Vec<u8>>,
}

impl Case {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let world = World::new(1);
        let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
        let password = kit::PASSWORD.to_vec();
        let protection = Protection::Password { password, cost, label: KeyLabel::default() };
        let config = kit::config();
        let repository =
            Repository::init(storage.clone(), world.context(), config, &protection, None).unwrap();
        let mut images = vec![kit::image(1, 1300)];
        for day in 0..2 {
            images.push(kit::changed(&images[day], day as u64));
        }
        for image in &images {
            kit::backup(&repository, "vm", image).unwrap();
        }
        kit::backup(&repository, "other", &kit::image(8, 600)).unwrap();
        repository
            .check(&CheckOptions { data: DataCheck::All, ..CheckOptions::default() })
            .unwrap();
        Self { storage: storage.snapshot(), images }
    }

    fn objects(&self) -> Vec<(Key, u64)> {
        list_all(&self.storage as &dyn Storage, "", None).map(|item| item.unwrap()).collect()
    }
}

const ALL: CheckOptions =
    CheckOptions { series: Vec::new(), data: DataCheck::All, restart: true, jobs: 2 };

/// The ways in which an object is hurt; each changes it.
fn hurts(case: &Case, name: &Key, bytes: u64) -> Vec<(String, MemoryStorage)> {
    let mut hurt = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut Vec<u8>)| {
        let storage = case.storage.snapshot();
        storage.damage(name, change).unwrap();
        // Every second one is far away: there, frames are read together.
        let request_bytes = (hurt.len() as u64 % 2) * (512 << 10);
        hurt.push((what, storage.far(request_bytes)));
    };
    // Also of the copy of the header and of the footer, at the end.
    let from_end = [150, 100, 50, 20, 1].map(|bytes_left| bytes.saturating_sub(bytes_left));
    for at in [0, 9, 11, 12, 20, 50, 70, 100, bytes / 2].into_iter().chain(from_end) {
        let at = usize::try_from(at.min(bytes - 1)).unwrap();
        add(format!("bit flipped at {at}"), &move |object| object[at] ^= 4);
    }
    // What the footer says of the copy.
    add("byte 20 of the footer".to_owned(), &|object| {
        let at = object.len() - 12;
        object[at] ^= 1;
    });
    for length in [0, 50, 96, bytes / 2, bytes - 1] {
        let length = usize::try_from(length).unwrap();
        add(format!("cut to {length}"), &move |object| object.truncate(length));
    }
    let storage = case.storage.snapshot();
    storage.delete(std::slice::from_ref(name)).unwrap();
    hurt.push(("removed".to_owned(), storage));
    let folder = name.as_str().rsplit_once('/').map(|(folder, _)| folder);
    let content = |name: &Key| {
        let mut bytes = Vec::new();
        case.storage.get(name, silt_storage::ByteRange::Full, &mut bytes).unwrap();
        bytes
    };
    // A configuration and its copy are the same bytes: exchanging them changes nothing.
    let other = case.objects().into_iter().find(|(other, _)| {
        let alike = other.as_str().rsplit_once('/').map(|(folder, _)| folder) == folder;
        other != name && alike && content(other) != content(name)
    });
    if let Some((other, _)) = other {
        let theirs = content(&other);
        let storage = case.storage.snapshot();
        storage.damage(name, |object| *object = theirs).unwrap();
        hurt.push((format!("replaced by {other}"), storage));
    }
    hurt
}

/// Whether an error is one of damage and names the object that is hurt.
fn is_clear(error: &silt_format::Error, name: &Key) -> bool {
    let kind = matches!(
        error.kind(),
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported | ErrorKind::NoRepository
    );
    kind && error.to_string().contains(name.as_str())
}

#[test]
fn no_damage_gives_wrong_data_or_a_panic_and_all_of_it_is_named() {
    let case = Case::new();
    for (name, bytes) in case.objects() {
        for (what, storage) in hurts(&case, &name, bytes) {
            let label = format!("{name} {what}");
            let storage = Arc::new(storage);
            let world = World::new(2);
            let repository = match kit::open(storage, &world) {
                Ok(repository) => repository,
                Err(error) => {
                    // What may be a newer program's configuration is not passed over for its copy.
                    assert_eq!(name.as_str(), "config", "{label}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{label}: {error}");
                    assert!(is_clear(&error, &name), "{label}: {error}");
                    continue;
                }
            };
            restores_are_right_or_fail(&case, &repository, &name, &label);
            let report = repository.check(&ALL).unwrap();
            check_names_it(&case, &report, &repository, &name, &label);
            heals(&case, &repository, &name, &label);
        }
    }
}

/// What restoring a snapshot came to: its bytes and its day.
type Restored = Result<(Vec<u8>, usize)>;

/// Every snapshot of "vm" that is listed, restored; fails only if its newest head can't be read.
fn snapshots(case: &Case, repository: &Repository) -> Result<Vec<Restored>> {
    let head = repository.head(repository.series_id("vm"))?.unwrap();
    let entries = head.snapshots.iter().take(case.images.len()).enumerate();
    let restored = entries.map(|(number, entry)| {
        let selector = siltstone::Selector::Id(entry.id.to_string());
        let found = kit::find(repository, &selector)?;
        Ok((kit::restore(repository, &found)?, number))
    });
    Ok(restored.collect())
}

/// Whether an object is the newest head of "vm": without it nothing of that is found.
fn is_newest_head(case: &Case, repository: &Repository, name: &Key) -> bool {
    let heads = Numbered::Head.prefix(repository.series_id("vm"));
    let newest = case.objects().into_iter().find(|(key, _)| key.as_str().starts_with(&heads));
    newest.is_some_and(|(newest, _)| newest == *name)
}

fn restores_are_right_or_fail(case: &Case, repository: &Repository, name: &Key, label: &str) {
    let is_head = is_newest_head(case, repository, name) && !label.ends_with("removed");
    let restored = match snapshots(case, repository) {
        Err(error) => {
            assert!(is_head, "{label}: nothing is found: {error}");
            assert!(is_clear(&error, name), "{label}: {error}");
            let error = kit::latest(repository, "vm").err().unwrap();
            assert!(is_clear(&error, name), "{label}: {error}");
            return;
        }
        Ok(restored) => restored,
    };
    assert!(!is_head, "{label}: a damaged head is read");
    // All that were committed, but for one that a removed head has hidden.
    let is_gone = is_newest_head(case, repository, name);
    assert_eq!(restored.len(), case.images.len() - usize::from(is_gone), "{label}");
    for restored in restored {
        match restored {
            Ok((bytes, number)) => assert!(bytes == case.images[number], "{label}: wrong data"),
            Err(error) => assert!(is_clear(&error, name), "{label}: {error}"),
        }
    }
}

/// Whether an object may be lost without any harm that a check could tell.
fn is_harmless(case: &Case, name: &Key) -> bool {
    let text = name.as_str();
    let is_newest = |folder: &str| {
        let newest = case.objects().into_iter().find(|(key, _)| key.as_str().starts_with(folder));
        newest.is_some_and(|(newest, _)| newest == *name)
    };
    let folder = text.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_old_head = Numbered::Head.is(text) && !is_newest(folder);
    is_old_head || Numbered::Check.is(text) || Numbered::Lease.is(text)
}

fn check_names_it(
    case: &Case,
    report: &CheckReport,
    repository: &Repository,
    name: &Key,
    label: &str,
) {
    // A newest head that is gone shows an older state, whole and valid: nobody can tell.
    let gone_head = Numbered::Head.is(name.as_str()) && label.ends_with("removed");
    if is_harmless(case, name) || gone_head {
        assert!(report.damage.is_empty(), "{label}: {:?}", report.damage);
        return;
    }
    if name.as_str().starts_with(silt_format::names::WRITERS) && label.ends_with("removed") {
        let is_there = case.objects().iter().any(|(key, _)| key == name);
        assert!(is_there, "{label}: it is made again from its copy");
        return;
    }
    let damage = report.damage.iter().find(|damage| damage.object == name.as_str());
    let damage = damage.unwrap_or_else(|| panic!("{label}: not named in {:?}", report.damage));
    if name.as_str().starts_with("containers/") || name.as_str().starts_with("recipes/") {
        // A pack's directory serves checks alone: losing it hurts no snapshot.
        let whole = || snapshots(case, repository).unwrap().iter().all(Result::is_ok);
        assert!(!damage.affected.is_empty() || whole(), "{label}: who is hurt?");
        for affected in damage.affected.iter().filter(|affected| affected.series == "vm") {
            let id = affected.snapshot.unwrap().to_string();
            let found = kit::find(repository, &siltstone::Selector::Id(id)).unwrap();
            let options = RestoreOptions { salvage: true, ..RestoreOptions::default() };
            let Ok((bytes, salvaged)) = kit::restore_with(repository, &found, options) else {
                continue;
            };
            assert_eq!(covered(&salvaged.damaged), affected.bytes, "{label}: ranges differ");
            let head = repository.head(found.head.series).unwrap().unwrap();
            let number = head.snapshots.iter().position(|e| e.id == found.snapshot.id).unwrap();
            for (at, (found, right)) in bytes.iter().zip(&case.images[number]).enumerate() {
                let at = at as u64;
                let hurt = |s: &ByteSpan| s.offset <= at && at < s.offset + s.length;
                assert!(found == right || salvaged.damaged.iter().any(hurt), "{label}: byte {at}");
            }
        }
    }
}

fn covered(spans: &[ByteSpan]) -> u64 {
    spans.iter().map(|span| span.length).sum()
}

/// After the check, a backup of what the machine still has is whole, or fails clearly.
fn heals(case: &Case, repository: &Repository, name: &Key, label: &str) {
    let image = case.images.last().unwrap();
    match kit::backup(repository, "vm", image) {
        Ok(report) => {
            let id = siltstone::Selector::Id(report.snapshot.id.to_string());
            let found = kit::find(repository, &id).unwrap_or_else(|e| panic!("{label}: {e}"));
            let restored = kit::restore(repository, &found);
            let restored = restored.unwrap_or_else(|error| panic!("{label}: not healed: {error}"));
            assert!(restored == *image, "{label}: wrong data after healing");
        }
        Err(error) => {
            assert!(is_clear(&error, name), "{label}: {error}");
            let is_head = is_newest_head(case, repository, name);
            assert!(is_head, "{label}: no backup possible: {error}");
        }
    }
}

#[test]
fn what_comes_back_is_forgiven() {
    let case = Case::new();
    let storage = Arc::new(case.storage.snapshot());
    let world = World::new(3);
    let repository = kit::open(storage.clone(), &world).unwrap();
    let objects = case.objects();
    let (name, _) =
        objects.iter().find(|(name, _)| name.as_str().starts_with("containers/")).unwrap();
    storage.damage(name, |object| object[500] ^= 1).unwrap();
    assert_eq!(repository.check(&ALL).unwrap().damage.len(), 1);
    storage.damage(name, |object| object[500] ^= 1).unwrap();
    // Known damage is looked at again by every check, also one that reads no other data.
    assert!(repository.check(&CheckOptions::default()).unwrap().damage.is_empty());
}

#[test]
fn a_pass_over_all_data_goes_on_where_it_was() {
    let case = Case::new();
    let storage = Arc::new(case.storage.snapshot());
    let world = World::new(4);
    let repository = kit::open(storage.clone(), &world).unwrap();
    world.pass_seconds(100);
    let all = CheckOptions { restart: false, ..ALL };
    let whole = repository.check(&all).unwrap();
    assert!(!whole.resumed && whole.verified_containers == whole.containers);
    world.pass_seconds(100);
    let subset = CheckOptions { data: DataCheck::Percent(40.0), ..CheckOptions::default() };
    let first = repository.check(&subset).unwrap();
    assert!(first.verified_containers > 0 && first.verified_containers < first.containers);
    world.pass_seconds(100);
    let (mut verified, mut rounds) = (first.verified_bytes, 1);
    while verified < whole.verified_bytes {
        verified += repository.check(&subset).unwrap().verified_bytes;
        world.pass_seconds(100);
        rounds += 1;
    }
    assert!(rounds <= 3, "the share read longest ago comes first: {rounds}");
}
