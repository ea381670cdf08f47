//! Awkward directory trees: making them, copying them by walking and recreating them, and comparing
//! them with other programs. The tests of other crates include this file by its path; it needs
//! `rustix`, `tempfile` and `silt-tree`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FileType, IFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags,
    ioctl_setflags, lsetxattr, makedev, mkdirat, mknodat, openat, renameat, utimensat,
};
use silt_format::tree::{DeviceNumber, EntryKind, Metadata, Timestamp};
use silt_tree::{FileStep, Found, MakeOptions, Maker, OpenFile, Report, Rules, Step, Walk};

/// Returns whether the test runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns whether the test runs as root. If not, prints that the test is skipped.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn can_act_as_root() -> bool {
    if !is_root() {
        println!("SKIPPED: this test takes root");
    }
    is_root()
}

/// Returns whether another program is installed. Fails if CI requires it and it is missing.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn has(program: &str) -> bool {
    let able = Command::new("sh")
        .args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success());
    #[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    assert!(able || !required.split_whitespace().any(|word| word == program), "{program} missing");
    if !able {
        println!("SKIPPED: this comparison needs {program}; run scripts/setup.sh");
    }
    able
}

/// Runs another program, which must succeed, and returns its output.
#[track_caller]
pub fn tool(program: &str, args: &[&OsStr], folder: &Path) -> Vec<u8> {
    let path = "/usr/bin:/bin:/usr/sbin:/sbin";
    let output = Command::new(program).args(args).current_dir(folder).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup.sh"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
    output.stdout
}

/// A temporary folder that is removed at the end, even with immutable files and long paths in it.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new() -> Self {
        Self::in_folder(&std::env::temp_dir())
    }

    pub fn in_folder(folder: &Path) -> Self {
        let folder = tempfile::Builder::new().prefix("silt-tree-").tempdir_in(folder).unwrap();
        Self { path: folder.keep() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a new folder in it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut maker = Maker::open(self.path.parent().unwrap(), MakeOptions::default()).unwrap();
        let is_removed = maker.remove(self.path.file_name().unwrap().as_bytes());
        assert!(is_removed || std::thread::panicking(), "{:?}", maker.finish());
    }
}

/// Sets the modification time of a name.
pub fn set_modified(path: &Path, seconds: i64, nanoseconds: i64) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Sets an extended attribute; returns whether the file system takes it.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> bool {
    lsetxattr(path, name, value, XattrFlags::empty()).is_ok()
}

/// Sets inode flags. Returns whether the file system supports them.
pub fn set_flags(path: &Path, flags: IFlags) -> bool {
    ioctl_setflags(File::open(path).unwrap(), flags).is_ok()
}

/// A default ACL as the kernel stores it: owner rwx, user 1234 r-x, group r-x, mask r-x, other ---.
fn acl() -> Vec<u8> {
    let mut acl = 2_u32.to_le_bytes().to_vec();
    let entries =
        [(1, 7, u32::MAX), (2, 5, 1234), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    for (tag, permissions, id) in entries {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(permissions));
        acl.extend(u32::to_le_bytes(id));
    }
    acl
}

