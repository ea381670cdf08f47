//! qcow2 images of every kind read as QEMU reads them.

use std::path::Path;
use std::process::Command;

use silt_format::ErrorKind;
use silt_source::{
    ExtentKind, FormatChoice, SourceFormat, SourceOptions, VolumeSource, open_source,
};

use crate::qemu::{
    Images, KIB, MIB, assert_reads_as_qemu, assert_same, open, qemu_img, qemu_io, raw_bytes,
    read_in_steps, succeed,
};

/// Data, zeros and holes at odd places of a volume of 24 MiB and a bit.
const SIZE: u64 = 24 * MIB + 512;
const CHANGES: [&str; 9] = [
    "write -P 1 0 4k",
    "write -P 2 65024 1536",
    "write -P 3 1M 3M",
    "write -z 2M 512k",
    "write -P 4 5000k 10k",
    "write -P 5 9M 130k",
    "discard 9M 64k",
    "write -P 6 20M 4M",
    "write -P 7 24M 512",
];

#[test]
fn every_cluster_size() {
    let images = Images::new();
    for bits in 9..=21 {
        for compat in ["0.10", "1.1"] {
            let options = format!("cluster_size={},compat={compat}", 1 << bits);
            let path = images.create("image.qcow2", &options, SIZE);
            assert_reads_as_qemu(&path, &format!("empty, {options}"));
            qemu_io(&path, "qcow2", &CHANGES);
            assert_reads_as_qemu(&path, &options);
        }
    }
}

#[test]
fn zero_clusters_of_both_kinds() {
    let images = Images::new();
    let path = images.create("image.qcow2", "", 16 * MIB);
    qemu_io(&path, "qcow2", &["write -P 9 0 8M", "write -z 1M 1M", "write -z -u 3M 1M"]);
    qemu_io(&path, "qcow2", &["write -z 12M 1M"]);
    assert_reads_as_qemu(&path, "zero clusters");
    let source = open(&path);
    assert_eq!(source.extent_at(MIB).unwrap().kind, ExtentKind::Zero);
    assert_eq!(source.extent_at(12 * MIB).unwrap().kind, ExtentKind::Zero);
    assert_eq!(source.extent_at(0).unwrap().length, MIB);
}

#[test]
fn compressed_clusters() {
    let images = Images::new();
    let raw = images.path("volume.raw");
    let mut bytes: Vec<u8> =
        (0..SIZE).map(|at| u8::try_from(at * at / 997 % 251).unwrap()).collect();
    bytes[1 << 20..4 << 20].fill(0);
    bytes[5 << 20..9 << 20].fill(7);
    std::fs::write(&raw, &bytes).unwrap();
    let path = images.path("image.qcow2");
    for bits in [9, 12, 16, 21] {
        for kind in ["zlib", "zstd"] {
            if bits == 9 && kind == "zstd" {
                continue;
            }
            let options = format!("cluster_size={},compression_type={kind}", 1 << bits);
            qemu_img(&["convert", "-c", "-O", "qcow2", "-o", &options], &[&raw, &path]);
            assert_reads_as_qemu(&path, &options);
            qemu_io(&path, "qcow2", &["write -P 9 100k 64k", "write -z 6M 128k"]);
            assert_reads_as_qemu(&path, &format!("{options}, changed"));
        }
    }
}

#[test]
fn subclusters() {
    let images = Images::new();
    for cluster in ["16k", "64k", "2M"] {
        let options = format!("extended_l2=on,cluster_size={cluster}");
        let path = images.create("image.qcow2", &options, SIZE);
        qemu_io(&path, "qcow2", &CHANGES);
        qemu_io(&path, "qcow2", &["write -z 21M 10k", "write -P 8 6M 2k", "write -P 9 6148k 2k"]);
        assert_reads_as_qemu(&path, &options);
        let over = images.overlay("over.qcow2", "image.qcow2", "qcow2", &options, None);
        qemu_io(&over, "qcow2", &["write -P 10 3000k 2k", "write -z 20M 6k", "write -P 11 8M 1M"]);
        assert_reads_as_qemu(&over, &format!("over, {options}"));
    }
}

#[test]
fn compressed_clusters_among_subclusters() {
    let images = Images::new();
    let raw = images.path("volume.raw");
    std::fs::write(&raw, vec![5; 4 << 20]).unwrap();
    let path = images.path("image.qcow2");
    qemu_img(&["convert", "-c", "-O", "qcow2", "-o", "extended_l2=on"], &[&raw, &path]);
    qemu_io(&path, "qcow2", &["write -P 6 70k 2k", "write -z 1M 4k"]);
    assert_reads_as_qemu(&path, "compressed, with subclusters");
}

#[test]
fn resized_and_with_internal_snapshots() {
    let images = Images::new();
    let path = images.create("image.qcow2", "", 8 * MIB);
    qemu_io(&path, "qcow2", &["write -P 1 0 8M"]);
    qemu_img(&["snapshot", "-c", "before"], &[&path]);
    qemu_io(&path, "qcow2", &["write -P 2 1M 3M", "write -z 6M 1M"]);
    qemu_img(&["snapshot", "-c", "between"], &[&path]);
    assert_reads_as_qemu(&path, "with snapshots");
    qemu_img(&["snapshot", "-a", "before"], &[&path]);
    assert_reads_as_qemu(&path, "gone back");
    let path = images.create("grown.qcow2", "", 8 * MIB);
    qemu_io(&path, "qcow2", &["write -P 1 7M 1M"]);
    succeed(Command::new("qemu-img").args(["resize", "-q"]).arg(&path).arg("2G"));
    qemu_io(&path, "qcow2", &["write -P 3 1G 100k"]);
    assert_reads_as_qemu(&path, "grown");
    succeed(Command::new("qemu-img").args(["resize", "-q", "--shrink"]).arg(&path).arg("4M"));
    assert_reads_as_qemu(&path, "shrunk");
}

