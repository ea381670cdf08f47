//! Reading ahead if a program reads a file sequentially.
//!
//! The kernel asks for 128 KiB to 1 MiB at a time. Separate threads read the segments after that,
//! so that later requests find them decoded and verified.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, Result};

use super::inside::Inside;
use super::protocol::Reply;
use crate::catalog::{OpenVolume, lock};

/// Size of a window, which is read at a time: a segment of the format.
const WINDOW_BYTES: u64 = 2 << 20;
/// Number of windows that are read ahead of a program.
const AHEAD: u64 = 3;
/// Maximum number of windows of an open file. Those before the program's position are dropped
/// first.
const KEPT_MAX: usize = 6;
/// Maximum number of windows of all open files together: 64 MiB.
const WINDOWS_MAX: usize = 32;
/// A read within this distance of the last one counts as sequential: requests can arrive out of
/// order.
const NEAR_BYTES: u64 = 1 << 20;
/// Number of sequential reads after which reading ahead begins.
const SEQUENTIAL_MIN: u32 = 4;

enum Content {
    Pending,
    Ready(Arc<Vec<u8>>),
    /// Requests read their own range, so that only the damaged bytes give an error.
    Failed,
}

struct Window {
    index: u64,
    content: Content,
}

#[derive(Default)]
struct State {
    last_end: u64,
    sequential: u32,
    windows: VecDeque<Window>,
}

/// An open file: a disk, or a file of a tree.
pub struct OpenFile {
    pub volume: Arc<OpenVolume>,
    /// The file of a tree.
    pub inside: Option<Arc<Inside>>,
    state: Mutex<State>,
    arrived: Condvar,
    /// Number of windows of all open files.
    count: Arc<AtomicUsize>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let kept = lock(&self.state).windows.len();
        self.count.fetch_sub(kept, Ordering::Relaxed);
    }
}

/// A window to read: file, and number of the window.
type Order = (Arc<OpenFile>, u64);

/// Buffers of dropped windows, to be reused.
type Spare = Mutex<Vec<Vec<u8>>>;
/// Maximum number of such buffers.
const SPARE_MAX: usize = 8;

/// The threads that read ahead.
pub struct ReadAhead {
    orders: SyncSender<Order>,
    spare: Arc<Spare>,
    count: Arc<AtomicUsize>,
}

