//! Pages of directories as no backup writes them: whoever has a key that may back up can store
//! them. Nothing outside of the target is touched, what can't be made is named, and the rest is.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use silt_format::tree::{
    DeviceNumber, Entry, EntryKind, Extent, FileKind, Metadata, State, Subtree, Timestamp,
    TreeBranch, TreePage,
};
use silt_format::{BlockKind, BlockRef, ObjectTag, SEGMENT_BYTES};
use silt_repository::map::MapReader;
use silt_repository::packs::PackWriter;
use silt_storage::MemoryStorage;
use silt_tree::{Existing, MakeOptions};
use siltstone::{
    ArchiveFormat, FileQuery, Found, PathRules, Repository, TreeOptions, TreeRestoreOptions,
    VolumeKind,
};

use crate::kit::{self, World};
use crate::tree_kit::Scratch;

fn entry(name: &[u8], kind: EntryKind) -> Entry {
    let metadata = Metadata {
        kind,
        mode: 0o755,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        modified: Timestamp { seconds: 1_000_000_000, nanoseconds: 0 },
        changed: Timestamp::default(),
        size: 0,
        inode: u64::from(name.iter().map(|byte| u32::from(*byte)).sum::<u32>()),
        file_system: 0,
        links: 1,
        target: Vec::new(),
        device: DeviceNumber::default(),
        flags: 0,
        xattrs: Vec::new(),
    };
    let (state, extents) = (State::Whole, Vec::new());
    let content = FileKind::default();
    Entry { name: name.to_vec(), metadata, state, content, extents, subtree: None }
}

fn file(name: &[u8]) -> Entry {
    entry(name, EntryKind::File)
}

fn link(name: &[u8], target: &[u8]) -> Entry {
    let mut link = entry(name, EntryKind::Symlink);
    link.metadata.target = target.to_vec();
    link
}

/// A repository with a snapshot of an honest tree, whose pages are then made up.
struct Case {
    scratch: Scratch,
    repository: Repository,
    found: Found,
    packs: PackWriter,
}

impl Case {
    fn new() -> Self {
        let (scratch, world) = (Scratch::new(), World::new(1));
        let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
        fs::write(scratch.folder("source").join("honest"), b"content").unwrap();
        let mut session = repository.backup("home", kit::options()).unwrap();
        session.add_tree("files", &scratch.path("source"), &TreeOptions::default()).unwrap();
        session.finish().unwrap();
        let found = kit::latest(&repository, "home").unwrap();
        let (head, objects) = (&found.head, &repository.objects);
        let reader = Arc::new(MapReader::new(objects, head));
        let (next, tag) = (head.next_pack, ObjectTag::first(7));
        let packs = PackWriter::new(objects, head.series, &reader, next, tag).unwrap();
        Self { scratch, repository, found, packs }
    }

    fn page(&mut self, page: &TreePage) -> BlockRef {
        self.packs.append(BlockKind::TreePage, &page.encode()).unwrap()
    }

    /// A directory with a page for each of these lists of entries.
    fn directory(&mut self, name: &[u8], pages: Vec<Vec<Entry>>) -> Entry {
        let mut directory = entry(name, EntryKind::Directory);
        let children = (0_u8..)
            .zip(pages)
            .map(|(at, entries)| TreeBranch {
                first: vec![at],
                page: self.page(&TreePage::Leaf(entries)),
            })
            .collect();
        let page = self.page(&TreePage::Branch(1, children));
        let (entries, entries_below, bytes_below) = (u64::MAX, u64::MAX, u64::MAX);
        directory.subtree = Some(Subtree { level: 1, page, entries, entries_below, bytes_below });
        directory
    }

    /// Puts the directory in place of the snapshot's tree. The honest tree is still to be had.
    fn forged(&mut self, root: Entry) -> Found {
        for (number, tag) in self.packs.finish().unwrap().into_numbers() {
            self.found.head.packs.push(number, tag);
        }
        let mut forged = self.found.clone();
        let VolumeKind::Tree(tree) = &mut forged.snapshot.volumes[0].kind else { panic!("a tree") };
        tree.root = root;
        forged
    }

    /// Restores a tree; returns the names in the target and the paths that failed.
    fn restore(&self, forged: &Found, existing: Existing) -> (Vec<String>, Vec<String>) {
        let target = self.scratch.path("outside/target");
        let make = MakeOptions { existing, ..MakeOptions::default() };
        let delete = existing == Existing::KeepIfSame;
        let options = TreeRestoreOptions { make, delete, jobs: 1, ..TreeRestoreOptions::default() };
        let volume = forged.volume("files").unwrap();
        let report = self.repository.restore_tree(volume, b"/", &target, &options).unwrap();
        let failed = report.made.failures.iter().map(|it| it.path.escape_ascii().to_string());
        (names(&target), failed.collect())
    }

