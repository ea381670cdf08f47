//! Integer conversions that only a bug could make lossy.

/// `value` as `u32`. Panics if it does not fit: callers have bounded it.
pub fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit in 32 bits"))
}

/// `value` as `u16`. Panics if it does not fit: callers have bounded it.
pub fn to_u16(value: usize) -> u16 {
    u16::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit in 16 bits"))
}

/// `value` as `usize`. Panics if it does not fit: callers have bounded it.
pub fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit in memory"))
}

/// `value` as `u64`, which holds every `usize`.
pub const fn to_u64(value: usize) -> u64 {
    value as u64
}
