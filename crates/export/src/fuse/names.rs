//! File names for series, snapshots and volumes.

use jiff::Timestamp;
use silt_format::Id;

/// The folder of links from ids.
pub const BY_ID: &str = "by-id";
/// The link to a series' newest snapshot.
pub const LATEST: &str = "latest";
/// The extension of a disk's file.
const SUFFIX: &str = ".raw";

/// Maximum length in bytes of a name that is not shortened. With its suffix it must fit into 255
/// bytes.
const NAME_BYTES_MAX: usize = 240;
/// Number of bytes of a shortened name before its hash.
const CUT_BYTES: usize = 200;

/// Encodes a name as a file name. `/`, `%`, control characters and a dot at the beginning become
/// `%2F` and the like. The end of a long name is replaced by a hash.
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

/// Returns the FNV-1a hash of a name, which distinguishes long names with the same beginning.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Returns the name of a series' folder.
pub fn of_series(name: &str) -> String {
    if name == BY_ID { "%62y-id".to_owned() } else { encoded(name) }
}

/// Returns the name of a disk's file.
pub fn of_disk(name: &str) -> String {
    encoded(name) + SUFFIX
}

/// Returns the name of a file tree's folder. It differs from the names of all disks' files.
pub fn of_tree(name: &str) -> String {
    let mut shown = encoded(name);
    if shown.ends_with(SUFFIX) {
        shown.truncate(shown.len() - SUFFIX.len());
        shown.push_str("%2Eraw");
    }
    shown
}

/// Formats a time in UTC, to the second, without colons: `2026-11-20T18-30-05Z`.
pub fn of_time(time_ns: i64) -> String {
    Timestamp::from_nanosecond(i128::from(time_ns)).map_or_else(
        |_| time_ns.to_string(),
        |time| time.strftime("%Y-%m-%dT%H-%M-%SZ").to_string(),
    )
}

/// Returns the first eight digits of an id.
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
