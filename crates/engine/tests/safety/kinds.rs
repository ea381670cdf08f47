//! File trees: each kind of files is cut in its own way, which a series can change.

use std::fs;

use silt_format::Chunking;
use silt_format::tree::{FileChunking, FileKind, KindCounts};
use siltstone::{BackupReport, Level, LevelBytes, VolumeKind};

use crate::kit::{self, Random};
use crate::tree_kit::{Scratch, assert_same, has};
use crate::trees::{assert_whole, backup, repository, restore};

fn levels(report: &BackupReport) -> LevelBytes {
    report.snapshot.volumes[0].levels
}

fn counts(report: &BackupReport, kind: FileKind) -> KindCounts {
    let VolumeKind::Tree(tree) = &report.snapshot.volumes[0].kind else { panic!("a tree") };
    tree.kinds[kind.index()]
}

fn random(bytes: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Random(seed).fill(&mut content);
    content
}

#[test]
fn a_disk_image_in_a_tree_is_cut_like_a_disk() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    // The first bytes tell, whatever the name, of a small file as of a large one.
    let mut images = [random(9 << 20, 1), random(600_000, 2)];
    let paths = [root.join("machine"), root.join("machine.txt")];
    for (path, image) in paths.iter().zip(&mut images) {
        image[..4].copy_from_slice(b"QFI\xfb");
        fs::write(path, image).unwrap();
    }
    let (repository, world) = repository(&scratch);
    let first = backup(&repository, &root);
    assert_eq!(counts(&first, FileKind::DiskImage), KindCounts { files: 2, bytes: 10_037_184 });
    for (path, image) in paths.iter().zip(&mut images) {
        image[400_000] ^= 1;
        fs::write(path, image).unwrap();
    }
    world.pass_seconds(86_400);
    let second = backup(&repository, &root);
    assert_eq!(levels(&second).get(Level::New), 2 * 4096, "{:?}", levels(&second));
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &scratch.path("restored"));
    assert_same(&root, &scratch.path("restored"));
    assert_whole(&repository);
}

#[test]
fn kinds_are_counted_also_of_files_that_are_not_read() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let files: [(&str, &[u8]); 5] = [
        ("main.rs", b"fn main() {}\n"),
        ("photo", b"\xff\xd8\xff\xe0 and so on"),
        ("song", b"ID3\x04 la la"),
        ("empty.db", b""),
        ("a.out", b"\x7fELF\x02\x01"),
    ];
    files.iter().for_each(|(name, content)| fs::write(root.join(name), content).unwrap());
    fs::hard_link(root.join("song"), root.join("the same song")).unwrap();
    let (repository, world) = repository(&scratch);
    let first = backup(&repository, &root);
    let all = [
        (FileKind::Text, 1, 13),
        (FileKind::Photo, 1, 14),
        (FileKind::Audio, 2, 20),
        (FileKind::Database, 1, 0),
        (FileKind::Executable, 1, 6),
        (FileKind::Other, 0, 0),
    ];
    for (kind, files, bytes) in all {
        assert_eq!(counts(&first, kind), KindCounts { files, bytes }, "{kind:?}");
    }
    world.pass_seconds(86_400);
    let second = backup(&repository, &root);
    assert_eq!(levels(&second).total(), 0, "nothing was read");
    for (kind, files, bytes) in all {
        assert_eq!(counts(&second, kind), KindCounts { files, bytes }, "{kind:?}");
    }
}

#[test]
fn a_series_can_have_its_kinds_cut_otherwise() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut song = random(3 << 20, 3);
    song[..3].copy_from_slice(b"ID3");
    fs::write(root.join("song"), &song).unwrap();
    fs::write(root.join("data"), random(300_000, 4)).unwrap();
    let (repository, world) = repository(&scratch);
    backup(&repository, &root);
    let default = FileChunking::default();
    assert_eq!(repository.file_chunking("home").unwrap(), default);
    let mut chunking = default;
    chunking.set(FileKind::Audio, Chunking::Fixed { bytes: 4096 }).unwrap();
    assert!(chunking.set(FileKind::Text, Chunking::Fixed { bytes: 5000 }).is_err());
    repository.set_file_chunking("home", Some(chunking)).unwrap();
    assert_eq!(repository.file_chunking("home").unwrap(), chunking);

    // A file that is not read stays as it was cut.
    world.pass_seconds(86_400);
    assert_eq!(levels(&backup(&repository, &root)).total(), 0);
    let mut write = |at: usize| {
        song[at] ^= 1;
        fs::write(root.join("song"), &song).unwrap();
        fs::write(root.join("data"), random(300_000, 4)).unwrap();
        world.pass_seconds(86_400);
        levels(&backup(&repository, &root))
    };
    let first = write(2_000_000);
    assert_eq!(first.get(Level::New), 3 << 20, "{first:?}: cut anew, and the other file not");
    let second = write(1_000_000);
    assert_eq!(second.get(Level::New), 4096, "{second:?}");
    repository.set_file_chunking("home", None).unwrap();
    let third = write(1_000_000);
    assert_eq!(third.get(Level::New), 3 << 20, "{third:?}: cut as in the first backup");
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &scratch.path("restored"));
    assert_same(&root, &scratch.path("restored"));
    assert_whole(&repository);
}
