//! Archives that lie.

use std::io::{Read, repeat};

use silt_format::ErrorKind;

use crate::kit::{Archive, record, staged};

/// What is refused of an archive that has one good file behind something else.
#[track_caller]
fn refusal(archive: Archive) -> String {
    let found = staged(&*archive.file("good", b"good").end()).unwrap();
    assert_eq!(found.at("good").2, b"good", "the others are imported");
    assert_eq!(found.tree.entries(), 1, "{:?}", found.paths());
    let refused = found.refusals();
    assert_eq!(refused.len(), 1, "{refused:?}");
    refused[0].clone()
}

#[test]
fn paths_that_lead_elsewhere_are_refused_by_name() {
    for (path, reason) in [("/etc/passwd", "absolute"), ("a/../../etc", "'..'"), ("..", "'..'")] {
        let refused = refusal(Archive::default().file(path, b"bad"));
        assert!(refused.starts_with(path) && refused.contains(reason), "{refused}");
    }
    let zero = refusal(Archive::default().pax(b'x', &[("path", b"a\0b")]).file("x", b"bad"));
    assert!(zero.contains("zero byte"), "{zero}");
    let long = refusal(Archive::default().pax(b'x', &[("path", &[b'n'; 256])]).file("x", b"bad"));
    assert!(long.contains("255 bytes"), "{long}");
    let path = b"d/".repeat(1 << 19);
    let long = refusal(Archive::default().pax(b'x', &[("path", &path)]).file("x", b"bad"));
    assert!(long.contains("128 KiB") && long.len() < 5000, "{long}");
    let long =
        refusal(Archive::default().header(b'L', "@", 1 << 20).content(&path).file("x", b"?"));
    assert!(long.contains("128 KiB"), "{long}");
    let linked = refusal(Archive::default().link(b'2', "soft", ""));
    assert!(linked.contains("links to nothing"), "{linked}");
    let root = refusal(Archive::default().file("./.", b"bad"));
    assert!(root.contains("no directory"), "{root}");
}

#[test]
fn an_entry_below_a_symbolic_link_stays_in_the_tree() {
    let archive = Archive::default().link(b'2', "etc", "/etc").file("etc/passwd", b"bad").end();
    let found = staged(&*archive).unwrap();
    assert_eq!(found.paths(), ["", "etc/", "etc/passwd"]);
    assert!(found.refusals()[0].starts_with("etc: it is no directory"));
}

#[test]
fn an_extended_header_of_a_gibibyte_takes_no_memory() {
    let before = Archive::default().header(b'x', "pax", 1 << 30);
    let behind = Archive::default().file("refused", b"x").file("good", b"good").end();
    let input = (&*before.0).chain(repeat(b'1').take(1 << 30)).chain(&*behind);
    let found = staged(input).unwrap();
    assert_eq!(found.paths(), ["", "good"]);
    assert!(found.refusals()[0].starts_with("refused: its extended header is larger"));
    let global = Archive::default().header_with(b'g', "pax", 0, |header| {
        header[124..136].copy_from_slice(b"\x80\0\0\0\0\0\x01\0\0\0\0\0");
    });
    let input = global.0;
    let error = staged((&*input).chain(repeat(0))).err().unwrap();
    assert!(error.to_string().contains("global headers"), "{error}");
}

#[test]
fn malformed_extended_headers_refuse_their_entry() {
    for bytes in [
        &b"no number"[..],
        b"5 a=b\n",
        b"99 a=b\n",
        b"7 a=bbb",
        b"6 aaa\n",
        b"99999999999999999999999 a=b\n",
        b"-5 a=b\n",
        b"0 \n",
    ] {
        let archive = Archive::default().header(b'x', "pax", bytes.len() as u64).content(bytes);
        let refused = refusal(archive.file("x", b"bad"));
        assert!(refused.contains("malformed"), "{refused}");
    }
    for (key, value) in [("mtime", "soon"), ("size", "-1"), ("uid", "1e3")] {
        let refused =
            refusal(Archive::default().pax(b'x', &[(key, value.as_bytes())]).file("x", b""));
        assert!(refused.contains("number"), "{key}: {refused}");
    }
    let owner = Archive::default().pax(b'x', &[("uid", b"4294967296")]).file("x", b"bad");
    assert!(refusal(owner).contains("owner"));
    let odd = refusal(Archive::default().header(b'Q', "odd", 3).content(b"odd"));
    assert!(odd.contains("type 'Q'"), "{odd}");
}

