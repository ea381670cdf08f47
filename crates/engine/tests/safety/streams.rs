//! Restores to a target that takes the volume from its beginning to its end, by several threads.

use std::io::Write;
use std::sync::{Arc, Mutex};

use silt_format::ErrorKind;
use silt_source::{StreamTarget, VolumeTarget};
use silt_storage::{MemoryStorage, Storage};
use siltstone::{Repository, RestoreOptions, RestoreReport};

use crate::kit::{self, World};

/// What was written so far, by a writer that fails after so many bytes.
#[derive(Clone)]
struct Written {
    bytes: Arc<Mutex<Vec<u8>>>,
    bytes_max: usize,
}

impl Written {
    fn up_to(bytes_max: usize) -> Self {
        Self { bytes: Arc::default(), bytes_max }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = self.bytes.lock().unwrap();
        let length = bytes.len().min(self.bytes_max - written.len());
        if length == 0 && !bytes.is_empty() {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        written.extend_from_slice(&bytes[..length]);
        Ok(length)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn stream(
    repository: &Repository,
    (bytes, options): (usize, RestoreOptions),
) -> (Written, silt_format::Result<RestoreReport>) {
    let written = Written::up_to(usize::MAX);
    let restored = write(repository, &written, (bytes, options));
    (written, restored)
}

fn write(
    repository: &Repository,
    to: &Written,
    (bytes, options): (usize, RestoreOptions),
) -> silt_format::Result<RestoreReport> {
    let found = kit::latest(repository, "vm").unwrap();
    let target: Box<dyn VolumeTarget> =
        Box::new(StreamTarget::new(Box::new(to.clone()), bytes as u64));
    let restored = repository.restore(found.volume("disk").unwrap(), &*target, options)?;
    target.finish().map(|()| restored)
}

#[test]
fn several_threads_write_a_stream_in_order() {
    let storage = Arc::new(MemoryStorage::new());
    // Zeros between, which are one part however long they are.
    let mut image = kit::image(3, 2600);
    image.splice(5_000_000..5_000_000, std::iter::repeat_n(0, 9 << 20));
    kit::backup(&kit::init(storage.clone(), &World::new(1)).unwrap(), "vm", &image).unwrap();
    for request_bytes in [0, 512 << 10] {
        let storage = Arc::new(storage.snapshot().far(request_bytes));
        let repository = kit::open(storage.clone(), &World::new(2)).unwrap();
        for jobs in [0, 1, 2, 7] {
            let options = RestoreOptions { jobs, ..RestoreOptions::default() };
            let (written, restored) = stream(&repository, (image.len(), options));
            assert_eq!(restored.unwrap().bytes, image.len() as u64);
            assert!(written.bytes() == image, "{jobs} threads");
        }
        let range = silt_format::ByteSpan { offset: 3_000_001, length: 6_000_000 };
        let options = RestoreOptions { range: Some(range), jobs: 4, ..RestoreOptions::default() };
        let (written, restored) = stream(&repository, (6_000_000, options));
        restored.unwrap();
        assert!(written.bytes() == image[3_000_001..9_000_001]);
    }
}

#[test]
fn a_stream_whose_reader_goes_away_ends_at_once_with_its_error() {
    let storage = Arc::new(MemoryStorage::new());
    let image = kit::image(3, 5000);
    kit::backup(&kit::init(storage.clone(), &World::new(1)).unwrap(), "vm", &image).unwrap();
    for request_bytes in [0, 512 << 10] {
        let storage = Arc::new(storage.snapshot().far(request_bytes));
        let repository = kit::open(storage, &World::new(2)).unwrap();
        for bytes_max in [0, 1, 1_234_567, 9_999_999, image.len() - 1] {
            for jobs in [1, 4] {
                let to = Written::up_to(bytes_max);
                let options = RestoreOptions { jobs, ..RestoreOptions::default() };
                let error = write(&repository, &to, (image.len(), options)).unwrap_err();
                // Not that of a thread that waited for its turn.
                assert_ne!(error.kind(), ErrorKind::Interrupted, "{error}");
                assert!(error.to_string().contains("broken pipe"), "{error}");
                assert!(to.bytes() == image[..bytes_max], "{jobs} threads");
            }
        }
    }
}

#[test]
fn a_stream_ends_before_the_first_damage_and_says_what_it_is() {
    let storage = Arc::new(MemoryStorage::new());
    let image = kit::image(3, 5000);
    kit::backup(&kit::init(storage.clone(), &World::new(1)).unwrap(), "vm", &image).unwrap();
    let names = storage.list("containers/", None).unwrap().objects;
    assert!(names.len() > 4);
    for (name, _) in &names {
        let storage = Arc::new(storage.snapshot());
        storage.damage(name, |object| object[200] ^= 1).unwrap();
        let repository = kit::open(storage, &World::new(2)).unwrap();
        for _ in 0..5 {
            let options = RestoreOptions { jobs: 4, ..RestoreOptions::default() };
            let (written, restored) = stream(&repository, (image.len(), options));
            let error = restored.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(name.as_str()), "{error}");
            let written = written.bytes();
            assert!(image.starts_with(&written) && written.len() < image.len());
        }
        let options = RestoreOptions { jobs: 4, salvage: true, ..RestoreOptions::default() };
        let (written, restored) = stream(&repository, (image.len(), options));
        let (written, damaged) = (written.bytes(), restored.unwrap().damaged);
        assert!(!damaged.is_empty() && written.len() == image.len());
        for (at, (found, right)) in (0..).zip(written.iter().zip(&image)) {
            let is_damaged =
                || damaged.iter().any(|it| (it.offset..it.offset + it.length).contains(&at));
            assert!(found == right || is_damaged(), "byte {at}");
        }
    }
}
