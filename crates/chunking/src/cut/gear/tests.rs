use super::GEAR;

#[test]
fn entries_are_the_md5_of_64_equal_bytes() {
    for (value, &entry) in (0..=u8::MAX).zip(&GEAR) {
        assert_eq!(entry, md5_begin([value; 64]), "entry {value}");
    }
}

/// Known from other implementations of MD5.
#[test]
fn md5_of_digits_is_known() {
    let digits = *b"1234567890123456789012345678901234567890123456789012345678901234";
    assert_eq!(md5_begin(digits), 0xeb6c_4179_c0a7_c82c);
}

/// The first 8 bytes, as a big-endian integer, of the MD5 of one full block of message.
fn md5_begin(message: [u8; 64]) -> u64 {
    let mut padding = [0; 64];
    padding[0] = 0x80;
    padding[56..].copy_from_slice(&512_u64.to_le_bytes());
    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in [message, padding] {
        state = compressed(state, &block);
    }
    let bytes = [state[0], state[1]].map(u32::to_le_bytes);
    u64::from_be_bytes(bytes.as_flattened().try_into().unwrap())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the constants of RFC 1321, section 3.4"
)]
fn compressed(state: [u32; 4], block: &[u8; 64]) -> [u32; 4] {
    const SHIFTS: [[u32; 4]; 4] =
        [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let words: Vec<u32> =
        block.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
    let [mut a, mut b, mut c, mut d] = state;
    for step in 0..64_u32 {
        let sine = (f64::from(step + 1).sin().abs() * 4_294_967_296.0) as u32;
        let round = step as usize / 16;
        let (mixed, word) = match round {
            0 => ((b & c) | (!b & d), step),
            1 => ((b & d) | (c & !d), 5 * step + 1),
            2 => (b ^ c ^ d, 3 * step + 5),
            _ => (c ^ (b | !d), 7 * step),
        };
        let sum = a.wrapping_add(mixed).wrapping_add(sine).wrapping_add(words[word as usize % 16]);
        let rotated = b.wrapping_add(sum.rotate_left(SHIFTS[round][step as usize % 4]));
        (a, d, c, b) = (d, c, b, rotated);
    }
    [a, b, c, d]
        .iter()
        .zip(state)
        .map(|(after, before)| after.wrapping_add(before))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}