#[test]
fn preallocated_images() {
    let images = Images::new();
    for way in ["metadata", "falloc", "full"] {
        let path = images.create("image.qcow2", &format!("preallocation={way}"), SIZE);
        qemu_io(&path, "qcow2", &["write -P 1 3M 100k"]);
        assert_reads_as_qemu(&path, way);
    }
}

#[test]
fn lazy_reference_counts() {
    let images = Images::new();
    let path = images.create("image.qcow2", "lazy_refcounts=on", 8 * MIB);
    // The program ends without closing the image: its dirty bit stays.
    let _ = Command::new("qemu-io")
        .args(["-c", "write -P 3 1M 1M", "-c", "flush", "-c", "abort"])
        .arg(&path)
        .output()
        .unwrap();
    let header = std::fs::read(&path).unwrap();
    assert_eq!(header[79] & 1, 1, "the image is dirty");
    let found = read_in_steps(&*open(&path), 1 << 20).unwrap();
    assert_same(&found, &raw_bytes(&path, "qcow2"), "dirty");
    assert_eq!(found[1 << 20], 3);
}

#[test]
fn a_large_volume_costs_little_to_walk() {
    let images = Images::new();
    let size = 64 << 40;
    let path = images.create("image.qcow2", "cluster_size=2M", size);
    qemu_io(&path, "qcow2", &["write -P 1 40T 64k"]);
    let source = open(&path);
    let (mut at, mut extents, mut data) = (0, 0, 0);
    while at < size {
        let extent = source.extent_at(at).unwrap();
        at += extent.length;
        extents += 1;
        data += if extent.kind == ExtentKind::Data { extent.length } else { 0 };
    }
    assert_eq!(data, 2 * MIB);
    assert!(extents < 600, "{extents} extents");
}

#[test]
fn threads_read_at_once() {
    let images = Images::new();
    let path = images.create("image.qcow2", "cluster_size=4k", 16 * MIB);
    qemu_io(&path, "qcow2", &["write -P 1 0 9M", "write -P 2 1M 77k", "write -P 3 12M 1M"]);
    let expected = raw_bytes(&path, "qcow2");
    let source: &dyn VolumeSource = &*open(&path);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let expected = &expected;
            scope.spawn(move || {
                let found = read_in_steps(source, 70_001 + thread * 1000).unwrap();
                assert_same(&found, expected, "beside others");
            });
        }
    });
}

#[test]
fn the_format_is_decided_by_name_and_content() {
    let images = Images::new();
    let image = images.create("image.qcow2", "", MIB);
    assert_eq!(open(&image).info().format, SourceFormat::Qcow2);
    for name in ["image.raw", "image.img", "image", "image.snap1"] {
        let path = images.path(name);
        std::fs::copy(&image, &path).unwrap();
        let error = open_source(&path, &SourceOptions::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let message = error.to_string();
        assert!(message.contains("a guest could have written"), "{message}");
        assert_eq!(error.advice(), Some(&silt_format::Advice::NameFormat), "{message}");
        let explicit = |format| {
            let options = SourceOptions { format, ..SourceOptions::default() };
            open_source(&path, &options).unwrap().info()
        };
        assert_eq!(explicit(FormatChoice::Qcow2).size, Some(MIB));
        let raw = explicit(FormatChoice::Raw);
        assert_eq!(raw.format, SourceFormat::Raw);
        assert_eq!(raw.size, Some(path.metadata().unwrap().len()));
    }
    let named = images.path("named.qcow2");
    std::fs::write(&named, vec![0; 1 << 20]).unwrap();
    let error = open_source(&named, &SourceOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn what_cannot_be_read_is_unsupported() {
    let images = Images::new();
    let kind = |path: &Path| open_source(path, &SourceOptions::default()).err().unwrap();
    let external = images.create(
        "external.qcow2",
        &format!("data_file={},data_file_raw=on", images.path("data.raw").display()),
        MIB,
    );
    let error = kind(&external);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let image = images.create("image.qcow2", "", MIB);
    // The last byte of the encryption method (2 is LUKS), then incompatible features and the
    // version.
    for (at, bit, expected) in [
        (35, 2, ErrorKind::Unsupported),
        (79, 2, ErrorKind::Corrupt),
        (79, 32, ErrorKind::Unsupported),
        (72, 128, ErrorKind::Unsupported),
        (7, 7, ErrorKind::Unsupported),
    ] {
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[at] ^= bit;
        let path = images.path("changed.qcow2");
        std::fs::write(&path, bytes).unwrap();
        let error = kind(&path);
        assert_eq!(error.kind(), expected, "{error}");
        assert!(error.to_string().contains("changed.qcow2"), "{error}");
    }
}

#[test]
fn odd_subcluster_sizes_are_left_to_qemu() {
    // The smallest cluster with subclusters of whole sectors.
    let images = Images::new();
    let path = images.create("image.qcow2", "extended_l2=on,cluster_size=16k", 64 * KIB);
    qemu_io(&path, "qcow2", &["write -P 1 512 512", "write -P 2 33k 512"]);
    assert_reads_as_qemu(&path, "subclusters of a sector");
}
