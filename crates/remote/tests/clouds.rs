//! The storage on Azurite, and on a MinIO that is asked as Google's store is; both started here.
#![cfg(all(feature = "azure", feature = "google"))]

use std::sync::atomic::{AtomicU32, Ordering};

use silt_format::ErrorKind;
use silt_remote::server::{Azurite, BUCKET, Google};
use silt_remote::{CloudStorage, Settings};
use silt_storage::{Key, Storage, conformance};

type Open = fn(&str, &Settings) -> silt_format::Result<CloudStorage>;

fn conforms(settings: &Settings, scheme: &str, open: Open) {
    let number = AtomicU32::new(0);
    conformance::run(&|| {
        let folder = number.fetch_add(1, Ordering::Relaxed);
        Box::new(opened(open(&format!("{scheme}://{BUCKET}/suite/{folder}"), settings)))
    });
    let storage = opened(open(&format!("{scheme}://{BUCKET}"), settings));
    assert!(storage.list("", None).is_ok_and(|page| !page.objects.is_empty()));
    let usage = storage.usage().unwrap_or_default();
    assert_eq!((usage.lists, usage.requests()), (1, 1));
}

fn opened(storage: silt_format::Result<CloudStorage>) -> CloudStorage {
    storage.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_container_of_azure_passes_the_conformance_suite() {
    let Some(azurite) = Azurite::start() else { return };
    conforms(&azurite.settings(), "az", CloudStorage::azure);
    let missing = opened(CloudStorage::azure("az://no-such-box/x", &azurite.settings()));
    let error = missing.list("", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRepository, "{error}");
}

#[test]
fn a_bucket_of_google_passes_the_conformance_suite() {
    let Some(google) = Google::start() else { return };
    conforms(&google.settings(), "gs", CloudStorage::google);
}

#[test]
fn what_is_wrong_with_settings_is_said() {
    let none = Settings::default();
    assert!(CloudStorage::azure("az://", &none).is_err());
    assert!(CloudStorage::azure("az://box", &none).is_err());
    let storage = CloudStorage::google("gs://b/x", &Settings { retries: Some(0), ..none });
    let error = storage.and_then(|storage| storage.head(&Key::new("config")?).map(drop));
    assert!(error.is_err());
}
