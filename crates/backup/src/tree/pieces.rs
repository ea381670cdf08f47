//! Where the content of a tree's segments is in its files.

use silt_format::Result;
use silt_format::number::to_u64;

use super::events::TreeEvent;

/// A part of a file that is in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePiece<'a> {
    /// The path of the file's directory below the root, with a `/` behind each name.
    pub directory: &'a [u8],
    /// The file's name.
    pub name: &'a [u8],
    /// Its offset in the file.
    pub offset: u64,
    /// Its address: where it would be if the segments followed each other.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Receives the pieces of files.
pub(crate) type EachPiece<'e> = dyn FnMut(&FilePiece<'_>) -> Result<()> + 'e;

/// A piece whose file is not known yet.
struct Unnamed {
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Follows the parts of a tree, and tells which files their segments are made of.
#[derive(Default)]
pub(crate) struct Pieces {
    directory: Vec<u8>,
    /// The length of `directory` before each of the directories in it was entered.
    above: Vec<usize>,
    /// The name of the large file that is being read.
    large: Vec<u8>,
    /// How much there was of the next file.
    offset: u64,
    /// Pieces of the next file in the current part of the tree.
    unnamed: Vec<Unnamed>,
}

impl Pieces {
    /// Takes the next part of the tree. Its segment begins at `address`; `None` if its pieces are
    /// not wanted.
    pub(crate) fn take(
        &mut self,
        events: Vec<TreeEvent>,
        address: Option<u64>,
        each: &mut EachPiece<'_>,
    ) -> Result<()> {
        for event in events {
            match event {
                TreeEvent::Enter(entry) => {
                    self.above.push(self.directory.len());
                    // The root has no name.
                    if !entry.name.is_empty() {
                        self.directory.extend_from_slice(&entry.name);
                        self.directory.push(b'/');
                    }
                }
                TreeEvent::Leave => self.directory.truncate(self.above.pop().unwrap_or(0)),
                TreeEvent::Large { name } => self.large = name,
                TreeEvent::Piece { start, bytes } => {
                    let (offset, bytes) = (self.offset, to_u64(bytes));
                    let address = address.map(|address| address + to_u64(start));
                    let piece = address.map(|address| Unnamed { offset, address, bytes });
                    self.unnamed.extend(piece);
                    self.offset += bytes;
                }
                TreeEvent::Held { bytes, .. } => self.offset += to_u64(bytes),
                TreeEvent::Hole(bytes) => self.offset += bytes,
                TreeEvent::Again => {
                    self.end_large(each)?;
                    self.offset = 0;
                }
                TreeEvent::File { name, .. } => {
                    self.end(&name, each)?;
                    self.offset = 0;
                }
                TreeEvent::Pages(_) | TreeEvent::Link { .. } | TreeEvent::Entry { .. } => {}
            }
        }
        // Of a small file, all is in one part, and so is its name.
        self.end_large(each)
    }

    fn end_large(&mut self, each: &mut EachPiece<'_>) -> Result<()> {
        let name = std::mem::take(&mut self.large);
        let ended = self.end(&name, each);
        self.large = name;
        ended
    }

    fn end(&mut self, name: &[u8], each: &mut EachPiece<'_>) -> Result<()> {
        for Unnamed { offset, address, bytes } in self.unnamed.drain(..) {
            each(&FilePiece { directory: &self.directory, name, offset, address, bytes })?;
        }
        Ok(())
    }
}
