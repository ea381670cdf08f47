//! Sketches of chunks: super-features, each the hash of a few maxima over the chunk's windows.
//!
//! A feature is the greatest value that one of several random functions takes over the hashes of
//! all windows of a chunk. Two chunks with the resemblance `r` (windows in common, divided by
//! windows in either) have an equal feature with probability `r`. A super-feature hashes several
//! features, so it is equal with probability `r^features`: rarely for chunks that differ much.

use crate::mix::{drawn, mix};

#[cfg(test)]
mod tests;

/// Maximum number of super-features of a sketch.
pub const SUPER_FEATURES: usize = 4;
/// Maximum number of features of a super-feature.
const FEATURES_MAX: usize = 8;
/// Maximum number of features of a chunk.
const TRANSFORMS_MAX: usize = SUPER_FEATURES * FEATURES_MAX;
/// Size of Rabin's windows in bytes.
const WINDOW: usize = 32;

/// How the windows of a chunk are hashed and chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Gear hashes, of which those with a pattern of zero bits are sampled (Odess).
    Odess,
    /// Rabin fingerprints of all windows of 32 bytes.
    Rabin,
}

/// Parameters of sketches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchParameters {
    /// How windows are hashed and chosen.
    pub scheme: Scheme,
    /// Number of super-features of a sketch, 1 to 4. More of them find more.
    pub super_features: usize,
    /// Number of features of a super-feature, 1 to 8. More of them find only what resembles more.
    pub features: usize,
    /// Of [`Scheme::Odess`]: one window in `2^sampling_bits` is sampled, at most 16.
    pub sampling_bits: u32,
}

impl SketchParameters {
    /// Those of Neptune and of SIDC before it: three super-features of four features, over all
    /// windows.
    pub const NEPTUNE: Self =
        Self { scheme: Scheme::Rabin, super_features: 3, features: 4, sampling_bits: 0 };
    /// Those of Odess.
    pub const ODESS: Self =
        Self { scheme: Scheme::Odess, super_features: 3, features: 4, sampling_bits: 7 };
}

/// What finds most in chunks of 4 to 16 KiB, by measurement.
impl Default for SketchParameters {
    fn default() -> Self {
        Self { scheme: Scheme::Odess, super_features: 4, features: 1, sampling_bits: 5 }
    }
}

/// The super-features of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sketch {
    values: [u64; SUPER_FEATURES],
    count: u8,
}

impl Sketch {
    /// A sketch of these super-features, at most [`SUPER_FEATURES`]; `None` if there are more.
    pub fn of(values: &[u64]) -> Option<Self> {
        let mut sketch = Self { values: [0; SUPER_FEATURES], count: 0 };
        sketch.values.get_mut(..values.len())?.copy_from_slice(values);
        sketch.count = u8::try_from(values.len()).ok()?;
        Some(sketch)
    }

    /// The super-features, in the order of their functions.
    pub fn values(&self) -> &[u64] {
        &self.values[..usize::from(self.count)]
    }

    /// The number of super-features that are equal.
    pub fn equal(&self, other: &Self) -> usize {
        self.values().iter().zip(other.values()).filter(|(ours, theirs)| ours == theirs).count()
    }
}

/// Computes sketches.
#[derive(Clone)]
pub struct Sketcher {
    parameters: SketchParameters,
    table: Box<[u64; 256]>,
    /// What leaves the window, for Rabin fingerprints.
    leaving: Box<[u64; 256]>,
    factors: Vec<u64>,
    terms: Vec<u64>,
    mask: u64,
}

impl Sketcher {
    /// A sketcher with these parameters; each is brought into its range.
    pub fn new(parameters: SketchParameters) -> Self {
        let parameters = SketchParameters {
            super_features: parameters.super_features.clamp(1, SUPER_FEATURES),
            features: parameters.features.clamp(1, FEATURES_MAX),
            sampling_bits: parameters.sampling_bits.min(16),
            ..parameters
        };
        let count = parameters.super_features * parameters.features;
        let numbers = |seed: u64| (0_u64..).map(move |place| drawn(seed, place)).take(count);
        let (table, leaving) = match parameters.scheme {
            Scheme::Odess => (gear_table(), Box::new([0; 256])),
            Scheme::Rabin => rabin_tables(),
        };
        Self {
            parameters,
            table,
            leaving,
            // Odd, so that each function is a permutation.
            factors: numbers(1).map(|number| number | 1).collect(),
            terms: numbers(2).collect(),
            mask: sampling_mask(parameters.sampling_bits),
        }
    }