/// The capability `net_raw` as the kernel stores it, revision 2, permitted and effective.
pub fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Makes a tree with entries of every type and every oddity that this user and file system permit.
/// Returns the names of missing oddities.
pub fn awkward_tree(root: &Path) -> Vec<&'static str> {
    let mut missing = Vec::new();
    fs::create_dir_all(root).unwrap();
    add_names(root);
    add_contents(root);
    add_links(root);
    add_attributes(root, &mut missing);
    add_specials(root, &mut missing);
    // Owners and modes.
    // Only root can copy a file that its owner cannot read.
    let closed = if is_root() { 0o000 } else { 0o444 };
    let modes = [closed, 0o644, 0o4755, 0o2755, 0o6711, 0o1777, 0o400];
    for mode in modes {
        let path = root.join(format!("mode-{mode:o}"));
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        if is_root() {
            chown(&path, Some(1000 + mode), Some(7)).unwrap();
        }
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let sticky = root.join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, Permissions::from_mode(0o3770)).unwrap();
    // Times, those of directories last.
    for (name, seconds) in [("1900", -2_208_988_800), ("2200", 7_258_118_400), ("1970", 0)] {
        let path = root.join(name);
        fs::write(&path, name).unwrap();
        set_modified(&path, seconds, 123_456_789);
        let folder = root.join(format!("folder of {name}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("in it"), name).unwrap();
        set_modified(&folder, seconds + 1, 987_654_321);
    }
    set_modified(root, 1_000_000_000, 5);
    missing
}

fn add_names(root: &Path) {
    let long = "n".repeat(255);
    let names: [&[u8]; 9] = [
        long.as_bytes(),
        b"\xff\xfe not utf-8 \x80",
        b"new\nline",
        b"-rf *",
        b" ",
        b"...",
        b"\\back\"quote'",
        "\u{fc}n\u{ef}c\u{f6}de \u{1f980}".as_bytes(),
        b"\x01\x1b[31m",
    ];
    for name in names {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
        let folder = root.join("names").join(OsStr::from_bytes(name));
        fs::create_dir_all(folder.join("in it")).unwrap();
    }
    // In byte order, "a-b" comes before "a/x".
    for name in ["a", "a-b", "a.b", "a0"] {
        fs::create_dir_all(root.join("order").join(name).join("x")).unwrap();
        fs::write(root.join("order").join(format!("{name}!")), b"").unwrap();
    }
    fs::create_dir(root.join("empty folder")).unwrap();
}

fn add_contents(root: &Path) {
    let data: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(root.join("large"), &data).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    let files: [(&str, u64, &[u64]); 5] = [
        ("hole at both ends", 10 << 20, &[4 << 20]),
        ("hole at the start", (6 << 20) + 4096, &[6 << 20]),
        ("hole at the end", (6 << 20) + 1, &[0]),
        ("only a hole", 40 << 20, &[]),
        ("many holes", 8 << 20, &[0, 1 << 20, 3 << 20, 7 << 20]),
    ];
    for (name, size, data_at) in files {
        let file = File::create(root.join(name)).unwrap();
        file.set_len(size).unwrap();
        for offset in data_at {
            file.write_all_at(&data[..4096], *offset).unwrap();
        }
    }
}

fn add_links(root: &Path) {
    fs::create_dir_all(root.join("links/below")).unwrap();
    fs::write(root.join("links/first"), b"of four").unwrap();
    for name in ["links/second", "links/below/third", "a fourth"] {
        fs::hard_link(root.join("links/first"), root.join(name)).unwrap();
    }
    symlink("first", root.join("links/soft")).unwrap();
    fs::hard_link(root.join("links/soft"), root.join("links/below/soft")).unwrap();
    symlink("loop", root.join("links/loop")).unwrap();
    symlink("../../..", root.join("links/up")).unwrap();
    symlink("/etc/passwd", root.join("links/absolute")).unwrap();
    symlink("t".repeat(4000), root.join("links/long")).unwrap();
    symlink(OsStr::from_bytes(b"\xff\n"), root.join("links/bytes")).unwrap();
    for at in 0..40 {
        symlink(format!("chain-{}", at + 1), root.join(format!("links/chain-{at}"))).unwrap();
    }
    if is_root() {
        lchown(root.join("links/absolute"), Some(1001), Some(1002)).unwrap();
    }
    set_modified(&root.join("links/absolute"), 1_234_567_890, 5);
}

fn add_attributes(root: &Path, missing: &mut Vec<&'static str>) {
    let path = root.join("attributes");
    fs::write(&path, b"x").unwrap();
    let mut large = vec![7_u8; 64 << 10];
    while !large.is_empty() && !set_xattr(&path, "user.large", &large) {
        large.truncate(large.len() / 2);
    }
    if large.is_empty() {
        missing.push("user attributes");
    }
    let folder = root.join("default acl");
    fs::create_dir(&folder).unwrap();
    set_xattr(&folder, "user.of a folder", b"\0\x01\xff");
    fs::write(folder.join("older than the acl"), b"").unwrap();
    if !set_xattr(&folder, "system.posix_acl_default", &acl()) {
        missing.push("acl");
    }
    fs::write(folder.join("inherits"), b"").unwrap();
    fs::create_dir(folder.join("inherits too")).unwrap();
    set_xattr(&root.join("attributes"), "system.posix_acl_access", &acl());
    if is_root() {
        let path = root.join("capability");
        fs::write(&path, b"\x7fELF").unwrap();
        chown(&path, Some(33), Some(33)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        if !set_xattr(&path, "security.capability", &capability()) {
            missing.push("capability");
        }
        set_xattr(&path, "trusted.of root", b"1");
        set_xattr(&root.join("links/soft"), "trusted.of a link", b"2");
    } else {
        missing.push("capability");
    }
}

fn add_specials(root: &Path, missing: &mut Vec<&'static str>) {
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, root.join("pipe"), FileType::Fifo, mode, 0).unwrap();
    set_modified(&root.join("pipe"), 1_111_111_111, 1);
    // The path of a socket has at most 108 bytes.
    let socket = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(socket.path().join("s")).unwrap());
    if renameat(CWD, socket.path().join("s"), CWD, root.join("socket")).is_err() {
        mknodat(CWD, root.join("socket"), FileType::Socket, mode, 0).unwrap();
    }
    let (char_device, block_device) = (FileType::CharacterDevice, FileType::BlockDevice);
    let is_made = mknodat(CWD, root.join("null"), char_device, mode, makedev(1, 3)).is_ok()
        && mknodat(CWD, root.join("disk"), block_device, mode, makedev(259, 1_048_575)).is_ok();
    if !is_made {
        missing.push("devices");
    }
    let flags = [
        ("immutable", IFlags::IMMUTABLE),
        ("append only", IFlags::APPEND),
        ("no dump", IFlags::NODUMP | IFlags::NOATIME),
    ];
    for (name, flag) in flags {
        let folder = root.join(format!("{name} folder"));
        fs::create_dir_all(folder.join("below")).unwrap();
        fs::write(folder.join("file"), name).unwrap();
        fs::hard_link(folder.join("file"), root.join(format!("{name} link"))).unwrap();
        set_modified(&folder, 1_300_000_000, 3);
        if !set_flags(&folder.join("file"), flag) || !set_flags(&folder, flag) {
            missing.push("flags");
        }
    }
}

