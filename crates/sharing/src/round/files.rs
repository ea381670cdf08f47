//! Where the new chunks of a file tree are: pieces of files, recorded in a temporary file. Chunks
//! that become shared are read there once more.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use silt_backup::FilePiece;
use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::{Error, Result};
use silt_repository::temporary::{TemporaryFile, TemporaryReader};
use silt_tree::{FileSource, TreeOrigin};

/// Pieces are collected up to this many bytes and sealed as one block.
const BLOCK_BYTES: usize = 64 << 10;
/// In place of a directory's length: it is that of the piece before.
const SAME_DIRECTORY: u32 = u32::MAX;

/// A block of the record.
struct Block {
    /// The address of its first piece.
    address: u64,
    /// Where it is in the temporary file.
    start: u64,
    bytes: usize,
}

/// Writes the pieces of one tree. One file may hold those of several trees.
pub(super) struct PieceRecorder<'f> {
    file: &'f mut TemporaryFile,
    blocks: Vec<Block>,
    buffer: Vec<u8>,
    /// The address of the first piece in the buffer, and the directory of the last.
    first: u64,
    directory: Vec<u8>,
}

impl<'f> PieceRecorder<'f> {
    pub(super) fn new(file: &'f mut TemporaryFile) -> Self {
        let (blocks, buffer, directory) = (Vec::new(), Vec::new(), Vec::new());
        Self { file, blocks, buffer, first: 0, directory }
    }

    /// Adds a piece; addresses must ascend.
    pub(super) fn push(&mut self, piece: &FilePiece<'_>) -> Result<()> {
        let is_first = self.buffer.is_empty();
        if is_first {
            self.first = piece.address;
        }
        self.buffer.extend_from_slice(&piece.address.to_le_bytes());
        self.buffer.extend_from_slice(&piece.offset.to_le_bytes());
        self.buffer.extend_from_slice(&piece.bytes.to_le_bytes());
        if is_first || self.directory != piece.directory {
            self.directory.clear();
            self.directory.extend_from_slice(piece.directory);
            push_bytes(&mut self.buffer, piece.directory);
        } else {
            self.buffer.extend_from_slice(&SAME_DIRECTORY.to_le_bytes());
        }
        push_bytes(&mut self.buffer, piece.name);
        if self.buffer.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let (address, bytes) = (self.first, self.buffer.len());
        let start = self.file.append(&mut self.buffer)?;
        self.blocks.push(Block { address, start, bytes });
        self.buffer.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<NewFileData> {
        if !self.buffer.is_empty() {
            self.end_block()?;
        }
        let cursor = Mutex::default();
        Ok(NewFileData { file: self.file.reader(), blocks: self.blocks, cursor })
    }
}

fn push_bytes(buffer: &mut Vec<u8>, bytes: &[u8]) {
    buffer.extend_from_slice(&to_u32(bytes.len()).to_le_bytes());
    buffer.extend_from_slice(bytes);
}

/// The data of a tree that was new to its series, where its files have it.
pub(super) struct NewFileData {
    file: Option<TemporaryReader>,
    blocks: Vec<Block>,
    cursor: Mutex<Cursor>,
}

/// The block and the file that were read last.
#[derive(Default)]
struct Cursor {
    block: Option<usize>,
    buffer: Vec<u8>,
    pieces: Vec<Piece>,
    path: Vec<u8>,
    /// `None` if it cannot be opened.
    file: Option<Box<dyn FileSource>>,
}

/// A piece whose path is in the buffer.
struct Piece {
    address: u64,
    offset: u64,
    bytes: u64,
    directory: Range<usize>,
    name: Range<usize>,
}

impl NewFileData {
    /// Reads from an address on. What cannot be read any more becomes zeros: who reads knows the
    /// fingerprints.
    pub(super) fn read(&self, tree: &dyn TreeOrigin, address: u64, data: &mut [u8]) -> Result<()> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        data.fill(0);
        let mut done = 0;
        while done < data.len() {
            let at = address + to_u64(done);
            let Some(number) = cursor.find(self, at)? else { return Ok(()) };
            let Piece { address, bytes, .. } = cursor.pieces[number];
            let end = data.len().min(done + to_usize(address + bytes - at));
            cursor.read(tree, number, at, &mut data[done..end]);
            done = end;
        }
        Ok(())
    }
}

impl Cursor {
    /// Returns the number of the piece at an address.
    fn find(&mut self, of: &NewFileData, address: u64) -> Result<Option<usize>> {
        let behind = of.blocks.partition_point(|block| block.address <= address);
        let Some(number) = behind.checked_sub(1) else { return Ok(None) };
        if self.block != Some(number) {
            self.load(of, number)?;
        }
        let behind = self.pieces.partition_point(|piece| piece.address <= address);
        let number = behind.checked_sub(1);
        Ok(number.filter(|at| address - self.pieces[*at].address < self.pieces[*at].bytes))
    }

    fn load(&mut self, of: &NewFileData, number: usize) -> Result<()> {
        (self.block, self.pieces) = (None, Vec::new());
        let (Some(file), block) = (&of.file, &of.blocks[number]) else { return Ok(()) };
        file.read(block.start, block.bytes, &mut self.buffer)?;
        self.buffer.truncate(block.bytes);
        let (mut at, mut directory) = (0, 0..0);
        while at < self.buffer.len() {
            let piece = decode(&self.buffer, &mut at, &directory);
            let piece = piece.ok_or_else(|| Error::invalid("the record of a tree ends early"))?;
            directory = piece.directory.clone();
            self.pieces.push(piece);
        }
        self.block = Some(number);
        Ok(())
    }

    fn read(&mut self, tree: &dyn TreeOrigin, number: usize, at: u64, data: &mut [u8]) {
        let piece = &self.pieces[number];
        let (directory, name) = (&self.buffer[piece.directory.clone()], piece.name.clone());
        let path = [directory, &self.buffer[name]].concat();
        if path != self.path {
            self.file = tree.open_file(&path).ok();
            self.path = path;
        }
        let offset = piece.offset + (at - piece.address);
        if let Some(Err(_)) = self.file.as_ref().map(|file| file.read_at(offset, data)) {
            self.file = None;
        }
    }
}

/// Reads the piece at `at`, and moves behind it. `before` is the directory of the piece before.
fn decode(buffer: &[u8], at: &mut usize, before: &Range<usize>) -> Option<Piece> {
    let (address, offset, bytes) = (number(buffer, at)?, number(buffer, at)?, number(buffer, at)?);
    let mut directory = before.clone();
    let length = length(buffer, at)?;
    if length != SAME_DIRECTORY {
        directory = *at..*at + length as usize;
        *at = directory.end;
    }
    let name = *at + 4..*at + 4 + self::length(buffer, at)? as usize;
    *at = name.end;
    (name.end <= buffer.len()).then_some(Piece { address, offset, bytes, directory, name })
}

fn number(buffer: &[u8], at: &mut usize) -> Option<u64> {
    let number = buffer.get(*at..)?.first_chunk()?;
    *at += 8;
    Some(u64::from_le_bytes(*number))
}

fn length(buffer: &[u8], at: &mut usize) -> Option<u32> {
    let length = buffer.get(*at..)?.first_chunk()?;
    *at += 4;
    Some(u32::from_le_bytes(*length))
}
