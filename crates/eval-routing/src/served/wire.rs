//! What clients, the director and nodes say to each other: numbers of 8 bytes, little-endian.

use silt_report::Result;
use silt_routing::{Application, Chunk, Piece};

/// What is asked of a node, or of the director.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// How many of these representatives a node has, for each handprint.
    Similar(Application, Vec<Vec<u64>>),
    /// Store what is new of these pieces.
    Store(Vec<Piece>),
    /// What a node has stored and looked up.
    Figures,
    /// Which nodes have an application. The client says how many bytes it knows each node to have.
    Nodes(Application, Vec<u64>),
}

impl Question {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Similar(application, handprints) => {
                put(&mut out, [0, application.0.into(), handprints.len() as u64]);
                for handprint in handprints {
                    put(&mut out, [handprint.len() as u64]);
                    put(&mut out, handprint.iter().copied());
                }
            }
            Self::Store(pieces) => {
                put(&mut out, [1, pieces.len() as u64]);
                for piece in pieces {
                    let header = [u64::from(piece.application.0), piece.stream.into()];
                    put(&mut out, header.into_iter().chain([piece.chunks.len() as u64]));
                    // The size beside the fingerprint, as a real client has it.
                    for chunk in &piece.chunks {
                        out.extend(chunk.print.to_le_bytes());
                        out.extend(chunk.bytes.to_le_bytes());
                    }
                }
            }
            Self::Figures => put(&mut out, [2]),
            Self::Nodes(application, used) => {
                put(&mut out, [3, application.0.into(), used.len() as u64]);
                put(&mut out, used.iter().copied());
            }
        }
        out
    }

    pub fn decode(mut bytes: &[u8]) -> Result<Self> {
        let from = &mut bytes;
        let question = match number(from)? {
            0 => {
                let application = Application(number(from)?.try_into()?);
                let count = length(from, 8)?;
                let handprints = (0..count).map(|_| numbers(from)).collect::<Result<_>>()?;
                Self::Similar(application, handprints)
            }
            1 => {
                let count = length(from, 24)?;
                Self::Store((0..count).map(|_| piece(from)).collect::<Result<_>>()?)
            }
            2 => Self::Figures,
            3 => Self::Nodes(Application(number(from)?.try_into()?), numbers(from)?),
            other => return Err(format!("{other} is no question").into()),
        };
        if bytes.is_empty() { Ok(question) } else { Err("a question is too long".into()) }
    }
}

fn piece(from: &mut &[u8]) -> Result<Piece> {
    let application = Application(number(from)?.try_into()?);
    let stream = number(from)?.try_into()?;
    let count = length(from, 12)?;
    let chunk = |from: &mut &[u8]| -> Result<Chunk> {
        let print = number(from)?;
        let bytes = from.split_off(..4).ok_or("a chunk is cut off")?;
        Ok(Chunk { print, bytes: u32::from_le_bytes(bytes.try_into()?) })
    };
    let chunks = (0..count).map(|_| chunk(from)).collect::<Result<_>>()?;
    Ok(Piece { application, stream, chunks })
}

/// An answer is a list of numbers.
pub fn answer(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, [numbers.len() as u64]);
    put(&mut out, numbers.iter().copied());
    out
}

/// Reads an answer.
pub fn read(mut answer: &[u8]) -> Result<Vec<u64>> {
    numbers(&mut answer)
}

fn put(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
}

fn number(from: &mut &[u8]) -> Result<u64> {
    let bytes = from.split_off(..8).ok_or("a message is cut off")?;
    Ok(u64::from_le_bytes(bytes.try_into()?))
}

/// How many parts of at least so many bytes follow.
fn length(from: &mut &[u8], bytes_min: usize) -> Result<usize> {
    let count = usize::try_from(number(from)?)?;
    if count > from.len() / bytes_min { Err("a message is cut off".into()) } else { Ok(count) }
}

fn numbers(from: &mut &[u8]) -> Result<Vec<u64>> {
    let count = length(from, 8)?;
    (0..count).map(|_| number(from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_asked_and_cut_ones_are_refused() -> Result<()> {
        let application = Application(3);
        let chunks = vec![Chunk { print: 7, bytes: 4096 }, Chunk { print: u64::MAX, bytes: 1 }];
        let piece = Piece { application, stream: 9, chunks };
        let all = [
            Question::Similar(application, vec![vec![1, 2], Vec::new()]),
            Question::Store(vec![piece.clone(), piece]),
            Question::Figures,
            Question::Nodes(application, vec![5, 0, 6]),
        ];
        for question in all {
            let bytes = question.encode();
            assert_eq!(Question::decode(&bytes)?, question);
            for end in 0..bytes.len() {
                assert!(Question::decode(&bytes[..end]).is_err(), "{question:?}, {end}");
            }
        }
        assert_eq!(read(&answer(&[1, u64::MAX]))?, [1, u64::MAX]);
        assert!(read(&answer(&[1, 2])[..20]).is_err());
        Ok(())
    }
}
