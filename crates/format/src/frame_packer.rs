//! Packing chunks into frames: the directory of a container grows chunk by chunk, and each frame
//! comes out when it is full.

use std::ops::Range;

use crate::number::{to_u16, to_u32};
use crate::{Config, Delta, Directory, Fingerprint, Frame, Link};

/// Maximum size of a frame of large files, in bytes; a single chunk may be longer.
const LARGE_FRAME_BYTES: usize = 1 << 20;
/// Maximum number of configured frames that a frame of large files is as long as.
const SMALL_FRAMES: usize = 4;
/// Minimum number of frames of large files in a full container, which bounds their memory.
const LARGE_FRAMES_MIN: usize = 4;

/// Returns the size of frames for large files of file trees, in bytes. They compress better, and a
/// reader of a large file needs their content anyway.
pub fn large_frame_bytes(config: &Config) -> usize {
    let (configured, container) = (config.frame_bytes as usize, config.container_bytes as usize);
    let most = LARGE_FRAME_BYTES.min(SMALL_FRAMES * configured);
    configured.max(most.min(container / LARGE_FRAMES_MIN))
}

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
/// Where frames end depends only on the chunks and on the sizes asked for, so the same chunks
/// always make the same frames.
pub struct FramePacker {
    /// The size of the current frame at most.
    frame_bytes: usize,
    directory: Directory,
    /// The chunks of the frame that is being filled.
    raw: Vec<u8>,
    /// The number of its first chunk.
    first: usize,
}

impl FramePacker {
    /// Returns a packer that fills the first frame into `buffer`.
    pub fn new(buffer: Vec<u8>) -> Self {
        Self { frame_bytes: 0, directory: Directory::default(), raw: buffer, first: 0 }
    }

    /// Whether the frame must end before a chunk of `bytes` bytes, which is to be in a frame of up
    /// to `frame_bytes`. Frames of different sizes are not mixed: what is small is in small ones.
    pub fn must_end_before(&self, bytes: usize, frame_bytes: usize) -> bool {
        let is_other = self.frame_bytes != frame_bytes;
        !self.raw.is_empty() && (is_other || self.raw.len() + bytes > frame_bytes)
    }

    /// Exchanges the buffer of a frame that is still empty for a larger one, so that it need not
    /// grow. Returns the smaller one.
    pub fn enlarge(&mut self, bytes: usize, next: impl FnOnce() -> Vec<u8>) -> Option<Vec<u8>> {
        let is_small = self.raw.is_empty() && self.raw.capacity() < bytes;
        is_small.then(|| std::mem::replace(&mut self.raw, next()))
    }

    /// Adds a chunk to the frame, which is one of up to `frame_bytes`, as `slot`, greater than all
    /// slots of chunks before it.
    pub fn push(&mut self, slot: u16, chunk: &[u8], fingerprint: Fingerprint, frame_bytes: usize) {
        let frame = to_u16(self.directory.frames.len());
        self.directory.push(slot, frame, to_u32(chunk.len()), fingerprint);
        self.raw.extend_from_slice(chunk);
        self.frame_bytes = frame_bytes;
    }

    /// Says of which application the chunks from `slot` on are.
    pub fn begin_application(&mut self, slot: u16, application: u16) {
        self.directory.begin_application(slot, application);
    }

    /// Adds a delta in the same way; `fingerprint` is its result's.
    pub fn push_delta(
        &mut self,
        delta: Delta,
        stored: &[u8],
        fingerprint: Fingerprint,
        frame_bytes: usize,
    ) {
        let frame = to_u16(self.directory.frames.len());
        self.directory.push_delta(delta, frame, to_u32(stored.len()), fingerprint);
        self.raw.extend_from_slice(stored);
        self.frame_bytes = frame_bytes;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the frames of chunks, each of these bytes in a frame of up to so many.
    fn frames(chunks: &[(usize, usize)]) -> Vec<usize> {
        let mut packer = FramePacker::new(Vec::new());
        let mut sizes = Vec::new();
        for (slot, (bytes, frame_bytes)) in (0..).zip(chunks) {
            if packer.must_end_before(*bytes, *frame_bytes) {
                sizes.extend(packer.end_frame(Vec::new).map(|frame| frame.raw.len()));
            }
            packer.push(slot, &vec![0; *bytes], Fingerprint([0; 20]), *frame_bytes);
        }
        sizes.extend(packer.end_frame(Vec::new).map(|frame| frame.raw.len()));
        sizes
    }

    #[test]
    fn frames_of_different_sizes_are_not_mixed() {
        assert_eq!(frames(&[(40, 100); 5]), [80, 80, 40]);
        assert_eq!(frames(&[(40, 100), (40, 100), (40, 400), (40, 400), (40, 100)]), [80, 80, 40]);
        assert_eq!(frames(&[(40, 400); 11]), [400, 40]);
        assert_eq!(frames(&[(500, 100), (40, 100)]), [500, 40]);
    }

    #[test]
    fn large_frames_have_a_quarter_of_a_container_at_most() {
        let bytes = |container_bytes, frame_bytes| {
            large_frame_bytes(&Config { container_bytes, frame_bytes, ..Config::default() })
        };
        assert_eq!(large_frame_bytes(&Config::default()), 1 << 20);
        assert_eq!(bytes(8 << 20, 64 << 10), 256 << 10);
        assert_eq!(bytes(1 << 20, 64 << 10), 256 << 10);
        assert_eq!(bytes(1 << 20, 256 << 10), 256 << 10);
        assert_eq!(bytes(64 << 10, 256 << 10), 256 << 10);
        assert_eq!(bytes(256 << 20, 1 << 20), 1 << 20);
    }
}
