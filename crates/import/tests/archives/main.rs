//! Archives of every kind, also damaged and hostile ones, as trees.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod hostile;
mod kit;

use std::io::Read;

use silt_format::ErrorKind;
use silt_format::tree::{EntryKind, Timestamp};
use silt_import::decompressed;

use crate::kit::{Archive, staged, staged_below};

#[test]
fn entries_come_in_the_order_of_names_with_missing_parents() {
    let archive = Archive::default()
        .file("b/deep/file", b"one")
        .file("a!", b"two")
        .file("./a/x", b"three")
        .directory("b/")
        .end();
    let found = staged(&*archive).unwrap();
    assert_eq!(found.paths(), ["", "a/", "a/x", "a!", "b/", "b/deep/", "b/deep/file"]);
    assert_eq!(found.tree.entries(), 4, "without those that the archive does not have");
    assert_eq!(found.at("b/deep/").1.mode, 0o755);
    let (_, metadata, content) = found.at("b/deep/file");
    assert_eq!((metadata.mode, metadata.uid, metadata.gid), (0o644, 1000, 100));
    assert_eq!((metadata.modified.seconds, &content[..]), (100, &b"one"[..]));
    assert_eq!(found.refusals(), [""; 0]);
}

#[test]
fn the_last_entry_of_a_path_counts() {
    let archive = Archive::default()
        .file("a", b"old")
        .link(b'1', "old a", "a")
        .file("a", b"new")
        .link(b'1', "new a", "a")
        .file("d", b"was a file")
        .file("d/x", b"")
        .directory("e")
        .link(b'2', "e", "target")
        .end();
    let found = staged(&*archive).unwrap();
    assert_eq!(found.paths(), ["", "a", "d/", "d/x", "e", "new a", "old a"]);
    assert_eq!(found.at("old a").2, b"old", "a link is what its target was then");
    assert_eq!((&found.at("a").2[..], &found.at("new a").2[..]), (&b"new"[..], &b"new"[..]));
    assert_eq!(found.at("a").1.inode, found.at("new a").1.inode);
    assert_ne!(found.at("a").1.inode, found.at("old a").1.inode);
    let links = ["a", "new a", "old a"].map(|name| found.at(name).1.links);
    assert_eq!(links, [2, 2, 1]);
    assert_eq!(found.at("e").1.target, b"target");
    let refused = found.refusals();
    assert!(refused.len() == 1 && refused[0].starts_with("d: it is no directory"), "{refused:?}");
}

#[test]
fn hard_links_are_joined_and_others_are_refused() {
    let archive = Archive::default()
        .link(b'1', "early", "z")
        .file("z", b"content")
        .link(b'1', "a", "./z")
        .link(b'1', "chain", "a")
        .link(b'2', "soft", "z")
        .link(b'1', "hard to soft", "soft")
        .link(b'1', "nowhere", "missing")
        .link(b'1', "outside", "../z")
        .directory("dir")
        .link(b'1', "to a directory", "dir")
        .link(b'1', "z", "z")
        .end();
    let found = staged(&*archive).unwrap();
    assert_eq!(found.paths(), ["", "a", "chain", "dir/", "hard to soft", "soft", "z"]);
    for name in ["a", "chain", "z"] {
        let (_, metadata, content) = found.at(name);
        assert_eq!(
            (metadata.links, metadata.inode, &content[..]),
            (3, 1, &b"content"[..]),
            "{name}"
        );
    }
    let soft = &found.at("hard to soft").1;
    assert_eq!((soft.kind, soft.links), (EntryKind::Symlink, 2));
    let mut refused: Vec<_> =
        found.refusals().iter().map(|it| it.split(':').next().unwrap().to_owned()).collect();
    refused.sort();
    assert_eq!(refused, ["early", "nowhere", "outside", "to a directory"]);
}

#[test]
fn only_a_directory_is_imported_as_the_root() {
    let archive = Archive::default()
        .directory("srv/")
        .directory("srv/home/")
        .file("srv/home/x", b"x")
        .file("srv/homes", b"y")
        .link(b'1', "srv/home/link", "srv/home/x")
        .link(b'1', "srv/home/out", "srv/homes")
        .end();
    let found = staged_below(&*archive, "srv/home").unwrap();
    assert_eq!(found.paths(), ["", "link", "x"]);
    assert_eq!((found.at("").1.mode, found.tree.left_out()), (0o644, 2));
    assert!(found.refusals()[0].contains("outside of the chosen directory"));
    let error = staged_below(&*archive, "srv/nobody").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(staged_below(&*archive, "../x").is_err());
}

