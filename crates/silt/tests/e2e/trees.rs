//! Directories as volumes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::kit::{Place, Run, can, finish, tool};

/// A tree with something of everything that a user without rights can make.
fn tree(place: &Place) -> String {
    let root = place.path("home");
    for folder in ["alice/mail", "bob", "cache"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("alice/notes.txt"), b"remember the milk\n").unwrap();
    fs::write(root.join("alice/mail/inbox"), vec![b'm'; 3 << 20]).unwrap();
    fs::write(root.join("alice/draft.tmp"), b"nothing").unwrap();
    fs::write(root.join("bob/a:b\nc"), b"odd name").unwrap();
    fs::write(root.join("cache/CACHEDIR.TAG"), b"Signature: 8a477f597d28d172789f06886806bc55")
        .unwrap();
    fs::write(root.join("cache/junk"), vec![7; 5000]).unwrap();
    fs::hard_link(root.join("alice/notes.txt"), root.join("bob/notes")).unwrap();
    symlink("../alice", root.join("bob/friend")).unwrap();
    fs::set_permissions(root.join("bob"), fs::Permissions::from_mode(0o750)).unwrap();
    place.text("home")
}

/// What rsync would have to do to make `to` like `from`.
fn differences(from: &str, to: &str) -> String {
    let (from, to) = (format!("{from}/"), format!("{to}/"));
    tool("rsync", &["-aHAXSn", "--checksum", "--itemize-changes", "--delete", &from, &to])
}

