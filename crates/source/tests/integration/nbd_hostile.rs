//! NBD servers that lie, flood and hang up. The fuzz target `nbd_client` does the same with random
//! bytes.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use silt_format::Result;
use silt_source::nbd::wire::{
    EXTENDED_REPLY_MAGIC, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, StatusExtent, chunk, option, option_reply,
};
use silt_source::nbd::{Read, Socket, Status, Wanted, over};
use silt_source::{SourceOptions, VolumeSource, open_source};

use crate::qemu::Images;

const CONTEXT: u32 = 7;
const PIECE: u32 = 64 << 10;
const SIZE: u64 = 1 << 20;

fn greeting() -> Vec<u8> {
    let magic = [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    [&magic[..], &[0, 3]].concat()
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let numbers = [option, kind, length].map(u32::to_be_bytes).concat();
    [&OPTION_REPLY_MAGIC.to_be_bytes(), &numbers[..], data].concat()
}

fn ack(option: u32) -> Vec<u8> {
    reply(option, option_reply::ACK, b"")
}

/// Returns the server's part of the negotiation before `GO`.
fn agreed() -> Vec<u8> {
    let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
    [
        greeting(),
        reply(option::EXTENDED_HEADERS, option_reply::ERR_UNSUP, b""),
        ack(option::STRUCTURED_REPLY),
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, &context),
        ack(option::SET_META_CONTEXT),
    ]
    .concat()
}

fn export_info(size: u64) -> Vec<u8> {
    let data = [&[0, 0][..], &size.to_be_bytes(), &[0, 3]].concat();
    reply(option::GO, option_reply::INFO, &data)
}

fn block_info(least: u32, most: u32) -> Vec<u8> {
    let data = [&[0, 3][..], &[least, 4096, most].map(u32::to_be_bytes).concat()].concat();
    reply(option::GO, option_reply::INFO, &data)
}

fn ready() -> Vec<u8> {
    [agreed(), export_info(SIZE), block_info(512, 1 << 20), ack(option::GO)].concat()
}

fn part(cookie: u64, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    part_of(cookie, flags, kind, u32::try_from(payload.len()).unwrap(), payload)
}

fn part_of(cookie: u64, flags: u16, kind: u16, length: u32, payload: &[u8]) -> Vec<u8> {
    let magic = STRUCTURED_REPLY_MAGIC.to_be_bytes();
    let kinds = [flags.to_be_bytes(), kind.to_be_bytes()].concat();
    [&magic[..], &kinds, &cookie.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

fn status(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for (length, state) in extents {
        payload.extend([length.to_be_bytes(), state.to_be_bytes()].concat());
    }
    part(cookie, chunk::FLAG_DONE, chunk::BLOCK_STATUS, &payload)
}

fn data(cookie: u64, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let content = vec![9; usize::try_from(length).unwrap()];
    part(cookie, flags, chunk::OFFSET_DATA, &[&offset.to_be_bytes()[..], &content].concat())
}

fn hole(cookie: u64, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat();
    part(cookie, flags, chunk::OFFSET_HOLE, &payload)
}

fn error(cookie: u64, flags: u16, number: u32) -> Vec<u8> {
    let payload = [&number.to_be_bytes()[..], &[0, 2], b"no"].concat();
    part(cookie, flags, chunk::ERROR, &payload)
}

/// Returns a transcript up to a block status of data for the whole export.
fn known() -> Vec<u8> {
    [ready(), status(1, CONTEXT, &[(1 << 20, 0)])].concat()
}

fn good() -> Vec<u8> {
    let second = u64::from(PIECE);
    [known(), data(3, 1, second, PIECE), data(2, 0, 0, 100), hole(2, 1, 100, PIECE - 100)].concat()
}

fn good_extended() -> Vec<u8> {
    let chunk = |cookie: u64, kind: u16, payload: &[u8]| {
        let head = [EXTENDED_REPLY_MAGIC, 1 << 16 | u32::from(kind)].map(u32::to_be_bytes).concat();
        let tail = [cookie, 0, payload.len() as u64].map(u64::to_be_bytes).concat();
        [&head[..], &tail, payload].concat()
    };
    let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
    let extents =
        [&CONTEXT.to_be_bytes()[..], &[0, 0, 0, 1], &SIZE.to_be_bytes(), &[0; 8]].concat();
    let zeros = |offset: u64| [&offset.to_be_bytes()[..], &PIECE.to_be_bytes()].concat();
    [
        greeting(),
        ack(option::EXTENDED_HEADERS),
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, &context),
        ack(option::SET_META_CONTEXT),
        export_info(SIZE),
        ack(option::GO),
        chunk(1, chunk::BLOCK_STATUS_EXT, &extents),
        chunk(2, chunk::OFFSET_HOLE, &zeros(0)),
        chunk(3, chunk::OFFSET_HOLE, &zeros(u64::from(PIECE))),
    ]
    .concat()
}

/// Connects to a server that sends `transcript` and hangs up. Requests the block status of the
/// whole export, and reads two pieces.
fn drive(transcript: &[u8]) -> Result<(Vec<StatusExtent>, Vec<u8>)> {
    let (client, mut server) = UnixStream::pair().unwrap();
    let contexts = ["base:allocation".to_owned()];
    let wanted = Wanted { export: b"x", contexts: &contexts, tls: None };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The client may have closed the connection.
            let _ = server.write_all(transcript);
            let _ = server.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut server, &mut std::io::sink());
        });
        let connection = over(Socket::Unix(client), &wanted, Duration::from_secs(20))?;
        let terms = connection.terms();
        let mut found: Vec<_> = terms.contexts.iter().map(|(_, id)| (*id, Vec::new())).collect();
        if !found.is_empty() {
            let status = Status::new(0, terms.bytes, &mut found);
            connection.exchange(std::iter::once(status))?;
        }
        let mut bytes = vec![0xaa; 2 * PIECE as usize];
        let pieces = bytes.chunks_mut(PIECE as usize);
        let pieces = (0..).step_by(PIECE as usize).zip(pieces).map(|(at, to)| Read::new(at, to));
        connection.exchange(pieces)?;
        Ok((found.pop().unwrap_or_default().1, bytes))
    })
}

