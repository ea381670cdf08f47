//! The storage on a real server: MinIO, started here.

use std::sync::atomic::{AtomicU32, Ordering};

use silt_format::ErrorKind;
use silt_s3::server::{BUCKET, Server};
use silt_s3::{S3Storage, Settings};
use silt_storage::{ByteRange, Key, PutMode, Storage, conformance};

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
    let usage = storage.usage();
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