/// Makes nested directories.
pub fn deep_tree(root: &Path, name: &str, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&directory, name, Mode::RWXU).unwrap();
        directory = openat(&directory, name, flags, Mode::empty()).unwrap();
    }
    let write = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(openat(&directory, "deepest", write, Mode::RUSR).unwrap());
    file.write_all_at(b"found", 0).unwrap();
}

/// Formats a step of a walk, to compare steps.
pub fn step_text(walk: &mut Walk, step: Step) -> String {
    let mut described = |kind: &str, mut found: Found| {
        let is_there = walk.complete(&mut found);
        let path = String::from_utf8_lossy(&walk.path_of(&found)).escape_debug().to_string();
        format!("{kind} {path} {is_there} {:?} {:?}", found.metadata, found.problem)
    };
    match step {
        Step::Enter(found) => described("enter", found),
        Step::Entry(found) => described("entry", found),
        other => format!("{other:?}"),
    }
}

/// Walks a tree to its end, and collects the results of `visit`.
pub fn walk_all<T>(
    root: &Path,
    rules: &Rules,
    mut visit: impl FnMut(&mut Walk, Step) -> T,
) -> Vec<T> {
    let mut walk = Walk::open(root, rules).unwrap();
    let mut all = Vec::new();
    while let Some(step) = walk.next().unwrap() {
        all.push(visit(&mut walk, step));
    }
    all
}

/// Copies the content of a file with its holes. Stops if the file became shorter.
fn copy_content(from: &OpenFile, size: u64, mut write: impl FnMut(u64, &[u8])) {
    let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
    while let Some(range) = from.next_data(at, size).unwrap() {
        at = range.start;
        while at < range.end {
            let length = usize::try_from(range.end - at).unwrap().min(buffer.len());
            let read = from.read_at(at, &mut buffer[..length]).unwrap();
            if read == 0 {
                return;
            }
            write(at, &buffer[..read]);
            at += read as u64;
        }
    }
}

