//! Checks of listings.

use super::{key, must, put, put_all};
use crate::{Key, LIST_PAGE_OBJECTS_MAX, Storage, list_all};

/// Names whose order, prefixes and folders are easy to get wrong.
const NAMES: [&str; 22] = [
    "-", "0", "a-b", "a.b", "a/-", "a/0", "a/b-c", "a/b/c", "a/b/c0", "a/b0", "a/bb/c", "a0",
    "a_b/c", "aa", "ab-/x", "ab/x", "ab/y/z", "ab0/x", "b/a/a", "b/a0", "heads/1", "z",
];

pub(super) fn order_and_prefixes(storage: &dyn Storage) {
    let mut names: Vec<String> = NAMES.map(str::to_owned).to_vec();
    names.reverse();
    put_all(storage, &names);
    names.sort_unstable();

    let prefixes = [
        "", "-", "a", "a-", "a.", "a/", "a/b", "a/b-", "a/b/", "a/b/c", "a/b/c0", "a/b/c00",
        "a/b0", "a0", "aa", "ab", "ab-", "ab-/", "ab/", "ab/y", "ab/y/", "ab/y/z/", "b/", "c",
        "heads/", "heads/1", "heads/10", "zz",
    ];
    let between = ["0/x", "a", "a/b", "a/b/c/d", "ab", "ab/y", "b", "zzz"];
    let afters: Vec<Option<Key>> = std::iter::once(None)
        .chain(NAMES.iter().chain(&between).map(|name| Some(key(name))))
        .collect();
    for prefix in prefixes {
        for after in &afters {
            let what = format!("list {prefix:?} after {after:?}");
            let page = must(&what, storage.list(prefix, after.as_ref()));
            let listed: Vec<(String, u64)> =
                page.objects.iter().map(|(key, size)| (key.to_string(), *size)).collect();
            let start = after.as_ref().map_or("", Key::as_str);
            let expected: Vec<(String, u64)> = names
                .iter()
                .filter(|name| name.starts_with(prefix) && name.as_str() > start)
                .map(|name| (name.clone(), name.len() as u64))
                .collect();
            assert_eq!(listed, expected, "{what}");
            assert!(!page.truncated, "{what}: nothing follows");
        }
    }
}

pub(super) fn pages(storage: &dyn Storage) {
    const PAGE: usize = LIST_PAGE_OBJECTS_MAX;
    // Many in one folder, then many folders with few each: pages end within and between them.
    let mut names: Vec<String> = (0..PAGE).map(|number| format!("a/{number:05}")).collect();
    names.extend((0..1_101).map(|number| format!("b/{:03}/{number:05}", number / 3)));
    names.push("b-before-b".to_owned());
    put_all(storage, &names);
    names.sort_unstable();

    let page = must("list a/", storage.list("a/", None));
    assert_eq!(page.objects.len(), PAGE, "objects on a page that holds all");
    assert!(!page.truncated, "exactly a page of objects is not truncated");

    let mut after = None;
    let mut seen = Vec::new();
    for (objects, truncated) in [(PAGE, true), (PAGE, true), (names.len() - 2 * PAGE, false)] {
        let page = must("list a page", storage.list("", after.as_ref()));
        assert_eq!(page.objects.len(), objects, "objects on the page after {after:?}");
        assert_eq!(page.truncated, truncated, "whether more follow the page after {after:?}");
        seen.extend(page.objects.iter().map(|(key, _)| key.to_string()));
        after = page.objects.last().map(|(key, _)| key.clone());
    }
    assert!(seen == names, "the pages together are not the objects in order");
    let beyond = must("list after the last", storage.list("", after.as_ref()));
    assert!(beyond.objects.is_empty() && !beyond.truncated, "something follows the last object");

    for (prefix, start) in [("", None), ("b", None), ("b/", Some("b/0")), ("", Some("a/00998"))] {
        let all: Vec<String> = list_all(storage, prefix, start.map(key))
            .map(|object| must("list all", object).0.to_string())
            .collect();
        let wanted =
            |name: &&String| name.starts_with(prefix) && name.as_str() > start.unwrap_or("");
        let expected: Vec<String> = names.iter().filter(wanted).cloned().collect();
        assert!(all == expected, "all of {prefix:?} after {start:?}: {} objects", all.len());
    }
}

pub(super) fn nothing_to_list(storage: &dyn Storage) {
    let nothing = |prefix: &str, after: Option<&Key>| {
        let page = must(&format!("list {prefix:?}"), storage.list(prefix, after));
        assert!(page.objects.is_empty(), "{prefix:?} after {after:?} lists {:?}", page.objects);
        assert!(!page.truncated, "an empty page of {prefix:?} is truncated");
    };
    for prefix in ["", "a", "heads/"] {
        nothing(prefix, None);
        nothing(prefix, Some(&key("a/b")));
    }
    put(storage, "a/b", b"x");
    // None of these begins a key, whatever it would mean as a path.
    let endless = "a/".repeat(5_000);
    for prefix in [
        "/", "/a", "a//", "a/b/", ".", "..", "../", "a/../", "./", ".tmp/", "A", "a/B", "a/b\0",
        "ä", "*", &endless,
    ] {
        nothing(prefix, None);
    }
    let count = list_all(storage, "heads/", None).count();
    assert_eq!(count, 0, "listing all of nothing gives {count} items");
}

pub(super) fn changes_between_pages(storage: &dyn Storage) {
    let names: Vec<String> = (0..20).map(|number| format!("c/{number:02}")).collect();
    put_all(storage, &names);
    // A listing goes on after a name even when its object has gone.
    must("delete", storage.delete(&[key("c/07"), key("c/08")]));
    let page = must("list", storage.list("c/", Some(&key("c/07"))));
    let first = page.objects.first().map(|(key, _)| key.as_str());
    assert_eq!(first, Some("c/09"), "the first object after a deleted one");
    assert_eq!(page.objects.len(), 11, "objects after a deleted one");
    put(storage, "c/070", b"x");
    let page = must("list", storage.list("c/", Some(&key("c/07"))));
    let first = page.objects.first().map(|(key, _)| key.as_str());
    assert_eq!(first, Some("c/070"), "the first object is the new one");
}
