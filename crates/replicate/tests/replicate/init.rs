//! Replicas that are made at the other end of a line.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use silt_format::replica::InitMessage;
use silt_format::{Error, ErrorKind, Result};
use silt_replicate::{
    Connection, Replica, ReplicateOptions, answer_init, make_replica, replicate_over, serve,
};
use silt_storage::{
    ByteRange, Counted, CrashStorage, CrashingOperation, Key, MemoryStorage, Storage, list_all,
};
use siltstone::{Administrator, BackupOptions, Repository};

use crate::kit::*;

/// Asks for a replica of `here` over a line; the ends' results.
fn make(
    here: &Site,
    create: impl FnOnce() -> Result<Option<Arc<dyn Storage>>> + Send,
) -> (Result<bool>, Result<bool>) {
    make_for(here, None, create)
}

/// The same, for an administrator.
fn make_for(
    here: &Site,
    administrator: Option<Administrator>,
    create: impl FnOnce() -> Result<Option<Arc<dyn Storage>>> + Send,
) -> (Result<bool>, Result<bool>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let writer = Box::new(theirs.try_clone().unwrap());
            answer_init(stream_of(theirs, writer), create).map(|(_, is_made)| is_made)
        });
        let mut stream = stream_of(ours.try_clone().unwrap(), Box::new(ours));
        let protection = || Ok::<_, Error>((protected(), administrator));
        let made = make_replica(&here.repository, &mut stream, protection);
        // The other end may wait for more.
        drop(stream);
        (made.map(|id| id.is_some()), served.join().unwrap())
    })
}

fn names(storage: &MemoryStorage) -> Vec<String> {
    list_all(storage, "", None).map(|item| item.unwrap().0.as_str().to_owned()).collect()
}

#[test]
fn a_replica_is_made_over_a_line_and_opens_with_its_own_password() {
    let here = encrypted_site();
    let disk = noise(1, SEGMENT + 5000);
    back_up(&here, "web1", &[("root", &disk)]);
    let storage = Arc::new(MemoryStorage::new());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let there = storage.clone();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let writer = Box::new(theirs.try_clone().unwrap());
            let create = || Ok(Some(there.clone() as Arc<dyn Storage>));
            let (stream, is_made) = answer_init(stream_of(theirs, writer), create).unwrap();
            assert!(is_made);
            // The secret is not among the objects; the password opens them.
            let open = |password: &[u8]| {
                let password = password.to_vec();
                Repository::open(there.clone(), context(), move || Ok(password))
            };
            assert_eq!(open(b"wrong").err().unwrap().kind(), ErrorKind::WrongPassword);
            let replica = open(b"all").unwrap();
            let role = silt_format::replica::ReplicaRole::Replica;
            let mut connection = Connection::open(&replica, role, stream, 3).unwrap();
            serve(Replica::new(&replica, BackupOptions::default()), &mut connection).unwrap()
        });
        let mut stream = stream_of(ours.try_clone().unwrap(), Box::new(ours));
        let made =
            make_replica(&here.repository, &mut stream, || Ok::<_, Error>((protected(), None)));
        assert!(made.unwrap().is_some_and(|id| id != here.repository.id()));
        let role = silt_format::replica::ReplicaRole::Source;
        let mut connection = Connection::open(&here.repository, role, stream, 3).unwrap();
        let options = ReplicateOptions::default();
        let report = replicate_over(&here.repository, options, &mut connection).unwrap();
        assert_eq!((report.snapshots.len(), served.join().unwrap()), (1, 1));
    });
    let there = opened(storage, b"all");
    assert!(read(&there, "web1", "root") == disk);
    check(&there);
    // Not a byte of the secret was sent unsealed: a write-only key cannot be told from another.
    let master = |site: &Site| *site.repository.objects.keys.master().unwrap().expose();
    assert_eq!(master(&there), master(&here));
    for name in names(&there.storage) {
        let mut bytes = Vec::new();
        let key = Key::new(name).unwrap();
        there.storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        assert!(!bytes.windows(32).any(|window| window == master(&here)));
    }
}

#[test]
fn what_is_there_is_kept_and_an_unencrypted_secret_stays_here() {
    let here = encrypted_site();
    let (made, served) = make(&here, || Ok(None));
    assert_eq!((made.unwrap(), served.unwrap()), (false, false));
    let taken = || Err(Error::new(ErrorKind::AlreadyExists, "the folder is not empty"));
    let (made, served) = make(&here, taken);
    let error = made.unwrap_err();
    assert_eq!(
        (error.kind(), served.unwrap_err().kind()),
        (ErrorKind::AlreadyExists, error.kind())
    );
    assert!(error.to_string().contains("the folder is not empty"), "{error}");
    let storage = Arc::new(MemoryStorage::new());
    let there = storage.clone() as Arc<dyn Storage>;
    let (made, _) = make(&site(), || Ok(Some(there)));
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(names(&storage).is_empty());
    // A source that only says hello is served as ever.
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&ours).write_all(b"SILTREPL and the rest").unwrap();
    let stream = stream_of(theirs.try_clone().unwrap(), Box::new(theirs));
    let (mut stream, is_made) = answer_init(stream, || panic!("nobody asked")).unwrap();
    let mut again = [0; 21];
    stream.reader.read_exact(&mut again).unwrap();
    assert!(!is_made && &again == b"SILTREPL and the rest");
}

