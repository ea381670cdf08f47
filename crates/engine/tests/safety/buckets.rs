//! The same promises on a real object store: MinIO, started here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use silt_remote::S3Storage;
use silt_remote::server::{BUCKET, Server};
use silt_storage::{ByteRange, MemoryStorage, PutMode, Storage, list_all};

use crate::kit;
use crate::{alone, crash, model};

/// How many random sequences are tried; SILT_MODEL_BUCKET_SEQUENCES says otherwise.
const SEQUENCES: u64 = 12;

/// Folders of a bucket, each new.
struct Folders {
    server: Server,
    next: AtomicU32,
}

impl Folders {
    fn new() -> Option<Self> {
        Some(Self { server: Server::start()?, next: AtomicU32::new(0) })
    }

    /// A folder with these objects.
    fn with(&self, objects: &dyn Storage) -> Arc<dyn Storage> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let location = format!("s3://{BUCKET}/{number}");
        let folder = S3Storage::open(&location, &self.server.settings()).unwrap();
        let mut bytes = Vec::new();
        for item in list_all(objects, "", None) {
            let name = item.unwrap().0;
            objects.get(&name, ByteRange::Full, &mut bytes).unwrap();
            folder.put(&name, &[&bytes], PutMode::Create).unwrap();
        }
        Arc::new(folder)
    }
}

#[test]
fn a_backup_to_a_bucket_may_stop_anywhere() {
    let Some(folders) = Folders::new() else { return };
    let image = kit::image(2, 1400);
    let next = kit::changed(&image, 5);
    let wanted = next.clone();
    let place = |objects: MemoryStorage| folders.with(&objects);
    let totals = crash::crash_everywhere_in(&place, &[image], &next, &move |repository| {
        kit::backup(repository, "vm", &wanted).map(|_| ())
    });
    assert!(totals.crashes > 10, "{}", totals.crashes);
}

#[test]
fn random_sequences_on_a_bucket_lose_nothing_and_waste_nothing() {
    let Some(folders) = Folders::new() else { return };
    let sequences = model::sequences("SILT_MODEL_BUCKET_SEQUENCES", SEQUENCES);
    model::try_sequences(sequences, &|| folders.with(&MemoryStorage::new()));
}

#[test]
fn a_backup_to_two_folders_of_a_bucket_may_be_killed() {
    let Some(folders) = Folders::new() else { return };
    alone::kill_in_buckets(&|objects| folders.with(objects));
}
