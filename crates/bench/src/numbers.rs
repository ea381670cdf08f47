//! Numbers that look random, and what many measurements come to.

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014), its finalizer.
pub fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The middle one of some numbers: the higher of two.
pub fn median(numbers: Vec<f64>) -> f64 {
    quantile(numbers, 2)
}

/// The first and the third quartile of some numbers.
pub fn quartiles(numbers: &[f64]) -> [f64; 2] {
    [1, 3].map(|quarters| quantile(numbers.to_vec(), quarters))
}

/// What so many quarters of some numbers are below.
fn quantile(mut numbers: Vec<f64>, quarters: usize) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() * quarters / 4).copied().unwrap_or(0.0)
}
