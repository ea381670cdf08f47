//! The conformance suite for [`Storage`] implementations.

mod listing;
mod objects;

use std::thread;

use silt_format::{Error, ErrorKind, Result};

use crate::{ByteRange, Key, PutMode, Storage};

/// Runs every check on storages created by `make`; panics at the first failure.
///
/// Each check gets its own storage, which must be empty. The whole suite creates about 2,300
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

/// Returns the value; panics with the failed operation.
#[track_caller]
fn must<T>(what: &str, result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Returns the error, which must be of `kind`; panics if the operation succeeded.
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

/// Puts many small objects, several concurrently; each is as long as its name.
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
    // Old contents of the buffer must not remain.
    let mut bytes = b"left over".to_vec();
    must(&format!("get {range:?} of {name}"), storage.get(&key(name), range, &mut bytes));
    bytes
}