#[test]
fn what_the_servers_below_differ_from_is_understood() {
    let (extents, bytes) = drive(&good()).unwrap();
    assert_eq!(extents, [(SIZE, 0)]);
    assert!(bytes[..100].iter().all(|byte| *byte == 9));
    assert!(bytes[100..PIECE as usize].iter().all(|byte| *byte == 0));
    assert!(bytes[PIECE as usize..].iter().all(|byte| *byte == 9));
    let (extents, bytes) = drive(&good_extended()).unwrap();
    assert_eq!(extents, [(SIZE, 0)]);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

/// Returns failing negotiations, each with the client's error.
fn bad_negotiations() -> Vec<(Vec<u8>, &'static str)> {
    let after = |rest: &[u8]| [&agreed()[..], rest].concat();
    let no_context = [
        greeting(),
        reply(option::EXTENDED_HEADERS, option_reply::ERR_UNSUP, b""),
        ack(option::STRUCTURED_REPLY),
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, b"\0\0\0\x01other:context"),
    ];
    let first = |kind, data: &[u8]| [greeting(), reply(option::EXTENDED_HEADERS, kind, data)];
    let huge = [OPTION_REPLY_MAGIC.to_be_bytes().to_vec(), vec![0, 0, 0, 11], vec![0xff; 8]];
    let flood = reply(option::GO, option_reply::INFO, b"\0\x01name").repeat(10_000);
    vec![
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "not an NBD server"),
        (
            [&GREETING_MAGIC.to_be_bytes()[..], b"\0\0\x42\x02\x81\x86\x12\x53"].concat(),
            "old style",
        ),
        ([&greeting()[..17], &[2]].concat(), "fixed new style"),
        (greeting(), "closed"),
        ([greeting(), ack(option::LIST)].concat(), "does not reply to option"),
        ([greeting(), huge.concat()].concat(), "has 4294967295 bytes"),
        (first(option_reply::INFO, b"x").concat(), "not asked for"),
        (first(option_reply::ERR_TLS_REQD, b"").concat(), "requires TLS: use nbds://"),
        (first(option_reply::ERR_SHUTDOWN, b"").concat(), "shutting down"),
        (no_context.concat(), "a metadata context that was not asked for"),
        (after(&flood), "more than 256 replies"),
        (after(&ack(option::GO)), "size"),
        (after(&reply(option::GO, option_reply::ERR_UNKNOWN, b"n\x1bo")), "'x' (it says: no)"),
        (after(&reply(option::GO, option_reply::ERR_POLICY, b"")), "does not allow"),
        (after(&reply(option::GO, option_reply::INFO, b"\0\0\0")), "another length"),
        (after(&[export_info(1 << 63), ack(option::GO)].concat()), "9223372036854775808 bytes"),
        (after(&[export_info(u64::MAX), ack(option::GO)].concat()), "at most"),
        (
            after(&[export_info(SIZE), block_info(3, 99), ack(option::GO)].concat()),
            "smallest block",
        ),
        (
            after(&[export_info(SIZE), block_info(1 << 31, 0), ack(option::GO)].concat()),
            "smallest block",
        ),
        (
            after(&[export_info(SIZE), block_info(512, 1), ack(option::GO)].concat()),
            "largest block",
        ),
        (after(&[export_info(513), block_info(512, 9999), ack(option::GO)].concat()), "multiple"),
    ]
}

