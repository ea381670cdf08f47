//! Maps in every form, and what is refused.

use std::io::{self, Read};

use proptest::prelude::*;
use silt_format::ErrorKind;

use super::{ChangedMap, MapForm};

const GRAIN: u64 = 2 << 20;

fn parse(json: &str, grains: u64) -> silt_format::Result<ChangedMap> {
    ChangedMap::parse(json.as_bytes(), grains * GRAIN, GRAIN, None)
}

fn changed(map: &ChangedMap) -> Vec<u64> {
    (0..map.grains()).filter(|&grain| map.is_changed(grain)).collect()
}

/// The message of the error, which must be Invalid.
fn refusal(json: &str, grains: u64) -> String {
    let error = parse(json, grains).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    error.to_string()
}

#[test]
fn qemu_img_map_changes_what_the_top_layer_has() {
    let json = r#"[
        { "start": 0, "length": 2097152, "depth": 1, "present": true, "zero": false, "data": true,
          "compressed": false, "offset": 327680, "filename": "base.raw" },
        { "start": 2097152, "length": 1, "depth": 0, "present": true, "zero": true, "data": false },
        { "start": 2097153, "length": 2097151, "depth": 0, "present": false, "zero": true,
          "data": false, "compressed": false },
        { "start": 4194304, "length": 4194304, "depth": 0, "present": true, "zero": false,
          "data": true, "offset": 0 }
    ]"#;
    let map = parse(json, 4).unwrap();
    assert_eq!(map.form(), MapForm::QemuImg);
    assert_eq!(changed(&map), [1, 2, 3]);
    assert_eq!(map.changed_grains(), 3);
    assert!(map.is_changed(4), "nothing is known past the end");
}

#[test]
fn a_map_that_does_not_say_what_is_present_is_read_carefully() {
    let json = r#"[{"start":0,"length":2097152,"depth":0,"zero":true,"data":false},
                   {"start":2097152,"length":2097152,"depth":1,"zero":false,"data":true}]"#;
    assert_eq!(changed(&parse(json, 2).unwrap()), [0]);
}

#[test]
fn nbdinfo_map_changes_what_is_dirty() {
    let json = r#"[{"offset":0,"length":2097152,"type":0,"description":"clean"},
                   {"offset":2097152,"length":65536,"type":1,"description":"dirty"},
                   {"offset":2162688,"length":6225920,"type":0,"description":"clean"}]"#;
    let map = parse(json, 4).unwrap();
    assert_eq!(map.form(), MapForm::NbdInfo);
    assert_eq!(changed(&map), [1]);
}

#[test]
fn rbd_diff_changes_what_it_lists() {
    let json = r#"[{"offset":4194304,"length":4194304,"exists":"true"},
                   {"offset":6291456,"length":4194304,"exists":"false"},
                   {"offset":0,"length":1,"exists":true}]"#;
    let map = parse(json, 6).unwrap();
    assert_eq!(map.form(), MapForm::RbdDiff);
    assert_eq!(changed(&map), [0, 2, 3, 4]);
    let nothing = ChangedMap::parse(&b"[]"[..], 6 * GRAIN, GRAIN, Some(MapForm::RbdDiff));
    assert_eq!(changed(&nothing.unwrap()), [0; 0]);
}

#[test]
fn the_last_grain_may_be_short() {
    let json = r#"[{"offset":2097152,"length":10,"exists":"true"}]"#;
    let map = ChangedMap::parse(json.as_bytes(), GRAIN + 10, GRAIN, None).unwrap();
    assert_eq!((map.grains(), changed(&map)), (2, vec![1]));
    let json = r#"[{"offset":2097152,"length":11,"exists":"true"}]"#;
    assert!(ChangedMap::parse(json.as_bytes(), GRAIN + 10, GRAIN, None).is_err());
}

#[test]
fn an_allocation_map_is_refused_with_the_way_out() {
    let json = r#"[{"offset":0,"length":2097152,"type":3,"description":"hole,zero"}]"#;
    let message = refusal(json, 1);
    assert!(message.contains("element 1"), "{message}");
    assert!(message.contains("--map=qemu:dirty-bitmap:NAME"), "{message}");
}