    /// The parameters.
    pub fn parameters(&self) -> SketchParameters {
        self.parameters
    }

    /// The sketch of a chunk; `None` if it has no window that counts: then it is too short, or
    /// repeats itself so much that nothing was sampled.
    pub fn sketch(&self, chunk: &[u8]) -> Option<Sketch> {
        let mut maxima = [0; TRANSFORMS_MAX];
        let maxima = &mut maxima[..self.factors.len()];
        let has_window = match self.parameters.scheme {
            Scheme::Odess => self.sampled(chunk, maxima),
            Scheme::Rabin => self.all(chunk, maxima),
        };
        if !has_window {
            return None;
        }
        let mut values = [0; SUPER_FEATURES];
        for (value, features) in values.iter_mut().zip(maxima.chunks(self.parameters.features)) {
            *value = features.iter().fold(0, |hash, feature| mix(hash ^ *feature));
        }
        Sketch::of(&values[..self.parameters.super_features])
    }

    fn sampled(&self, chunk: &[u8], maxima: &mut [u64]) -> bool {
        let (mut hash, mut has_window) = (0_u64, false);
        for byte in chunk {
            hash = (hash << 1).wrapping_add(self.table[usize::from(*byte)]);
            if hash & self.mask == 0 {
                has_window = true;
                self.raise(hash, maxima);
            }
        }
        has_window
    }

    fn all(&self, chunk: &[u8], maxima: &mut [u64]) -> bool {
        if chunk.len() < WINDOW {
            return false;
        }
        let push = |hash: u64, byte: u8| {
            let top = usize::from((hash >> 56).to_le_bytes()[0]);
            ((hash << 8) | u64::from(byte)) ^ self.table[top]
        };
        let mut hash = chunk[..WINDOW].iter().fold(0, |hash, byte| push(hash, *byte));
        self.raise(hash, maxima);
        for (leaving, coming) in chunk.iter().zip(&chunk[WINDOW..]) {
            hash = push(hash ^ self.leaving[usize::from(*leaving)], *coming);
            self.raise(hash, maxima);
        }
        true
    }

    fn raise(&self, hash: u64, maxima: &mut [u64]) {
        for ((maximum, factor), term) in maxima.iter_mut().zip(&self.factors).zip(&self.terms) {
            *maximum = (*maximum).max(factor.wrapping_mul(hash).wrapping_add(*term));
        }
    }
}

fn gear_table() -> Box<[u64; 256]> {
    let mut table = Box::new([0; 256]);
    table.iter_mut().zip(0..).for_each(|(entry, place)| *entry = drawn(0, place));
    table
}

/// Bits of a gear hash that depend on many bytes, spread as in the published implementation.
fn sampling_mask(bits: u32) -> u64 {
    const PLACES: [u32; 16] = [50, 33, 32, 25, 24, 20, 16, 54, 41, 46, 58, 29, 37, 62, 22, 44];
    PLACES.iter().take(bits as usize).fold(0, |mask, place| mask | 1 << place)
}

/// An irreducible polynomial of degree 64, without its highest term: x^4 + x^3 + x + 1.
const POLYNOMIAL: u64 = 0x1b;

/// What a byte that is shifted out adds, and what the oldest byte of a window has become.
fn rabin_tables() -> (Box<[u64; 256]>, Box<[u64; 256]>) {
    let (mut table, mut leaving) = (Box::new([0; 256]), Box::new([0; 256]));
    for byte in 0..256_usize {
        let mut hash = (byte as u64) << 56;
        for _ in 0..8 {
            let is_carried = hash >> 63 == 1;
            hash = (hash << 1) ^ if is_carried { POLYNOMIAL } else { 0 };
        }
        table[byte] = hash;
    }
    for byte in 0..256_usize {
        let mut hash = byte as u64;
        for _ in 1..WINDOW {
            let top = usize::from((hash >> 56).to_le_bytes()[0]);
            hash = (hash << 8) ^ table[top];
        }
        leaving[byte] = hash;
    }
    (table, leaving)
}
