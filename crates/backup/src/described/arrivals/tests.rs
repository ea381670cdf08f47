//! What is remembered of segments on their way, and how long.

use super::*;
use crate::scan::DraftChunk;

const BYTES: usize = 100;
const DIGEST: SegmentDigest = SegmentDigest { kind: SegmentDigest::OF_CHUNKS, bytes: [1; 16] };

fn print(number: u8) -> Fingerprint {
    Fingerprint([number; 20])
}

fn place(number: u8) -> Reference {
    Reference::new(0, 1, u16::from(number))
}

/// A segment of new chunks with these fingerprints.
fn draft(index: u64, prints: &[u8]) -> SegmentDraft {
    let chunks = prints.iter().enumerate().map(|(at, number)| DraftChunk {
        range: at * BYTES..(at + 1) * BYTES,
        fingerprint: print(*number),
        found: None,
        is_read: true,
        node: 0,
    });
    SegmentDraft {
        index,
        data: Vec::new(),
        chunks: chunks.collect(),
        digest: DIGEST,
        signatures: Signatures([0; 8]),
        parents: Vec::new(),
        parent_numbers: Vec::new(),
        recalled: false,
        is_large: false,
        application: crate::draft::DISKS,
    }
}

/// Segments whose chunks are listed.
fn listed(segments: &[&[u8]]) -> Arrivals {
    let mut arrivals = Arrivals::default();
    for (index, prints) in (0..).zip(segments) {
        arrivals.push(1, State::Listed(DIGEST, Signatures([0; 8]), None));
        arrivals.resolved(index, draft(index, prints)).unwrap();
    }
    arrivals
}

/// Places the next segment as a session does.
fn place_next(arrivals: &mut Arrivals) {
    let arrival = arrivals.pop_complete().unwrap();
    let State::Draft(mut wanting) = arrival.state else { panic!("a draft") };
    arrivals.find_borrowed(&mut wanting);
    let received = wanting.fingerprints();
    let new = |chunk: &&mut DraftChunk| received.contains(&chunk.fingerprint);
    for chunk in wanting.draft.chunks.iter_mut().filter(new) {
        chunk.found = Some((place(chunk.fingerprint.0[0]), Level::New));
    }
    assert!(wanting.draft.chunks.iter().all(|chunk| chunk.found.is_some()));
    arrivals.placed(&wanting);
}

fn coming(arrivals: &Arrivals) -> Vec<u8> {
    let mut all: Vec<u8> = arrivals.coming.keys().map(|print| print.0[0]).collect();
    all.sort_unstable();
    all
}

#[test]
fn chunks_are_forgotten_once_nobody_waits_for_them() {
    let mut arrivals = listed(&[&[1, 2, 2], &[2, 3], &[2, 3, 4]]);
    let span = |first, count| Span { first, count };
    assert_eq!(arrivals.next_to_ask().unwrap(), Some((0, vec![span(0, 2)])));
    assert_eq!(arrivals.next_to_ask().unwrap(), Some((1, vec![span(1, 1)])));
    assert_eq!(arrivals.next_to_ask().unwrap(), Some((2, vec![span(2, 1)])));
    assert_eq!(arrivals.next_to_ask().unwrap(), None);
    assert_eq!(coming(&arrivals), [1, 2, 3, 4]);
    arrivals.take(&[7; 4 * BYTES]).unwrap();
    place_next(&mut arrivals);
    assert_eq!(coming(&arrivals), [2, 3, 4]);
    place_next(&mut arrivals);
    assert_eq!(coming(&arrivals), [2, 3, 4]);
    place_next(&mut arrivals);
    assert!(arrivals.coming.is_empty());
    assert!(arrivals.is_empty() && arrivals.expected.is_empty() && arrivals.asked_bytes == 0);
}

/// However many segments go by, what is remembered is of those on their way.
#[test]
fn what_is_remembered_does_not_grow_with_the_volume() {
    let mut arrivals = listed(&[]);
    for index in 0..5000_u64 {
        let number = u8::try_from(index % 250).unwrap();
        arrivals.push(1, State::Listed(DIGEST, Signatures([0; 8]), None));
        arrivals.resolved(index, draft(index, &[number, number + 1, number])).unwrap();
        arrivals.next_to_ask().unwrap();
        arrivals.take(&[7; 2 * BYTES]).unwrap();
        place_next(&mut arrivals);
        assert!(arrivals.coming.is_empty(), "after {index}: {:?}", coming(&arrivals));
    }
}
