//! Rounds of file trees and disks, on one host and on several.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use silt_format::{ErrorKind, Level, Result};
use silt_sharing::exchange::HostRound;
use silt_storage::MemoryStorage;
use silt_tree::{FileSource, LocalTree, Rules, TreeOrigin, TreeSource};
use siltstone::{
    BackupOptions, Repository, RoundMember, RoundReport, RoundVolume, SharePolicy, TreeOptions,
};

use crate::exchanges::{exchange, several};
use crate::kit::{self, MemorySource, Random, World};
use crate::nodes::with_nodes;
use crate::rounds::rescan;
use crate::shared;
use crate::tree_damage::{Files, ahead_s, on_disk, stored};
use crate::tree_kit::{Scratch, assert_same, awkward_tree, has};
use crate::trees::rename;

const IMAGE_BLOCKS: usize = 300;
const OWN_BYTES: usize = 60_000;
/// More than enough for the last chunks of files and blocks that differ.
const SLACK_BYTES: u64 = 40_000;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Random(seed).fill(&mut content);
    content
}

/// The image of a disk that is on every machine, as a file and as a disk.
fn image() -> Vec<u8> {
    let mut image = kit::image(77, IMAGE_BLOCKS);
    image[..4].copy_from_slice(b"QFI\xfb");
    image
}

/// What every machine has: small files, a large one, one with holes, and the image of a disk.
fn install(root: &Path, own: u64) {
    fs::create_dir_all(root.join("programs/of all")).unwrap();
    for number in 0..8 {
        let content = noise(100 + number, 9_000 + 3_000 * usize::try_from(number).unwrap());
        fs::write(root.join(format!("programs/of all/{number}")), content).unwrap();
    }
    fs::write(root.join("library"), noise(7, 5_000_000)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for (seed, offset) in [(1, 0), (2, 1 << 20), (3, (1 << 20) + 200_000), (4, 7 << 20)] {
        sparse.write_all_at(&noise(200 + seed, 70_000), offset).unwrap();
    }
    fs::write(root.join("machine.qcow2"), image()).unwrap();
    fs::write(root.join("own"), noise(own, OWN_BYTES)).unwrap();
}

fn options() -> BackupOptions {
    kit::options()
}

fn tree<'a>(series: &str, tree: impl TreeOrigin + 'a) -> RoundMember<'a> {
    let volume = RoundVolume::Tree(Box::new(tree), TreeOptions::default());
    let volumes = vec![("files".to_owned(), volume)];
    RoundMember { series: series.to_owned(), volumes, options: options(), on_released: None }
}

fn local(root: &Path) -> LocalTree {
    LocalTree::new(root, &Rules::default())
}

fn disk<'a>(series: &str, bytes: &[u8]) -> RoundMember<'a> {
    let disk = RoundVolume::Disk(Box::new(MemorySource::new(bytes)));
    let volumes = vec![("disk".to_owned(), disk)];
    RoundMember { series: series.to_owned(), volumes, options: options(), on_released: None }
}

/// Two machines of which the files are backed up, and one of which it is the disk.
struct Fleet {
    scratch: Scratch,
    roots: [PathBuf; 2],
    disk: Vec<u8>,
}

const NAMES: [&str; 2] = ["a", "b"];

impl Fleet {
    fn new() -> Self {
        let scratch = Scratch::new();
        let roots = NAMES.map(|name| scratch.folder(name));
        (1..).zip(&roots).for_each(|(own, root)| install(root, own));
        let disk = [&image()[..], &kit::image(3, 20)].concat();
        Self { scratch, roots, disk }
    }

    fn one_host(&self) -> (Arc<MemoryStorage>, Arc<World>, Repository) {
        let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
        world.pass_seconds(ahead_s(&self.scratch));
        let repository = kit::init(storage.clone(), &world).unwrap();
        (storage, world, repository)
    }

    fn members<'a>(&self) -> Vec<RoundMember<'a>> {
        let trees = NAMES.iter().zip(&self.roots).map(|(name, root)| tree(name, local(root)));
        trees.chain([disk("vm", &self.disk)]).collect()
    }

    fn round(&self, repository: &Repository) -> Result<RoundReport> {
        repository.backup_round(self.members(), &rescan())
    }

    fn files(&self) -> Vec<Files> {
        self.roots.iter().map(|root| on_disk(root)).collect()
    }

    fn assert_whole(&self, repository: &Repository) {
        for (name, files) in NAMES.iter().zip(self.files()) {
            assert!(latest(repository, name) == files, "{name}");
        }
        let found = kit::latest(repository, "vm").unwrap();
        assert!(kit::restore(repository, &found).unwrap() == self.disk);
        let report = shared::check(repository);
        assert!(report.damage.is_empty(), "{report:?}");
    }
}

