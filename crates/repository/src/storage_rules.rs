//! Rules for storages, which know nothing of a repository's objects: which objects to cache, and
//! which objects are in the places of the shared store.

use silt_format::names::{self, Numbered};
use silt_format::number::to_u64;
use silt_format::{FOOTER_BYTES, Footer, HEADER_BYTES};
use silt_storage::{BEGINNING_BYTES, CachePolicy, End, Keep, Key, Named, Place};

// Headers are what the cache tells objects of one name apart by.
const _: () = assert!(HEADER_BYTES == BEGINNING_BYTES);

/// The objects of a repository to cache if storage is far away: objects of which many small parts
/// are read, those that every process reads, and the directories of containers.
pub const CACHE_POLICY: CachePolicy = CachePolicy { keep, end: directory };

/// The same for processes that only read. Containers have names that are never used again, so
/// cached directories are taken without asking the storage whether the containers are still there:
/// who reads frames finds that out. Who writes must know, or would refer to what is gone.
pub const READER_CACHE_POLICY: CachePolicy = CachePolicy { keep: keep_for_readers, ..CACHE_POLICY };

fn keep_for_readers(key: &Key) -> Keep {
    match keep(key) {
        Keep::Ends => Keep::SettledEnds,
        other => other,
    }
}

fn keep(key: &Key) -> Keep {
    let name = key.as_str();
    let begins = |prefix: &str| name.starts_with(prefix);
    // Snapshots are named by random numbers; a configuration that does not belong to the keys is
    // read again.
    if [names::CONFIG, "snapshots/"].into_iter().any(begins) {
        Keep::Settled
    } else if begins("containers/") {
        Keep::Ends
    } else if [names::SERIES, names::KEYS, names::WRITERS].into_iter().any(begins)
        || [Numbered::Head, Numbered::Places].iter().any(|it| it.is(name))
    {
        Keep::Listed
    } else if begins("recipes/") || begins("runs/") {
        Keep::Whole
    } else {
        Keep::Nothing
    }
}

/// The directory, the copy of the header and the footer at the end of a container.
fn directory(last: &[u8]) -> Option<End> {
    let footer = Footer::decode(last.last_chunk::<FOOTER_BYTES>()?).ok()?;
    let bytes = u64::from(footer.directory_bytes) + to_u64(footer.end_bytes());
    let object_bytes = footer.directory_offset.checked_add(bytes)?;
    let copy = last.len().checked_sub(footer.end_bytes()).filter(|_| footer.has_header);
    let beginning = copy.and_then(|from| last[from..].first_chunk().copied());
    Some(End { offset: footer.directory_offset, object_bytes, beginning })
}

/// Where objects are if those of one store are kept apart: it is the second part of their names.
pub(crate) fn place_of(store: &str, named: Named<'_>) -> Option<Place> {
    let (mut parts, is_whole) = match named {
        Named::Object(key) => (key.as_str().split('/'), true),
        Named::Prefix(prefix) => (prefix.split('/'), false),
    };
    let second = parts.nth(1)?;
    // The last part of a prefix goes on.
    let is_known = is_whole || parts.next().is_some();
    is_known.then(|| if second == store { Place::Apart } else { Place::Main })
}

#[cfg(test)]
mod tests {
    use silt_format::{Id, ObjectTag, SeriesId};

    use super::*;

    const STORE: SeriesId = SeriesId([7; 12]);
    const OTHER: SeriesId = SeriesId([8; 12]);

    fn kept(name: &str) -> Keep {
        (CACHE_POLICY.keep)(&Key::new(name).unwrap())
    }

