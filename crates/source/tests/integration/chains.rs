//! Backing chains.

use std::process::Command;

use silt_format::{Error, ErrorKind};
use silt_source::{SourceOptions, open_source};

use crate::qemu::{Images, MIB, assert_reads_as_qemu, qemu_img, qemu_io, succeed};

fn refusal(path: &std::path::Path) -> Error {
    open_source(path, &SourceOptions::default()).err().unwrap()
}

#[test]
fn three_layers_over_raw_and_over_qcow2() {
    let images = Images::new();
    for base_format in ["raw", "qcow2"] {
        let base = images.path(&format!("base.{base_format}"));
        let size = "10485760";
        succeed(
            Command::new("qemu-img").args(["create", "-q", "-f", base_format]).arg(&base).arg(size),
        );
        qemu_io(&base, base_format, &["write -P 1 0 3M", "write -P 2 8M 1M"]);
        let base_name = base.file_name().unwrap().to_str().unwrap();
        let middle =
            images.overlay("middle.qcow2", base_name, base_format, "cluster_size=4k", None);
        qemu_io(&middle, "qcow2", &["write -P 3 1M 100k", "write -z 2M 64k", "write -P 4 9M 4k"]);
        let options = "cluster_size=128k";
        let top = images.overlay("top.qcow2", "middle.qcow2", "qcow2", options, Some(16 * MIB));
        qemu_io(&top, "qcow2", &["write -P 5 1050k 1k", "write -P 6 12M 1M", "write -z 8M 256k"]);
        assert_reads_as_qemu(&top, &format!("three layers over {base_format}"));
        assert_reads_as_qemu(&middle, &format!("two layers over {base_format}"));
    }
}