#[test]
fn a_directory_is_backed_up_looked_into_and_restored() {
    if !can("rsync") {
        return;
    }
    let place = Place::new();
    let home = tree(&place);
    let first = place.silt(&["backup", "home", &home, "--json"]).exits(0).summary();
    assert_eq!(first["unreadable_entries"], 0);
    place.silt(&["restore", "home@latest", "out"]).exits(0).says("Restored");
    assert_eq!(differences(&home, &place.text("out")), "");

    let listed = place.silt(&["ls", "home@latest:/bob", "--json"]).exits(0).messages();
    let names: Vec<_> = listed.iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a:b\nc", "friend", "notes"]);
    let fields = ["type", "bytes", "links", "state", "target"].map(|key| listed[1][key].clone());
    assert_eq!(
        fields,
        ["symlink".into(), 0.into(), 1.into(), "whole".into(), Value::from("../alice")]
    );
    place.silt(&["ls", "home@latest:home/alice", "-lR"]).exits(0).says("mail/inbox");
    place.silt(&["cat", "home@latest:/alice/notes.txt"]).exits(0).says("remember the milk");
    place.silt(&["cat", "home@latest:/bob"]).exits(1).says("is a directory");
    place.silt(&["cat", "home@latest:/nobody"]).exits(1).says("there is no '/nobody'");
    place.silt(&["ls", "home@latest"]).exits(0).says("tree");

    // One file, then a part in place.
    place.silt(&["restore", "home@latest:/alice/notes.txt", "single/"]).exits(0);
    assert_eq!(place.read("single/notes.txt"), b"remember the milk\n");
    fs::write(place.path("home/alice/notes.txt"), b"overwritten\n").unwrap();
    fs::write(place.path("home/alice/extra"), b"added later").unwrap();
    let alice = place.text("home/alice");
    let refused = place.silt(&["restore", "home@latest:/alice", &alice]).exits(13);
    assert!(refused.err.contains("nothing was restored"), "{}", refused.err);
    refused.says("--in-place");
    place.silt(&["restore", "home@latest:/alice", &alice, "--dry-run"]).exits(0).says("Would");
    assert!(place.path("home/alice/extra").exists());
    place.silt(&["restore", "home@latest:/alice", &alice, "--in-place", "--delete"]).exits(0);
    assert_eq!(differences(&place.text("out/alice"), &alice), "");
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn what_a_folder_has_is_kept_and_refused_as_a_whole() {
    let place = Place::new();
    let home = tree(&place);
    place.silt(&["backup", "home", &home]).exits(0);
    let restore = |options: &[&str]| {
        place.silt(&[&["restore", "home@latest:/alice", "there"], options].concat())
    };
    fs::create_dir(place.path("there")).unwrap();
    fs::write(place.path("there/other"), b"other").unwrap();
    fs::write(place.path("there/notes.txt"), b"mine").unwrap();
    restore(&[]).exits(13).says("notes.txt exists already; nothing was restored");
    restore(&["--json"]).exits(13).says("\"code\":13");
    assert_eq!(fs::read_dir(place.path("there")).unwrap().count(), 2);
    // A part of it: what exists is named, the rest restored, and it is no damage.
    let part = restore(&["--include", "notes.txt", "--include", "mail/**"]).exits(13);
    assert!(part.err.contains("notes.txt is NOT restored"), "{}", part.err);
    part.says("--force replaces it");
    assert_eq!(place.read("there/notes.txt"), b"mine");
    assert!(place.path("there/mail/inbox").exists());
    // A single file, and a folder with none of the names.
    place.silt(&["restore", "home@latest:/alice/notes.txt", "there"]).exits(13);
    fs::remove_dir_all(place.path("there/mail")).unwrap();
    fs::remove_file(place.path("there/notes.txt")).unwrap();
    restore(&[]).exits(0);
    assert_eq!(place.read("there/notes.txt"), b"remember the milk\n");
    assert_eq!(place.read("there/other"), b"other");
    restore(&["--force"]).exits(0);
}

#[test]
fn rules_leave_entries_out_and_disks_are_told_from_trees() {
    let place = Place::new();
    let home = tree(&place);
    let image = place.write("vm.raw", &crate::kit::disk(1, 4));
    let disk = format!("vm={image}");
    let rules = ["--exclude", "*.tmp", "--exclude-caches", "--exclude-larger-than", "1MiB"];
    place.silt(&[&["backup", "both", &home, &disk][..], &rules].concat()).exits(0).says("left out");
    let listed = place.silt(&["ls", "both@latest:/", "-R"]).exits(0).printed();
    assert!(listed.contains("alice/notes.txt") && listed.contains("cache/CACHEDIR.TAG"));
    for out in ["draft.tmp", "junk", "inbox"] {
        assert!(!listed.contains(out), "{out} in {listed}");
    }
    // All volumes of a snapshot: a disk becomes a file, a tree a folder.
    place.silt(&["restore", "both@latest", "all/"]).exits(0);
    assert!(place.path("all/vm.raw").is_file() && place.path("all/home/bob").is_dir());
    place.silt(&["restore", "both@latest:vm", "x.raw", "--include", "*"]).exits(2).says("for file");
    place.silt(&["files", "both@latest:home", "ls"]).exits(1).says("file tree");
    place.silt(&["diff", "both@latest:home", "both@latest:home"]).exits(0).says("0 added");
    place.silt(&["diff", "both@latest:home", "both@latest:vm"]).exits(1).says("file tree");
    place.silt(&["ls", "both@latest:vm/etc"]).exits(1).says("silt files");
    place.silt(&["backup", "both", &home, "--changed", "map.json"]).exits(2).says("directory");
    place.silt(&["backup", "both", &home, "--exclude", "a[z-"]).exits(0);
    place.silt(&["restore", "both@latest:/", "x", "--range", "0-1"]).exits(2).says("for disks");
}

#[test]
fn damage_is_named_by_path_and_the_rest_is_restored() {
    let place = Place::new();
    let root = place.path("home");
    fs::create_dir_all(root.join("deep")).unwrap();
    fs::write(root.join("deep/large"), crate::kit::disk(5, 3)).unwrap();
    fs::write(root.join("deep/small"), b"small").unwrap();
    let home = place.text("home");
    // As fast as the limit allows.
    place.silt(&["backup", "home", &home, "--limit-read", "1"]).exits(0);
    // The containers of the small file and of the large one are filled one after the other.
    let large = place.objects("containers").remove(0);
    crate::kit::damage(&large);
    let run = place.silt(&["check", "--read-data", "--json"]).exits(5);
    let damage = run.messages().into_iter().find(|m| m["message_type"] == "damage").unwrap();
    let hurt = &damage["affected"][0];
    assert_eq!((&hurt["paths"][0], &hurt["path_count"]), (&"/deep/large".into(), &1.into()));
    let run = place.silt(&["check"]).exits(5);
    run.says("affects 1 entry of home@");
    run.says("    /deep/large");
    let run = place.silt(&["restore", "home@latest:/", "out"]).exits(5);
    run.says("deep/large is NOT restored");
    assert_eq!(place.read("out/deep/small"), b"small");
    assert!(!place.path("out/deep/large").exists());
    // The next backup reads the file again.
    place.silt(&["backup", "home", &home]).exits(0);
    place.silt(&["restore", "home@latest:/", "healed"]).exits(0);
    assert!(place.read("healed/deep/large") == place.read("home/deep/large"));
}

#[test]
fn all_and_fleets_back_trees_up_as_they_were_backed_up_by_hand() {
    let place = Place::new();
    let home = tree(&place);
    let image = place.write("vm.raw", &crate::kit::disk(1, 4));
    place.silt(&["backup", "home", &home, "--exclude", "*.tmp", "-x"]).exits(0);
    place.silt(&["backup", "vm", &image]).exits(0);
    let names = |snapshot: &str| place.silt(&["ls", snapshot, "-R"]).exits(0).printed();
    assert!(!names("home@latest:/").contains("draft.tmp"));

    // The record holds what was left out.
    fs::write(place.path("home/alice/new.txt"), b"new").unwrap();
    fs::write(place.path("home/alice/new.tmp"), b"new").unwrap();
    place.silt(&["backup", "--all"]).exits(0);
    let listed = names("home@latest:/");
    assert!(listed.contains("new.txt") && !listed.contains(".tmp"), "{listed}");
    let count =
        |series: &str| place.silt(&["snapshots", series, "--json"]).exits(0).messages().len();
    assert_eq!((count("home"), count("vm")), (2, 2));

    let fleet = [
        "[series.mixed.volumes]",
        &format!("files = {home:?}"),
        &format!("disk = {image:?}"),
        "[series.mixed.tree]",
        "exclude = [\"*.txt\"]",
        "one-file-system = true",
        "[series.vm.volumes]",
        &format!("vm = {image:?}"),
        "[series.gone.volumes]",
        "files = \"/nowhere\"",
    ]
    .join("\n");
    place.write("fleet.toml", fleet.as_bytes());
    // What can't be found fails only its own series.
    place.silt(&["backup", "--fleet", "fleet.toml"]).exits(1).says("'gone' was not backed up");
    let listed = names("mixed@latest:/");
    assert!(listed.contains("draft.tmp") && !listed.contains(".txt"), "{listed}");
    assert_eq!((count("mixed"), count("vm")), (1, 3));
}

#[test]
fn kinds_are_shown_measured_and_cut_as_measured() {
    let place = Place::new();
    let home = tree(&place);
    // The second song is the first one behind a longer tag, which fixed sizes miss.
    let mut song = b"ID3\x04".to_vec();
    song.extend((0..100_000_u32).flat_map(|number| number.wrapping_mul(0x9e37_79b1).to_be_bytes()));
    fs::write(place.path("home/song"), &song).unwrap();
    song.splice(10..10, [7; 333]);
    fs::write(place.path("home/same song"), &song).unwrap();
    place.silt(&["backup", "home", &home]).exits(0);
    place.silt(&["show", "home@latest"]).exits(0).says("audio");
    let shown = place.silt(&["show", "home@latest", "--json"]).exits(0).messages();
    let kinds = &shown[0]["volumes"][0]["kinds"];
    assert_eq!(kinds["audio"], serde_json::json!({"files": 2, "bytes": 800_341}));
    assert_eq!(kinds["video"]["files"], 0);

    let plot = place.text("plot.svg");
    place.silt(&["tune", &home, "--plot", &plot]).exits(0).says("proposed");
    let svg = String::from_utf8(place.read("plot.svg")).unwrap();
    assert!(svg.ends_with("</svg>\n") && svg.matches("<polyline").count() >= 4, "{svg}");
    let tuned = place.silt(&["tune", &home, "--apply", "home", "--json"]).exits(0).messages();
    let audio = tuned.iter().find(|kind| kind["kind"] == "audio").unwrap();
    assert_eq!((&audio["files"], &audio["measured_bytes"]), (&2.into(), &800_341.into()));
    let saved = |chunking: &str| {
        let measures = audio["measures"].as_array().unwrap();
        let measure = measures.iter().find(|it| it["chunking"] == chunking).unwrap();
        measure["saved_bytes"].as_u64().unwrap()
    };
    assert_eq!(saved("fixed:4096"), 0, "{audio}");
    assert!(saved("fastcdc:512/2048/16384") > 350_000, "{audio}");
    let proposed = audio["proposed"].as_str().unwrap();
    assert!(proposed.starts_with("fastcdc:"), "{audio}");
    let done = tuned.last().unwrap();
    assert_eq!((&done["message_type"], &done["series"]), (&"tuned".into(), &"home".into()));
    assert_eq!(done["chunking"]["audio"], proposed);
    let disks = &done["chunking"]["disk-image"];
    assert_eq!(disks, "fixed:4096", "there is none, so it stays");
    place.silt(&["backup", "home", &home, "--reread"]).exits(0);
    place.silt(&["tune", &home, "--reset", "home"]).exits(0).says("by default");
    place.silt(&["tune", &home, "--apply", "nobody"]).exits(1);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");
}

#[test]
fn the_size_of_a_tree_is_that_of_its_files() {
    let place = Place::new();
    fs::create_dir_all(place.path("small")).unwrap();
    fs::write(place.path("small/file"), "12345").unwrap();
    for _ in 0..2 {
        place.silt(&["backup", "small", "small"]).exits(0);
    }
    place.silt(&["show", "small@latest"]).exits(0).says("Volume 'small': 5 B from");
    let listed = place.silt(&["ls", "small@latest"]).exits(0).out;
    let row: Vec<_> = listed.lines().nth(1).unwrap().split_whitespace().take(3).collect();
    assert_eq!(row, ["small", "5", "B"], "{listed}");
}

/// Runs a command with this standard input.
fn with_input(place: &Place, args: &[&str], input: &[u8]) -> Run {
    let mut command = place.command();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    finish(child)
}

#[test]
fn only_listed_files_are_backed_up() {
    let place = Place::new();
    let home = tree(&place);
    let names = |snapshot: &str| place.silt(&["ls", snapshot, "-R"]).exits(0).printed();
    let list = format!("# what matters\nalice/notes.txt\n{home}/bob\n\n");
    place.write("list", list.as_bytes());
    let backup = ["backup", "home", &home, "--files-from", "list", "--exclude", "friend"];
    place.silt(&backup).exits(0);
    let expected = "alice\nalice/notes.txt\nbob\nbob/a:b\\u{a}c\nbob/notes\n";
    assert_eq!(names("home@latest:/"), expected);
    let parent = place.silt(&["ls", "home@latest:/", "--json"]).exits(0).messages();
    assert_eq!((&parent[1]["name"], &parent[1]["mode"]), (&"bob".into(), &"0750".into()));
    // The record names the list, and --all reads it again.
    place.write("list", b"alice\n");
    place.silt(&["backup", "--all"]).exits(0);
    assert!(names("home@latest:/").contains("alice/mail/inbox"));

    // Names may contain anything; what is missing is named and counted.
    let backup = ["backup", "raw", &home, "--files-from-raw", "-", "--json"];
    let run = with_input(&place, &backup, b"bob/a:b\nc\0alice/nothing\0gone/x\0gone/y").exits(3);
    let warned: Vec<_> = run.messages().into_iter().map(|it| it["message"].to_string()).collect();
    for missing in ["alice/nothing", "gone/x", "gone/y"] {
        assert!(
            warned.iter().any(|it| it.contains(missing) && it.contains("is listed")),
            "{warned:?}"
        );
    }
    assert_eq!(run.summary()["unreadable_entries"], 3);
    assert_eq!(names("raw@latest:/"), "alice\nbob\nbob/a:b\\u{a}c\n");
    // A list that is gone afterwards makes no record.
    assert!(!place.silt(&["backup", "--all"]).exits(0).printed().contains("raw"));
    let fleet = format!(
        "[series.f]\nvolumes = {{ files = {home:?} }}\ntree = {{ files-from = [\"list\"] }}\n"
    );
    place.write("fleet.toml", fleet.as_bytes());
    place.silt(&["backup", "--fleet", "fleet.toml"]).exits(0);
    assert!(!names("f@latest:/").contains("bob"));
}

#[test]
fn lists_that_fit_no_directory_are_refused() {
    let place = Place::new();
    let home = tree(&place);
    let image = place.write("vm.raw", &crate::kit::disk(1, 1));
    let refuses = |volumes: &[&str], list: &str, why: &str| {
        let args = [&["backup", "x"], volumes, &["--files-from", "-"]].concat();
        with_input(&place, &args, list.as_bytes()).exits(2).says(why);
    };
    // What makes the list has failed.
    refuses(&[&home], "# none\n", "nothing would be backed up");
    refuses(&[&home], "/etc/passwd\n", "in none of the directories");
    refuses(&[&home], "../etc/passwd\n", "contains '..'");
    refuses(&[&home, "/etc"], "alice\n", "list absolute paths");
    refuses(&[&image], "alice\n", "for directories");
    refuses(&[&home, "-"], "alice\n", "only one volume or list");
    place.silt(&["backup", "x", &home, "--files-from", "none"]).exits(1).says("open the list none");
    place.silt(&["snapshots"]).exits(0).says("No snapshots yet");
}

/// An argument of any bytes.
fn raw(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[test]
fn paths_and_patterns_may_be_any_bytes() {
    let place = Place::new();
    let root = place.path("home");
    let folder = root.join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"\xff.txt")), b"bytes\n").unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"\xfe.txt")), b"others").unwrap();
    let silt = |args: &[&[u8]]| Run::of(place.command().args(args.iter().map(|it| raw(it))));
    let home = root.to_str().unwrap().as_bytes();
    silt(&[b"backup", b"home", home, b"--exclude", b"\xfe.*"]).exits(0);
    let listed = silt(&[b"ls", b"home@latest:/caf\xe9", b"--json"]).exits(0).messages();
    let names: Vec<_> = listed.iter().map(|file| file["name_hex"].as_str().unwrap()).collect();
    assert_eq!(names, ["ff2e747874"], "the other one is left out");
    // The record holds the pattern, too.
    silt(&[b"backup", b"--all"]).exits(0);
    assert_eq!(silt(&[b"ls", b"home@latest:/caf\xe9"]).exits(0).out.lines().count(), 1);
    assert_eq!(silt(&[b"cat", b"home@latest:home/caf\xe9/\xff.txt"]).exits(0).out, "bytes\n");
    silt(&[b"cat", b"home@latest:/caf\xe8"]).exits(1).says("there is no");
    silt(&[b"ls", b"h\xe9@latest:/x"]).exits(2).says("not UTF-8");
    let found = silt(&[b"find", b"home@latest:/caf\xe9", b"--name", b"\xff*"]).exits(0).out;
    assert_eq!(found.lines().count(), 1);
    silt(&[b"find", b"home", b"--iname", b"\xfe*"]).exits(0);
    let versions = silt(&[b"versions", b"home:/caf\xe9/\xff.txt", b"--json"]).exits(0).messages();
    assert_eq!(versions[0]["snapshots"], 2);
    silt(&[b"diff", b"home@latest:/caf\xe9", b"home@latest:/caf\xe9"]).exits(0).says("0 added");
    let dumped = silt(&[b"dump", b"home@latest:/caf\xe9", b"-o", b"x.tar", b"--json"]).exits(0);
    assert_eq!(dumped.summary()["path_hex"], "2f636166e9");
    let restore =
        [&b"restore"[..], b"home@latest:/caf\xe9", b"out", b"--include", b"[\xfe-\xff].txt"];
    let restored = silt(&[&restore[..], &[b"--json"]].concat()).exits(0).summary();
    assert_eq!(restored["path_hex"], "2f636166e9");
    let copy = place.path("out").join(OsStr::from_bytes(b"\xff.txt"));
    assert_eq!(fs::read(copy).unwrap(), b"bytes\n");
    silt(&[b"restore", b"home@latest:/", b"none", b"--exclude", b"caf\xe9"]).exits(0);
    assert_eq!(fs::read_dir(place.path("none")).unwrap().count(), 0);
}

