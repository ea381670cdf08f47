//! Disks that are full or read-only.
//!
//! A full disk needs a file system of its own, which only root can mount: without that the tests
//! say that they are skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use silt_format::ErrorKind;
use silt_storage::durable::{self, TempFile};
use silt_storage::{ByteRange, Key, LocalStorage, PutMode, Storage, list_all};

/// A small file system in memory, unmounted when dropped.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(test: &str, options: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = rustix::process::geteuid().is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "silt-test"])
                .arg(folder.path())
                .status()
                .is_ok_and(|status| status.success());
        if !mounted {
            println!("SKIPPED {test}: it needs root and the right to mount a tmpfs");
            return None;
        }
        Some(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until so many bytes are free: a process that another test is starting holds the files
    /// that were open, also the temporary one of a failed write, until its program runs.
    #[expect(clippy::disallowed_methods, reason = "it waits for other processes")]
    fn wait_for_room(&self, bytes: u64) {
        let free = || {
            let disk = rustix::fs::statvfs(self.path()).unwrap();
            disk.f_bavail * disk.f_frsize
        };
        for _ in 0..60_000 {
            if free() >= bytes {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} bytes are free, not {bytes}", free());
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.path())
            .status()
            .unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot unmount");
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn put(storage: &LocalStorage, name: &str, bytes: usize) -> silt_format::Result<()> {
    storage.put(&key(name), &[&vec![7; bytes]], PutMode::Create)
}

fn names(storage: &LocalStorage) -> Vec<String> {
    list_all(storage, "", None).map(|object| object.unwrap().0.to_string()).collect()
}

/// The regular files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[track_caller]
fn assert_no_space(result: silt_format::Result<()>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("no space left in "), "{text}");
    assert!(text.contains("; nothing was changed. Free some space"), "{text}");
}

#[test]
fn a_full_disk_changes_nothing_and_recovers() {
    let Some(disk) = SmallDisk::mount("a_full_disk_changes_nothing_and_recovers", "size=1m") else {
        return;
    };
    let storage = LocalStorage::create(disk.path().join("repo")).unwrap();
    put(&storage, "c/1", 600_000).unwrap();
    for _ in 0..3 {
        assert_no_space(put(&storage, "c/2", 600_000));
        assert_eq!(storage.head(&key("c/2")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(files(disk.path()).len(), 1, "the temporary file is gone");
    }
    let again = put(&storage, "c/1", 600_000).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "which needs no space to find out");
    storage.delete(&[key("c/1")]).unwrap();
    disk.wait_for_room(700_000);
    put(&storage, "c/2", 600_000).unwrap();
    assert_eq!(names(&storage), ["c/2"]);
}

/// What deletions write has room on a full disk, however many are at work.
#[test]
fn many_tasks_use_the_reserve_of_a_full_disk_at_once() {
    let test = "many_tasks_use_the_reserve_of_a_full_disk_at_once";
    let Some(disk) = SmallDisk::mount(test, "size=8m") else { return };
    let root = disk.path().join("repo");
    for round in 0..20 {
        let storages: Vec<_> = match round {
            0 => vec![LocalStorage::create(&root).unwrap()],
            _ => (0..8).map(|_| LocalStorage::open(&root).unwrap()).collect(),
        };
        storages[0].delete(&[key("c/1")]).unwrap();
        assert!(root.join(".reserve").exists(), "round {round}");
        let filler = disk.path().join("filler");
        let mut file = fs::File::create(&filler).unwrap();
        std::io::copy(&mut std::io::repeat(7), &mut file).unwrap_err();
        drop(file);
        assert_no_space(put(&storages[0], "c/2", 10));
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for task in 0..8 {
                let (storage, start) = (&storages[task % storages.len()], &start);
                scope.spawn(move || {
                    start.wait();
                    put(storage, &format!("state/{task}/{round}"), 5000).unwrap();
                    // Those of others are made again beside them, as far as there is room.
                    storage.delete(&[key("c/3")]).unwrap();
                    put(storage, &format!("state/{task}/{round}-2"), 5000).unwrap();
                });
            }
        });
        fs::remove_file(filler).unwrap();
    }
}

#[test]
fn a_disk_without_room_for_names_says_so() {
    let test = "a_disk_without_room_for_names_says_so";
    let Some(disk) = SmallDisk::mount(test, "size=1m,nr_inodes=10") else {
        return;
    };
    let storage = LocalStorage::create(disk.path().join("repo")).unwrap();
    let refused =
        (0..20).map(|number| put(&storage, &format!("c/{number}"), 1)).find(Result::is_err);
    assert_no_space(refused.unwrap());
    assert_no_space(put(&storage, "new-folder/1", 1));
    let before = names(&storage);
    assert!(!before.is_empty());
    assert_eq!(files(disk.path()).len(), before.len());
}

#[test]
fn a_read_only_disk_can_be_read() {
    let test = "a_read_only_disk_can_be_read";
    let Some(disk) = SmallDisk::mount(test, "size=1m") else { return };
    let root = disk.path().join("repo");
    put(&LocalStorage::create(&root).unwrap(), "c/1", 10).unwrap();
    disk.remount("ro");

    let storage = LocalStorage::open(&root).unwrap();
    let mut bytes = Vec::new();
    storage.get(&key("c/1"), ByteRange::Full, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 10]);
    assert_eq!(names(&storage), ["c/1"]);
    let errors = [
        put(&storage, "c/2", 10).unwrap_err(),
        put(&storage, "d/2", 10).unwrap_err(),
        storage.delete(&[key("c/1")]).unwrap_err(),
        LocalStorage::create(disk.path().join("another")).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert_eq!(names(&storage), ["c/1"]);
}

#[test]
fn a_folder_without_permission_is_denied() {
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED a_folder_without_permission_is_denied: root may write anywhere");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "c/1", 10).unwrap();
    let permit =
        |mode| fs::set_permissions(root.join("c"), PermissionsExt::from_mode(mode)).unwrap();
    permit(0o500);
    let error = put(&storage, "c/2", 10).unwrap_err();
    permit(0o700);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(files(&root).len(), 1, "the temporary file is gone");
    assert_eq!(names(&storage), ["c/1"]);
}

#[test]
fn files_are_not_published_across_file_systems() {
    let test = "files_are_not_published_across_file_systems";
    let Some(disk) = SmallDisk::mount(test, "size=1m") else { return };
    let here = tempfile::tempdir().unwrap();
    let target = disk.path().join("target");
    for publish in [durable::publish_new, durable::publish_replacing] {
        let temp = here.path().join("temp");
        fs::write(&temp, b"x").unwrap();
        assert_eq!(publish(&temp, &target).unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(!temp.exists() && !target.exists());
    }
    let temp = TempFile::create_in(here.path()).unwrap();
    assert_eq!(temp.publish_new(&target).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(files(here.path()).is_empty() && files(disk.path()).is_empty());
}
