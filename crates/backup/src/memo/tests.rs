use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, UNIX_EPOCH};

use silt_repository::system::SystemEnv;
use tempfile::TempDir;

use super::file::PAGE_PAIRS;
use super::*;

const KEY: [u8; 32] = [3; 32];
const SERIES: SeriesId = SeriesId([4; 12]);
/// Three pages, the last one not full.
const SEGMENTS: u64 = ALL as u64;
const ALL: usize = 2 * PAGE_PAIRS + 40;
const PAGE_BYTES: usize = 4096;

/// A folder with the memo of a volume.
struct Case {
    folder: TempDir,
    context: Context,
}

fn data(segment: u64) -> [u8; 8] {
    (segment + 1).to_le_bytes()
}

fn digest(segment: u64) -> SegmentDigest {
    let mut bytes = [0xd1; 16];
    bytes[..8].copy_from_slice(&segment.to_le_bytes());
    SegmentDigest { kind: SegmentDigest::OF_BLOCKS, bytes }
}

impl Case {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), context: SystemEnv::context() }
    }

    fn written() -> Self {
        let case = Self::new();
        case.write(&|segment| Some(segment));
        case
    }

    fn open(&self) -> Memo {
        Memo::open_in(self.folder.path(), &KEY, SERIES, "disk", &self.context).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.open().path
    }

    /// Writes the memo of a volume whose segments are those that `content` says, or zeros.
    fn write(&self, content: &dyn Fn(u64) -> Option<u64>) -> u64 {
        let memo = self.open();
        let mut notes = memo.notes();
        for segment in 0..SEGMENTS {
            let noted = content(segment).and_then(|content| {
                let hashed = memo.hash(segment, &data(content));
                hashed.with(&digest(content))
            });
            notes.take(1, noted, noted.is_some_and(|noted| noted.is_old));
        }
        notes.finish(&self.context)
    }

    /// Number of segments that are recognized. Panics if one is taken for another.
    fn recognized(&self) -> usize {
        let memo = self.open();
        let known = (0..SEGMENTS).filter(|&segment| {
            let found = memo.hash(segment, &data(segment)).digest();
            assert!(found.is_none_or(|found| found == digest(segment)), "segment {segment}");
            // Bytes that were never digested.
            assert_eq!(memo.hash(segment, &data(segment + SEGMENTS)).digest(), None);
            found.is_some()
        });
        known.count()
    }
}

