//! File trees in a mounted folder, as other programs see them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::kit::{Place, can, damage, disk, tool};
use crate::mounts::{Mounted, is_mounted};
use crate::tree_kit::{Scratch, awkward_tree};

/// What rsync would have to do to make `to` like `from`.
fn differences(from: &Path, to: &Path) -> String {
    let (from, to) = (format!("{}/", from.display()), format!("{}/", to.display()));
    tool("rsync", &["-aHAXSn", "--checksum", "--itemize-changes", "--delete", &from, &to])
}

#[test]
fn an_awkward_tree_is_in_the_folder_as_it_was() {
    if !can("fuse") || !can("rsync") || !can("root") {
        return;
    }
    let (place, scratch) = (Place::new(), Scratch::new());
    let source = scratch.folder("source");
    awkward_tree(&source);
    let (image, files) = (place.write("vm.raw", &disk(3, 4)), source.display().to_string());
    let volumes = [format!("vm={image}"), format!("files={files}"), format!("odd.raw={files}")];
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    place.silt(&[&["backup", "both"][..], &volumes].concat()).exits(0);
    let mounted = Mounted::new(&place);
    let latest = mounted.at("both/latest");
    let root = latest.join("files");
    assert_eq!(differences(&source, &root), "");
    assert_eq!(differences(&source, &latest.join("odd%2Eraw")), "");
    // A disk beside it.
    assert!(fs::read(latest.join("vm.raw")).unwrap() == disk(3, 4));
    // The same through the id.
    let snapshots = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let by_id = mounted.at("by-id").join(snapshots[0]["id"].as_str().unwrap());
    assert_eq!(fs::read(by_id.join("files/links/first")).unwrap(), b"of four");
    // The names of a file are one file, and those of another snapshot's file are not.
    let names = ["links/first", "links/second", "links/below/third", "a fourth"];
    let stat = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    let first = stat(names[0]);
    assert_eq!(first.nlink(), 4);
    assert!(names.iter().all(|name| stat(name).ino() == first.ino()));
    let other = latest.join("odd%2Eraw/links/first");
    assert_ne!(fs::metadata(other).unwrap().ino(), first.ino());
    // What rsync does not look at.
    assert_eq!(stat("null").rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(stat("disk").rdev(), rustix::fs::makedev(259, 1_048_575));
    assert!(stat("pipe").file_type().is_fifo() && stat("socket").file_type().is_socket());
    let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    for name in ["1900", "2200", "links/absolute", "sticky", "mode-4755"] {
        let there = fs::symlink_metadata(source.join(name)).unwrap();
        assert_eq!(times(&stat(name)), times(&there), "{name}");
        assert_eq!((stat(name).mode(), stat(name).uid()), (there.mode(), there.uid()), "{name}");
    }
    assert_eq!(stat("only a hole").blocks(), 0);
    assert!(stat("many holes").blocks() < stat("large").blocks());
    // Holes are found without reading.
    let (from, copy) = (root.join("many holes"), place.path("copy"));
    tool("cp", &["--sparse=auto", from.to_str().unwrap(), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == fs::read(source.join("many holes")).unwrap());
    assert!(fs::metadata(&copy).unwrap().blocks() < 1000);
    // Nothing can be written.
    fs::write(root.join("large"), "x").unwrap_err();
    fs::remove_file(root.join("large")).unwrap_err();
    mounted.end("-TERM").exits(0);
}

/// A directory of 20,000 names, backed up as `big`.
fn big_directory(place: &Place) -> Vec<String> {
    let folder = place.path("big/many");
    fs::create_dir_all(&folder).unwrap();
    let names: Vec<String> =
        (0..20_000).map(|n| format!("{n:05}-{}", "x".repeat(n % 90))).collect();
    names.iter().for_each(|name| fs::write(folder.join(name), name).unwrap());
    place.silt(&["backup", "big", &place.text("big")]).exits(0);
    names
}

#[test]
fn a_large_directory_is_listed_in_parts_and_unmounted_under_load() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    let names = big_directory(&place);
    let mounted = Mounted::new(&place);
    let folder = mounted.at("big/latest/big/many");
    for _ in 0..2 {
        let entries = fs::read_dir(&folder).unwrap();
        let listed: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(listed == names, "{} names", listed.len());
    }
    // From the middle on and from the beginning again, as `telldir` and `rewinddir` do.
    let mut open = rustix::fs::Dir::read_from(fs::File::open(&folder).unwrap()).unwrap();
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().unwrap().to_owned();
    let before: Vec<String> = open.by_ref().take(15_000).map(|e| name(e.unwrap())).collect();
    open.rewind();
    let again: Vec<String> = open.map(|entry| name(entry.unwrap())).collect();
    assert!(before == names[..15_000] && again == names);
    let with_sizes = tool("find", &[folder.to_str().unwrap(), "-type", "f", "-printf", "%s\n"]);
    let sizes: usize = with_sizes.lines().map(|line| line.parse::<usize>().unwrap()).sum();
    assert_eq!(sizes, names.iter().map(String::len).sum::<usize>());
    assert_eq!(fs::read(folder.join(&names[12_345])).unwrap(), names[12_345].as_bytes());
    fs::metadata(folder.join("nobody")).unwrap_err();

    let mut loads: Vec<Child> = (0..2).map(|_| load(&folder)).collect();
    let held = fs::File::open(folder.join(&names[7])).unwrap();
    place.silt(&["umount", "mounted"]).exits(11).says("in use");
    mounted.end("-INT").exits(0);
    assert!(!is_mounted(&place.path("mounted")));
    drop(held);
    loads.iter_mut().for_each(|load| drop(load.wait()));
}

/// A program that lists a folder and reads its files again and again.
fn load(folder: &Path) -> Child {
    let script = format!("while grep -rq nothing '{}'; [ $? = 1 ]; do :; done", folder.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn of_a_damaged_tree_the_other_files_can_be_read() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("home")).unwrap();
    let files: Vec<_> = (0..8).map(|n| (format!("home/{n}"), disk(20 + n, 2))).collect();
    files.iter().for_each(|(name, content)| drop(place.write(name, content)));
    place.silt(&["backup", "home", &place.text("home")]).exits(0);
    let containers = place.objects("containers");
    damage(&containers[0]);
    let mounted = Mounted::new(&place);
    let mut failed = 0;
    for (name, content) in &files {
        match fs::read(mounted.at("home/latest").join(name)) {
            Ok(read) => assert!(read == *content, "{name} is wrong"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && failed < 4, "{failed} files can't be read");
    let name = containers[0].file_name().unwrap().to_str().unwrap();
    mounted.end("-TERM").exits(0).says(name);
}

#[test]
fn others_see_what_permissions_and_acls_allow() {
    if !can("fuse") || !can("root") {
        return;
    }
    let (place, scratch) = (Place::new(), Scratch::new());
    let source = scratch.folder("source");
    let missing = awkward_tree(&source);
    place.silt(&["backup", "files", source.to_str().unwrap()]).exits(0);
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.path("mounted")).unwrap();
    place.silt(&["mount", "mounted", "--allow-other", "--background"]).exits(0);
    let root = place.path("mounted/files/latest/source");
    let can_read = |user: &str, name: &str| {
        let mut reader = Command::new("setpriv");
        reader.args([&format!("--reuid={user}"), "--regid=65534", "--clear-groups", "cat"]);
        let read = reader.arg(root.join(name)).stderr(Stdio::null()).output().unwrap();
        assert_eq!(read.status.success(), read.stdout == fs::read(source.join(name)).unwrap());
        read.status.success()
    };
    assert!(can_read("65534", "mode-644") && !can_read("65534", "mode-400"));
    assert!(can_read("1256", "mode-400"), "its owner can");
    assert!(fs::read(root.join("mode-0")).is_ok(), "root can");
    if !missing.contains(&"acl") {
        assert!(can_read("1234", "attributes") && !can_read("65534", "attributes"));
    }
    place.silt(&["umount", "mounted"]).exits(0);
}

#[test]
fn a_backup_of_a_mounted_folder_says_what_it_does_not_compare() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.path("home/deep")).unwrap();
    fs::write(place.path("home/deep/file"), "text").unwrap();
    place.silt(&["backup", "home", &place.text("home")]).exits(0);
    let mounted = Mounted::new(&place);
    let root = mounted.at("home/latest/home");
    let root = root.to_str().unwrap();
    let run = place.silt(&["backup", "copy", root]).exits(0);
    assert_eq!(run.out.matches("is on FUSE: files are compared by size").count(), 1, "{}", run.out);
    let run = place.silt(&["backup", "copy", root, "--json"]).exits(0);
    let messages = run.messages();
    let told: Vec<_> = messages.iter().filter(|it| it["message_type"] == "file_system").collect();
    assert_eq!((told.len(), &told[0]["type"], &told[0]["path"]), (1, &"FUSE".into(), &root.into()));
    assert_eq!(
        (&told[0]["ignores_inode"], &told[0]["ignores_ctime"]),
        (&true.into(), &true.into())
    );
    // Not what the user has asked for, or what makes no difference.
    for options in [&["--reread"][..], &["--ignore-inode", "--ignore-ctime"], &["-q"]] {
        let run = place.silt(&[&["backup", "copy", root][..], options].concat()).exits(0);
        assert!(!run.printed().contains("FUSE"), "{options:?}: {}", run.printed());
    }
    mounted.end("-TERM").exits(0);
}
