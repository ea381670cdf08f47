//! Rounds: many series at once, with what they have in common stored once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_format::{ErrorKind, Level, Result};
use silt_source::VolumeSource;
use silt_storage::{MemoryStorage, Operation, RecordingStorage, list_all};
use siltstone::{BackupOptions, Repository, RoundMember, RoundOptions, RoundReport};

use crate::kit::{self, MemorySource, World};
use crate::shared;

const COMMON_BLOCKS: usize = 500;
const OWN_BLOCKS: usize = 150;

/// Backs up series by their images.
pub fn round(repository: &Repository, images: &[(&str, &[u8])]) -> Result<RoundReport> {
    round_by(repository, images, false)
}

pub fn round_by(
    repository: &Repository,
    images: &[(&str, &[u8])],
    spool: bool,
) -> Result<RoundReport> {
    let members = images.iter().map(|(name, image)| member(name, MemorySource::new(image)));
    repository.backup_round(members.collect(), &RoundOptions { spool, ..rescan() })
}

fn round_of(repository: &Repository, sources: &[(&str, MemorySource)]) -> Result<RoundReport> {
    let members = sources.iter().map(|(name, source)| member(name, Borrowed(source))).collect();
    repository.backup_round(members, &rescan())
}

pub fn rescan() -> RoundOptions {
    RoundOptions { folder: shared::spool(), memory_bytes: 0, spool: false }
}

fn member<'a>(series: &str, source: impl VolumeSource + 'a) -> RoundMember<'a> {
    let source: Box<dyn VolumeSource + 'a> = Box::new(source);
    let volumes = vec![("disk".to_owned(), source.into())];
    let (series, options) = (series.to_owned(), kit::options());
    RoundMember { series, volumes, options, on_released: None }
}

/// A member with one image.
pub fn image_member<'a>(series: &str, image: &[u8]) -> RoundMember<'a> {
    member(series, MemorySource::new(image))
}

/// A source that somebody else owns.
struct Borrowed<'a>(&'a dyn VolumeSource);

impl VolumeSource for Borrowed<'_> {
    fn info(&self) -> silt_source::SourceInfo {
        self.0.info()
    }
    fn is_sequential(&self) -> bool {
        self.0.is_sequential()
    }
    fn extent_at(&self, offset: u64) -> Result<silt_source::Extent> {
        self.0.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at(offset, buf)
    }
}

pub fn fleet() -> Vec<(&'static str, Vec<u8>)> {
    let common = kit::image(77, COMMON_BLOCKS);
    let own = |seed| [common.as_slice(), &kit::image(seed, OWN_BLOCKS)].concat();
    vec![("a", own(1)), ("b", own(2)), ("c", own(3))]
}

fn borrowed<'a>(images: &'a [(&'static str, Vec<u8>)]) -> Vec<(&'static str, &'a [u8])> {
    images.iter().map(|(name, image)| (*name, image.as_slice())).collect()
}

fn empty() -> (Arc<MemoryStorage>, Arc<World>, Repository) {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage.clone(), &world).unwrap();
    (storage, world, repository)
}

