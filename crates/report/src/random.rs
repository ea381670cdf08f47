//! Numbers drawn from a seed.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

/// A number drawn from another.
pub fn draw(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "there is no end, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        draw(self.0)
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A whole number of this mean: its integer part, or one more.
    pub fn around(&mut self, mean: f64) -> usize {
        let whole = mean.floor();
        floor(whole) + usize::from(self.happens(mean - whole))
    }
}

/// The integer part of a number that is not negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and small"
)]
pub fn floor(number: f64) -> usize {
    number.max(0.0) as usize
}
