//! Directories that are hard to back up: what may not be read, does not end, leads in circles, is
//! too deep or has odd names.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, openat};
use serde_json::Value;

use crate::kit::{Place, Run, can, tool};
use crate::tree_kit::{assert_same, deep_tree, set_xattr};

const NOBODY: u32 = 65_534;

/// A repository of a user who may not read everything. Root is one whom nothing is forbidden, and
/// runs the program as another.
struct Restricted {
    place: Place,
    program: PathBuf,
    is_root: bool,
}

impl Restricted {
    fn new() -> Self {
        let place = Place::new();
        let is_root = tool("id", &["-u"]) == "0";
        // Other users may have no access to where the program was built.
        let program = place.path("silt");
        if fs::hard_link(crate::PROGRAM, &program).is_err() {
            fs::copy(crate::PROGRAM, &program).unwrap();
        }
        fs::set_permissions(place.folder.path(), Permissions::from_mode(0o777)).unwrap();
        if is_root {
            for owned in ["repository", "state"] {
                fs::create_dir_all(place.path(owned)).unwrap();
                tool("chown", &["-R", &NOBODY.to_string(), &place.text(owned)]);
            }
        }
        Self { place, program, is_root }
    }

    fn silt(&self, args: &[&str]) -> Run {
        let like = self.place.command();
        let mut command = Command::new(&self.program);
        command.env_clear().envs(like.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.current_dir(self.place.folder.path()).args(args);
        if self.is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        Run::of(&mut command)
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Each has a mode of its own, so that one test cannot hide behind another.
#[test]
fn what_may_not_be_read_is_named_and_counted_and_the_rest_is_backed_up() {
    let restricted = Restricted::new();
    let home = restricted.place.path("home");
    for folder in ["closed", "listed", "open", "passed"] {
        fs::create_dir_all(home.join(folder)).unwrap();
        for file in ["one", "two"] {
            fs::write(home.join(folder).join(file), folder).unwrap();
        }
    }
    fs::write(home.join("secret"), vec![b's'; 70_000]).unwrap();
    fs::write(home.join("zz last"), b"last").unwrap();
    let modes = [("closed", 0), ("listed", 0o444), ("passed", 0o111), ("secret", 0)];
    // Lost are the content of the file, what is in two directories, and two entries of a third.
    let lost = [("closed", 1), ("listed", 2), ("passed", 1), ("secret", 1)];
    for (name, count) in lost {
        for (other, mode) in modes {
            let is_file = other == "secret";
            let usual = if is_file { 0o644 } else { 0o755 };
            set_mode(&home.join(other), if other == name { mode } else { usual });
        }
        let run = restricted.silt(&["backup", "home", "home", "--json"]).exits(3);
        assert_eq!(run.summary()["unreadable_entries"], count, "{name}: {}", run.err);
        assert!(run.printed().contains(&format!("home/{name}")), "{name}: {}", run.printed());
        restricted.silt(&["status", "home"]).says("incomplete");
        for whole in ["open/one", "zz last"] {
            let wanted = fs::read_to_string(home.join(whole)).unwrap();
            let path = format!("home@latest:/{whole}");
            assert_eq!(restricted.silt(&["cat", &path]).exits(0).out, wanted);
        }
    }
    modes.iter().for_each(|(name, _)| set_mode(&home.join(name), 0o755));
    let run = restricted.silt(&["backup", "home", "home", "--json"]).exits(0);
    assert_eq!(run.summary()["unreadable_entries"], 0);
    // Whoever reads the repository gets back what was lost before.
    restricted.silt(&["restore", "home@latest", "out"]).exits(0);
    for file in ["closed/one", "listed/two", "passed/one", "secret", "zz last"] {
        let read = |folder: &str| restricted.place.read(&format!("{folder}/{file}"));
        assert!(read("home") == read("out"), "{file}");
    }
    restricted.silt(&["check", "--read-data"]).exits(0);
}

/// Bytes that say where in the file they are.
fn stamped(start: u64, bytes: usize) -> Vec<u8> {
    (start / 8..).take(bytes / 8).flat_map(u64::to_le_bytes).collect()
}

/// Appends to a file until told to end, as fast as it can; from `most` on in small steps.
fn grow(path: &Path, step: usize, most: u64, ends: &AtomicBool) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    let mut size = 0;
    while !ends.load(Ordering::SeqCst) {
        let bytes = stamped(size, if size < most { step } else { 8 });
        file.write_all(&bytes).unwrap();
        size += bytes.len() as u64;
    }
}

/// Lets the writers end, also if the test fails.
struct EndOnDrop<'e>(&'e AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The reading of each is bounded by the size that it had, so it ends. What was read is a state of
/// a file that only grows.
#[test]
fn files_that_grow_without_end_end_in_the_backup() {
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("zz still"), b"still").unwrap();
    let growing = [("fast", 1 << 20, 1 << 27), ("slow", 64, 1 << 20)];
    growing.iter().for_each(|(name, ..)| drop(File::create(home.join(name)).unwrap()));
    let ends = AtomicBool::new(false);
    let codes = std::thread::scope(|scope| {
        let _end = EndOnDrop(&ends);
        for (name, step, most) in growing {
            let (path, ends) = (home.join(name), &ends);
            scope.spawn(move || grow(&path, step, most, ends));
        }
        while fs::metadata(home.join("fast")).unwrap().len() < 4 << 20 {
            std::thread::yield_now();
        }
        let codes = [(); 3].map(|()| place.silt(&["backup", "home", &place.text("home")]).code);
        let is_growing = || fs::metadata(home.join("fast")).unwrap().len();
        let before = is_growing();
        while is_growing() == before {
            std::thread::yield_now();
        }
        codes
    });
    assert_eq!(codes, [0; 3]);
    let listed = place.silt(&["ls", "home@latest:/", "--json"]).exits(0).messages();
    let state = |name: &str| {
        let found = listed.iter().find(|file| file["name"] == name).unwrap();
        found["state"].as_str().unwrap().to_owned()
    };
    assert_eq!((state("fast"), state("zz still")), ("changed".to_owned(), "whole".to_owned()));
    let shown = place.silt(&["snapshots", "home", "--json"]).exits(0).messages();
    for (number, snapshot) in shown.iter().enumerate() {
        let id = snapshot["id"].as_str().unwrap();
        place.silt(&["restore", &format!("{id}:/"), &format!("out{number}")]).exits(0);
        for (name, ..) in growing {
            let read = place.read(&format!("out{number}/{name}"));
            assert!(read == stamped(0, read.len()), "{name} of {id} is none of its states");
        }
        assert!(place.read(&format!("out{number}/fast")).len() >= 4 << 20);
        assert_eq!(place.read(&format!("out{number}/zz still")), b"still");
    }
    place.silt(&["check", "--read-data"]).exits(0);
}

/// Mounts below a folder, which are undone at the end whatever happens.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        let undone = Command::new("umount").args(["-R", "-l"]).arg(&self.0).status();
        assert!(undone.unwrap().success() || std::thread::panicking());
    }
}