fn latest(repository: &Repository, series: &str) -> Files {
    stored(repository, &kit::latest(repository, series).unwrap())
}

/// The bytes that a level has found in each backup of a round.
fn found(report: &RoundReport, level: Level) -> Vec<u64> {
    let of = |backup: &Result<siltstone::BackupReport>| {
        backup.as_ref().unwrap().snapshot.levels().get(level)
    };
    report.backups.iter().map(of).collect()
}

/// That every chunk is stored once, for whichever series.
fn assert_stored_once(repository: &Repository) {
    let counted = shared::build(repository, SharePolicy::Duplicates).unwrap();
    assert_eq!(counted.copied_chunks, 0, "{counted:?}");
    assert_eq!(counted.private_slots + counted.shared_slots, counted.unique_chunks);
}

#[test]
fn what_trees_and_disks_have_in_common_is_stored_once_from_the_first_day_on() {
    let mut fleet = Fleet::new();
    let (_, world, repository) = fleet.one_host();
    let report = fleet.round(&repository).unwrap();
    let own = [OWN_BYTES as u64, OWN_BYTES as u64, 20 * 4096];
    let is_own = |(new, own): (&u64, &u64)| *new <= own + SLACK_BYTES;
    let new = found(&report, Level::New);
    assert!(new.iter().zip(&own).all(is_own), "{new:?}");
    let shared = found(&report, Level::Shared);
    assert!(shared[..2].iter().all(|bytes| *bytes > 6_000_000), "{shared:?}");
    assert!(shared[2] > 500_000, "{shared:?}");
    fleet.assert_whole(&repository);
    assert_stored_once(&repository);

    // The next day two have a file in common, and one has changed a large one.
    world.pass_seconds(86_400);
    for root in &fleet.roots {
        fs::write(root.join("update"), noise(500, 1_200_000)).unwrap();
    }
    let library = fs::File::options().write(true).open(fleet.roots[0].join("library")).unwrap();
    library.write_all_at(&noise(501, 50_000), 2_000_000).unwrap();
    fleet.disk[4096..8192].copy_from_slice(&noise(502, 4096));
    let report = fleet.round(&repository).unwrap();
    let (new, shared) = (found(&report, Level::New), found(&report, Level::Shared));
    assert!(new[0] < 200_000 && new[1] < SLACK_BYTES && new[2] == 4096, "{new:?}");
    assert!(shared[..2].iter().all(|bytes| *bytes > 1_100_000), "{shared:?}");
    fleet.assert_whole(&repository);
    assert_stored_once(&repository);

    // Then nothing changes, and nothing is read.
    world.pass_seconds(86_400);
    let report = fleet.round(&repository).unwrap();
    assert_eq!((report.requested_chunks, report.shared_chunks), (0, 0));
    let read = report.backups.iter().map(|it| it.as_ref().unwrap().snapshot.levels().total());
    assert_eq!(read.take(2).collect::<Vec<_>>(), [0, 0]);
    fleet.assert_whole(&repository);
    let check = shared::check(&repository);
    assert!(check.unreferenced == 0, "{check:?}");
}

#[test]
fn a_round_of_trees_and_disks_may_stop_anywhere() {
    let fleet = Fleet::new();
    let small = |root: &Path| {
        fs::remove_file(root.join("library")).unwrap();
        fs::remove_file(root.join("sparse")).unwrap();
    };
    fleet.roots.iter().for_each(|root| small(root));
    let (storage, world, repository) = fleet.one_host();
    let mut session = repository.backup("a", options()).unwrap();
    session.add_tree("files", &fleet.roots[0], &TreeOptions::default()).unwrap();
    session.finish().unwrap();
    let before = on_disk(&fleet.roots[0]);
    world.pass_seconds(3600);
    fleet.roots.iter().for_each(|root| fs::write(root.join("new"), noise(9, 90_000)).unwrap());
    let crashes = kit::each_crash(
        &storage,
        ahead_s(&fleet.scratch) + 864_000,
        &|repository| fleet.round(repository).map(drop),
        &mut |repository| {
            let found = latest(repository, "a");
            assert!(found == before || found == on_disk(&fleet.roots[0]));
            assert!(shared::check(repository).damage.is_empty());
            fleet.round(repository).unwrap();
            fleet.assert_whole(repository);
            shared::sweep(repository).unwrap();
            for name in ["a", "b", "vm"] {
                repository.reclaim(name, &kit::THOROUGH).unwrap();
            }
            fleet.assert_whole(repository);
            let report = shared::check(repository);
            assert!(report.unreferenced == 0, "{report:?}");
        },
    );
    assert!(crashes > 40, "{crashes}");
}