#[test]
fn gaps_and_short_maps_are_refused() {
    let gap = r#"[{"offset":0,"length":2097152,"type":0,"description":"clean"},
                  {"offset":2097153,"length":2097151,"type":0,"description":"clean"}]"#;
    let message = refusal(gap, 2);
    assert!(message.contains("element 2") && message.contains("2097152"), "{message}");
    let short = r#"[{"start":0,"length":2097152,"depth":0,"present":true}]"#;
    let message = refusal(short, 2);
    assert!(message.contains("2097152") && message.contains("4194304"), "{message}");
    let overlap = r#"[{"start":0,"length":2097153,"depth":0,"present":true},
                      {"start":2097152,"length":2097152,"depth":1,"present":true}]"#;
    assert_eq!(changed(&parse(overlap, 2).unwrap()), [0, 1]);
}

#[test]
fn elements_out_of_form_are_named() {
    let good = r#"{"offset":0,"length":1,"exists":"true"}"#;
    for bad in [
        r#"{"offset":-1,"length":1,"exists":"true"}"#,
        r#"{"offset":0.5,"length":1,"exists":"true"}"#,
        r#"{"offset":"0","length":1,"exists":"true"}"#,
        r#"{"offset":0,"length":1e30,"exists":"true"}"#,
        r#"{"offset":0,"length":1,"exists":"maybe"}"#,
        r#"{"offset":0,"length":1,"exists":[[["true"]]]}"#,
        r#"{"offset":0,"exists":"true"}"#,
        r#"{"length":1,"exists":"true"}"#,
        r#"{"offset":0,"length":1}"#,
        r#"{"offset":0,"length":1,"description":null}"#,
        r#"{"offset":0,"offset":0,"length":1,"exists":"true"}"#,
        r#"{"offset":0,"length":1,"description":"dirty"}"#,
        r#"{"offset":0,"length":18446744073709551615,"exists":"true"}"#,
        r#"{"offset":18446744073709551615,"length":2,"exists":"true"}"#,
        r#"{"offset":2097152,"length":1,"exists":"true"}"#,
        "7",
        "null",
        r#"{"offset":0,"#,
    ] {
        let message = refusal(&format!("[{good}, {bad}]"), 1);
        assert!(message.contains("element 2"), "{bad}: {message}");
    }
    for bad in ["", "{}", "[", "[] x", "\"[]\"", "nonsense"] {
        refusal(bad, 1);
    }
}

#[test]
fn an_endless_string_or_nesting_is_refused() {
    let endless = io::repeat(b'x');
    let json = b"[{\"offset\":0,\"length\":1,\"exists\":\"".chain(endless);
    let error = ChangedMap::parse(json, GRAIN, GRAIN, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let deep = b"[{\"other\":".chain(io::repeat(b'['));
    let error = ChangedMap::parse(deep, GRAIN, GRAIN, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn failing_to_read_is_not_an_invalid_map() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::ConnectionReset))
        }
    }
    let error = ChangedMap::parse(b"[".chain(Failing), GRAIN, GRAIN, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn memory_is_bounded() {
    let largest = 1_u64 << 50;
    let json = format!(r#"[{{"offset":0,"length":{largest},"exists":"true"}}]"#);
    let map = ChangedMap::parse(json.as_bytes(), largest, GRAIN, None).unwrap();
    assert_eq!(map.changed_grains(), largest / GRAIN);
    let error = ChangedMap::parse(b"[]".as_slice(), largest + 1, GRAIN, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

proptest! {
    #[test]
    fn ranges_mark_exactly_what_they_touch(
        ranges in prop::collection::vec((0_u64..3000, 0_u64..600), 0..20)
    ) {
        let (grain, size) = (7, 3600);
        let elements: Vec<_> = ranges
            .iter()
            .map(|(at, length)| format!(r#"{{"offset":{at},"length":{length},"exists":"true"}}"#))
            .collect();
        let json = format!("[{}]", elements.join(","));
        let map = ChangedMap::parse(json.as_bytes(), size, grain, Some(MapForm::RbdDiff)).unwrap();
        for index in 0..map.grains() {
            let (from, to) = (index * grain, (index + 1) * grain);
            let touched = ranges.iter().any(|(at, n)| *n > 0 && *at < to && at + n > from);
            prop_assert_eq!(map.is_changed(index), touched, "grain {}", index);
        }
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = ChangedMap::parse(&bytes[..], 100 * GRAIN, GRAIN, None);
    }
}
