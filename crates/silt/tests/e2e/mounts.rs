//! `silt mount`, as programs see the folder.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{Place, Run, can, changed, damage, disk, finish, tool};

/// A running mount; ended and unmounted when dropped.
pub struct Mounted {
    folder: PathBuf,
    server: Option<Child>,
}

impl Mounted {
    pub fn new(place: &Place) -> Self {
        let folder = place.path("mounted");
        fs::create_dir_all(&folder).unwrap();
        let mut server = place.start(&["mount", "mounted", "--json"]);
        // The folder can be used from the first line on.
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{line}: {}", finish_now(&mut server)));
        assert_eq!(said["message_type"], "mounted");
        Self { folder, server: Some(server) }
    }
    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }
    /// Sends a signal and waits for the end.
    pub fn end(mut self, signal: &str) -> Run {
        let server = self.server.take().unwrap();
        tool("kill", &[signal, &server.id().to_string()]);
        finish(server)
    }
    /// Waits for the end that something else has brought about.
    fn ends(mut self) -> Run {
        finish(self.server.take().unwrap())
    }
}

fn finish_now(server: &mut Child) -> String {
    let mut text = String::new();
    let _ = server.stderr.as_mut().unwrap().read_to_string(&mut text);
    text
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let _ = server.kill();
        let _ = server.wait();
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("-l").arg(&self.folder).stderr(Stdio::null()).status();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until something holds that another program brings about.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "another program is waited for")]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether something is mounted at a folder.
pub fn is_mounted(folder: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == folder.to_str())
}

#[test]
fn all_that_was_backed_up_is_in_the_folder() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    let images: Vec<Vec<u8>> = (0..3).map(|seed| changed(&disk(7, 9), seed)).collect();
    for image in &images {
        let (root, data) = (place.write("root.raw", image), place.write("data.raw", &image[..100]));
        let volumes = [format!("root={root}"), format!("data={data}")];
        place.silt(&["backup", "web1", &volumes[0], &volumes[1]]).exits(0);
    }
    place.silt(&["backup", "by-id", "root.raw"]).exits(0);
    let mounted = Mounted::new(&place);
    assert_eq!(names(&mounted.folder), ["%62y-id", "by-id", "web1"]);
    let listed = names(&mounted.at("web1"));
    assert_eq!(listed.len(), 4, "two of a second have two names: {listed:?}");
    assert_eq!(listed[3], "latest");
    let inode = |folder: PathBuf| fs::metadata(folder.join("root.raw")).unwrap().ino();
    let listing = place.silt(&["snapshots", "web1", "--json"]).exits(0).messages();
    let mut found = Vec::new();
    for (image, snapshot) in images.iter().zip(&listing) {
        let by_id = ["id", "short_id"]
            .map(|id| inode(mounted.at("by-id").join(snapshot[id].as_str().unwrap())));
        assert_eq!(by_id[0], by_id[1]);
        let is_it = |name: &&String| inode(mounted.at("web1").join(name)) == by_id[0];
        let name = listed[..3].iter().find(is_it).unwrap();
        let folder = mounted.at("web1").join(name);
        assert_eq!(names(&folder), ["data.raw", "root.raw"]);
        assert!(fs::read(folder.join("root.raw")).unwrap() == *image, "{name}");
        assert!(fs::read(folder.join("data.raw")).unwrap() == image[..100], "{name}");
        let meta = fs::metadata(folder.join("root.raw")).unwrap();
        assert_eq!((meta.len(), meta.mode()), (image.len() as u64, 0o100_444));
        let time = snapshot["time"].as_str().unwrap();
        assert_eq!(name[..19].replace('-', ":"), time[..19].replace('-', ":"));
        assert_eq!(fs::metadata(&folder).unwrap().mtime(), meta.mtime());
        found.push(name.as_str());
    }
    let latest = fs::read_link(mounted.at("web1/latest")).unwrap();
    let newest = found.last().copied().unwrap();
    assert!(latest.to_str().unwrap().starts_with(newest), "{latest:?}");
    let inode = |name: &Path| fs::metadata(mounted.at("web1").join(name)).unwrap().ino();
    assert_eq!(inode(&latest), inode(Path::new(newest)));
    assert_eq!(names(&mounted.at("by-id")).len(), 4);
    // Parts, the end, and behind it.
    let file = fs::File::open(mounted.at("web1/latest/root.raw")).unwrap();
    let mut part = vec![0; 10_000];
    file.read_exact_at(&mut part, 4_000_001).unwrap();
    assert!(part == images[2][4_000_001..4_010_001]);
    let size = images[2].len() as u64;
    assert_eq!(file.read_at(&mut part, size - 5).unwrap(), 5);
    assert_eq!(file.read_at(&mut part, size + 5).unwrap(), 0);
    // Nothing can be written.
    assert!(fs::write(mounted.at("web1/latest/root.raw"), "x").is_err());
    assert!(fs::create_dir(mounted.at("web2")).is_err());
    // New snapshots appear.
    place.silt(&["backup", "web2", "data.raw"]).exits(0);
    until("a new series appears", || mounted.at("web2/latest/data.raw").exists());
    drop(file);
    let folder = mounted.folder.clone();
    mounted.end("-TERM").exits(0);
    assert!(!is_mounted(&folder));
}

