//! A client that says exactly what a test wants, and a server in this process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use silt_export::catalog::{Catalog, CatalogOptions};
use silt_export::nbd::{Exports, Listener, Server, ServerOptions};
use silt_source::nbd::wire::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, Request, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, option, option_reply,
};
use silt_storage::Storage;
use siltstone::{Context, Event, Observer, OperationId, Repository, SystemEnv};
use tempfile::TempDir;

/// Collects what a server warns of.
#[derive(Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// How many warnings have this text.
    pub fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|warning| warning.contains(text)).count()
    }
}

impl Observer for Warnings {
    fn event(&self, _: OperationId, event: &Event<'_>) {
        if let Event::Warning(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }
}

/// A server that ends when this is dropped.
pub struct Running {
    _folder: TempDir,
    path: PathBuf,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    pub warnings: Arc<Warnings>,
}

impl Running {
    pub fn start(storage: Arc<dyn Storage>, names: &[&str], options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let end = Arc::new(AtomicBool::new(false));
        let env = Arc::new(SystemEnv::new(Arc::clone(&end)));
        let warnings = Arc::new(Warnings::default());
        let context = Context::new(env, warnings.clone());
        let open = || unreachable!("nothing is encrypted");
        let repository = Repository::open(storage, context, open).unwrap();
        let catalog = CatalogOptions { refresh_ns: 0, ..CatalogOptions::default() };
        let catalog = Arc::new(Catalog::new(repository, catalog));
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let exports = if names.is_empty() {
            Exports::all(catalog)
        } else {
            Exports::of(catalog, &names).unwrap()
        };
        let listener = Listener::unix(&path).unwrap();
        let server = Server::new(exports, options);
        let thread = std::thread::spawn(move || server.run(&[listener]).unwrap());
        Self { _folder: folder, path, end, thread: Some(thread), warnings }
    }
    pub fn stop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), JoinHandle::join).unwrap();
    }
    pub fn path(&self) -> &PathBuf {
        &self.path
    }
    /// A connection of which nothing was said yet.
    pub fn connect(&self) -> Client {
        let socket = UnixStream::connect(&self.path).unwrap();
        // A server that says nothing fails a test, and does not hang it.
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { socket }
    }
    /// A connection that haggles.
    pub fn haggle(&self) -> Client {
        let mut client = self.connect();
        client.greet(3);
        client
    }
    /// A connection with structured replies to an export.
    pub fn open(&self, export: &str, contexts: &[&str]) -> Client {
        let mut client = self.haggle();
        assert_eq!(client.ask(option::STRUCTURED_REPLY, b"").0, option_reply::ACK);
        if !contexts.is_empty() {
            let data = contexts_of(export, contexts);
            assert_eq!(client.ask(option::SET_META_CONTEXT, &data).0, option_reply::ACK);
        }
        assert_eq!(client.ask(option::GO, &info_of(export, &[])).0, option_reply::ACK);
        client
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

pub struct Client {
    pub socket: UnixStream,
}

/// A chunk of a reply: its cookie, flags, kind and payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    pub cookie: u64,
    pub is_last: bool,
    pub kind: u16,
    pub payload: Vec<u8>,
}

impl Chunk {
    /// The number of the error that it is.
    pub fn error(&self) -> u32 {
        assert!(self.kind & 0x8000 != 0, "{self:?}");
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
    /// Where the data or the hole of it is.
    pub fn offset(&self) -> u64 {
        u64::from_be_bytes(self.payload[..8].try_into().unwrap())
    }
}

impl Client {
    pub fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.read())
    }
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.read())
    }
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.read())
    }
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }
    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }
    /// Whether the server has hung up without another word.
    pub fn is_over(&mut self) -> bool {
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(length) => length == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
    /// Whether there is no greeting.
    pub fn is_over_at_once(&mut self) -> bool {
        let mut greeting = [0; 18];
        self.socket.read_exact(&mut greeting).is_err()
    }
    pub fn greet(&mut self, flags: u32) {
        assert_eq!((self.u64(), self.u64()), (GREETING_MAGIC, OPTION_MAGIC));
        assert_eq!(self.u16(), 3, "fixed newstyle, no zeroes");
        self.send(&flags.to_be_bytes());
    }
    pub fn send_option(&mut self, kind: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).unwrap();
        let header = [&OPTION_MAGIC.to_be_bytes()[..], &kind.to_be_bytes(), &length.to_be_bytes()];
        self.send(&[&header.concat(), data].concat());
    }
    pub fn option_reply(&mut self, kind: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), OPTION_REPLY_MAGIC);
        assert_eq!(self.u32(), kind);
        let (reply, length) = (self.u32(), self.u32());
        (reply, self.bytes(length as usize))
    }
    /// Sends an option; the last reply's kind, and the data of those before it.
    pub fn ask(&mut self, kind: u32, data: &[u8]) -> (u32, Vec<(u32, Vec<u8>)>) {
        self.send_option(kind, data);
        let mut said = Vec::new();
        loop {
            let (reply, data) = self.option_reply(kind);
            if reply == option_reply::ACK || reply & (1 << 31) != 0 {
                if reply == option_reply::ACK {
                    assert!(data.is_empty());
                }
                return (reply, said);
            }
            said.push((reply, data));
        }
    }
    pub fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        let length = length.into();
        self.send(&Request { flags, command, cookie, offset, length }.encode(false));
    }
    pub fn chunk(&mut self) -> Chunk {
        assert_eq!(self.u32(), STRUCTURED_REPLY_MAGIC);
        let (flags, kind, cookie, length) = (self.u16(), self.u16(), self.u64(), self.u32());
        assert!(flags <= 1);
        let payload = self.bytes(length as usize);
        Chunk { cookie, is_last: flags == chunk::FLAG_DONE, kind, payload }
    }
    /// The chunks of the only reply under way.
    pub fn chunks(&mut self, cookie: u64) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, cookie);
            let is_last = chunk.is_last;
            chunks.push(chunk);
            if is_last {
                return chunks;
            }
        }
    }
    /// The header of a simple reply: the error.
    pub fn simple(&mut self, cookie: u64) -> u32 {
        assert_eq!(self.u32(), SIMPLE_REPLY_MAGIC);
        let error = self.u32();
        assert_eq!(self.u64(), cookie);
        error
    }
    /// The extents of a block status: the context's id, lengths and states.
    pub fn extents(&mut self, cookie: u64) -> Vec<(u32, Vec<(u32, u32)>)> {
        let parse = |chunk: Chunk| {
            assert_eq!(chunk.kind, chunk::BLOCK_STATUS, "{chunk:?}");
            let numbers = chunk.payload.as_chunks::<4>().0.iter();
            let numbers: Vec<u32> = numbers.map(|bytes| u32::from_be_bytes(*bytes)).collect();
            let extents = numbers[1..].as_chunks::<2>().0.iter().map(|&[a, b]| (a, b));
            (numbers[0], extents.collect())
        };
        self.chunks(cookie).into_iter().map(parse).collect()
    }
}

fn string(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// The data of `INFO` and `GO`.
pub fn info_of(export: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(export);
    data.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
    data.extend(wanted.iter().flat_map(|wanted| wanted.to_be_bytes()));
    data
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn contexts_of(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export);
    data.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}
