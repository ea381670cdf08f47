//! File trees as archives, which other programs extract.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use crate::kit::{Place, Run, can, damage, tool};

/// A tree with what is hard to put into archives. Returns its path.
fn awkward(place: &Place) -> String {
    let root = place.path("data");
    let long = "a folder with a long name ".repeat(6);
    let deep = root.join(&long).join("another".repeat(20));
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(deep.join("file at the end of a long path"), b"deep").unwrap();
    fs::write(root.join("plain"), b"content\n").unwrap();
    fs::write(root.join("nothing"), b"").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"latin-1 \xe9")), b"bytes").unwrap();
    fs::hard_link(root.join("plain"), root.join("second name")).unwrap();
    fs::hard_link(deep.join("file at the end of a long path"), root.join("zz linked")).unwrap();
    symlink("plain", root.join("link")).unwrap();
    symlink("x/".repeat(200), root.join("long link")).unwrap();
    tool("mkfifo", &[root.join("pipe").to_str().unwrap()]);
    for (name, ends_in_data) in [("sparse", true), ("hole at the end", false)] {
        let mut file = fs::File::create(root.join(name)).unwrap();
        file.seek(SeekFrom::Start(5 << 20)).unwrap();
        file.write_all(&[b's'; 5000]).unwrap();
        file.set_len(if ends_in_data { (5 << 20) + 5000 } else { 9 << 20 }).unwrap();
    }
    fs::File::create(root.join("all hole")).unwrap().set_len(3 << 20).unwrap();
    let noise: Vec<u8> =
        (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(root.join("large"), noise).unwrap();
    tool("setfattr", &["-n", "user.comment", "-v", "a=b\n%", root.join("plain").to_str().unwrap()]);
    tool("setfattr", &["-n", "user.a=b%", "-v", "1", root.join("empty").to_str().unwrap()]);
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o4751)).unwrap();
    for (name, time) in
        [("nothing", "1935-02-03 04:05:06.5"), ("large", "2261-01-01 00:00:00.000000001")]
    {
        tool("touch", &["-d", time, root.join(name).to_str().unwrap()]);
    }
    tool("touch", &["-h", "-d", "2001-01-01 00:00:00.25", root.join("link").to_str().unwrap()]);
    if can("root") {
        tool("mknod", &[root.join("device").to_str().unwrap(), "c", "1", "3"]);
        tool("chown", &["1234:5678", root.join("nothing").to_str().unwrap()]);
        tool("setfacl", &["-m", "u:1000:rwx,d:g:5:r-x", root.join("empty").to_str().unwrap()]);
    }
    place.text("data")
}

/// Runs `silt dump` into another program.
fn dump_into(place: &Place, arguments: &[&str], program: &str, extract: &[&str]) -> Run {
    let mut silt = place.command();
    let mut silt = silt.arg("dump").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = std::process::Command::new(program);
    reader.args(extract).stdin(silt.stdout.take().unwrap());
    let run = Run::of(&mut reader);
    assert!(silt.wait().unwrap().success());
    run
}

fn differences(from: &str, to: &str, what: &str) -> String {
    let (from, to) = (format!("{from}/"), format!("{to}/"));
    tool("rsync", &[what, "--checksum", "--itemize-changes", "--delete", &from, &to])
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks()
}

