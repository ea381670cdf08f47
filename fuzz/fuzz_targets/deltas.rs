//! Decoders of deltas, with hostile deltas and bases, and both coders against themselves.
#![no_main]

use libfuzzer_sys::fuzz_target;
use silt_similarity::{
    DeltaCoder, PrefixCoder, Scheme, SketchParameters, Sketcher, XdeltaCoder,
};

fuzz_target!(|data: &[u8]| {
    let Some((&[which, share, size], rest)) = data.split_first_chunk() else { return };
    let (base, delta) = rest.split_at(rest.len() * usize::from(share) / 256);
    let mut coder: Box<dyn DeltaCoder> = match which % 3 {
        0 => Box::new(PrefixCoder::new(1)),
        1 => Box::new(XdeltaCoder::new(None)),
        _ => Box::new(XdeltaCoder::new(Some(1))),
    };
    let mut target = vec![0; usize::from(size) * 16];
    let _ = coder.decode(base, delta, &mut target);
    // What is encoded is decoded.
    let mut encoded = Vec::new();
    coder.encode(base, delta, &mut encoded).unwrap();
    let mut back = vec![0; delta.len()];
    coder.decode(base, &encoded, &mut back).unwrap();
    assert_eq!(back, delta);
    for scheme in [Scheme::Odess, Scheme::Rabin] {
        let sketcher = Sketcher::new(SketchParameters { scheme, ..SketchParameters::default() });
        assert_eq!(sketcher.sketch(delta), sketcher.sketch(&back));
    }
});