#[test]
fn maps_of_holes_that_lie_refuse_their_file() {
    let sparse = |map: &[u8], size: &[u8], data: &[u8]| {
        let records: [(&str, &[u8]); 3] =
            [("GNU.sparse.size", size), ("GNU.sparse.name", b"x"), ("GNU.sparse.map", map)];
        refusal(Archive::default().pax(b'x', &records).file("x", data))
    };
    assert!(sparse(b"0,5", b"4", b"12345").contains("malformed"));
    assert!(sparse(b"8,1,0,1", b"10", b"ab").contains("malformed"));
    assert!(sparse(b"0,1", b"10", b"ab").contains("does not fit"));
    assert!(sparse(b"0", b"10", b"").contains("malformed"));
    assert!(sparse(b"18446744073709551615,2", b"18446744073709551615", b"ab").contains("size"));
    let many: Vec<u8> = (0..1_048_577_u32).flat_map(|_| *b"0,0,").collect();
    // The header is larger than any that is read.
    assert!(sparse(&many, b"10", b"").contains("4 MiB"));
    let records: [(&str, &[u8]); 3] =
        [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"9")];
    for (map, reason) in [(&b"1000000000\n"[..], "1,048,576"), (b"x\n", "malformed")] {
        let refused =
            refusal(Archive::default().pax(b'x', &records).file("x", &[map, &[0; 900]].concat()));
        assert!(refused.contains(reason), "{refused}");
    }
    let short = refusal(Archive::default().pax(b'x', &records).file("x", b"5\n0\n1\n"));
    assert!(short.contains("malformed"), "{short}");
    let unknown: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")];
    assert!(refusal(Archive::default().pax(b'x', &unknown).file("x", b"")).contains("version"));
}

#[test]
fn sums_of_sizes_stay_in_range() {
    let mut archive = Archive::default();
    for at in 0..8 {
        let (name, size) = (format!("{at}"), (1_u64 << 60).to_string());
        archive = archive
            .pax(
                b'x',
                &[
                    ("GNU.sparse.size", size.as_bytes()),
                    ("GNU.sparse.name", name.as_bytes()),
                    ("GNU.sparse.map", b"0,0"),
                ],
            )
            .file("x", b"");
    }
    let found = staged(&*archive.clone().end()).unwrap();
    assert_eq!((found.tree.entries(), found.tree.bytes()), (4, 1 << 62));
    assert!(found.refusals()[0].contains("4 EiB"));
    // Names of one file count each.
    let links = archive.link(b'1', "more", "0").end();
    assert_eq!(staged(&*links).err().unwrap().kind(), ErrorKind::Invalid);
    let huge = Archive::default().header_with(b'0', "huge", 0, |header| {
        header[124..136].copy_from_slice(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    });
    assert!(staged(&*huge.end()).err().unwrap().to_string().contains("damaged"));
}

#[test]
fn attributes_that_cannot_be_stored_are_named() {
    let archive = Archive::default()
        .pax(b'x', &[("SCHILY.xattr.user.large", &vec![1; 70_000]), ("SCHILY.xattr.user.b", b"1")])
        .file("x", b"content")
        .pax(b'x', &[("SCHILY.acl.access", b"user:ghost of nobody:rwx")])
        .file("y", b"content")
        .end();
    let found = staged(&*archive).unwrap();
    assert_eq!(found.at("x").1.xattrs.len(), 1);
    assert_eq!(found.at("y").2, b"content");
    let refused = found.refusals();
    assert!(
        refused[0].contains("'user.large'") && refused[1].contains("access control"),
        "{refused:?}"
    );
}

#[test]
fn what_is_no_archive_or_ends_early_fails() {
    for (input, reason) in [
        (&b""[..], "not a tar archive"),
        (b"hello", "not a tar archive"),
        (&[7; 10_240], "not a tar archive"),
    ] {
        let error = staged(input).err().unwrap();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains(reason),
            "{error}"
        );
    }
    let whole = Archive::default().pax(b'x', &[("path", b"y")]).file("x", &[1; 3000]).end();
    for bytes in [1, 511, 513, 1023, 1536, 1537, 4000, whole.len() - 1024] {
        let error = staged(&whole[..bytes]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bytes}: {error}");
    }
    let mut damaged = Archive::default().file("a", b"a").file("b", b"b").end();
    damaged[1024] ^= 1;
    let error = staged(&*damaged).err().unwrap();
    assert!(error.to_string().contains("checksum"), "{error}");
    let error = staged(&*Archive::default().file("/a", b"").end()).err().unwrap();
    assert!(error.to_string().contains("none of the 1 entries"), "{error}");
    assert!(staged(&*Archive::default().end()).unwrap().tree.entries() == 0, "an empty archive");
}

/// Every byte of an archive is changed, one at a time: what is read is a tree or an error.
#[test]
fn no_changed_byte_panics() {
    let records =
        [record("path", b"p"), record("GNU.sparse.map", b"0,3"), record("GNU.sparse.size", b"5")]
            .concat();
    let whole = Archive::default()
        .header(b'x', "pax", records.len() as u64)
        .content(&records)
        .file("x", b"abc")
        .link(b'1', "l", "p")
        .header_with(b'S', "s", 0, |header| header[482] = 1)
        .content(&[0; 512])
        .end();
    for at in 0..whole.len() - 1024 {
        for change in [1, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= change;
            // The sum of the header is made right again, so that the change is looked at.
            let header = at / 512 * 512;
            if at % 512 < 148 || at % 512 >= 156 {
                changed[header + 148..header + 156].copy_from_slice(b"        ");
                let sum: u64 = changed[header..header + 512].iter().map(|it| u64::from(*it)).sum();
                let text = format!("{sum:06o}\0 ");
                if [0, 2, 4, 5].contains(&(at / 512)) {
                    changed[header + 148..header + 156].copy_from_slice(text.as_bytes());
                } else {
                    changed[header..header + 512].copy_from_slice(&whole[header..header + 512]);
                    changed[at] ^= change;
                }
            }
            if let Err(error) = staged(&*changed) {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{at}: {error}");
            }
        }
    }
}
