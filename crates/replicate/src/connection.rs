//! Messages as sealed records on a stream of bytes.
//!
//! After the hellos, every record is a length `u32`, its complement, and a sealed body. The body is
//! a codec `u8` and a message, stored or as the next part of a zstd stream that lasts as long as
//! the connection.

use std::io::{BufReader, BufWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use silt_backup::ReplicaPeer;
use silt_format::number::{to_u32, to_u64};
use silt_format::replica::{
    DELTA_VERSION, HELLO_BYTES, Hello, MESSAGE_BYTES_MAX, ReplicaMessage, ReplicaRole,
    SESSION_TAG_BYTES, SessionKeys, SourceMessage,
};
use silt_format::{Advice, Error, ErrorKind, Result};
use silt_format::{MasterKey, RepositoryId, Sealer};
use silt_repository::Repository;
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use crate::pace::Pace;
use crate::replica::Replica;
use crate::source::{FrameUse, Source};
use crate::traffic::{Counter, Phase, Traffic};

/// Size of the window of a connection's zstd stream, as a power of two.
const WINDOW_LOG: u32 = 23;
/// Maximum size of messages of the replica that are read ahead, in bytes. They are always read, so
/// that both ends never wait for each other; a replica that follows the protocol stays far below.
const AHEAD_BYTES_MAX: u64 = 32 << 20;
/// How often it is looked whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Size of the buffers of both directions, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Messages below this size are not worth compressing, in bytes.
const COMPRESSED_BYTES_MIN: usize = 64;

/// Bytes before the body of a record: its length, and the length's complement.
const LENGTH_BYTES: usize = 8;

const STORED: u8 = 0;
const ZSTD: u8 = 1;

/// The error of a stream that ends, fails, or brings something else than was sent.
pub(crate) fn broken(what: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    if matches!(error.kind(), Io::UnexpectedEof | Io::BrokenPipe | Io::ConnectionReset) {
        let message = "the other end closed the connection";
        return Error::new(ErrorKind::Unavailable, message);
    }
    Error::io(format!("{what} the other end"), error)
}

/// The error of a record that is not as it was sent.
fn changed() -> Error {
    Error::new(ErrorKind::Unavailable, "a record of the connection was changed on its way")
}

/// Writes records.
struct RecordWriter<W: Write> {
    stream: BufWriter<W>,
    encoder: Encoder<'static>,
    number: u64,
    bytes: Arc<Counter>,
}

impl<W: Write> RecordWriter<W> {
    fn new(stream: W, level: i32, bytes: Arc<Counter>) -> Result<Self> {
        let failed = |error| Error::io("compress", error);
        let mut encoder = Encoder::new(level).map_err(failed)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG)).map_err(failed)?;
        let stream = BufWriter::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { stream, encoder, number: 0, bytes })
    }

    /// The next record, with a message; as a part of the zstd stream if `compresses`.
    fn record(&mut self, message: &[u8], compresses: bool, sealer: &Sealer) -> Result<Vec<u8>> {
        let failed = |error| broken("write to", error);
        let mut body = vec![0; LENGTH_BYTES];
        if !compresses || message.len() < COMPRESSED_BYTES_MIN {
            body.push(STORED);
            body.extend_from_slice(message);
        } else {
            body.push(ZSTD);
            body.extend_from_slice(&to_u32(message.len()).to_le_bytes());
            self.compress(message, &mut body).map_err(failed)?;
        }
        sealer.seal(self.number, &mut body, LENGTH_BYTES);
        self.number += 1;
        let length = to_u32(body.len() - LENGTH_BYTES);
        body[..4].copy_from_slice(&length.to_le_bytes());
        body[4..8].copy_from_slice(&(!length).to_le_bytes());
        Ok(body)
    }

    fn write(&mut self, record: &[u8], phase: Phase) -> Result<()> {
        self.bytes.add(phase, to_u64(record.len()));
        self.stream.write_all(record).map_err(|error| broken("write to", error))
    }

    fn compress(&mut self, message: &[u8], into: &mut Vec<u8>) -> std::io::Result<()> {
        let mut input = InBuffer::around(message);
        let mut piece = vec![0; zstd::zstd_safe::compress_bound(message.len()).min(1 << 17)];
        while input.pos() < message.len() {
            let mut output = OutBuffer::around(&mut piece[..]);
            self.encoder.run(&mut input, &mut output)?;
            into.extend_from_slice(output.as_slice());
        }
        loop {
            let mut output = OutBuffer::around(&mut piece[..]);
            let left = self.encoder.flush(&mut output)?;
            into.extend_from_slice(output.as_slice());
            if left == 0 {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush().map_err(|error| broken("write to", error))
    }
}

/// Reads records.
struct RecordReader<R: Read> {
    stream: BufReader<R>,
    decoder: Decoder<'static>,
    number: u64,
    bytes: Arc<Counter>,
    body: Vec<u8>,
}

impl<R: Read> RecordReader<R> {
    fn new(stream: R, bytes: Arc<Counter>) -> Result<Self> {
        let failed = |error| Error::io("decompress", error);
        let mut decoder = Decoder::new().map_err(failed)?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(failed)?;
        let stream = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { stream, decoder, number: 0, bytes, body: Vec::new() })
    }

    /// The next message, and its size in memory before it is decoded.
    fn receive<M>(&mut self, sealer: &Sealer, decode: fn(&[u8]) -> Result<M>) -> (u64, Result<M>)
    where
        for<'m> Phase: From<&'m M>,
    {
        let read = self.read(sealer);
        let bytes = read.as_ref().map_or(0, |(_, message)| to_u64(message.len()));
        let message = read.and_then(|(record_bytes, message)| {
            let message = decode(&message)?;
            self.bytes.add(Phase::from(&message), record_bytes);
            Ok(message)
        });
        (bytes, message)
    }

    /// The size of the next record in bytes, and its message.
    fn read(&mut self, sealer: &Sealer) -> Result<(u64, Vec<u8>)> {
        let failed = |error| broken("read from", error);
        let (mut length, mut complement) = ([0; 4], [0; 4]);
        self.stream.read_exact(&mut length).map_err(failed)?;
        self.stream.read_exact(&mut complement).map_err(failed)?;
        let length = u32::from_le_bytes(length);
        // A wrong length would make both ends wait for each other.
        if length != !u32::from_le_bytes(complement) {
            return Err(changed());
        }
        let length = length as usize;
        if !(SESSION_TAG_BYTES + 1..=MESSAGE_BYTES_MAX + 1024).contains(&length) {
            return Err(Error::invalid(format!("the other end sent a record of {length} bytes")));
        }
        // As much as comes, not as much as is claimed.
        self.body.clear();
        let mut part = (&mut self.stream).take(to_u64(length));
        part.read_to_end(&mut self.body).map_err(failed)?;
        if self.body.len() < length {
            return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let opened = sealer.open(self.number, &mut self.body).map_err(|_| changed())?;
        self.number += 1;
        let message = match opened.split_first() {
            Some((&STORED, message)) => message.to_vec(),
            Some((&ZSTD, rest)) if rest.len() >= 4 => {
                let (raw, packed) = rest.split_at(4);
                let raw = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize;
                decompress(&mut self.decoder, packed, raw)?
            }
            _ => return Err(Error::invalid("the other end sent a record of an unknown kind")),
        };
        Ok((to_u64(LENGTH_BYTES + length), message))
    }
}

/// The next `raw` bytes of a stream, which `packed` must hold exactly.
fn decompress(decoder: &mut Decoder<'static>, packed: &[u8], raw: usize) -> Result<Vec<u8>> {
    let wrong = || Error::invalid("the other end sent a record that does not decompress");
    if raw > MESSAGE_BYTES_MAX {
        return Err(wrong());
    }
    let mut message = vec![0; raw];
    let (mut input, mut at) = (InBuffer::around(packed), 0);
    while at < raw {
        let mut output = OutBuffer::around(&mut message[at..]);
        let before = input.pos();
        decoder.run(&mut input, &mut output).map_err(|_| wrong())?;
        let written = output.pos();
        if written == 0 && input.pos() == before {
            return Err(wrong());
        }
        at += written;
    }
    // The rest of the packed bytes ends the part and yields nothing.
    let mut nothing = [0; 1];
    while input.pos() < packed.len() {
        let mut output = OutBuffer::around(&mut nothing[..]);
        let before = input.pos();
        decoder.run(&mut input, &mut output).map_err(|_| wrong())?;
        if output.pos() > 0 || input.pos() == before {
            return Err(wrong());
        }
    }
    Ok(message)
}

/// A stream of bytes in both directions.
pub struct Stream<'s> {
    /// What the other end sends.
    pub reader: Box<dyn Read + Send + 's>,
    /// What the other end receives.
    pub writer: Box<dyn Write + Send + 's>,
    /// Ends both directions, so that a read that waits returns.
    pub close: Box<dyn Fn() + Send + Sync + 's>,
}