#[test]
fn acls_are_listed_as_getfacl_shows_them() {
    let place = Place::new();
    let home = tree(&place);
    let folder = place.text("home/bob");
    let acl = "u:daemon:r-x,u:4321:r--,g:4321:rw-,m::r-x,d:u:daemon:rwx";
    tool("setfacl", &["-m", acl, &folder]);
    fs::set_permissions(place.path("home/cache"), fs::Permissions::from_mode(0o1770)).unwrap();
    place.silt(&["backup", "home", &home]).exits(0);
    let long = place.silt(&["ls", "home@latest:/", "-l"]).exits(0).out;
    let modes: Vec<_> = long.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(modes[1..], ["drwxr-x---+", "drwxrwx--T"], "{long}");
    let listed = place.silt(&["ls", "home@latest:/", "--json"]).exits(0).messages();
    let acl = ["user::rwx", "user:daemon:r-x", "user:4321:r--", "group::r-x", "group:4321:rw-"];
    assert_eq!(
        listed[1]["acl"],
        serde_json::json!([&acl[..], &["mask::r-x", "other::---"]].concat())
    );
    assert_eq!(listed[1]["default_acl"][1], "user:daemon:rwx");
    let names = ["system.posix_acl_access", "system.posix_acl_default"];
    assert_eq!(listed[1]["xattrs"], serde_json::json!(names));
    assert!(listed[0]["acl"].is_null() && listed[0]["xattrs"].is_null());
    let shown = place.silt(&["ls", "home@latest:/", "--acl", "-R"]).exits(0).out;
    let mut getfacl = Command::new("getfacl");
    getfacl.args(["--recursive", "--physical", "--no-effective", "."]).current_dir(&home);
    let theirs = Run::of(getfacl.env("PATH", "/usr/bin:/bin")).exits(0).out;
    let blocks = |text: &str| -> Vec<String> {
        let mut blocks: Vec<_> = text.trim_end().split("\n\n").map(str::to_owned).collect();
        // The root.
        blocks.retain(|it| !it.starts_with("# file: .\n"));
        blocks.sort();
        blocks
    };
    assert_eq!(blocks(&shown), blocks(&theirs));
}

