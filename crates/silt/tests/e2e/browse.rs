//! Looking into file trees: what patterns restore, what differs, what is found.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::Value;

use crate::kit::{Place, Run};

/// A small tree with configuration, mail and something to leave out.
fn tree(place: &Place) -> String {
    for folder in ["srv/etc/ssh", "srv/etc/private", "srv/mail/old", "srv/empty"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    for (name, content) in [
        ("etc/fstab", "proc /proc proc\n"),
        ("etc/ssh/sshd.conf", "Port 22\n"),
        ("etc/private/key.conf", "secret\n"),
        ("mail/inbox", "From alice\n"),
        ("mail/old/2025.mbox", "From bob\n"),
        ("mail/old/notes.conf", "x=1\n"),
    ] {
        fs::write(place.path("srv").join(name), content).unwrap();
    }
    fs::write(place.path("srv/mail/large"), vec![b'l'; 3 << 20]).unwrap();
    symlink("fstab", place.path("srv/etc/link")).unwrap();
    place.text("srv")
}

/// The paths below a folder, sorted.
fn paths(place: &Place, folder: &str) -> Vec<String> {
    let root = place.path(folder);
    let (mut found, mut left) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            if entry.file_type().unwrap().is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

fn of_type(run: &Run, message_type: &str) -> Vec<Value> {
    let mut messages = run.messages();
    messages.retain(|message| message["message_type"] == message_type);
    messages
}

#[test]
fn patterns_choose_what_is_restored() {
    let place = Place::new();
    let srv = tree(&place);
    place.silt(&["backup", "srv", &srv]).exits(0);
    let restore = |target: &str, more: &[&str]| {
        let run = place.silt(&[&["restore", "srv@latest:/", target][..], more].concat());
        run.exits(0);
        paths(&place, target)
    };
    let found = restore("one", &["--include", "*.conf", "--exclude", "private"]);
    let wanted = ["etc", "etc/ssh", "etc/ssh/sshd.conf", "mail", "mail/old", "mail/old/notes.conf"];
    assert_eq!(found, wanted);
    // A directory that matches comes with everything below it.
    let found = restore("two", &["--include", "/mail/old", "--include", "/etc/fstab"]);
    assert_eq!(
        found,
        ["etc", "etc/fstab", "mail", "mail/old", "mail/old/2025.mbox", "mail/old/notes.conf"]
    );
    let found = restore("three", &["--exclude", "/mail/", "--exclude", "*.conf"]);
    assert_eq!(found, ["empty", "etc", "etc/fstab", "etc/link", "etc/private", "etc/ssh"]);
    // Below a path, patterns begin there.
    place.silt(&["restore", "srv@latest:/mail", "four", "--include", "/old/*.mbox"]).exits(0);
    assert_eq!(paths(&place, "four"), ["old", "old/2025.mbox"]);

    let dry = ["restore", "srv@latest:/", "none", "--dry-run", "--include", "*.conf"];
    place.silt(&dry).exits(0).says("Would restore 8 entries (3 files, 5 directories), 19 B");
    let summary = place.silt(&[&dry[..], &["--json"]].concat()).exits(0).summary();
    let fields = ["entries", "files", "directories", "bytes", "failed"].map(|key| &summary[key]);
    assert_eq!(fields, [8, 3, 5, 19, 0]);
    assert!(!place.path("none").exists());
    place.silt(&["restore", "srv@latest:/", "none", "--include", "a[z-"]).exits(0);
    assert_eq!(paths(&place, "none"), [""; 0]);
}

#[test]
fn what_patterns_leave_out_is_not_removed_from_the_target() {
    let place = Place::new();
    let srv = tree(&place);
    place.silt(&["backup", "srv", &srv]).exits(0);
    for name in ["etc/extra.conf", "etc/extra.txt", "etc/private/own", "mail/old/extra"] {
        fs::write(place.path("srv").join(name), b"mine").unwrap();
    }
    let in_place = ["restore", "srv@latest:/", &srv, "--in-place", "--delete"];
    let patterns = ["--include", "*.conf", "--include", "/mail/old", "--exclude", "private"];
    place.silt(&[&in_place[..], &patterns].concat()).exits(0).says("Removed 2 entries");
    let left = paths(&place, "srv");
    for kept in ["etc/extra.txt", "etc/private/own", "etc/private/key.conf", "mail/inbox"] {
        assert!(left.contains(&kept.to_owned()), "{kept} in {left:?}");
    }
    place.silt(&in_place).exits(0).says("Removed 2 entries");
    assert!(!place.path("srv/etc/extra.txt").exists());
}

#[test]
fn trees_are_compared_file_by_file() {
    let place = Place::new();
    let srv = tree(&place);
    place.silt(&["backup", "srv", &srv]).exits(0);
    let at = |name: &str| place.path("srv").join(name);
    fs::write(at("etc/fstab"), b"none /proc proc\n").unwrap();
    fs::write(at("etc/new"), b"12345").unwrap();
    fs::set_permissions(at("mail/inbox"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_dir_all(at("etc/private")).unwrap();
    fs::remove_file(at("etc/link")).unwrap();
    fs::create_dir(at("etc/link")).unwrap();
    fs::write(at("etc/link/below"), b"1").unwrap();
    #[expect(clippy::disallowed_methods, reason = "the user renames files")]
    {
        fs::rename(at("mail/large"), at("etc/large")).unwrap();
        fs::rename(at("mail/old"), at("older")).unwrap();
    }
    // The same content, written again.
    fs::write(at("etc/ssh/sshd.conf"), b"Port 22\n").unwrap();
    place.silt(&["backup", "srv", &srv]).exits(0);
    let ids: Vec<String> = of_type(&place.silt(&["snapshots", "--json"]), "snapshot")
        .iter()
        .map(|snapshot| snapshot["short_id"].as_str().unwrap().to_owned())
        .collect();
    let run = place.silt(&["diff", &ids[0], &ids[1], "--json"]).exits(0);
    let changes = of_type(&run, "change");
    let line = |change: &Value| {
        let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}{}", text("change"), text("old_path"), text("path"))
    };
    let mut lines: Vec<String> = changes.iter().map(line).collect();
    // Directories whose entries changed have new times.
    lines
        .retain(|line| !["attributes /", "attributes /etc", "attributes /mail"].contains(&&**line));
    assert_eq!(
        lines,
        [
            "content /etc/fstab",
            "moved /mail/large/etc/large",
            "type /etc/link",
            "added /etc/link/below",
            "added /etc/new",
            "removed /etc/private",
            "removed /etc/private/key.conf",
            "attributes /etc/ssh/sshd.conf",
            "attributes /mail/inbox",
            "moved /mail/old/older",
        ]
    );
    let inbox = changes.iter().find(|change| change["path"] == "/mail/inbox").unwrap();
    assert_eq!(inbox["attributes"], serde_json::json!(["mode"]));
    let sums = &of_type(&run, "diff")[0];
    let sum = |key: &str| sums[key].as_u64().unwrap();
    assert_eq!(["added", "removed", "content", "moved", "types"].map(sum), [2, 2, 1, 2, 1]);
    assert_eq!((sum("added_bytes"), sum("removed_bytes")), (16 + 5 + 1, 16 + 7));
    let run = place.silt(&["diff", &ids[0], &ids[1]]).exits(0);
    run.says("R /mail/large -> /etc/large");
    run.says("U /mail/inbox (mode)");
    run.says("2 added, 2 removed, 1 with different content");

    // A part of each tree, and the same tree twice.
    let (old, new) = (format!("{}:/mail/old", ids[0]), format!("{}:/older", ids[1]));
    place.silt(&["diff", &old, &new]).exits(0).says("0 added, 0 removed, 0 with different content");
    let run = place.silt(&["diff", &ids[0], &ids[0], "--json"]).exits(0);
    assert!(of_type(&run, "change").is_empty());
    place.silt(&["diff", &old, "srv@latest:/nowhere"]).exits(1).says("there is no '/nowhere'");
}

#[test]
fn files_are_found_in_a_snapshot_and_in_a_series() {
    let place = Place::new();
    let srv = tree(&place);
    place.silt(&["backup", "srv", &srv]).exits(0);
    let find = |place_name: &str, more: &[&str]| -> Vec<String> {
        let run = place.silt(&[&["find", place_name][..], more].concat()).exits(0);
        run.out.lines().map(str::to_owned).collect()
    };
    let all = find("srv@latest", &[]);
    assert_eq!(all.len(), paths(&place, "srv").len());
    let found = find("srv@latest", &["--name", "*.conf"]);
    assert_eq!(found, ["/etc/private/key.conf", "/etc/ssh/sshd.conf", "/mail/old/notes.conf"]);
    assert_eq!(find("srv@latest:/mail", &["--name", "*.CONF"]), [""; 0]);
    let found = find("srv@latest:/mail", &["--iname", "*.CONF"]);
    assert_eq!(found, ["/mail/old/notes.conf"]);
    assert_eq!(find("srv@latest", &["--type", "l"]), ["/etc/link"]);
    let found = find("srv@latest", &["--type", "f", "--larger-than", "1MiB", "-l"]);
    assert!(found.len() == 2 && found[1].ends_with("/mail/large"), "{found:?}");
    let found = find("srv@latest", &["--smaller-than", "5", "--type", "f,d"]);
    assert_eq!(found, ["/mail/old/notes.conf"]);
    assert_eq!(find("srv@latest", &["--older-than", "1d"]), [""; 0]);
    assert_eq!(find("srv@latest", &["--newer-than", "1h"]).len(), all.len());
    assert_eq!(find("srv@latest", &["--older-than", "2001-09-09"]), [""; 0]);
    assert_eq!(find("srv@latest", &["--owner", "4294967295"]), [""; 0]);
    place.silt(&["find", "srv@latest", "--type", "x"]).exits(2).says("is not a type");
    place.silt(&["find", "srv@latest", "--newer-than", "soon"]).exits(2).says("neither a time");
    place.silt(&["find", "srv@latest:/nowhere"]).exits(1).says("no file tree has");
    place.silt(&["find", "nobody"]).exits(1).says("no series 'nobody'");

    // Of a series each state of a file is found once.
    place.silt(&["backup", "srv", &srv]).exits(0);
    fs::write(place.path("srv/etc/fstab"), b"changed\n").unwrap();
    fs::write(place.path("srv/fstab"), b"another\n").unwrap();
    place.silt(&["backup", "srv", &srv]).exits(0);
    fs::remove_file(place.path("srv/etc/fstab")).unwrap();
    place.silt(&["backup", "srv", &srv]).exits(0);
    let run = place.silt(&["find", "srv", "--name", "fstab", "--json"]).exits(0);
    let found = of_type(&run, "file");
    let paths: Vec<_> = found.iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc/fstab", "/etc/fstab", "/fstab"]);
    let snapshots: Vec<_> = found.iter().map(|file| file["snapshot"].clone()).collect();
    assert!(snapshots[0] != snapshots[1] && snapshots[1] == snapshots[2]);
    let keys = ["bytes", "series", "volume", "type"].map(|key| found[1][key].clone());
    assert_eq!(keys, [Value::from(8), "srv".into(), "srv".into(), "file".into()]);
    assert_eq!(find("srv:/mail", &["--name", "inbox"]).len(), 1);
}

#[test]
fn a_file_has_versions() {
    let place = Place::new();
    let srv = tree(&place);
    let file = place.path("srv/etc/fstab");
    let backup = || drop(place.silt(&["backup", "srv", &srv]).exits(0));
    let others = place.path("srv/mail/inbox");
    fs::remove_file(&file).unwrap();
    backup();
    fs::write(&file, b"one").unwrap();
    backup();
    fs::write(&others, b"From carol\n").unwrap();
    backup();
    // Attributes alone, then other content of the same size.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    backup();
    fs::write(&file, b"two").unwrap();
    backup();
    fs::remove_file(&file).unwrap();
    backup();
    let versions = |more: &[&str]| -> Vec<(u64, Value, Value)> {
        let arguments = [&["versions", "srv:/etc/fstab", "--json"][..], more].concat();
        let run = place.silt(&arguments).exits(0);
        let of = |it: &Value| {
            (it["snapshots"].as_u64().unwrap(), it["exists"].clone(), it["changes"].clone())
        };
        of_type(&run, "version").iter().map(of).collect()
    };
    let content = |names: &[&str]| Value::from(names.to_vec());
    assert_eq!(
        versions(&[]),
        [(3, true.into(), content(&[])), (1, true.into(), content(&["content", "modified"]))]
    );
    assert_eq!(versions(&["--attributes"]).len(), 3);
    let run = place.silt(&["versions", "srv:/etc/fstab"]).exits(0);
    run.says("content, modified");
    place.silt(&["versions", "srv:/etc"]).exits(0).says("content");
    place.silt(&["versions", "srv:/nothing"]).exits(1).says("no snapshot of series 'srv' has");
    place.silt(&["versions", "srv@latest:/etc"]).exits(2).says("use SERIES:/PATH");
    fs::write(&file, b"two").unwrap();
    backup();
    // It was not there for a while.
    let exist: Vec<_> = versions(&[]).into_iter().map(|version| version.1).collect();
    assert_eq!(exist, [true, true, false, true]);
}