    /// The paths that are in a tar archive of a tree, and those that failed.
    fn dump(&self, forged: &Found, format: ArchiveFormat) -> (Vec<String>, Vec<String>) {
        let (mut archive, volume) = (Vec::new(), forged.volume("files").unwrap());
        let report = self.repository.dump_tree(volume, b"/", format, 0, &mut archive).unwrap();
        assert!(archive.len() < 1 << 20, "{} bytes", archive.len());
        let failed = report.failures.first.iter().map(|it| it.path.escape_ascii().to_string());
        (tar_names(&archive), failed.collect())
    }

    /// The paths that are found, and those that failed.
    fn find(&self, forged: &Found) -> (Vec<String>, u64) {
        let (mut found, query) = (Vec::new(), FileQuery::default());
        let volume = forged.volume("files").unwrap();
        let failures = self.repository.find_files(volume, b"/", &query, 0, &mut |path, _| {
            found.push(path.escape_ascii().to_string());
            Ok(())
        });
        (found, failures.unwrap().unwrap().count)
    }

    /// The paths that the forged tree has beyond the honest one, and the number of failures.
    fn diff(&self, forged: &Found) -> (Vec<String>, u64) {
        let mut added = Vec::new();
        let (old, new) = (self.found.volume("files").unwrap(), forged.volume("files").unwrap());
        let diff = self.repository.diff_trees((old, b"/"), (new, b"/"), 0, &mut |change| {
            if change.old.is_none() {
                added.push(change.path.escape_ascii().to_string());
            }
            Ok(())
        });
        (added, diff.unwrap().failures.count)
    }
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries.map(|it| name(it).to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The names in the headers of a tar archive without content.
fn tar_names(archive: &[u8]) -> Vec<String> {
    let blocks = archive.chunks(512).filter(|block| block.get(257..262) == Some(b"ustar"));
    let name = |block: &[u8]| {
        let end = block.iter().position(|byte| *byte == 0).unwrap();
        block[..end].escape_ascii().to_string()
    };
    blocks.map(name).collect()
}

#[test]
fn pages_with_names_that_are_none_cost_their_own_entries_only() {
    let long = [b'x'; 256];
    let bad: [&[u8]; 8] = [b"..", b".", b"", b"/etc/passwd", b"a/../../x", b"a\0b", b"/", &long];
    for name in bad {
        let mut case = Case::new();
        let pages = vec![vec![file(b"first")], vec![file(name)], vec![file(b"last")]];
        let root = case.directory(b"", pages);
        let forged = case.forged(root);
        let shown = name.escape_ascii().to_string();
        let (made, failed) = case.restore(&forged, Existing::Refuse);
        assert_eq!(
            (made.as_slice(), failed.len()),
            (&["first".into(), "last".into()][..], 1),
            "{shown}"
        );
        assert_eq!(names(&case.scratch.path("outside")), ["target"], "{shown}");
        let (in_archive, failed) = case.dump(&forged, ArchiveFormat::Tar);
        assert_eq!((in_archive.len(), failed.len()), (3, 1), "{shown}: {in_archive:?}");
        assert_eq!(case.find(&forged), (vec!["first".into(), "last".into()], 1), "{shown}");
        assert_eq!(case.diff(&forged), (vec!["first".into(), "last".into()], 1), "{shown}");
        let plan = case.repository.plan_tree_restore(
            forged.volume("files").unwrap(),
            b"/",
            &PathRules::default(),
            0,
        );
        assert_eq!(plan.unwrap().failures.count, 1, "{shown}");
    }
}

#[test]
fn nothing_is_removed_beside_entries_that_cannot_be_read() {
    let mut case = Case::new();
    let pages = vec![vec![file(b"first")], vec![file(b"..")]];
    let root = case.directory(b"", pages);
    let forged = case.forged(root);
    fs::create_dir_all(case.scratch.path("outside/target")).unwrap();
    fs::write(case.scratch.path("outside/target/precious"), b"mine").unwrap();
    let (made, failed) = case.restore(&forged, Existing::KeepIfSame);
    assert_eq!((made, failed.len()), (vec!["first".to_owned(), "precious".to_owned()], 1));
}

#[test]
fn a_link_is_not_followed_to_write_behind_it() {
    // A link, and a directory of the same name with a file: in one page, and in two.
    for is_one_page in [true, false] {
        let mut case = Case::new();
        let below = case.directory(b"x", vec![vec![file(b"escaped")]]);
        let outside = case.scratch.folder("outside");
        let link = link(b"x", b"..");
        let pages = if is_one_page {
            vec![vec![link, below], vec![file(b"y")]]
        } else {
            vec![vec![link], vec![below], vec![file(b"y")]]
        };
        let root = case.directory(b"", pages);
        let forged = case.forged(root);
        let (made, failed) = case.restore(&forged, Existing::Replace);
        let wanted: &[&str] = if is_one_page { &["y"] } else { &["x", "y"] };
        assert_eq!((made, failed.len()), (wanted.iter().map(|it| (*it).to_owned()).collect(), 1));
        assert_eq!(names(&outside), ["target"]);
        let (in_archive, failed) = case.dump(&forged, ArchiveFormat::Tar);
        assert!(!in_archive.iter().any(|name| name.contains("escaped")), "{in_archive:?}");
        assert_eq!(failed.len(), 1);
        let (found, count) = case.find(&forged);
        assert!(!found.iter().any(|name| name.contains("escaped")) && count == 1, "{found:?}");
    }
    // A link that is there already, where the snapshot has a directory.
    let mut case = Case::new();
    let below = case.directory(b"x", vec![vec![file(b"escaped")]]);
    let root = case.directory(b"", vec![vec![below, file(b"y")]]);
    let forged = case.forged(root);
    fs::create_dir_all(case.scratch.path("outside/target")).unwrap();
    symlink("..", case.scratch.path("outside/target/x")).unwrap();
    let (made, failed) = case.restore(&forged, Existing::KeepIfSame);
    assert_eq!(names(&case.scratch.path("outside")), ["target"], "{made:?} {failed:?}");
    assert!(made.contains(&"y".to_owned()));
}

#[test]
fn names_of_one_file_that_are_not_of_one_kind_are_refused() {
    let linked = |mut entry: Entry| {
        (entry.metadata.inode, entry.metadata.links) = (77, 3);
        entry
    };
    let mut case = Case::new();
    let below = linked(case.directory(b"a directory", vec![vec![file(b"below")]]));
    let entries = vec![
        below,
        linked(link(b"b link", b"/etc/passwd")),
        linked(file(b"c file")),
        file(b"d other"),
    ];
    let root = case.directory(b"", vec![entries]);
    let forged = case.forged(root);
    let (made, failed) = case.restore(&forged, Existing::Refuse);
    assert_eq!((made.len(), failed), (3, vec!["c file".to_owned()]), "{made:?}");
    // In an archive each kind is a file of its own.
    let (in_archive, failed) = case.dump(&forged, ArchiveFormat::Tar);
    assert_eq!((in_archive.len(), failed.len()), (6, 0), "{in_archive:?}");
}

#[test]
fn sizes_that_are_made_up_cost_their_own_entries_only() {
    let sized = |name: &[u8], address: Option<u64>, bytes: u64| {
        let mut entry = file(name);
        entry.metadata.size = bytes;
        entry.extents = vec![Extent { address, bytes }];
        entry
    };
    let far = 1 << 50;
    let mut case = Case::new();
    let entries = vec![
        sized(b"behind the volume", Some(far), 10),
        sized(b"larger than the volume", Some(0), 1 << 40),
        sized(b"unused segment", Some(SEGMENT_BYTES as u64 - 5), 10),
        file(b"z whole"),
    ];
    let root = case.directory(b"", vec![entries]);
    let forged = case.forged(root);
    let (made, failed) = case.restore(&forged, Existing::Refuse);
    assert!(made.contains(&"z whole".to_owned()), "{made:?}");
    assert!(failed.contains(&"behind the volume".to_owned()), "{failed:?}");
    assert!(failed.contains(&"larger than the volume".to_owned()), "{failed:?}");
    let (in_archive, failed) = case.dump(&forged, ArchiveFormat::Tar);
    assert!(failed.len() >= 2 && in_archive.contains(&"z whole".to_owned()), "{in_archive:?}");
    case.dump(&forged, ArchiveFormat::Zip);
    assert_eq!(
        case.find(&forged),
        (
            ["behind the volume", "larger than the volume", "unused segment", "z whole"]
                .map(str::to_owned)
                .to_vec(),
            0
        )
    );
    // Sums that do not fit in 64 bits.
    let holes = (0..5).map(|at| sized(&[b'a' + at], None, u64::MAX / 2)).collect();
    let mut case = Case::new();
    let root = case.directory(b"", vec![holes]);
    let forged = case.forged(root);
    let (_, rules) = (case.dump(&forged, ArchiveFormat::Tar), PathRules::default());
    case.restore(&forged, Existing::Refuse);
    let volume = forged.volume("files").unwrap();
    let plan = case.repository.plan_tree_restore(volume, b"/", &rules, 0).unwrap();
    assert_eq!((plan.files, plan.bytes), (5, u64::MAX));
    assert_eq!(case.diff(&forged).0.len(), 5);
}