#[test]
fn setfacl_reads_back_what_is_listed_whatever_the_names_are() {
    let place = Place::new();
    let home = place.path("home");
    let names: [&[u8]; 5] =
        [b"back\\101slash", b"\x1b[31m", b"\xff\xfe", b"new\nline", b"b\xc3\xa4r"];
    for name in names {
        fs::create_dir_all(home.join(OsStr::from_bytes(name))).unwrap();
        let folder = home.join(OsStr::from_bytes(name));
        let mut command = Command::new("setfacl");
        Run::of(command.args(["-m", "u:4321:r-x"]).arg(folder)).exits(0);
    }
    place.silt(&["backup", "home", home.to_str().unwrap()]).exits(0);
    let listed = place.silt(&["ls", "home@latest:/", "--acl"]).exits(0).out;
    assert!(listed.bytes().all(|byte| byte == b'\n' || !byte.is_ascii_control()), "{listed:?}");
    place.write("acls", listed.as_bytes());
    for name in names {
        let mut command = Command::new("setfacl");
        Run::of(command.arg("-b").arg(home.join(OsStr::from_bytes(name)))).exits(0);
    }
    let restore = format!("--restore={}", place.text("acls"));
    Run::of(Command::new("setfacl").arg(restore).current_dir(&home)).exits(0);
    place.silt(&["backup", "home", home.to_str().unwrap()]).exits(0);
    let again = place.silt(&["ls", "home@latest:/", "--acl"]).exits(0).out;
    assert!(again == listed && again.matches("user:4321:r-x").count() == names.len(), "{again}");
}