pub fn assert_latest(repository: &Repository, images: &[(&'static str, Vec<u8>)]) {
    for (name, image) in images {
        let found = kit::latest(repository, name).unwrap();
        assert!(kit::restore(repository, &found).unwrap() == *image, "{name}");
    }
}

#[test]
fn what_several_have_is_stored_once_from_the_first_day_on() {
    let (_, world, repository) = empty();
    let mut images = fleet();
    let report = round(&repository, &borrowed(&images)).unwrap();
    assert!(report.shared_chunks > 100, "{report:?}");
    for backup in report.backups.iter().flatten() {
        let levels = &backup.snapshot.volumes[0].levels;
        assert!(levels.get(Level::New) <= (OWN_BLOCKS * 4096) as u64, "{levels:?}");
        assert!(levels.get(Level::Shared) > 0, "{levels:?}");
    }
    assert_latest(&repository, &images);

    // The next day one part changes alike for two, and one changes for itself.
    world.pass_seconds(86_400);
    let update = kit::image(500, 100);
    for (_, image) in &mut images[..2] {
        image[..update.len()].copy_from_slice(&update);
    }
    images[2].1 = kit::changed(&images[2].1, 5);
    let report = round(&repository, &borrowed(&images)).unwrap();
    assert!(report.shared_chunks > 20, "{report:?}");
    let stored_new = report.backups[0].as_ref().unwrap().snapshot.volumes[0].levels.get(Level::New);
    assert_eq!(stored_new, 0, "all that is new to it is shared");
    assert_latest(&repository, &images);

    // Then nothing changes.
    world.pass_seconds(86_400);
    let report = round(&repository, &borrowed(&images)).unwrap();
    assert_eq!((report.requested_chunks, report.shared_chunks), (0, 0));
    assert_latest(&repository, &images);
    let check = shared::check(&repository);
    assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
}

#[test]
fn what_another_series_has_stored_alone_is_shared_with_the_newcomer() {
    let (_, _, repository) = empty();
    let images = fleet();
    kit::backup(&repository, "a", &images[0].1).unwrap();
    let report = round(&repository, &borrowed(&images[1..2])).unwrap();
    assert!(report.shared_chunks > 100, "{report:?}");
    // The older series drops its copies when it is told to.
    let repointed = repository.repoint("a", &shared::spool()).unwrap();
    assert!(repointed.linked_chunks > 100, "{repointed:?}");
    repository.reclaim("a", &kit::THOROUGH).unwrap();
    assert_latest(&repository, &images[..2]);
    assert!(shared::check(&repository).damage.is_empty());
}

#[test]
fn a_round_stores_what_exact_deduplication_leaves() {
    let (storage, _, repository) = empty();
    let mut images = fleet();
    // Twice in one volume, and in no other: stored once, and not shared.
    let own = kit::image(9, OWN_BLOCKS);
    images[0].1.extend([own.as_slice(), &own].concat());
    round(&repository, &borrowed(&images)).unwrap();
    let mut unique = std::collections::HashSet::new();
    for (_, image) in &images {
        unique.extend(image.chunks(4096).filter(|chunk| chunk.iter().any(|byte| *byte != 0)));
    }
    let counted = shared::build(&repository, siltstone::SharePolicy::Duplicates).unwrap();
    assert_eq!(counted.copied_chunks, 0, "{counted:?}");
    assert_eq!(counted.unique_chunks, unique.len() as u64);
    assert_eq!(counted.private_slots + counted.shared_slots, unique.len() as u64);
    assert!(list_all(&*storage, "containers/", None).count() > 1);
}

#[test]
fn a_round_may_stop_anywhere() {
    let (storage, world, repository) = empty();
    let mut images = fleet();
    kit::backup(&repository, "a", &images[0].1).unwrap();
    let before = images.clone();
    world.pass_seconds(3600);
    images[0].1 = kit::changed(&images[0].1, 5);
    let crashes = kit::each_crash(
        &storage,
        864_000,
        &|repository| round(repository, &borrowed(&images)).map(drop),
        &mut |repository| {
            let found = kit::latest(repository, "a").unwrap();
            let restored = kit::restore(repository, &found).unwrap();
            assert!(restored == before[0].1 || restored == images[0].1);
            assert!(shared::check(repository).damage.is_empty());
            round(repository, &borrowed(&images)).unwrap();
            assert_latest(repository, &images);
            shared::sweep(repository).unwrap();
            images
                .iter()
                .for_each(|(name, _)| drop(repository.reclaim(name, &kit::THOROUGH).unwrap()));
            assert_latest(repository, &images);
            let report = shared::check(repository);
            assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
        },
    );
    assert!(crashes > 40, "{crashes}");
}

/// A disk that becomes another one after so many reads.
struct Unsteady {
    before: MemorySource,
    after: MemorySource,
    steady_reads: u64,
}

impl VolumeSource for Unsteady {
    fn info(&self) -> silt_source::SourceInfo {
        self.before.info()
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<silt_source::Extent> {
        self.now().extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.now().read_at(offset, buf);
        self.before.reads.fetch_add(1, Ordering::SeqCst);
        read
    }
}

impl Unsteady {
    fn now(&self) -> &MemorySource {
        let is_steady = self.before.reads.load(Ordering::SeqCst) < self.steady_reads;
        if is_steady { &self.before } else { &self.after }
    }
}

#[test]
fn a_disk_that_changes_during_a_round_harms_no_other() {
    let images = fleet();
    // Long enough for some of the cuts to fall into every stage.
    for steady_reads in [0, 1, 2, 5, 50, 300, 1000] {
        let (_, _, repository) = empty();
        let after = kit::changed(&kit::changed(&images[0].1, 8), 9);
        let unsteady = Unsteady {
            before: MemorySource::new(&images[0].1),
            after: MemorySource::new(&after),
            steady_reads,
        };
        let steady = MemorySource::new(&images[1].1);
        let members = vec![member("a", Borrowed(&unsteady)), member("b", Borrowed(&steady))];
        repository.backup_round(members, &rescan()).unwrap();
        assert_latest(&repository, &images[1..2]);
        // The one that changed is a mixture of both, block by block, and no other data.
        let found = kit::latest(&repository, "a").unwrap();
        let restored = kit::restore(&repository, &found).unwrap();
        let blocks = restored.chunks(4096).zip(images[0].1.chunks(4096)).zip(after.chunks(4096));
        assert!(blocks.into_iter().all(|((is, was), will)| is == was || is == will));
        assert!(shared::check(&repository).damage.is_empty(), "{steady_reads}");
    }
}

/// A disk that can't be read at all.
struct Broken(MemorySource);

impl VolumeSource for Broken {
    fn info(&self) -> silt_source::SourceInfo {
        self.0.info()
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, _: u64) -> Result<silt_source::Extent> {
        Err(silt_format::Error::new(ErrorKind::Unavailable, "the cable is out"))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read_at(offset, buf)
    }
}

#[test]
fn a_member_that_fails_harms_no_other() {
    let (_, world, repository) = empty();
    let images = fleet();
    let broken = Broken(MemorySource::new(&images[0].1));
    let sources = [1, 2].map(|number| MemorySource::new(&images[number].1));
    let [b, c] = sources;
    let members = vec![member("a", broken), member("b", b), member("c", c)];
    let report = repository.backup_round(members, &rescan()).unwrap();
    let error = report.backups[0].as_ref().unwrap_err();
    assert!(error.to_string().contains("the cable is out"), "{error}");
    assert!(report.shared_chunks > 100, "the others share: {report:?}");
    assert_latest(&repository, &images[1..]);

    // Whose series is in use waits for the next round.
    let held = repository.backup("b", kit::options()).unwrap();
    let report = round(&repository, &borrowed(&images)).unwrap();
    let kinds =
        report.backups.iter().map(|backup| backup.as_ref().err().map(silt_format::Error::kind));
    assert_eq!(kinds.collect::<Vec<_>>(), [None, Some(ErrorKind::Busy), None]);
    drop(held);

    // An interruption is one of all.
    world.interrupted.store(true, Ordering::SeqCst);
    let error = round(&repository, &borrowed(&images)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    world.interrupted.store(false, Ordering::SeqCst);
    round(&repository, &borrowed(&images)).unwrap();
    assert_latest(&repository, &images);
    assert!(shared::check(&repository).damage.is_empty());
}

#[test]
fn what_cannot_be_read_is_named_in_its_own_snapshot_only() {
    let (_, _, repository) = empty();
    let images = fleet();
    let sources: Vec<_> =
        images.iter().map(|(name, image)| (*name, MemorySource::new(image))).collect();
    let block = images[1].1.chunks(4096).position(|block| block.iter().any(|byte| *byte != 0));
    let span = silt_format::ByteSpan { offset: block.unwrap() as u64 * 4096, length: 4096 };
    sources[1].1.failing.lock().unwrap().push(span);
    let report = round_of(&repository, &sources).unwrap();
    let unreadable = report.backups.iter().map(|backup| {
        backup.as_ref().unwrap().snapshot.volumes[0].unreadable.iter().map(|s| s.length).sum()
    });
    assert_eq!(unreadable.collect::<Vec<u64>>(), [0, 4096, 0]);
    assert_latest(&repository, &[images[0].clone(), images[2].clone()]);
}

#[test]
fn members_that_cannot_be_backed_up_together_are_refused() {
    let (storage, _, repository) = empty();
    let objects = list_all(&*storage, "", None).count();
    let source = || MemorySource::new(&kit::image(1, 10));
    let twice = vec![member("a", source()), member("a", source())];
    let error = repository.backup_round(twice, &rescan()).unwrap_err();
    assert!(error.to_string().contains("in the round twice"), "{error}");
    let stream = MemorySource { sequential: true, ..MemorySource::new(&kit::image(1, 10)) };
    let error = repository.backup_round(vec![member("a", stream)], &rescan()).unwrap_err();
    assert!(error.to_string().contains("back it up alone"), "{error}");
    assert_eq!(list_all(&*storage, "", None).count(), objects, "nothing was written");
}

#[test]
fn while_the_shared_store_is_changed_elsewhere_a_round_shares_nothing_and_backs_up_all() {
    let (storage, _, repository) = empty();
    let images = fleet();
    // Another process has taken the store's lease, and has not given it back.
    let other = World::process(70, 5, "there", &Arc::default());
    let crashing = silt_storage::CrashStorage::new(
        storage.clone(),
        1,
        silt_storage::Counted::Mutations,
        silt_storage::CrashingOperation::Lost,
    );
    kit::backup(&repository, "a", &images[0].1).unwrap();
    kit::backup(&repository, "b", &images[1].1).unwrap();
    let elsewhere = kit::open(Arc::new(crashing), &other).unwrap();
    shared::build(&elsewhere, siltstone::SharePolicy::Duplicates).unwrap_err();
    let report = round(&repository, &borrowed(&images)).unwrap();
    assert_eq!((report.shared_chunks, report.backups.iter().flatten().count()), (0, 3));
    assert_latest(&repository, &images);
}

/// A source that calls something at its first read and when it is dropped.
struct Watched<'a> {
    source: MemorySource,
    at_first_read: &'a (dyn Fn() + Sync),
    is_read: std::sync::atomic::AtomicBool,
    is_open: &'a std::sync::atomic::AtomicBool,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.is_open.store(false, Ordering::SeqCst);
    }
}

impl VolumeSource for Watched<'_> {
    fn info(&self) -> silt_source::SourceInfo {
        self.source.info()
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<silt_source::Extent> {
        self.source.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if !self.is_read.swap(true, Ordering::SeqCst) {
            (self.at_first_read)();
        }
        self.source.read_at(offset, buf)
    }
}

/// While the second member is scanned, somebody else backs up another disk as the first.
fn race(spool: bool) -> (Repository, Vec<(&'static str, Vec<u8>)>, RoundReport) {
    let (_, _, repository) = empty();
    let mut images = fleet();
    round(&repository, &borrowed(&images)).unwrap();
    let other = kit::changed(&images[0].1, 99);
    images[1].1 = kit::changed(&images[1].1, 5);
    let is_open = std::sync::atomic::AtomicBool::new(true);
    let watched = Watched {
        source: MemorySource::new(&images[1].1),
        // The scan of the first may still be giving its lease back.
        at_first_read: &|| {
            let mut tries = (0..100_000).map(|_| kit::backup(&repository, "a", &other));
            assert!(tries.any(|backup| backup.is_ok()), "the lease is not given back");
        },
        is_read: false.into(),
        is_open: &is_open,
    };
    let members = vec![member("a", MemorySource::new(&images[0].1)), member("b", watched)];
    let report = repository.backup_round(members, &RoundOptions { spool, ..rescan() }).unwrap();
    (repository, images, report)
}

#[test]
fn a_scan_says_nothing_of_another_parent() {
    let (repository, images, report) = race(false);
    assert!(report.backups.iter().all(Result::is_ok), "{report:?}");
    assert_latest(&repository, &images);

    // What a spool has not can't be read again.
    let (repository, images, report) = race(true);
    let error = report.backups[0].as_ref().unwrap_err();
    assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("back it up again"));
    assert_latest(&repository, &images[1..]);
    round(&repository, &borrowed(&images)).unwrap();
    assert_latest(&repository, &images);
    assert!(shared::check(&repository).damage.is_empty());
}

#[test]
fn with_a_spool_volumes_are_closed_and_released_after_the_scan() {
    use std::sync::atomic::AtomicBool;

    let (_, world, repository) = empty();
    let mut images = fleet();
    let spool = || RoundOptions { spool: true, ..rescan() };
    for day in 0..3 {
        let is_open = AtomicBool::new(true);
        let was_open_at_release = AtomicBool::new(true);
        let is_released = AtomicBool::new(false);
        // The second is scanned after the first was let go.
        let mut members = Vec::new();
        let is_other_open = AtomicBool::new(true);
        let first = Watched {
            source: MemorySource::new(&images[0].1),
            at_first_read: &|| (),
            is_read: false.into(),
            is_open: &is_open,
        };
        let second = Watched {
            source: MemorySource::new(&images[1].1),
            at_first_read: &|| assert!(is_released.load(Ordering::SeqCst)),
            is_read: false.into(),
            is_open: &is_other_open,
        };
        let mut a = member("a", first);
        a.on_released = Some(Box::new(|| {
            was_open_at_release.store(is_open.load(Ordering::SeqCst), Ordering::SeqCst);
            is_released.store(true, Ordering::SeqCst);
        }));
        members.push(a);
        members.push(member("b", second));
        members.push(member("c", MemorySource::new(&images[2].1)));
        let report = repository.backup_round(members, &spool()).unwrap();
        assert!(is_released.load(Ordering::SeqCst) && !was_open_at_release.load(Ordering::SeqCst));
        assert!(report.spooled_bytes > 0, "{report:?}");
        assert_latest(&repository, &images);
        if day == 0 {
            assert!(report.shared_chunks > 100, "{report:?}");
        }
        world.pass_seconds(86_400);
        images.iter_mut().for_each(|(_, image)| *image = kit::changed(image, 40 + day));
        // A disk that grows can't be spooled, and is read again.
        if day == 1 {
            images[2].1.extend(kit::image(70, 600));
        }
    }
    let check = shared::check(&repository);
    assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
}

#[test]
fn a_spool_names_what_could_not_be_read() {
    let (_, _, repository) = empty();
    let images = fleet();
    let holds_data = |block: &[u8]| block.iter().any(|byte| *byte != 0);
    let block = images[0].1.chunks(4096).position(holds_data).unwrap() as u64;
    let span = silt_format::ByteSpan { offset: block * 4096, length: 4096 };
    for _ in 0..2 {
        let source = MemorySource::new(&images[0].1);
        source.failing.lock().unwrap().push(span);
        let options = RoundOptions { spool: true, ..rescan() };
        let report = repository.backup_round(vec![member("a", source)], &options).unwrap();
        let backup = report.backups[0].as_ref().unwrap();
        assert_eq!(backup.snapshot.volumes[0].unreadable, [span]);
        let found = kit::latest(&repository, "a").unwrap();
        let mut expected = images[0].1.clone();
        let start = usize::try_from(span.offset).unwrap();
        expected[start..start + 4096].fill(0);
        assert!(kit::restore(&repository, &found).unwrap() == expected);
    }
    // Once it can be read, it is.
    let options = RoundOptions { spool: true, ..rescan() };
    let source = MemorySource::new(&images[0].1);
    repository.backup_round(vec![member("a", source)], &options).unwrap();
    assert_latest(&repository, &images[..1]);
}

/// What the scan has found needs no second look: of a volume only what is stored is read again.
#[test]
fn volumes_are_read_once_and_what_is_stored_of_them_twice() {
    for chunking in ["4K", "cdc"] {
        let (_, world, repository) = empty();
        let image = kit::image(5, 4 * 512);
        for day in 0..3 {
            world.pass_seconds(86_400);
            let today = (0..day).fold(image.clone(), |image, seed| kit::changed(&image, seed));
            let sources = ["a", "b"].map(|_| MemorySource::new(&today));
            let members = ["a", "b"].into_iter().zip(&sources).map(|(name, source)| {
                let member = member(name, Borrowed(source));
                let chunking = Some(kit::chunked(chunking));
                RoundMember { options: BackupOptions { chunking, ..member.options }, ..member }
            });
            let report = repository.backup_round(members.collect(), &rescan()).unwrap();
            let read = sources.each_ref().map(|source| source.read_bytes.load(Ordering::SeqCst));
            let scanned = read[1];
            assert!(scanned <= today.len() as u64, "{read:?}");
            // The first is where shared chunks are read; between them there may be gaps.
            assert!(read[0] <= scanned + report.shared_bytes, "{report:?}");
            for (name, backup) in ["a", "b"].iter().zip(&report.backups) {
                let levels = &backup.as_ref().unwrap().snapshot.volumes[0].levels;
                assert_eq!(levels.get(Level::New), 0, "{levels:?}");
                assert_latest(&repository, &[(name, today.clone())]);
            }
        }
        let check = shared::check(&repository);
        assert!(check.damage.is_empty() && check.unreferenced == 0, "{check:?}");
    }
}

#[test]
fn new_series_of_a_round_search_for_their_names_once() {
    let world = World::new(9);
    let heads_read = |new: usize| {
        let storage = Arc::new(RecordingStorage::new(MemoryStorage::new()));
        let repository = kit::init(storage.clone(), &world).unwrap();
        for number in 0..12 {
            kit::backup(&repository, &format!("old{number}"), &kit::image(number, 3)).unwrap();
        }
        repository.rename("old3", "new1").unwrap();
        storage.take();
        let images: Vec<_> = (0..new)
            .map(|number| (format!("new{number}"), kit::image(100 + number as u64, 3)))
            .collect();
        let members = images.iter().map(|(name, image)| image_member(name, image)).collect();
        let report = repository.backup_round(members, &rescan()).unwrap();
        let heads = storage.take().into_iter().filter(|it| match &it.operation {
            Operation::Get { key, .. } => key.as_str().contains("/heads/"),
            _ => false,
        });
        let failed = report.backups.iter().enumerate().filter(|(_, it)| it.is_err());
        assert_eq!(failed.map(|(number, _)| number).collect::<Vec<_>>(), [1]);
        let error = report.backups[1].as_ref().unwrap_err();
        assert!(error.to_string().contains("series 'old3' is shown"), "{error}");
        assert_eq!(repository.own_name("new1").unwrap(), "old3");
        heads.count()
    };
    // Were each to search, eight more would read 12 heads each, twice.
    let (few, many) = (heads_read(4), heads_read(12));
    assert!(many < few + 24, "{few} reads of heads for 4 new series, {many} for 12");
}
