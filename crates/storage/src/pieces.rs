//! Bytes that grow without being moved.

use crate::direct::AlignedBuffer;

/// The size of a piece in bytes: that of writes past the page cache.
pub const PIECE_BYTES: usize = 1 << 20;

/// Bytes in aligned pieces of [`PIECE_BYTES`], of which only the last one may have fewer. They take
/// no more memory than they need, but for that piece.
#[derive(Debug, Default)]
pub struct Pieces(Vec<AlignedBuffer>);

impl Pieces {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PIECE_BYTES + last.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes, in pieces that `spare` has left from before as long as it has some.
    pub fn extend(&mut self, mut bytes: &[u8], mut spare: impl FnMut() -> Option<AlignedBuffer>) {
        while !bytes.is_empty() {
            if self.0.last().is_none_or(|last| last.len() == PIECE_BYTES) {
                let new = || AlignedBuffer::with_capacity(PIECE_BYTES);
                self.0.push(spare().unwrap_or_else(new));
            }
            let Some(last) = self.0.last_mut() else { return };
            let (here, behind) = bytes.split_at(bytes.len().min(PIECE_BYTES - last.len()));
            last.extend_from_slice(here);
            bytes = behind;
        }
    }

    /// The pieces, in their order.
    pub fn into_pieces(self) -> Vec<AlignedBuffer> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_but_the_last_are_full() {
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * PIECE_BYTES + 17).collect();
        for step in [1_000, 4_096, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 5] {
            let (mut pieces, mut spares) = (Pieces::default(), 1);
            assert!(pieces.is_empty());
            for (number, part) in bytes.chunks(step).enumerate() {
                pieces.extend(part, || {
                    let used = std::mem::take(&mut spares) == 1;
                    used.then(|| AlignedBuffer::with_capacity(PIECE_BYTES))
                });
                assert_eq!(pieces.len(), bytes.len().min((number + 1) * step));
            }
            let pieces = pieces.into_pieces();
            let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
            assert_eq!(lengths, [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 17]);
            let together: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            assert!(together == bytes, "steps of {step}");
        }
    }
}
