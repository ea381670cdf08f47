//! Large buffers that are handed from one volume to the next. An allocator that gets them back from
//! one thread, and is asked for them by another, keeps room for both.

use std::sync::Mutex;

use silt_storage::AlignedBuffer;

use crate::sync::lock;

/// Most buffers of a kind that are kept while nobody uses them; a backup by itself uses fewer.
const KEPT_MAX: usize = 32;

/// Buffers of one kind that nobody uses.
pub struct Kept<B>(Mutex<Vec<B>>);

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B> Kept<B> {
    /// One that was given back, if there is one.
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
    /// Containers that are being filled or sent.
    pub containers: Kept<AlignedBuffer>,
}