/// When a tree changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// When the round walks it for this time.
    Walk(usize),
    /// When the round reads so many of its files again: first those that are shared, then others.
    Open(usize),
}

/// A tree that changes during a round.
struct Changing<'c> {
    tree: LocalTree,
    when: Option<When>,
    change: &'c (dyn Fn() + Sync),
    /// How often it was walked.
    walks: &'c AtomicUsize,
    /// How many files were opened by their paths.
    opened: AtomicUsize,
}

impl<'c> Changing<'c> {
    fn new(
        root: &Path,
        when: Option<When>,
        change: &'c (dyn Fn() + Sync),
        walks: &'c AtomicUsize,
    ) -> Self {
        Self { tree: local(root), when, change, walks, opened: AtomicUsize::new(0) }
    }

    fn reach(&self, now: When) {
        if Some(now) == self.when {
            (self.change)();
        }
    }
}

impl TreeOrigin for Changing<'_> {
    fn description(&self) -> String {
        self.tree.description()
    }
    fn walk(&self) -> Result<Box<dyn TreeSource>> {
        self.reach(When::Walk(self.walks.fetch_add(1, Ordering::SeqCst)));
        self.tree.walk()
    }
    fn open_file(&self, path: &[u8]) -> Result<Box<dyn FileSource>> {
        self.reach(When::Open(self.opened.fetch_add(1, Ordering::SeqCst)));
        self.tree.open_file(path)
    }
}

