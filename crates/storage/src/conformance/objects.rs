//! Checks of single objects.

use std::sync::Barrier;
use std::thread;

use silt_format::ErrorKind;

use super::{get, key, must, must_fail, put};
use crate::{ByteRange, PutMode, READ_BYTES_MAX, Storage};

pub(super) fn create_if_absent(storage: &dyn Storage) {
    put(storage, "heads/1", b"first");
    for body in [&b"second"[..], b"first", b""] {
        let again = storage.put(&key("heads/1"), &[body], PutMode::Create);
        let error = must_fail("a put where an object is", ErrorKind::AlreadyExists, again);
        let names_it = error.to_string().contains("heads/1");
        assert!(names_it, "the error does not name the object: {error}");
    }
    let kept = get(storage, "heads/1", ByteRange::Full);
    assert_eq!(kept, b"first", "a refused put changed the object");
}

pub(super) fn racing_creators(storage: &dyn Storage) {
    const THREADS: u8 = 8;
    const ROUNDS: u32 = 20;
    for round in 0..ROUNDS {
        let name = format!("race/{round}");
        let start = Barrier::new(usize::from(THREADS));
        let create = |creator: u8| {
            // Of different lengths, so that a mixture of two would show.
            let body = vec![creator; 1000 + usize::from(creator)];
            start.wait();
            (body.clone(), storage.put(&key(&name), &[&body], PutMode::Create))
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let creators: Vec<_> =
                (0..THREADS).map(|creator| scope.spawn(move || create(creator))).collect();
            creators.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let mut winners = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok((body, Ok(()))) => winners.push(body),
                Ok((_, lost)) => {
                    must_fail("a put that lost the race", ErrorKind::AlreadyExists, lost);
                }
                Err(_) => panic!("a creator of {name} panicked"),
            }
        }
        assert_eq!(winners.len(), 1, "{} of {THREADS} creators of {name} won", winners.len());
        let stands = get(storage, &name, ByteRange::Full);
        assert!(stands == winners[0], "{name} does not hold what its one creator wrote");
    }
}

pub(super) fn ranges(storage: &dyn Storage) {
    let body: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    put(storage, "containers/00/a", &body);
    let read = |range| get(storage, "containers/00/a", range);
    assert!(read(ByteRange::Full) == body, "a full read differs from what was put");
    for (offset, length) in
        [(0, 0), (0, 1), (0, 10_000), (1, 9_999), (4_096, 4_096), (9_999, 1), (5, 0), (10_000, 0)]
    {
        let bytes = read(ByteRange::Bounded { offset: offset as u64, length: length as u64 });
        let expected = &body[offset..offset + length];
        assert!(bytes == expected, "{length} bytes at {offset} are not those that were put");
    }
    for length in [0, 1, 4_096, 9_999, 10_000] {
        let bytes = read(ByteRange::Tail(length as u64));
        assert!(bytes == body[10_000 - length..], "the last {length} bytes are not those put");
    }
    for length in [10_001, READ_BYTES_MAX, READ_BYTES_MAX + 1, u64::MAX] {
        let bytes = read(ByteRange::Tail(length));
        assert!(bytes == body, "a tail of {length} bytes is not the whole object");
    }
}

pub(super) fn refused_ranges(storage: &dyn Storage) {
    put(storage, "containers/00/a", &[7; 1_234]);
    for (offset, length) in
        [(0, 1_235), (1_234, 1), (1_235, 0), (1_000, 235), (u64::MAX, 1), (1, u64::MAX)]
    {
        let what = format!("reading {length} bytes at {offset} of 1234");
        let mut bytes = b"left over".to_vec();
        let range = ByteRange::Bounded { offset, length };
        let refused = storage.get(&key("containers/00/a"), range, &mut bytes);
        let text = must_fail(&what, ErrorKind::Corrupt, refused).to_string();
        for part in ["containers/00/a", "1234", &offset.to_string(), &length.to_string()] {
            assert!(text.contains(part), "{what}: the error does not say {part}: {text}");
        }
        assert!(bytes.is_empty(), "{what} left {} bytes in the buffer", bytes.len());
    }
}

pub(super) fn empty_objects(storage: &dyn Storage) {
    let bodies: [(&str, &[&[u8]]); 3] =
        [("empty/none", &[]), ("empty/one", &[b""]), ("empty/two", &[b"", b""])];
    for (name, body) in bodies {
        must("put an empty object", storage.put(&key(name), body, PutMode::Create));
        assert_eq!(must("head", storage.head(&key(name))).size, 0, "the size of {name}");
        for range in [
            ByteRange::Full,
            ByteRange::Tail(0),
            ByteRange::Tail(9),
            ByteRange::Bounded { offset: 0, length: 0 },
        ] {
            assert!(get(storage, name, range).is_empty(), "{range:?} of {name} is not empty");
        }
        let again = storage.put(&key(name), &[b"x"], PutMode::Create);
        must_fail("a put where an empty object is", ErrorKind::AlreadyExists, again);
    }
    let listed = must("list", storage.list("empty/", None)).objects;
    assert_eq!(listed, bodies.map(|(name, _)| (key(name), 0)), "the empty objects listed");
}

