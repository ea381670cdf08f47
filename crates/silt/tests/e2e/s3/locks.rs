//! Buckets whose objects are locked.

use jiff::{SignedDuration, Timestamp};
use silt_remote::{S3Storage, Version};
use silt_storage::{Key, Storage, list_all};

use super::Bucket;
use crate::kit;

/// Everything below a location, with no regard for what it is for.
fn all_objects(storage: &S3Storage) -> Vec<Key> {
    list_all(storage, "", None).map(|item| item.unwrap().0).collect()
}

/// When the newest version was made, once that is over: times of versions are told apart by
/// seconds.
#[expect(clippy::disallowed_methods, reason = "the store tells times apart by seconds")]
fn seconds_after(versions: &[Version]) -> Timestamp {
    let at = versions.iter().map(|version| version.modified).max().unwrap();
    let until = std::time::SystemTime::from(at + SignedDuration::from_secs(2));
    while std::time::SystemTime::now() <= until {
        std::thread::yield_now();
    }
    at
}

#[test]
fn what_is_deleted_and_overwritten_in_a_locked_bucket_comes_back() {
    let Some(mut bucket) = Bucket::new() else { return };
    bucket.server.make_locked_bucket("locked");
    let place = "s3://locked/vms";
    bucket.location = format!("{place}?lock=30d&class=STANDARD");
    bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    let (first, second) = (kit::disk(1, 12), kit::disk(2, 12));
    let file = bucket.place.write("vm.raw", &first);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    bucket.silt(&["check"]).exits(0).says("Extended 0 locks of");
    let storage = S3Storage::open(place, &bucket.server.settings()).unwrap();
    let versions = storage.versions().unwrap();
    let locked = |version: &&Version| {
        version.content.is_some() && !version.key.as_str().contains("/leases/")
    };
    for version in versions.iter().filter(locked) {
        bucket.server.delete_version(place, version).unwrap_err();
    }
    let at = seconds_after(&versions);

    // A good backup, and then somebody with all rights of a host goes through the bucket.
    bucket.place.write("vm.raw", &second);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    for (number, key) in all_objects(&storage).into_iter().enumerate() {
        if number % 2 == 0 {
            bucket.server.overwrite(place, &key, b"pay us");
        } else {
            storage.delete(std::slice::from_ref(&key)).unwrap();
        }
    }
    assert_ne!(bucket.silt(&["snapshots"]).code, 0);
    let when = at.to_string();
    let rollback = ["repo", "rollback", "--at", &when];
    bucket.silt(&[&rollback[..], &["--dry-run"]].concat()).exits(0).says("Would restore");
    bucket.silt(&rollback).exits(0).says("run this again with --keys");
    // Lists of snapshots would use the key in the cache.
    assert_ne!(bucket.silt(&["status"]).code, 0, "the only key was overwritten or deleted");
    bucket.silt(&[&rollback[..], &["--keys"]].concat()).exits(0).says("Restored");
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    let target = bucket.place.text("restored.raw");
    bucket.silt(&["restore", "vm@latest", &target]).exits(0);
    assert!(bucket.place.read("restored.raw") == first);
    // What the later backup has stored is used again.
    let run = bucket.silt(&["backup", "vm", &file, "--json"]).exits(0);
    assert!(run.summary()["written_bytes"].as_u64().unwrap() < 12 << 20);
    bucket.silt(&["restore", "vm@latest", &target, "--force"]).exits(0);
    assert!(bucket.place.read("restored.raw") == second);
    bucket.silt(&["check", "--read-data"]).exits(0).says("No damage found");
    bucket.silt(&["repo", "rollback", "--at", "2020-01-01"]).exits(10);
    bucket.location = "s3://locked/vms?locks=1d".to_owned();
    bucket.silt(&["snapshots"]).exits(1).says("unknown option");
}

/// A password that was removed because it was stolen opens nothing after a rollback.
#[test]
fn a_rollback_leaves_passwords_as_they_are() {
    let Some(mut bucket) = Bucket::new() else { return };
    bucket.server.make_locked_bucket("revoked");
    bucket.location = "s3://revoked/vms".to_owned();
    bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    let file = bucket.place.write("vm.raw", &kit::disk(1, 12));
    bucket.silt(&["backup", "vm", &file]).exits(0);
    let storage = S3Storage::open(&bucket.location, &bucket.server.settings()).unwrap();
    let at = seconds_after(&storage.versions().unwrap()).to_string();
    let new = bucket.place.write("new", b"another");
    let changed = ["key", "passwd", "--new-password-file", &new, "--kdf-memory", "8"];
    bucket.silt(&changed).exits(0);
    bucket.silt(&["snapshots"]).exits(12);
    let rolled = bucket.silt(&["repo", "rollback", "--at", &at, "--json"]).exits(0).messages();
    assert_eq!(rolled[0]["differing_keys"].as_array().unwrap().len(), 1, "{rolled:?}");
    bucket.silt(&["snapshots"]).exits(12);
    let opened = |file: &str| {
        let mut command = bucket.command();
        command.env_remove("SILT_PASSWORD").args(["snapshots", "--password-file", file]);
        kit::Run::of(&mut command).code
    };
    assert_eq!(opened(&new), 0, "the new one opens it still");
}