/// Returns whether two files have the same content.
fn is_same_content(a: &OpenFile, b: &OpenFile, size: u64) -> bool {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    (0..size).step_by(1 << 16).all(|at| {
        let read = (a.read_at(at, &mut left).unwrap(), b.read_at(at, &mut right).unwrap());
        read.0 == read.1 && left[..read.0] == right[..read.1]
    })
}

/// Walks a tree and recreates it elsewhere.
pub fn copy(from: &Path, to: &Path, options: MakeOptions) -> Report {
    let removes_others = options.lists_others;
    let mut walk = Walk::open(from, &Rules::default()).unwrap();
    let mut maker = Maker::open(to, options).unwrap();
    let mut firsts: HashMap<(u16, u64), Vec<Vec<u8>>> = HashMap::new();
    let (mut path, mut skipped) = (Vec::new(), 0);
    let leave = |maker: &mut Maker| {
        let mut others = maker.others().unwrap();
        while let Some(name) = others.next_name().unwrap() {
            assert!(removes_others && maker.remove(&name));
        }
    };
    while let Some(step) = walk.next().unwrap() {
        match step {
            Step::Enter(_) if skipped > 0 => skipped += 1,
            Step::Leave(_) if skipped > 0 => skipped -= 1,
            _ if skipped > 0 => {}
            Step::Enter(mut found) => {
                walk.complete(&mut found);
                if found.name.is_empty() {
                    maker.root(&found.metadata);
                } else if maker.enter(&found.name, &found.metadata) {
                    path.push(found.name);
                } else {
                    skipped = 1;
                }
            }
            Step::Leave(_) => {
                leave(&mut maker);
                maker.leave();
                path.pop();
            }
            Step::Entry(mut found) => {
                if walk.complete(&mut found) {
                    let here = [&path[..], std::slice::from_ref(&found.name)].concat();
                    copy_entry(&mut walk, &mut maker, &found, &mut firsts, here);
                }
            }
            Step::Excluded(..) => {}
            Step::Failed(name, error) => panic!("{name:?}: {error}"),
        }
    }
    maker.finish().unwrap()
}

fn copy_entry(
    walk: &mut Walk,
    maker: &mut Maker,
    found: &Found,
    firsts: &mut HashMap<(u16, u64), Vec<Vec<u8>>>,
    path: Vec<Vec<u8>>,
) {
    let (name, metadata): (&[u8], &Metadata) = (&found.name, &found.metadata);
    if metadata.links > 1 {
        if let Some(first) = firsts.get(&(metadata.file_system, metadata.inode)) {
            maker.link_to(name, metadata, first);
            return;
        }
        firsts.insert((metadata.file_system, metadata.inode), path);
    }
    if metadata.kind != EntryKind::File {
        maker.other(name, metadata);
        return;
    }
    let Ok(source) = walk.open_file(found) else { return };
    let step = match maker.file(name, metadata) {
        FileStep::Present(present) => {
            let is_same = is_same_content(&source, present.file(), metadata.size);
            if present.may_stay() && is_same && present.is_current() {
                maker.keep(present);
                return;
            }
            maker.renew(present).map(|(new, _)| new)
        }
        FileStep::New(new) => Some(new),
        FileStep::Failed => None,
    };
    if let Some(new) = step {
        copy_content(&source, metadata.size, |at, bytes| new.write_at(at, bytes).unwrap());
        maker.complete(new);
    }
}

/// Returns the paths below a folder, as `find` lists them.
fn paths(root: &Path) -> Vec<OsString> {
    let listed = tool("find", &[".".as_ref(), "-print0".as_ref()], root);
    let mut paths: Vec<OsString> = listed
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| OsString::from_vec(path.to_vec()))
        .collect();
    paths.sort();
    paths
}