/// A connection to the other end, after the hellos.
pub struct Connection<'s> {
    keys: SessionKeys,
    reader: RecordReader<Box<dyn Read + Send + 's>>,
    writer: RecordWriter<Box<dyn Write + Send + 's>>,
    close: Box<dyn Fn() + Send + Sync + 's>,
    is_adaptive: bool,
    peer: RepositoryId,
    /// Of the protocol, that both ends speak.
    version: u16,
    level: i32,
    received: Arc<Counter>,
    sent: Arc<Counter>,
}

impl<'s> Connection<'s> {
    /// Says hello as `role` for `repository`, and checks that the other end has the same secret.
    ///
    /// `level` is the zstd level of what is sent. Fails with `Invalid` if the other end does not
    /// speak the protocol, has another secret or the same repository, with `Denied` if this end has
    /// a write-only key.
    pub fn open(
        repository: &Repository,
        role: ReplicaRole,
        stream: Stream<'s>,
        level: i32,
    ) -> Result<Self> {
        let Stream { reader: mut from, writer: mut to, close } = stream;
        let master = master_of(repository)?;
        let nonce = repository.objects.context.random();
        let ours = Hello::new(role, repository.id(), master, nonce);
        to.write_all(&ours.encode()).map_err(|error| broken("write to", error))?;
        to.flush().map_err(|error| broken("write to", error))?;
        let mut bytes = [0; HELLO_BYTES];
        from.read_exact(&mut bytes).map_err(|error| broken("read from", error))?;
        let (keys, peer, version) = agree(master, &ours, &bytes)?;
        let (sent, received) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        for counter in [&sent, &received] {
            counter.add(Phase::Agreement, to_u64(HELLO_BYTES));
        }
        Ok(Self {
            keys,
            reader: RecordReader::new(from, Arc::clone(&received))?,
            writer: RecordWriter::new(to, level, Arc::clone(&sent))?,
            close,
            is_adaptive: false,
            peer,
            version,
            level,
            received,
            sent,
        })
    }

