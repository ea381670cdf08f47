//! Damaged images are answered with data or an error: no panic, no endless loop, no huge
//! allocation.

use std::path::Path;

use proptest::prelude::*;
use silt_format::ErrorKind;
use silt_source::qcow2::Header;
use silt_source::{SourceOptions, open_source};

use crate::qemu::{Images, MIB, qemu_img, qemu_io, read_by_extents};

/// The most that is read of a volume whose size may be damaged.
const READ_BYTES_MAX: u64 = 8 << 20;

fn small_image(images: &Images, options: &str) -> Vec<u8> {
    let path = images.create("intact.qcow2", options, 2 * MIB);
    qemu_io(&path, "qcow2", &["write -P 1 0 20k", "write -z 64k 8k", "write -P 3 1M 50k"]);
    qemu_io(&path, "qcow2", &["write -c -P 4 512k 64k"]);
    std::fs::read(&path).unwrap()
}

/// Opens and reads; the kind of the error, if there is one.
fn outcome(path: &Path, bytes: &[u8]) -> Option<ErrorKind> {
    std::fs::write(path, bytes).unwrap();
    let source = match open_source(path, &SourceOptions::default()) {
        Ok(source) => source,
        Err(error) => return Some(error.kind()),
    };
    let size = source.info().size.unwrap().min(READ_BYTES_MAX);
    let mut buf = vec![0; usize::try_from(size).unwrap()];
    let read = source.read_at(0, &mut buf).err();
    let mut at = 0;
    while at < size {
        match source.extent_at(at) {
            Ok(extent) => {
                assert!(extent.length > 0);
                at = at.saturating_add(extent.length);
            }
            Err(error) => return Some(error.kind()),
        }
    }
    read.map(|error| error.kind())
}

fn assert_answered(path: &Path, bytes: &[u8], what: &str) {
    let kind = outcome(path, bytes);
    let expected = matches!(
        kind,
        None | Some(
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid | ErrorKind::NotFound
        )
    );
    assert!(expected, "{what}: {kind:?}");
}

#[test]
fn every_byte_of_the_header_flipped() {
    let images = Images::new();
    let path = images.path("damaged.qcow2");
    for options in
        ["cluster_size=4k", "cluster_size=4k,compat=0.10", "extended_l2=on,cluster_size=16k"]
    {
        let intact = small_image(&images, options);
        assert_eq!(outcome(&path, &intact), None);
        for at in 0..112 {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = intact.clone();
                bytes[at] ^= flip;
                assert_answered(&path, &bytes, &format!("{options}, byte {at} by {flip:#x}"));
            }
        }
    }
}

#[test]
fn every_entry_of_the_tables_changed() {
    let images = Images::new();
    let path = images.path("damaged.qcow2");
    for options in
        ["cluster_size=4k", "cluster_size=4k,compat=0.10", "extended_l2=on,cluster_size=16k"]
    {
        let intact = small_image(&images, options);
        let number = |at: usize| u64::from_be_bytes(intact[at..at + 8].try_into().unwrap());
        let offset = |entry: u64| usize::try_from(entry & 0x00ff_ffff_ffff_fe00).unwrap();
        let l1 = offset(number(40));
        let l2 = offset(number(l1));
        let entries =
            (0..2).map(|index| l1 + index * 8).chain((0..300).map(|index| l2 + index * 8));
        for at in entries {
            for entry in [
                0,
                1,
                512,
                u64::MAX,
                1 << 62,
                (1 << 62) | (1 << 55),
                1 << 40,
                (1 << 55) | (1 << 63),
                number(at) ^ 0x200,
                number(at) ^ 1,
                number(at) ^ (1 << 62),
            ] {
                let mut bytes = intact.clone();
                bytes[at..at + 8].copy_from_slice(&entry.to_be_bytes());
                assert_answered(&path, &bytes, &format!("{options}, {entry:#x} at {at}"));
            }
        }
    }
}

