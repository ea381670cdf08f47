//! Large buffers, reused from one volume to the next. An allocator that gets them back from one
//! thread while another asks for them would keep memory for both.

use std::sync::Mutex;

use silt_storage::AlignedBuffer;

use crate::sync::lock;

/// Maximum number of idle buffers of a kind; a single backup uses fewer.
const KEPT_MAX: usize = 32;

/// Idle buffers of one kind.
pub struct Kept<B>(Mutex<Vec<B>>);

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B> Kept<B> {
    /// Takes an idle buffer, if there is one.
    pub fn take(&self) -> Option<B> {
        lock(&self.0).pop()
    }

    /// Gives buffers back.
    pub fn keep(&self, buffers: impl IntoIterator<Item = B>) {
        let mut kept = lock(&self.0);
        kept.extend(buffers);
        kept.truncate(KEPT_MAX);
    }
}

/// The buffers that all backups of a repository in this process share.
#[derive(Default)]
pub struct Buffers {
    /// Bytes of segments.
    pub segments: Kept<Vec<u8>>,
    /// Frames, raw and sealed.
    pub frames: Kept<Vec<u8>>,
    /// The same of large files. Apart, since otherwise all buffers would grow to their size.
    pub large_frames: Kept<Vec<u8>>,
    /// Pieces of containers that are being filled or sent, empty.
    pub pieces: Kept<AlignedBuffer>,
}
