//! What comes with disks: qcow2 headers, tables and compressed clusters, and changed-blocks maps.
#![no_main]

use libfuzzer_sys::fuzz_target;
use silt_source::{ChangedMap, qcow2};

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 3 {
        0 => {
            let Ok(header) = qcow2::Header::decode(bytes) else { return };
            for entry in bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)) {
                drop(qcow2::decode_l1(entry, &header));
                if let Ok(found) = qcow2::decode_l2(entry, entry.rotate_left(17), &header) {
                    for index in 0..32 {
                        qcow2::unit_at(found, index, &header);
                    }
                }
            }
        }
        1 => {
            let mut cluster = vec![0; 65536];
            for compression in [qcow2::Compression::Deflate, qcow2::Compression::Zstd] {
                drop(qcow2::decompress(compression, bytes, &mut cluster));
            }
        }
        _ => drop(ChangedMap::parse(bytes, 1 << 32, 2 << 20, None)),
    }
});
