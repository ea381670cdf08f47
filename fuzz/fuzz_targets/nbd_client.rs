//! What NBD servers send: a negotiation, block status and data. The same is done with the
//! transcripts of `crates/source/tests/integration/nbd_hostile.rs` in the tests of silt-source.
#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use silt_source::nbd::{Read, Socket, Status, Wanted, over};

/// What fits in a socket's buffer, so that one thread is enough.
const TRANSCRIPT_BYTES_MAX: usize = 64 << 10;
const PIECE_BYTES: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Ok((client, mut server)) = UnixStream::pair() else { return };
    let transcript = &data[..data.len().min(TRANSCRIPT_BYTES_MAX)];
    if server.write_all(transcript).is_err() || server.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let contexts = ["base:allocation".to_owned()];
    let wanted = Wanted { export: b"x", contexts: &contexts, tls: None };
    let silence = Duration::from_secs(1);
    let Ok(connection) = over(Socket::Unix(client), &wanted, silence) else { return };
    let terms = connection.terms();
    let mut found: Vec<_> = terms.contexts.iter().map(|(_, id)| (*id, Vec::new())).collect();
    if !found.is_empty() {
        let status = Status::new(0, terms.bytes, &mut found);
        if connection.exchange(std::iter::once(status)).is_err() {
            return;
        }
        assert!(found.iter().flat_map(|(_, extents)| extents).all(|(length, _)| *length > 0));
    }
    let mut bytes = [0; 2 * PIECE_BYTES];
    let pieces = (0..).step_by(PIECE_BYTES).zip(bytes.chunks_mut(PIECE_BYTES));
    let _ = connection.exchange(pieces.map(|(at, into)| Read::new(at, into)));
});