#[test]
fn gnu_tar_extracts_what_was_backed_up() {
    if !can("rsync") {
        return;
    }
    let place = Place::new();
    let data = awkward(&place);
    place.silt(&["backup", "data", &data]).exits(0);
    fs::create_dir(place.path("out")).unwrap();
    let out = place.text("out");
    let extract =
        ["-x", "-p", "-C", &out, "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner"];
    // It warns of times that are far away.
    let extract = [&extract[..], &["--warning=no-timestamp"]].concat();
    let run = dump_into(&place, &["data@latest"], "tar", &extract).exits(0);
    assert_eq!(run.err, "");
    assert_eq!(differences(&data, &out, "-aHAXSn"), "");
    // Holes stay holes.
    for name in ["sparse", "hole at the end", "all hole"] {
        let (before, now) = (place.path("data").join(name), place.path("out").join(name));
        assert!(blocks(&now) <= blocks(&before) + 16, "{name}");
    }
    let exact = |name: &str| {
        let of = |folder: &str| {
            let metadata = fs::symlink_metadata(place.path(folder).join(name)).unwrap();
            (metadata.mtime(), metadata.mtime_nsec())
        };
        assert_eq!(of("data"), of("out"), "{name}");
    };
    ["nothing", "large", "link", "plain"].into_iter().for_each(exact);

    // A part, and a single file, into a file.
    place.silt(&["dump", "data@latest:/plain", "-o", "one.tar"]).exits(0);
    assert_eq!(tool("tar", &["-tf", &place.text("one.tar")]), "plain");
    place.silt(&["dump", "data@latest:/", "-o", "one.tar"]).exits(1).says("create");
    let run = place.silt(&["dump", "data@latest:/empty", "-o", "two.tar", "--json"]).exits(0);
    assert_eq!(run.summary()["entries"], 1);
    place.silt(&["dump", "data@latest:/nowhere", "-o", "x"]).exits(1).says("there is no");
    assert!(!place.path("x").exists());
}

#[test]
fn bsdtar_extracts_what_was_backed_up() {
    if !can("rsync") || !can("bsdtar") {
        return;
    }
    let place = Place::new();
    let data = awkward(&place);
    // It takes -1.5 for -0.5.
    tool("touch", &["-d", "1935-02-03 04:05:06", place.path("data/nothing").to_str().unwrap()]);
    place.silt(&["backup", "data", &data]).exits(0);
    fs::create_dir(place.path("out")).unwrap();
    let out = place.text("out");
    let extract = ["-x", "-p", "-C", &out, "-S", "--numeric-owner", "-f", "-"];
    dump_into(&place, &["data@latest"], "bsdtar", &extract).exits(0);
    // It sets no times of the folder that it extracts into.
    tool("touch", &["-r", &data, &out]);
    assert_eq!(differences(&data, &out, "-aHSn"), "");
}

#[test]
fn unzip_extracts_files_folders_and_links() {
    if !can("rsync") || !can("unzip") {
        return;
    }
    let place = Place::new();
    let data = awkward(&place);
    for name in ["nothing", "large", "latin-1 \u{e9}"] {
        let _ = fs::remove_file(place.path("data").join(name));
    }
    fs::remove_file(place.path("data").join(std::ffi::OsStr::from_bytes(b"latin-1 \xe9"))).unwrap();
    place.silt(&["backup", "data", &data]).exits(0);
    let run = place.silt(&["dump", "data@latest", "--format", "zip", "-o", "data.zip"]).exits(0);
    run.says("2 entries left out: the archive format does not support the type");
    tool("unzip", &["-tq", &place.text("data.zip")]);
    tool("unzip", &["-q", &place.text("data.zip"), "-d", &place.text("out")]);
    for name in ["pipe", "device"] {
        let _ = fs::remove_file(place.path("data").join(name));
    }
    assert_eq!(differences(&data, &place.text("out"), "-rlpDn"), "");
}

#[test]
fn damaged_files_are_named_and_left_out_of_the_archive() {
    let place = Place::new();
    let data = place.path("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("small"), b"small\n".repeat(1000)).unwrap();
    place.silt(&["backup", "data", &place.text("data")]).exits(0);
    fs::write(data.join("whole"), b"whole\n").unwrap();
    let first = place.objects("containers");
    place.silt(&["backup", "data", &place.text("data")]).exits(0);
    assert!(!first.is_empty(), "{:?}", place.objects(""));
    first.iter().for_each(|object| damage(object));
    let run = place.silt(&["dump", "data@latest", "-o", "data.tar"]).exits(5);
    run.says("small is NOT complete in the archive");
    run.says("1 entry is NOT complete in the archive");
    let listed = tool("tar", &["-tf", &place.text("data.tar")]);
    assert!(listed.contains("whole") && !listed.contains("small"), "{listed}");
}
