//! The bytes of a body in parts, of which one is held at a time.

use bytes::Bytes;

/// Bytes of a part but the last; stores take none below 5 MiB.
pub(crate) const PART_BYTES: usize = 8 << 20;

/// The body's bytes in parts, of which one is held at a time.
pub(crate) struct Parts<'a> {
    pieces: &'a [Bytes],
    /// Where the next part begins: in which piece, and where in it.
    piece: usize,
    at: usize,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(pieces: &'a [Bytes]) -> Self {
        Self { pieces, piece: 0, at: 0 }
    }
}

impl Iterator for Parts<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut part = Vec::new();
        while let Some(piece) = self.pieces.get(self.piece) {
            let rest = &piece[self.at..];
            let taken = rest.len().min(PART_BYTES - part.len());
            part.extend_from_slice(&rest[..taken]);
            if taken < rest.len() {
                self.at += taken;
                break;
            }
            (self.piece, self.at) = (self.piece + 1, 0);
        }
        (!part.is_empty()).then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_body() {
        let (one, other) = (vec![1; PART_BYTES - 3], vec![2; 2 * PART_BYTES]);
        let body = [one.into(), Bytes::new(), other.into(), Bytes::from_static(&[3])];
        let parts: Vec<Vec<u8>> = Parts::new(&body).collect();
        let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(lengths, [PART_BYTES, PART_BYTES, PART_BYTES - 2]);
        assert!(parts.concat() == body.concat());
        assert_eq!(Parts::new(&[Bytes::new()]).count(), 0);
    }
}
