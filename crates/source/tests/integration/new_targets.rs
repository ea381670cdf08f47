//! New files, raw and qcow2.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use silt_format::{ErrorKind, Result};
use silt_source::{
    PARTIAL_SUFFIX, TargetFormat, TargetMode, TargetOptions, VolumeTarget, open_target,
};

use crate::qemu::{Images, KIB, MIB, assert_same, qemu_img, raw_bytes};

fn target(path: &Path, format: TargetFormat, size: u64, mode: TargetMode) -> Box<dyn VolumeTarget> {
    open_target(path, TargetOptions { format, size, mode }).unwrap()
}

fn refusal(path: &Path, format: TargetFormat, mode: TargetMode) -> silt_format::Error {
    open_target(path, TargetOptions { format, size: MIB, mode }).err().unwrap()
}

fn partial(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}{PARTIAL_SUFFIX}", path.display()))
}

/// Out of order, at odd places, over each other; the volume has 40 MiB and 1000 bytes.
const SIZE: u64 = 40 * MIB + 1000;

fn write_volume(target: &dyn VolumeTarget, expected: &mut [u8]) -> Result<()> {
    let mut put = |offset: u64, length: u64, byte: u8| {
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        expected[range.clone()].fill(byte);
        if byte == 0 {
            return target.write_zeroes(offset, length);
        }
        target.write_at(offset, &vec![byte; range.len()])
    };
    put(30 * MIB, 2 * MIB, 1)?;
    put(SIZE - 700, 700, 2)?;
    put(0, 512, 3)?;
    put(100, 5 * MIB, 4)?;
    put(10 * MIB + 5, 70_000, 5)?;
    put(2 * MIB, 2 * MIB, 0)?;
    put(10 * MIB, 100 * KIB, 0)?;
    put(31 * MIB + 7, 3, 0)?;
    put(3 * MIB, 64 * KIB, 6)?;
    put(20 * MIB, 4 * MIB, 0)
}

#[test]
fn what_is_written_is_what_is_there() {
    let images = Images::new();
    let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
    let raw = images.path("volume.raw");
    let writing = target(&raw, TargetFormat::Raw, SIZE, TargetMode::New);
    assert!(!writing.can_read());
    assert_eq!(writing.read_at(0, &mut [0]).unwrap_err().kind(), ErrorKind::Unsupported);
    write_volume(&*writing, &mut expected).unwrap();
    assert!(!raw.exists() && partial(&raw).exists());
    writing.finish().unwrap();
    assert!(raw.exists() && !partial(&raw).exists());
    assert_same(&fs::read(&raw).unwrap(), &expected, "raw");
    let stored = raw.metadata().unwrap().blocks() * 512;
    assert!(stored < 7 * MIB, "{stored} bytes are stored of a sparse file");

    let image = images.path("volume.qcow2");
    let writing = target(&image, TargetFormat::Qcow2, SIZE, TargetMode::New);
    assert_eq!(writing.read_at(0, &mut [0]).unwrap_err().kind(), ErrorKind::Unsupported);
    write_volume(&*writing, &mut expected).unwrap();
    writing.finish().unwrap();
    qemu_img(&["check", "-f", "qcow2"], &[&image]);
    expected.resize(expected.len().next_multiple_of(512), 0);
    assert_same(&raw_bytes(&image, "qcow2"), &expected, "qcow2");
    qemu_img(&["compare", "-f", "qcow2", "-F", "raw"], &[&image, &raw]);
}

#[test]
fn volumes_of_every_size() {
    let images = Images::new();
    for size in [0, 1, 512, 4096, 65_536, 65_537, 512 * MIB, 512 * MIB + 512] {
        for (name, format) in [("v.raw", TargetFormat::Raw), ("v.qcow2", TargetFormat::Qcow2)] {
            let path = images.path(name);
            let writing = target(&path, format, size, TargetMode::Replace);
            if size > 0 {
                writing.write_at(size - 1, &[7]).unwrap();
            }
            writing.write_at(size, &[]).unwrap();
            for (offset, length) in [(size, 1), (0, size + 1), (u64::MAX, 2)] {
                let outside = writing.write_zeroes(offset, length).unwrap_err();
                assert_eq!(outside.kind(), ErrorKind::Invalid);
            }
            let outside = writing.write_at(size, &[1]).unwrap_err();
            assert_eq!(outside.kind(), ErrorKind::Invalid);
            writing.finish().unwrap();
        }
        qemu_img(&["check", "-f", "qcow2"], &[&images.path("v.qcow2")]);
        let paths = [images.path("v.qcow2"), images.path("v.raw")];
        qemu_img(&["compare", "-f", "qcow2", "-F", "raw"], &[&paths[0], &paths[1]]);
    }
}

