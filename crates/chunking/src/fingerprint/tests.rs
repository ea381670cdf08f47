use blake3::platform::Platform;

use super::{BLOCK_BYTES, Fingerprinter, LANES};

/// Every instruction set that this machine has, and the portable code.
fn platforms() -> Vec<Platform> {
    let mut platforms = vec![Platform::portable(), Platform::detect()];
    #[cfg(target_arch = "x86_64")]
    platforms.extend([Platform::sse2(), Platform::sse41(), Platform::avx2()].into_iter().flatten());
    platforms
}

#[test]
fn every_instruction_set_gives_the_same_fingerprints() {
    let data: Vec<u8> = (0..=250).cycle().take((2 * LANES + 1) * BLOCK_BYTES).collect();
    for platform in platforms() {
        let fingerprinter = Fingerprinter { platform, ..Fingerprinter::new([9; 32]) };
        for blocks in 0..=2 * LANES + 1 {
            let ranges: Vec<_> =
                (0..blocks).map(|index| index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES).collect();
            let mut together = Vec::new();
            fingerprinter.fingerprint_many(&data, &ranges, &mut together);
            let alone: Vec<_> = data
                .chunks(BLOCK_BYTES)
                .take(blocks)
                .map(|block| fingerprinter.fingerprint(block))
                .collect();
            assert_eq!(together, alone, "{blocks} blocks, {platform:?}");
        }
    }
}
