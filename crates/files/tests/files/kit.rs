//! Making images, and comparing what is copied out of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use silt_files::{Budget, CopyOptions, CopyReport, Ext, Layout, Region, copy_out};
use siltstone::{Result, SystemEnv};

/// Runs another program, which must succeed.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) -> String {
    let path = "/usr/bin:/bin:/usr/sbin:/sbin";
    let output = Command::new(program).args(args).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup.sh"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether loop devices can be mounted. Where CI requires it, they must.
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
pub fn can_mount() -> bool {
    let able = tool("id", &["-u"]) == "0" && Path::new("/dev/loop-control").exists();
    #[expect(clippy::disallowed_methods, reason = "CI says what may not be skipped")]
    let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
    assert!(able || !required.split_whitespace().any(|word| word == "loop"), "loop is required");
    if !able {
        println!("SKIPPED: this test mounts loop devices, which takes root");
    }
    able
}

/// A disk in a file or in memory.
pub fn region(disk: Arc<dyn silt_files::Disk>) -> Region {
    let budget = Budget::of_disk(disk.bytes(), &SystemEnv::context());
    Region::whole(disk, Arc::new(budget))
}

/// The image in a file.
pub fn image(path: &Path) -> Region {
    region(Arc::new(fs::File::open(path).unwrap()))
}

/// The file system that fills an image.
pub fn open(path: &Path) -> Ext {
    Ext::open(image(path)).unwrap()
}

/// Copies everything out of a file system into a folder.
pub fn copy_all(ext: &Ext, target: &Path, options: CopyOptions) -> Result<CopyReport> {
    copy_out(ext, &ext.root()?, None, target, options, &mut |_| {})
}

/// Copies the file system in a region that is all of a disk, or its only partition.
pub fn layout(path: &Path) -> Layout {
    Layout::read(&image(path)).unwrap()
}

/// Files of many kinds: long names, holes, links, odd modes and times.
pub fn make_tree(folder: &Path, files: usize) {
    fs::create_dir_all(folder.join("deep/er/still")).unwrap();
    for number in 0..files {
        let name = match number % 4 {
            0 => format!("file-{number}"),
            1 => format!("deep/{}-{number}", "long".repeat(60)),
            2 => format!("deep/er/ünïcode {number}\n"),
            _ => format!("deep/er/still/.{number}"),
        };
        let path = folder.join(name);
        let length = number * 37 % 20_000;
        let bytes: Vec<u8> =
            (0..length).map(|at| (at * 31 + number).to_le_bytes()[0] | 1).collect();
        fs::write(&path, bytes).unwrap();
        let mode = [0o644, 0o600, 0o755, 0o4711][number % 4];
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let holes = fs::File::create(folder.join("holes")).unwrap();
    for at in [0_u64, 9_000_000, 30_000_123] {
        holes.write_all_at(&[7; 5000], at).unwrap();
    }
    holes.set_len(64 << 20).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"not \xff utf-8")), "bytes").unwrap();
    fs::hard_link(folder.join("file-0"), folder.join("deep/er/another name")).unwrap();
    fs::hard_link(folder.join("file-0"), folder.join("a third")).unwrap();
    symlink("deep/er", folder.join("short link")).unwrap();
    symlink("x".repeat(200), folder.join("long link")).unwrap();
    symlink("/etc/passwd", folder.join("absolute link")).unwrap();
    symlink("../../../..", folder.join("deep/up")).unwrap();
    fs::create_dir(folder.join("many")).unwrap();
    for number in 0..files {
        fs::write(
            folder.join(format!("many/{number:05}-of-a-hash-tree")),
            [number.to_le_bytes()[0]],
        )
        .unwrap();
    }
    for (name, when) in
        [("file-0", "1960-02-03 04:05:06"), ("holes", "2055-06-07 08:09:10"), ("many", "@0.5")]
    {
        tool("touch", &["-d", when, folder.join(name).to_str().unwrap()]);
    }
}

/// What is compared of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    kind: String,
    mode: u32,
    modified: Option<(i64, i64)>,
    links: u64,
    content: Vec<u8>,
}

/// Everything below a folder, by its path.
pub fn tree(folder: &Path, with_links: bool, with_times: bool) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(folder).unwrap().to_owned();
            if below == Path::new("lost+found") {
                continue;
            }
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            if kind.is_dir() {
                folders.push(path.clone());
            }
            let content = if kind.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if kind.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let mode = if kind.is_symlink() { 0 } else { meta.mode() & 0o777 };
            let links = if with_links && kind.is_file() { meta.nlink() } else { 1 };
            let modified = with_times.then(|| (meta.mtime(), meta.mtime_nsec()));
            let seen = Seen { kind: format!("{kind:?}"), mode, modified, links, content };
            found.insert(below, seen);
        }
    }
    found
}

/// Fails with the first difference of two trees, not with all that is in them.
#[track_caller]
pub fn assert_same(copied: &BTreeMap<PathBuf, Seen>, expected: &BTreeMap<PathBuf, Seen>) {
    let names = |tree: &BTreeMap<PathBuf, Seen>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(copied), names(expected));
    for (path, seen) in copied {
        let other = &expected[path];
        assert_eq!(seen.content.len(), other.content.len(), "{}", path.display());
        assert!(seen.content == other.content, "{} differs", path.display());
        let rest = |seen: &Seen| (seen.kind.clone(), seen.mode, seen.modified, seen.links);
        assert_eq!(rest(seen), rest(other), "{}", path.display());
    }
}
