use proptest::prelude::*;

use super::*;
use crate::XdeltaCoder;

fn coders() -> Vec<Box<dyn DeltaCoder>> {
    vec![
        Box::new(PrefixCoder::new(3)),
        Box::new(PrefixCoder::new(-1)),
        Box::new(XdeltaCoder::new(None)),
        Box::new(XdeltaCoder::new(Some(3))),
    ]
}

/// A base, and a target that has parts of it.
fn pairs() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let bytes = |most: usize| proptest::collection::vec(any::<u8>(), 0..most);
    let copies = proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..300), 0..8);
    (bytes(2000), copies, bytes(300)).prop_map(|(base, copies, mut target)| {
        for (at, length) in copies {
            let at = if base.is_empty() { 0 } else { at.index(base.len()) };
            target.extend_from_slice(&base[at..base.len().min(at + length)]);
            target.push(length.to_le_bytes()[0]);
        }
        (base, target)
    })
}

/// The files of `testdata/deltas/v1` were made by another program, after docs/FORMAT.md. They have
/// each kind of instruction, and must be read for ever.
#[test]
fn a_stored_delta_of_version_1_is_read() {
    let file = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/deltas/v1");
        std::fs::read(format!("{folder}/{name}.bin")).unwrap()
    };
    let (base, delta, chunk) = (file("base"), file("delta"), file("chunk"));
    let mut read = vec![0; chunk.len()];
    XdeltaCoder::new(None).decode(&base, &delta, &mut read).unwrap();
    assert!(read == chunk);
    // Each byte of the delta matters, and what follows it is refused.
    for at in 0..delta.len() {
        let mut other = delta.clone();
        other[at] ^= 1;
        let done = XdeltaCoder::new(None).decode(&base, &other, &mut read);
        assert!(done.is_err() || read != chunk, "byte {at}");
    }
    let longer = [&delta[..], &[2, 0]].concat();
    assert!(XdeltaCoder::new(None).decode(&base, &longer, &mut read).is_err());
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded((base, target) in pairs()) {
        for mut coder in coders() {
            let mut delta = Vec::new();
            coder.encode(&base, &target, &mut delta).unwrap();
            let mut back = vec![0; target.len()];
            coder.decode(&base, &delta, &mut back).unwrap();
            prop_assert_eq!(&back, &target);
            back.push(0);
            prop_assert!(coder.decode(&base, &delta, &mut back).is_err());
            if !target.is_empty() {
                back.truncate(target.len() - 1);
                prop_assert!(coder.decode(&base, &delta, &mut back).is_err());
            }
        }
    }

    #[test]
    fn hostile_deltas_are_errors_or_bytes(
        (base, target) in pairs(),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        place in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        for mut coder in coders() {
            let mut into = vec![0; target.len()];
            let _ = coder.decode(&base, &noise, &mut into);
            let mut delta = Vec::new();
            coder.encode(&base, &target, &mut delta).unwrap();
            // Without its general compression, the delta of nothing is nothing.
            if delta.is_empty() {
                prop_assert!(target.is_empty());
                continue;
            }
            let short = place.index(delta.len());
            prop_assert!(coder.decode(&base, &delta[..short], &mut into).is_err() || short == 0);
            delta[short] ^= 1_u8 << bit;
            let _ = coder.decode(&base, &delta, &mut into);
            let _ = coder.decode(&base[..base.len() / 2], &delta, &mut into);
        }
    }
}

#[test]
fn a_delta_of_an_edited_chunk_is_small() {
    let base: Vec<u8> =
        (0..1000_u64).flat_map(|at| crate::mix::drawn(1, at).to_le_bytes()).collect();
    let mut target = base.clone();
    target.splice(4000..4004, *b"something else");
    for mut coder in coders() {
        let mut delta = Vec::new();
        coder.encode(&base, &target, &mut delta).unwrap();
        assert!(delta.len() < 100, "{}", delta.len());
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let large = vec![0; PREFIX_BYTES_MAX + 1];
    for mut coder in coders() {
        assert_eq!(
            coder.encode(&large, &[], &mut Vec::new()).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            coder.encode(&[], &large, &mut Vec::new()).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}