#[test]
fn what_is_surely_wrong_is_corrupt() {
    let images = Images::new();
    let path = images.path("damaged.qcow2");
    let intact = small_image(&images, "cluster_size=4k");
    let number = |at: usize| u64::from_be_bytes(intact[at..at + 8].try_into().unwrap());
    let l1 = usize::try_from(number(40)).unwrap();
    let l2 = usize::try_from(number(l1) & 0x00ff_ffff_ffff_fe00).unwrap();
    for (what, at, value) in [
        ("an unaligned L1 table", 40, number(40) + 8),
        ("an L1 table past the end", 40, 1 << 40),
        ("an L1 table at the end of all numbers", 40, u64::MAX << 12),
        ("an absurd size", 24, 1 << 50),
        ("a size beyond all", 24, u64::MAX),
        ("an unaligned L2 table", l1, 512),
        ("an L2 table past the end", l1, 1 << 40),
        ("an unaligned cluster", l2, 512),
        ("a cluster past the end", l2, 1 << 40),
        ("a compressed cluster past the end", l2, (1 << 62) | (1 << 40)),
    ] {
        let mut bytes = intact.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        assert_eq!(outcome(&path, &bytes), Some(ErrorKind::Corrupt), "{what}");
    }
    let mut bytes = intact.clone();
    bytes[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(outcome(&path, &bytes), Some(ErrorKind::Corrupt), "an absurd L1 table");
}

#[test]
fn truncation_is_noticed_wherever_it_cuts_data_or_tables() {
    let images = Images::new();
    let path = images.path("damaged.qcow2");
    let image = images.create("intact.qcow2", "cluster_size=4k", MIB);
    qemu_io(&image, "qcow2", &["write -P 1 0 1M"]);
    let intact = std::fs::read(&image).unwrap();
    for length in (0..intact.len()).step_by(1021) {
        let kind = outcome(&path, &intact[..length]);
        let expected = if length < 4 { ErrorKind::Invalid } else { ErrorKind::Corrupt };
        assert_eq!(kind, Some(expected), "cut to {length} of {}", intact.len());
    }
}

#[test]
fn damaged_compressed_clusters_are_corrupt_or_read() {
    let images = Images::new();
    let raw = images.path("volume.raw");
    std::fs::write(&raw, (0..1_u32 << 16).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let (intact, damaged) = (images.path("intact.qcow2"), images.path("damaged.qcow2"));
    for kind in ["zlib", "zstd"] {
        let options = format!("compression_type={kind},cluster_size=64k");
        qemu_img(&["convert", "-c", "-O", "qcow2", "-o", &options], &[&raw, &intact]);
        let bytes = std::fs::read(&intact).unwrap();
        let first = 5 * (64 << 10);
        let mut corrupt = 0;
        for at in (first..bytes.len()).step_by(97) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x55;
            corrupt += u32::from(match outcome(&damaged, &bytes) {
                None => false,
                Some(ErrorKind::Corrupt) => true,
                Some(other) => panic!("{kind}, byte {at}: {other:?}"),
            });
        }
        assert!(corrupt > 0, "{kind}: no damage was noticed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn mutated_images_are_answered(
        subclusters in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        tables in prop::collection::vec((0_usize..8, any::<prop::sample::Index>(), any::<u8>()),
        0..8),
    ) {
        thread_local! {
            static IMAGES: (Images, Vec<u8>, Vec<u8>) = {
                let images = Images::new();
                let plain = small_image(&images, "cluster_size=4k");
                let extended = small_image(&images, "extended_l2=on,cluster_size=16k");
                (images, plain, extended)
            };
        }
        IMAGES.with(|(images, plain, extended)| {
            let (intact, cluster) = if subclusters { (extended, 16 << 10) } else { (plain,
            4 << 10) };
            let mut bytes = intact.clone();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            // Most of a file is data: aim at the first clusters' headers and tables as well.
            for (index, at, value) in tables {
                let at = (index * cluster + at.index(256)).min(bytes.len() - 1);
                bytes[at] = value;
            }
            assert_answered(&images.path("damaged.qcow2"), &bytes, "mutated");
        });
    }

    #[test]
    fn any_header_is_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let start = [b'Q', b'F', b'I', 0xfb, 0, 0, 0, 3];
        let _ = Header::decode(&bytes);
        for (byte, &from) in bytes.iter_mut().zip(&start) {
            *byte = from;
        }
        if bytes.len() > 24 {
            bytes[20..24].copy_from_slice(&9_u32.to_be_bytes());
        }
        let _ = Header::decode(&bytes);
    }
}

#[test]
fn an_intact_image_reads_whole() {
    let images = Images::new();
    let bytes = small_image(&images, "cluster_size=4k");
    let path = images.path("copy.qcow2");
    std::fs::write(&path, bytes).unwrap();
    let source = open_source(&path, &SourceOptions::default()).unwrap();
    assert_eq!(read_by_extents(&*source).unwrap().len() as u64, 2 * MIB);
}
