//! FastCDC as of 2020: the gear hash, no look at bytes below the least length, and normalised
//! chunking of level 2. Xia et al., "The Design of Fast Content-Defined Chunking for Data
//! Deduplication Based Storage Systems", IEEE TPDS 31(9), 2020, sections 4 and 5.

use std::ops::ControlFlow;

use super::gear::GEAR;

/// Number of bits by which the masks before and after the target length differ from that length's
/// own mask.
const NORMALISATION_LEVEL: u32 = 2;

/// Masks by the binary logarithm of the distance in bytes between cut points that they aim at.
///
/// Their bits are spread for a long window of the hash. They are the published ones of the authors'
/// implementation up to 17 and of its widely used continuation above; entries that no permitted
/// parameters reach are left out.
const MASKS: [u64; 13] = [
    0x0000_0018_0003_5300,
    0x0000_0190_0035_3000,
    0x0000_5900_0353_0000,
    0x0000_d900_0353_0000,
    0x0000_d901_0353_0000,
    0x0000_d903_0353_0000,
    0x0000_d903_1353_0000,
    0x0000_d90f_0353_0000,
    0x0000_d903_0353_7000,
    0x0000_d907_0353_7000,
    0x0000_d907_0753_7000,
    0x0000_d917_0753_7000,
    0x0000_d917_4753_7000,
];
/// The logarithm of the first mask.
const MASKS_BEGIN: u32 = 8;

/// Bytes that the scan takes at a time.
const STEP_BYTES: usize = 4;
/// The gear table, shifted left by 0, 1, ... bits.
static SHIFTED_GEAR: [[u64; 256]; STEP_BYTES] = shifted_gear();

// Shifted masks must not lose bits.
const _: () = {
    let mut index = 0;
    while index < MASKS.len() {
        assert!(MASKS[index].leading_zeros() as usize >= STEP_BYTES);
        index += 1;
    }
};

const fn shifted_gear() -> [[u64; 256]; STEP_BYTES] {
    let mut tables = [GEAR; STEP_BYTES];
    let mut shift = 1;
    while shift < STEP_BYTES {
        let mut byte = 0;
        while byte < 256 {
            tables[shift][byte] <<= shift;
            byte += 1;
        }
        shift += 1;
    }
    tables
}

/// Finds cut points; all lengths in bytes.
#[derive(Clone, Debug)]
pub(super) struct FastCdc {
    min: usize,
    avg: usize,
    max: usize,
    /// Used up to `avg`: more bits, so cuts are rarer.
    strict: u64,
    /// Used from `avg` on: fewer bits, so cuts are more frequent.
    loose: u64,
}

impl FastCdc {
    /// For parameters that the format permits.
    pub(super) fn new(min: u32, avg: u32, max: u32) -> Self {
        let mask = |logarithm: u32| MASKS[(logarithm - MASKS_BEGIN) as usize];
        Self {
            min: min as usize,
            avg: avg as usize,
            max: max as usize,
            strict: mask(avg.ilog2() + NORMALISATION_LEVEL),
            loose: mask(avg.ilog2() - NORMALISATION_LEVEL),
        }
    }

    /// The length of the first chunk of `data`.
    ///
    /// Bytes are tested in pairs that begin at even offsets, so an odd `min` counts as one more,
    /// and the last byte of an odd number of bytes is never a cut point.
    pub(super) fn first_cut(&self, data: &[u8]) -> usize {
        if data.len() <= self.min {
            return data.len();
        }
        let window = &data[..data.len().min(self.max)];
        let begin = self.min.next_multiple_of(2);
        let end = window.len() / 2 * 2;
        let centre = self.avg.min(end);
        let hash = match scan(0, &window[begin..centre], self.strict) {
            ControlFlow::Break(offset) => return begin + offset,
            ControlFlow::Continue(hash) => hash,
        };
        match scan(hash, &window[centre..end], self.loose) {
            ControlFlow::Break(offset) => centre + offset,
            ControlFlow::Continue(_) => window.len(),
        }
    }
}

/// Rolls `hash` over `bytes`: breaks with the offset of the byte after which no bit of `mask` is
/// set in it (that byte begins the next chunk), or continues with the hash after the last byte.
fn scan(mut hash: u64, bytes: &[u8], mask: u64) -> ControlFlow<usize, u64> {
    let (steps, rest) = bytes.as_chunks::<STEP_BYTES>();
    for (index, step) in steps.iter().enumerate() {
        // Within a step the hash is kept shifted left by the number of bytes still to come, and
        // the mask with it. So bytes add up apart from the hash that enters the step, and the
        // chain of dependent instructions, which bounds the speed, is one shift and one addition
        // a step instead of a byte.
        let entering = hash << STEP_BYTES;
        let mut sum = 0_u64;
        for (offset, &byte) in step.iter().enumerate() {
            let to_come = STEP_BYTES - 1 - offset;
            sum = sum.wrapping_add(SHIFTED_GEAR[to_come][usize::from(byte)]);
            if entering.wrapping_add(sum) & (mask << to_come) == 0 {
                return ControlFlow::Break(index * STEP_BYTES + offset);
            }
        }
        hash = entering.wrapping_add(sum);
    }
    for (offset, &byte) in rest.iter().enumerate() {
        hash = (hash << 1).wrapping_add(SHIFTED_GEAR[0][usize::from(byte)]);
        if hash & mask == 0 {
            return ControlFlow::Break(steps.as_flattened().len() + offset);
        }
    }
    ControlFlow::Continue(hash)
}
