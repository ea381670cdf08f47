//! Packing chunks into frames: the directory of a container grows chunk by chunk, and each frame
//! comes out when it is full.

use std::ops::Range;

use silt_format::number::{to_u16, to_u32};
use silt_format::{Delta, Directory, Fingerprint, Frame, Link};

/// A full frame: its raw bytes, to be compressed and sealed.
pub struct RawFrame {
    /// Its place in the container.
    pub number: u16,
    /// Its chunks.
    pub raw: Vec<u8>,
    /// Their numbers in the container.
    chunks: Range<usize>,
}

/// Fills the frames of one container, and keeps the container's directory.
///
/// Where frames end depends on the chunks alone, so the same chunks always make the same frames.
pub struct FramePacker {
    frame_bytes: usize,
    directory: Directory,
    /// The chunks of the frame that is being filled.
    raw: Vec<u8>,
    /// The number of its first chunk.
    first: usize,
}

impl FramePacker {
    /// Returns a packer of frames of about `frame_bytes`; it fills the first frame into `buffer`.
    pub fn new(frame_bytes: usize, buffer: Vec<u8>) -> Self {
        Self { frame_bytes, directory: Directory::default(), raw: buffer, first: 0 }
    }

    /// Whether the frame must end before a chunk of `bytes` bytes.
    pub fn must_end_before(&self, bytes: usize) -> bool {
        !self.raw.is_empty() && self.raw.len() + bytes > self.frame_bytes
    }

    /// Adds a chunk as `slot`, greater than all slots of chunks before it.
    pub fn push(&mut self, slot: u16, chunk: &[u8], fingerprint: Fingerprint) {
        let frame = to_u16(self.directory.frames.len());
        self.directory.push(slot, frame, to_u32(chunk.len()), fingerprint);
        self.raw.extend_from_slice(chunk);
    }

    /// Adds a delta, whose slot is greater than all before it; `fingerprint` is its result's.
    pub fn push_delta(&mut self, delta: Delta, stored: &[u8], fingerprint: Fingerprint) {
        let frame = to_u16(self.directory.frames.len());
        self.directory.push_delta(delta, frame, to_u32(stored.len()), fingerprint);
        self.raw.extend_from_slice(stored);
    }

    /// Adds a slot whose chunk is in another store, greater than all links before it.
    pub fn link(&mut self, link: Link) {
        self.directory.links.push(link);
    }

    /// Ends the current frame, unless it is empty; fills the next one into the buffer that `next`
    /// returns.
    pub fn end_frame(&mut self, next: impl FnOnce() -> Vec<u8>) -> Option<RawFrame> {
        if self.raw.is_empty() {
            return None;
        }
        let raw = std::mem::replace(&mut self.raw, next());
        let number = to_u16(self.directory.frames.len());
        let frame = Frame { offset: 0, sealed_bytes: 0, raw_bytes: to_u32(raw.len()) };
        self.directory.frames.push(frame);
        let chunks = self.first..self.directory.fingerprints.len();
        self.first = chunks.end;
        Some(RawFrame { number, raw, chunks })
    }

    /// The fingerprints of the chunks of a frame that has ended.
    pub fn fingerprints(&self, frame: &RawFrame) -> &[Fingerprint] {
        &self.directory.fingerprints[frame.chunks.clone()]
    }

    /// Says where a frame was put, sealed, in bytes of the object.
    pub fn place(&mut self, number: u16, offset: usize, sealed_bytes: usize) {
        let frame = &mut self.directory.frames[usize::from(number)];
        (frame.offset, frame.sealed_bytes) = (to_u32(offset), to_u32(sealed_bytes));
    }

    /// How many frames have ended.
    pub fn frames(&self) -> usize {
        self.directory.frames.len()
    }

    /// How many chunks and links there are.
    pub fn slots(&self) -> usize {
        self.directory.fingerprints.len() + self.directory.links.len()
    }

    /// Returns the directory in its stored form; every frame must have its place.
    pub fn directory(&self) -> Vec<u8> {
        assert!(self.raw.is_empty(), "a frame that has not ended is not in the directory");
        self.directory.encode()
    }

    /// The buffer that the next frame would have been filled in.
    pub fn into_buffer(self) -> Vec<u8> {
        self.raw
    }
}
