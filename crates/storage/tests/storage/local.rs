//! What only the storage in a folder has.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use silt_format::ErrorKind;
use silt_storage::durable::TempFile;
use silt_storage::{ByteRange, Key, LocalStorage, PutMode, Storage, list_all};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn put(storage: &LocalStorage, name: &str) -> silt_format::Result<()> {
    storage.put(&key(name), &[name.as_bytes()], PutMode::Create)
}

fn names(storage: &LocalStorage) -> Vec<String> {
    list_all(storage, "", None).map(|object| object.unwrap().0.to_string()).collect()
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn only_an_absent_or_empty_folder_becomes_a_storage() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("deep/er/repo");
    LocalStorage::create(&root).unwrap();
    // What is left of a creation that was cut off is not in the way.
    LocalStorage::create(&root).unwrap();
    fs::create_dir(root.join("lost+found")).unwrap();
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "config").unwrap();
    let error = LocalStorage::create(&root).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains("config"), "{error}");

    let holiday = base.path().join("holiday");
    fs::create_dir(&holiday).unwrap();
    for number in 0..9 {
        fs::write(holiday.join(format!("{number}.jpg")), b"").unwrap();
    }
    let error = LocalStorage::create(&holiday).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().contains(".jpg and more"), "{error}");
    assert_eq!(entries(&holiday), 9, "nothing was made in it");

    let file = holiday.join("1.jpg");
    assert_eq!(LocalStorage::create(&file).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(LocalStorage::open(&file).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(LocalStorage::create(file.join("x")).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn open_needs_the_folder_and_writes_nothing() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    for path in [&root, &root.join("below")] {
        let error = LocalStorage::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoRepository);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    fs::create_dir(&root).unwrap();
    let storage = LocalStorage::open(&root).unwrap();
    assert!(names(&storage).is_empty());
    assert_eq!(storage.head(&key("a")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(entries(&root), 0);
    put(&storage, "a/b").unwrap();
    assert_eq!(names(&LocalStorage::open(&root).unwrap()), ["a/b"]);
}

#[test]
fn objects_are_private_files_named_by_their_keys() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "heads/vm/1").unwrap();
    assert_eq!(fs::read(root.join("heads/vm/1")).unwrap(), b"heads/vm/1");
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("heads/vm/1"), 0o600);
    for folder in ["", "heads", "heads/vm", ".tmp"] {
        assert_eq!(mode(folder), 0o700, "{folder}");
    }
    assert_eq!(entries(&root.join(".tmp")), 0);

    let file = File::options().write(true).open(root.join("heads/vm/1")).unwrap();
    let at = std::time::UNIX_EPOCH + Duration::from_millis(1_234_567);
    file.set_times(FileTimes::new().set_modified(at)).unwrap();
    assert_eq!(storage.head(&key("heads/vm/1")).unwrap().modified_ms, Some(1_234_567));
}

#[test]
fn what_a_crash_before_publishing_leaves_is_invisible() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    fs::create_dir(root.join("heads")).unwrap();
    let mut temp = TempFile::create_in(&root.join(".tmp")).unwrap();
    temp.write_pieces(&[b"half of an obj"]).unwrap();
    // A process that dies cleans nothing up.
    std::mem::forget(temp);

    assert!(names(&storage).is_empty());
    assert_eq!(storage.head(&key("heads/1")).unwrap_err().kind(), ErrorKind::NotFound);
    let reopened = LocalStorage::open(&root).unwrap();
    put(&reopened, "heads/1").unwrap();
    assert_eq!(names(&storage), ["heads/1"]);
    assert_eq!(entries(&root.join(".tmp")), 1, "it may be another process still writing");
}

#[test]
fn stale_temporary_files_go_at_the_first_write() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    drop(LocalStorage::create(&root).unwrap());
    let now = fs::metadata(&root).unwrap().modified().unwrap();
    for (name, age_hours) in [("older", 25), ("younger", 23), ("future", 0)] {
        let file = File::create(root.join(".tmp").join(name)).unwrap();
        let modified = match age_hours {
            0 => now + Duration::from_hours(48),
            hours => now - Duration::from_hours(hours),
        };
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
    }
    let storage = LocalStorage::open(&root).unwrap();
    assert_eq!(entries(&root.join(".tmp")), 3, "opening writes nothing");
    put(&storage, "a").unwrap();
    let kept = ["older", "younger", "future"].map(|name| root.join(".tmp").join(name).exists());
    assert_eq!(kept, [false, true, true]);
}