#[test]
fn a_dry_run_lists_what_is_left_out_and_why() {
    let place = Place::new();
    let home = tree(&place);
    fs::write(place.path("home/bob/.nobackup"), b"").unwrap();
    let backup = ["backup", "home", &home, "--exclude", "*.tmp", "--exclude-caches"];
    let more = ["--exclude-if-present", ".nobackup", "--exclude-larger-than", "1MiB"];
    let backup = [&backup[..], &more].concat();
    let run = place.silt(&[&backup[..], &["--dry-run"]].concat()).exits(0);
    let told: Vec<_> = run.out.lines().filter(|it| it.starts_with("Would leave out")).collect();
    let expected = [
        ("alice/draft.tmp'", "it matches '*.tmp'"),
        ("alice/mail/inbox'", "it is larger than 1.0 MiB"),
        ("bob'", "it has '.nobackup'"),
        ("cache'", "CACHEDIR.TAG marks it as a cache"),
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (line, (path, why)) in told.iter().zip(expected) {
        assert!(line.contains(path) && line.ends_with(why), "{line}");
    }
    let run = place.silt(&[&backup[..], &["--dry-run", "--json"]].concat()).exits(0);
    let messages = run.messages();
    let left_out: Vec<_> = messages.iter().filter(|it| it["message_type"] == "left_out").collect();
    let of = |key: &str| left_out.iter().map(|it| it[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("reason"), ["pattern", "size", "marker", "cache"]);
    assert_eq!(of("content_only"), [false, false, true, true]);
    assert_eq!(
        (&left_out[0]["pattern"], &left_out[2]["marker"]),
        (&"*.tmp".into(), &".nobackup".into())
    );
    assert_eq!(left_out[0]["path"], format!("{home}/alice/draft.tmp"));
    assert_eq!(run.summary()["volumes"][0]["entries"]["left_out"], 4);
    // A real backup only counts them.
    let run = place.silt(&backup).exits(0);
    assert!(!run.out.contains("Would"), "{}", run.out);
    run.says("4 left out");
}

/// Waits until a process has opened a file of this name.
fn wait_for_file(process: &Child, name: &str) {
    let folder = format!("/proc/{}/fd", process.id());
    let is_open = || {
        let mut files = fs::read_dir(&folder).unwrap().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|path| path.ends_with(name)))
    };
    while !is_open() {
        std::thread::yield_now();
    }
}

