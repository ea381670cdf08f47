//! What NBD clients send: options, their data, and requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use silt_export::nbd::options;
use silt_source::nbd::wire::{
    EXTENDED_REQUEST_BYTES, REQUEST_BYTES, Request, STRING_BYTES_MAX, decode_option,
};

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    match choice % 4 {
        0 => {
            let Some(asked) = options::parse_info(bytes) else { return };
            assert!(asked.export.len() <= STRING_BYTES_MAX);
            assert_eq!(bytes.len(), 4 + asked.export.len() + 2 + 2 * asked.wanted.len());
        }
        1 => {
            let Some(asked) = options::parse_contexts(bytes) else { return };
            let queries: usize = asked.queries.iter().map(|query| 4 + query.len()).sum();
            assert_eq!(bytes.len(), 4 + asked.export.len() + 4 + queries);
        }
        2 => {
            if let Some(decoded) = bytes.first_chunk().and_then(Request::decode) {
                assert_eq!(decoded.encode(false), bytes[..REQUEST_BYTES]);
            }
            if let Some(decoded) = bytes.first_chunk().and_then(Request::decode_extended) {
                assert_eq!(decoded.encode(true), bytes[..EXTENDED_REQUEST_BYTES]);
            }
        }
        _ => {
            let Some(header) = bytes.first_chunk() else { return };
            let _ = decode_option(header);
            drop(options::string(bytes));
        }
    }
});
