//! Makes a replica at the other end of a line.
//!
//! The source makes the objects of the new repository in memory. The secret in them is sealed by
//! the replica's password, which the other end does not get to know.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::Arc;

use silt_format::replica::{INIT_HEADER_BYTES, InitMessage};
use silt_format::{Error, ErrorKind, Header, ObjectKind, RepositoryId, Result, SealScheme, names};
use silt_repository::Repository;
use silt_repository::authority::Administrator;
use silt_repository::open::Protection;
use silt_storage::{ByteRange, Key, MemoryStorage, PutMode, Storage, list_all};

use crate::connection::{Stream, broken, master_of};

/// Makes a replica of `repository` at the other end of `stream` if there is none. Asks `protection`
/// for its password only then, and for its administrator, who makes it append-only. Returns the
/// replica's id, `None` if there is a repository already.
///
/// Fails with `Invalid` if the repository is not encrypted: its secret would go over the line
/// unsealed. Otherwise fails as the other end does: with `AlreadyExists` if its place holds
/// anything else. Afterwards, both ends say hello.
pub fn make_replica<E: From<Error>>(
    repository: &Repository,
    stream: &mut Stream<'_>,
    protection: impl FnOnce() -> std::result::Result<(Protection, Option<Administrator>), E>,
) -> std::result::Result<Option<RepositoryId>, E> {
    master_of(repository)?;
    if !repository.is_encrypted() {
        let message = "the secret of an unencrypted repository is not sent over a line; make its \
                       replica in a folder or bucket";
        return Err(Error::invalid(message).into());
    }
    write(stream, &InitMessage::Ask)?;
    match read(stream)? {
        InitMessage::Exists => return Ok(None),
        InitMessage::Empty => {}
        other => return Err(refused(other).into()),
    }
    let (protection, administrator) = protection()?;
    let (id, objects) = root_objects(repository, &protection, administrator.as_ref())?;
    write(stream, &InitMessage::Objects(objects))?;
    match read(stream)? {
        InitMessage::Made => Ok(Some(id)),
        other => Err(refused(other).into()),
    }
}

/// A stream after a replica was asked for, and whether one was made.
pub type Answered<'s> = (Stream<'s>, bool);

/// Answers a source that may ask for a replica to be made. A source that does not ask gets no
/// answer; its hello is still to be read from the stream that is returned.
///
/// `create` returns an empty storage that was just created, or `None` if there is a repository. If
/// it fails, or the objects are not those of a replica, the source is told.
pub fn answer_init(
    mut stream: Stream<'_>,
    create: impl FnOnce() -> Result<Option<Arc<dyn Storage>>>,
) -> Result<Answered<'_>> {
    let mut first = [0; INIT_HEADER_BYTES];
    stream.reader.read_exact(&mut first).map_err(|error| broken("read from", error))?;
    if !InitMessage::begins_with(&first) {
        let rest = std::mem::replace(&mut stream.reader, Box::new(std::io::empty()));
        stream.reader = Box::new(std::io::Cursor::new(first).chain(rest));
        return Ok((stream, false));
    }
    let made = read_behind(&mut stream, first).and_then(|asked| match asked {
        InitMessage::Ask => found(&mut stream, create()?),
        _ => Err(Error::invalid("the source did not ask for a replica")),
    });
    match made {
        Ok(is_made) => Ok((stream, is_made)),
        Err(error) => {
            let (kind, message) = (error.kind(), error.to_string());
            // The error counts, not whether the source hears of it.
            let _ = write(&mut stream, &InitMessage::Failed { kind, message });
            Err(error)
        }
    }
}

/// Stores the objects of a replica in an empty storage; returns whether there was one.
fn found(stream: &mut Stream<'_>, storage: Option<Arc<dyn Storage>>) -> Result<bool> {
    let Some(storage) = storage else {
        return write(stream, &InitMessage::Exists).map(|()| false);
    };
    write(stream, &InitMessage::Empty)?;
    let InitMessage::Objects(objects) = read(stream)? else {
        return Err(Error::invalid("the source did not send the objects of a replica"));
    };
    require_root(&objects)?;
    for (name, bytes) in &objects {
        storage.put(&Key::new(name.as_str())?, &[bytes], PutMode::Create)?;
    }
    write(stream, &InitMessage::Made).map(|()| true)
}

