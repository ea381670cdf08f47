//! Names of files for series, snapshots and volumes.

use jiff::Timestamp;
use silt_format::Id;

/// The folder of links from ids.
pub const BY_ID: &str = "by-id";
/// The link to a series' newest snapshot.
pub const LATEST: &str = "latest";
/// Behind a volume's name.
const SUFFIX: &str = ".raw";

/// Longest name that is shown whole; with its suffix it must fit in 255 bytes.
const NAME_BYTES_MAX: usize = 240;
/// How much of a longer one is shown before its hash.
const CUT_BYTES: usize = 200;

/// A name as that of a file: `/`, `%`, control characters and dots at the beginning are written as
/// `%2F` and the like; of a long name the end is a hash.
fn encoded(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for (at, letter) in name.char_indices() {
        let is_special = letter.is_control() || matches!(letter, '/' | '%');
        if is_special || (at == 0 && letter == '.') {
            let mut bytes = [0; 4];
            for byte in letter.encode_utf8(&mut bytes).bytes() {
                shown.extend([format!("%{byte:02X}")]);
            }
        } else {
            shown.push(letter);
        }
    }
    if shown.len() > NAME_BYTES_MAX {
        let cut = (0..=CUT_BYTES).rev().find(|at| shown.is_char_boundary(*at)).unwrap_or(0);
        shown.truncate(cut);
        shown.extend([format!("%{:016x}", hash(name))]);
    }
    shown
}

/// FNV-1a: two long names of one repository differ in it.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The folder of a series.
pub fn of_series(name: &str) -> String {
    if name == BY_ID { "%62y-id".to_owned() } else { encoded(name) }
}

/// The file of a disk.
pub fn of_disk(name: &str) -> String {
    encoded(name) + SUFFIX
}

/// The folder of a file tree, which no disk's file is called.
pub fn of_tree(name: &str) -> String {
    let mut shown = encoded(name);
    if shown.ends_with(SUFFIX) {
        shown.truncate(shown.len() - SUFFIX.len());
        shown.push_str("%2Eraw");
    }
    shown
}

/// A time in UTC, to the second, without colons: `2026-11-20T18-30-05Z`.
pub fn of_time(time_ns: i64) -> String {
    Timestamp::from_nanosecond(i128::from(time_ns)).map_or_else(
        |_| time_ns.to_string(),
        |time| time.strftime("%Y-%m-%dT%H-%M-%SZ").to_string(),
    )
}

/// The first eight digits of an id.
pub fn short(id: Id) -> String {
    id.to_string()[..8].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        assert_eq!(of_series("web 1"), "web 1");
        assert_eq!(of_series("../x"), "%2E.%2Fx");
        assert_eq!(of_series("100%\n"), "100%25%0A");
        assert_ne!(of_series(BY_ID), BY_ID);
        assert_eq!(of_disk("root"), "root.raw");
        assert_eq!(of_tree("root"), "root");
        assert_eq!(of_tree("root.raw"), "root%2Eraw");
        assert_ne!(of_tree("root.raw"), of_tree("root%2Eraw"));
        let (one, two) = ("ä".repeat(300), "ä".repeat(301));
        assert!(of_disk(&one).len() <= 255 && of_disk(&one) != of_disk(&two));
        assert_eq!(of_time(1_795_199_405_999_999_999), "2026-11-20T18-30-05Z");
    }
}
