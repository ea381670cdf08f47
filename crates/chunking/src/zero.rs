//! Finds zeros.

/// Bytes examined between two decisions: enough for the compiler to keep several vectors in flight,
/// few enough to leave data without zeros at once.
const STRIDE_BYTES: usize = 256;

/// Whether every byte is zero; true for no bytes at all.
pub fn is_zero(data: &[u8]) -> bool {
    let (strides, rest) = data.as_chunks::<STRIDE_BYTES>();
    strides.iter().all(|stride| or_of(stride) == 0) && or_of(rest) == 0
}

/// The bitwise or of all bytes. No early exit, so that the compiler vectorises it.
fn or_of(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |or, byte| or | byte)
}