/// The kernel shows a directory that is mounted into itself once more in itself; with shared mounts
/// more than once.
#[test]
fn directories_that_are_mounted_into_themselves_end() {
    if !can("tmpfs") || !can("rsync") {
        return;
    }
    let place = Place::new();
    let home = place.text("home");
    fs::create_dir(place.path("home")).unwrap();
    tool("mount", &["-t", "tmpfs", "-o", "size=16m", "tmpfs", &home]);
    let mounts = Mounts(place.path("home"));
    tool("mount", &["--make-shared", &home]);
    fs::create_dir_all(place.path("home/inner/loop")).unwrap();
    fs::create_dir_all(place.path("home/inner/self")).unwrap();
    fs::write(place.path("home/file"), b"content").unwrap();
    fs::hard_link(place.path("home/file"), place.path("home/zz linked")).unwrap();
    tool("mount", &["--bind", &home, &place.text("home/inner/loop")]);
    tool("mount", &["--rbind", &place.text("home/inner"), &place.text("home/inner/self")]);

    place.silt(&["backup", "home", &home]).exits(0);
    let list = || place.silt(&["ls", "home@latest:/", "-R"]).exits(0).out;
    let listed = list();
    for path in ["inner/loop/file", "inner/loop/inner/loop", "inner/self/loop/file"] {
        assert!(listed.contains(path), "{path} in {listed}");
    }
    let again = place.silt(&["backup", "home", &home, "--json"]).exits(0).summary();
    assert_eq!(again["unreadable_entries"], 0);
    assert_eq!(list(), listed, "the walk is the same");
    place.silt(&["restore", "home@latest:/", "out"]).exits(0);
    // It takes the names behind the mounts for further hard links, which they are not.
    let (from, to) = (format!("{home}/"), format!("{}/", place.text("out")));
    let kinds = ["-aAXSn", "--checksum", "--itemize-changes", "--delete", &from, &to];
    assert_eq!(tool("rsync", &kinds), "");

    place.silt(&["backup", "home", &home, "--one-file-system"]).exits(0);
    let listed = list();
    assert!(listed.contains("inner/loop") && !listed.contains("loop/file"), "{listed}");
    place.silt(&["check", "--read-data"]).exits(0);
    drop(mounts);
}

