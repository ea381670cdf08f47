//! POLYVAL with the carry-less multiplication of x86.
//!
//! The products of a group are added as they are, 256 bits each, in three sums by Karatsuba's
//! method; the sums are reduced once a group.

#![expect(unsafe_code, reason = "vector instructions that are chosen at run time")]

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_loadu_si128,
    _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi32, _mm_slli_si128, _mm_srli_si128,
    _mm_unpackhi_epi64, _mm_xor_si128, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_shuffle_epi32,
    _mm256_xor_si256, _mm256_zextsi128_si256, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_shuffle_epi32,
    _mm512_xor_si512,
};

use super::{ELEMENT_BYTES, Group, Powers};

/// Bytes of two blocks.
const PAIR_BYTES: usize = 2 * ELEMENT_BYTES;
/// Bytes of four blocks.
const FOUR_BYTES: usize = 4 * ELEMENT_BYTES;
/// Swaps the halves of each block.
const SWAPPED: i32 = 0b01_00_11_10;

/// Whether the processor multiplies a block at a time.
pub(super) fn has_clmul() -> bool {
    is_x86_feature_detected!("pclmulqdq")
}

/// Whether the processor multiplies two blocks at a time.
pub(super) fn has_wide_clmul() -> bool {
    has_clmul() && is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2")
}

/// Whether the processor multiplies four blocks at a time.
pub(super) fn has_widest_clmul() -> bool {
    has_wide_clmul() && is_x86_feature_detected!("avx512f")
}

/// Continues with `groups` behind blocks whose POLYVAL is `sum`.
pub(super) fn add(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    assert!(has_clmul(), "pclmulqdq is missing");
    // SAFETY: the processor has the instructions.
    unsafe { add_blocks(powers, sum, groups) }
}

/// The same, two blocks at a time.
pub(super) fn add_wide(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    assert!(has_wide_clmul(), "vpclmulqdq is missing");
    // SAFETY: the processor has the instructions.
    unsafe { add_pairs(powers, sum, groups) }
}

/// The same, four blocks at a time.
pub(super) fn add_widest(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    assert!(has_widest_clmul(), "avx512f or vpclmulqdq is missing");
    // SAFETY: the processor has the instructions.
    unsafe { add_fours(powers, sum, groups) }
}

