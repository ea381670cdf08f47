//! The MUSTs of doc/proto.md of NetworkBlockDevice/nbd, each against the real server over a socket.

use std::sync::Arc;

use silt_export::nbd::ServerOptions;
use silt_source::nbd::wire::{
    GREETING_MAGIC, allocation, chunk, command, command_flag, errno, info, option, option_reply,
    transmission_flag,
};
use silt_storage::MemoryStorage;

use crate::client::{Chunk, Client, Running, contexts_of, info_of};
use crate::kit::{backup, init, noise};

const MIB: usize = 1 << 20;
const EXPORT: &str = "vm@latest:disk";

/// Data, 4 MiB of zeros, data to an odd end.
fn image() -> Vec<u8> {
    [noise(1, 3 * MIB), vec![0; 4 * MIB], noise(2, 2 * MIB + 1234)].concat()
}

fn server(names: &[&str]) -> (Running, Vec<u8>) {
    let (storage, image) = (Arc::new(MemoryStorage::new()), image());
    let repository = init(storage.clone());
    backup(&repository, "vm", &[("disk", &image), ("empty", b"")]);
    (Running::start(storage, names, ServerOptions::default()), image)
}

/// One rule of the protocol: what it says, and what shows that the server keeps to it.
type Rule = (&'static str, fn(&Running, &[u8]));

fn keeps_to(rules: &[Rule]) {
    let (running, image) = server(&[]);
    for (rule, check) in rules {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&running, &image);
        }));
        assert!(result.is_ok(), "broken: {rule}");
        // Whatever one client has done, the next is served.
        let mut client = running.open(EXPORT, &[]);
        client.request(command::READ, 0, 1, 0, 4096);
        assert_eq!(client.chunks(1)[0].payload[8..], image[..4096], "after: {rule}");
    }
}

#[test]
fn greetings_and_export_names() {
    keeps_to(&[
        ("drops the connection if the client sets an unknown flag", |server, _| {
            let mut client = server.connect();
            client.greet(1 << 7);
            assert!(client.is_over());
        }),
        ("EXPORT_NAME of an unknown export terminates the session", |server, _| {
            let mut client = server.haggle();
            client.send_option(option::EXPORT_NAME, b"nothing@latest:disk");
            assert!(client.is_over());
        }),
        ("EXPORT_NAME is followed by size, flags and no zeroes", |server, image| {
            let mut client = server.haggle();
            client.send_option(option::EXPORT_NAME, EXPORT.as_bytes());
            assert_eq!(client.u64(), image.len() as u64);
            let flags = client.u16();
            assert_eq!(flags & 3, transmission_flag::HAS_FLAGS | transmission_flag::READ_ONLY);
            assert_eq!(flags & transmission_flag::SEND_DF, 0, "replies are not structured");
            client.request(command::READ, 0, 7, 5, 3);
            assert_eq!(client.simple(7), 0);
            assert_eq!(client.bytes(3), image[5..8]);
        }),
        ("124 zeroes follow unless NO_ZEROES was negotiated", |server, _| {
            let mut client = server.connect();
            client.greet(1);
            client.send_option(option::EXPORT_NAME, EXPORT.as_bytes());
            client.bytes(10);
            assert_eq!(client.bytes(124), [0; 124]);
            client.request(command::FLUSH, 0, 8, 0, 0);
            assert_eq!(client.simple(8), 0);
        }),
        ("without fixed newstyle only EXPORT_NAME is valid", |server, _| {
            let mut client = server.connect();
            client.greet(0);
            client.send_option(option::LIST, b"");
            assert!(client.is_over());
        }),
    ]);
}