/// What is at the end of nested directories of one name, and their modes.
fn deepest(root: &Path, name: &str, depth: usize) -> (Vec<u32>, Vec<u8>) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut directory = File::open(root).unwrap();
    let mut modes = Vec::new();
    for _ in 0..depth {
        let opened = openat(&directory, name, flags | OFlags::DIRECTORY, Mode::empty());
        directory = File::from(opened.unwrap());
        modes.push(directory.metadata().unwrap().mode());
    }
    let file = File::from(openat(&directory, "deepest", flags, Mode::empty()).unwrap());
    let read = std::io::read_to_string(file).unwrap();
    (modes, read.into_bytes())
}

/// Every entry below a folder as `find` sees it, which goes down step by step, too.
fn found_below(root: &str) -> String {
    tool("find", &[root, "-printf", "%P %y %m %n %s %U:%G %T@\n"])
}

#[test]
fn trees_that_are_deeper_than_paths_can_be_come_back() {
    let place = Place::new();
    let home = place.path("home");
    let (long, short) = ("a long name ".repeat(20), "d");
    for (folder, name, depth) in [("wide", &*long, 30), ("many", short, 2200)] {
        fs::create_dir_all(home.join(folder)).unwrap();
        deep_tree(&home.join(folder), name, depth);
    }
    fs::write(home.join("zz after"), b"after").unwrap();
    place.silt(&["backup", "home", &place.text("home")]).exits(0);
    let again = place.silt(&["backup", "home", &place.text("home"), "--json"]).exits(0).summary();
    assert_eq!(again["unreadable_entries"], 0);
    place.silt(&["check", "--read-data"]).exits(0).says("No damage found");

    let listed = place.silt(&["ls", "home@latest:/", "-R", "--json"]).exits(0).messages();
    assert_eq!(listed.len(), 2 + 30 + 1 + 2200 + 1 + 1);
    let path = format!("/wide/{}deepest", format!("{long}/").repeat(30));
    assert!(path.len() > 4096 && listed.iter().any(|file| path[1..] == file["name"]));
    assert_eq!(place.silt(&["cat", &format!("home@latest:{path}")]).exits(0).out, "found");
    place.silt(&["find", "home@latest:/", "--name", "deepest"]).exits(0).says(&path);

    place.silt(&["restore", "home@latest:/", "out"]).exits(0);
    for (folder, name, depth) in [("wide", &*long, 30), ("many", short, 2200)] {
        let restored = deepest(&place.path("out").join(folder), name, depth);
        assert_eq!(restored.1, b"found");
        assert!(restored == deepest(&home.join(folder), name, depth));
    }
    assert_eq!(found_below(&place.text("home")), found_below(&place.text("out")));
    // Once more in place, over what is there.
    tool("rm", &["-rf", &place.text("out/many/d/d")]);
    place.silt(&["restore", "home@latest:/", "out", "--in-place", "--delete"]).exits(0);
    assert_eq!(found_below(&place.text("home")), found_below(&place.text("out")));
    place.silt(&["dump", "home@latest:/wide", "-o", "wide.tar"]).exits(0);
    assert!(tool("tar", &["-tf", &place.text("wide.tar")]).contains(&path[6..]));
    ["home", "out"].iter().for_each(|folder| drop(tool("rm", &["-rf", &place.text(folder)])));
}