/// Returns the groups of hard links. The other names of a file may be outside of the tree.
fn link_groups(root: &Path, paths: &[OsString]) -> BTreeSet<Vec<OsString>> {
    let mut groups: BTreeMap<(u64, u64), Vec<OsString>> = BTreeMap::new();
    for path in paths {
        let metadata = root.join(path).symlink_metadata().unwrap();
        if metadata.nlink() > 1 && !metadata.is_dir() {
            groups.entry((metadata.dev(), metadata.ino())).or_default().push(path.clone());
        }
    }
    groups.into_values().filter(|names| names.len() > 1).collect()
}

/// Returns the ranges of a file that are data.
fn data_ranges(path: &Path) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let file = File::open(path).unwrap();
    let (mut ranges, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        ranges.push((start, at));
    }
    ranges
}

/// Compares two trees by rsync, getfattr, getfacl and lsattr, and by hard links and holes.
#[track_caller]
pub fn assert_same(a: &Path, b: &Path) {
    let all = paths(a);
    assert_eq!(all, paths(b), "names");
    if has("rsync") {
        let (a, b) = (a.join(""), b.join(""));
        let args = ["-aHAXSn", "--checksum", "--itemize-changes", "--delete"].map(OsStr::new);
        let printed = tool("rsync", &[&args[..], &[a.as_ref(), b.as_ref()]].concat(), &a);
        assert_eq!(String::from_utf8_lossy(&printed), "", "rsync");
    }
    for (program, args) in [
        ("getfattr", &["-R", "-h", "-d", "-m-", "-e", "hex", "."][..]),
        ("getfacl", &["-R", "-P", "-n", "-p", "."]),
        ("lsattr", &["-R", "-a", "."]),
    ] {
        if has(program) {
            let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
            let sorted = |root: &Path| {
                let printed = tool_lenient(program, &args, root);
                let mut blocks: Vec<String> = printed.split("\n\n").map(str::to_owned).collect();
                blocks.sort();
                blocks
            };
            assert_eq!(sorted(a), sorted(b), "{program}");
        }
    }
    assert_eq!(link_groups(a, &all), link_groups(b, &all), "hard links");
    for path in &all {
        let (left, right) = (a.join(path), b.join(path));
        if left.symlink_metadata().unwrap().is_file() && File::open(&left).is_ok() {
            assert_eq!(data_ranges(&left), data_ranges(&right), "holes of {}", path.display());
        }
    }
}

/// Returns the output of another program. Ignores its exit status, as lsattr fails for pipes, and
/// leaves out the flags of ext4 that only tell how something is stored: in extents, with an index.
fn tool_lenient(program: &str, args: &[&OsStr], folder: &Path) -> String {
    let path = "/usr/bin:/bin:/usr/sbin:/sbin";
    let output = Command::new(program).args(args).current_dir(folder).env("PATH", path).output();
    let printed = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    assert!(!printed.is_empty() || program == "getfattr", "{program} printed nothing");
    if program != "lsattr" {
        return printed;
    }
    let line = |line: &str| match line.split_once(' ') {
        Some((flags, rest)) if flags.len() > 10 => {
            format!("{} {rest}", flags.replace(['e', 'I'], "-"))
        }
        _ => line.to_owned(),
    };
    let mut lines: Vec<String> = printed.lines().map(line).collect();
    lines.sort();
    lines.join("\n")
}

/// Returns the metadata of a small file of this user.
pub fn metadata(kind: EntryKind) -> Metadata {
    Metadata {
        kind,
        mode: 0o700,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        modified: Timestamp { seconds: 77, nanoseconds: 0 },
        changed: Timestamp { seconds: 77, nanoseconds: 0 },
        size: 0,
        inode: 1,
        file_system: 0,
        links: 1,
        target: Vec::new(),
        device: DeviceNumber::default(),
        flags: 0,
        xattrs: Vec::new(),
    }
}

/// Runs an ignored test of this binary as an unprivileged user. It must pass.
#[track_caller]
pub fn as_nobody(test: &str) {
    use std::os::unix::process::CommandExt as _;
    let binary = std::env::current_exe().unwrap();
    // Other users may have no access to the folder of the binary.
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o777)).unwrap();
    let copied = scratch.path("tests");
    fs::copy(binary, &copied).unwrap();
    let output = Command::new(&copied)
        .args(["--exact", test, "--ignored"])
        .env("TMPDIR", scratch.path(""))
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}