/// Objects that are none of a replica are refused before one of them is stored.
#[test]
fn nothing_but_a_whole_replica_is_stored() {
    let here = encrypted_site();
    let replica = encrypted_replica_of(&here);
    let mut good: Vec<(String, Vec<u8>)> = Vec::new();
    for name in names(&replica.storage) {
        let mut bytes = Vec::new();
        let key = Key::new(name.as_str()).unwrap();
        replica.storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        good.push((name, bytes));
    }
    good.sort_by_key(|(name, _)| name == "config");
    let open = site();
    let clear = names(&open.storage).into_iter().map(|name| {
        let mut bytes = Vec::new();
        let key = Key::new(name.as_str()).unwrap();
        open.storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        (name, bytes)
    });
    let mut wrong: Vec<Vec<(String, Vec<u8>)>> = vec![Vec::new(), clear.collect()];
    for number in 0..good.len() {
        let mut less = good.clone();
        less.remove(number);
        wrong.push(less);
        let mut renamed = good.clone();
        renamed[number].0 = "series/000000000000000000000000".to_owned();
        wrong.push(renamed);
        let mut cut = good.clone();
        cut[number].1.truncate(20);
        wrong.push(cut);
        let mut twice = good.clone();
        twice.insert(0, good[number].clone());
        wrong.push(twice);
    }
    let mut of_another = good.clone();
    let other = encrypted_replica_of(&here);
    let key = Key::new("config.copy").unwrap();
    of_another[0].1.clear();
    other.storage.get(&key, ByteRange::Full, &mut of_another[0].1).unwrap();
    of_another[0].0 = "config.copy".to_owned();
    wrong.push(of_another);
    let offer = |objects: Vec<(String, Vec<u8>)>, flip: bool| {
        let storage = Arc::new(MemoryStorage::new());
        let there = storage.clone() as Arc<dyn Storage>;
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&InitMessage::Ask.encode()).unwrap();
        let mut message = InitMessage::Objects(objects).encode();
        let middle = message.len() / 2;
        message[middle] ^= u8::from(flip);
        (&ours).write_all(&message).unwrap();
        let stream = stream_of(theirs.try_clone().unwrap(), Box::new(theirs));
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let answered = answer_init(stream, || Ok(Some(there))).map(|(_, is_made)| is_made);
        (answered, names(&storage).len())
    };
    assert!(offer(good.clone(), false).0.unwrap());
    let (changed, stored) = offer(good, true);
    assert_eq!((changed.unwrap_err().kind(), stored), (ErrorKind::Corrupt, 0));
    for objects in wrong {
        let shown: Vec<_> =
            objects.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect();
        let (answered, stored) = offer(objects, false);
        assert!(answered.is_err() && stored == 0, "{shown:?}");
    }
}

/// A machine that stops while it stores a replica has a whole one, or none that opens.
#[test]
fn a_replica_is_whole_or_none() {
    let here = encrypted_site();
    let mut opened = 0;
    for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
        for succeeding in 0..7 {
            let survivor = Arc::new(MemoryStorage::new());
            let crashing =
                CrashStorage::new(survivor.clone(), succeeding, Counted::Mutations, struck);
            let (made, served) = make(&here, || Ok(Some(Arc::new(crashing))));
            assert_eq!(made.is_ok(), served.is_ok());
            let open = || Repository::open(survivor.clone(), context(), || Ok(b"all".to_vec()));
            match open() {
                Ok(replica) => {
                    opened += 1;
                    let replica = Site { repository: replica, storage: survivor };
                    back_up(&replica, "own", &[("root", &noise(1, 5000))]);
                    assert!(read(&replica, "own", "root") == noise(1, 5000));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoRepository, "{error}");
                    assert!(served.is_err());
                }
            }
        }
    }
    assert!((3..8).contains(&opened), "{opened}");
}

#[test]
fn a_replica_is_append_only_or_none() {
    let here = encrypted_site();
    let mut opened = 0;
    for succeeding in 0..9 {
        let survivor = Arc::new(MemoryStorage::new());
        let (counted, struck) = (Counted::Mutations, CrashingOperation::Applied);
        let crashing = CrashStorage::new(survivor.clone(), succeeding, counted, struck);
        let (password, label) = (b"signs".to_vec(), silt_format::KeyLabel::default());
        let administrator = Administrator { password, cost: COST, label };
        let create = || Ok(Some(Arc::new(crashing) as Arc<dyn Storage>));
        let (made, served) = make_for(&here, Some(administrator), create);
        assert_eq!(made.is_ok(), served.is_ok());
        match Repository::open(survivor.clone(), context(), || Ok(b"all".to_vec())) {
            Ok(mut replica) => {
                opened += 1;
                assert!(replica.is_append_only());
                replica.authorize(b"signs").unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoRepository, "{error}"),
        }
    }
    assert!((1..9).contains(&opened), "{opened}");
}