pub(super) fn large_bodies_in_pieces(storage: &dyn Storage) {
    const BYTES: usize = 20 << 20;
    let body: Vec<u8> =
        (0..BYTES as u64).map(|at| (at.wrapping_mul(at) >> 7).to_le_bytes()[0]).collect();
    // More pieces than one system call takes, of all sizes, empty ones among them.
    let mut pieces: Vec<&[u8]> = Vec::new();
    let mut rest = body.as_slice();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((pieces.len() * 37 % 9_001).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    assert!(pieces.len() > 3_000, "{} pieces", pieces.len());
    let name = "containers/large";
    must("put 20 MiB in pieces", storage.put(&key(name), &pieces, PutMode::Create));
    assert_eq!(must("head", storage.head(&key(name))).size, BYTES as u64);
    assert!(get(storage, name, ByteRange::Full) == body, "20 MiB came back changed");
    let middle = ByteRange::Bounded { offset: 10_000_001, length: 5_000_003 };
    assert!(get(storage, name, middle) == body[10_000_001..15_000_004], "a large range differs");
    assert!(get(storage, name, ByteRange::Tail(77)) == body[BYTES - 77..], "its tail differs");
}

pub(super) fn writes_are_seen(storage: &dyn Storage) {
    let promised = storage.guarantees();
    for number in 0..50 {
        let name = format!("seen/{number:02}");
        put(storage, &name, name.as_bytes());
        if promised.read_after_write {
            assert_eq!(get(storage, &name, ByteRange::Full), name.as_bytes());
            let size = must("head", storage.head(&key(&name))).size;
            assert_eq!(size, name.len() as u64, "the size of {name}");
        }
        if promised.list_after_write {
            let listed = must("list", storage.list("seen/", None)).objects;
            assert_eq!(listed.len(), number + 1, "objects listed after {name} was put");
            assert_eq!(listed[number], (key(&name), name.len() as u64));
        }
    }
    assert!(!storage.describe().is_empty(), "the storage has no description");
}

pub(super) fn deletes(storage: &dyn Storage) {
    for name in ["d/1", "d/2", "d/3", "d/4", "d/deep/er/5"] {
        put(storage, name, b"x");
    }
    must("delete nothing", storage.delete(&[]));
    let doomed = [key("d/2"), key("d/absent"), key("no/such/folder"), key("d/deep/er/5")];
    for time in ["once", "twice"] {
        must(&format!("delete {time}"), storage.delete(&doomed));
        let left: Vec<_> = must("list", storage.list("", None)).objects;
        let names: Vec<_> = left.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(names, ["d/1", "d/3", "d/4"], "what is left after deleting {time}");
    }
    let mut bytes = Vec::new();
    let gone = storage.get(&key("d/2"), ByteRange::Full, &mut bytes);
    must_fail("reading a deleted object", ErrorKind::NotFound, gone);
    must_fail("head of a deleted object", ErrorKind::NotFound, storage.head(&key("d/2")));
    put(storage, "d/2", b"a new one");
    assert_eq!(get(storage, "d/2", ByteRange::Full), b"a new one");
    must("delete with a repeated name", storage.delete(&[key("d/1"), key("d/1")]));
    // Below an object, and the name that others lie under, there is nothing to delete.
    must("delete what cannot exist", storage.delete(&[key("d/3/x"), key("d")]));
    assert_eq!(must("list", storage.list("d", None)).objects.len(), 3, "objects left");
}

pub(super) fn missing_objects(storage: &dyn Storage) {
    put(storage, "there/is", b"one");
    // In a folder that is there, in none, under an object, over an object, a mere beginning.
    for name in ["there/isnt", "no/folder/x", "there/is/x", "there", "there/i"] {
        let mut bytes = b"left over".to_vec();
        for range in
            [ByteRange::Full, ByteRange::Tail(1), ByteRange::Bounded { offset: 0, length: 0 }]
        {
            let missing = storage.get(&key(name), range, &mut bytes);
            let error = must_fail(&format!("get {name}"), ErrorKind::NotFound, missing);
            assert!(error.to_string().contains(name), "the error does not say {name}: {error}");
            assert!(bytes.is_empty(), "a failed get left {} bytes in the buffer", bytes.len());
        }
        let missing =
            must_fail(&format!("head {name}"), ErrorKind::NotFound, storage.head(&key(name)));
        assert!(missing.to_string().contains(name), "the error does not say {name}: {missing}");
        must(&format!("delete {name}"), storage.delete(&[key(name)]));
    }
    assert_eq!(get(storage, "there/is", ByteRange::Full), b"one");
}