/// A file system in a file, mounted.
fn mounted_ext4(place: &Place, options: &str) -> Mounts {
    let (image, point) = (place.text("image"), place.text("mounted"));
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-O", options, &image]);
    fs::create_dir(&point).unwrap();
    tool("mount", &["-o", "loop", &image, &point]);
    Mounts(place.path("mounted"))
}

/// The largest values that Linux has, more of them than a page of a directory holds.
#[test]
fn attributes_of_64_kib_come_back_where_the_file_system_takes_them() {
    if !can("loop") {
        return;
    }
    let place = Place::new();
    let mounts = mounted_ext4(&place, "ea_inode");
    let home = place.path("mounted/home");
    fs::create_dir_all(home.join("folder")).unwrap();
    for (name, count) in [("one", 1), ("many", 15), ("folder", 4), ("folder/two", 2)] {
        let path = home.join(name);
        if !path.exists() {
            fs::write(&path, name).unwrap();
        }
        for number in 0..count {
            let value: Vec<u8> = stamped(number << 20, 64 << 10);
            assert!(set_xattr(&path, &format!("user.large{number:02}"), &value), "{name}");
        }
    }
    place.silt(&["backup", "home", home.to_str().unwrap()]).exits(0);
    let back = place.text("mounted/back");
    place.silt(&["restore", "home@latest:/", &back]).exits(0);
    assert_same(&home, Path::new(&back));
    // A file system that takes only small ones gets everything else, and what it lacks is named.
    if !set_xattr(place.folder.path(), "user.probe", &vec![1; 64 << 10]) {
        let run = place.silt(&["restore", "home@latest:/", "small", "--json"]);
        assert!(run.code == 0 || run.code == 1, "{}", run.err);
        assert!(run.err.contains("user.large00") || run.summary()["xattrs_not_set"] != 0);
        assert_eq!(place.read("small/folder/two"), b"folder/two");
    }
    place.silt(&["check", "--read-data"]).exits(0);
    drop(mounts);
}

#[test]
fn names_are_bytes_in_every_command() {
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir(&home).unwrap();
    let bytes = [b"\xff\xfe".as_slice(), &[b'x'; 253]].concat();
    let names: [&[u8]; 6] =
        [b"new\nline", b"\xff \x80", b"tab\tand \x1b[31m", b"-rf", b"a:b@c", &bytes];
    for name in names {
        fs::write(home.join(OsStr::from_bytes(name)), name).unwrap();
        let folder = home.join("folders").join(OsStr::from_bytes(name));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("inside"), name).unwrap();
    }
    place.silt(&["backup", "home", &place.text("home")]).exits(0);
    place.silt(&["restore", "home@latest:/", "out"]).exits(0);
    assert_same(&home, &place.path("out"));

    let listed = place.silt(&["ls", "home@latest:/", "--json"]).exits(0).messages();
    let exact = |file: &Value| match file["name_hex"].as_str() {
        Some(hex) => (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect(),
        None => file["name"].as_str().unwrap().as_bytes().to_vec(),
    };
    let found: Vec<Vec<u8>> = listed.iter().map(exact).collect();
    for name in names {
        assert!(found.iter().any(|found| found == name), "{}", name.escape_ascii());
    }
    for name in ["new\nline", "tab\tand \x1b[31m", "-rf", "a:b@c"] {
        let read = place.silt(&["cat", &format!("home@latest:/{name}")]).exits(0);
        assert_eq!(read.out.as_bytes(), name.as_bytes());
        place.silt(&["versions", &format!("home:/{name}")]).exits(0);
    }
    // One that is no text, by a pattern.
    place.silt(&["restore", "home@latest:/", "one", "--include", "/? ?"]).exits(0);
    let restored: Vec<_> = fs::read_dir(place.path("one")).unwrap().collect();
    assert_eq!(restored.len(), 1);
    assert_eq!(fs::read(place.path("one").join(OsStr::from_bytes(names[1]))).unwrap(), names[1]);

    // What is removed is named, in bytes where it is no text.
    let shown = place.silt(&["show", "home@latest", "--json"]).exits(0).messages();
    let before = shown[0]["id"].as_str().unwrap();
    for name in names {
        fs::remove_file(home.join(OsStr::from_bytes(name))).unwrap();
    }
    place.silt(&["backup", "home", &place.text("home")]).exits(0);
    let changes = place.silt(&["diff", before, "home@latest", "--json"]).exits(0).messages();
    let removed = |name: &[u8]| {
        let hex = name.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        changes.iter().any(|change| {
            let text = change["path"].as_str().is_some_and(|path| path.as_bytes()[1..] == *name);
            change["change"] == "removed" && (text || change["path_hex"] == hex)
        })
    };
    for name in names {
        assert!(removed(name), "{} in {changes:?}", name.escape_ascii());
    }
    place.silt(&["check", "--read-data"]).exits(0);
}