#[test]
fn options() {
    keeps_to(&[
        ("ABORT is acknowledged, and the session ends", |server, _| {
            let mut client = server.haggle();
            assert_eq!(client.ask(option::ABORT, b"").0, option_reply::ACK);
            assert!(client.is_over());
        }),
        ("unknown options are refused, and haggling goes on", |server, _| {
            let mut client = server.haggle();
            for kind in [4, 9999, 12, u32::MAX] {
                assert_eq!(client.ask(kind, b"some data").0, option_reply::ERR_UNSUP);
            }
            assert_eq!(client.ask(option::LIST, b"").0, option_reply::ACK);
        }),
        ("LIST and STRUCTURED_REPLY with data are invalid", |server, _| {
            let mut client = server.haggle();
            let empty = [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS, option::STARTTLS];
            for kind in empty.into_iter().chain([option::LIST]) {
                assert_eq!(client.ask(kind, b"x").0, option_reply::ERR_INVALID);
            }
        }),
        ("without TLS, STARTTLS is refused, and nothing asks for it", |server, _| {
            let mut client = server.haggle();
            assert_eq!(client.ask(option::STARTTLS, b"").0, option_reply::ERR_POLICY);
            assert_eq!(client.ask(option::LIST, b"").0, option_reply::ACK);
        }),
        ("LIST names the exports, each of which can be opened", |server, _| {
            let mut client = server.haggle();
            let (_, said) = client.ask(option::LIST, b"");
            assert_eq!(said.len(), 4, "two volumes, as latest and by id");
            for (kind, data) in said {
                assert_eq!(kind, option_reply::SERVER);
                let length = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
                let name = std::str::from_utf8(&data[4..4 + length]).unwrap();
                assert_eq!(client.ask(option::INFO, &info_of(name, &[])).0, option_reply::ACK);
            }
        }),
        ("an option without its magic number ends the session", |server, _| {
            let mut client = server.haggle();
            client.send(&[0; 16]);
            assert!(client.is_over());
        }),
        ("options that are too long are refused, and far too long ones end it", |server, _| {
            let mut client = server.haggle();
            let long = vec![b'a'; 100_000];
            assert_eq!(client.ask(option::INFO, &long).0, option_reply::ERR_TOO_BIG);
            assert_eq!(client.ask(option::LIST, b"").0, option_reply::ACK);
            let header = [&b"IHAVEOPT"[..], &[0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff]].concat();
            client.send(&header);
            assert!(client.is_over());
        }),
        ("the greeting comes first, whatever the client says", |server, _| {
            let mut client = server.connect();
            client.send(b"GET / HTTP/1.0\r\n\r\n");
            assert_eq!(client.u64(), GREETING_MAGIC);
            client.bytes(10);
            assert!(client.is_over());
        }),
    ]);
}

#[test]
fn exports() {
    keeps_to(&[
        ("GO says EXPORT at least, then ACK", |server, image| {
            let mut client = server.haggle();
            let (reply, said) = client.ask(option::GO, &info_of(EXPORT, &[]));
            assert_eq!(reply, option_reply::ACK);
            let export = said.iter().find(|(_, data)| data[..2] == [0, 0]).unwrap();
            assert_eq!(export.1[2..10], (image.len() as u64).to_be_bytes());
        }),
        ("INFO says what it is asked, and stays in haggling", |server, _| {
            let mut client = server.haggle();
            let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 999];
            let (reply, said) = client.ask(option::INFO, &info_of(EXPORT, &wanted));
            assert_eq!(reply, option_reply::ACK);
            let of = |kind: u16| {
                let found = said.iter().find(|(_, data)| data[..2] == kind.to_be_bytes());
                found.map(|(_, data)| data[2..].to_vec()).unwrap()
            };
            assert_eq!(of(info::NAME), EXPORT.as_bytes());
            assert!(std::str::from_utf8(&of(info::DESCRIPTION)).unwrap().contains("vm"));
            assert_eq!(of(info::BLOCK_SIZE), [0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
            assert_eq!(client.ask(option::LIST, b"").0, option_reply::ACK);
        }),
        ("unknown exports are UNKNOWN, malformed ones INVALID", |server, _| {
            let mut client = server.haggle();
            let unknown = ["", "x", "vm@latest:swap", "no@latest:disk", "vm@1999-01-01:disk"];
            for name in unknown {
                let reply = client.ask(option::GO, &info_of(name, &[])).0;
                assert_eq!(reply, option_reply::ERR_UNKNOWN, "{name}");
            }
            for data in [&b""[..], &[0, 0, 0, 9, 1], &[0, 0, 0, 1, 0xff, 0, 0]] {
                assert_eq!(client.ask(option::GO, data).0, option_reply::ERR_INVALID);
            }
        }),
    ]);
}

#[test]
fn contexts() {
    keeps_to(&[
        ("metadata contexts need structured replies first", |server, _| {
            let mut client = server.haggle();
            for kind in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
                let reply = client.ask(kind, &contexts_of(EXPORT, &["base:allocation"])).0;
                assert_eq!(reply, option_reply::ERR_INVALID);
            }
        }),
        ("an empty query lists all contexts, an unknown one none", |server, _| {
            let mut client = server.haggle();
            client.ask(option::STRUCTURED_REPLY, b"");
            let mut list = |queries: &[&str]| {
                let data = contexts_of(EXPORT, queries);
                let (reply, said) = client.ask(option::LIST_META_CONTEXT, &data);
                assert_eq!(reply, option_reply::ACK);
                let name =
                    |(_, data): &(u32, Vec<u8>)| String::from_utf8(data[4..].to_vec()).unwrap();
                said.iter().map(name).collect::<Vec<_>>()
            };
            assert_eq!(list(&[]), ["base:allocation"]);
            assert_eq!(list(&["base:"]), ["base:allocation"]);
            assert_eq!(list(&["qemu:", "base:nothing"]), Vec::<String>::new());
        }),
        ("SET replaces what was set, and is of one export", |server, _| {
            let mut client = server.haggle();
            client.ask(option::STRUCTURED_REPLY, b"");
            let all = contexts_of(EXPORT, &["base:allocation", "x:y"]);
            let (_, said) = client.ask(option::SET_META_CONTEXT, &all);
            assert_eq!(said.len(), 1);
            let none = contexts_of(EXPORT, &["x:y"]);
            assert_eq!(client.ask(option::SET_META_CONTEXT, &none), (option_reply::ACK, vec![]));
            client.ask(option::GO, &info_of(EXPORT, &[]));
            client.request(command::BLOCK_STATUS, 0, 1, 0, 4096);
            assert_eq!(client.chunks(1)[0].error(), errno::EINVAL);
        }),
        ("contexts of another export than the one opened do not count", |server, _| {
            let mut client = server.haggle();
            client.ask(option::STRUCTURED_REPLY, b"");
            let other = contexts_of("vm@latest:empty", &["base:allocation"]);
            client.ask(option::SET_META_CONTEXT, &other);
            client.ask(option::GO, &info_of(EXPORT, &[]));
            client.request(command::BLOCK_STATUS, 0, 1, 0, 4096);
            assert_eq!(client.chunks(1)[0].error(), errno::EINVAL);
        }),
    ]);
}