#[test]
fn a_second_backup_recognizes_what_the_first_has_digested() {
    let case = Case::new();
    assert_eq!(case.recognized(), 0);
    assert_eq!(case.write(&|segment| Some(segment)), 0);
    assert_eq!(case.recognized() as u64, SEGMENTS);
    assert_eq!(case.write(&|segment| Some(segment)), SEGMENTS);
    let file = fs::metadata(case.path()).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(case.folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn the_file_is_written_again_only_if_a_segment_is_new() {
    let case = Case::written();
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let file = File::open(case.path()).unwrap();
    file.set_times(FileTimes::new().set_modified(long_ago)).unwrap();
    let before = fs::metadata(case.path()).unwrap();
    case.write(&|segment| (segment != 7).then_some(segment));
    let after = fs::metadata(case.path()).unwrap();
    assert_eq!(after.ino(), before.ino());
    assert!(after.mtime() > before.mtime(), "it is not forgotten");
    case.write(&|segment| Some(if segment == 7 { 1000 } else { segment }));
    assert_ne!(fs::metadata(case.path()).unwrap().ino(), before.ino());
    assert_eq!(case.recognized() as u64, SEGMENTS - 1);
}

/// I-12: of each byte of the file, some bit is flipped.
#[test]
fn a_flipped_bit_never_makes_one_segment_another() {
    let case = Case::written();
    let whole = fs::read(case.path()).unwrap();
    let path = case.path();
    let lost = |file: &[u8]| {
        fs::write(&path, file).unwrap();
        ALL - case.recognized()
    };
    assert_eq!(lost(&whole), 0);
    for at in (0..whole.len()).step_by(7).chain(0..72) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        let expected = match at {
            0..72 => ALL,
            72..PAGE_BYTES => 0,
            _ => PAGE_PAIRS.min(ALL - (at / PAGE_BYTES - 1) * PAGE_PAIRS),
        };
        assert_eq!(lost(&damaged), expected, "byte {at}");
    }
}

/// Whoever damages a page and its proof alike has no key.
#[test]
fn pages_in_wrong_places_prove_nothing() {
    let case = Case::written();
    let mut file = fs::read(case.path()).unwrap();
    let (first, second) = file[PAGE_BYTES..3 * PAGE_BYTES].split_at_mut(PAGE_BYTES);
    first.swap_with_slice(second);
    fs::write(case.path(), file).unwrap();
    assert_eq!(case.recognized() as u64, SEGMENTS - 2 * PAGE_PAIRS as u64);
}

#[test]
fn a_cut_file_loses_pages_and_nothing_else() {
    let case = Case::written();
    let whole = fs::read(case.path()).unwrap();
    for length in (0..whole.len()).step_by(509) {
        fs::write(case.path(), &whole[..length]).unwrap();
        let pages = (length / PAGE_BYTES).saturating_sub(1);
        assert_eq!(case.recognized(), pages * PAGE_PAIRS, "{length} bytes");
    }
}

#[test]
fn the_file_of_another_volume_is_none() {
    let case = Case::written();
    let others = [
        (&[5; 32], SERIES, "disk"),
        (&KEY, SeriesId([5; 12]), "disk"),
        (&KEY, SERIES, "data"),
        (&KEY, SERIES, "disk"),
    ];
    for (at, (key, series, volume)) in others.into_iter().enumerate() {
        let open = || {
            let folder = case.folder.path();
            Memo::open_in(folder, key, series, volume, &case.context).unwrap()
        };
        let is_own = at == others.len() - 1;
        assert_eq!(open().path == case.path(), is_own);
        if !is_own {
            fs::copy(case.path(), open().path).unwrap();
        }
        assert_eq!(open().old.is_some(), is_own, "{volume}");
    }
}

/// The key is another one each time, so nobody learns it elsewhere.
#[test]
fn each_new_file_has_a_secret_of_its_own() {
    let (one, other) = (Case::written(), Case::written());
    let hash = |case: &Case| case.open().hash(0, &data(0)).hash;
    assert_eq!(hash(&one), hash(&one));
    assert_ne!(hash(&one), hash(&other));
}

#[test]
fn writers_side_by_side_leave_one_whole_file() {
    let case = Case::written();
    let (one, other) = (case.open(), case.open());
    let (mut first, mut second) = (one.notes(), other.notes());
    for segment in 0..SEGMENTS {
        for (memo, notes, add) in [(&one, &mut first, 0), (&other, &mut second, 5000)] {
            let content = segment + add;
            notes.take(1, memo.hash(segment, &data(content)).with(&digest(content)), false);
        }
    }
    second.finish(&case.context);
    assert_eq!(case.recognized(), 0);
    // Nothing of it was new, so the file of the other remains.
    first.finish(&case.context);
    assert_eq!(case.recognized(), 0);
    case.write(&|segment| Some(segment));
    assert_eq!(case.recognized() as u64, SEGMENTS);
}

#[test]
fn long_runs_without_pairs_are_holes() {
    let case = Case::new();
    let (far, memo) = (1 << 23, case.open());
    let mut notes = memo.notes();
    for segment in [0, far + 1] {
        notes.take(1, memo.hash(segment, &data(segment)).with(&digest(segment)), false);
        notes.take(far, None, false);
    }
    notes.finish(&case.context);
    assert!(case.context.env.now_ns() > 0 && fs::metadata(case.path()).unwrap().blocks() < 100);
    let memo = case.open();
    let known = |segment| memo.hash(segment, &data(segment)).digest().is_some();
    assert!(known(0) && known(far + 1) && !known(1) && !known(far) && !known(far + 2));
    assert!(!known(u64::MAX - 1));
}

#[test]
fn only_digests_of_blocks_are_remembered() {
    let (case, mut other) = (Case::new(), digest(1));
    other.kind = SegmentDigest::OF_CHUNKS;
    let hashed = case.open().hash(1, &data(1));
    assert!(hashed.with(&other).is_none() && hashed.with(&digest(1)).is_some());
}

#[test]
fn old_files_are_removed_and_the_newest_stays() {
    let case = Case::written();
    let now_s = u64::try_from(case.context.env.now_ns() / 1_000_000_000).unwrap();
    let day = 24 * 3600;
    let files =
        [("old", 91 * day), ("recent", 89 * day), (".silt-1-1", 2 * day), (".silt-2-2", 60)];
    for (name, age_s) in files {
        let file = File::create(case.folder.path().join(name)).unwrap();
        let modified = UNIX_EPOCH + Duration::from_secs(now_s - age_s);
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
    }
    let own = File::open(case.path()).unwrap();
    own.set_times(FileTimes::new().set_modified(UNIX_EPOCH)).unwrap();
    cleaning::clean(&case.path(), case.context.env.now_ns()).unwrap();
    let is_there = |name: &str| case.folder.path().join(name).exists();
    assert!(case.path().exists() && is_there("recent") && is_there(".silt-2-2"));
    assert!(!is_there("old") && !is_there(".silt-1-1"));
}

/// A folder that cannot be written is a warning, not an error.
#[test]
fn a_memo_that_cannot_be_written_fails_no_backup() {
    let case = Case::new();
    let blocked = case.folder.path().join("file");
    fs::write(&blocked, b"").unwrap();
    let memo = Memo::open_in(&blocked, &KEY, SERIES, "disk", &case.context).unwrap();
    let mut notes = memo.notes();
    notes.take(1, memo.hash(0, &data(0)).with(&digest(0)), false);
    notes.take(1, None, false);
    assert_eq!(notes.finish(&case.context), 0);
}