/// Returns bad replies, each with the client's error.
fn bad_replies() -> Vec<(Vec<u8>, &'static str)> {
    let after = |rest: &[u8]| [&ready()[..], rest].concat();
    let read = |rest: &[u8]| [&known()[..], rest].concat();
    let simple = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &2_u64.to_be_bytes()].concat();
    let fragments: Vec<u8> = (0..5000).flat_map(|n| data(2, 0, n * 2, 1)).collect();
    let long_error = part_of(2, 1, chunk::ERROR, u32::MAX, b"");
    vec![
        (ready(), "closed"),
        (after(&[0; 64]), "begins no reply"),
        (after(&status(99, CONTEXT, &[(512, 0)])), "a reply to no request"),
        (after(&status(1, CONTEXT, &[])), "malformed"),
        (after(&status(1, CONTEXT, &[(512, 0), (0, 1)])), "malformed"),
        (after(&status(1, CONTEXT + 1, &[(512, 0)])), "context"),
        (after(&part(1, 1, chunk::NONE, b"")), "lacks a part"),
        (after(&part_of(1, 1, chunk::BLOCK_STATUS, u32::MAX, b"")), "4294967295 bytes"),
        (after(&data(1, 1, 0, 512)), "for a status request"),
        (after(&error(1, 1, 5)), "EIO: no"),
        (after(&error(1, 0, 5).repeat(1000)), "many errors"),
        (read(&status(2, CONTEXT, &[(512, 0)])), "for a read"),
        (read(&simple), "chunks were negotiated"),
        (read(&data(9, 1, 0, PIECE)), "a reply to no request"),
        (read(&data(2, 1, 0, PIECE - 1)), "lacks a part"),
        (read(&data(2, 1, 0, PIECE + 1)), "not asked for"),
        (read(&data(2, 1, u64::MAX, 1)), "not asked for"),
        (read(&data(3, 1, 0, PIECE)), "not asked for"),
        (read(&hole(2, 1, 0, u32::MAX)), "not asked for"),
        (read(&hole(2, 1, 0, 0)), "not asked for"),
        (read(&[data(2, 0, 0, 10), data(2, 0, 9, 10)].concat()), "come twice"),
        (read(&data(2, 0, 0, PIECE).repeat(2)), "come twice"),
        (read(&fragments), "too many fragments"),
        (read(&part(2, 0, chunk::NONE, b"").repeat(1000)), "kind 0"),
        (read(&part_of(2, 1, chunk::OFFSET_DATA, u32::MAX, &[0; 8])), "not asked for"),
        (read(&long_error), "an error has 4294967295 bytes"),
        (read(&[error(2, 1, 1), data(3, 1, u64::from(PIECE), PIECE)].concat()), "EPERM"),
        (read(&data(2, 1, 0, PIECE)[..999]), "closed"),
    ]
}

#[test]
fn hostile_servers_end_in_errors() {
    for (transcript, reason) in bad_negotiations().into_iter().chain(bad_replies()) {
        let message = match drive(&transcript) {
            Ok(_) => "nothing went wrong".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(message.contains(reason), "{message} instead of {reason}");
        assert!(message.len() < 600 && !message.contains('\x1b'), "{message}");
    }
}

#[test]
fn changed_transcripts_end_too() {
    let all = bad_negotiations().into_iter().chain(bad_replies()).map(|(bytes, _)| bytes);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    for transcript in all.chain([good(), good_extended()]) {
        for _ in 0..40 {
            let mut bytes = transcript[..transcript.len().min(4096)].to_vec();
            let at = random(bytes.len());
            match random(4) {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << random(8),
                2 => bytes[at] = [0, 0xff][random(2)],
                _ => bytes.extend_from_within(at..),
            }
            // With or without an error, it must end, and keep its memory limit.
            drop(drive(&bytes));
        }
    }
}

/// Opens a source whose server sends the same on each connection.
fn source_of(images: &Images, transcript: Vec<u8>) -> Result<Box<dyn VolumeSource>> {
    let socket = images.path("hostile.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for mut server in listener.incoming().map_while(std::result::Result::ok) {
            let transcript = transcript.clone();
            std::thread::spawn(move || {
                let _ = server.write_all(&transcript);
                let _ = std::io::copy(&mut server, &mut std::io::sink());
            });
        }
    });
    let uri = format!("nbd+unix:///x?socket={}", socket.display());
    open_source(Path::new(&uri), &SourceOptions::default())
}

#[test]
fn block_status_that_hardly_advances_is_an_error() {
    let images = Images::new();
    let steps = (1..10_000).flat_map(|cookie| status(cookie, CONTEXT, &[(1, 3)]));
    let transcript = [ready(), steps.collect()].concat();
    let source = source_of(&images, transcript).unwrap();
    let mut at = 0;
    let error = loop {
        match source.extent_at(at) {
            Ok(extent) => at = extent.offset + extent.length,
            Err(error) => break error.to_string(),
        }
        assert!(at < SIZE, "{at}");
    };
    assert!(error.contains("hardly advances") && error.contains("hostile.sock"), "{error}");
}