/// Puts a reply to a read together; every byte must be covered once.
fn assemble(client: &mut Client, cookie: u64, offset: u64, length: usize) -> Vec<u8> {
    let (mut whole, mut covered) = (vec![7; length], 0);
    for chunk in client.chunks(cookie) {
        let start = |chunk: &Chunk| usize::try_from(chunk.offset() - offset).unwrap();
        match chunk.kind {
            chunk::OFFSET_DATA => {
                let data = &chunk.payload[8..];
                whole[start(&chunk)..start(&chunk) + data.len()].copy_from_slice(data);
                covered += data.len();
            }
            chunk::OFFSET_HOLE => {
                let size = u32::from_be_bytes(chunk.payload[8..].try_into().unwrap()) as usize;
                assert!(size > 0);
                whole[start(&chunk)..start(&chunk) + size].fill(0);
                covered += size;
            }
            chunk::NONE => assert!(chunk.is_last && chunk.payload.is_empty()),
            _ => panic!("{chunk:?}"),
        }
    }
    assert_eq!(covered, length);
    whole
}

#[test]
fn structured_reads() {
    keeps_to(&[
        ("structured reads cover the range exactly, holes as holes", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            let ranges = [(0, image.len()), (1, 1), (3 * MIB - 5, 4 * MIB + 10), (5 * MIB, 4096)];
            let ends = [(image.len() - 1, 1), (image.len() - 70_001, 70_001)];
            for (cookie, (at, length)) in (10..).zip(ranges.into_iter().chain(ends)) {
                let size = u32::try_from(length).unwrap();
                client.request(command::READ, 0, cookie, at as u64, size);
                let read = assemble(&mut client, cookie, at as u64, length);
                assert!(read == image[at..at + length], "{at}+{length}");
            }
            client.request(command::READ, 0, 1, 4 * MIB as u64, 2 << 20);
            let chunks = client.chunks(1);
            assert!(chunks.iter().all(|chunk| chunk.kind == chunk::OFFSET_HOLE), "{chunks:?}");
        }),
        ("with DF there is one chunk of content at most", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            let at = 3 * MIB - 32_768;
            client.request(command::READ, command_flag::DF, 1, at as u64, 65_536);
            let chunks = client.chunks(1);
            assert_eq!((chunks.len(), chunks[0].kind), (1, chunk::OFFSET_DATA));
            assert_eq!(chunks[0].payload[8..], image[at..at + 65_536]);
            client.request(command::READ, command_flag::DF, 2, 0, 8 << 20);
            assert_eq!(client.chunks(2)[0].error(), errno::EOVERFLOW);
        }),
        ("reads beyond the end and of too much are EINVAL, and hurt nobody", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            let end = image.len() as u64;
            let wrong =
                [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 5, 4096), (1, u32::MAX)];
            for (cookie, (at, length)) in (1..).zip(wrong) {
                client.request(command::READ, 0, cookie, at, length);
                assert_eq!(client.chunks(cookie)[0].error(), errno::EINVAL);
            }
            client.request(command::READ, 0, 9, end - 1, 1);
            assert_eq!(client.chunks(9)[0].payload[8..], image[image.len() - 1..]);
        }),
    ]);
}