impl ReadAhead {
    /// Starts `threads` threads. They end when this is dropped.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let (orders, taken) = sync_channel(WINDOWS_MAX);
        let taken = Arc::new(Mutex::new(taken));
        let spare = Arc::<Spare>::default();
        for _ in 0..threads {
            let (taken, spare) = (Arc::clone(&taken), Arc::clone(&spare));
            let thread = std::thread::Builder::new().name("read-ahead".to_owned());
            thread.spawn(move || work(&taken, &spare))?;
        }
        Ok(Self { orders, spare, count: Arc::default() })
    }

    /// Returns an open file: the volume itself if it is a disk, otherwise `inside`.
    pub fn open(&self, volume: Arc<OpenVolume>, inside: Option<Arc<Inside>>) -> Arc<OpenFile> {
        let (state, arrived) = (Mutex::default(), Condvar::new());
        Arc::new(OpenFile { volume, inside, state, arrived, count: Arc::clone(&self.count) })
    }

    /// Writes the content at `offset` to the body of a reply: `wanted` bytes, or fewer at the end
    /// of the file.
    pub fn read(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        wanted: usize,
        reply: &mut Reply,
    ) -> Result<()> {
        let bytes = file.bytes();
        let length = to_u64(wanted).min(bytes.saturating_sub(offset));
        if !file.note_read(offset, length) {
            let read = file.read_at(offset, reply.body(to_usize(length)))?;
            reply.truncate(read);
            return Ok(());
        }
        let end = offset + length;
        self.order(file, end / WINDOW_BYTES);
        // A range within one window is sent without a copy.
        let (index, from) = (offset / WINDOW_BYTES, to_usize(offset % WINDOW_BYTES));
        if length > 0
            && (end - 1) / WINDOW_BYTES == index
            && let Some(window) = file.window(index)
        {
            reply.tail(window, from..from + to_usize(length));
            return Ok(());
        }
        let into = reply.body(to_usize(length));
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let index = at / WINDOW_BYTES;
            let here = to_usize(((index + 1) * WINDOW_BYTES - at).min(to_u64(rest.len())));
            let (part, behind) = rest.split_at_mut(here);
            if !file.copy(index, to_usize(at % WINDOW_BYTES), part) {
                file.read_at(at, part)?;
            }
            at += to_u64(here);
            rest = behind;
        }
        Ok(())
    }

    /// Orders the windows after `index`, as far as the limits permit.
    fn order(&self, file: &Arc<OpenFile>, index: u64) {
        let last = file.bytes().saturating_sub(1) / WINDOW_BYTES;
        let mut state = lock(&file.state);
        for wanted in index + 1..=(index + AHEAD).min(last) {
            if state.windows.iter().any(|window| window.index == wanted) {
                continue;
            }
            while state.windows.len() >= KEPT_MAX {
                let is_done = |window: &Window| {
                    window.index < index && !matches!(window.content, Content::Pending)
                };
                let Some(oldest) = state.windows.iter().position(is_done) else { return };
                if let Some(Window { content: Content::Ready(bytes), .. }) =
                    state.windows.remove(oldest)
                {
                    // A reply may still be sending it.
                    if let Ok(bytes) = Arc::try_unwrap(bytes) {
                        let mut spare = lock(&self.spare);
                        spare.push(bytes);
                        spare.truncate(SPARE_MAX);
                    }
                }
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            if self.count.fetch_add(1, Ordering::Relaxed) >= WINDOWS_MAX
                || self.orders.try_send((Arc::clone(file), wanted)).is_err()
            {
                self.count.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            state.windows.push_back(Window { index: wanted, content: Content::Pending });
        }
    }
}

impl OpenFile {
    fn bytes(&self) -> u64 {
        match &self.inside {
            Some(inside) => inside.entry.metadata.size,
            None => self.volume.reader().bytes(),
        }
    }

    /// Reads from `offset` on. Returns the number of bytes read, which is less than the length of
    /// `into` only at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let Some(inside) = &self.inside else {
            return self.volume.reader().read_at(offset, into);
        };
        let tree = self.volume.tree().ok_or_else(|| Error::corrupt("the volume is a disk"))?;
        let read = tree.read_at(&inside.entry, offset, into);
        read.map_err(|error| error.context(format!("read {}", inside.shown())))
    }

    /// Notes a read. Returns whether the last reads were sequential.
    fn note_read(&self, offset: u64, length: u64) -> bool {
        let mut state = lock(&self.state);
        let is_near = offset.abs_diff(state.last_end) <= NEAR_BYTES;
        state.sequential = if is_near { state.sequential.saturating_add(1) } else { 0 };
        state.last_end =
            if is_near { state.last_end.max(offset + length) } else { offset + length };
        state.sequential >= SEQUENTIAL_MIN
    }

    /// Copies from a window. Returns `false` if there is no such window.
    fn copy(&self, index: u64, from: usize, into: &mut [u8]) -> bool {
        let Some(window) = self.window(index) else { return false };
        into.copy_from_slice(&window[from..from + into.len()]);
        true
    }

    /// Returns a window. Waits if it is being read. `None` if there is no such window.
    fn window(&self, index: u64) -> Option<Arc<Vec<u8>>> {
        let mut state = lock(&self.state);
        loop {
            match state.windows.iter().find(|window| window.index == index) {
                Some(Window { content: Content::Ready(bytes), .. }) => {
                    return Some(Arc::clone(bytes));
                }
                Some(Window { content: Content::Pending, .. }) => {
                    let waited = self.arrived.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                _ => return None,
            }
        }
    }
}

fn work(orders: &Mutex<Receiver<Order>>, spare: &Spare) {
    loop {
        let Ok((file, index)) = lock(orders).recv() else { return };
        let offset = index * WINDOW_BYTES;
        let mut bytes = lock(spare).pop().unwrap_or_default();
        bytes.resize(to_usize(WINDOW_BYTES.min(file.bytes() - offset)), 0);
        let content = match file.read_at(offset, &mut bytes) {
            Ok(_) => Content::Ready(Arc::new(bytes)),
            Err(_) => Content::Failed,
        };
        let mut state = lock(&file.state);
        if let Some(window) = state.windows.iter_mut().find(|window| window.index == index) {
            window.content = content;
        }
        drop(state);
        file.arrived.notify_all();
    }
}
