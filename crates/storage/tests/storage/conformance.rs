//! The suite, run on everything that implements `Storage`.

use std::sync::Arc;

use silt_storage::{
    CachePolicy, CachedStorage, Counted, CrashStorage, CrashingOperation, Fault, FaultStorage,
    Keep, LocalStorage, MemoryStorage, Named, Operation, Place, RecordingStorage, Replica,
    Replicated, Routed, Storage, conformance,
};

#[test]
fn memory() {
    conformance::run(&|| Box::new(MemoryStorage::new()));
}

#[test]
fn local() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        let root = folder.path().join(format!("new/{}", number.get()));
        Box::new(LocalStorage::create(root).unwrap())
    });
}

#[test]
fn pointers() {
    conformance::run(&|| Box::new(Arc::new(MemoryStorage::new())));
    conformance::run(&|| {
        let boxed: Box<dyn Storage> = Box::new(MemoryStorage::new());
        Box::new(boxed)
    });
}

#[test]
fn fault_that_passes() {
    conformance::run(&|| {
        Box::new(FaultStorage::new(MemoryStorage::new(), |_: &Operation, _| Fault::Pass))
    });
}

#[test]
fn recording() {
    conformance::run(&|| Box::new(RecordingStorage::new(MemoryStorage::new())));
}

#[test]
fn crash_that_never_comes() {
    for counted in [Counted::Mutations, Counted::Everything] {
        conformance::run(&|| {
            let memory = MemoryStorage::new();
            Box::new(CrashStorage::new(memory, u64::MAX, counted, CrashingOperation::Lost))
        });
    }
}

#[test]
fn replicated() {
    conformance::run(&|| {
        let replica = |number: u32| Replica {
            node: None,
            is_filling: number > 1,
            location: format!("memory {number}"),
            storage: Ok(Arc::new(MemoryStorage::new()) as Arc<dyn Storage>),
        };
        Box::new(Replicated::new((0..3).map(replica).collect()))
    });
}

/// Keeps objects apart whose names have such a second part.
pub fn place_of(apart: &str, named: Named<'_>) -> Option<Place> {
    let (name, is_whole) = match named {
        Named::Object(key) => (key.as_str(), true),
        Named::Prefix(prefix) => (prefix, false),
    };
    let mut parts = name.split('/').skip(1);
    let second = parts.next()?;
    let is_known = is_whole || parts.next().is_some();
    is_known.then(|| if second == apart { Place::Apart } else { Place::Main })
}

#[test]
fn routed() {
    conformance::run(&|| {
        let memory = || Arc::new(MemoryStorage::new());
        // "b" is the second part of some of the suite's names.
        Box::new(Routed::new(memory(), memory(), |named| place_of("b", named)))
    });
}

#[test]
fn cached() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    conformance::run(&|| {
        number.set(number.get() + 1);
        let cache = folder.path().join(number.get().to_string());
        Box::new(CachedStorage::new(
            Arc::new(MemoryStorage::new()),
            cache,
            CachePolicy {
                keep: |key| match key.as_str().as_bytes()[0] {
                    b'a' | b'c' => Keep::Whole,
                    b'b' => Keep::Settled,
                    b'd' => Keep::Ends,
                    _ => Keep::Nothing,
                },
                end: |_| None,
            },
            1 << 20,
        ))
    });
}
