//! The storage on a real server: MinIO, started here.

use std::sync::atomic::{AtomicU32, Ordering};

use silt_format::ErrorKind;
use silt_remote::server::{BUCKET, Server};
use silt_remote::{Extended, Lock, LockMode, Rollback, S3Storage, Settings};
use silt_storage::{ByteRange, Key, PutMode, Storage, conformance, list_all};

#[test]
fn a_bucket_passes_the_conformance_suite() {
    let Some(server) = Server::start() else { return };
    let number = AtomicU32::new(0);
    conformance::run(&|| {
        let folder = number.fetch_add(1, Ordering::Relaxed);
        let location = format!("s3://{BUCKET}/suite/{folder}");
        Box::new(S3Storage::open(&location, &server.settings()).unwrap())
    });
    // Without a prefix, and with names beside its own.
    let storage = S3Storage::open(&format!("s3://{BUCKET}"), &server.settings()).unwrap();
    assert!(!storage.list("", None).unwrap().objects.is_empty());
}

#[test]
fn what_goes_wrong_is_said() {
    let Some(server) = Server::start() else { return };
    let key = Key::new("config").unwrap();
    let open = |location: &str, settings: &Settings| S3Storage::open(location, settings).unwrap();
    let mut bytes = Vec::new();

    let storage = open("s3://no-such-bucket/x", &server.settings());
    let error = storage.get(&key, ByteRange::Full, &mut bytes).unwrap_err();
    assert!(error.to_string().contains("no such bucket"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::NoRepository);
    let error = storage.put(&key, &[b"x"], PutMode::Create).unwrap_err();
    assert!(error.to_string().contains("no such bucket"), "{error}");

    let location = format!("s3://{BUCKET}/wrong");
    let mut settings = server.settings();
    settings.environment.retain(|(name, _)| name != "AWS_SECRET_ACCESS_KEY");
    settings.environment.push(("AWS_SECRET_ACCESS_KEY".to_owned(), "wrong-secret".to_owned()));
    let error = open(&location, &settings).list("", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    let mut settings = Settings { retries: Some(0), ..server.settings() };
    settings.environment.retain(|(name, _)| name != "AWS_ENDPOINT_URL");
    settings.environment.push(("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:9".to_owned()));
    let error = open(&location, &settings).list("", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(S3Storage::open("s3://", &server.settings()).is_err());
}

fn read(storage: &S3Storage, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = storage.get(key, ByteRange::Full, &mut bytes);
    assert!(read.is_ok(), "{read:?}");
    bytes
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the store tells times apart by seconds")]
fn locked_objects_stay_and_come_back() {
    let Some(server) = Server::start() else { return };
    server.make_locked_bucket("locked");
    let location = "s3://locked/some vms";
    let open = |days| {
        let lock = Some(Lock { mode: LockMode::Governance, days });
        S3Storage::open(location, &Settings { lock, ..server.settings() }).unwrap()
    };
    let storage = open(10);
    let key = |name: &str| Key::new(name).unwrap();
    let (kept, lost, transient) = (key("a/kept"), key("a/lost"), key("b/transient"));
    for key in [&kept, &lost] {
        storage.put(key, &[b"first ", key.as_str().as_bytes()], PutMode::Create).unwrap();
    }
    storage.put(&transient, &[b"now"], PutMode::CreateTransient).unwrap();
    assert!(storage.put(&kept, &[b"x"], PutMode::Create).is_err());

    // Nobody deletes a version for good but of what comes and goes.
    let versions = storage.versions().unwrap();
    assert_eq!(versions.len(), 3);
    for version in &versions {
        let deleted = server.delete_version(location, version);
        assert_eq!(deleted.is_ok(), version.key == transient, "{deleted:?}");
    }

    // What is deleted and overwritten comes back as it was.
    let at = versions.iter().map(|version| version.modified).max().unwrap();
    while storage.versions().unwrap().len() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(1100));
        server.overwrite(location, &kept, b"second");
        storage.delete(std::slice::from_ref(&lost)).unwrap();
        storage.put(&key("c/newer"), &[b"x"], PutMode::Create).unwrap();
    }
    let found = |error: silt_format::Error| error.kind() == ErrorKind::NotFound;
    assert!(storage.get(&lost, ByteRange::Full, &mut Vec::new()).is_err_and(found));
    let plan = Rollback::plan(&storage.versions().unwrap(), at, |key| key.as_str() == "c/newer");
    assert_eq!(plan.restored.len(), 2);
    assert_eq!(plan.hidden, [key("c/newer")]);
    for version in &plan.restored {
        storage.restore_version(version).unwrap();
    }
    assert_eq!(read(&storage, &kept), b"first a/kept");
    assert_eq!(read(&storage, &lost), b"first a/lost");
    storage.delete(&plan.hidden).unwrap();
    let again = Rollback::plan(&storage.versions().unwrap(), at, |_| true);
    assert!(again.restored.is_empty() && again.hidden.is_empty(), "{again:?}");

    // Locks are extended where they have lost much of their time.
    let all = |_: &Key| true;
    let extended = |storage: &S3Storage| {
        let Extended { objects, extended, overwritten } =
            storage.extend_locks(all, |_| Ok(())).unwrap();
        (objects, extended, overwritten)
    };
    assert_eq!(extended(&open(10)), (2, 0, 2));
    assert_eq!(extended(&open(12)), (2, 0, 2));
    // What was there first as well as what stands above it.
    assert_eq!(extended(&open(40)), (2, 4, 2));
    assert_eq!(extended(&open(40)), (2, 0, 2));
    assert_eq!(extended(&open(30)), (2, 0, 2));
}

#[test]
fn a_bucket_without_locks_is_named() {
    let Some(server) = Server::start() else { return };
    let lock = Some(Lock { mode: LockMode::Compliance, days: 1 });
    let location = format!("s3://{BUCKET}/plain");
    let storage = S3Storage::open(&location, &Settings { lock, ..server.settings() }).unwrap();
    let error = storage.put(&Key::new("a").unwrap(), &[b"x"], PutMode::Create).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("Object Lock"), "{error}");
}

#[test]
fn large_objects_are_uploaded_in_parts() {
    let Some(server) = Server::start() else { return };
    server.make_locked_bucket("large");
    let lock = Some(Lock { mode: LockMode::Governance, days: 2 });
    let settings = Settings { lock, ..server.settings() };
    let storage = S3Storage::open("s3://large/x", &settings).unwrap();
    let key = Key::new("large").unwrap();
    let (one, other) = (vec![7; 9 << 20], vec![8; 21 << 20]);
    storage.put(&key, &[&one, &other], PutMode::Create).unwrap();
    assert!(storage.usage().unwrap().puts >= 6, "{:?}", storage.usage());
    assert!(read(&storage, &key) == [&one[..], &other].concat());
    let versions = storage.versions().unwrap();
    assert!(server.delete_version("s3://large/x", &versions[0]).is_err(), "it is locked");
    // It is a create like any other: a name that is taken stays, and of several one wins.
    let error = storage.put(&key, &[&other], PutMode::Create).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(read(&storage, &key) == [&one[..], &other].concat());
    let raced = Key::new("raced").unwrap();
    let won: Vec<u8> = std::thread::scope(|scope| {
        let create = |number: u8| {
            let (storage, raced) = (&storage, &raced);
            scope.spawn(move || {
                let body = vec![number; 20 << 20];
                storage.put(raced, &[&body], PutMode::Create).is_ok().then_some(number)
            })
        };
        let running: Vec<_> = (1..4).map(create).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(won.len(), 1);
    assert!(read(&storage, &raced) == vec![won[0]; 20 << 20]);
    // On a network that fails too.
    let proxy = server.proxy(9);
    let failing = S3Storage::open("s3://large/y", &server.settings_by(&proxy.endpoint())).unwrap();
    failing.put(&key, &[&one, &other], PutMode::Create).unwrap();
    assert!(read(&failing, &key) == [&one[..], &other].concat());
}

/// The answer says that the upload was completed, and holds an error.
#[test]
fn a_completion_that_fails_in_an_answer_of_success_is_tried_again() {
    let Some(server) = Server::start() else { return };
    let (key, body) = (Key::new("large").unwrap(), vec![7; 20 << 20]);
    for (times, succeeds) in [(2, true), (u64::MAX, false)] {
        let proxy = server.failing_completions(times);
        let settings = Settings { retries: Some(3), ..server.settings_by(&proxy.endpoint()) };
        let location = format!("s3://{BUCKET}/completed/{succeeds}");
        let storage = S3Storage::open(&location, &settings).unwrap();
        let put = storage.put(&key, &[&body], PutMode::Create);
        assert!(proxy.faults() > 2, "{}", proxy.faults());
        if succeeds {
            put.unwrap();
            assert!(read(&storage, &key) == body);
        } else {
            let error = put.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("InternalError"), "{error}");
            assert!(storage.head(&key).is_err());
        }
    }
}

/// More than a page of names that are none of ours, before and between ours.
#[test]
fn what_others_put_before_our_objects_hides_none_of_them() {
    let Some(server) = Server::start() else { return };
    let open = |folder: &str| {
        let location = format!("s3://{BUCKET}/{folder}");
        S3Storage::open(&location, &server.settings()).unwrap()
    };
    let storage = open("hidden");
    let keys = ["series/a", "series/b"].map(|name| Key::new(name).unwrap());
    keys.iter().for_each(|key| storage.put(key, &[b"x"], PutMode::Create).unwrap());
    for folder in ["hidden/series/!", "hidden/series/aA"] {
        let others = open(folder);
        std::thread::scope(|scope| {
            for part in 0..8 {
                let others = &others;
                scope.spawn(move || {
                    for number in 0..130 {
                        let key = Key::new(format!("{part}.{number}")).unwrap();
                        others.put(&key, &[b""], PutMode::Create).unwrap();
                    }
                });
            }
        });
    }
    let all: Vec<Key> = list_all(&storage, "series/", None).map(|item| item.unwrap().0).collect();
    assert_eq!(all, keys);
    let behind = list_all(&storage, "series/", Some(keys[0].clone())).map(|item| item.unwrap().0);
    assert_eq!(behind.collect::<Vec<_>>(), keys[1..]);
    let page = storage.list("series/", Some(&keys[1])).unwrap();
    assert!(page.objects.is_empty() && !page.truncated, "{page:?}");
}

#[test]
fn an_object_keeps_the_tag_that_it_was_given() {
    let Some(server) = Server::start() else { return };
    let location = format!("s3://{BUCKET}/tags");
    let storage = S3Storage::open(&location, &server.settings()).unwrap();
    let keys: Vec<Key> = (0..3).map(|n| Key::new(format!("a/b{n}")).unwrap()).collect();
    let tags = |after| storage.list_tagged("a/", after).unwrap().tags.unwrap();
    let put = |key: &Key, bytes: &'static [u8]| {
        storage.put_tagged(key, &[bytes.into()], PutMode::Create).unwrap().unwrap()
    };
    let given: Vec<_> = keys.iter().map(|key| (key.clone(), put(key, b"bytes"))).collect();
    assert_eq!(tags(None), given);
    assert_eq!(tags(Some(&keys[0])), given[1..]);
    // Another object of the name has another one.
    storage.delete(&keys[..1]).unwrap();
    assert_ne!(put(&keys[0], b"other bytes"), given[0].1);
    assert_ne!(tags(None)[0], given[0]);
}

#[test]
fn requests_are_counted() {
    let Some(server) = Server::start() else { return };
    let location = format!("s3://{BUCKET}/counted");
    let storage = S3Storage::open(&location, &server.settings()).unwrap();
    let key = Key::new("a/b").unwrap();
    storage.put(&key, &[b"12", b"345"], PutMode::Create).unwrap();
    let mut bytes = Vec::new();
    storage.get(&key, ByteRange::Tail(2), &mut bytes).unwrap();
    assert_eq!(bytes, b"45");
    storage.list("a/", None).unwrap();
    storage.delete(&[key]).unwrap();
    let usage = storage.usage().unwrap();
    assert_eq!((usage.puts, usage.gets, usage.lists, usage.deletes), (1, 1, 1, 1));
    assert_eq!((usage.sent_bytes, usage.received_bytes, usage.requests()), (5, 2, 4));
}

#[test]
fn the_conformance_suite_passes_on_a_network_that_fails() {
    let Some(server) = Server::start() else { return };
    let proxy = server.proxy(5);
    let settings = server.settings_by(&proxy.endpoint());
    let number = AtomicU32::new(0);
    conformance::run(&|| {
        let folder = number.fetch_add(1, Ordering::Relaxed);
        let location = format!("s3://{BUCKET}/faults/{folder}");
        Box::new(S3Storage::open(&location, &settings).unwrap())
    });
    assert!(proxy.faults() > 5, "{}", proxy.faults());
}
