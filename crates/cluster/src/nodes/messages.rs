//! The bytes of questions and answers.

use silt_format::{Error, Result};

use super::ASKED_MAX;
use crate::index::messages::{Wanted, decode_question, encode_question};

const SIMILAR: u8 = 0;
const FIND: u8 = 1;
/// Representatives of a handprint at most.
const REPRESENTATIVES_MAX: usize = 64;

/// What is asked of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// How many representatives of each handprint it has.
    Similar(Vec<Vec<u64>>),
    /// Where chunks are.
    Find(Vec<Wanted>),
}

/// A question about handprints: its kind, the number that the answer is sealed with, then for each
/// handprint a count of one byte, and the representatives.
pub(super) fn encode_similar(nonce: u64, handprints: &[Vec<u64>]) -> Vec<u8> {
    let mut bytes = vec![SIMILAR];
    bytes.extend_from_slice(&nonce.to_le_bytes());
    for handprint in handprints {
        let handprint = &handprint[..handprint.len().min(REPRESENTATIVES_MAX)];
        bytes.push(u8::try_from(handprint.len()).unwrap_or(0));
        handprint.iter().for_each(|print| bytes.extend_from_slice(&print.to_le_bytes()));
    }
    bytes
}

/// A question about chunks: its kind, then as to the shared index.
pub(super) fn encode_find(nonce: u64, wanted: &[Wanted]) -> Vec<u8> {
    [&[FIND], &encode_question(nonce, wanted)[..]].concat()
}

/// Reads a question, and the number that its answer is sealed with.
pub(super) fn decode(bytes: &[u8]) -> Result<(u64, Question)> {
    let (&kind, rest) = bytes.split_first().ok_or_else(malformed)?;
    match kind {
        FIND => decode_question(rest).map(|(nonce, wanted)| (nonce, Question::Find(wanted))),
        SIMILAR => {
            let (nonce, mut rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let mut handprints = Vec::new();
            while let Some((&count, behind)) = rest.split_first() {
                let count = usize::from(count);
                let (prints, behind) = behind.split_at_checked(8 * count).ok_or_else(malformed)?;
                if count > REPRESENTATIVES_MAX || handprints.len() == ASKED_MAX {
                    return Err(malformed());
                }
                let (prints, _) = prints.as_chunks::<8>();
                handprints.push(prints.iter().map(|print| u64::from_le_bytes(*print)).collect());
                rest = behind;
            }
            Ok((u64::from_le_bytes(*nonce), Question::Similar(handprints)))
        }
        _ => Err(malformed()),
    }
}

/// The answer about handprints: a byte for each.
pub(super) fn encode_counts(counts: impl Iterator<Item = usize>) -> Vec<u8> {
    counts.map(|count| u8::try_from(count).unwrap_or(u8::MAX)).collect()
}

/// The answer to a question about `count` handprints.
pub(super) fn decode_counts(bytes: &[u8], count: usize) -> Option<Vec<usize>> {
    (bytes.len() == count).then(|| bytes.iter().map(|count| usize::from(*count)).collect())
}

fn malformed() -> Error {
    Error::corrupt("a question to a storage node is malformed")
}

#[cfg(test)]
mod tests {
    use super::{Question, decode, decode_counts, encode_counts, encode_find, encode_similar};
    use silt_format::Fingerprint;

    #[test]
    fn what_is_written_is_read() {
        let wanted: Vec<_> = (0..20).map(|it| (Fingerprint([it; 20]), 4096)).collect();
        let found = decode(&encode_find(7, &wanted)).ok();
        assert_eq!(found, Some((7, Question::Find(wanted))));
        let handprints = vec![vec![1, 2, u64::MAX], Vec::new(), vec![9; 8]];
        let question = encode_similar(8, &handprints);
        assert_eq!(decode(&question).ok(), Some((8, Question::Similar(handprints.clone()))));
        let whole = [9, 9 + 25, 9 + 26, question.len()];
        for end in (0..=question.len()).filter(|end| !whole.contains(end)) {
            assert!(decode(&question[..end]).is_err(), "{end}");
        }
        assert!(decode(&[2; 9]).is_err());
        let counts = encode_counts([0, 8, 300].into_iter());
        assert_eq!(decode_counts(&counts, 3), Some(vec![0, 8, 255]));
        assert_eq!(decode_counts(&counts, 2), None);
    }
}