#[test]
fn holes_are_found_without_reading() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    let mut image = vec![0; 40 << 20];
    image[10 << 20..][..5000].fill(1);
    place.write("sparse.raw", &image);
    place.silt(&["backup", "web1", "root=sparse.raw"]).exits(0);
    let mounted = Mounted::new(&place);
    let source = mounted.at("web1/latest/root.raw");
    let copy = place.path("copy.raw");
    tool("cp", &["--sparse=auto", source.to_str().unwrap(), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == image);
    let blocks = fs::metadata(&copy).unwrap().blocks();
    assert!(blocks < 1000, "{blocks} blocks were written");
}

#[test]
fn a_folder_that_cannot_be_mounted_at_is_refused() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    place.silt(&["mount", "nowhere"]).exits(1).says("nowhere");
    place.write("file", b"");
    place.silt(&["mount", "file"]).exits(1).says("not a folder");
    fs::create_dir(place.path("full")).unwrap();
    place.write("full/file", b"precious");
    place.silt(&["mount", "full"]).exits(13).says("not empty");
    place.silt(&["umount", "full"]).exits(1).says("nothing is mounted");
    let mounted = Mounted::new(&place);
    place.silt(&["mount", "mounted"]).exits(13).says("mounted at mounted already");
    // An empty repository is an empty folder.
    assert_eq!(names(&mounted.folder), ["by-id"]);
    place.silt(&["umount", "mounted"]).exits(0);
    mounted.ends().exits(0);
    let run = place.silt(&["mount", "mounted", "-r", "elsewhere"]);
    assert!(run.code == 10 && !is_mounted(&place.path("mounted")));
}

#[test]
fn it_goes_on_in_the_background() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    place.write("disk.raw", &disk(3, 1));
    place.silt(&["backup", "web1", "disk.raw"]).exits(0);
    fs::create_dir(place.path("mounted")).unwrap();
    let run = place.silt(&["mount", "mounted", "--background", "--log", "log"]).exits(0);
    run.says("Mounted at");
    assert!(place.path("log").exists());
    assert_eq!(names(&place.path("mounted/web1/latest")), ["disk.raw"]);
    place.silt(&["mount", "mounted", "--background"]).exits(13).says("already");
    place.silt(&["umount", "mounted"]).exits(0);
    assert!(!is_mounted(&place.path("mounted")));
    // What fails in the background is said in front.
    place.silt(&["mount", "mounted", "--background", "-r", "elsewhere"]).exits(10);
}

/// A program that reads the same file again and again.
fn load(file: &Path) -> Child {
    let script =
        format!("while dd if={} of=/dev/null bs=64k iflag=direct; do :; done", file.display());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn it_is_unmounted_under_load() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    place.write("disk.raw", &disk(5, 16));
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    for by_signal in [false, true] {
        let mounted = Mounted::new(&place);
        let path = mounted.at("web1/latest/root.raw");
        let held = fs::File::open(&path).unwrap();
        let mut loads: Vec<_> = (0..3).map(|_| load(&path)).collect();
        place.silt(&["umount", "mounted"]).exits(11).says("in use");
        let run = if by_signal {
            mounted.end("-INT")
        } else {
            place.silt(&["umount", "mounted", "--force"]).exits(0);
            mounted.ends()
        };
        run.exits(0);
        assert!(!is_mounted(&place.path("mounted")));
        assert!(held.read_at(&mut [0; 10], 12_345_678).is_err());
        loads.iter_mut().for_each(|load| drop(load.wait()));
    }
}

#[test]
fn a_killed_server_leaves_a_folder_that_can_be_unmounted() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    place.write("disk.raw", &disk(5, 2));
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let mounted = Mounted::new(&place);
    let held = fs::File::open(mounted.at("web1/latest/root.raw")).unwrap();
    let killed = mounted.end("-KILL");
    assert_eq!(killed.code, -1);
    assert!(held.read_at(&mut [0; 10], 0).is_err());
    drop(held);
    fs::read_dir(place.path("mounted")).unwrap_err();
    place.silt(&["mount", "mounted"]).exits(13).says("silt umount mounted");
    place.silt(&["umount", "mounted"]).exits(0);
    let again = Mounted::new(&place);
    assert!(fs::read(again.at("web1/latest/root.raw")).unwrap() == disk(5, 2));
}