#[test]
fn files_that_change_or_vanish_meanwhile_are_counted() {
    let place = Place::new();
    fs::create_dir_all(place.path("home")).unwrap();
    let busy = place.path("home/busy");
    fs::write(&busy, crate::kit::disk(7, 2)).unwrap();
    fs::write(place.path("home/gone"), b"gone").unwrap();
    let home = place.text("home");
    // At 1 MiB/s there is time for changes while the file is read, and while it is read again.
    let child = place.start(&["backup", "home", &home, "--limit-read", "1"]);
    wait_for_file(&child, "busy");
    fs::remove_file(place.path("home/gone")).unwrap();
    let file = fs::File::options().write(true).open(&busy).unwrap();
    let ended = AtomicBool::new(false);
    let run = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                file.write_at(b"changed", 0).unwrap();
            }
        });
        let run = finish(child);
        ended.store(true, Ordering::Relaxed);
        run
    });
    let counts = "1 file, 1 directory, 0 others, 2.0 MiB; 0 left out, 1 changed while read, \
                  1 vanished before read";
    run.exits(0).says(counts);
    place.silt(&["show", "home@latest"]).exits(0).says(counts);
    let shown = place.silt(&["show", "home@latest", "--json"]).exits(0).messages();
    let expected = serde_json::json!({
        "files": 1, "directories": 1, "others": 0, "unreadable": 0, "changed": 1, "left_out": 0,
        "vanished": 1,
    });
    assert_eq!(shown[0]["volumes"][0]["entries"], expected);
}