/// What changes in a tree, and how.
type Change = (&'static str, fn(&Path));

const CHANGES: [Change; 6] = [
    ("other bytes", |root| {
        for file in ["library", "own", "sparse", "programs/of all/3", "machine.qcow2"] {
            let file = fs::File::options().write(true).open(root.join(file)).unwrap();
            file.write_all_at(&noise(600, 20_000), 3_000).unwrap();
        }
    }),
    ("shorter", |root| {
        for file in ["library", "own", "sparse", "programs/of all/3", "machine.qcow2"] {
            let file = fs::File::options().write(true).open(root.join(file)).unwrap();
            file.set_len(8_000).unwrap();
        }
    }),
    ("removed", |root| {
        fs::remove_dir_all(root.join("programs")).unwrap();
        fs::remove_file(root.join("library")).unwrap();
    }),
    ("renamed", |root| {
        rename(&root.join("programs"), root.join("renamed"));
        rename(&root.join("library"), root.join("sparse"));
    }),
    ("another kind", |root| {
        for file in ["library", "programs/of all/3"] {
            fs::remove_file(root.join(file)).unwrap();
            fs::create_dir(root.join(file)).unwrap();
        }
    }),
    ("more", |root| {
        let file = fs::File::options().append(true).open(root.join("programs/of all/3"));
        std::io::Write::write_all(&mut file.unwrap(), &noise(601, 2_000_000)).unwrap();
        fs::write(root.join("another"), noise(602, 30_000)).unwrap();
    }),
];

/// The shared files of a tree are opened first, then its own one.
const OWN: usize = 11;

#[test]
fn files_that_change_between_the_passes_restore_to_a_state_that_they_had() {
    for (what, change) in CHANGES {
        for at in [0, 3, 9, OWN] {
            let fleet = Fleet::new();
            let (_, _, repository) = fleet.one_host();
            let (changed, walks) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let event = || {
                changed.fetch_add(1, Ordering::SeqCst);
                change(&fleet.roots[0]);
            };
            let before = on_disk(&fleet.roots[0]);
            let mut members = fleet.members();
            let when = Some(When::Open(at));
            members[0] = tree("a", Changing::new(&fleet.roots[0], when, &event, &walks));
            let report = repository.backup_round(members, &rescan()).unwrap();
            assert_eq!(changed.into_inner(), 1, "{what} {at}");
            assert!(report.shared_chunks > 0, "{what} {at}: {report:?}");
            // As it was scanned, or if that is not possible any more, as it is now.
            let found = latest(&repository, "a");
            match walks.into_inner() {
                1 => assert!(found == before, "{what} {at}"),
                _ => assert!(found == on_disk(&fleet.roots[0]), "{what} {at}"),
            }
            assert!(latest(&repository, "b") == on_disk(&fleet.roots[1]), "{what} {at}");
            assert!(shared::check(&repository).damage.is_empty(), "{what} {at}");
            fleet.round(&repository).unwrap();
            fleet.assert_whole(&repository);
        }
    }
}

/// The backup needs no second walk: the scan has recorded what it met. What nobody else has is read
/// again, and has to be what it was.
#[test]
fn a_tree_is_walked_once_unless_what_is_stored_of_it_changes() {
    for (file, when, expected) in [
        ("library", None, 1),
        ("library", Some(When::Open(OWN)), 1),
        ("own", Some(When::Open(OWN)), 2),
    ] {
        let fleet = Fleet::new();
        let (_, _, repository) = fleet.one_host();
        let walks = AtomicUsize::new(0);
        let update = || fs::write(fleet.roots[0].join(file), noise(800, 70_000)).unwrap();
        let mut members = fleet.members();
        members[0] = tree("a", Changing::new(&fleet.roots[0], when, &update, &walks));
        let report = repository.backup_round(members, &rescan()).unwrap();
        assert!(report.backups.iter().all(Result::is_ok), "{report:?}");
        assert_eq!(walks.into_inner(), expected, "{file} {when:?}");
    }
}

/// The backup reads again what only storage nodes have, so the scan tells where that is.
#[test]
fn a_tree_that_is_in_storage_nodes_is_walked_once() {
    let fleet = Fleet::new();
    let (_, world, repository) = with_nodes(&["one"]);
    world.pass_seconds(ahead_s(&fleet.scratch));
    for series in ["a", "c"] {
        let walks = AtomicUsize::new(0);
        let member = tree(series, Changing::new(&fleet.roots[0], None, &|| {}, &walks));
        let report = repository.backup_round(vec![member], &rescan()).unwrap();
        assert!(report.backups.iter().all(Result::is_ok), "{report:?}");
        assert_eq!(walks.into_inner(), 1, "{series}");
        assert!(latest(&repository, series) == on_disk(&fleet.roots[0]), "{series}");
    }
}

/// While the second tree is scanned, somebody else backs up another state of the first.
#[test]
fn the_record_of_a_tree_says_nothing_of_another_parent() {
    let fleet = Fleet::new();
    let (_, world, repository) = fleet.one_host();
    fleet.round(&repository).unwrap();
    world.pass_seconds(86_400);
    let root = &fleet.roots[0];
    fs::write(root.join("another"), noise(40, 30_000)).unwrap();
    let backup = || {
        let mut session = repository.backup("a", options())?;
        session.add_tree("files", root, &TreeOptions::default())?;
        session.finish()
    };
    let somebody = || {
        fs::remove_dir_all(root.join("programs")).unwrap();
        fs::write(root.join("library"), noise(41, 3_000_000)).unwrap();
        // The scan of the first may still be giving its lease back.
        let mut tries = (0..100_000).map(|_| backup());
        assert!(tries.any(|backup| backup.is_ok()), "the lease is not given back");
        fs::write(root.join("library"), noise(42, 1_500_000)).unwrap();
    };
    let walks = AtomicUsize::new(0);
    let mut members = fleet.members();
    let when = Some(When::Walk(0));
    members[1] = tree("b", Changing::new(&fleet.roots[1], when, &somebody, &walks));
    let report = repository.backup_round(members, &rescan()).unwrap();
    assert!(report.backups.iter().all(Result::is_ok), "{report:?}");
    fleet.assert_whole(&repository);
}

/// What the record of a scan holds of a tree is all that there is to know.
#[test]
fn every_oddity_of_a_tree_comes_back_from_a_round() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let roots = NAMES.map(|name| scratch.folder(name));
    roots.iter().for_each(|root| drop(awkward_tree(root)));
    let (repository, world) = crate::trees::repository(&scratch);
    let mut volumes = Vec::new();
    for day in 0..3 {
        let walks = AtomicUsize::new(0);
        let nothing = || ();
        let members = NAMES.iter().zip(&roots);
        let members =
            members.map(|(name, root)| tree(name, Changing::new(root, None, &nothing, &walks)));
        let report = repository.backup_round(members.collect(), &rescan()).unwrap();
        assert_eq!(walks.load(Ordering::SeqCst), 2, "each once");
        for (name, root) in NAMES.iter().zip(&roots) {
            let found = kit::latest(&repository, name).unwrap();
            let target = scratch.path(&format!("{name} of day {day}"));
            crate::trees::restore(&repository, &found, &target);
            assert_same(root, &target);
        }
        crate::trees::assert_whole(&repository);
        let first = report.backups.into_iter().next().unwrap().unwrap();
        volumes.push(first.snapshot.volumes[0].clone());
        if day == 0 {
            fs::write(roots[0].join("another"), noise(1, 20_000)).unwrap();
        }
        world.pass_seconds(86_400);
    }
    // On the last day nothing had changed: all pages are those of the day before.
    let pages = |day: usize| (volumes[day].root, volumes[day].tree().unwrap().root.subtree);
    assert!(pages(0) != pages(1));
    assert_eq!(pages(1), pages(2));
}

