//! Archives, read by other programs, and patterns that choose paths.

use std::ffi::OsStr;
use std::fs;

use silt_format::ErrorKind;
use silt_format::tree::{DeviceNumber, EntryKind, Metadata, Timestamp, Xattr};
use silt_tree::{ArchiveEntry, Choice, PathRules, TarWriter, ZipWriter};

use crate::kit::{Scratch, has, metadata, tool};

fn archived<'e>(path: &'e [u8], metadata: &'e Metadata) -> ArchiveEntry<'e> {
    ArchiveEntry { path, metadata, link_to: None, user: None, group: None, data: &[] }
}

fn listed(program: &str, args: &[&str], scratch: &Scratch) -> String {
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    String::from_utf8_lossy(&tool(program, &args, &scratch.path(""))).into_owned()
}

#[test]
fn numbers_that_plain_headers_cannot_hold_are_in_extended_ones() {
    let scratch = Scratch::new();
    let device = DeviceNumber { major: 4000, minor: 1 << 20 };
    let (uid, gid) = (4_000_000_000, 3_000_000_000);
    let modified = Timestamp { seconds: 20_000_000_000, nanoseconds: 0 };
    let owned = Metadata { uid, gid, modified, ..metadata(EntryKind::Fifo) };
    let device = Metadata { device, ..metadata(EntryKind::CharDevice) };
    let file = metadata(EntryKind::File);
    // More than ten digits, so that the length of a record has more digits itself.
    let xattr = Xattr { name: b"user.=%".to_vec(), value: vec![b'\n'; 20_000] };
    let with_xattr = Metadata { xattrs: vec![xattr], ..metadata(EntryKind::File) };
    let holes = Metadata { size: 1 << 40, ..metadata(EntryKind::File) };
    let mut tar = TarWriter::new(Vec::new());
    assert!(tar.begin(&archived(b"owned", &owned)).unwrap());
    assert!(tar.begin(&archived(b"device", &device)).unwrap());
    assert!(tar.begin(&archived(&[b'x'; 300], &file)).unwrap());
    assert!(tar.begin(&archived(b"xattr", &with_xattr)).unwrap());
    assert!(tar.begin(&archived(b"holes", &holes)).unwrap());
    assert!(!tar.begin(&archived(b"socket", &metadata(EntryKind::Socket))).unwrap());
    fs::write(scratch.path("a.tar"), tar.finish().unwrap()).unwrap();
    for program in ["tar", "bsdtar"] {
        if !has(program) {
            continue;
        }
        let text = listed(program, &["--numeric-owner", "-tvf", "a.tar"], &scratch);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{program}: {text}");
        assert!(lines[0].contains("4000000000") && lines[0].contains("3000000000"), "{text}");
        assert!(lines[0].contains("2603"), "{text}");
        assert!(lines[1].contains("4000,1048576") || lines[1].contains("4000,"), "{text}");
        assert!(lines[2].ends_with(&"x".repeat(300)), "{text}");
        assert!(lines[3].ends_with("xattr"), "{text}");
        assert!(lines[4].contains(" 1099511627776 ") && lines[4].ends_with(" holes"), "{text}");
    }
}

#[test]
fn content_that_does_not_fit_its_entry_is_refused() {
    let three = Metadata { size: 3, ..metadata(EntryKind::File) };
    let data = std::slice::from_ref(&(0..3));
    let entry = ArchiveEntry { data, ..archived(b"three", &three) };
    let mut tar = TarWriter::new(Vec::new());
    tar.begin(&entry).unwrap();
    assert_eq!(tar.data(b"four").unwrap_err().kind(), ErrorKind::Invalid);
    tar.data(b"tw").unwrap();
    assert_eq!(tar.left(), 1);
    assert_eq!(tar.begin(&entry).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(tar.finish().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn large_files_in_zip_archives_have_sizes_of_64_bits() {
    let scratch = Scratch::new();
    let large = Metadata { size: 5 << 30, ..metadata(EntryKind::File) };
    let (small, link) = (metadata(EntryKind::File), metadata(EntryKind::Symlink));
    let link = Metadata { target: b"large".to_vec(), ..link };
    let mut zip = ZipWriter::new(Vec::new());
    assert!(!zip.begin(&archived(b"", &metadata(EntryKind::Directory))).unwrap());
    assert!(zip.begin(&archived("gro\u{df}".as_bytes(), &large)).unwrap());
    // The size in the metadata alone decides about 64-bit fields.
    zip.data(&b"many bytes ".repeat(1000)).unwrap();
    assert!(zip.begin(&archived(b"empty", &small)).unwrap());
    assert!(zip.begin(&archived(b"link", &link)).unwrap());
    assert!(!zip.begin(&archived(b"pipe", &metadata(EntryKind::Fifo))).unwrap());
    fs::write(scratch.path("a.zip"), zip.finish().unwrap()).unwrap();
    if has("unzip") {
        let text = listed("unzip", &["-tq", "a.zip"], &scratch);
        assert!(text.contains("No errors detected"), "{text}");
    }
    if has("bsdtar") {
        let text = listed("bsdtar", &["-tvf", "a.zip"], &scratch);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 3 && lines[0].contains(" 11000 "), "{text}");
        assert!(lines[2].ends_with("link -> large"), "{text}");
    }
}

#[test]
fn a_directory_that_is_included_comes_whole_and_one_on_the_way_does_not() {
    let mut rules = PathRules::default();
    assert!(rules.is_empty());
    for pattern in ["/srv/www", "*.conf", "!test.conf"] {
        rules.include(pattern, false).unwrap();
    }
    rules.exclude("*.TMP", true).unwrap();
    let mut matcher = rules.matcher().unwrap();
    for (path, is_directory, is_below, choice) in [
        ("srv", true, false, Choice::Passed),
        ("srv/www", true, false, Choice::Taken),
        ("srv/www/index", false, true, Choice::Taken),
        ("srv/www/index.tmp", false, true, Choice::LeftOut),
        ("srv/other", false, false, Choice::LeftOut),
        ("etc/a.conf", false, false, Choice::Taken),
        ("etc/test.conf", false, false, Choice::LeftOut),
        ("etc/dir.tmp", true, false, Choice::LeftOut),
    ] {
        assert_eq!(matcher.choose(path.as_bytes(), is_directory, is_below), choice, "{path}");
    }
}