#[test]
fn compressed_layers() {
    let images = Images::new();
    let raw = images.path("volume.raw");
    std::fs::write(&raw, (0..4_u32 << 18).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let base = images.path("base.qcow2");
    qemu_img(&["convert", "-c", "-O", "qcow2"], &[&raw, &base]);
    let options = "compression_type=zstd,cluster_size=1M";
    let top = images.overlay("top.qcow2", "base.qcow2", "qcow2", options, None);
    qemu_io(&top, "qcow2", &["write -c -P 7 1M 1M", "write -P 8 3M 4k"]);
    assert_reads_as_qemu(&top, "compressed layers");
}

#[test]
fn a_backing_file_that_is_shorter_reads_as_zeros_past_its_end() {
    let images = Images::new();
    std::fs::write(images.path("base.raw"), vec![9; 100_000]).unwrap();
    let top = images.overlay("top.qcow2", "base.raw", "raw", "", Some(4 * MIB));
    assert_reads_as_qemu(&top, "over an odd raw file");
    let base = images.create("base.qcow2", "cluster_size=512", 5 * 512);
    qemu_io(&base, "qcow2", &["write -P 1 0 2560"]);
    let top = images.overlay("top2.qcow2", "base.qcow2", "qcow2", "", Some(4 * MIB));
    assert_reads_as_qemu(&top, "over an odd image");
}

#[test]
fn a_longer_backing_file_is_cut() {
    let images = Images::new();
    std::fs::write(images.path("base.raw"), vec![9; 3 << 20]).unwrap();
    let top = images.overlay("top.qcow2", "base.raw", "raw", "", Some(MIB));
    assert_reads_as_qemu(&top, "over a longer file");
}

#[test]
fn a_backing_file_without_a_format_is_not_probed() {
    let images = Images::new();
    let inner = images.create("inner.qcow2", "", MIB);
    qemu_io(&inner, "qcow2", &["write -P 1 0 1M"]);
    // A version 2 image whose header ends before any extension.
    for (name, is_image) in [("inner.img", false), ("inner.qcow2", true)] {
        if !is_image {
            std::fs::copy(&inner, images.path(name)).unwrap();
        }
        let top = images.overlay("top.qcow2", "inner.qcow2", "qcow2", "compat=0.10", Some(MIB));
        let mut bytes = std::fs::read(&top).unwrap();
        let name_at =
            usize::try_from(u64::from_be_bytes(bytes[8..16].try_into().unwrap())).unwrap();
        bytes[72..80].fill(0);
        bytes[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
        bytes[name_at..name_at + name.len()].copy_from_slice(name.as_bytes());
        std::fs::write(&top, bytes).unwrap();
        let source = open_source(&top, &SourceOptions::default()).unwrap();
        let mut start = [0; 4];
        source.read_at(0, &mut start).unwrap();
        assert_eq!(start, if is_image { [1; 4] } else { *b"QFI\xfb" }, "{name}");
    }
}

#[test]
fn a_missing_backing_file_is_named() {
    let images = Images::new();
    images.create("base.qcow2", "", MIB);
    images.overlay("middle.qcow2", "base.qcow2", "qcow2", "", None);
    let top = images.overlay("top.qcow2", "middle.qcow2", "qcow2", "", None);
    std::fs::remove_file(images.path("base.qcow2")).unwrap();
    let error = refusal(&top);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let message = error.to_string();
    for name in ["top.qcow2", "middle.qcow2", "base.qcow2"] {
        assert!(message.contains(name), "{message}");
    }
}

/// An image names what it is laid over, so whoever can write to it could have any file backed up.
#[test]
fn a_backing_file_elsewhere_is_refused_unless_its_folder_is_allowed() {
    let (images, elsewhere) = (Images::new(), Images::new());
    let secret = elsewhere.path("shadow");
    std::fs::write(&secret, vec![7; 1 << 20]).unwrap();
    std::fs::create_dir(images.path("below")).unwrap();
    std::fs::write(images.path("below/base.raw"), vec![7; 1 << 20]).unwrap();
    std::os::unix::fs::symlink(&secret, images.path("link.raw")).unwrap();
    let far = secret.to_str().unwrap();
    let folder = secret.parent().unwrap().to_owned();
    let up = format!("below/../../{}/shadow", folder.file_name().unwrap().display());
    for backing in [far, "link.raw", &up] {
        let top = images.overlay("top.qcow2", backing, "raw", "", Some(MIB));
        let error = refusal(&top);
        assert_eq!(error.kind(), ErrorKind::Denied, "{backing}: {error}");
        assert_eq!(error.advice(), Some(&silt_format::Advice::AllowBackingFolder), "{error}");
        for allowed in [&secret, &folder] {
            let options =
                SourceOptions { allow_backing: vec![allowed.clone()], ..SourceOptions::default() };
            open_source(&top, &options).unwrap();
        }
    }
    let top = images.overlay("top.qcow2", "below/base.raw", "raw", "", Some(MIB));
    open_source(&top, &SourceOptions::default()).unwrap();
    // The image itself may be reached by a link: what lies beside it, or beside the link, is its
    // own.
    let link = elsewhere.path("linked.qcow2");
    std::os::unix::fs::symlink(images.path("real.qcow2"), &link).unwrap();
    let top = images.overlay(
        "real.qcow2",
        images.path("below/base.raw").to_str().unwrap(),
        "raw",
        "",
        Some(MIB),
    );
    assert!(top.exists());
    open_source(&link, &SourceOptions::default()).unwrap();
}

#[test]
fn a_loop_is_named() {
    let images = Images::new();
    images.create("a.qcow2", "", MIB);
    let b = images.overlay("b.qcow2", "a.qcow2", "qcow2", "", None);
    succeed(
        Command::new("qemu-img")
            .args(["rebase", "-u", "-F", "qcow2", "-f", "qcow2", "-b", "b.qcow2"])
            .arg(images.path("a.qcow2")),
    );
    let error = refusal(&b);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains("loops"), "{message}");
    assert!(message.contains("a.qcow2") && message.contains("b.qcow2"), "{message}");
}

#[test]
fn a_chain_has_64_files_at_most() {
    let images = Images::new();
    images.create("0.qcow2", "cluster_size=4k", MIB);
    for layer in 1..=64 {
        let backing = format!("{}.qcow2", layer - 1);
        let name = format!("{layer}.qcow2");
        let path = images.overlay(&name, &backing, "qcow2", "cluster_size=4k", Some(MIB));
        qemu_io(&path, "qcow2", &[&format!("write -P {layer} {}k 4k", layer * 8)]);
    }
    assert_reads_as_qemu(&images.path("63.qcow2"), "64 files");
    let error = refusal(&images.path("64.qcow2"));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("64.qcow2") && error.to_string().contains("1.qcow2"));
}

#[test]
fn other_backing_files_are_unsupported() {
    let images = Images::new();
    for (backing, format) in
        [("nbd://localhost/x", "raw"), ("json:{}", "qcow2"), ("a.vmdk", "vmdk")]
    {
        let path = images.path("top.qcow2");
        succeed(
            Command::new("qemu-img")
                .args(["create", "-q", "-u", "-f", "qcow2", "-b", backing, "-F", format])
                .arg(&path)
                .arg("1M"),
        );
        let error = refusal(&path);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(backing), "{error}");
    }
}
