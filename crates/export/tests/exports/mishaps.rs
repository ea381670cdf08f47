//! Damaged objects, deleted snapshots, clients that vanish, servers that end.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use silt_export::nbd::{Listener, ServerOptions};
use silt_format::ErrorKind;
use silt_source::nbd::wire::{chunk, command, errno, option, option_reply};
use silt_storage::{Key, MemoryStorage, PutMode, Storage, list_all};
use siltstone::{DeleteMethod, ReclaimOptions, Repository};

use crate::client::{Running, info_of};
use crate::kit::{backup, init, noise};

const MIB: usize = 1 << 20;

fn repository() -> (Arc<MemoryStorage>, Repository) {
    let storage = Arc::new(MemoryStorage::new());
    let repository = init(storage.clone());
    (storage, repository)
}

fn containers(storage: &MemoryStorage) -> Vec<(Key, u64)> {
    list_all(storage, "containers/", None).map(Result::unwrap).collect()
}

#[test]
fn damage_is_an_error_of_the_range_alone() {
    let (storage, repository) = repository();
    let image = noise(1, 6 * MIB);
    backup(&repository, "vm", &[("disk", &image)]);
    // Some bytes in the middle of the first container.
    let (key, bytes) = containers(&storage).remove(0);
    let mut object = Vec::new();
    storage.get(&key, silt_storage::ByteRange::Full, &mut object).unwrap();
    let middle = usize::try_from(bytes / 2).unwrap();
    object[middle..middle + 8].fill(0x55);
    storage.delete(std::slice::from_ref(&key)).unwrap();
    storage.put(&key, &[&object], PutMode::Create).unwrap();

    for structured in [true, false] {
        let running =
            Running::start(storage.clone(), &["vm@latest:disk"], ServerOptions::default());
        let mut client = running.haggle();
        if structured {
            client.ask(option::STRUCTURED_REPLY, b"");
        }
        assert_eq!(client.ask(option::GO, &info_of("", &[])).0, option_reply::ACK);
        let (mut whole, mut damaged) = (0, 0);
        for at in (0..image.len()).step_by(64 << 10) {
            client.request(command::READ, 0, 1, at as u64, 64 << 10);
            let expected = &image[at..at + (64 << 10)];
            if structured {
                let reply = client.chunks(1).pop().unwrap();
                if reply.kind == chunk::OFFSET_DATA {
                    assert!(reply.payload[8..] == *expected);
                    whole += 1;
                } else {
                    assert_eq!((reply.kind, reply.error()), (chunk::ERROR_OFFSET, errno::EIO));
                    let offset = reply.payload[reply.payload.len() - 8..].try_into().unwrap();
                    assert_eq!(u64::from_be_bytes(offset), at as u64);
                    damaged += 1;
                }
            } else if client.simple(1) == 0 {
                assert!(client.bytes(64 << 10) == expected);
                whole += 1;
            } else {
                damaged += 1;
            }
        }
        assert!((1..=6).contains(&damaged), "one frame is damaged: {damaged}");
        assert_eq!(whole + damaged, 96);
        if !structured {
            // Too long to be sent in one piece: the error is known before anything is sent.
            client.request(command::READ, 0, 2, 0, u32::try_from(image.len()).unwrap());
            assert_eq!(client.simple(2), errno::EIO);
            client.request(command::FLUSH, 0, 3, 0, 0);
            assert_eq!(client.simple(3), 0);
        }
    }
}

#[test]
fn a_snapshot_that_was_deleted_and_reclaimed_is_an_error() {
    let (storage, repository) = repository();
    let first = backup(&repository, "vm", &[("disk", &noise(2, 3 * MIB))]);
    backup(&repository, "vm", &[("disk", &noise(3, 3 * MIB))]);
    let running = Running::start(storage, &[], ServerOptions::default());
    let name = format!("{first}:disk");
    let mut client = running.open(&name, &[]);
    repository.delete("vm", &[first], DeleteMethod::Exact).unwrap();
    let options = ReclaimOptions { grace_s: 0, keep_deleted_s: Some(0), ..Default::default() };
    repository.reclaim("vm", &options).unwrap();
    client.request(command::READ, 0, 1, 0, 1 << 20);
    let reply = client.chunks(1).pop().unwrap();
    assert_eq!(reply.error(), errno::EIO);
    let message = String::from_utf8_lossy(&reply.payload).into_owned();
    assert!(message.contains("was deleted"), "{message}");
    let reply = running.haggle().ask(option::GO, &info_of(&name, &[])).0;
    assert_eq!(reply, option_reply::ERR_UNKNOWN);
}

#[test]
fn clients_that_vanish_keep_nothing() {
    let (storage, repository) = repository();
    let image = noise(4, 5 * MIB);
    backup(&repository, "vm", &[("disk", &image)]);
    let options = ServerOptions { connections_max: 4, ..ServerOptions::default() };
    let running = Running::start(storage, &["vm@latest"], options);
    for step in 0..40 {
        let mut client = running.connect();
        if step % 4 > 0 {
            client.greet(3);
        }
        if step % 4 > 1 {
            client.ask(option::STRUCTURED_REPLY, b"");
            client.ask(option::GO, &info_of("vm@latest:disk", &[]));
        }
        if step % 4 > 2 {
            for cookie in 0..50 {
                client.request(command::READ, 0, cookie, 0, 5 << 20);
            }
        }
        drop(client);
        // There is always room again: nobody holds a place who is gone.
        let mut tries = 0;
        loop {
            let mut next = running.connect();
            if !next.is_over_at_once() {
                next.send(&[0, 0, 0, 3]);
                assert_eq!(next.ask(option::ABORT, b"").0, option_reply::ACK);
                break;
            }
            tries += 1;
            assert!(tries < 20_000, "the server is full of clients that are gone");
        }
    }
}