#[test]
fn extended_headers_say_more_than_headers() {
    let large_uid = u32::MAX - 1;
    let archive = Archive::default()
        .pax(b'g', &[("comment", b"of git"), ("gname", b"everybody")])
        .pax(
            b'x',
            &[
                ("path", b"long \xff name"),
                ("mtime", b"-1.5"),
                ("ctime", b"12.000000001"),
                ("atime", b"7"),
                ("uid", large_uid.to_string().as_bytes()),
                ("uname", "j\u{f6}rg".as_bytes()),
                ("SCHILY.xattr.user.a%3Db", b"\0\n="),
                ("SCHILY.acl.access", b"user::rwx,user:1000:r-x,group::r--,mask::r-x,other::---"),
                ("SCHILY.fflags", b"nodump"),
                ("RHT.security.selinux", b"system_u:object_r:etc_t:s0"),
            ],
        )
        .file("short", b"12345")
        .header_with(b'3', "null", 0, |header| {
            header[329..337].copy_from_slice(b"0000001\0");
            header[337..345].copy_from_slice(b"0000003\0");
        })
        .header(b'6', "pipe", 0)
        .file("plain", b"")
        .end();
    let found = staged(&*archive).unwrap();
    let (_, metadata, content) = &found.entries.iter().find(|it| it.0.starts_with("long")).unwrap();
    assert_eq!(metadata.modified, Timestamp { seconds: -2, nanoseconds: 500_000_000 });
    assert_eq!(metadata.changed, Timestamp { seconds: 12, nanoseconds: 1 });
    assert_eq!((metadata.uid, metadata.flags, content.len()), (large_uid, 0x40, 5));
    let names: Vec<_> =
        metadata.xattrs.iter().map(|it| it.name.escape_ascii().to_string()).collect();
    assert_eq!(names, ["security.selinux", "system.posix_acl_access", "user.a=b"]);
    assert_eq!(metadata.xattrs[0].value.last(), Some(&0));
    assert_eq!(
        (found.at("null").1.kind, found.at("null").1.device.minor),
        (EntryKind::CharDevice, 3)
    );
    assert_eq!(found.at("pipe").1.kind, EntryKind::Fifo);
    let owners = found.tree.source().unwrap().owners();
    assert_eq!(owners.user_id("j\u{f6}rg".as_bytes()), Some(large_uid));
    assert_eq!((owners.user_id(b"anna"), owners.group_id(b"everybody")), (Some(1000), Some(100)));
}

#[test]
fn sparse_files_of_every_version_keep_their_holes() {
    let (map, data) = ("2\n1024\n4\n9000\n3\n", b"datatop");
    let in_data = [map.as_bytes(), &vec![0; 512 - map.len()], data].concat();
    let size = ("GNU.sparse.size", &b"10000"[..]);
    let archive = Archive::default()
        .pax(
            b'x',
            &[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"1.0"),
                ("GNU.sparse.realsize", b"10000"),
            ],
        )
        .file("GNUSparseFile.0/1.0", &in_data)
        .pax(b'x', &[size, ("GNU.sparse.name", b"0.1"), ("GNU.sparse.map", b"1024,4,9000,3")])
        .file("x", data)
        .pax(
            b'x',
            &[
                size,
                ("GNU.sparse.numblocks", b"2"),
                ("GNU.sparse.offset", b"1024"),
                ("GNU.sparse.numbytes", b"4"),
                ("GNU.sparse.offset", b"9000"),
                ("GNU.sparse.numbytes", b"3"),
            ],
        )
        .file("0.0", data)
        .header_with(b'S', "old", 7, |header| {
            header[386..398].copy_from_slice(b"00000002000\0");
            header[398..410].copy_from_slice(b"00000000004\0");
            header[410..422].copy_from_slice(b"00000021450\0");
            header[422..434].copy_from_slice(b"00000000003\0");
            header[483..495].copy_from_slice(b"00000023420\0");
        })
        .content(data)
        .end();
    let found = staged(&*archive).unwrap();
    let mut expected = vec![0; 10_000];
    expected[1024..1028].copy_from_slice(b"data");
    expected[9000..9003].copy_from_slice(b"top");
    for name in ["0.0", "0.1", "1.0", "old"] {
        assert!(found.at(name).2 == expected, "{name}");
    }
    // The backup passes over the holes.
    let mut source = found.tree.source().unwrap();
    source.next().unwrap();
    let Some(silt_tree::Step::Entry(first)) = source.next().unwrap() else { panic!("a file") };
    let file = source.open_file(&first).unwrap();
    assert_eq!(file.next_data(0, 10_000).unwrap(), Some(1024..1028));
    assert_eq!(file.next_data(1026, 10_000).unwrap(), Some(1026..1028));
    assert_eq!(file.next_data(1028, 10_000).unwrap(), Some(9000..9003));
    assert_eq!(file.next_data(9003, 10_000).unwrap(), None);
    let mut part = [9; 6];
    assert_eq!(file.read_at(9001, &mut part).unwrap(), 6);
    assert_eq!(&part, b"op\0\0\0\0");
}

