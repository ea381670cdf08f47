//! Versions of files with attributes and bytes, in the order in which they are replicated.

/// Numbers of a file's vector, by which files are grouped.
pub const DIMENSIONS: usize = 7;

/// A version of a file as it is sent.
pub struct Version {
    /// The same for all versions of a file.
    pub file: u32,
    /// Versions of round 0 are at the destination before anything is counted.
    pub round: u32,
    /// The site that sends it, and has all that it sent before.
    pub source: u32,
    /// What is known of a file without reading it.
    pub vector: [f64; DIMENSIONS],
    pub bytes: Vec<u8>,
}

/// The attributes of a file.
#[derive(Clone, Copy)]
pub struct Attributes {
    /// Bytes.
    pub size: usize,
    /// Rounds since the first one, when it was created and when it was last written.
    pub created: f64,
    pub written: f64,
    /// Numbers without an order.
    pub kind: u64,
    pub owner: u64,
}

/// What a step of each attribute counts in a vector, in its unit: how far apart two files are that
/// differ in nothing else. No published work gives them.
pub const SIZE_WEIGHT: f64 = 2.0;
pub const CREATED_WEIGHT: f64 = 0.25;
pub const WRITTEN_WEIGHT: f64 = 0.1;
pub const KIND_WEIGHT: f64 = 24.0;
pub const OWNER_WEIGHT: f64 = 3.0;

impl Attributes {
    /// The vector: a doubled size, a round, another kind and another owner count as weighted.
    pub fn vector(&self) -> [f64; DIMENSIONS] {
        let kind = direction(self.kind.wrapping_add(1));
        let owner = direction(self.owner.wrapping_add(1 << 40));
        [
            (self.size.max(1) as f64).log2() * SIZE_WEIGHT,
            self.created * CREATED_WEIGHT,
            self.written * WRITTEN_WEIGHT,
            kind.0 * KIND_WEIGHT,
            kind.1 * KIND_WEIGHT,
            owner.0 * OWNER_WEIGHT,
            owner.1 * OWNER_WEIGHT,
        ]
    }
}

/// A point of the unit circle for a number without an order.
fn direction(number: u64) -> (f64, f64) {
    let angle = silt_report::Random(number).unit() * std::f64::consts::TAU;
    (angle.cos(), angle.sin())
}
