//! What reading does to the page cache.

use std::io::Write;

use rustix::fs::Advice;

use super::*;

const FILE_BYTES: usize = 8 << 20;

/// A file of which nothing is in the page cache.
fn cold_file() -> (tempfile::NamedTempFile, Vec<u8>) {
    let bytes: Vec<u8> = (0..2_u32 << 20).flat_map(u32::to_le_bytes).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    rustix::fs::fsync(file.as_file()).unwrap();
    rustix::fs::fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    read_what_is_asked_for(file.as_file());
    (file, bytes)
}

fn is_cached(file: &File, offset: u64) -> bool {
    let mut block = [0; 4096];
    let into = &mut [io::IoSliceMut::new(&mut block)];
    matches!(rustix::io::preadv2(file, into, offset, ReadWriteFlags::NOWAIT), Ok(4096))
}

fn read_all(reads: &UncachedReads, file: &tempfile::NamedTempFile) -> Vec<u8> {
    let mut found = vec![1; FILE_BYTES + 10];
    let count = reads.read_up_to(file.as_file(), file.path(), 0, &mut found).unwrap();
    found.truncate(count);
    found
}

#[test]
fn what_was_not_in_the_page_cache_leaves_it_and_what_was_stays() {
    let (file, bytes) = cold_file();
    let reads = UncachedReads::new(false);
    let middle = FILE_BYTES as u64 / 2;
    let mut part = vec![0; 1 << 20];
    read_up_to(file.as_file(), file.path(), middle, &mut part).unwrap();
    assert!(part == bytes[FILE_BYTES / 2..][..1 << 20]);
    assert!(read_all(&reads, &file) == bytes);
    if reads.stay.load(Ordering::Relaxed) {
        eprintln!("SKIPPED: this kernel or file system can't read past the page cache");
        return;
    }
    assert!(is_cached(file.as_file(), middle), "it was there before");
    // Each look is at a place of its own: looking lets the kernel read.
    let places = [0, 1 << 20, 3 << 20, 7 << 20];
    let cached = places.iter().filter(|at| is_cached(file.as_file(), **at)).count();
    assert!(cached <= 1, "{cached} of {places:?}");
}

#[test]
fn where_pages_may_stay_or_have_to_the_bytes_are_the_same() {
    let (file, bytes) = cold_file();
    assert!(read_all(&UncachedReads::new(true), &file) == bytes);
    assert!(read_all(&UncachedReads::new(false), &file) == bytes, "now all are cached");
    // No kernel can be asked for this of a directory.
    let folder = File::open(std::env::temp_dir()).unwrap();
    let reads = UncachedReads::new(false);
    let error = reads.read_up_to(&folder, Path::new("a folder"), 0, &mut [0; 10]).unwrap_err();
    assert!(error.to_string().contains("reading a folder at byte 0"), "{error}");
}