#[test]
fn threads_write_at_once() {
    let images = Images::new();
    let (threads, part) = (4, 3 * MIB);
    for (name, format) in [("v.raw", TargetFormat::Raw), ("v.qcow2", TargetFormat::Qcow2)] {
        let path = images.path(name);
        let writing = target(&path, format, threads * part, TargetMode::New);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let writing = &*writing;
                // Strips of 40,000 bytes: neighbouring threads meet inside of clusters.
                scope.spawn(move || {
                    let strip = 40_000;
                    for index in 0..threads * part / strip {
                        let byte = u8::try_from(index % 250 + 1).unwrap();
                        if index % threads == thread {
                            writing.write_at(index * strip, &vec![byte; 40_000]).unwrap();
                        }
                    }
                });
            }
        });
        writing.finish().unwrap();
    }
    qemu_img(&["check", "-f", "qcow2"], &[&images.path("v.qcow2")]);
    let found = fs::read(images.path("v.raw")).unwrap();
    for (index, strip) in found.chunks_exact(40_000).enumerate() {
        assert!(strip.iter().all(|&byte| usize::from(byte) == index % 250 + 1), "strip {index}");
    }
    assert_same(&raw_bytes(&images.path("v.qcow2"), "qcow2"), &found, "by threads");
}

#[test]
fn more_tables_than_are_kept_in_memory() {
    let images = Images::new();
    let (span, tables) = (512 * MIB, 80);
    for (name, format) in [("v.raw", TargetFormat::Raw), ("v.qcow2", TargetFormat::Qcow2)] {
        let writing = target(&images.path(name), format, tables * span, TargetMode::New);
        for round in 0..3 {
            for table in 0..tables {
                let offset = (table * 37 % tables) * span + round * 100 * KIB;
                writing
                    .write_at(offset, &[u8::try_from(table + round + 1).unwrap(); 5000])
                    .unwrap();
            }
        }
        writing.write_zeroes(3 * span, 20 * span).unwrap();
        writing.finish().unwrap();
    }
    let (image, raw) = (images.path("v.qcow2"), images.path("v.raw"));
    qemu_img(&["check", "-f", "qcow2"], &[&image]);
    qemu_img(&["compare", "-f", "qcow2", "-F", "raw"], &[&image, &raw]);
}

#[test]
fn more_clusters_than_a_block_of_counts_has() {
    let images = Images::new();
    let path = images.path("v.qcow2");
    // Around the number at which the counts of the counts need another block.
    for clusters in [32_754, 32_760, 32_761, 32_762, 32_763, 32_764, 33_000] {
        let writing = target(&path, TargetFormat::Qcow2, 4 << 30, TargetMode::Replace);
        for cluster in 0..clusters {
            writing.write_at(cluster * 64 * KIB + 5, &[1]).unwrap();
        }
        writing.finish().unwrap();
        qemu_img(&["check", "-q", "-f", "qcow2"], &[&path]);
    }
}

#[test]
fn an_unfinished_file_stays_and_the_next_run_overwrites_it() {
    let images = Images::new();
    for (name, format) in [("v.raw", TargetFormat::Raw), ("v.qcow2", TargetFormat::Qcow2)] {
        let path = images.path(name);
        let writing = target(&path, format, MIB, TargetMode::New);
        writing.write_at(0, &[1; 4096]).unwrap();
        let options = TargetOptions { format, size: MIB, mode: TargetMode::New };
        let second = open_target(&path, options).err().unwrap();
        assert_eq!(second.kind(), ErrorKind::Busy);
        drop(writing);
        assert!(!path.exists() && partial(&path).exists());
        target(&path, format, MIB, TargetMode::New).finish().unwrap();
        assert!(!partial(&path).exists());
        let found = raw_bytes(&path, if name == "v.raw" { "raw" } else { "qcow2" });
        assert_same(&found, &vec![0; 1 << 20], "nothing of the stale file is left");
    }
}