#[test]
fn too_many_clients_are_sent_away_and_the_others_served() {
    let (storage, repository) = repository();
    backup(&repository, "vm", &[("disk", b"something")]);
    let options = ServerOptions { connections_max: 2, ..ServerOptions::default() };
    let running = Running::start(storage, &["vm@latest"], options);
    let mut first = running.open("", &[]);
    let _second = running.open("", &[]);
    assert!(running.connect().is_over());
    first.request(command::READ, 0, 1, 0, 9);
    assert_eq!(first.chunks(1)[0].payload[8..], *b"something");
}

#[test]
fn a_client_that_takes_no_replies_keeps_nobody_else_waiting() {
    let (storage, repository) = repository();
    let image = noise(5, 8 * MIB);
    backup(&repository, "vm", &[("disk", &image)]);
    let mut running = Running::start(storage, &["vm@latest"], ServerOptions::default());
    let mut stuck: Vec<_> = (0..5).map(|_| running.open("", &[])).collect();
    for client in &mut stuck {
        for cookie in 0..60 {
            client.request(command::READ, 0, cookie, 0, 8 << 20);
        }
    }
    let mut client = running.open("", &[]);
    client.request(command::READ, 0, 1, 0, 4096);
    assert_eq!(client.chunks(1)[0].payload[8..], image[..4096]);
    // Nor do they keep the server from ending.
    running.stop();
}

#[test]
fn an_ending_server_hangs_up_and_takes_its_socket_away() {
    let (storage, repository) = repository();
    backup(&repository, "vm", &[("disk", b"something")]);
    let mut running = Running::start(storage, &["vm@latest"], ServerOptions::default());
    let mode = std::fs::metadata(running.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = running.open("", &[]);
    let mut haggling = running.haggle();
    running.stop();
    assert!(client.is_over());
    assert!(haggling.is_over());
    assert!(!running.path().exists());
}

#[test]
fn a_server_that_nobody_uses_ends_if_it_was_told_to() {
    let (storage, repository) = repository();
    backup(&repository, "vm", &[("disk", b"something")]);
    let options = ServerOptions { idle_exit_ns: Some(1), ..ServerOptions::default() };
    let running = Running::start(storage, &["vm@latest"], options);
    while running.path().exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_socket_is_replaced_only_if_nobody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(Listener::unix(&path).err().unwrap().kind(), ErrorKind::AlreadyExists);
    drop(listener);
    drop(Listener::unix(&path).unwrap());
    std::fs::write(&path, "not a socket").unwrap();
    assert_eq!(Listener::unix(&path).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"not a socket");
}

#[test]
fn sockets_of_a_supervisor_are_for_the_process_that_they_are_meant_for() {
    assert!(Listener::handed_over(Some("1"), Some("1")).unwrap().is_empty());
    assert!(Listener::handed_over(None, None).unwrap().is_empty());
    let own = std::process::id().to_string();
    let refused = Listener::handed_over(Some("9999"), Some(&own)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

#[test]
fn clients_cannot_fill_the_log() {
    let (storage, repository) = repository();
    backup(&repository, "vm", &[("disk", &noise(1, 5000))]);
    let running = Running::start(storage, &[], ServerOptions::default());
    let ask = |name: String| {
        let mut client = running.haggle();
        client.send_option(option::EXPORT_NAME, name.as_bytes());
        assert!(client.is_over());
    };
    // A text is logged once, and of all texts some.
    (0..100).for_each(|_| ask("nothing@latest:disk".to_owned()));
    assert_eq!(running.warnings.count("a client asked for export 'nothing@latest:disk'"), 1);
    (0..100).for_each(|number| ask(format!("nothing{number}@latest:disk")));
    assert_eq!(running.warnings.count("a client asked for export 'nothing"), 20);
}

#[test]
fn a_damaged_head_is_warned_of_once() {
    let (storage, repository) = repository();
    backup(&repository, "vm", &[("disk", &noise(1, 5000))]);
    backup(&repository, "other", &[("disk", &noise(2, 5000))]);
    let before = head_of(&storage, &repository);
    let running = Running::start(storage.clone(), &[], ServerOptions::default());
    let list = || running.haggle().ask(option::LIST, b"").1.len();
    assert_eq!(list(), 4, "two series, as latest and by id");
    // The next head of the series is damaged.
    backup(&repository, "vm", &[("disk", &noise(3, 5000))]);
    let key = head_of(&storage, &repository);
    assert_ne!(key, before);
    let mut object = Vec::new();
    storage.get(&key, silt_storage::ByteRange::Full, &mut object).unwrap();
    let middle = object.len() / 2;
    object[middle] ^= 1;
    storage.delete(std::slice::from_ref(&key)).unwrap();
    storage.put(&key, &[&object], PutMode::Create).unwrap();
    for _ in 0..10 {
        assert_eq!(list(), 4, "the series is shown as it was");
    }
    assert_eq!(running.warnings.count("a series is not up to date"), 1);
}

/// The newest head of `vm`.
fn head_of(storage: &MemoryStorage, repository: &Repository) -> Key {
    let id = repository.series_id("vm").to_string();
    let heads = list_all(storage, "", None).map(|entry| entry.unwrap().0);
    let heads =
        heads.filter(|key| key.to_string().contains("head") && key.to_string().contains(&id));
    // They count down.
    heads.min_by_key(ToString::to_string).unwrap()
}