#[test]
fn a_tree_that_goes_away_harms_no_other() {
    for when in [When::Walk(0), When::Open(2), When::Open(OWN)] {
        let fleet = Fleet::new();
        let (_, _, repository) = fleet.one_host();
        let gone = || fs::remove_dir_all(&fleet.roots[0]).unwrap();
        let walks = AtomicUsize::new(0);
        let mut members = fleet.members();
        members[0] = tree("a", Changing::new(&fleet.roots[0], Some(when), &gone, &walks));
        let report = repository.backup_round(members, &rescan()).unwrap();
        let error = report.backups[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{when:?} {error}");
        assert!(report.backups[1..].iter().all(Result::is_ok), "{report:?}");
        assert!(latest(&repository, "b") == on_disk(&fleet.roots[1]));
        assert!(shared::check(&repository).damage.is_empty());
    }
}

/// A series that shares nothing is backed up beside the others.
#[test]
fn a_series_that_shares_nothing_takes_part_by_itself() {
    let fleet = Fleet::new();
    let (_, _, repository) = fleet.one_host();
    let mut members = fleet.members();
    members[0].options.no_share = true;
    members.push(RoundMember {
        options: BackupOptions { no_share: true, ..options() },
        ..disk("alone", &fleet.disk)
    });
    let report = repository.backup_round(members, &rescan()).unwrap();
    let shared = found(&report, Level::Shared);
    assert!(shared[0] == 0 && shared[3] == 0 && shared[1] > 500_000, "{shared:?}");
    fleet.assert_whole(&repository);
    let alone = kit::latest(&repository, "alone").unwrap();
    assert!(kit::restore(&repository, &alone).unwrap() == fleet.disk);
}

/// Nobody else can use what a scan finds in it, so a round does not scan it, and its backup
/// reads it once.
#[test]
fn a_tree_that_shares_nothing_is_read_by_its_backup_alone() {
    let [asked, asked_of_others] = [false, true].map(|no_share| {
        let fleet = Fleet::new();
        let (_, _, repository) = fleet.one_host();
        let (walks, read_again) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let note = || {
            read_again.fetch_add(1, Ordering::SeqCst);
        };
        let mut members = fleet.members();
        let scanned = Some(When::Open(0));
        members[0] = tree("a", Changing::new(&fleet.roots[0], scanned, &note, &walks));
        members[0].options.no_share = no_share;
        let report = repository.backup_round(members, &rescan()).unwrap();
        assert_eq!(walks.into_inner(), 1);
        assert_eq!(read_again.into_inner(), usize::from(!no_share));
        fleet.assert_whole(&repository);
        report.requested_chunks
    });
    assert!(asked_of_others < asked, "{asked_of_others} of {asked}");
}

/// A host's trees and disks share with those of others what all have, stored by one of them.
#[test]
fn hosts_store_together_what_their_trees_and_disks_have_in_common() {
    let fleet = Fleet::new();
    let (_, world, repositories) = several(3);
    let (hosts, options) = (repositories.iter().collect::<Vec<_>>(), rescan());
    for day in 0..2 {
        let rounds = hosts.iter().zip(fleet.members());
        let rounds = rounds.map(|(host, member)| HostRound::scan(host, vec![member], &options));
        let rounds = rounds.collect::<Result<Vec<_>>>().unwrap();
        let reports = exchange(&hosts, rounds, &mut |_| {}).unwrap();
        fleet.assert_whole(hosts[0]);
        if day == 0 {
            let new: Vec<u64> =
                reports.iter().flat_map(|report| found(report, Level::New)).collect();
            let most = OWN_BYTES as u64 + 20 * 4096 + SLACK_BYTES;
            assert!(new.iter().all(|bytes| *bytes < most), "{new:?}");
            // Each of those with trees has stored some of it.
            assert!(reports[..2].iter().all(|report| report.shared_chunks > 0), "{reports:?}");
        }
        assert_stored_once(hosts[1]);
        world.pass_seconds(86_400);
        fleet.roots.iter().for_each(|root| {
            fs::write(root.join("update"), noise(700, 900_000)).unwrap();
        });
    }
}