    /// Lets the source compress less where the line is faster than the compression.
    pub fn adapt(&mut self) {
        self.is_adaptive = true;
    }

    /// Bytes on the stream so far.
    pub fn traffic(&self) -> Traffic {
        Traffic { sent: self.sent.bytes(), received: self.received.bytes() }
    }

    /// The repository at the other end.
    pub fn peer(&self) -> RepositoryId {
        self.peer
    }

    /// Ends both directions.
    pub fn close(&self) {
        (self.close)();
    }

    /// Sends what a source produces until it is done. A thread reads the replica's messages.
    pub(crate) fn send_from(&mut self, source: &mut Source<'_>) -> Result<()> {
        if takes_deltas(self.version) {
            source.set_deltas(self.level);
        }
        let Self { keys, reader, writer, close, is_adaptive, .. } = self;
        let is_adaptive = *is_adaptive;
        let (to, messages) = channel();
        let ahead = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            let sealer = &keys.replica;
            scope.spawn(move || read_messages(reader, sealer, &to, ahead));
            let messages = Messages { messages, ahead };
            let sent = send_all(source, (writer, is_adaptive), &keys.source, &messages);
            if sent.is_err() {
                close();
            }
            // The reading thread ends with the stream, which the replica closes after a goodbye.
            drop(messages);
            sent
        })
    }
}

/// The secret that both ends have.
pub(crate) fn master_of(repository: &Repository) -> Result<&MasterKey> {
    repository.objects.keys.master().ok_or_else(|| {
        let message = "replication needs a key that can read data; this one is write-only";
        Error::new(ErrorKind::Denied, message)
    })
}

/// The keys that both ends derive, the repository of the other end, and the version of the protocol
/// that both speak.
fn agree(
    master: &MasterKey,
    ours: &Hello,
    theirs: &[u8; HELLO_BYTES],
) -> Result<(SessionKeys, RepositoryId, u16)> {
    let expected = match ours.role {
        ReplicaRole::Source => ReplicaRole::Replica,
        ReplicaRole::Replica => ReplicaRole::Source,
    };
    let theirs = Hello::decode(theirs, expected)?;
    if theirs.secret != ours.secret {
        let message = "the other end's repository has another secret: it was not made as a replica \
                       of this one, or of one that this one replicates";
        return Err(Error::invalid(message).with_advice(Advice::InitReplica));
    }
    if theirs.repository == ours.repository {
        return Err(Error::invalid("both ends have the same repository"));
    }
    let (source, replica) = match ours.role {
        ReplicaRole::Source => (ours, &theirs),
        ReplicaRole::Replica => (&theirs, ours),
    };
    let version = ours.version.min(theirs.version);
    Ok((SessionKeys::new(master, source, replica), theirs.repository, version))
}

