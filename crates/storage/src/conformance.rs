//! What every [`Storage`] must do, as a suite that any implementation can be put through.

mod listing;
mod objects;

use std::thread;

use silt_format::{Error, ErrorKind, Result};

use crate::{ByteRange, Key, PutMode, Storage};

/// Puts storages made by `make` through every check; panics at the first that fails.
///
/// Each check gets a storage of its own, which must be empty. The whole suite makes about 2,300
/// objects and 20 MiB.
pub fn run(make: &dyn Fn() -> Box<dyn Storage>) {
    objects::create_if_absent(&*make());
    objects::racing_creators(&*make());
    objects::ranges(&*make());
    objects::refused_ranges(&*make());
    objects::empty_objects(&*make());
    objects::large_bodies_in_pieces(&*make());
    objects::writes_are_seen(&*make());
    objects::deletes(&*make());
    objects::missing_objects(&*make());
    listing::order_and_prefixes(&*make());
    listing::pages(&*make());
    listing::nothing_to_list(&*make());
    listing::changes_between_pages(&*make());
}

/// The value, or a panic that says what failed.
#[track_caller]
fn must<T>(what: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// The error, or a panic that says what should have failed; its kind must be `kind`.
#[track_caller]
fn must_fail<T>(what: &str, kind: ErrorKind, result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("{what} succeeded; it should have failed with {kind:?}"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{what} failed with the wrong kind: {error}");
            error
        }
    }
}

#[track_caller]
fn key(name: &str) -> Key {
    must("a name of the suite", Key::new(name))
}

#[track_caller]
fn put(storage: &dyn Storage, name: &str, body: &[u8]) {
    let what = format!("put {name}");
    must(&what, storage.put(&key(name), &[body], PutMode::Create));
}

/// Puts many small objects, some at a time; each holds as many bytes as its name.
fn put_all(storage: &dyn Storage, names: &[String]) {
    const THREADS: usize = 8;
    thread::scope(|scope| {
        for part in names.chunks(names.len().div_ceil(THREADS).max(1)) {
            scope.spawn(move || part.iter().for_each(|name| put(storage, name, name.as_bytes())));
        }
    });
}

#[track_caller]
fn get(storage: &dyn Storage, name: &str, range: ByteRange) -> Vec<u8> {
    // What was in the buffer before must not show.
    let mut bytes = b"left over".to_vec();
    must(&format!("get {range:?} of {name}"), storage.get(&key(name), range, &mut bytes));
    bytes
}
