//! The kind of a file, by its first bytes and its name.

use silt_format::tree::FileKind;
use silt_format::tree::FileKind::{
    Archive, Audio, Database, DiskImage, Document, Executable, Mail, Other, Photo, Text, Video,
};

/// Number of bytes at the start of a file that [`kind_of`] looks at.
pub const MAGIC_BYTES: usize = 512;

/// Byte sequences that identify a kind: offset, bytes, kind. The first match counts.
const MAGIC: [(usize, &[u8], FileKind); 62] = [
    (0, b"QFI\xfb", DiskImage),
    (0, b"KDMV", DiskImage),
    (0, b"COWD", DiskImage),
    (0, b"# Disk DescriptorFile", DiskImage),
    (0, b"vhdxfile", DiskImage),
    (0, b"conectix", DiskImage),
    (64, b"\x7f\x10\xda\xbe", DiskImage),
    (0, b"LUKS\xba\xbe", DiskImage),
    (0, b"hsqs", DiskImage),
    (0, b"SQLite format 3\0", Database),
    (0, b"\x01\x0f\0\0", Database),
    (4, b"Standard Jet DB", Database),
    (4, b"Standard ACE DB", Database),
    (12, b"\x61\x15\x06\0", Database),
    (12, b"\x62\x31\x05\0", Database),
    (0, b"\x89LMDB", Database),
    (0, b"%PDF-", Document),
    (0, b"%!PS", Document),
    (0, b"{\\rtf", Document),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Document),
    (0, b"AT&TFORM", Document),
    (30, b"mimetypeapplication/vnd.oasis", Document),
    (30, b"mimetypeapplication/epub", Document),
    (30, b"[Content_Types].xml", Document),
    (0, b"!BDN", Mail),
    (0, b"Return-Path: ", Mail),
    (0, b"Received: ", Mail),
    (0, b"Delivered-To: ", Mail),
    (0, b"From - ", Mail),
    (0, b"\xff\xd8\xff", Photo),
    (0, b"\x89PNG\r\n\x1a\n", Photo),
    (0, b"GIF8", Photo),
    (0, b"II*\0", Photo),
    (0, b"MM\0*", Photo),
    (0, b"8BPS", Photo),
    (8, b"WEBP", Photo),
    (4, b"ftypheic", Photo),
    (4, b"ftypavif", Photo),
    (4, b"ftypmif1", Photo),
    (4, b"ftypcrx ", Photo),
    (4, b"ftypM4A ", Audio),
    (8, b"WAVE", Audio),
    (0, b"ID3", Audio),
    (0, b"fLaC", Audio),
    (0, b"OggS", Audio),
    (0, b"FORM\0", Audio),
    (4, b"ftyp", Video),
    (8, b"AVI ", Video),
    (0, b"\x1aE\xdf\xa3", Video),
    (0, b"FLV\x01", Video),
    (0, b"\0\0\x01\xba", Video),
    (0, b"\x1f\x8b", Archive),
    (0, b"BZh", Archive),
    (0, b"\xfd7zXZ\0", Archive),
    (0, b"\x28\xb5\x2f\xfd", Archive),
    (0, b"7z\xbc\xaf\x27\x1c", Archive),
    (0, b"Rar!\x1a\x07", Archive),
    (0, b"PK\x03\x04", Archive),
    (0, b"!<arch>\ndebian", Archive),
    (257, b"ustar", Archive),
    (0, b"\x7fELF", Executable),
    (0, b"MZ", Executable),
];

/// File name extensions in lower case. They count only if no byte sequence matches.
const ENDINGS: [(&str, FileKind); 82] = [
    ("raw", DiskImage),
    ("img", DiskImage),
    ("iso", DiskImage),
    ("vmdk", DiskImage),
    ("vhd", DiskImage),
    ("vhdx", DiskImage),
    ("vdi", DiskImage),
    ("qcow2", DiskImage),
    ("vmem", DiskImage),
    ("dmg", DiskImage),
    ("mdf", Database),
    ("ldf", Database),
    ("ndf", Database),
    ("ibd", Database),
    ("frm", Database),
    ("myd", Database),
    ("myi", Database),
    ("dbf", Database),
    ("sqlite", Database),
    ("sqlite3", Database),
    ("db", Database),
    ("wal", Database),
    ("rdb", Database),
    ("ldb", Database),
    ("sst", Database),
    ("fdb", Database),
    ("accdb", Database),
    ("doc", Document),
    ("docx", Document),
    ("xls", Document),
    ("xlsx", Document),
    ("ppt", Document),
    ("pptx", Document),
    ("odt", Document),
    ("ods", Document),
    ("odp", Document),
    ("pdf", Document),
    ("epub", Document),
    ("djvu", Document),
    ("eml", Mail),
    ("mbox", Mail),
    ("pst", Mail),
    ("ost", Mail),
    ("msg", Mail),
    ("edb", Mail),
    ("dbx", Mail),
    ("nef", Photo),
    ("cr2", Photo),
    ("arw", Photo),
    ("dng", Photo),
    ("orf", Photo),
    ("tga", Photo),
    ("bmp", Photo),
    ("jp2", Photo),
    ("jxl", Photo),
    ("mp3", Audio),
    ("aac", Audio),
    ("wma", Audio),
    ("mid", Audio),
    ("aiff", Audio),
    ("ape", Audio),
    ("mpg", Video),
    ("mpeg", Video),
    ("ts", Video),
    ("m2ts", Video),
    ("wmv", Video),
    ("vob", Video),
    ("tar", Archive),
    ("cpio", Archive),
    ("lzma", Archive),
    ("lz4", Archive),
    ("rpm", Archive),
    ("cab", Archive),
    ("jar", Archive),
    ("br", Archive),
    ("z", Archive),
    ("a", Executable),
    ("pyc", Executable),
    ("class", Executable),
    ("wasm", Executable),
    ("dylib", Executable),
    ("o", Executable),
];

