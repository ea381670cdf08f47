//! Steps through a file tree, depth-first in the order of names.

use crate::Result;
use crate::codec::{Decoder, Encoder};
use crate::number::to_u16;
use crate::tree::{Entry, NAME_BYTES_MAX};

const ENTER: u8 = 1;
const ENTRY: u8 = 2;
const SAME: u8 = 3;
const SAME_RANGE: u8 = 4;
const LEAVE: u8 = 5;

/// A step through a file tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeStep {
    /// A directory begins, the root first. Its entries follow.
    Enter(Box<Entry>),
    /// An entry that is not a directory, or an empty directory.
    Entry(Box<Entry>),
    /// The entry with this name, and everything below it, is as in the parent's directory.
    Same(Vec<u8>),
    /// All entries from the first name to the last one, and everything below them, are as in the
    /// parent's directory.
    SameRange(Vec<u8>, Vec<u8>),
    /// The current directory ends.
    Leave,
}

impl TreeStep {
    pub(crate) fn encode(&self, to: &mut Encoder) {
        match self {
            Self::Enter(entry) => {
                to.u8(ENTER);
                entry.encode_to(to);
            }
            Self::Entry(entry) => {
                to.u8(ENTRY);
                entry.encode_to(to);
            }
            Self::Same(name) => {
                to.u8(SAME);
                encode_name(name, to);
            }
            Self::SameRange(first, last) => {
                to.u8(SAME_RANGE);
                encode_name(first, to);
                encode_name(last, to);
            }
            Self::Leave => to.u8(LEAVE),
        }
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        match from.u8()? {
            kind @ (ENTER | ENTRY) => {
                let entry = Entry::decode_from(from)?;
                if entry.subtree.is_some() {
                    return Err(from.corrupt("an entry refers to pages of another repository"));
                }
                let entry = Box::new(entry);
                Ok(if kind == ENTER { Self::Enter(entry) } else { Self::Entry(entry) })
            }
            SAME => Ok(Self::Same(decode_name(from)?)),
            SAME_RANGE => Ok(Self::SameRange(decode_name(from)?, decode_name(from)?)),
            LEAVE => Ok(Self::Leave),
            other => Err(from.corrupt(format!("a step of kind {other}"))),
        }
    }
}

fn encode_name(name: &[u8], to: &mut Encoder) {
    to.u16(to_u16(name.len()));
    to.raw(name);
}

fn decode_name(from: &mut Decoder<'_>) -> Result<Vec<u8>> {
    let length = usize::from(from.u16()?);
    if length > NAME_BYTES_MAX {
        return Err(from.corrupt(format!("a name of {length} bytes")));
    }
    Ok(from.take(length)?.to_vec())
}