/// Whoever makes a file must not be able to write to the terminal of the one who lists it.
#[test]
fn no_name_gives_orders_to_a_terminal() {
    let place = Place::new();
    let home = place.path("home");
    // An escape sequence, its short form, a line that looks like one of the program, and a mark
    // that turns the direction of text.
    let names =
        ["a\x1b]0;title\x07", "b\u{9b}31m", "c\nsilt: all is well", "d\u{202e}txt", "e\x7f\r"];
    for name in names {
        fs::create_dir_all(home.join(name)).unwrap();
        fs::write(home.join(name).join(name), b"1").unwrap();
        std::os::unix::fs::symlink(name, home.join(name).join("link")).unwrap();
    }
    let silt = |args: &[&str]| {
        let run = place.silt(args);
        let is_order =
            |c: &char| (c.is_control() && *c != '\n') || matches!(c, '\u{202a}'..='\u{202e}');
        let said = [&run.out[..], &run.err].concat();
        assert_eq!(said.chars().find(is_order), None, "{args:?}: {said:?}");
        assert!(said.lines().all(|line| line != "silt: all is well"), "{args:?}: {said:?}");
        run
    };
    let path = place.text("home");
    let exclude = ["--exclude", "b*", "--exclude", "*\n*", "--dry-run"];
    silt(&[&["backup", "home", &path][..], &exclude].concat()).exits(0).says("Would leave out");
    silt(&["backup", "home", &path]).exits(0);
    for options in [&["-R"][..], &["-R", "-l"], &["-R", "--acl"]] {
        silt(&[&["ls", "home@latest:/"], options].concat()).exits(0).says("title");
    }
    silt(&["find", "home@latest"]).exits(0).says("title");
    silt(&["find", "home", "-l"]).exits(0).says("title");
    for name in names {
        silt(&["versions", &format!("home:/{name}/{name}")]).exits(0);
        silt(&["cat", &format!("home@latest:/{name}")]).exits(1).says("is a directory");
        silt(&["cat", &format!("home@latest:/{name}/{name}/x")]).exits(1);
        silt(&["restore", &format!("home@latest:/{name}"), "out"]);
        // It is in the way.
        silt(&["restore", "home@latest:/", "out"]);
        fs::write(home.join(name).join(name), b"22").unwrap();
    }
    silt(&["restore", "home@latest:/", "all"]).exits(0);
    silt(&["restore", "home@latest:/", "all"]).exits(13).says("all is well");
    let before = place.silt(&["show", "home@latest", "--json"]).exits(0).messages();
    let before = before[0]["id"].as_str().unwrap().to_owned();
    silt(&["backup", "home", &path]).exits(0);
    silt(&["diff", &before, "home@latest"]).exits(0).says("title");
}

/// The directory that is backed up, and the one that is restored to, may have such names, too.
#[test]
fn roots_and_targets_are_bytes() {
    let place = Place::new();
    let [source, target] = [&b"home\xff\n"[..], b"out\xfe"].map(OsStr::from_bytes);
    fs::create_dir(place.path("").join(source)).unwrap();
    fs::write(place.path("").join(source).join("file"), b"content").unwrap();
    let run = |args: &[&OsStr]| Run::of(place.command().args(args)).exits(0);
    let os = OsStr::new;
    let volume = OsString::from_vec([b"home=", source.as_bytes()].concat());
    run(&[os("backup"), os("home"), &volume]);
    run(&[os("restore"), os("home@latest:/"), target]);
    assert_same(&place.path("").join(source), &place.path("").join(target));
}