#[test]
fn odd_and_simple_reads() {
    keeps_to(&[
        ("flags that a command can't have are EINVAL, also in a structured reply", |server, _| {
            let mut client = server.open(EXPORT, &["base:allocation"]);
            client.request(command::READ, command_flag::REQ_ONE, 1, 0, 1);
            assert_eq!(client.chunks(1)[0].error(), errno::EINVAL);
            client.request(command::BLOCK_STATUS, command_flag::DF, 2, 0, 1);
            assert_eq!(client.chunks(2)[0].error(), errno::EINVAL);
            client.request(command::FLUSH, 1 << 12, 3, 0, 0);
            assert_eq!(client.chunks(3)[0].error(), errno::EINVAL);
        }),
        ("DF without structured replies is EINVAL", |server, _| {
            let mut client = server.haggle();
            client.ask(option::GO, &info_of(EXPORT, &[]));
            client.request(command::READ, command_flag::DF, 1, 0, 512);
            assert_eq!(client.simple(1), errno::EINVAL);
        }),
        ("simple replies carry all data or an error and none", |server, image| {
            let mut client = server.haggle();
            client.ask(option::GO, &info_of(EXPORT, &[]));
            for (cookie, length) in [(1, 9000), (2, 200_000), (3, 6 * MIB)] {
                let size = u32::try_from(length).unwrap();
                client.request(command::READ, 0, cookie, 4096, size);
                assert_eq!(client.simple(cookie), 0);
                assert!(client.bytes(length) == image[4096..4096 + length]);
            }
            client.request(command::READ, 0, 4, image.len() as u64, 1);
            assert_eq!(client.simple(4), errno::EINVAL);
            client.request(command::FLUSH, 0, 5, 0, 0);
            assert_eq!(client.simple(5), 0);
        }),
        ("many requests at once are all answered, by their cookies", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            let mut writer = client.socket.try_clone().unwrap();
            let sender = std::thread::spawn(move || {
                use std::io::Write;
                for cookie in 0..2000_u64 {
                    let request = silt_source::nbd::wire::Request {
                        flags: 0,
                        command: command::READ,
                        cookie,
                        offset: cookie * 37 % 2_000_000,
                        length: 1000 + cookie * 61 % 200_000,
                    };
                    writer.write_all(&request.encode(false)).unwrap();
                }
            });
            let mut open = std::collections::HashMap::new();
            while open.len() < 2000 || open.values().any(|done| !done) {
                let chunk = client.chunk();
                assert_eq!(chunk.kind, chunk::OFFSET_DATA);
                let at = usize::try_from(chunk.offset()).unwrap();
                let data = &chunk.payload[8..];
                assert!(*data == image[at..at + data.len()]);
                let done = open.entry(chunk.cookie).or_insert(false);
                assert!(!*done, "a reply goes on after its last chunk");
                *done = chunk.is_last;
            }
            sender.join().unwrap();
        }),
    ]);
}