/// Returns the kind of a file by its first bytes, at most [`MAGIC_BYTES`], then by its name. A file
/// with an unknown or ambiguous extension is text if `start` is UTF-8 and has no control characters
/// but those of text, such as tab and escape.
pub fn kind_of(start: &[u8], name: &[u8]) -> FileKind {
    let start = &start[..start.len().min(MAGIC_BYTES)];
    let magic = MAGIC.iter().find(|(offset, bytes, _)| {
        start.get(*offset..).is_some_and(|rest| rest.starts_with(bytes))
    });
    if let Some((_, _, kind)) = magic {
        return *kind;
    }
    let by_name = by_name(name);
    // Some extensions are ambiguous: `.ts` is TypeScript or an MPEG transport stream.
    let is_doubtful = by_name
        .is_none_or(|kind| matches!(kind, Video | Archive | Database | Executable | DiskImage));
    if is_doubtful && is_text(start) { Text } else { by_name.unwrap_or(Other) }
}

fn by_name(name: &[u8]) -> Option<FileKind> {
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    let ending = &name[dot + 1..];
    ENDINGS.iter().find(|(it, _)| ending.eq_ignore_ascii_case(it.as_bytes())).map(|it| it.1)
}

fn is_text(start: &[u8]) -> bool {
    let is_plain = |&byte: &u8| byte >= 0x20 && byte != 0x7f || matches!(byte, 7..=13 | 27);
    !start.is_empty()
        && start.iter().all(is_plain)
        // The last character may be cut off.
        && std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_come_before_names() {
        assert_eq!(kind_of(b"QFI\xfb\0\0\0\x03", b"photo.jpg"), DiskImage);
        assert_eq!(kind_of(b"\xff\xd8\xff\xe0", b"x.db"), Photo);
        assert_eq!(kind_of(b"RIFF\x10\0\0\0WAVEfmt ", b"x"), Audio);
        assert_eq!(kind_of(b"RIFF\x10\0\0\0WEBP", b"x"), Photo);
        assert_eq!(kind_of(b"\0\0\0\x18ftypmp42", b"x"), Video);
        assert_eq!(kind_of(b"\0\0\0\x18ftypheic", b"x"), Photo);
        assert_eq!(kind_of(b"SQLite format 3\0", b"places"), Database);
        assert_eq!(kind_of(b"Return-Path: <a@b>\n", b"1234.M5:2,S"), Mail);
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(kind_of(&tar, b"x.bin"), Archive);
        let mut office = b"PK\x03\x04".to_vec();
        office.resize(30, 0);
        office.extend(b"[Content_Types].xml");
        assert_eq!(kind_of(&office, b"x"), Document);
        assert_eq!(kind_of(b"PK\x03\x04rest", b"x"), Archive);
    }

    #[test]
    fn names_decide_where_bytes_do_not() {
        assert_eq!(kind_of(&[0; 600], b"disk.RAW"), DiskImage);
        assert_eq!(kind_of(&[0, 1, 2], b"a.ibd"), Database);
        assert_eq!(kind_of(b"G@\x11\x10\0", b"a.ts"), Video);
        assert_eq!(kind_of(b"const x = 1;\n", b"a.ts"), Text);
        assert_eq!(kind_of(b"Subject: x\n", b"a.eml"), Mail);
        assert_eq!(kind_of(b"\0", b"unknown"), Other);
        assert_eq!(kind_of(b"", b"empty"), Other);
        assert_eq!(kind_of(b"", b".raw"), DiskImage);
    }

    #[test]
    fn text_may_be_cut_within_a_character() {
        let text = "\u{e4}".repeat(400);
        assert_eq!(kind_of(text.as_bytes(), b"x"), Text);
        assert_eq!(kind_of(&text.as_bytes()[..511], b"x"), Text);
        assert_eq!(kind_of(b"caf\xe9 latin-1", b"x"), Other);
        assert_eq!(kind_of(b"#!/bin/sh\necho\n", b"script"), Text);
    }

    #[test]
    fn every_row_of_the_tables_can_be_reached() {
        for (at, (offset, bytes, kind)) in MAGIC.iter().enumerate() {
            let mut start = vec![0x80; *offset];
            start.extend(*bytes);
            assert_eq!(kind_of(&start, b""), *kind, "row {at}");
        }
        for (ending, kind) in ENDINGS {
            assert_eq!(kind_of(&[0], format!("x.{ending}").as_bytes()), kind, "{ending}");
        }
    }
}
