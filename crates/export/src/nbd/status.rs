//! Block status: what the metadata contexts say of a range. No data is read for it.

use silt_format::Result;
use silt_source::nbd::wire::allocation;
use siltstone::{VolumeReader, changed_stretch};

use super::handshake::Context;

/// Most extents of a reply; the client asks again behind them.
const EXTENTS_MAX: usize = 4096;
/// The state of a range that may differ, as the contexts `qemu:dirty-bitmap` have it.
const CHANGED: u32 = 1;

/// Extents of a range, merged where neighbours have one state.
struct Extents {
    at: u64,
    end: u64,
    max: usize,
    found: Vec<(u32, u32)>,
}

impl Extents {
    /// Adds what reaches up to `to`, beyond the range if need be. Returns whether more is wanted.
    fn add(&mut self, to: u64, state: u32) -> bool {
        let to = to.min(self.end);
        // A range is no longer than its request, which 32 bits say.
        let length = u32::try_from(to.saturating_sub(self.at)).unwrap_or(u32::MAX);
        let is_full = self.found.len() == self.max;
        match self.found.last_mut() {
            _ if length == 0 => {}
            Some((last, known)) if *known == state => *last += length,
            _ if is_full => return false,
            _ => self.found.push((length, state)),
        }
        self.at = self.at.max(to);
        self.at < self.end
    }
}

/// The extents of a range inside of the volume, as lengths and states; the first alone if `is_one`.
pub fn extents(
    context: &Context,
    reader: &VolumeReader,
    offset: u64,
    length: u32,
    is_one: bool,
) -> Result<Vec<(u32, u32)>> {
    let max = if is_one { 1 } else { EXTENTS_MAX };
    let end = offset + u64::from(length);
    let mut extents = Extents { at: offset, end, max, found: Vec::new() };
    match context {
        Context::Allocation => {
            while let Some(extent) = reader.extent_at(extents.at)? {
                let state = if extent.is_zero { allocation::HOLE | allocation::ZERO } else { 0 };
                if !extents.add(extent.span.offset + extent.span.length, state) {
                    break;
                }
            }
        }
        Context::ChangedSince(old) => {
            while let Some(stretch) = changed_stretch(old.reader(), reader, extents.at)? {
                let goes_on = stretch.spans.iter().all(|span| {
                    extents.add(span.offset, 0) && extents.add(span.offset + span.length, CHANGED)
                });
                if !goes_on || !extents.add(stretch.end, 0) {
                    break;
                }
            }
        }
    }
    Ok(extents.found)
}
