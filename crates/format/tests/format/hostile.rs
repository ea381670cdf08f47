//! Bytes that nobody wrote: errors, never panics, never an allocation beyond the input's size.

use silt_format::tree::{Entry, TreePage};
use silt_format::{
    BlockReader, BlockWriter, Directory, ErrorKind, HEADER_BYTES, Head, Header, MapRoot,
    ObjectKind, Page, Reference, SealScheme, Snapshot,
};

use crate::decoders::decode;
use crate::values;

#[test]
fn cut_and_flipped_and_stretched_layouts_are_answered() {
    for (name, bytes) in values::encoded() {
        for length in 0..bytes.len() {
            let _ = decode(name, &bytes[..length]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x10] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = decode(name, &changed);
            }
        }
        for at in (0..bytes.len().saturating_sub(4)).step_by(1) {
            let mut changed = bytes.clone();
            changed[at..at + 4].fill(0xff);
            let _ = decode(name, &changed);
        }
    }
}

#[test]
fn a_cut_layout_is_damage() {
    for (name, bytes) in values::encoded() {
        if name == "summary-partition"
            || name.starts_with("sealed-")
            || name == "message-data"
            || name == "message-frame"
            || name == "message-delta"
        {
            continue;
        }
        let error = decode(name, &bytes[..bytes.len() - 1]);
        assert!(error.is_err(), "{name}");
    }
}

#[test]
fn a_count_beyond_the_input_allocates_nothing() {
    // A list of 2^32-1 items in a section of four bytes.
    let section = |tag: u16| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[1, 0, 4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        bytes
    };
    for tag in 1..6 {
        for name in ["container-directory", "block-directory", "snapshot", "head", "check"] {
            let _ = decode(name, &section(tag));
        }
    }
}