#[test]
fn of_a_damaged_volume_the_other_ranges_can_be_read() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    let image = disk(11, 8);
    place.write("disk.raw", &image);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let containers = place.objects("containers");
    damage(&containers[0]);
    let mounted = Mounted::new(&place);
    let file = fs::File::open(mounted.at("web1/latest/root.raw")).unwrap();
    let mut failed = 0;
    for (number, expected) in image.chunks(4096).enumerate() {
        let mut block = vec![0; expected.len()];
        match file.read_exact_at(&mut block, number as u64 * 4096) {
            Ok(()) => assert!(block == expected, "block {number} is wrong"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && failed < 1000, "{failed} blocks can't be read");
    drop(file);
    let name = containers[0].file_name().unwrap().to_str().unwrap();
    mounted.end("-TERM").exits(0).says(name);
}

#[test]
fn a_snapshot_that_is_reclaimed_is_gone() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    place.write("disk.raw", &disk(13, 64));
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    place.write("disk.raw", &disk(14, 1));
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let mounted = Mounted::new(&place);
    let snapshots = place.silt(&["snapshots", "--json"]).exits(0).messages();
    let id = snapshots[0]["id"].as_str().unwrap();
    // By its id: of two snapshots of one second the later one takes the plain name over.
    let first = mounted.at("by-id").join(id);
    let file = fs::File::open(first.join("root.raw")).unwrap();
    place.silt(&["delete", id]).exits(0);
    place.silt(&["reclaim", "--min-dead", "0", "--keep-deleted", "0"]).exits(0);
    until("it is listed no more", || !first.exists());
    let mut bytes = vec![0; 60 << 20];
    let error = file.read_exact_at(&mut bytes, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert_eq!(fs::read(mounted.at("web1/latest/root.raw")).unwrap(), disk(14, 1));
    drop(file);
    mounted.end("-TERM").exits(0).says("was deleted");
}

#[test]
fn a_repository_that_comes_back_is_read_again() {
    if !can("fuse") {
        return;
    }
    let place = Place::new();
    let image = disk(17, 64);
    place.write("disk.raw", &image);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    let mounted = Mounted::new(&place);
    let path = mounted.at("web1/latest/root.raw");
    let file = fs::File::open(&path).unwrap();
    tool("mv", &[&place.text("repository"), &place.text("elsewhere")]);
    let mut bytes = vec![0; image.len()];
    assert!(file.read_exact_at(&mut bytes, 0).is_err());
    // What is known can still be listed.
    assert_eq!(names(&mounted.at("web1")).len(), 2);
    tool("mv", &[&place.text("elsewhere"), &place.text("repository")]);
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == image && fs::read(path).unwrap() == image);
}

/// Needs nothing of root but the helper that the package fuse3 brings. Where the device is for root
/// alone, as in some containers, another one takes its place, for this test alone.
#[test]
fn any_user_can_mount() {
    if !can("fuse") || !can("root") {
        return;
    }
    let place = Place::new();
    let image = disk(19, 2);
    place.write("disk.raw", &image);
    place.silt(&["backup", "web1", "root=disk.raw"]).exits(0);
    // A file of root, which the user may read from the repository all the same.
    fs::create_dir(place.path("home")).unwrap();
    place.write("home/secret", b"of root");
    fs::set_permissions(place.path("home/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    place.silt(&["backup", "home", "home"]).exits(0);
    fs::copy(env!("CARGO_BIN_EXE_silt"), place.path("silt")).unwrap();
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.path("mounted")).unwrap();
    tool("chown", &["-R", "65534:65534", place.folder.path().to_str().unwrap()]);
    let script = "set -eu
        mknod device c 10 229; chmod 666 device; mount --bind device /dev/fuse
        user='setpriv --reuid=65534 --regid=65534 --clear-groups'
        $user ./silt mount mounted --background
        ! ls mounted 2>/dev/null
        $user cat mounted/web1/latest/root.raw > copy.raw
        $user cat mounted/home/latest/home/secret > copy
        ! $user ./silt mount mounted
        $user ./silt umount mounted
        $user ./silt mount mounted --background
        $user fusermount3 -u mounted
        ! grep -q \"$PWD/mounted\" /proc/self/mounts";
    let given = place.command();
    let given = given.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut shell = std::process::Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script]).env_clear().envs(given);
    shell.current_dir(place.folder.path()).stdin(Stdio::null());
    Run::of(&mut shell).exits(0).says("already");
    assert!(place.read("copy.raw") == image && place.read("copy") == b"of root");
}
