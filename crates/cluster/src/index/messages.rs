//! The bytes of questions and answers.

use silt_format::{Error, Fingerprint, Reference, Result};

use super::FINGERPRINTS_MAX;

/// A fingerprint that is looked up, and the length of its chunk.
pub(crate) type Wanted = (Fingerprint, u32);

const WANTED_BYTES: usize = 24;

/// A question: the number that its answer is sealed with, then fingerprints and lengths.
pub(crate) fn encode_question(nonce: u64, wanted: &[Wanted]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + wanted.len() * WANTED_BYTES);
    bytes.extend_from_slice(&nonce.to_le_bytes());
    for (fingerprint, length) in wanted {
        bytes.extend_from_slice(&fingerprint.0);
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    bytes
}

pub(crate) fn decode_question(bytes: &[u8]) -> Result<(u64, Vec<Wanted>)> {
    let (nonce, rest) = bytes.split_first_chunk::<8>().ok_or_else(malformed)?;
    let (wanted, tail) = rest.as_chunks::<WANTED_BYTES>();
    if !tail.is_empty() || wanted.len() > FINGERPRINTS_MAX {
        return Err(malformed());
    }
    let read = |bytes: &[u8; WANTED_BYTES]| {
        let (mut fingerprint, mut length) = ([0; 20], [0; 4]);
        fingerprint.copy_from_slice(&bytes[..20]);
        length.copy_from_slice(&bytes[20..]);
        (Fingerprint(fingerprint), u32::from_le_bytes(length))
    };
    Ok((u64::from_le_bytes(*nonce), wanted.iter().map(read).collect()))
}

/// An answer: a bit for each fingerprint, then the references of those that were found.
pub(crate) fn encode_answer(found: &[Option<Reference>]) -> Vec<u8> {
    let mut bytes = vec![0; found.len().div_ceil(8)];
    for (number, _) in found.iter().enumerate().filter(|(_, found)| found.is_some()) {
        bytes[number / 8] |= 1 << (number % 8);
    }
    for reference in found.iter().flatten() {
        bytes.extend_from_slice(&reference.bits().to_le_bytes());
    }
    bytes
}

/// The answer to a question of `count` fingerprints.
pub(crate) fn decode_answer(bytes: &[u8], count: usize) -> Result<Vec<Option<Reference>>> {
    let (bits, references) = bytes.split_at_checked(count.div_ceil(8)).ok_or_else(malformed)?;
    let (references, tail) = references.as_chunks::<8>();
    let mut references = references.iter();
    let mut found = Vec::with_capacity(count);
    for number in 0..count {
        found.push(if bits[number / 8] >> (number % 8) & 1 == 1 {
            let bits = references.next().ok_or_else(malformed)?;
            Some(Reference::from_bits(u64::from_le_bytes(*bits)))
        } else {
            None
        });
    }
    if references.next().is_some() || !tail.is_empty() {
        return Err(malformed());
    }
    Ok(found)
}

fn malformed() -> Error {
    Error::corrupt("a message of the shared index is malformed")
}

#[cfg(test)]
mod tests {
    use super::{decode_answer, decode_question, encode_answer, encode_question};
    use silt_format::{Fingerprint, Reference};

    #[test]
    fn what_is_written_is_read() {
        let wanted: Vec<_> =
            (0..20).map(|it| (Fingerprint([it; 20]), 4096 + u32::from(it))).collect();
        let question = encode_question(77, &wanted);
        assert_eq!(decode_question(&question).ok(), Some((77, wanted)));
        for end in 0..question.len() {
            let read = decode_question(&question[..end]);
            assert!(read.is_err() || (end - 8) % 24 == 0);
        }
        let found: Vec<_> = (0..20)
            .map(|it| (it % 3 == 0).then(|| Reference::new(1, 500 + u32::from(it), it)))
            .collect();
        let answer = encode_answer(&found);
        assert_eq!(decode_answer(&answer, 20).ok(), Some(found));
        assert!((0..answer.len()).all(|end| decode_answer(&answer[..end], 20).is_err()));
        assert!(decode_answer(&answer, 30).is_err() && decode_answer(&answer, 8).is_err());
    }
}
