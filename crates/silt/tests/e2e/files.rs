//! `silt files`, on disks that `mke2fs` and `sfdisk` make.

use std::fs;

use crate::kit::{Place, tool};

/// A disk with a partition table and a file system in its second partition, backed up.
fn place() -> Place {
    let place = Place::new();
    let source = place.path("source");
    fs::create_dir_all(source.join("etc/conf.d")).unwrap();
    fs::write(source.join("etc/hostname"), "web1\n").unwrap();
    fs::write(source.join("etc/conf.d/a\tb"), vec![3; 100_000]).unwrap();
    std::os::unix::fs::symlink("hostname", source.join("etc/name")).unwrap();
    let (small, disk) = (place.text("small"), place.text("disk.raw"));
    fs::File::create(&small).unwrap().set_len(8 << 20).unwrap();
    fs::File::create(&disk).unwrap().set_len(24 << 20).unwrap();
    tool("mke2fs", &["-q", "-t", "ext4", "-d", source.to_str().unwrap(), &small]);
    place.write("table", b"label: gpt\nstart=1MiB,size=1MiB\nstart=4MiB,size=8MiB,name=root\n");
    tool("sh", &["-c", &format!("sfdisk -q {disk} < {}", place.text("table"))]);
    let bytes = fs::read(small).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 4 << 20).unwrap();
    place.silt(&["backup", "web1", "root=disk.raw", "swap=table"]).exits(0);
    place
}

#[test]
fn single_files_are_listed_printed_and_copied() {
    let place = place();
    let files = |args: &[&str]| place.silt(&[&["files", "web1@latest:root"], args].concat());
    let run = files(&["ls"]).exits(0);
    run.says("ext2/3/4");
    let partitions = files(&["ls", "--json"]).exits(0).messages();
    assert_eq!((partitions.len(), &partitions[1]["readable"]), (2, &true.into()));
    assert_eq!(partitions[1]["name"], "root");
    let run = files(&["ls", "/etc"]).exits(0);
    run.says("name -> hostname");
    // What a terminal would obey is shown instead.
    files(&["ls", "/etc/conf.d"]).exits(0).says("a\\u{9}b");
    let listed = files(&["ls", "/etc", "--json"]).exits(0).messages();
    let hostname = listed.iter().find(|file| file["name"] == "hostname").unwrap();
    assert_eq!((&hostname["type"], &hostname["bytes"]), (&"file".into(), &5.into()));
    assert_eq!(files(&["cat", "/etc/name", "etc/hostname"]).exits(0).out, "web1\nweb1\n");
    files(&["get", "/etc", "out"]).exits(0).says("Copied 2 files, 2 directories and 1 link");
    assert_eq!(fs::read(place.path("out/etc/name")).unwrap(), b"web1\n");
    assert_eq!(fs::read(place.path("out/etc/conf.d/a\tb")).unwrap(), vec![3; 100_000]);
    // Nothing is overwritten.
    files(&["get", "/etc/hostname", "out/etc"]).exits(13).says("hostname");
    let summary = files(&["get", "/", "all", "--partition", "2", "--json"]).exits(0).summary();
    assert_eq!((&summary["files"], &summary["left_out"]), (&2.into(), &0.into()));
}

#[test]
fn what_cannot_be_read_is_named() {
    let place = place();
    let files = |args: &[&str]| place.silt(&[&["files"], args].concat());
    files(&["web1@latest:root", "cat", "/nothing"]).exits(1).says("no such file");
    files(&["web1@latest:root", "cat", "/etc"]).exits(1).says("directory");
    files(&["web1@latest:root", "ls", "/", "--partition", "7"]).exits(2).says("2 (ext2/3/4)");
    files(&["web1@latest:root", "ls", "/", "--partition", "1"]).exits(1).says("empty");
    files(&["web1@latest:swap", "ls"]).exits(1).says("no known file system");
    files(&["web1@latest", "ls"]).exits(2).says("several volumes");
    let mut image = vec![0; 1 << 20];
    image[..4].copy_from_slice(b"XFSB");
    place.write("xfs.raw", &image);
    place.silt(&["backup", "web2", "xfs.raw"]).exits(0);
    let run = files(&["web2@latest", "cat", "/etc/fstab"]).exits(1);
    run.says("the disk holds XFS");
    run.says("silt mount");
}
