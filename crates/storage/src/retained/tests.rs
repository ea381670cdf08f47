use super::*;

const FRAME: u8 = 7;
/// Chunks of 100 bytes of the slot's number.
static CHUNKS: [[u8; 100]; 8] =
    [[0; 100], [1; 100], [2; 100], [3; 100], [4; 100], [5; 100], [6; 100], [7; 100]];

fn chunk(slot: u16) -> Option<&'static [u8]> {
    Some(CHUNKS.get(usize::from(slot))?)
}

fn needed(key: u8, slots: &[u16]) -> Vec<Needed<u8, u8>> {
    vec![Needed { key, place: key, slots: slots.to_vec() }]
}

fn kept_of(retained: &Retained<u8, u8>, frame: u8) -> Vec<u16> {
    (0..8).filter(|slot| retained.get(frame, *slot).is_some()).collect()
}

fn kept(retained: &Retained<u8, u8>) -> Vec<u16> {
    kept_of(retained, FRAME)
}

fn is_empty(retained: &Retained<u8, u8>) {
    let state = retained.state();
    assert!(state.frames.is_empty() && state.segments.is_empty() && state.kept.is_empty());
    assert!(state.bytes == 0 && state.weights.is_empty());
}

/// What a group of so many chunks weighs.
fn weight_of(chunks: u16) -> usize {
    Picked::of((0..chunks).collect(), chunk).weight()
}

#[test]
fn what_segments_to_come_need_is_kept_until_they_are_restored() {
    let retained = Retained::new(1 << 20);
    for (segment, slots) in [(3, &[0, 1][..]), (5, &[1, 6]), (9, &[6, 7])] {
        retained.plan(segment, needed(FRAME, slots));
    }
    retained.begin(3);
    assert!(retained.pick(FRAME, chunk).is_empty());
    assert_eq!(kept(&retained), [1, 6, 7], "the first segment has the frame now");
    let (picked, range) = retained.get(FRAME, 6).unwrap();
    assert_eq!(picked.bytes()[range], [6; 100]);
    retained.restored(3);
    retained.begin(5);
    assert_eq!(kept(&retained), [1, 6, 7]);
    retained.restored(5);
    assert_eq!(kept(&retained), [6, 7], "nobody needs the other one");
    let (picked, range) = retained.get(FRAME, 6).unwrap();
    assert_eq!(picked.bytes()[range], [6; 100]);
    assert_eq!(retained.state().bytes, 2 * weight_of(1));
    retained.begin(9);
    assert_eq!(kept(&retained), [6, 7]);
    retained.restored(9);
    is_empty(&retained);
}

#[test]
fn without_room_what_is_needed_latest_and_largest_is_decoded_again() {
    let retained = Retained::new(weight_of(4) + weight_of(1));
    // The same frame: few chunks soon, and many late.
    for (segment, slots) in [(1, &[0][..]), (2, &[1]), (50, &[1, 2, 3, 4, 5])] {
        retained.plan(segment, needed(FRAME, slots));
    }
    retained.begin(1);
    assert!(retained.pick(FRAME, chunk).is_empty());
    assert_eq!(kept(&retained), [1, 2, 3, 4, 5]);
    // Another frame, of which less is needed.
    retained.plan(3, needed(8, &[6]));
    assert_eq!(retained.pick(8, chunk), [FRAME], "which is decoded again for segment 50");
    assert_eq!(kept(&retained), [1]);
    assert_eq!(kept_of(&retained, 8), [6]);
    // What is needed late itself takes nobody's room.
    retained.plan(90, needed(9, &[0, 1, 2, 3]));
    assert_eq!(retained.pick(9, chunk), [9]);
    assert!(kept_of(&retained, 9).is_empty());
    assert_eq!(kept_of(&retained, 8), [6]);
    for segment in [1, 2, 3] {
        retained.begin(segment);
        retained.restored(segment);
    }
    assert_eq!(kept(&retained), [1], "segment 50 needs it, too");
    assert!(retained.pick(FRAME, chunk).is_empty());
    assert_eq!(kept(&retained), [1, 2, 3, 4, 5]);
    retained.restored(50);
    retained.restored(90);
    is_empty(&retained);
    assert!(retained.pick(FRAME, chunk).is_empty(), "nobody needs it");
}

#[test]
fn what_has_no_room_at_all_is_not_kept() {
    let retained = Retained::new(weight_of(3));
    retained.plan(1, needed(FRAME, &[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(retained.pick(FRAME, chunk), [FRAME]);
    assert!(kept(&retained).is_empty());
    retained.restored(1);
    retained.plan(2, needed(FRAME, &[2, 3]));
    assert!(retained.pick(FRAME, chunk).is_empty());
    assert_eq!(kept(&retained), [2, 3]);
    retained.restored(2);
    is_empty(&retained);
}

#[test]
fn what_is_restored_meanwhile_is_not_kept() {
    let retained = Retained::new(1 << 20);
    for (segment, slots) in [(1, &[0][..]), (2, &[1])] {
        retained.plan(segment, needed(FRAME, slots));
    }
    let slow = |slot| {
        retained.restored(1);
        chunk(slot)
    };
    assert!(retained.pick(FRAME, slow).is_empty());
    assert_eq!(kept(&retained), [1]);
    retained.restored(2);
    is_empty(&retained);
}

/// Of the same frame, for the same segment, and as heavy: each is dropped for itself.
#[test]
fn groups_that_are_alike_are_told_apart() {
    let retained = Retained::new(1 << 20);
    retained.plan(3, needed(FRAME, &[0, 1]));
    retained.plan(5, needed(FRAME, &[1, 6]));
    assert!(retained.pick(FRAME, chunk).is_empty());
    retained.begin(3);
    retained.restored(3);
    assert_eq!((kept(&retained), retained.state().bytes), (vec![1, 6], 2 * weight_of(1)));
    retained.limit(weight_of(1));
    retained.plan(4, needed(8, &[0]));
    assert_eq!(retained.pick(8, chunk), [FRAME, FRAME], "needed later than frame 8");
    assert_eq!(kept_of(&retained, 8), [0]);
    assert!(kept(&retained).is_empty());
    (4..6).for_each(|segment| retained.restored(segment));
    is_empty(&retained);
}