/// Whether a replica takes deltas if both ends speak this version.
fn takes_deltas(version: u16) -> bool {
    version >= DELTA_VERSION
}

/// A message of the replica, and its size in bytes.
type Received = (u64, Result<ReplicaMessage>);

/// The messages of the replica that were read.
struct Messages<'a> {
    messages: Receiver<Received>,
    ahead: &'a AtomicU64,
}

impl Messages<'_> {
    fn take(&self, (bytes, message): Received) -> Result<ReplicaMessage> {
        self.ahead.fetch_sub(bytes, Ordering::Relaxed);
        message
    }

    /// The next message, if there is one.
    fn poll(&self) -> Result<Option<ReplicaMessage>> {
        match self.messages.try_recv() {
            Ok(received) => self.take(received).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }

    /// Waits for the next message, as long as the user does not ask to stop.
    fn wait(&self, source: &Source<'_>) -> Result<ReplicaMessage> {
        loop {
            match self.messages.recv_timeout(LOOK) {
                Ok(received) => return self.take(received),
                Err(RecvTimeoutError::Timeout) => source.check_interrupted()?,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the other end closed the connection")
}

fn read_messages(
    reader: &mut RecordReader<Box<dyn Read + Send + '_>>,
    sealer: &Sealer,
    to: &Sender<Received>,
    ahead: &AtomicU64,
) {
    loop {
        let (bytes, mut message) = reader.receive(sealer, ReplicaMessage::decode);
        if ahead.fetch_add(bytes, Ordering::Relaxed) + bytes > AHEAD_BYTES_MAX {
            message = Err(Error::invalid("the replica sends more than it was asked for"));
        }
        let is_end = message.is_err();
        if to.send((bytes, message)).is_err() || is_end {
            return;
        }
    }
}

fn send_all(
    source: &mut Source<'_>,
    (writer, is_adaptive): (&mut RecordWriter<Box<dyn Write + Send + '_>>, bool),
    sealer: &Sealer,
    messages: &Messages<'_>,
) -> Result<()> {
    let mut pace = Pace::new(source.now_ns());
    loop {
        while let Some(message) = messages.poll()? {
            source.take(message)?;
        }
        let before = source.sent_bytes();
        if let Some(message) = source.produce()? {
            let compresses = !pace.sends_frames() && !matches!(message, SourceMessage::Frame(_));
            let (phase, is_last) = (Phase::from(&message), message == SourceMessage::Bye);
            let message = message.encode();
            let record = writer.record(&message, compresses, sealer)?;
            let from_ns = source.now_ns();
            writer.write(&record, phase)?;
            pace.waited(from_ns, source.now_ns());
            if is_last {
                return writer.flush();
            }
            let sent = source.sent_bytes().saturating_sub(before);
            if is_adaptive && sent > 0 {
                pace.sent(sent, source.now_ns());
                let frames = [FrameUse::Never, FrameUse::Always];
                source.set_frames(frames[usize::from(pace.sends_frames())]);
            }
            continue;
        }
        writer.flush()?;
        let from_ns = source.now_ns();
        let message = messages.wait(source)?;
        pace.waited(from_ns, source.now_ns());
        source.take(message)?;
    }
}

/// The replica's end of a connection.
struct Served<'c, 's>(&'c mut Connection<'s>);

impl ReplicaPeer for Served<'_, '_> {
    fn send(&mut self, message: ReplicaMessage) -> Result<()> {
        let record = self.0.writer.record(&message.encode(), true, &self.0.keys.replica)?;
        self.0.writer.write(&record, Phase::from(&message))
    }

    fn receive(&mut self) -> Result<SourceMessage> {
        self.0.writer.flush()?;
        self.0.reader.receive(&self.0.keys.source, SourceMessage::decode).1
    }
}

/// Takes snapshots from the other end of a connection until it says goodbye; returns their number.
pub fn serve(mut replica: Replica<'_>, connection: &mut Connection<'_>) -> Result<u64> {
    let served = replica.serve(&mut Served(connection));
    connection.writer.flush()?;
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_replica_gets_no_deltas() -> Result<()> {
        let master = MasterKey::new([5; 32]);
        let hello = |role, id| Hello::new(role, RepositoryId([id; 16]), &master, [id; 32]);
        let ours = hello(ReplicaRole::Source, 1);
        for (theirs, agreed, deltas) in [(1, 1, false), (2, 2, true), (9, 2, true)] {
            let replica = Hello { version: theirs, ..hello(ReplicaRole::Replica, 2) };
            let (_, _, version) = agree(&master, &ours, &replica.encode())?;
            assert_eq!((version, takes_deltas(version)), (agreed, deltas));
        }
        Ok(())
    }
}
