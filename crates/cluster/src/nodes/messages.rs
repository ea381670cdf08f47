//! The bytes of questions and answers.

use silt_format::{Error, Result};

use super::ASKED_MAX;
use crate::index::messages::{Wanted, decode_question, encode_question};

const SIMILAR: u8 = 0;
const FIND: u8 = 1;
/// The same about one application.
const SIMILAR_OF: u8 = 2;
const FIND_OF: u8 = 3;
/// Representatives of a handprint at most.
const REPRESENTATIVES_MAX: usize = 64;

/// What is asked of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The number that the answer is sealed with.
    pub nonce: u64,
    /// The application; programs that do not know of them ask about all.
    pub application: Option<u16>,
    /// What about it.
    pub question: Question,
}

/// What is to be known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// How many representatives of each handprint it has.
    Similar(Vec<Vec<u64>>),
    /// Where chunks are.
    Find(Vec<Wanted>),
}

/// How a question begins: its kind, and the application if it names one.
fn begin([all, of_one]: [u8; 2], application: Option<u16>) -> Vec<u8> {
    let Some(application) = application else { return vec![all] };
    let [low, high] = application.to_le_bytes();
    vec![of_one, low, high]
}

/// A question about handprints: its beginning, the number that the answer is sealed with, then for
/// each handprint a count of one byte, and the representatives.
pub(super) fn encode_similar(
    nonce: u64,
    application: Option<u16>,
    handprints: &[Vec<u64>],
) -> Vec<u8> {
    let mut bytes = begin([SIMILAR, SIMILAR_OF], application);
    bytes.extend_from_slice(&nonce.to_le_bytes());
    for handprint in handprints {
        let handprint = &handprint[..handprint.len().min(REPRESENTATIVES_MAX)];
        bytes.push(u8::try_from(handprint.len()).unwrap_or(0));
        handprint.iter().for_each(|print| bytes.extend_from_slice(&print.to_le_bytes()));
    }
    bytes
}

/// A question about chunks: its beginning, then as to the shared index.
pub(super) fn encode_find(nonce: u64, application: Option<u16>, wanted: &[Wanted]) -> Vec<u8> {
    [begin([FIND, FIND_OF], application), encode_question(nonce, wanted)].concat()
}

/// Reads a question.
pub(super) fn decode(bytes: &[u8]) -> Result<Asked> {
    let (&kind, mut rest) = bytes.split_first().ok_or_else(malformed)?;
    let mut application = None;
    if matches!(kind, SIMILAR_OF | FIND_OF) {
        let (named, behind) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
        (application, rest) = (Some(u16::from_le_bytes(*named)), behind);
    }
    let (nonce, question) = match kind {
        FIND | FIND_OF => {
            decode_question(rest).map(|(nonce, wanted)| (nonce, Question::Find(wanted)))?
        }
        SIMILAR | SIMILAR_OF => {
            let (nonce, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            (u64::from_le_bytes(*nonce), Question::Similar(decode_handprints(rest)?))
        }
        _ => return Err(malformed()),
    };
    Ok(Asked { nonce, application, question })
}

fn decode_handprints(mut rest: &[u8]) -> Result<Vec<Vec<u64>>> {
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
    Ok(handprints)
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
    use super::{
        Asked, Question, decode, decode_counts, encode_counts, encode_find, encode_similar,
    };
    use silt_format::Fingerprint;

    #[test]
    fn what_is_written_is_read() {
        let wanted: Vec<_> = (0..20).map(|it| (Fingerprint([it; 20]), 4096)).collect();
        let handprints = vec![vec![1, 2, u64::MAX], Vec::new(), vec![9; 8]];
        for application in [None, Some(0x0107)] {
            let asked = |nonce, question| Some(Asked { nonce, application, question });
            let found = decode(&encode_find(7, application, &wanted)).ok();
            assert_eq!(found, asked(7, Question::Find(wanted.clone())));
            let question = encode_similar(8, application, &handprints);
            let whole = asked(8, Question::Similar(handprints.clone()));
            assert_eq!(decode(&question).ok(), whole);
            let first = if application.is_some() { 11 } else { 9 };
            let whole = [first, first + 25, first + 26, question.len()];
            for end in (0..=question.len()).filter(|end| !whole.contains(end)) {
                assert!(decode(&question[..end]).is_err(), "{end}");
            }
        }
        // Bytes that do not change: other versions read them.
        assert_eq!(encode_similar(1, None, &[vec![2]])[..10], [0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(encode_similar(1, Some(9), &[])[..], [2, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_find(1, Some(9), &[])[..], [3, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert!(decode(&[4; 11]).is_err());
        let counts = encode_counts([0, 8, 300].into_iter());
        assert_eq!(decode_counts(&counts, 3), Some(vec![0, 8, 255]));
        assert_eq!(decode_counts(&counts, 2), None);
    }
}