/// Names and bytes of the objects of a new repository.
type RootObjects = Vec<(String, Vec<u8>)>;

/// Makes a replica in memory. Returns its id and its objects; the configuration is the last one,
/// so that a replica that is not complete is none.
fn root_objects(
    repository: &Repository,
    protection: &Protection,
    administrator: Option<&Administrator>,
) -> Result<(RepositoryId, RootObjects)> {
    let storage = Arc::new(MemoryStorage::new());
    let context = repository.objects.context.clone();
    let memory = Arc::clone(&storage) as _;
    let replica = repository.init_replica(memory, context, protection, administrator)?;
    let mut objects = Vec::new();
    for item in list_all(&*storage, "", None) {
        let (name, _) = item?;
        let mut bytes = Vec::new();
        storage.get(&name, ByteRange::Full, &mut bytes)?;
        objects.push((name.as_str().to_owned(), bytes));
    }
    objects.sort_by_key(|(name, _)| place_of(name));
    require_root(&objects)?;
    Ok((replica.id(), objects))
}

fn place_of(name: &str) -> u8 {
    match name {
        names::CONFIG => 2,
        names::CONFIG_COPY => 1,
        _ => 0,
    }
}

/// Fails unless these are the objects of a new encrypted repository, and nothing else.
fn require_root(objects: &[(String, Vec<u8>)]) -> Result<()> {
    let wrong =
        |why: &str| Error::invalid(format!("these are not the objects of a replica: {why}"));
    let mut seen = HashSet::new();
    let mut repository = None;
    for (name, bytes) in objects {
        let header = Header::decode(bytes)?;
        let is_right = match header.kind {
            ObjectKind::Config => place_of(name) > 0,
            ObjectKind::Key => names::key_id(name) == Some(silt_format::Id(header.number)),
            ObjectKind::Writers => names::writers_number(name) == Some(header.number),
            ObjectKind::Authority => [names::AUTHORITY, names::AUTHORITY_COPY].contains(&&**name),
            _ => false,
        };
        if !is_right || !seen.insert(name) {
            return Err(wrong(&format!("there is {name}")));
        }
        if header.scheme == SealScheme::Checksum {
            return Err(wrong("they are not encrypted"));
        }
        if *repository.get_or_insert(header.repository) != header.repository {
            return Err(wrong("they are of several repositories"));
        }
    }
    let has_last = objects.last().is_some_and(|(name, _)| name == names::CONFIG);
    if !has_last || seen.len() < 6 {
        return Err(wrong("some are missing"));
    }
    Ok(())
}

fn write(stream: &mut Stream<'_>, message: &InitMessage) -> Result<()> {
    let failed = |error| broken("write to", error);
    stream.writer.write_all(&message.encode()).map_err(failed)?;
    stream.writer.flush().map_err(failed)
}

fn read(stream: &mut Stream<'_>) -> Result<InitMessage> {
    let mut header = [0; INIT_HEADER_BYTES];
    stream.reader.read_exact(&mut header).map_err(|error| broken("read from", error))?;
    read_behind(stream, header)
}

fn read_behind(stream: &mut Stream<'_>, header: [u8; INIT_HEADER_BYTES]) -> Result<InitMessage> {
    let behind = InitMessage::bytes_behind(&header)?;
    let mut bytes = header.to_vec();
    bytes.resize(INIT_HEADER_BYTES + behind, 0);
    let rest = &mut bytes[INIT_HEADER_BYTES..];
    stream.reader.read_exact(rest).map_err(|error| broken("read from", error))?;
    InitMessage::decode(&bytes)
}

/// The error of an end that made no replica.
fn refused(answer: InitMessage) -> Error {
    match answer {
        InitMessage::Failed { kind, message } => {
            Error::new(kind, format!("the other end made no replica: {message}"))
        }
        _ => {
            Error::new(ErrorKind::Invalid, "the other end did not answer whether it made a replica")
        }
    }
}
