//! Tar archives, as `silt import` reads them: the entries, and the tree that comes of them.
//!
//! The first byte chooses what is imported of the archive, and whether the checksums of headers are
//! made right before; otherwise nearly every change of a header ends in its checksum.
//! Seeds: archives that GNU tar makes, in each of its formats.
#![no_main]

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use silt_format::Config;
use silt_format::tree::EntryKind;
use silt_import::{StageOptions, stage};
use silt_repository::Repository;
use silt_repository::env::Context;
use silt_repository::event::Silent;
use silt_repository::open::Protection;
use silt_repository::system::SystemEnv;
use silt_storage::MemoryStorage;
use silt_tree::{Found, Step, TreeSource};

const BLOCK: usize = 512;
/// Bytes of a file that are read at its beginning and at its end. A hole may have exbibytes.
const READ_BYTES: u64 = 64 << 10;
/// Ranges of a file that are looked at.
const RANGES_MAX: usize = 1000;

fn repository() -> &'static Repository {
    static REPOSITORY: OnceLock<Repository> = OnceLock::new();
    REPOSITORY.get_or_init(|| {
        let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
        let context = Context::new(env, Arc::new(Silent));
        let storage = Arc::new(MemoryStorage::new());
        Repository::init(storage, context, Config::default(), &Protection::None, None).unwrap()
    })
}

/// Where the temporary files are, which have no names: in memory if that is possible.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

fn make_sums_right(archive: &mut [u8]) {
    for header in archive.chunks_exact_mut(BLOCK).filter(|it| it[257..262] == *b"ustar") {
        header[148..156].copy_from_slice(b"        ");
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn read(source: &mut dyn TreeSource, found: &Found) {
    let size = found.metadata.size;
    let Ok(file) = source.open_file(found) else { return };
    let mut buffer = vec![0; READ_BYTES as usize];
    for start in [0, size.saturating_sub(READ_BYTES)] {
        if let Ok(read) = file.read_at(start, &mut buffer) {
            assert_eq!(read as u64, READ_BYTES.min(size - start));
        }
    }
    let (mut at, mut ranges) = (0, 0);
    while let Ok(Some(range)) = file.next_data(at, size) {
        assert!(range.start >= at && range.end > range.start && range.end <= size);
        (at, ranges) = (range.end, ranges + 1);
        if ranges > RANGES_MAX {
            return;
        }
    }
    assert_eq!(file.status().unwrap().size, size);
}

/// Goes through the tree. Returns the number of entries.
fn walk(source: &mut dyn TreeSource) -> u64 {
    // The last name in each directory from the root to the current one.
    let mut last: Vec<Vec<u8>> = Vec::new();
    let mut count = 0;
    let follows = |last: &mut Vec<Vec<u8>>, name: &[u8]| {
        let before = last.last_mut().unwrap();
        assert!(before.as_slice() < name, "names ascend, and none comes twice");
        assert!(!name.contains(&b'/') && !name.contains(&0) && name != b"." && name != b"..");
        assert!(name.len() <= 255);
        *before = name.to_vec();
    };
    while let Some(step) = source.next().unwrap() {
        match step {
            Step::Enter(found) => {
                assert_eq!(found.metadata.kind, EntryKind::Directory);
                assert_eq!(last.is_empty(), found.name.is_empty());
                if !last.is_empty() {
                    follows(&mut last, &found.name);
                }
                last.push(Vec::new());
                count += 1;
            }
            Step::Entry(mut found) => {
                follows(&mut last, &found.name);
                assert!(source.complete(&mut found) && found.metadata.links > 0);
                if found.metadata.kind == EntryKind::File {
                    read(source, &found);
                }
                count += 1;
            }
            Step::Leave(None) => drop(last.pop().unwrap()),
            other => panic!("{other:?}"),
        }
    }
    assert!(last.is_empty());
    count
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let mut archive = bytes.to_vec();
    if choice & 1 == 0 {
        make_sums_right(&mut archive);
    }
    let root = if choice & 2 == 0 { Vec::new() } else { b"d".to_vec() };
    let options = StageOptions { root, ..StageOptions::default() };
    let Ok(staged) = stage(repository(), &archive[..], &folder(), &options) else { return };
    let count = walk(&mut *staged.source().unwrap());
    assert!(count >= staged.entries(), "{count} of {}", staged.entries());
    assert_eq!(walk(&mut *staged.source().unwrap()), count, "it can be read again");
});