#[test]
fn other_commands() {
    keeps_to(&[
        ("a read-only export errors writes, and the payload is passed over", |server, _| {
            let mut client = server.open(EXPORT, &[]);
            client.request(command::WRITE, 0, 1, 0, 100_000);
            client.send(&vec![9; 100_000]);
            assert_eq!(client.chunks(1)[0].error(), errno::EPERM);
            for (cookie, kind) in [(2, command::TRIM), (3, command::WRITE_ZEROES)] {
                client.request(kind, command_flag::FUA, cookie, 0, 512);
                assert_eq!(client.chunks(cookie)[0].error(), errno::EPERM);
            }
        }),
        ("a write of more than a block can have ends the session", |server, _| {
            let mut client = server.open(EXPORT, &[]);
            client.request(command::WRITE, 0, 1, 0, u32::MAX);
            assert!(client.is_over());
        }),
        ("unknown commands are EINVAL", |server, _| {
            let mut client = server.open(EXPORT, &[]);
            for kind in [8, 99, u16::MAX] {
                client.request(kind, 0, 5, 0, 512);
                assert_eq!(client.chunks(5)[0].error(), errno::EINVAL);
            }
        }),
        ("FLUSH succeeds, CACHE too where there is something", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            client.request(command::FLUSH, 0, 1, 0, 0);
            assert_eq!(client.chunks(1)[0].kind, chunk::NONE);
            client.request(command::CACHE, 0, 2, 0, u32::try_from(image.len()).unwrap());
            assert_eq!(client.chunks(2)[0].kind, chunk::NONE);
            client.request(command::CACHE, 0, 3, 1, u32::try_from(image.len()).unwrap());
            assert_eq!(client.chunks(3)[0].error(), errno::EINVAL);
        }),
        ("DISC ends the session after what is under way", |server, image| {
            let mut client = server.open(EXPORT, &[]);
            client.request(command::READ, 0, 1, 0, 1 << 20);
            client.request(command::DISC, 0, 2, 0, 0);
            assert!(assemble(&mut client, 1, 0, MIB) == image[..MIB]);
            assert!(client.is_over());
        }),
        ("what does not begin as a request ends the session", |server, _| {
            let mut client = server.open(EXPORT, &[]);
            client.send(&[0xee; 28]);
            assert!(client.is_over());
        }),
        ("block status is never longer than asked, and tells holes", |server, image| {
            let mut client = server.open(EXPORT, &["base:allocation"]);
            let hole = allocation::HOLE | allocation::ZERO;
            let all = u32::try_from(image.len()).unwrap();
            client.request(command::BLOCK_STATUS, 0, 1, 0, all);
            let (data, zeros) = (3 << 20, 4 << 20);
            let expected = vec![(data, 0), (zeros, hole), (all - data - zeros, 0)];
            assert_eq!(client.extents(1), [(1, expected)]);
            client.request(command::BLOCK_STATUS, command_flag::REQ_ONE, 2, 100, 4 << 20);
            assert_eq!(client.extents(2), [(1, vec![(data - 100, 0)])]);
            client.request(command::BLOCK_STATUS, 0, 3, 4 << 20, 1);
            assert_eq!(client.extents(3), [(1, vec![(1, hole)])]);
            for (cookie, (at, length)) in (4..).zip([(0, 0), (1, all), (u64::MAX, 1)]) {
                client.request(command::BLOCK_STATUS, 0, cookie, at, length);
                assert_eq!(client.chunks(cookie)[0].error(), errno::EINVAL);
            }
        }),
        ("an empty export has nothing, and fails nobody", |server, _| {
            let mut client = server.open("vm@latest:empty", &["base:allocation"]);
            client.request(command::READ, 0, 1, 0, 0);
            assert_eq!(client.chunks(1)[0].kind, chunk::NONE);
            client.request(command::READ, 0, 2, 0, 1);
            assert_eq!(client.chunks(2)[0].error(), errno::EINVAL);
        }),
    ]);
}

#[test]
fn a_single_volume_is_the_default_export_and_several_connections_show_the_same() {
    let (running, image) = server(&[EXPORT]);
    for name in ["", EXPORT] {
        let mut client = running.haggle();
        let (reply, said) = client.ask(option::GO, &info_of(name, &[]));
        assert_eq!(reply, option_reply::ACK);
        let flags = said.iter().find(|(_, data)| data[..2] == [0, 0]).unwrap().1[10..].to_vec();
        let flags = u16::from_be_bytes(flags.try_into().unwrap());
        assert!(flags & transmission_flag::CAN_MULTI_CONN != 0);
        client.request(command::READ, 0, 1, 0, 4);
        assert_eq!(client.simple(1), 0);
        assert_eq!(client.bytes(4), image[..4]);
    }
    let mut client = running.haggle();
    let (reply, _) = client.ask(option::GO, &info_of("vm@latest:empty", &[]));
    assert_eq!(reply, option_reply::ERR_UNKNOWN, "it was not given");
    assert_eq!(client.ask(option::LIST, b"").1.len(), 1);
}

#[test]
fn a_name_that_may_change_its_meaning_is_for_one_connection() {
    let (running, _) = server(&[]);
    let mut client = running.haggle();
    let (_, said) = client.ask(option::GO, &info_of(EXPORT, &[]));
    let export = said.iter().find(|(_, data)| data[..2] == [0, 0]).unwrap();
    let flags = u16::from_be_bytes(export.1[10..].try_into().unwrap());
    assert_eq!(flags & transmission_flag::CAN_MULTI_CONN, 0);
}