#[test]
fn files_that_are_no_objects_are_left_alone() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "a/b").unwrap();
    for foreign in ["README", ".hidden", "a/B", "a/.nfs0001", "a/b~", "a/with space"] {
        fs::write(root.join(foreign), b"x").unwrap();
    }
    symlink("nowhere", root.join("a/dangling")).unwrap();
    std::os::unix::net::UnixListener::bind(root.join("a/socket")).unwrap();
    assert_eq!(names(&storage), ["a/b"]);
    assert!(storage.list(".", None).unwrap().objects.is_empty());
}

#[test]
fn links_are_listed_as_they_are_read() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    let elsewhere = base.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("x"), b"12").unwrap();
    symlink(&elsewhere, root.join("containers")).unwrap();
    symlink(elsewhere.join("x"), root.join("one")).unwrap();
    assert_eq!(names(&storage), ["containers/x", "one"]);
    assert_eq!(storage.head(&key("containers/x")).unwrap().size, 2);

    // A circle is not followed for ever, and not passed over in silence.
    symlink("../elsewhere", elsewhere.join("circle")).unwrap();
    let error = storage.list("", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("circle"), "{error}");
}

#[test]
fn a_name_is_a_file_or_a_folder() {
    let base = tempfile::tempdir().unwrap();
    let storage = LocalStorage::create(base.path().join("repo")).unwrap();
    put(&storage, "a/b").unwrap();
    for name in ["a", "a/b/c", "a/b/c/d"] {
        let error = put(&storage, name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
    assert_eq!(names(&storage), ["a/b"]);
}

#[test]
fn folders_removed_by_others_are_made_again() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "a/b/1").unwrap();
    fs::remove_dir_all(root.join("a")).unwrap();
    put(&storage, "a/b/2").unwrap();
    fs::remove_dir_all(root.join(".tmp")).unwrap();
    put(&storage, "a/b/3").unwrap();
    assert_eq!(names(&storage), ["a/b/2", "a/b/3"]);
}

#[test]
fn a_folder_that_vanished_is_not_an_empty_storage() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    put(&storage, "a/1").unwrap();
    fs::remove_dir_all(&root).unwrap();
    let mut bytes = Vec::new();
    let errors = [
        put(&storage, "a/2").unwrap_err(),
        put(&storage, "b/2").unwrap_err(),
        storage.get(&key("a/1"), ByteRange::Full, &mut bytes).unwrap_err(),
        storage.head(&key("a/1")).unwrap_err(),
        storage.delete(&[key("a/1")]).unwrap_err(),
        storage.list("", None).unwrap_err(),
        storage.list("a/", None).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("is its disk mounted"), "{error}");
    }
    assert!(!root.exists(), "it was not made again");
}

#[test]
fn an_object_too_large_for_one_read_is_refused_unread() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let storage = LocalStorage::create(&root).unwrap();
    File::create(root.join("huge")).unwrap().set_len(1 << 40).unwrap();
    let mut bytes = Vec::new();
    let full = storage.get(&key("huge"), ByteRange::Full, &mut bytes);
    assert_eq!(full.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(bytes.capacity(), 0);
    storage.get(&key("huge"), ByteRange::Tail(10), &mut bytes).unwrap();
    assert_eq!(bytes, [0; 10]);
}

#[test]
fn several_storages_share_a_folder() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("repo");
    let one = LocalStorage::create(&root).unwrap();
    let other = LocalStorage::open(&root).unwrap();
    put(&one, "a/1").unwrap();
    assert_eq!(put(&other, "a/1").unwrap_err().kind(), ErrorKind::AlreadyExists);
    put(&other, "a/2").unwrap();
    assert_eq!(names(&one), ["a/1", "a/2"]);
    one.delete(&[key("a/2")]).unwrap();
    assert_eq!(names(&other), ["a/1"]);
}
