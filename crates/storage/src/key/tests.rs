use silt_format::ErrorKind;

use super::*;

#[test]
fn ordinary_names_are_allowed() {
    let longest = format!("{}/{}", "a".repeat(255), "b".repeat(255));
    for name in ["a", "0", "-", "_x", "heads/vm-1/0000001a", "a.b", "a..b", "a./b", &longest] {
        assert_eq!(Key::new(name).unwrap().as_str(), name);
    }
    let full = format!("{}/c", "a/".repeat(255).trim_end_matches('/'));
    assert_eq!(full.len(), 511);
    assert!(Key::new(format!("{full}c")).is_ok(), "512 bytes are allowed");
}

#[test]
fn everything_else_is_refused_and_quoted() {
    let long_part = "a".repeat(256);
    let long_name = format!("{}aaa", "a/".repeat(255));
    assert_eq!(long_name.len(), 513);
    for name in [
        "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/.b", ".tmp/x", "A", "a b",
        "a\0", "a\n", "ä", "a\\b", "a+b", "a:b", "a%2f", &long_part, &long_name,
    ] {
        let error = Key::new(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
        let start: String = name.chars().take(80).collect();
        assert!(error.to_string().contains(&format!("{start:?}")), "{error}");
    }
}

#[test]
fn a_refused_name_from_outside_makes_no_endless_message() {
    let error = Key::new("Ä".repeat(100_000)).unwrap_err();
    assert!(error.to_string().len() < 400, "{}", error.to_string().len());
}

#[test]
fn join_checks_the_result() {
    let key = Key::new("heads").unwrap();
    assert_eq!(key.join("vm-1/7").unwrap().as_str(), "heads/vm-1/7");
    for below in ["", "..", "/x", "X"] {
        assert_eq!(key.join(below).unwrap_err().kind(), ErrorKind::Invalid, "{below:?}");
    }
}

#[test]
fn order_is_that_of_the_bytes() {
    let sorted = ["a", "a-b", "a.b", "a/b", "a0", "a_b", "aa"];
    let keys: Vec<Key> = sorted.iter().map(|name| Key::new(*name).unwrap()).collect();
    assert!(keys.is_sorted());
}

#[test]
fn ancestors_are_the_shorter_names() {
    let key = Key::new("a/b/c").unwrap();
    assert_eq!(key.ancestors().collect::<Vec<_>>(), ["a", "a/b"]);
    assert_eq!(Key::new("a").unwrap().ancestors().count(), 0);
}
