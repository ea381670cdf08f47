//! Buckets whose objects are locked.

use silt_remote::S3Storage;
use silt_storage::{Key, Storage, list_all};

use super::Bucket;
use crate::kit;

/// Everything below a location, with no regard for what it is for.
fn all_objects(storage: &S3Storage) -> Vec<Key> {
    list_all(storage, "", None).map(|item| item.unwrap().0).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the store tells times apart by seconds")]
fn what_is_deleted_and_overwritten_in_a_locked_bucket_comes_back() {
    let Some(mut bucket) = Bucket::new() else { return };
    bucket.server.make_locked_bucket("locked");
    let place = "s3://locked/vms";
    bucket.location = format!("{place}?lock=30d&class=STANDARD");
    bucket.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).exits(0);
    let (first, second) = (kit::disk(1, 12), kit::disk(2, 12));
    let file = bucket.place.write("vm.raw", &first);
    bucket.silt(&["backup", "vm", &file]).exits(0);
    bucket.silt(&["check"]).exits(0).says("Extended the locks of 0 of");
    let storage = S3Storage::open(place, &bucket.server.settings()).unwrap();
    let versions = storage.versions().unwrap();
    let locked = |version: &&silt_remote::Version| {
        version.content.is_some() && !version.key.as_str().contains("/leases/")
    };
    for version in versions.iter().filter(locked) {
        bucket.server.delete_version(place, version).unwrap_err();
    }
    // Times of versions are told apart by seconds.
    let at = versions.iter().map(|version| version.modified).max().unwrap();
    let later = || std::time::SystemTime::now() > (at + jiff::SignedDuration::from_secs(2)).into();
    while !later() {
        std::thread::yield_now();
    }

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
    bucket.silt(&rollback).exits(0).says("Restored");
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
    bucket.silt(&["snapshots"]).exits(1).says("is no option");
}
