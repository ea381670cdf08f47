//! Extended headers: 64-bit lengths, by this project's own client and by hand.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use silt_export::nbd::ServerOptions;
use silt_source::nbd::wire::{
    EXTENDED_REPLY_MAGIC, ReplyForm, Request, allocation, chunk, command, command_flag, errno,
    option, option_reply,
};
use silt_source::nbd::{Connection, Read, Socket, Status, Wanted, over};
use silt_storage::MemoryStorage;

use crate::client::{Client, Running, contexts_of, info_of};
use crate::kit::{SparseDisk, backup, backup_from, init, noise};

const SIZE: u64 = 6 << 30;
const EXPORT: &str = "vm@latest:disk";

/// A volume of 6 GiB of which the first MiB is data.
fn server() -> (Running, Vec<u8>) {
    let (storage, data) = (Arc::new(MemoryStorage::new()), noise(5, 1 << 20));
    let repository = init(storage.clone());
    backup_from(&repository, "vm", "disk", &SparseDisk { data: data.clone(), size: SIZE });
    (Running::start(storage, &[], ServerOptions::default()), data)
}

fn connect(running: &Running, contexts: &[&str]) -> Connection {
    let socket = UnixStream::connect(running.path()).unwrap();
    let contexts: Vec<String> = contexts.iter().map(|&name| name.to_owned()).collect();
    let wanted = Wanted { export: EXPORT.as_bytes(), contexts: &contexts, tls: None };
    over(Socket::Unix(socket), &wanted, Duration::from_secs(20)).unwrap()
}

#[test]
fn one_reply_tells_of_more_than_32_bits_can_say() {
    let (running, data) = server();
    let connection = connect(&running, &["base:allocation"]);
    assert_eq!((connection.terms().form, connection.terms().bytes), (ReplyForm::Extended, SIZE));
    let mut found = vec![(1, Vec::new())];
    connection.exchange(std::iter::once(Status::new(0, SIZE, &mut found))).unwrap();
    let hole = u64::from(allocation::HOLE | allocation::ZERO);
    assert_eq!(found[0].1, [(1 << 20, 0), (SIZE - (1 << 20), hole)]);

    let mut bytes = vec![1; 3 << 20];
    let pieces = (0..).step_by(100_000).zip(bytes.chunks_mut(100_000));
    connection.exchange(pieces.map(|(at, into)| Read::new(at, into))).unwrap();
    assert!(bytes[..1 << 20] == data && bytes[1 << 20..].iter().all(|byte| *byte == 0));

    let mut beyond = [0; 2];
    let error = connection.exchange(std::iter::once(Read::new(SIZE - 1, &mut beyond)));
    assert!(error.unwrap_err().to_string().contains("EINVAL"));
    assert!(connection.failure().is_none(), "others go on");
}

/// A connection with extended headers, by hand.
fn by_hand(running: &Running) -> Client {
    let mut client = running.haggle();
    assert_eq!(client.ask(option::EXTENDED_HEADERS, b"").0, option_reply::ACK);
    let contexts = contexts_of(EXPORT, &["base:allocation"]);
    assert_eq!(client.ask(option::SET_META_CONTEXT, &contexts).0, option_reply::ACK);
    assert_eq!(client.ask(option::GO, &info_of(EXPORT, &[])).0, option_reply::ACK);
    client
}

fn request(client: &mut Client, command: u16, flags: u16, offset: u64, length: u64) {
    client.send(&Request { flags, command, cookie: 7, offset, length }.encode(true));
}

/// The kind and payload of the only chunk of a reply to a request at `offset`.
fn only_chunk(client: &mut Client, offset: u64) -> (u16, Vec<u8>) {
    assert_eq!((client.u32(), client.u16()), (EXTENDED_REPLY_MAGIC, chunk::FLAG_DONE));
    let kind = client.u16();
    assert_eq!((client.u64(), client.u64()), (7, offset), "cookie and offset");
    let length = usize::try_from(client.u64()).unwrap();
    (kind, client.bytes(length))
}

#[test]
fn extended_headers_are_negotiated_once_and_for_all() {
    let (running, _) = server();
    let mut client = running.haggle();
    assert_eq!(client.ask(option::STRUCTURED_REPLY, b"").0, option_reply::ACK);
    assert_eq!(client.ask(option::EXTENDED_HEADERS, b"").0, option_reply::ACK);
    assert_eq!(client.ask(option::EXTENDED_HEADERS, b"").0, option_reply::ERR_INVALID);
    let reply = client.ask(option::STRUCTURED_REPLY, b"").0;
    assert_eq!(reply, option_reply::ERR_EXT_HEADER_REQD);
    client.send_option(option::EXPORT_NAME, EXPORT.as_bytes());
    assert!(client.is_over(), "EXPORT_NAME must not follow");
}

#[test]
fn requests_and_replies_have_the_long_form() {
    let (running, data) = server();
    let mut client = by_hand(&running);
    request(&mut client, command::READ, 0, 5, 3);
    let (kind, payload) = only_chunk(&mut client, 5);
    assert_eq!((kind, &payload[8..]), (chunk::OFFSET_DATA, &data[5..8]));
    request(&mut client, command::FLUSH, 0, 0, 0);
    assert_eq!(only_chunk(&mut client, 0), (chunk::NONE, Vec::new()), "no simple reply");
    request(&mut client, command::BLOCK_STATUS, command_flag::REQ_ONE, 1 << 20, SIZE - (1 << 20));
    let (kind, payload) = only_chunk(&mut client, 1 << 20);
    assert_eq!((kind, payload.len()), (chunk::BLOCK_STATUS_EXT, 24));
    assert_eq!(payload[..8], [0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(payload[8..16], (SIZE - (1 << 20)).to_be_bytes());
    let mut error = |command, flags, offset, length, payload: &[u8]| {
        request(&mut client, command, flags, offset, length);
        client.send(payload);
        let (kind, payload) = only_chunk(&mut client, offset);
        assert!(kind >> 15 != 0, "{kind}");
        u32::from_be_bytes(payload[..4].try_into().unwrap())
    };
    assert_eq!(error(command::READ, 0, 0, 1 << 40, b""), errno::EINVAL);
    assert_eq!(error(command::BLOCK_STATUS, 0, 1, u64::MAX, b""), errno::EINVAL);
    assert_eq!(error(command::CACHE, 0, 0, SIZE, b""), errno::EINVAL);
    assert_eq!(error(command::TRIM, 0, 0, SIZE, b""), errno::EPERM);
    // With the flag the length is that of a payload, whatever the command is; without it, there is
    // none.
    let payload = command_flag::PAYLOAD_LEN;
    assert_eq!(error(command::WRITE, payload, 0, 5, b"hello"), errno::EPERM);
    assert_eq!(error(command::WRITE, 0, 0, 5, b""), errno::EPERM);
    assert_eq!(error(command::BLOCK_STATUS, payload, 0, 5, b"hello"), errno::EINVAL);
    request(&mut client, command::READ, payload, 0, 1 << 40);
    assert!(client.is_over(), "a payload that is too large");
}

#[test]
fn clients_without_them_are_served_as_before() {
    let (storage, image) = (Arc::new(MemoryStorage::new()), noise(3, 100_000));
    backup(&init(storage.clone()), "vm", &[("disk", &image)]);
    let running = Running::start(storage, &[], ServerOptions::default());
    let mut client = running.open(EXPORT, &["base:allocation"]);
    client.send(&Request { flags: 0, command: 0, cookie: 1, offset: 0, length: 9 }.encode(true));
    assert!(client.is_over(), "an extended header was not negotiated");
}