#[test]
fn what_is_there_is_replaced_only_when_asked_and_only_at_the_end() {
    let images = Images::new();
    for (name, format) in [("v.raw", TargetFormat::Raw), ("v.qcow2", TargetFormat::Qcow2)] {
        let path = images.path(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = refusal(&path, format, TargetMode::New);
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(error.advice(), Some(&silt_format::Advice::ReplaceTarget), "{error}");
        let link = images.path("link");
        let _ = fs::remove_file(&link);
        symlink(&path, &link).unwrap();
        let writing = target(&link, format, MIB, TargetMode::Replace);
        writing.write_at(0, &[1; 512]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        writing.finish().unwrap();
        assert!(link.is_symlink());
        assert!(path.metadata().unwrap().len() > 512);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}

#[test]
fn a_file_that_appears_meanwhile_is_kept_and_so_is_the_volume() {
    let images = Images::new();
    let path = images.path("v.raw");
    let writing = target(&path, TargetFormat::Raw, MIB, TargetMode::New);
    writing.write_at(0, &[1; 512]).unwrap();
    fs::write(&path, "other").unwrap();
    let error = writing.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(partial(&path).metadata().unwrap().len(), MIB);
}

#[test]
fn new_files_are_private() {
    let images = Images::new();
    let path = images.path("v.raw");
    target(&path, TargetFormat::Raw, MIB, TargetMode::New).finish().unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// In a folder that others may write to, they could make the unfinished file beforehand.
#[test]
fn an_unfinished_file_of_somebody_else_is_refused() {
    let images = Images::new();
    let path = images.path("v.raw");
    let left = partial(&path);
    let refuse = |why: &str| {
        let error = refusal(&path, TargetFormat::Raw, TargetMode::New);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{why}: {error}");
        assert!(error.to_string().contains("remove it"), "{error}");
        assert_eq!(fs::read(&left).unwrap(), b"theirs", "{why}");
        fs::remove_file(&left).unwrap();
    };
    let make = |mode: u32| {
        fs::write(&left, b"theirs").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(mode)).unwrap();
    };
    make(0o640);
    refuse("others read it");
    make(0o600);
    fs::hard_link(&left, images.path("other name")).unwrap();
    refuse("it has another name");
    make(0o600);
    if std::os::unix::fs::chown(&left, Some(65534), None).is_ok() {
        refuse("it is another user's");
    } else {
        println!("SKIPPED: only root can make a file of another user");
        fs::remove_file(&left).unwrap();
    }
    // One that was exchanged while the volume was written is not published.
    let writing = target(&path, TargetFormat::Raw, MIB, TargetMode::New);
    fs::remove_file(&left).unwrap();
    make(0o600);
    assert_eq!(writing.finish().unwrap_err().kind(), ErrorKind::Denied);
    assert!(!path.exists());
    // What an earlier restore has left is used.
    target(&path, TargetFormat::Raw, MIB, TargetMode::New).finish().unwrap();
}

#[test]
fn what_cannot_be_a_target_is_refused() {
    let images = Images::new();
    let raw = TargetFormat::Raw;
    let missing = images.path("missing.raw");
    assert_eq!(refusal(&missing, raw, TargetMode::InPlace).kind(), ErrorKind::NotFound);
    assert_eq!(refusal(&images.path(""), raw, TargetMode::Replace).kind(), ErrorKind::Invalid);
    let nowhere = images.path("no/such/folder.raw");
    assert_eq!(refusal(&nowhere, raw, TargetMode::New).kind(), ErrorKind::NotFound);
    let pipe = Path::new("/dev/null");
    assert_eq!(refusal(pipe, raw, TargetMode::Replace).kind(), ErrorKind::Invalid);
    let elsewhere = images.path("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    symlink(&elsewhere, partial(&images.path("v.raw"))).unwrap();
    open_target(
        &images.path("v.raw"),
        TargetOptions { format: raw, size: 0, mode: TargetMode::New },
    )
    .err()
    .unwrap();
    assert_eq!(fs::read(&elsewhere).unwrap(), b"kept", "links are not followed");
    let image = images.create("image.qcow2", "", MIB);
    for format in [TargetFormat::Qcow2, TargetFormat::Raw] {
        let error = refusal(&image, format, TargetMode::InPlace);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("new file"), "{error}");
    }
    let huge =
        TargetOptions { format: TargetFormat::Qcow2, size: (2 << 50) + 1, mode: TargetMode::New };
    assert_eq!(open_target(&missing, huge).err().unwrap().kind(), ErrorKind::Invalid);
}
