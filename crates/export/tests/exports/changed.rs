//! The contexts `silt:changed-since`: which ranges may differ between two snapshots.

use std::sync::Arc;

use silt_export::nbd::ServerOptions;
use silt_source::nbd::wire::{command, option, option_reply};
use silt_storage::MemoryStorage;

use crate::client::{Running, contexts_of};
use crate::kit::{backup, init, noise};

const MIB: usize = 1 << 20;

/// What `silt:changed-since` says of `new` against `old`, asked for in requests of `step` bytes.
fn changed(old: &[u8], new: &[u8], step: usize) -> Vec<(usize, usize)> {
    let storage = Arc::new(MemoryStorage::new());
    let repository = init(storage.clone());
    let first = backup(&repository, "vm", &[("disk", old)]);
    backup(&repository, "vm", &[("disk", new)]);
    let running = Running::start(storage, &[], ServerOptions::default());
    let context = format!("silt:changed-since:{first}");
    let mut client = running.open("vm@latest:disk", &["base:allocation", &context]);
    let (mut spans, mut at): (Vec<(usize, usize)>, usize) = (Vec::new(), 0);
    while at < new.len() {
        let length = u32::try_from(step.min(new.len() - at)).unwrap();
        client.request(command::BLOCK_STATUS, 0, 1, at as u64, length);
        let contexts = client.extents(1);
        assert_eq!(contexts.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2]);
        let mut end = at;
        for (length, state) in &contexts[1].1 {
            let next = end + *length as usize;
            assert!(*length > 0 && *state <= 1);
            if *state == 1 {
                match spans.last_mut() {
                    Some((_, last)) if *last == end => *last = next,
                    _ => spans.push((end, next)),
                }
            }
            end = next;
        }
        assert!(end > at && end <= at + length as usize);
        at = end;
    }
    spans
}

fn write(image: &[u8], changes: &[(usize, usize, u8)]) -> Vec<u8> {
    let mut image = image.to_vec();
    for (at, length, byte) in changes {
        image[*at..*at + *length].fill(*byte);
    }
    image
}

/// Every byte that differs is in a span.
fn cover(spans: &[(usize, usize)], old: &[u8], new: &[u8]) {
    for (at, byte) in new.iter().enumerate() {
        if old.get(at) != Some(byte) {
            assert!(spans.iter().any(|(start, end)| (*start..*end).contains(&at)), "{at}");
        }
    }
}

#[test]
fn exactly_the_blocks_that_were_written_differ() {
    let old = [noise(3, 5 * MIB), vec![0; 6 * MIB], noise(4, 3 * MIB + 777)].concat();
    // In data, across a border of segments, in zeros, to zeros, the last byte.
    let new = write(
        &old,
        &[
            (10_000, 1, 1),
            (2 * MIB - 10, 20, 2),
            (7 * MIB + 5, 3, 3),
            (12 * MIB, 8192, 0),
            (14 * MIB + 776, 1, 5),
        ],
    );
    let expected = [
        (8192, 12_288),
        (2 * MIB - 4096, 2 * MIB + 4096),
        (7 * MIB, 7 * MIB + 4096),
        (12 * MIB, 12 * MIB + 8192),
        (14 * MIB, 14 * MIB + 777),
    ];
    for step in [32 * MIB, 3 * MIB + 11, 4096] {
        let spans = changed(&old, &new, step);
        assert_eq!(spans, expected, "asked {step} bytes at a time");
        cover(&spans, &old, &new);
    }
}

#[test]
fn what_is_beyond_the_end_of_the_older_volume_differs() {
    let old = noise(5, 3 * MIB + 100);
    let longer = [old.clone(), vec![0; 2 * MIB]].concat();
    let spans = changed(&old, &longer, 32 * MIB);
    assert_eq!(spans.last().unwrap().1, longer.len());
    cover(&spans, &old, &longer);
    assert!(spans.iter().all(|(start, _)| *start >= 3 * MIB), "{spans:?}");
    let shorter = old[..2 * MIB + 5000].to_vec();
    let spans = changed(&old, &shorter, 32 * MIB);
    cover(&spans, &old, &shorter);
    assert!(spans.iter().all(|(start, _)| *start >= 2 * MIB), "{spans:?}");
}

#[test]
fn the_same_differs_nowhere() {
    let image = [noise(6, 3 * MIB), vec![0; 3 * MIB]].concat();
    assert_eq!(changed(&image, &image, 32 * MIB), []);
    assert_eq!(changed(&[], &[], 1), []);
    assert_eq!(changed(&vec![0; MIB], &vec![0; MIB], 32 * MIB), []);
}

#[test]
fn snapshots_of_the_same_series_alone_are_compared() {
    let storage = Arc::new(MemoryStorage::new());
    let repository = init(storage.clone());
    let first = backup(&repository, "vm", &[("disk", b"one")]).to_string();
    let other = backup(&repository, "mail", &[("disk", b"one")]);
    let lacks = backup(&repository, "vm", &[("swap", b"one")]);
    backup(&repository, "vm", &[("disk", b"two")]);
    let running = Running::start(storage, &[], ServerOptions::default());
    let mut client = running.haggle();
    client.ask(option::STRUCTURED_REPLY, b"");
    let mut selects = |name: &str| {
        let query = format!("silt:changed-since:{name}");
        let data = contexts_of("vm@latest:disk", &[&query]);
        let (reply, said) = client.ask(option::SET_META_CONTEXT, &data);
        assert_eq!(reply, option_reply::ACK);
        let names = said.iter().map(|(_, data)| String::from_utf8(data[4..].to_vec()).unwrap());
        let names: Vec<String> = names.collect();
        assert!(names.iter().all(|name| *name == query), "a context is called as it was asked for");
        names.len() == 1
    };
    assert!(selects(&first));
    assert!(selects(&first[..12]));
    assert!(selects("latest"));
    assert!(selects("vm@latest"));
    assert!(!selects(&other.to_string()), "of another series");
    assert!(!selects(&lacks.to_string()), "without the volume");
    assert!(!selects("0000000000000000"));
    assert!(!selects(""));
    assert!(!selects("../../etc"));
}