fn load(block: &[u8; ELEMENT_BYTES]) -> __m128i {
    // SAFETY: all bytes that are read are the array's; the instruction takes any alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

fn load_element(element: &u128) -> __m128i {
    // SAFETY: all bytes that are read are the number's, in the byte order of x86.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(element).cast()) }
}

#[target_feature(enable = "avx2")]
fn load_pair(pair: &[u8; PAIR_BYTES]) -> __m256i {
    // SAFETY: all bytes that are read are the array's; the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn load_elements(pair: &[u128; 2]) -> __m256i {
    // SAFETY: all bytes that are read are the array's, in the byte order of x86.
    unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn load_four(four: &[u8; FOUR_BYTES]) -> __m512i {
    // SAFETY: all bytes that are read are the array's; the instruction takes any alignment.
    unsafe { _mm512_loadu_si512(four.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn load_four_elements(four: &[u128; 4]) -> __m512i {
    // SAFETY: all bytes that are read are the array's, in the byte order of x86.
    unsafe { _mm512_loadu_si512(four.as_ptr().cast()) }
}

#[target_feature(enable = "pclmulqdq")]
fn add_blocks(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    let mut sum = load_element(&sum);
    for group in groups {
        let (blocks, _) = group.as_chunks::<ELEMENT_BYTES>();
        let (mut low, mut middle, mut high) =
            (_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128());
        for ((block, power), halves) in blocks.iter().zip(&powers.powers).zip(&powers.sums) {
            let block = _mm_xor_si128(load(block), sum);
            sum = _mm_setzero_si128();
            let power = load_element(power);
            low = _mm_xor_si128(low, _mm_clmulepi64_si128::<0x00>(block, power));
            high = _mm_xor_si128(high, _mm_clmulepi64_si128::<0x11>(block, power));
            let block = _mm_xor_si128(block, _mm_shuffle_epi32::<SWAPPED>(block));
            let halves = load_element(halves);
            middle = _mm_xor_si128(middle, _mm_clmulepi64_si128::<0x00>(block, halves));
        }
        sum = reduce(low, middle, high);
    }
    to_element(sum)
}

#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
fn add_pairs(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    let (powers, halves) = (powers.powers.as_chunks::<2>().0, powers.sums.as_chunks::<2>().0);
    let mut sum = load_element(&sum);
    for group in groups {
        let (pairs, _) = group.as_chunks::<PAIR_BYTES>();
        // The sum so far belongs to the first block.
        let mut first = _mm256_zextsi128_si256(sum);
        let (mut low, mut middle, mut high) =
            (_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256());
        for ((pair, power), halves) in pairs.iter().zip(powers).zip(halves) {
            let pair = _mm256_xor_si256(load_pair(pair), first);
            first = _mm256_setzero_si256();
            let power = load_elements(power);
            low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128::<0x00>(pair, power));
            high = _mm256_xor_si256(high, _mm256_clmulepi64_epi128::<0x11>(pair, power));
            let pair = _mm256_xor_si256(pair, _mm256_shuffle_epi32::<SWAPPED>(pair));
            let halves = load_elements(halves);
            middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128::<0x00>(pair, halves));
        }
        sum = reduce(both(low), both(middle), both(high));
    }
    to_element(sum)
}

#[target_feature(enable = "avx2,avx512f,pclmulqdq,vpclmulqdq")]
fn add_fours(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    let (first, first_halves) = (load_element(&powers.powers[0]), load_element(&powers.sums[0]));
    let (powers, halves) = (powers.powers.as_chunks::<4>().0, powers.sums.as_chunks::<4>().0);
    let mut sum = load_element(&sum);
    for group in groups {
        let (fours, _) = group.as_chunks::<FOUR_BYTES>();
        let (mut low, mut middle, mut high) =
            (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
        for ((four, power), halves) in fours.iter().zip(powers).zip(halves) {
            let (four, power) = (load_four(four), load_four_elements(power));
            low = _mm512_xor_si512(low, _mm512_clmulepi64_epi128::<0x00>(four, power));
            high = _mm512_xor_si512(high, _mm512_clmulepi64_epi128::<0x11>(four, power));
            let four = _mm512_xor_si512(four, _mm512_shuffle_epi32::<SWAPPED>(four));
            let halves = load_four_elements(halves);
            middle = _mm512_xor_si512(middle, _mm512_clmulepi64_epi128::<0x00>(four, halves));
        }
        // The sum so far belongs to the first block. It is multiplied on its own, so that the
        // products of this group do not wait for the reduction of the one before.
        let sum_halves = _mm_xor_si128(sum, _mm_shuffle_epi32::<SWAPPED>(sum));
        sum = reduce(
            _mm_xor_si128(all(low), _mm_clmulepi64_si128::<0x00>(sum, first)),
            _mm_xor_si128(all(middle), _mm_clmulepi64_si128::<0x00>(sum_halves, first_halves)),
            _mm_xor_si128(all(high), _mm_clmulepi64_si128::<0x11>(sum, first)),
        );
    }
    to_element(sum)
}

/// The sum of all four lanes.
#[target_feature(enable = "avx2,avx512f")]
fn all(lanes: __m512i) -> __m128i {
    let upper = _mm512_extracti64x4_epi64::<1>(lanes);
    both(_mm256_xor_si256(_mm512_castsi512_si256(lanes), upper))
}

/// The sum of both lanes.
#[target_feature(enable = "avx2")]
fn both(lanes: __m256i) -> __m128i {
    _mm_xor_si128(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes))
}

/// Puts a product of 256 bits together from Karatsuba's three sums, and divides it by `x^128`
/// modulo the field's polynomial: 64 bits at a time, as Montgomery's method does with numbers
/// (Gueron and Kounavis, "Efficient Implementation of the Galois Counter Mode Using a Carry-less
/// Multiplier", 2010).
#[target_feature(enable = "pclmulqdq")]
fn reduce(low: __m128i, middle: __m128i, high: __m128i) -> __m128i {
    let middle = _mm_xor_si128(middle, _mm_xor_si128(low, high));
    let mut low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
    let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
    // The field's polynomial without its ends, divided by x^64.
    let polynomial = _mm_set_epi64x(0, 0xc200_0000_0000_0000_u64.cast_signed());
    for _ in 0..2 {
        let product = _mm_clmulepi64_si128::<0x00>(low, polynomial);
        low = _mm_xor_si128(_mm_shuffle_epi32::<SWAPPED>(low), product);
    }
    _mm_xor_si128(high, low)
}

#[target_feature(enable = "sse2")]
fn to_element(sum: __m128i) -> u128 {
    let (low, high) = (_mm_cvtsi128_si64(sum), _mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum)));
    u128::from(high.cast_unsigned()) << 64 | u128::from(low.cast_unsigned())
}
