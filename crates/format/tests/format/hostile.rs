//! Bytes that nobody wrote: errors, never panics, never an allocation beyond the input's size.

use silt_format::{
    BlockReader, BlockWriter, CheckRecord, Config, Directory, ErrorKind, Footer, HEADER_BYTES,
    Head, Header, Lease, ObjectKind, Page, Recipe, SealScheme, SeriesRecord, Snapshot, WrappedKey,
    decode_blocks,
};

use crate::values;

/// Runs the decoder of a layout; whatever it answers is fine, as long as it answers.
fn decode(name: &str, bytes: &[u8]) -> Result<(), silt_format::Error> {
    match name {
        "header" => Header::decode(bytes).map(drop),
        "footer" => Footer::decode(bytes).map(drop),
        "run-directory" => silt_format::RunDirectory::decode(bytes).map(drop),
        "run-records" => silt_format::decode_records(bytes, &mut Vec::new()),
        "container-directory" | "container-links" => Directory::decode(bytes).map(|directory| {
            directory.slots().for_each(drop);
        }),
        "block-directory" => decode_blocks(bytes).map(drop),
        "recipe-fixed" | "recipe-fastcdc" => Recipe::decode(bytes).map(drop),
        "page-leaf" => Page::decode(bytes, 0).map(drop),
        "page-branch" => Page::decode(bytes, 1).map(drop),
        "snapshot" => Snapshot::decode(bytes).map(drop),
        "head" | "head-deletions" | "head-sharing" => Head::decode(bytes).map(drop),
        "dead-list" => silt_format::decode_dead_ranges(bytes).map(drop),
        "config" | "config-append-only" => Config::decode(bytes).map(drop),
        "series" => SeriesRecord::decode(bytes).map(drop),
        "lease" => Lease::decode(bytes).map(drop),
        "places" => silt_format::Places::decode(bytes).map(drop),
        "check" => CheckRecord::decode(bytes).map(drop),
        "sealed-aes256gcm" | "sealed-checksum" => {
            let mut raw = Vec::new();
            BlockReader::new()?.decode(bytes, &mut raw)
        }
        "sealed-to-key" => {
            let header = Header::decode(bytes)?;
            let sealed = bytes.get(HEADER_BYTES..).unwrap_or_default();
            values::master().sealer(&header).open(5, &mut sealed.to_vec()).map(drop)
        }
        // The label alone: unwrapping runs Argon2id each time.
        "key" | "key-write-only" => WrappedKey::label(bytes, &values::master()).map(drop),
        "summary-partition" => Ok(()),
        other => panic!("no decoder for {other}"),
    }
}

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
        if name == "summary-partition" || name.starts_with("sealed-") {
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
        let mut reader = BlockReader::new().unwrap();
        reader.read(&sealer, 3, &mut sealed.clone(), &mut raw).unwrap();
        assert_eq!(raw, [7; 300]);
    }
}

#[test]
fn a_block_that_claims_too_much_is_refused() {
    let mut reader = BlockReader::new().unwrap();
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
