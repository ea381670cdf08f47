//! Raw files as sources.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use silt_format::ErrorKind;
use silt_source::{ExtentKind, SourceFormat, SourceOptions, open_source};

use crate::qemu::{Images, MIB, assert_same, open, read_by_extents, read_in_steps};

#[test]
fn a_sparse_file_has_extents_of_zeros() {
    let images = Images::new();
    let path = images.path("disk.raw");
    let file = File::create(&path).unwrap();
    file.set_len(16 * MIB + 5).unwrap();
    file.write_all_at(&vec![1; 100_000], 3 * MIB).unwrap();
    file.write_all_at(&[2; 5], 16 * MIB).unwrap();
    let expected = fs::read(&path).unwrap();
    let source = open(&path);
    assert_eq!(source.info().format, SourceFormat::Raw);
    assert_eq!(source.info().size, Some(16 * MIB + 5));
    assert!(!source.is_sequential());
    let extent = source.extent_at(5).unwrap();
    assert_eq!((extent.offset, extent.length, extent.kind), (5, 3 * MIB - 5, ExtentKind::Zero));
    assert_eq!(source.extent_at(3 * MIB).unwrap().kind, ExtentKind::Data);
    assert_eq!(source.extent_at(8 * MIB).unwrap().kind, ExtentKind::Zero);
    assert_same(&read_in_steps(&*source, 77_777).unwrap(), &expected, "in steps");
    assert_same(&read_by_extents(&*source).unwrap(), &expected, "by extents");
}

#[test]
fn a_file_that_shrinks_is_read_short_and_never_taken_for_zeros() {
    let images = Images::new();
    let path = images.path("disk.raw");
    fs::write(&path, vec![3; 1 << 20]).unwrap();
    let source = open(&path);
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let mut buf = vec![0; 4096];
    assert_eq!(source.read_at(0, &mut buf).unwrap(), 1000);
    assert_eq!(source.read_at(500_000, &mut buf).unwrap(), 0);
    assert_eq!(source.extent_at(500_000).unwrap().kind, ExtentKind::Data);
}

#[test]
fn a_file_that_grows_keeps_its_size() {
    let images = Images::new();
    let path = images.path("disk.raw");
    fs::write(&path, vec![3; 1000]).unwrap();
    let source = open(&path);
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(source.read_at(0, &mut [0; 4096]).unwrap(), 1000);
}

#[test]
fn what_holds_no_volume_is_refused() {
    let images = Images::new();
    let kind = |name: &str| {
        open_source(&images.path(name), &SourceOptions::default()).err().unwrap().kind()
    };
    assert_eq!(kind("missing"), ErrorKind::NotFound);
    assert_eq!(kind(""), ErrorKind::Invalid);
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        images.path("pipe"),
        rustix::fs::Mode::from_raw_mode(0o600),
    )
    .unwrap();
    assert_eq!(kind("pipe"), ErrorKind::Invalid, "a named pipe would block");
}

#[test]
fn an_empty_file_is_an_empty_volume() {
    let images = Images::new();
    let path = images.path("disk.raw");
    fs::write(&path, []).unwrap();
    let source = open(&path);
    assert_eq!(source.info().size, Some(0));
    assert_eq!(source.read_at(0, &mut [0; 10]).unwrap(), 0);
}