    #[test]
    fn each_kind_of_object_has_its_rule() {
        let tag = ObjectTag::from_bits(1);
        assert_eq!(kept(&names::container(STORE, 1, tag)), Keep::Ends);
        assert_eq!(kept(&names::pack(STORE, 1, tag)), Keep::Whole);
        assert_eq!(kept(&Numbered::Head.name(STORE, 1)), Keep::Listed);
        assert_eq!(kept(&names::series(STORE)), Keep::Listed);
        assert_eq!(kept(&Numbered::Places.name(SeriesId::NONE, 7)), Keep::Listed);
        // The same number comes back with another list after a rollback, and somebody may destroy
        // the keys.
        assert_eq!(kept(&format!("{}fffffffffffffffd", names::WRITERS)), Keep::Listed);
        assert_eq!(kept(&format!("{}cf1e66c7bf2f9631", names::KEYS)), Keep::Listed);
        assert_eq!(kept(&Numbered::Lease.name(STORE, 1)), Keep::Nothing);
        assert_eq!(kept(names::CONFIG), Keep::Settled);
        let of_readers = |name: &str| (READER_CACHE_POLICY.keep)(&Key::new(name).unwrap());
        assert_eq!(of_readers(&names::container(STORE, 1, tag)), Keep::SettledEnds);
        assert_eq!(of_readers(&names::pack(STORE, 1, tag)), Keep::Whole);
        assert_eq!(of_readers(&names::run(STORE, Id(1), 0)), Keep::Whole);
        assert_eq!(of_readers(&Numbered::Head.name(STORE, 1)), Keep::Listed);
    }

    #[test]
    fn the_end_of_a_container_is_its_directory() {
        let (directory_offset, directory_bytes) = (5000, 300);
        let footer = Footer { directory_offset, directory_bytes, has_header: false };
        let bytes = [&[1; 40][..], &footer.encode()].concat();
        let found = End { offset: 5000, object_bytes: 5332, beginning: None };
        assert_eq!((CACHE_POLICY.end)(&bytes), Some(found));
        let bytes = |before: &[u8]| {
            [before, &[7; 96], &Footer { has_header: true, ..footer }.encode()].concat()
        };
        let found = End { offset: 5000, object_bytes: 5428, beginning: Some([7; 96]) };
        assert_eq!((CACHE_POLICY.end)(&bytes(&[])), Some(found));
        let bytes = bytes(&[1; 40]);
        assert_eq!((CACHE_POLICY.end)(&bytes), Some(found));
        assert_eq!((CACHE_POLICY.end)(&bytes[41..]), Some(End { beginning: None, ..found }));
        assert_eq!((CACHE_POLICY.end)(&bytes[..bytes.len() - 1]), None);
        assert_eq!((CACHE_POLICY.end)(&bytes[bytes.len() - 31..]), None);
        let endless = Footer { directory_offset: u64::MAX, ..footer };
        assert_eq!((CACHE_POLICY.end)(&endless.encode()), None);
    }

    #[test]
    fn the_shared_store_s_objects_are_apart() {
        let store = STORE.to_string();
        let object = |name: &str| place_of(&store, Named::Object(&Key::new(name).unwrap()));
        let prefix = |name: &str| place_of(&store, Named::Prefix(name));
        let tag = ObjectTag::from_bits(1);
        for name in [names::container(STORE, 1, tag), names::series(STORE)] {
            assert_eq!(object(&name), Some(Place::Apart), "{name}");
        }
        for name in [names::container(OTHER, 1, tag), names::series(OTHER)] {
            assert_eq!(object(&name), Some(Place::Main), "{name}");
        }
        assert_eq!(object(names::CONFIG), None);
        assert_eq!(prefix(&names::containers(STORE)), Some(Place::Apart));
        assert_eq!(prefix(&Numbered::Head.prefix(STORE)), Some(Place::Apart));
        assert_eq!(prefix(&names::containers(OTHER)), Some(Place::Main));
        // The store's own record has no more parts, so that its name as a prefix may be both.
        for both in ["", "containers/", names::ROOT, &names::series(STORE)] {
            assert_eq!(prefix(both), None, "{both}");
        }
    }
}
