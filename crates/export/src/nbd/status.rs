//! Block status: the states of a range in the metadata contexts. Reads no data.

use silt_format::Result;
use silt_source::nbd::wire::allocation;
use siltstone::{VolumeReader, changed_stretch};

use super::handshake::Context;

/// Most extents of a reply; the client asks again behind them.
const EXTENTS_MAX: usize = 4096;
/// Most parts of a volume that are looked at for a reply: it may be of less than was asked for.
const STEPS_MAX: usize = 1 << 16;
/// The state of a range that may differ, as the contexts `qemu:dirty-bitmap` have it.
const CHANGED: u32 = 1;

/// Extents of a range, merged where neighbours have one state.
struct Extents {
    at: u64,
    end: u64,
    max: usize,
    found: Vec<(u64, u32)>,
}

impl Extents {
    /// Adds what reaches up to `to`, beyond the range if need be. Returns whether more is wanted.
    fn add(&mut self, to: u64, state: u32) -> bool {
        let to = to.min(self.end);
        let length = to.saturating_sub(self.at);
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
    length: u64,
    is_one: bool,
) -> Result<Vec<(u64, u32)>> {
    let max = if is_one { 1 } else { EXTENTS_MAX };
    let end = offset + length;
    let mut extents = Extents { at: offset, end, max, found: Vec::new() };
    match context {
        Context::Allocation => {
            for _ in 0..STEPS_MAX {
                let Some(extent) = reader.extent_at(extents.at)? else { break };
                let state = if extent.is_zero { allocation::HOLE | allocation::ZERO } else { 0 };
                if !extents.add(extent.span.offset + extent.span.length, state) {
                    break;
                }
            }
        }
        Context::ChangedSince(old) => {
            for _ in 0..STEPS_MAX {
                let stretch = changed_stretch(old.reader(), reader, extents.at)?;
                let Some(stretch) = stretch else { break };
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