#[test]
fn what_a_newer_program_wrote_is_refused_by_name() {
    let mut newer = values::header(ObjectKind::Head, SealScheme::Aes256Gcm).encode();
    newer[8] = 2;
    let error = Header::decode(&newer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
    for (offset, value) in [(10, 200), (11, 9), (14, 1), (15, 128)] {
        let mut newer = values::header(ObjectKind::Head, SealScheme::Aes256Gcm).encode();
        newer[offset] = value;
        assert_eq!(Header::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let with_section = |flags: u8| {
        let mut bytes = values::snapshot().encode();
        bytes.extend_from_slice(&[0x99, 0, flags, 0, 2, 0, 0, 0, 7, 7]);
        Snapshot::decode(&bytes)
    };
    assert_eq!(with_section(0).unwrap(), values::snapshot(), "an unknown section is skipped");
    assert_eq!(with_section(1).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(with_section(4).unwrap_err().kind(), ErrorKind::Unsupported, "unknown flags");
}

#[test]
fn flags_to_ignore_are_ignored_and_still_sealed() {
    let mut header = values::header(ObjectKind::Head, SealScheme::Aes256Gcm);
    let plain = values::master().sealer(&header);
    header.rest.flags = 1;
    let decoded = Header::decode(&header.encode()).unwrap();
    assert_eq!(decoded, header);
    let mut block = b"data".to_vec();
    values::master().sealer(&decoded).seal(0, &mut block, 0);
    assert!(plain.open(0, &mut block.clone()).is_err(), "the seal is bound to the flags");
    assert!(values::master().sealer(&decoded).open(0, &mut block).is_ok());
}

#[test]
fn seals_break_at_every_bit_position_and_header() {
    let header = |scheme| values::header(ObjectKind::Container, scheme);
    let (checksum, aes) = (header(SealScheme::Checksum), header(SealScheme::Aes256Gcm));
    let to_key = values::write_only().begin_container(aes, [9; 32]).unwrap();
    let own = |header| (header, values::master().sealer(&header));
    for (header, sealer) in [own(checksum), own(aes), to_key] {
        let open = values::master().sealer(&header);
        let mut sealed = Vec::new();
        let mut writer = BlockWriter::new(1).unwrap();
        writer.append(&sealer, 3, &[7; 300], &mut sealed);
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = open.open(3, &mut changed).map(<[u8]>::to_vec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        assert!(open.open(4, &mut sealed.clone()).is_err(), "another position");
        for offset in (10..HEADER_BYTES).filter(|offset| !(11..16).contains(offset)) {
            let mut other = header.encode();
            other[offset] ^= 1;
            let Ok(other) = Header::decode(&other) else { continue };
            let sealer = values::master().sealer(&other);
            assert!(sealer.open(3, &mut sealed.clone()).is_err(), "header byte {offset}");
        }
        let mut raw = Vec::new();
        let mut reader = BlockReader::default();
        reader.read(&sealer, 3, &mut sealed.clone(), &mut raw).unwrap();
        assert_eq!(raw, [7; 300]);
    }
}

#[test]
fn a_block_that_claims_too_much_is_refused() {
    let mut reader = BlockReader::default();
    for claimed in [u32::MAX, (64 << 20) + 1] {
        let mut block = vec![1];
        block.extend_from_slice(&claimed.to_le_bytes());
        block.extend_from_slice(&[0; 20]);
        assert_eq!(reader.decode(&block, &mut Vec::new()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(reader.decode(&[0, 2, 0, 0, 0, 1], &mut Vec::new()).is_err(), "shorter than it says");
    assert_eq!(
        reader.decode(&[9, 0, 0, 0, 0], &mut Vec::new()).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn a_volume_of_another_kind_or_with_other_keys_is_refused_by_name() {
    let plain = values::snapshot().encode();
    let at = plain.windows(4).position(|bytes| bytes == b"root").unwrap();
    // Before the name: its length (2), the section (8), the volume's length (4) and its kind.
    let (kind, name) = (at - 15, values::snapshot().volumes[0].name.clone());
    let keys = at + name.len() + 8 + 2 + "/vm/root.qcow2".len() + 2 + "qcow2".len() + 8;
    for (offset, what) in [(kind, "volume kind 9"), (keys, "keys of kind 9")] {
        let mut other = plain.clone();
        assert_eq!(other[offset], 1);
        other[offset] = 9;
        let error = Snapshot::decode(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let mut without_tree = plain.clone();
    without_tree[kind] = 2;
    assert_eq!(Snapshot::decode(&without_tree).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut snapshot = values::snapshot();
    snapshot.volumes[0].root = MapRoot { level: 0, page: None };
    assert_eq!(Snapshot::decode(&snapshot.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Whatever a writer puts into a page, no reader sees a name that leads elsewhere, two entries of
/// one name, or content that does not fit.
#[test]
fn entries_that_no_backup_writes_are_refused() {
    let TreePage::Leaf(entries) = values::tree_leaf() else { panic!() };
    let refused = |change: &dyn Fn(&mut Vec<Entry>)| {
        let mut changed = entries.clone();
        change(&mut changed);
        let error = TreePage::decode(&TreePage::Leaf(changed).encode(), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    };
    for name in [&b".."[..], b".", b"", b"a/b", b"a\0b"] {
        refused(&|entries| {
            entries.truncate(1);
            entries[0].name = name.to_vec();
        });
    }
    refused(&|entries| entries[1] = entries[0].clone());
    refused(&|entries| entries.reverse());
    let file = |entries: &[Entry]| entries.iter().position(|e| !e.extents.is_empty()).unwrap();
    refused(&|entries| {
        let file = file(entries);
        entries[file].extents.pop();
    });
    refused(&|entries| {
        let (file, extents) = (file(entries), entries[file(entries)].extents.clone());
        entries[(file + 1) % 2].extents = extents;
    });
    refused(&|entries| {
        let directory = entries.iter().position(|entry| entry.subtree.is_some()).unwrap();
        entries[(directory + 1) % 3].subtree = entries[directory].subtree;
    });
    refused(&|entries| {
        let file = file(entries);
        entries[file].extents[0].address = Some(u64::MAX - 1);
    });
    refused(&|entries| entries[0].metadata.modified.nanoseconds = 1_000_000_000);
    refused(&|entries| {
        let file = file(entries);
        entries[file].metadata.xattrs.reverse();
    });
    assert!(TreePage::decode(&TreePage::Leaf(Vec::new()).encode(), 0).is_err(), "an empty page");
}

#[test]
fn digests_of_unknown_kinds_are_read_and_known_as_such() {
    let Page::Leaf(entries) = Page::decode(&values::leaf().encode(), 0).unwrap() else { panic!() };
    let known: Vec<bool> = entries.iter().flatten().map(|entry| entry.digest.is_known()).collect();
    assert_eq!(known, [true, false]);
    let [one, other] = [1, 3].map(|i| entries[i].unwrap().digest);
    assert_ne!(one, silt_format::SegmentDigest { kind: 2, ..one });
    assert_ne!(other, silt_format::SegmentDigest { kind: 1, ..other });
}

#[test]
fn applications_ascend_by_slot() {
    let mut bad = values::directory_with_applications();
    bad.applications.swap(0, 1);
    assert_eq!(Directory::decode(&bad.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn deltas_are_those_of_the_slots_that_hold_them() {
    let good = values::directory_with_deltas();
    assert_eq!(Directory::decode(&good.encode()).unwrap(), good);
    let changes: [fn(&mut Directory); 7] = [
        |directory| directory.deltas.truncate(1),
        |directory| directory.deltas.clear(),
        |directory| directory.deltas.swap(0, 1),
        |directory| directory.deltas[1].slot = 3,
        |directory| directory.deltas[1].chunk_bytes = 0,
        |directory| directory.deltas[1].chunk_bytes = (2 << 20) + 1,
        |directory| directory.deltas[1].base = Reference::ZERO,
    ];
    for change in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(Directory::decode(&bad.encode()).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let mut none = values::directory();
    none.deltas = good.deltas;
    assert!(Directory::decode(&none.encode()).is_err(), "deltas without slots");
}

#[test]
fn heads_with_stores_of_any_number_are_read() {
    let head = Head::decode(&values::head_reserved().encode()).unwrap();
    assert_eq!((head.seen(0), head.seen(1), head.seen(2)), (0, 0, 9));
    assert_eq!(head.stores[1].places.len(), 2);
}

/// Found by fuzzing: it was read, and written without the generation.
#[test]
fn a_head_that_condemned_nothing_is_refused() {
    let bytes = include_bytes!("../../../../testdata/format/hostile/head-condemns-nothing.bin");
    let error = Head::decode(bytes).unwrap_err();
    assert!(error.to_string().contains("condemns nothing"), "{error}");
}

#[test]
fn a_claim_that_zstd_can_not_fulfil_is_refused() {
    let mut reader = BlockReader::default();
    let mut block = vec![1];
    block.extend_from_slice(&(33_u32 << 10).to_le_bytes());
    block.push(0);
    let error = reader.decode(&block, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("claims"), "{error}");
    // The most that zstd makes of little is far below the bound.
    let sealer =
        values::master().sealer(&values::header(ObjectKind::Recipes, SealScheme::Checksum));
    let mut sealed = Vec::new();
    let zeros = vec![0; 64 << 20];
    let length = BlockWriter::new(19).unwrap().append(&sealer, 0, &zeros, &mut sealed);
    assert!(length < 10 << 10);
    let mut raw = Vec::new();
    reader.read(&sealer, 0, &mut sealed, &mut raw).unwrap();
    assert!(raw == zeros);
}
