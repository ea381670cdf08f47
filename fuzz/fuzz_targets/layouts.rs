//! Every decoder of the repository's format: the first byte chooses one, the rest is its input.
//! Seeds: the files of testdata/format/v1.
#![no_main]

use libfuzzer_sys::fuzz_target;
use silt_format::replica::{InitMessage, ReplicaMessage, SourceMessage};
use silt_format::tree::TreePage;
use silt_format::{
    BlockReader, CheckRecord, Config, Directory, Footer, HEADER_BYTES, Head, Header, Lease, Mark,
    MasterKey, Page, Places, Recipe, RunDirectory, SeriesRecord, Signed, Snapshot, WrappedKey,
    Writers, decode_blocks, decode_dead_ranges, decode_records, encode_dead_ranges,
};

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 27 {
        0 => drop(Header::decode(bytes)),
        1 => drop(Footer::decode(bytes)),
        2 => {
            if let Ok(directory) = Directory::decode(bytes) {
                directory.slots().for_each(drop);
                assert_eq!(Directory::decode(&directory.encode()).ok(), Some(directory));
            }
        }
        3 => drop(decode_blocks(bytes)),
        4 => drop(Recipe::decode(bytes)),
        5 | 6 => {
            let level = choice % 26 - 5;
            if let Ok(page) = Page::decode(bytes, level) {
                assert_eq!(Page::decode(&page.encode(), level).ok(), Some(page));
            }
        }
        7 => {
            if let Ok(snapshot) = Snapshot::decode(bytes) {
                assert_eq!(Snapshot::decode(&snapshot.encode()).ok(), Some(snapshot));
            }
        }
        8 => {
            if let Ok(head) = Head::decode(bytes) {
                assert_eq!(Head::decode(&head.encode()).ok(), Some(head));
            }
        }
        9 => drop(Config::decode(bytes)),
        10 => drop(SeriesRecord::decode(bytes)),
        11 => drop(Lease::decode(bytes)),
        12 => drop(CheckRecord::decode(bytes)),
        13 => {
            let mut raw = Vec::new();
            drop(BlockReader::default().decode(bytes, &mut raw));
        }
        14 => {
            if let Ok(ranges) = decode_dead_ranges(bytes) {
                drop(encode_dead_ranges(&ranges));
            }
        }
        15 => {
            if let Ok(directory) = RunDirectory::decode(bytes) {
                assert_eq!(RunDirectory::decode(&directory.encode()).ok(), Some(directory));
            }
        }
        16 => drop(decode_records(bytes, &mut Vec::new())),
        17 => {
            if let Ok(places) = Places::decode(bytes) {
                assert_eq!(Places::decode(&places.encode()).ok(), Some(places));
            }
        }
        18 => {
            if let Ok(writers) = Writers::decode(bytes) {
                assert_eq!(Writers::decode(&writers.encode()).ok(), Some(writers));
            }
        }
        19 => {
            if let Some((first, rest)) = bytes.split_at_checked(HEADER_BYTES)
                && let Ok(header) = Header::decode(first)
                && let Ok(signed) = Signed::split(&header, rest)
            {
                assert!(!signed.is_by(&[1; 32]));
            }
        }
        20 | 21 => {
            let level = choice % 26 - 20;
            if let Ok(page) = TreePage::decode(bytes, level) {
                assert_eq!(TreePage::decode(&page.encode(), level).ok(), Some(page));
            }
        }
        22 => {
            if let Ok(message) = SourceMessage::decode(bytes) {
                assert_eq!(SourceMessage::decode(&message.encode()).ok(), Some(message));
            }
        }
        23 => {
            if let Ok(message) = ReplicaMessage::decode(bytes) {
                assert_eq!(ReplicaMessage::decode(&message.encode()).ok(), Some(message));
            }
        }
        25 => drop(Mark::decode(bytes)),
        24 => {
            drop(InitMessage::decode(bytes));
            // A fuzzer finds no hashes.
            if let Some((kind, body)) = bytes.split_first()
                && let Ok(message) = InitMessage::decode_body(*kind, body)
            {
                assert_eq!(InitMessage::decode(&message.encode()).ok(), Some(message));
            }
        }
        _ => drop(WrappedKey::label(bytes, &MasterKey::new([0; 32]).into())),
    }
});
