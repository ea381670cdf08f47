//! Large buffers that are handed from one volume to the next. An allocator that gets them back from one
//! thread, and is asked for them by another, keeps room for both.

use std::sync::Mutex;

use silt_storage::AlignedBuffer;

use crate::map::lock;

/// Most buffers of a kind that are kept while nobody uses them; a backup by itself uses fewer.
const KEPT_MAX: usize = 32;

/// Buffers of one kind that nobody uses.
pub(crate) struct Kept<B>(Mutex<Vec<B>>);

impl<B> Default for Kept<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B> Kept<B> {
    /// One that was given back, if there is one.
    pub(crate) fn take(&self) -> Option<B> {
        lock(&self.0).pop()
    }

    /// Gives buffers back.
    pub(crate) fn keep(&self, buffers: impl IntoIterator<Item = B>) {
        let mut kept = lock(&self.0);
        kept.extend(buffers);
        kept.truncate(KEPT_MAX);
    }
}

/// The buffers that all backups of a repository in this process share.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Bytes of segments.
    pub(crate) segments: Kept<Vec<u8>>,
    /// Frames, raw and sealed.
    pub(crate) frames: Kept<Vec<u8>>,
    pub(crate) containers: Kept<AlignedBuffer>,
}