#[test]
fn content_of_several_blocks_is_read_at_any_offset() {
    let bytes: Vec<u8> =
        (0..700_000_u32).flat_map(|it| it.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let archive = Archive::default().file("large", &bytes).file("z", b"z").end();
    let found = staged(&*archive).unwrap();
    assert!(found.at("large").2 == bytes);
    let mut source = found.tree.source().unwrap();
    source.next().unwrap();
    let Some(silt_tree::Step::Entry(first)) = source.next().unwrap() else { panic!("a file") };
    let file = source.open_file(&first).unwrap();
    for (offset, length) in [(0, 1), (262_143, 2), (262_144, 262_144), (1_000_001, 777_777)] {
        let mut part = vec![0; length];
        assert_eq!(file.read_at(offset as u64, &mut part).unwrap(), length);
        assert!(part == bytes[offset..offset + length], "{offset}");
    }
}

#[test]
fn many_entries_are_sorted_outside_of_memory() {
    // Enough for several runs.
    let name = |at: u32| {
        format!("{:03}/{:08x}{}", at % 100, at.wrapping_mul(2_654_435_761), "n".repeat(80))
    };
    let mut archive = Archive::default();
    let count = 250_000;
    for at in 0..count {
        archive = archive.header(b'6', &name(at), 0);
    }
    let found = staged(&*archive.link(b'1', "link", &name(7)).end()).unwrap();
    assert_eq!(found.tree.entries(), u64::from(count) + 1);
    assert_eq!(found.entries.len(), 250_000 + 1 + 100 + 1);
    assert_eq!((found.at(&name(7)).1.links, found.at("link").1.links), (2, 2));
}

#[test]
fn gzip_and_zstd_are_decompressed_and_others_recognised() {
    let archive = Archive::default().file("x", b"content").end();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &archive).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&*archive, 1).unwrap();
    for compressed in [&gzip, &zstd, &archive] {
        let found = staged(decompressed(&**compressed).unwrap()).unwrap();
        assert_eq!(found.at("x").2, b"content");
        let cut = &compressed[..compressed.len() - compressed.len() / 3];
        let error = staged(decompressed(cut).unwrap()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let mut damaged = gzip.clone();
    let checksum = damaged.len() - 6;
    damaged[checksum] ^= 1;
    assert!(staged(decompressed(&*damaged).unwrap()).is_err(), "its checksum is wrong");
    let xz = b"\xfd7zXZ\0and so on";
    let error = decompressed(&xz[..]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("xz -dc"), "{error}");
}

#[test]
fn the_input_is_read_to_its_end() {
    let mut archive = Archive::default().file("x", b"content").end();
    archive.resize(archive.len() + 100_000, 0);
    let mut input = &*archive;
    staged(input.by_ref()).unwrap();
    assert!(input.is_empty());
    // One block of zeros is an end, too; none is not.
    let archive = Archive::default().file("x", b"content").end();
    staged(&archive[..archive.len() - 512]).unwrap();
    let error = staged(&archive[..archive.len() - 1024]).err().unwrap();
    assert!(error.to_string().contains("truncated"), "{error}");
}
