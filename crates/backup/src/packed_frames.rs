//! Frames that another repository has compressed already.

use std::collections::{HashMap, VecDeque};

use silt_format::Fingerprint;

/// Maximum number of frames that are expected.
const EXPECTED_MAX: usize = 4096;
/// Maximum size of frames that are kept, in bytes. They are used soon after they were added.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// Frames that are compressed already, by the fingerprints of their chunks.
///
/// They only save work: the chunks of a frame that is lost here are compressed again.
#[derive(Default)]
pub struct PackedFrames {
    /// The first chunks of frames that may come, with the frames' sizes in bytes.
    begins: HashMap<Fingerprint, usize>,
    /// The oldest first.
    frames: VecDeque<PackedFrame>,
    bytes: usize,
}

/// A frame that is compressed already.
pub struct PackedFrame {
    /// The fingerprints of its chunks.
    pub chunks: Vec<Fingerprint>,
    /// The block that decodes to them.
    pub block: Vec<u8>,
}

impl PackedFrames {
    /// Lets a frame of `raw_bytes` begin with this chunk, because one that does will be added.
    pub fn expect(&mut self, first: Fingerprint, raw_bytes: usize) {
        if self.begins.len() >= EXPECTED_MAX {
            self.begins.clear();
        }
        self.begins.insert(first, raw_bytes);
    }

    /// Adds a frame. The caller has verified that its block decodes to its chunks.
    pub fn add(&mut self, frame: PackedFrame) {
        self.bytes += frame.block.len();
        self.frames.push_back(frame);
        while self.bytes > KEPT_BYTES_MAX {
            self.drop_oldest();
        }
    }

    /// Returns the size of the frame that should begin with this chunk, if one should.
    pub(crate) fn begins(&mut self, first: &Fingerprint) -> Option<usize> {
        if self.begins.is_empty() { None } else { self.begins.remove(first) }
    }

    /// The block of exactly these chunks, if there is one; those before it are dropped.
    pub(crate) fn take(&mut self, chunks: &[Fingerprint]) -> Option<Vec<u8>> {
        let place = self.frames.iter().position(|frame| frame.chunks == chunks)?;
        (0..place).for_each(|_| drop(self.drop_oldest()));
        self.drop_oldest()
    }

    fn drop_oldest(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.block.len();
        Some(frame.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(numbers: std::ops::Range<u8>) -> Vec<Fingerprint> {
        numbers.map(|number| Fingerprint([number; 20])).collect()
    }

    #[test]
    fn a_frame_is_used_for_exactly_its_chunks() {
        let mut frames = PackedFrames::default();
        for (chunks, byte) in [(0..3, 1), (3..5, 2), (5..9, 3)] {
            frames.add(PackedFrame { chunks: prints(chunks), block: vec![byte; 10] });
        }
        assert_eq!(frames.take(&prints(0..2)), None);
        assert_eq!(frames.take(&prints(3..6)), None);
        assert_eq!(frames.take(&prints(3..5)), Some(vec![2; 10]));
        assert_eq!(frames.take(&prints(0..3)), None, "earlier frames are dropped");
        assert_eq!(frames.take(&prints(5..9)), Some(vec![3; 10]));
        assert_eq!((frames.bytes, frames.frames.len()), (0, 0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut frames = PackedFrames::default();
        for _ in 0..100 {
            frames.add(PackedFrame { chunks: prints(0..3), block: vec![0; 1 << 20] });
        }
        assert!(frames.bytes <= KEPT_BYTES_MAX);
        (0..3 * EXPECTED_MAX).for_each(|number| {
            let mut print = [0; 20];
            print[..8].copy_from_slice(&number.to_le_bytes());
            frames.expect(Fingerprint(print), 100);
        });
        assert!(frames.begins.len() <= EXPECTED_MAX);
    }
}
